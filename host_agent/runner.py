"""Runner of a collective's steps on a connection: posts, waits, notices stalls, explains errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Final, Protocol, TypeVar

from host_agent.collectives.plan import Disagreement, Steps, Wait
from host_agent.errors import (
    CollectiveTimeoutError,
    CommunicatorError,
    ConnectionFailedError,
    MismatchError,
    NotAggregatedError,
    RetryExceededError,
    UsageError,
)
from host_agent.recovery import LinkCut
from host_agent.transport.errors import (
    ProtocolError,
    TransportClosedError,
    TransportError,
    TransportTimeoutError,
)
from host_agent.transport.events import Counters, EventType, Failure, FailureCode, Progress
from host_agent.transport.operation import Operation
from host_agent.wire.aggregation import AggregationHeader, Kind, NotAnAggregationHeader, Op, Reduction

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_POLL_S: Final = 0.5  # how often a wait between collectives checks whether it is still wanted
_SOON_S: Final = 0.02  # how long a wait goes on before it asks for the connection's progress,
_LATER_S: Final = 1.0  # and how often it asks again
_ASK_S: Final = 3.0  # how long it waits for the controller's answer who is missing
NOTICE_S: Final = 60.0  # without a time limit, how often a collective that does not move says so

_MISMATCHES = (FailureCode.MISMATCH, FailureCode.WRONG_SHAPE)


class Link(Protocol):
    """The part of a transport that the layers above use (`RcDriver`, `VerbsLink`, those of simulations)."""

    def post(self, operation: Operation) -> int:
        """Queue an operation; return its id. ValueError if it cannot be sent, and then nothing was."""
        ...

    def wait(
        self, op_id: int, *, timeout_s: float | None = None, until: EventType = EventType.RECEIVED
    ) -> None:
        """Wait for the operation. After a TransportTimeoutError it may be waited for again."""
        ...

    def abort(self, reason: str) -> None:
        """Make every wait raise TransportClosedError, and let go of all arrays. Does not block."""
        ...

    def counters(self) -> Counters:
        """Return the counts so far."""
        ...

    def progress(self) -> Progress:
        """Return the connection's progress."""
        ...

    def close(self) -> None:
        """Take the connection down."""
        ...


class Alone:
    """The link of a job with one worker: there is nobody to talk to, and no collective tries."""

    def post(self, operation: Operation) -> int:
        """Raise AssertionError: a job of one worker never posts."""
        raise AssertionError(f"a job of one worker has nothing to send: {operation}")

    def wait(
        self, op_id: int, *, timeout_s: float | None = None, until: EventType = EventType.RECEIVED
    ) -> None:
        """Return at once: nothing is ever posted."""

    def abort(self, reason: str) -> None:
        """Do nothing: nobody waits."""

    def counters(self) -> Counters:
        """Return zeros."""
        return Counters.none()

    def progress(self) -> Progress:
        """Return zeros."""
        return Progress(**{field.name: 0 for field in fields(Progress)})  # type: ignore[arg-type]

    def close(self) -> None:
        """Do nothing: there is no connection to take down."""


class WhoIsMissing(Protocol):
    """Function that says whom a collective waits for (`Membership.who_is_missing`)."""

    def __call__(self, *, timeout_s: float) -> str:
        """Return the sentence, waiting no longer than that for the answer."""
        ...


def give_up_or_say_so(stall: str, timeout_s: float | None) -> None:
    """Report a stall: raise CollectiveTimeoutError if the user has set a limit, else log a line.

    It goes to the log because Python shows equal warnings only once in a process's life.
    """
    if timeout_s is not None:
        raise CollectiveTimeoutError(stall) from None
    _LOG.warning("%s; waiting on, as no timeout_s is set", stall)


class Runner:
    """Runner of one collective after the other on `link`. If nothing moves, it gives up, or says so.

    It asks `who_is_missing` first.
    """

    def __init__(
        self,
        link: Link,
        *,
        rank: int,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        who_is_missing: WhoIsMissing | None = None,
    ) -> None:
        self.link = link
        self.rank = rank
        self.timeout_s = timeout_s
        self._who_is_missing = who_is_missing
        self._clock = clock
        self._last_op = 0
        self._counting = threading.Lock()  # guards these two
        self._total = Counters.none()  # of the links that are retired
        self._retired = False  # the present one is
        self.running: tuple[str, float] | None = None  # which collective, and since when
        self.idle_since = clock()

    @property
    def patience_s(self) -> float:
        """Time without progress after which there is a warning, or an error."""
        return NOTICE_S if self.timeout_s is None else self.timeout_s

    def stalled(self, stall: str) -> None:
        """Report no progress for `patience_s`: CollectiveTimeoutError if the user has set a limit."""
        give_up_or_say_so(stall, self.timeout_s)

    def replace(self, link: Link) -> None:
        """Go on with another link; the one before is closed."""
        with self._counting:
            self._last_op, self._retired = 0, False
            self.link = link

    def retire(self) -> None:
        """Close the link for good, and keep its counts."""
        with self._counting:
            if not self._retired:
                self._total = self._total + self.link.counters()
            self._retired = True
        self.link.close()

    def counters(self) -> Counters:
        """Return the counts over all links so far."""
        with self._counting:
            return self._total if self._retired else self._total + self.link.counters()

    def run(
        self, steps: Steps[T], what: str, *, on_cut: Callable[[TransportClosedError], None] | None = None
    ) -> T:
        """Run a collective; return its result. `what` names it in errors: "all_reduce(SUM) of 8 float32".

        `on_cut`: called if the link was closed; when it returns, there is another one.
        """
        before, self.running = self.running, (what, self._clock())  # a repair runs while that is parked
        try:
            return self._steps(steps, what, on_cut)
        finally:
            steps.close()
            self.running, self.idle_since = before, self._clock()

    def _steps(self, steps: Steps[T], what: str, on_cut: Callable[[TransportClosedError], None] | None) -> T:
        try:
            step, posted = next(steps), False
            while True:
                try:
                    done = self._do(step, what)
                except TransportClosedError as error:
                    if on_cut is None:
                        raise
                    on_cut(error)
                    step, posted = steps.throw(LinkCut()), False
                    continue
                except ValueError as error:
                    if posted:  # the other workers wait for the rest
                        raise
                    raise UsageError(f"{what} cannot be sent: {error}") from error
                posted = True
                step = steps.send(done)
        except StopIteration as end:
            result: T = end.value
            return result
        except Disagreement as error:
            raise MismatchError(f"the workers disagree: {what}: {error}") from error
        except ProtocolError as error:
            raise _explained(error, what) from error
        except TransportClosedError:
            raise
        except TransportError as error:
            raise ConnectionFailedError(f"{what}: {error}") from error

    def settle(self, go_on: Callable[[], bool]) -> bool:
        """Wait until all that was posted is received and acknowledged; return whether it is.

        Call it between collectives. Returns False if `go_on` says no, or the connection was closed.
        """
        try:
            while self._last_op:
                try:
                    self.link.wait(self._last_op, timeout_s=_POLL_S, until=EventType.COMPLETED)
                    break
                except TransportTimeoutError:
                    if not go_on():
                        return False
            return True
        except TransportClosedError:
            return False
        except ProtocolError as error:
            raise _explained(error, "between two collectives") from error

    def _do(self, step: Operation | Wait, what: str) -> int:
        if isinstance(step, Operation):
            self._last_op = self.link.post(step)
            return self._last_op
        patience = self.patience_s
        deadline = self._clock() + patience
        seen = None
        while True:
            # Most are done soon, and where the connection stands is worth knowing only of those that are not.
            poll_s = min(_SOON_S if seen is None else _LATER_S, patience)
            try:
                self.link.wait(step.op_id, timeout_s=poll_s, until=step.until)
                return 0
            except TransportTimeoutError:
                if seen is None:
                    seen = _position(self.link.progress())
                    continue
                progress = self.link.progress()
                if _position(progress) != seen:
                    seen, deadline = _position(progress), self._clock() + patience
                elif self._clock() >= deadline:
                    stall = self._stall(progress, what, patience)
                    if self._who_is_missing is not None:
                        stall += f". {self._who_is_missing(timeout_s=_ASK_S)}"
                    if _position(self.link.progress()) == seen:  # nothing has come while it asked
                        self.stalled(stall)
                    deadline = self._clock() + patience

    def _stall(self, progress: Progress, what: str, patience: float) -> str:
        """Describe for the user what is missing."""
        first = progress.received_messages
        if progress.sent_messages <= first:
            own = "this worker has not sent it yet"
        elif progress.acked_messages <= first:
            own = "this worker has sent it and waits for its acknowledgement"
            if progress.timeouts_in_a_row:
                own += f", after {progress.timeouts_in_a_row} timeouts in a row"
        else:
            own = "this worker's own packets are acknowledged"
        limit = "" if self.timeout_s is None else ", the timeout that it was given"
        return (
            f"{what}: rank {self.rank} saw no progress for {patience:g} s{limit}. The first message without "
            f"a result is {first} of {progress.posted_messages} posted; {own}. Either a worker has not "
            f"called this collective, or the path to it is broken: `p4reduce doctor` tells who waits for whom"
        )


def _position(progress: Progress) -> tuple[int, ...]:
    """Return the numbers that move when anything useful happens (resending is not useful)."""
    return (
        progress.received_messages,
        progress.acked_messages,
        progress.sent_messages,
        progress.expected_psn,
        progress.first_unacked_psn,
    )


def _explained(error: ProtocolError, what: str) -> CommunicatorError:
    failure = error.failure
    if failure.code in _MISMATCHES:
        return MismatchError(
            f"the workers disagree: this one called {what}; message {failure.message}, which came back for "
            f"it, is of another call: {_seen(failure)}. All workers have to call the same collectives in the "
            "same order, with the same roots, sizes, element types, reductions and strategies"
        )
    if failure.code is FailureCode.NOT_A_RESULT:
        return NotAggregatedError(
            f"{what}: message {failure.message} arrived as a neighbour sent it ({_seen(failure)}), without "
            f"having been summed: another worker called another collective, or no switch on the way "
            f"aggregates for this job. Its data was not used"
        )
    kind = RetryExceededError if failure.code is FailureCode.RETRY_LIMIT else ConnectionFailedError
    return kind(f"{what}: {failure.text} (message {failure.message}, PSN {failure.psn:#08x})")


def _seen(failure: Failure) -> str:
    """Return the offending header in words."""
    try:
        header = AggregationHeader.unpack(failure.header)
    except NotAnAggregationHeader as error:
        return f"{failure.text} ({error})"
    reduction = "" if header.reduction is Reduction.NONE else f"({header.reduction.name})"
    root = f", root {header.root}" if header.kind in (Kind.REDUCE, Kind.BROADCAST, Kind.REPAIR) else ""
    return (
        f"{header.kind.name.lower()}{reduction} of {header.tensor_elements} "
        f"{header.element_type.name.lower()}{root} {'by ring' if header.op is Op.PASS else 'in-network'} "
        f"(collective {header.collective}, {header.stage.name.lower()}: {header.elements} elements in "
        f"{header.packets} packet{'s' * (header.packets != 1)}, rank {header.rank}); {failure.text}"
    )
