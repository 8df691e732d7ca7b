"""Recovery: what a worker keeps so that its job can go on under a new generation, and how it goes on.

A renewal cuts all connections at once, wherever each worker is. Collectives synchronise: nobody has finished
collective c before all have entered it. So some workers have finished c - 1 and are before or in c, and the
others have finished c. If nobody has finished c, all workers in it run it again, from the inputs that they
kept. If somebody has, its user may have the result already. Nobody may make that again with other bits (or,
in an elastic job, without a worker that died), so it goes to the others as it is, and ends their collective.

Little has to be kept for that:

- The input, only if the result overwrites it: a copy, in a buffer that is used again.
- Of the last result, only what another worker can lack (`plan.Shared`): for sums by the switch the elements
  of the last W messages, for small ring collectives everything. Large ones end with a barrier and keep only
  that.

This module starts no thread and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.api.messages import Mode
from host_agent.collectives import in_network, ring
from host_agent.collectives.plan import (
    Array,
    Call,
    Disagreement,
    Restored,
    Shared,
    Steps,
    Strategy,
    until_sent,
)
from host_agent.kernels import keep
from host_agent.transport.operation import Operation, elements_of_message
from host_agent.wire.aggregation import Kind

NUMBERS = 1 << 32  # collectives are counted modulo this
Bytes = NDArray[np.uint8]
T = TypeVar("T")
_NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True)
class Window:
    """The limits of what a generation may have in flight."""

    messages: int
    message_packets: int
    path_mtu: int

    def elements(self, wire_bytes: int) -> int:
        """Return how many elements of a sum by the switch one worker can lack when another has all."""
        return self.messages * elements_of_message(
            path_mtu=self.path_mtu, message_packets=self.message_packets, wire_element_size=wire_bytes
        )


class ReplayLog:
    """A worker's account of its collectives: how many it has finished, and what it keeps.

    Not thread safe: it belongs to the thread that runs a collective and, while that is parked or none runs,
    to the thread that renews.
    """

    def __init__(self, window: Window) -> None:
        self.window = window  # of the present generation
        self.finished = 0  # collectives that ran to their end here, modulo 2^32
        self._kept = b""  # of the last of them: what others may lack
        self._running: Shared | None = None
        self._window = window  # of the generation in which it runs
        self._restored = False
        self._place: Array | None = None
        self._input: Bytes | None = None

    def begin(self, place: Array | None) -> None:
        """Begin a collective. `place`: the input, if the result overwrites it (C-contiguous)."""
        self._place = place
        if place is None:
            return
        if self._input is None or self._input.size < place.nbytes:
            self._input = np.empty(place.nbytes, np.uint8)
        keep(place, self._input)

    def attempt(self, call: Call) -> None:
        """Note that it runs, for the first time or anew, in the present generation."""
        self._running, self._window = call.shared, self.window
        if self._place is not None and self._input is not None:
            call.shared.before = self._input[: self._place.nbytes]

    def restore_input(self) -> None:
        """Undo what its results have overwritten."""
        if self._place is not None:
            assert self._input is not None
            self._place.reshape(-1).view(np.uint8)[...] = self._input[: self._place.nbytes]

    def finish(self) -> None:
        """Note that it has run to its end."""
        if not self._restored:
            self._kept = self._shared_tail().tobytes()
            self.finished = (self.finished + 1) % NUMBERS
        self.abandon()

    def parked(self) -> None:
        """Note that it was cut, and waits; it has finished if only acknowledgements are missing."""
        if self._running is not None and self._running.complete and not self._restored:
            self._kept, self._restored = self._shared_tail().tobytes(), True
            self.finished = (self.finished + 1) % NUMBERS

    def abandon(self) -> None:
        """Forget a collective that runs no more, and did not finish."""
        self._running = self._place = None
        self._restored = False

    @property
    def restored(self) -> bool:
        """True if the cut collective has its result, mostly from another rank, and only has to end."""
        return self._restored

    def put_result(self) -> None:
        """Put what another rank gave into the collective that was cut."""
        tail = self._shared_tail().reshape(-1).view(np.uint8)
        tail[...] = np.frombuffer(self._kept, np.uint8)

    def kept(self, collective: int) -> Bytes:
        """Return what this worker can give others of the result; any bytes if it has not finished it."""
        if self.finished == (collective + 1) % NUMBERS:
            return np.frombuffer(self._kept, np.uint8)
        if self.finished != collective:
            raise Disagreement(f"this worker has finished {self.finished} collectives, not {collective}")
        if self._running is None:
            raise Disagreement(
                f"another worker has finished collective {collective}, which this one never began"
            )
        return np.zeros(self._shared_tail().nbytes, np.uint8)

    def take(self, collective: int, result: Bytes) -> None:
        """Take the holder's result; the collective is finished here too. Disagreement if results differ."""
        if self.finished == collective:
            self._kept, self._restored = result.tobytes(), True
            self.finished = (collective + 1) % NUMBERS
        elif self._kept != result.tobytes():
            raise Disagreement(f"the results of collective {collective} differ between workers")

    def _shared_tail(self) -> Array:
        """Return the elements of the shared array that a rank may lack when another has finished."""
        assert self._running is not None
        array = self._running.array
        if array is None:  # of one worker alone
            return _NOTHING
        lag = self._window.elements(self._running.wire_bytes)
        if self._running.whole or array.size <= lag:
            return array
        return array.reshape(-1)[array.size - lag :]


class LinkCut(Exception):
    """An exception in a collective whose connection was cut, when there is another: the job was renewed."""


class BegunAnewError(Exception):
    """A renewal of an elastic gang: the collective of all GPUs that this one was for is begun anew."""


class Attempt(NamedTuple):
    """A collective as it runs in the present generation. `place`: as `ReplayLog.begin` has it."""

    place: Array | None
    call: Call
    steps: Steps[Any]


def through_renewals(replay_log: ReplayLog, begin: Callable[[], Attempt]) -> Steps[Any]:
    """Run a collective to its end, again after each LinkCut; returns what the last attempt's steps return.

    `begin` is called for each attempt.
    """
    again, place = False, None
    try:
        while True:
            if again:
                replay_log.restore_input()
            attempt = begin()
            if not again or place is None:  # the attempt before may have been a `refusal`, which has none
                replay_log.begin(place := attempt.place)
            replay_log.attempt(attempt.call)
            try:
                result = yield from _apart(attempt.steps)
                break
            except LinkCut:
                if replay_log.restored:
                    replay_log.put_result()
                    result = yield from _apart(attempt.steps, Restored())
                    break
                again = True
        replay_log.finish()
    except BaseException:
        replay_log.abandon()
        raise
    return result


def _apart(steps: Steps[T], first: Exception | None = None) -> Steps[T]:
    """Delegate as `yield from` does, but keep exceptions that are thrown in away from the steps.

    So the steps stay where they were cut, and can be told Restored later.
    """
    try:
        step = next(steps) if first is None else steps.throw(first)
        while True:
            done = yield step
            step = steps.send(done)
    except StopIteration as end:
        result: T = end.value
        return result


def repair(replay_log: ReplayLog, call: Call, *, holder: int, mode: Mode) -> Steps[None]:
    """Give collective `call.collective`'s result from rank `holder` to all who have not finished it.

    The repair ends when the successor has it, too: all that a worker receives comes from its predecessor.
    """
    mine = replay_log.kept(call.collective)
    call = call.named(Kind.REPAIR, mine, root=holder)
    result = np.empty_like(mine)
    module = in_network if mode is Mode.IN_NETWORK else ring
    ids = yield from _posted(module.broadcast(call, mine, result, root=holder))
    replay_log.take(call.collective, result)
    yield from until_sent(ids)


def refusal(call: Call, strategy: Strategy) -> Steps[None]:
    """Return when all workers are in a call that they refuse, in its place.

    So no worker goes on before the others refuse it, too: after a renewal they might not have to.
    """
    yield from algorithm_of(strategy).barrier(call)


def _posted(steps: Steps[None]) -> Steps[list[int]]:
    """Run `steps`; return the ids of the operations that they posted."""
    ids: list[int] = []
    try:
        step = next(steps)
        while True:
            done = yield step
            if isinstance(step, Operation):
                ids.append(done)
            step = steps.send(done)
    except StopIteration:
        return ids
    finally:
        steps.close()


def algorithm_of(strategy: Strategy) -> ModuleType:
    """Return the module with a strategy's collectives."""
    return in_network if strategy is Strategy.IN_NETWORK else ring


def is_consistent(finished: int, collective: int, *, held: bool) -> bool:
    """Tell whether a worker that finished so many fits a renewal that goes on with `collective`."""
    ahead = (finished - collective) % NUMBERS
    return ahead == 0 or (held and ahead == 1)
