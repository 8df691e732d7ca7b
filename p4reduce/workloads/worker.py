"""The program in a host: it reads commands as JSON lines from stdin, and answers each with one on stdout.

    {"do": "join", "controller": "172.31.255.254:50051", "job": "j", "rank": 0, "world_size": 4}
    {"do": "all_reduce", "elements": 1000, "dtype": "int32", "op": "sum", "seed": 1}
    {"do": "leave"}

An answer is {"ok": {...}} or {"error": {"kind": exception's name, "text": its sentence}}.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TextIO

import numpy as np

from controller.api.messages import Mode
from host_agent.collectives.plan import Strategy, Wire
from host_agent.errors import CommunicatorError
from host_agent.front import Collectives
from host_agent.machine.communicator import MachineCommunicator
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.references import Racks, of_the_job
from p4reduce.workloads.replaying import Player
from p4reduce.workloads.soak.summing import run_cases
from p4reduce.workloads.strategies.opening import open_reducer
from p4reduce.workloads.strategies.reducer import Reducer
from p4reduce.workloads.strategies.timing import time_sums
from p4reduce.workloads.streaming import stream
from p4reduce.workloads.tensors import check, digest, dtype_of, operation_of, tensor
from p4reduce.workloads.training import train

Answer = dict[str, Any]
# Methods of Worker by which it is told what to do.
_COMMANDS = (
    *("ready", "join", "all_reduce", "train", "open", "time_sums"),
    *("replay", "soak", "stream", "statistics", "leave"),
)


class Worker:
    """One rank: at most one communicator at a time, and the reducers that strategies opened beside it."""

    def __init__(self) -> None:
        self._communicator: Collectives | None = None
        self._reducers: dict[str, Reducer] = {}
        self._player = Player()

    def answer(self, command: dict[str, Any]) -> Answer:
        """Carry out one command, and return its answer."""
        arguments = dict(command)
        name = arguments.pop("do", None)
        if name not in _COMMANDS:
            return {"error": {"kind": "WorkloadError", "text": f"there is no command {name!r}"}}
        try:
            return {"ok": getattr(self, name)(**arguments)}
        except (CommunicatorError, WorkloadError) as error:
            return {"error": {"kind": type(error).__name__, "text": str(error)}}
        except Exception as error:  # noqa: BLE001 (a bug here has to reach whoever started the worker)
            traceback.print_exc()
            return {"error": {"kind": type(error).__name__, "text": f"{type(error).__name__}: {error}"}}

    def ready(self) -> Answer:
        """Tell that this interpreter has started."""
        return {}

    def join(self, **arguments: Any) -> Answer:
        """Join a job; return its properties."""
        if self._communicator is not None:
            raise WorkloadError("this worker is in a job already")
        self._communicator = MachineCommunicator.join(**arguments)
        ready = self._communicator.ready
        same = ("job_id", "generation", "window", "message_packets", "path_mtu", "mode_reason")
        return {
            **{name: getattr(ready, name) for name in same},
            "mode": ready.mode.name.lower(),
            "transport": self._communicator.transport.value,
        }

    def all_reduce(
        self,
        *,
        elements: int,
        dtype: str,
        op: str = "sum",
        strategy: str | None = None,
        seed: int = 0,
        repeat: int = 1,
        verify: bool = False,
        special: dict[str, float] | None = None,
        late_s: float = 0.0,
        racks: Racks | None = None,
        wire: str = "full",
    ) -> Answer:
        """Reduce seeded random tensors `repeat` times, a barrier before each, and time it.

        The tensor is that of the rank that this worker joined with. `special` puts values at positions
        ("index": value) of it. `late_s`: this rank starts so much later than the others, each time. With
        `racks`, the ranks behind each leaf, `verify` also checks the bits of a sum of floats; this is not for
        elastic jobs.
        """
        communicator = self._joined()
        if strategy == Strategy.IN_NETWORK and communicator.ready.mode is Mode.IN_NETWORK:
            strategy = Strategy.AUTO  # the same, but that a switch which fails meanwhile does not end it
        me = communicator.members[communicator.rank]
        array = tensor(seed=seed, rank=me, elements=elements, dtype=dtype_of(dtype))
        for index, value in (special or {}).items():
            array[int(index)] = value
        result = np.empty_like(array)
        before, seconds = communicator.counters(), []
        sent, ringed, by_ring = 0, 0, communicator.statistics().ring
        for _ in range(repeat):
            communicator.barrier()
            before_one, by_ring = communicator.counters().data_bytes_sent, communicator.statistics().ring
            time.sleep(late_s)
            members, started = communicator.members, time.perf_counter()
            communicator.all_reduce(array, op, out=result, strategy=strategy, wire=wire)
            seconds.append(time.perf_counter() - started)
            sent += communicator.counters().data_bytes_sent - before_one
            ringed += communicator.statistics().ring > by_ring
        after = communicator.counters()
        answer: Answer = {
            "seconds": seconds,
            "digest": digest(result),
            "bytes_sent": sent / repeat,
            "retransmissions": after.retransmitted_packets - before.retransmitted_packets,
            "duplicates": after.duplicates_received - before.duplicates_received,
            "workers": communicator.world_size,
            "by_ring": ringed,
            "ring_reason": communicator.statistics().ring_reason,
        }
        if verify and not special:
            # What was asked for need not be what was done: a job may find no room in the switches.
            ringed = communicator.statistics().ring > by_ring
            taken = Strategy.RING if ringed else Strategy.IN_NETWORK
            how: dict[str, Any] = {"dtype": array.dtype, "wire": Wire(wire), "reduction": operation_of(op)}
            # Who died while it ran has contributed for all, or for nobody.
            for ranks in dict.fromkeys((communicator.members, members)):
                outcome = check(
                    result,
                    seed=seed,
                    world_size=len(ranks),
                    ranks=ranks,
                    reduction=operation_of(op),
                    strategy=taken,
                    reference=None if racks is None else of_the_job(communicator, taken, racks, **how),
                    wire=Wire(wire),
                )
                if outcome.passed:
                    break
            answer["check"] = {**asdict(outcome), "passed": outcome.passed}
        if special:
            answer["special"] = {index: repr(float(result[int(index)])) for index in special}
        return answer

    def open(self, *, strategy: str, **arguments: Any) -> Answer:
        """Connect for a strategy; see `strategies.opening`."""
        self._reducers[strategy] = open_reducer(strategy, self._joined(), **arguments)
        return {}

    def time_sums(self, *, strategy: str, **arguments: Any) -> Answer:
        """Sum seeded tensors by a strategy that is open; see `strategies.timing`."""
        return self._with_inside(lambda: time_sums(self._reducer(strategy), strategy=strategy, **arguments))

    def replay(self, *, strategy: str, **arguments: Any) -> Answer:
        """Replay training, with sums by a strategy that is open; see `replaying.Player`."""
        return self._with_inside(lambda: self._player.replay(self._reducer(strategy), **arguments))

    def soak(self, **arguments: Any) -> Answer:
        """Run collectives whose results are checked; see `soak.summing`."""
        return run_cases(self._joined(), **arguments)

    def stream(self, **arguments: Any) -> Answer:
        """Reduce for as long as it is wanted; see `streaming.stream`."""
        return stream(self._joined(), **arguments)

    def train(self, **arguments: Any) -> Answer:
        """Train the digits network; see `training.train`."""
        return train(self._joined(), **arguments)

    def statistics(self) -> Answer:
        """Return the communicator's statistics and its connection's counters."""
        communicator = self._joined()
        return {"statistics": asdict(communicator.statistics()), "counters": asdict(communicator.counters())}

    def leave(self) -> Answer:
        """Leave the job, if in one, and close the reducers that were opened in it."""
        communicator, self._communicator = self._communicator, None
        while self._reducers:
            self._reducers.popitem()[1].close()
        if communicator is not None:
            communicator.leave()
        return {}

    def _with_inside(self, play: Callable[[], Answer]) -> Answer:
        """Call `play`, and return its answer.

        With several GPUs a host, the answer also has the bytes that came from the host's other GPUs
        meanwhile.
        """
        communicator = self._joined()
        if not isinstance(communicator, MachineCommunicator):
            return play()
        before = communicator.machine.bytes_received
        return {**play(), "bytes_inside": communicator.machine.bytes_received - before}

    def _reducer(self, strategy: str) -> Reducer:
        if strategy not in self._reducers:
            raise WorkloadError(f"strategy {strategy} is not open on this worker")
        return self._reducers[strategy]

    def _joined(self) -> Collectives:
        if self._communicator is None:
            raise WorkloadError("this worker has not joined a job")
        return self._communicator


def serve(commands: TextIO, answers: TextIO) -> None:
    """Answer commands until there are no more."""
    worker = Worker()
    try:
        for line in commands:
            print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)
    finally:
        worker.leave()


def main() -> None:
    """Serve stdin and stdout; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
