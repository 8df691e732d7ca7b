"""Runner of a worker's collectives: does what `member.py` decides, with threads, a connection and a clock.

Collectives run one after the other, in the caller's thread or a queue's; none runs after a failure. One more
thread does the slow steps of a move or a renewal, and ends when there are none.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from controller.api.messages import Ended, Mode, Moved, Ready, Worker
from host_agent.collectives.plan import Array, Call, Steps, Strategy
from host_agent.errors import (
    CommunicatorClosedError,
    CommunicatorError,
    ConnectionFailedError,
    InterfaceError,
    MismatchError,
    NotAggregatedError,
    RingFallbackWarning,
    UsageError,
)
from host_agent.member import (
    IN_NETWORK_LIMIT,
    Again,
    Connect,
    Cut,
    Drop,
    Exhausted,
    Inconsistent,
    Member,
    Offer,
    Repair,
    Say,
    Settle,
    WentOn,
)
from host_agent.membership import (
    Membership,
    MembershipChange,
    Request,
    View,
    error_of,
    require_root,
    require_rows_for,
)
from host_agent.recovery import NUMBERS, Attempt, BegunAnewError, refusal, repair, through_renewals
from host_agent.runner import Link, Runner
from host_agent.transport.errors import TransportClosedError, TransportError
from host_agent.turns import Turns
from host_agent.wire.aggregation import Reduction

T = TypeVar("T")
Work: TypeAlias = Settle | Offer | Connect | Repair | Inconsistent
_LOG = logging.getLogger(__name__)
_NOTHING: Final = np.empty(0, np.uint8)
_ALL_NAMES_S: Final = 10.0  # what the controller may take to ask who has called what, and some more
_FAREWELL_S: Final = 5.0  # how long closing waits for the thread, which waits for nothing then


class QueuePairs(Protocol):
    """Queue pairs that neighbours can be told of. All methods: TransportError, InterfaceError."""

    @property
    def worker(self) -> Worker:
        """The worker as its neighbours reach it."""
        ...

    def offer(self) -> QueuePairs:
        """Return fresh queue pairs."""
        ...

    def connect(self, ready: Ready) -> Link:
        """Return the connection to the neighbours, started."""
        ...

    def close(self) -> None:
        """Let go of queue pairs that got no connection. Idempotent."""
        ...


class Begun(NamedTuple):
    """A collective in the present generation: `steps(call, strategy)` fills `result`.

    `place`: the input, if the result overwrites it. `gives`: what the user gets of it. `refused`: in place of
    that.
    """

    steps: Callable[[Call, Strategy], Steps[bool] | Steps[None]]
    result: Array
    place: Array | None = None
    gives: Callable[[Array], Any] = lambda result: result
    refused: UsageError | None = None


@dataclass(frozen=True)
class Task(Generic[T]):
    """A collective that is ready to run, and makes a T. `what` names it in errors.

    `choose` gives the strategy for the job's mode when the collective starts. `begin` prepares what depends
    on the workers in the job then; it is called again if a renewal cut the collective and it runs again. Both
    raise UsageError. `root`: a rank as the call was made; `begin` is given the one that it has now. `shape`:
    of an array whose rows the workers divide.
    `gang_renewal`: the task is part of a collective of all GPUs that was begun after that renewal of its
    elastic gang.
    """

    what: str
    reduction: Reduction
    choose: Callable[[Mode], Strategy]
    begin: Callable[[View, int], Begun]
    root: int | None = None
    shape: tuple[int, ...] | None = None
    gang_renewal: int = 0

    def words(self, mode: Mode) -> str:
        """Return the call in words, as it would travel now in a job of that mode."""
        try:
            return _words(self.what, self.choose(mode))
        except UsageError:  # which is what it will end with
            return self.what


def _words(what: str, strategy: Strategy) -> str:
    return f"{what} {'by ring' if strategy is Strategy.RING else 'in-network'}"


@dataclass
class Tally:
    """Collectives that have run. A non-finite fallback counts as ring as well."""

    collectives: int = 0
    in_network: int = 0
    ring: int = 0
    non_finite_fallbacks: int = 0
    busy_s: float = 0.0

    def fell_back(self) -> None:
        """Count a collective whose blocks with an Inf or NaN went around the ring."""
        self.non_finite_fallbacks += 1

    def add(self, strategy: Strategy, *, switched: bool | None, seconds: float) -> None:
        """Count one more. `switched` is False if the switch was asked but an Inf or NaN came between."""
        self.collectives += 1
        self.busy_s += seconds
        if switched is False:
            self.non_finite_fallbacks += 1
        if strategy is Strategy.IN_NETWORK and switched is not False:
            self.in_network += 1
        else:
            self.ring += 1


@dataclass(eq=False)
class Execution:
    """Runner of tasks, in the order in which they are given, from any thread. `view`: the first one."""

    view: InitVar[View]
    ready: InitVar[Ready]
    runner: Runner
    membership: Membership
    queue_pairs: QueuePairs | None = None
    tally: Tally = field(default_factory=Tally)
    is_in_elastic_gang: InitVar[bool] = False
    failure: BaseException | None = None  # ours
    ended: CommunicatorError | None = None  # the controller's
    warns_of_ring: bool = True

    def __post_init__(self, view: View, ready: Ready, is_in_elastic_gang: bool) -> None:
        self.member = Member(ready, view)
        self.member.gang_collective = 0 if is_in_elastic_gang else None
        self._changed = threading.Condition()  # guards the member, and what its actions change:
        self._work: deque[Work] = deque()  # what the thread has to do
        self._thread: threading.Thread | None = None
        self._offered: QueuePairs | None = None  # offered, and not connected
        self._goes_on = self._is_stopped = False  # what was parked, or ends, as it is
        self._is_dropped = False  # as it is dropped
        self._cut_at = 0.0
        self._changes = _Changes()
        self._verdict: CommunicatorError | None = None  # the controller's, also where we have failed before
        self._over = threading.Event()  # it is there
        self.turns: Turns[Task[Any]] = Turns(
            f"p4reduce-rank{view.rank}",
            admit=self._admit,
            perform=self._run,
            fail=lambda error: self.fail(error, self._reason(error)),
            cancelled=self._cancelled,
        )
        self._next_collective = 0
        self._roots: dict[int, int | None] = {}  # of calls, as who they joined when those were made
        self._finished = 0
        self._ring_moves_told = self.member.ring_moves
        self._closed = False
        self._at_end: list[Callable[[CommunicatorError], None]] = []
        self.membership.on_ended(self._on_ended)
        self.membership.listen(self._on_request)

    @property
    def rank(self) -> int:
        """Rank of this worker in the present generation."""
        return self.member.view.rank

    @property
    def collectives(self) -> int:
        """One past the last collective that has ended."""
        return self._finished

    @property
    def is_over(self) -> bool:
        """True once it runs no more collectives."""
        return self._closed or self.failure is not None or self.ended is not None

    def differ(self, error: MismatchError, what: str) -> None:
        """Fail as `fail` does: workers called different collectives. `what`, this one's, is not begun."""
        with self.turns.order, self._changed:
            collective = self._next_collective
            self.member.calls.made(collective, lambda: what)
            self._act()
        self.fail(error, self._reason(error), collective)

    # Collectives of all GPUs of an elastic gang

    def begins_gang_collective(self, call: int) -> tuple[int, tuple[View, ...]]:
        """Begin a collective of all GPUs, when all earlier calls in the plane are over.

        Returns the renewal after which it is begun, and the views since then, as the call sees them.
        """
        member = self.member
        with self.turns.order, self._changed:
            self._next_collective = member.next_collective
            return member.gang_renewal, member.views_since(call)

    def is_begun_anew(self, gang_renewal: int) -> bool:
        """Tell whether a renewal dropped what was begun after renewal `gang_renewal`."""
        return self.member.begun_anew > gang_renewal

    def finish_gang_collective(self, gang_renewal: int, what: str) -> None:
        """Take the collective's result as this worker's, unless it is begun anew (BegunAnewError).

        Waits until no renewal asks where all stand, and until this worker is surely in its job.
        """
        patience = self.runner.patience_s
        with self._changed:
            while True:
                if self.is_begun_anew(gang_renewal):
                    raise BegunAnewError(what)
                if self._is_stopped or self.member.finish_gang_collective():
                    break
                marks = self.member.marks
                if not self._changed.wait(patience) and self.member.marks == marks:
                    self.runner.stalled(
                        f"{what}: rank {self.rank} waits for a renewal ({self.member.reason}) of its job, "
                        f"which has come no further for {patience:g} s"
                    )
        self._require_no_failure(what)
        self._confirm(what)

    def fail(
        self,
        error: BaseException,
        reason: str,
        collective: int | None = None,
        *,
        plane: int | None = None,
    ) -> None:
        """Run no collective after this, and end the job for everybody. `collective`: the one that failed.

        `plane`: the plane of another GPU of this machine, if that one has failed.
        """
        news = self.failure is None and self.ended is None
        if news:
            self.failure = error
        self._stop()  # first: no link is made after this
        self.runner.link.abort(reason)  # it does not block, and lets go of the arrays
        if news:
            called = None
            if isinstance(error, MismatchError) and collective is not None:
                called = self.member.calls.of(collective)
            self.membership.abort(reason, called, plane)

    def close(self) -> None:
        """Finish what is queued and take no more; on an interrupt (Ctrl-C), fail."""
        with self.turns.order:
            self._closed = True
        try:
            self.turns.close()
        except BaseException as error:
            self.fail(error, self._reason(error))
            self.turns.close(cancel=True)  # it does not take long any more
            raise

    def take_down(self) -> None:
        """Let go of the connection: the job is over, or has been left."""
        self._stop()  # another thread's collective that a renewal has cut would wait for ever
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_FAREWELL_S)
        self._drop_queue_pairs()
        self._changes.close()
        self.runner.retire()

    def on_change(self, callback: Callable[[MembershipChange], None]) -> None:
        """Call `callback` in a thread of its own whenever ranks or world size have changed."""
        self._changes.add(callback)

    def _reason(self, error: BaseException) -> str:
        """Return the reason that the others are told."""
        return f"rank {self.rank}: {error if isinstance(error, CommunicatorError) else repr(error)}"

    def _admit(self, task: Task[Any]) -> int:
        """Give a collective its number, and return it."""
        self._require_no_failure(task.what)  # first: who has left after a failure is told of that
        if self._closed:
            raise CommunicatorClosedError(f"{task.what}: this communicator has left its job; join again")
        if self.warns_of_ring:
            self.warn_of_ring(stacklevel=5)  # _admit, the turn's two, the Communicator's method, the user
        collective = self._next_collective
        self._next_collective = (collective + 1) % NUMBERS
        with self._changed:
            if task.root is not None:
                self._roots[collective] = self.member.view_at(collective).member_of(task.root)
            if self.member.gang_collective is None:
                self.member.called = self._next_collective
            self.member.calls.made(collective, lambda: task.words(self.member.mode))
            self._act()
        return collective

    def warn_of_ring(self, stacklevel: int) -> None:
        """Warn if the job has gone over to the ring since the last call.

        `stacklevel`: from whoever calls this to the user's line, which the warning names.
        """
        member, told = self.member, self._ring_moves_told
        self._ring_moves_told = member.ring_moves
        if member.ring_moves != told and member.mode is Mode.RING and member.view.world_size > 1:
            warnings.warn(
                f"this job is summed by ring all-reduce from now on: {member.mode_reason}",
                RingFallbackWarning,
                stacklevel=1 + stacklevel,
            )

    def _cancelled(self, collective: int) -> None:
        with self._changed:
            self._roots.pop(collective, None)
            self.member.calls.cancelled(collective)

    def _run(self, task: Task[T], collective: int) -> T:
        self._require_no_failure(task.what)
        what = f"{task.what} (collective {collective})"
        try:
            self._start(task, collective, what)
            try:
                self._require_no_failure(task.what)  # it may have waited for long
                started = time.monotonic()
                begun, strategy, switched = self._to_its_end(task, collective, what)
            finally:
                with self._changed:
                    self._roots.pop(collective, None)
                    self.member.ended()
                    self._act()
            self._deliver(what)
            self._confirm(what)
        except TransportClosedError as error:
            self._require_no_failure(task.what)
            closed = CommunicatorClosedError(f"{what}: {error}")
            self.fail(closed, self._reason(closed))
            raise closed from error
        except (UsageError, BegunAnewError):  # the other workers' cannot be sent, or are dropped, alike
            self.membership.runs(None)
            raise
        except (MismatchError, ConnectionFailedError, NotAggregatedError) as error:
            self.fail(error, self._reason(error), collective)
            # What the others hear, where calls differ: it names all. Who meets it stops, and others may lose
            # their connection by that.
            if self._over.wait(_ALL_NAMES_S) and isinstance(self._verdict, MismatchError):
                raise self._verdict from error
            raise
        except BaseException as error:
            self.fail(error, self._reason(error))
            raise
        self._finished = (collective + 1) % NUMBERS
        self.membership.runs(None)
        if begun.refused is not None:  # on all workers alike
            raise begun.refused.with_traceback(None)
        self.tally.add(strategy, switched=switched, seconds=time.monotonic() - started)
        result: T = begun.gives(begun.result)
        return result

    def _start(self, task: Task[Any], collective: int, what: str) -> None:
        """Wait until the collective may start. BegunAnewError if it is dropped before."""
        patience = self.runner.patience_s
        with self._changed:
            marks = self.member.marks
            while True:
                if self.is_begun_anew(task.gang_renewal):
                    raise BegunAnewError(what)
                if self.member.start(collective):
                    break
                self._act()
                if not self._changed.wait(patience) and self.member.marks == marks:
                    held = f"a renewal ({self.member.reason})" if self.member.is_renewing else "a move"
                    self.runner.stalled(
                        f"{what}: rank {self.rank} waits for {held} of its job, which has come "
                        f"no further for {patience:g} s"
                    )
                marks = self.member.marks
            self._act()

    def _to_its_end(self, task: Task[Any], collective: int, what: str) -> tuple[Begun, Strategy, bool | None]:
        """Run a collective through all renewals; return its result and the input of `Tally.add`."""
        attempts: list[tuple[Begun, Strategy]] = []
        called = task.what

        def begin() -> Attempt:
            numbered = self._numbered()
            with self._changed:
                view, mode = self.member.view, self.member.mode_of(numbered)
                since = self.member.views_since(collective)
            try:
                strategy = task.choose(mode)
                if task.shape is not None:
                    for each in since:  # others may have refused the call before more workers died
                        require_rows_for(each.world_size, task.shape)
                begun = task.begin(view, 0 if task.root is None else self._root(task, collective, view))
            except UsageError as error:
                strategy = Strategy.RING if mode is Mode.RING else Strategy.IN_NETWORK
                begun = Begun(refusal, _NOTHING, refused=error)
            words = _words(called, strategy) if begun.refused is None else called  # as before it began
            with self._changed:
                self.member.calls.made(collective, lambda: words)  # lets go of arrays
                self._act()
            self.membership.runs(collective)
            call = Call(
                rank=view.rank,
                world_size=view.world_size,
                collective=collective,
                reduction=task.reduction,
                ring=view.ring,
            )
            attempts.append((begun, strategy))
            return Attempt(begun.place, call, begun.steps(call, strategy))

        steps = through_renewals(self.member.replay_log, begin)
        switched = self.runner.run(steps, what, on_cut=lambda error: self._park(error, what))
        begun, strategy = attempts[-1]
        return begun, strategy, switched

    def _root(self, task: Task[Any], collective: int, view: View) -> int:
        """Return the root's present rank. UsageError, on all workers alike, if it was no rank or has died."""
        assert task.root is not None
        member = self._roots[collective]
        if member is None:
            require_root(task.root, self.member.view_at(collective).world_size)
        place = None if member is None else view.place_of(member)
        if place is None:
            raise UsageError(f"{task.what}: the worker that was the root has died")
        return place

    def _numbered(self) -> int:
        """Return how many messages this generation has had."""
        generation = self.member.generation
        try:
            numbered = self.runner.link.progress().numbered
        except TransportClosedError:  # by a renewal, or the end: nothing is sent before that is found out
            return 0
        self.membership.counted(generation, numbered)
        return numbered

    def _deliver(self, what: str) -> None:
        """Hold a result of an elastic job back until the others no longer need this worker to have it."""
        patience, since = self.runner.patience_s, time.monotonic()

        def go_on() -> bool:
            nonlocal since
            if time.monotonic() - since >= patience:
                since = time.monotonic()
                self.runner.stalled(
                    f"{what}: rank {self.rank} has its result, but its successor has not acknowledged all of "
                    f"it for {patience:g} s"
                )
            return not (self.member.is_renewing or self._is_stopped)

        if self.member.is_delivered:
            return
        acknowledged = go_on() and self.runner.settle(go_on)
        with self._changed:
            if acknowledged:
                self.member.delivered()
            while not self.member.is_delivered and not self._is_stopped:
                marks = self.member.marks
                if not self._changed.wait(patience) and self.member.marks == marks:
                    self.runner.stalled(
                        f"{what}: rank {self.rank} has its result, and waits for a renewal of its job, which "
                        f"has come no further for {patience:g} s: {self.member.reason}"
                    )
        self._require_no_failure(what)

    def _confirm(self, what: str) -> None:
        """Hold a result back while an elastic job's other workers may have gone on without this one.

        The collective has ended by then: a renewal counts it as finished here, and gives it to the others.
        """
        patience = self.runner.patience_s
        while True:
            asked = time.monotonic()
            if self.membership.confirm(timeout_s=patience):
                return
            self._require_no_failure(what)
            if time.monotonic() - asked < patience:
                self._over.wait(_ALL_NAMES_S)  # which may be on its way here
                raise self._verdict or CommunicatorClosedError(f"{what}: this communicator has left its job")
            self.runner.stalled(
                f"{what}: rank {self.rank} has its result, but the controller has not said for {patience:g} "
                "s that this worker is still in its elastic job; it may be stopped or out of reach"
            )

    def _park(self, error: TransportClosedError, what: str) -> None:
        """Wait until the renewal that cut a collective is over; raise `error` if no renewal cut it."""
        self._require_no_failure(what)
        patience = self.runner.patience_s
        with self._changed:
            if not self.member.is_renewing:
                raise error
            self._goes_on = self._is_dropped = False
            self.member.parked()
            self._act()
            while not self._goes_on and not self._is_stopped:
                marks = self.member.marks
                if not self._changed.wait_for(
                    lambda: self._goes_on or self._is_stopped or self.member.marks != marks,  # noqa: B023
                    timeout=patience,
                ):
                    self.runner.stalled(
                        f"{what}: rank {self.rank} was cut by a renewal of its job, which has come no "
                        f"further for {patience:g} s: {self.member.reason}"
                    )
        self._require_no_failure(what)
        if not self._goes_on:
            raise TransportClosedError("the job has ended") from error
        if self._is_dropped:
            raise BegunAnewError(what)

    def _require_no_failure(self, what: str) -> None:
        if self.ended is not None:
            raise self.ended.with_traceback(None)
        if self.failure is not None:
            raise CommunicatorClosedError(
                f"{what}: this communicator failed earlier and its job has ended; join again. "
                f"It was: {self.failure}"
            ) from self.failure

    def _on_ended(self, ended: Ended) -> None:
        self._verdict = error_of(ended, own_rank=self.rank)
        if self.failure is None and not self._closed:
            self.ended = self._verdict
        self._over.set()
        self._stop()
        self.runner.link.abort(ended.reason)
        for callback in self._at_end:
            callback(self._verdict)

    def on_end(self, callback: Callable[[CommunicatorError], None]) -> None:
        """Call `callback`, which must not block, when the controller says that the job has ended early."""
        self._at_end.append(callback)
        if self._verdict is not None:
            callback(self._verdict)

    def _stop(self) -> None:
        """Begin no collective and no link any more, and tell all that wait. Does not block."""
        with self._changed:
            self._is_stopped = True
            self.member.stop()
            self._work.clear()
            if self._thread is None:
                self._drop_queue_pairs()
            self._changed.notify_all()
        self.turns.stop()

    # What the controller wants, and what comes of it

    def _on_request(self, request: Request) -> None:
        """Take a request of the controller. This must not block."""
        with self._changed:
            mode, first = self.member.mode, self.member.next_collective
            self.member.hear(request)
            self._act()
            self._changed.notify_all()
            moved = isinstance(request, Moved) and self.member.mode is not mode
        if moved and self.member.mode is Mode.RING:
            _LOG.info("from collective %d on by ring all-reduce: %s", first, self.member.mode_reason)
        elif moved:
            _LOG.info("from collective %d on summed by the switch", first)

    def _act(self) -> None:
        """Carry out the member's actions; the caller holds the lock. The thread does what may block."""
        actions = self.member.actions()
        if not actions:
            return
        for action in actions:
            match action:
                case Say(message):
                    self.membership.say(message)
                case Cut():
                    self._cut(action)
                case Again():
                    self._goes_on = True
                case Drop():
                    self._goes_on = self._is_dropped = True
                case WentOn():
                    self._tell_of(action)
                case Exhausted():
                    _LOG.warning(
                        "by ring all-reduce until the controller gives the job a new generation: a switch "
                        "sums no message of one after the first %d, and so many have been numbered; is there "
                        "a controller?",
                        IN_NETWORK_LIMIT,
                    )
                case _:
                    self._work.append(action)
        if self._work and self._thread is None:
            self._thread = threading.Thread(target=self._do_work, name="p4reduce-renewal", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _cut(self, cut: Cut) -> None:
        self._cut_at = time.monotonic()
        self.runner.link.abort(f"the job is renewed: {cut.reason}")
        level = logging.INFO if cut.planned else logging.WARNING
        _LOG.log(level, "rank %d: the job goes on under a new generation: %s", self.rank, cut.reason)

    def _tell_of(self, news: WentOn) -> None:
        ready, change = news.ready, news.change
        self.runner.rank = self.rank
        if change is None:
            seconds = time.monotonic() - self._cut_at
            _LOG.info("going on as generation %d after %.2f s", ready.generation, seconds)
        else:
            _LOG.warning(
                "without rank %s (%s), going on as rank %d of %d, generation %d",
                ", ".join(map(str, change.lost)),
                change.reason,
                change.rank,
                change.world_size,
                change.generation,
            )
            self._changes.tell(change)
        if ready.mode is Mode.RING is not news.mode_before:
            way = ", over the workers' backup interfaces" if ready.backup else ""
            _LOG.info("by ring all-reduce from now on%s: %s", way, ready.mode_reason)
        elif ready.mode is not news.mode_before:
            _LOG.info("the switch sums again")

    # The thread

    def _do_work(self) -> None:
        while True:
            with self._changed:
                if not self._work:
                    self._thread = None
                    self._drop_queue_pairs(wanted=self.member.is_renewing and not self._is_stopped)
                    return
                action = self._work.popleft()
            try:
                match action:
                    case Settle(move):
                        self._settle(move)
                    case Offer(renewal):
                        self._offer(renewal)
                    case Connect(renewal, ready):
                        self._connect(renewal, ready)
                    case Repair():
                        self._repair(action)
                    case Inconsistent(reason=reason):
                        raise ConnectionFailedError(reason)
            except Exception as error:  # noqa: BLE001 (whatever it is, the others must not wait for this worker)
                self._work_failed(action, error)

    def _settle(self, move: int) -> None:
        if self.runner.settle(lambda: self.member.is_settling(move)):
            with self._changed:
                self.member.settled(move)
                self._act()

    def _offer(self, renewal: int) -> None:
        if not self.member.wants(renewal):
            return
        self._drop_queue_pairs()
        self.runner.retire()
        if self.queue_pairs is None:
            raise InterfaceError("it has no way to make connections anew")
        fresh = self.queue_pairs.offer()
        with self._changed:
            self._offered = fresh
            at = fresh.worker
            self.member.offered(renewal, qpn_out=at.qpn_out, psn_out=at.psn_out, qpn_in=at.qpn_in)
            self._act()

    def _connect(self, renewal: int, ready: Ready) -> None:
        if not self.member.wants(renewal):
            return
        assert self._offered is not None
        link = self._offered.connect(ready)
        with self._changed:
            self._offered = None
            wanted = self.member.connected(renewal)
            if wanted:
                self.runner.replace(link)
            self._act()
        if not wanted:
            link.close()

    def _repair(self, wanted: Repair) -> None:
        if not self.member.wants(wanted.renewal):
            return
        view = wanted.view
        call = Call(rank=view.rank, world_size=view.world_size, collective=wanted.collective, ring=view.ring)
        steps = repair(self.member.replay_log, call, holder=wanted.holder, mode=wanted.mode)
        self.runner.run(
            steps, f"the result of collective {wanted.collective}, which rank {wanted.holder} has"
        )
        with self._changed:
            self.member.repaired(wanted.renewal)
            self._act()

    def _drop_queue_pairs(self, *, wanted: bool = False) -> None:
        """Close queue pairs that were offered for a renewal which another one has replaced."""
        if self._offered is not None and not wanted:
            self._offered.close()
            self._offered = None

    def _work_failed(self, action: Work, error: Exception) -> None:
        if isinstance(action, Settle):
            if self.member.is_settling(action.move):
                self.fail(error, self._reason(error))
            return
        if not self.member.wants(action.renewal):
            return
        if isinstance(error, (TransportError, InterfaceError)):
            what = f"this worker could not go on under a new generation ({self.member.reason}): {error}"
            failure: Exception = ConnectionFailedError(what)
            failure.__cause__ = error
        else:
            failure = error
        self._drop_queue_pairs()
        self.fail(failure, self._reason(failure), self.member.replay_log.finished)


class _Changes:
    """Calls of `on_change`'s callbacks, in a thread that starts with the first change."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[MembershipChange], None]] = []
        self._queue: SimpleQueue[MembershipChange | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, callback: Callable[[MembershipChange], None]) -> None:
        self._callbacks.append(callback)

    def tell(self, change: MembershipChange) -> None:
        if not self._callbacks:
            return
        self._queue.put(change)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="p4reduce-changes", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (change := self._queue.get()) is not None:
            for callback in list(self._callbacks):
                try:
                    callback(change)
                except Exception:  # noqa: BLE001  the user's; others have to be told as well
                    _LOG.exception("a callback for changes of membership failed")
