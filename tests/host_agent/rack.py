"""A rack on the simulator's clock and links: real endpoints, and a switch of the oracle that checks itself.

What runs on the endpoints is a test's: collectives' programs (`run`), or single operations (`post`, `until`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from host_agent.collectives.plan import Steps, Wait
from host_agent.transport import Endpoint, Event, EventType, Operation, TransportConfig
from host_agent.transport.events import Failure
from p4reduce.oracle.slot_rules import SwitchModel
from p4reduce.oracle.state import Job, Slot, SpineJob
from p4reduce.simulation.cases import Array, Case
from p4reduce.simulation.faults.links import StrikesOfLink, Wire
from p4reduce.simulation.faults.loop import NS, Clock
from p4reduce.simulation.faults.results import Expected
from p4reduce.simulation.faults.schedule import Rates
from p4reduce.simulation.invariant import InvariantError
from p4reduce.simulation.nic import NicEndpoint
from p4reduce.simulation.rack import job_of, routes_of

LINK_DELAY_NS = 10_000
Program = Callable[[int], Steps[Any]]


@dataclass
class Worker:
    """One rank: its endpoint and the program that it runs."""

    endpoint: Endpoint | NicEndpoint
    program: Steps[Any] | None = None
    waiting: Wait | None = None
    events: list[Event] = field(default_factory=list)
    received: int = 0  # the last operation that is RECEIVED
    completed: int = 0
    result: Any = None
    failure: Failure | None = None
    done: bool = False

    def may_advance(self) -> bool:
        """Tell whether what the worker waits for has come."""
        if self.waiting is None:
            return False
        reached = self.received if self.waiting.until is EventType.RECEIVED else self.completed
        return reached >= self.waiting.op_id

    def advance(self, now_ns: int) -> None:
        """Run on until it waits for what is not there yet."""
        assert self.program is not None
        try:
            step = next(self.program) if self.waiting is None else self.program.send(0)
            while True:
                self.waiting = step if isinstance(step, Wait) else None
                if self.waiting is not None and not self.may_advance():
                    return
                reply = 0 if isinstance(step, Wait) else self.endpoint.post(step, now_ns)
                step = self.program.send(reply)
        except StopIteration as end:
            self.result, self.done, self.waiting = end.value, True, None

    def note(self) -> None:
        """Take note of the endpoint's events."""
        for event in self.endpoint.events():
            self.events.append(event)
            if event.type is EventType.RECEIVED:
                self.received = event.op_id
            elif event.type is EventType.COMPLETED:
                self.received, self.completed = max(self.received, event.op_id), event.op_id
            else:
                self.failure = event.failure

    def is_over(self) -> bool:
        """Tell whether the worker's program has ended, and all that it sent is acknowledged."""
        return self.done and self.endpoint.position().operations == 0


class CheckedSwitch(SwitchModel):
    """Refuses to forget a sum that somebody lacks."""

    workers: Sequence[Worker] = ()
    reused_slots = 0

    def claim(self, job: Job | SpineJob, slot: Slot, tag: tuple[int, int]) -> None:
        if slot.tag is not None and slot.tag[0] == tag[0]:
            self.reused_slots += 1
            old = slot.tag[1]
            received = [worker.endpoint.position().received_messages for worker in self.workers]
            lacking = [rank for rank, count in enumerate(received) if count <= old]
            if lacking or len(slot.ranks) < job.contributors:
                raise InvariantError(
                    f"message {tag[1]} overwrites the slot of {old}, whose sum ranks {lacking} lack "
                    f"(contributed: {sorted(slot.ranks)})"
                )
        super().claim(job, slot, tag)


class Simulation:
    """Rank r is on port r + 1 of `switch`, or of one that serves the job.

    `adapters`: ranks whose packets are a simulated RDMA adapter's. `drop` decides about chosen frames (rank,
    whether it sends it, frame).
    """

    def __init__(
        self,
        workers: Sequence[TransportConfig],
        *,
        faults: Rates | None = None,
        seed: int = 0,
        switch: SwitchModel | None = None,
        adapters: Container[int] = (),
        drop: Callable[[int, bool, bytes], bool] = lambda rank, outbound, frame: False,
    ) -> None:
        self.clock = Clock()
        self.job = job_of(list(workers))
        self.workers = [
            Worker(NicEndpoint(config) if config.rank in adapters else Endpoint(config)) for config in workers
        ]
        self.switch = switch or CheckedSwitch([self.job], routes_of(list(workers)))
        if isinstance(self.switch, CheckedSwitch):
            self.switch.workers = self.workers
        self.faults, self.drop = faults or Rates(), drop
        self.asleep: set[int] = set()  # workers that take nothing and send nothing
        ranks = range(len(workers))

        def lay(name: str, arrive: Callable[[bytes], None]) -> Wire:
            strikes = StrikesOfLink(name, self.faults, seed, None, [])
            return Wire(self.clock, strikes, arrive, delay_ns=LINK_DELAY_NS, gap_ns=0)

        self.up = [lay(f"h{rank}>l1", partial(self._at_switch, rank)) for rank in ranks]
        self.down = [lay(f"l1>h{rank}", partial(self._arrives, rank)) for rank in ranks]

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns

    @property
    def endpoints(self) -> list[Endpoint | NicEndpoint]:
        return [worker.endpoint for worker in self.workers]

    @property
    def frames_sent(self) -> int:
        return sum(wire.sent for wire in (*self.up, *self.down))

    def install(self) -> None:
        """Let the switch serve the job, as if it never had before."""
        self.job = job_of([endpoint.config for endpoint in self.endpoints])
        self.switch.members.update(SwitchModel([self.job], {}).members)

    def uninstall(self) -> None:
        """Let the switch only route."""
        self.switch.members.clear()

    # What runs.

    def run(self, program: Program, *, limit_s: float = 3600.0) -> list[Any]:
        """Run every rank's `program(rank)` to its end, all acknowledged. Stop if an endpoint fails."""
        for rank, worker in enumerate(self.workers):
            worker.program, worker.done, worker.waiting = program(rank), False, None
            self.advance(rank)
        self.until(self.settled, limit_s=limit_s)
        return [worker.result for worker in self.workers]

    def settled(self) -> bool:
        """Tell whether all programs ended with nothing unacknowledged, or somebody failed."""
        if any(worker.failure for worker in self.workers):
            return True
        return all(worker.is_over() for worker in self.workers)

    def post(self, rank: int, operation: Operation) -> int:
        op_id = self.workers[rank].endpoint.post(operation, self.now_ns)
        self.flush(rank)
        return op_id

    def completed(self, op_id: int, *, rank: int | None = None) -> bool:
        """Tell whether an operation is complete, at one worker or at all; none may have failed."""
        failures = [worker.failure for worker in self.workers if worker.failure is not None]
        assert not failures, failures
        some = self.workers if rank is None else [self.workers[rank]]
        return all(worker.completed >= op_id for worker in some)

    # Time.

    def until(self, holds: Callable[[], bool], *, limit_s: float = 100.0) -> None:
        """Run until it holds; raise InvariantError if nothing can happen any more, or time is up."""
        end_ns = self.now_ns + round(limit_s * NS)
        while not holds():
            if not self.step(end_ns):
                raise InvariantError(f"at {self.now_ns / NS} s, and nothing more happens: {self.state()}")

    def run_for(self, seconds: float) -> None:
        end_ns = self.now_ns + round(seconds * NS)
        while self.step(end_ns):
            pass
        self.clock.now_ns = end_ns

    def step(self, end_ns: int = 1 << 62) -> bool:
        """Take what comes next until then, a frame's arrival or a timer; False where there is nothing."""
        awake = [worker.endpoint for rank, worker in enumerate(self.workers) if rank not in self.asleep]
        timer = min((t for endpoint in awake if (t := endpoint.next_timeout_ns()) is not None), default=None)
        frame = self.clock.next_ns
        if frame is not None and (timer is None or frame <= timer):
            if frame > end_ns:
                return False
            self.clock.step()
        elif timer is None or timer > end_ns:
            return False
        else:
            self.clock.now_ns = max(self.now_ns, timer)
            for rank in range(len(self.workers)):
                self.flush(rank)
        return True

    def frames_under_way(self) -> bool:
        return self.clock.next_ns is not None

    def state(self) -> list[Any]:
        return [worker.endpoint.progress() for worker in self.workers]

    # Frames.

    def advance(self, rank: int) -> None:
        """Run a rank's program on, until it waits for what is not there yet."""
        self.workers[rank].advance(self.now_ns)
        self.flush(rank)

    def flush(self, rank: int) -> None:
        """Send what an endpoint has to send, and take note of its events."""
        if rank in self.asleep:
            return
        worker = self.workers[rank]
        while frames := worker.endpoint.poll(self.now_ns):
            for frame in frames:
                if not self.drop(rank, True, frame):
                    self.up[rank].send(frame)
        worker.note()
        if worker.may_advance():
            self.advance(rank)

    def _at_switch(self, rank: int, frame: bytes) -> None:
        for port, out in self.switch.process(rank + 1, frame):
            if not self.drop(port - 1, False, out):
                self.down[port - 1].send(out)

    def _arrives(self, rank: int, frame: bytes) -> None:
        if rank not in self.asleep:
            self.at_worker(rank, frame)

    def at_worker(self, rank: int, frame: bytes) -> None:
        self.workers[rank].endpoint.receive(frame, self.now_ns)
        self.flush(rank)

    def close(self) -> None:
        for endpoint in self.endpoints:
            endpoint.close()


def program(
    cases: Iterable[Case], inputs: list[list[Array]], outputs: list[list[Array]], ring: tuple[int, ...] = ()
) -> Program:
    """Run the cases one after the other."""
    cases = list(cases)

    def run(rank: int) -> Steps[None]:
        for number, case in enumerate(cases):
            world_size = len(inputs[number])
            call = case.call(rank, world_size, number, ring)
            yield from case.steps(call, inputs[number][rank], outputs[number][rank])

    return run


def check(case: Case, inputs: list[Array], outputs: list[Array]) -> None:
    """Check that outputs are right on every rank, with the same bits."""
    expected, ranks = Expected(case, inputs), tuple(range(len(inputs)))
    for rank in ranks:
        expected.check(f"rank {rank}", ranks, rank, case.module, outputs[rank])
