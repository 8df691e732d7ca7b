"""Order, failure, moves and renewals: collectives run one after the other, and after a failure none does."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import InitVar, dataclass, field
from typing import Final, NamedTuple, TypeVar

from controller.api.messages import (
    Compare,
    Ended,
    Held,
    HoldAt,
    Mode,
    Pause,
    Paused,
    Ready,
    Renew,
    Renewed,
    Start,
)
from host_agent.calls import Calls
from host_agent.collectives.plan import Array, Call, Steps, Strategy
from host_agent.errors import (
    CollectiveTimeoutError,
    CommunicatorClosedError,
    CommunicatorError,
    ConnectionFailedError,
    MismatchError,
    NotAggregatedError,
    RingFallbackWarning,
    UsageError,
)
from host_agent.gate import Gate, Parked
from host_agent.membership import Membership, MoveStep, Request, Seat, error_of
from host_agent.numbering import IN_NETWORK_LIMIT, mode_of
from host_agent.recovery import NUMBERS, Ledger, Window
from host_agent.renewing import Connections, Renewals
from host_agent.runner import Runner
from host_agent.transport.errors import TransportClosedError
from host_agent.wire.aggregation import Reduction

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_ALL_NAMES_S: Final = 10.0  # what the controller may take to ask who has called what, and some more


class Begun(NamedTuple):
    """A collective in the present generation: `steps(call, strategy)` fills `result`.

    `place`: its input, where the result takes its place.
    """

    steps: Callable[[Call, Strategy], Steps[bool] | Steps[None]]
    result: Array
    place: Array | None = None


@dataclass(frozen=True)
class Task:
    """A collective that is ready to run. `what` names it in errors.

    `choose`: the strategy in a mode of the job, once it is this collective's turn. `begin`: what depends on
    who is in the job then; called again where a renewal cut it and it is done anew. Both: UsageError.
    """

    what: str
    reduction: Reduction
    choose: Callable[[Mode], Strategy]
    begin: Callable[[Seat], Begun]


@dataclass
class Tally:
    """Collectives that have run. A non-finite fallback counts as ring as well."""

    collectives: int = 0
    in_network: int = 0
    ring: int = 0
    non_finite_fallbacks: int = 0
    busy_s: float = 0.0

    def add(self, strategy: Strategy, *, switched: bool | None, seconds: float) -> None:
        """One more. `switched` is False where the switch was asked but an Inf or NaN came between."""
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
    """Runs tasks in the order in which they are given, from any thread. `seat`: the first one."""

    seat: InitVar[Seat]
    ready: InitVar[Ready]
    runner: Runner
    membership: Membership
    gate: Gate
    connections: InitVar[Connections | None] = None
    tally: Tally = field(default_factory=Tally)
    failure: BaseException | None = None  # ours
    ended: CommunicatorError | None = None  # the controller's

    def __post_init__(self, seat: Seat, ready: Ready, connections: Connections | None) -> None:
        self._ledger = Ledger(Window(ready.window, ready.message_packets, ready.path_mtu))
        self.renewals = Renewals(
            seat=seat,
            generation=ready.generation,
            ledger=self._ledger,
            gate=self.gate,
            runner=self.runner,
            membership=self.membership,
            connections=connections,
            failed=lambda error: self.fail(error, self._reason(error), self._ledger.finished),
        )
        self._calls = Calls(self.membership.say)
        self._verdict: CommunicatorError | None = None  # the controller's, also where we have failed before
        self._over = threading.Event()  # it is there
        self._order = threading.Lock()  # hands out collective numbers and places in the queue
        self._running = threading.Lock()  # held by the collective that is on the link
        self._queue = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix=f"p4reduce-rank{seat.rank}", initializer=self._note_thread
        )
        self._queue_thread: int | None = None
        self._queued = 0
        self._next_collective = 0
        self._finished = 0
        self._ring_moves_told = self.gate.ring_moves
        self._spent: int | None = None  # the generation that has had all messages that a switch sums
        self._closed = False
        self._at_end: list[Callable[[CommunicatorError], None]] = []
        self.membership.on_ended(self._on_ended)
        self.membership.listen(self._on_request)

    @property
    def rank(self) -> int:
        """This worker's, in the present generation."""
        return self.renewals.seat.rank

    @property
    def collectives(self) -> int:
        """One past the last that has come to its end."""
        return self._finished

    @property
    def is_over(self) -> bool:
        """It runs no collective any more."""
        return self._closed or self.failure is not None or self.ended is not None

    def now(self, task: Task) -> Array:
        """Run in this thread, or wait for it where something queued has to go first.

        Interrupted (Ctrl-C), it fails: when the exception leaves here, nothing uses the arrays any more.
        """
        self.require_other_thread(task.what)
        with self._order:
            number = self._admit(task)
            future = self._enqueue(task, number, lambda result: result) if self._queued else None
            if future is None:
                self._running.acquire()
        if future is not None:
            return self._result(future)
        try:
            return self._run(task, number)
        finally:
            self._running.release()

    def later(self, task: Task, finish: Callable[[Array], T]) -> Future[T]:
        """Run when everything before it has; `finish` makes the future's result."""
        with self._order:
            return self._enqueue(task, self._admit(task), finish)

    def fail(self, error: BaseException, reason: str, collective: int | None = None) -> None:
        """No collective runs after this; the job ends for everybody. `collective`: the one that failed."""
        news = self.failure is None and self.ended is None
        if news:
            self.failure = error
        self.renewals.stop()  # first: no link is made after this
        self.runner.link.abort(reason)  # it does not block, and lets go of the arrays
        self.gate.give_up()
        if news:
            called = None
            if isinstance(error, MismatchError) and collective is not None:
                called = self._calls.of(collective)
            self.membership.abort(reason, called)

    def close(self) -> None:
        """Finish what is queued and take no more; interrupted (Ctrl-C), it fails."""
        with self._order:
            self._closed = True
        try:
            self._queue.shutdown(wait=True)
        except BaseException as error:
            self.fail(error, self._reason(error))
            self._queue.shutdown(wait=True, cancel_futures=True)  # it does not take long any more
            raise

    def take_down(self) -> None:
        """Let go of the connection: the job is over, or has been left."""
        self.renewals.close()
        self.gate.give_up()  # another thread's collective that a renewal has cut would wait for ever
        self.runner.link.close()

    def require_other_thread(self, what: str) -> None:
        """UsageError in a future's callback: what waits there for the queue waits for itself."""
        if threading.get_ident() == self._queue_thread:
            raise UsageError(
                f"{what}: called in a future's callback, where it would wait for itself; call the _async "
                f"variant, or call it in another thread"
            )

    def _note_thread(self) -> None:
        self._queue_thread = threading.get_ident()

    def _result(self, future: Future[Array]) -> Array:
        try:
            return future.result()
        except BaseException as error:
            if not future.done():  # not the collective's: an interrupt of this thread
                self.fail(error, self._reason(error))
                if not future.cancel():
                    wait([future])
            raise

    def _reason(self, error: BaseException) -> str:
        """What the others are told."""
        return f"rank {self.rank}: {error if isinstance(error, CommunicatorError) else repr(error)}"

    def _admit(self, task: Task) -> int:
        """The number of a collective."""
        if self._closed:
            raise CommunicatorClosedError(f"{task.what}: this communicator has left its job; join again")
        self._require_no_failure(task.what)
        self._warn_of_ring()
        collective = self._next_collective
        self._next_collective = (collective + 1) % NUMBERS
        self._calls.made(collective, task.what, lambda: task.choose(self.gate.mode))
        return collective

    def _warn_of_ring(self) -> None:
        """Where the job has gone over to the ring since the last call: in this one, so that it is named."""
        moves, told = self.gate.ring_moves, self._ring_moves_told
        self._ring_moves_told = moves
        if moves != told and self.gate.mode is Mode.RING and self.renewals.seat.world_size > 1:
            warnings.warn(
                f"this job is summed by ring all-reduce from now on: {self.gate.mode_reason}",
                RingFallbackWarning,
                stacklevel=5,  # this, _admit, now or later, the Communicator's method, the user
            )

    def _enqueue(self, task: Task, collective: int, finish: Callable[[Array], T]) -> Future[T]:
        def run() -> T:
            try:
                with self._running:
                    return finish(self._run(task, collective))
            finally:
                with self._order:
                    self._queued -= 1

        def forget(future: Future[T]) -> None:
            if future.cancelled():
                self._calls.cancelled(collective)
                with self._order:
                    self._queued -= 1

        self._queued += 1
        future = self._queue.submit(run)
        future.add_done_callback(forget)
        return future

    def _run(self, task: Task, collective: int) -> Array:
        self._require_no_failure(task.what)
        what = f"{task.what} (collective {collective})"
        try:
            with self.gate.turn(collective):
                self._require_no_failure(task.what)  # the turn may have been long in coming
                started = time.monotonic()
                result, strategy, switched = self._to_its_end(task, collective, what)
            self._confirm(what)
        except TransportClosedError as error:
            self._require_no_failure(task.what)
            closed = CommunicatorClosedError(f"{what}: {error}")
            self.fail(closed, self._reason(closed))
            raise closed from error
        except UsageError:  # nothing was sent, and the other workers' calls are refused alike
            self._calls.is_over(collective)
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
        self._calls.is_over(collective)
        self.tally.add(strategy, switched=switched, seconds=time.monotonic() - started)
        return result

    def _to_its_end(self, task: Task, collective: int, what: str) -> tuple[Array, Strategy, bool | None]:
        """Run a collective, through as many renewals as it takes: its result, and what `Tally.add` takes."""
        ledger, again = self._ledger, False
        try:
            while True:
                if again:
                    ledger.restore_input()
                seat = self.renewals.seat
                strategy = task.choose(self._mode())
                begun = task.begin(seat)
                self._calls.begins(collective, strategy)
                self.membership.runs(collective)
                if not again:
                    ledger.begin(begun.place)
                call = Call(
                    rank=seat.rank,
                    world_size=seat.world_size,
                    collective=collective,
                    reduction=task.reduction,
                    ring=seat.ring,
                )
                ledger.attempt(call)
                steps: Steps[bool | None] = begun.steps(call, strategy)
                try:
                    switched = self.runner.run(steps, what)
                    break
                except TransportClosedError:
                    self._require_no_failure(task.what)
                    if not self.gate.is_renewing():
                        raise
                    self._park(what)
                if ledger.restored:
                    ledger.put_result()
                    switched = self.runner.end(steps, what)
                    break
                again = True
            ledger.finish()
        except BaseException:
            ledger.abandon()
            raise
        return begun.result, strategy, switched

    def _mode(self) -> Mode:
        """What the next collective of this generation runs in: the same on all ranks."""
        mode, renewals = self.gate.mode, self.renewals
        try:
            numbered = self.runner.link.progress().numbered
        except TransportClosedError:  # by a renewal, or the end: nothing is sent before that is found out
            return mode
        self.membership.counted(renewals.generation, numbered)
        goes = mode_of(mode, numbered)
        if goes is not mode and self._spent != renewals.generation:
            self._spent = renewals.generation
            _LOG.warning(
                "by ring all-reduce until the controller gives the job a new generation: a switch sums no "
                "message of one after the first %d, and so many have been numbered; is there a controller?",
                IN_NETWORK_LIMIT,
            )
        return goes

    def _confirm(self, what: str) -> None:
        """Return no result that an elastic job's other workers may not have, as they go on without us.

        Outside of the collective's turn: a renewal counts it as finished here, and gives it to the others.
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
            stall = (
                f"{what}: rank {self.rank} has its result, but the controller has not said for {patience:g} "
                "s that this worker is still in its elastic job; it may be stopped or out of reach"
            )
            if self.runner.timeout_s is not None:
                raise CollectiveTimeoutError(stall)
            _LOG.warning("%s; waiting on, as no timeout_s is set", stall)

    def _park(self, what: str) -> None:
        """Wait until the renewal that has cut a collective is over."""
        patience = self.runner.patience_s
        while (end := self.gate.park(patience)) is not Parked.GO_ON:
            if end is Parked.BROKEN:
                self._require_no_failure(what)
                raise TransportClosedError("the job has ended")
            stall = (
                f"{what}: rank {self.rank} was cut by a renewal of its job, which has come no further for "
                f"{patience:g} s: {self.renewals.reason}"
            )
            if self.runner.timeout_s is not None:
                raise CollectiveTimeoutError(stall)
            _LOG.warning("%s; waiting on, as no timeout_s is set", stall)

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
        self.renewals.stop()
        self.runner.link.abort(ended.reason)
        self.gate.give_up()
        for callback in self._at_end:
            callback(self._verdict)

    def on_end(self, callback: Callable[[CommunicatorError], None]) -> None:
        """Call `callback`, which must not block, when the controller says that the job has ended early."""
        self._at_end.append(callback)
        if self._verdict is not None:
            callback(self._verdict)

    def _on_request(self, request: Request) -> None:
        """What the controller wants; this must not block."""
        match request:
            case Compare(collective):
                self._calls.asked(collective)
            case Renew() | Renewed() | Start():
                self.renewals.on_step(request)
            case _:
                self._on_move(request)

    def _on_move(self, step: MoveStep) -> None:
        """The job moves between ring and switch."""
        if isinstance(step, Pause):
            self.membership.say(Paused(step.move, self.gate.pause(step.move)))
        elif isinstance(step, HoldAt):
            self.gate.hold_at(step.move, step.collective)
            threading.Thread(target=self._hold, args=(step.move,), name="p4reduce-hold", daemon=True).start()
        else:
            before = self.gate.mode
            collective = self.gate.moved(step.mode, step.mode_reason)
            if step.mode is Mode.RING is not before:
                _LOG.info("from collective %d on by ring all-reduce: %s", collective, step.mode_reason)
            elif step.mode is not before:
                _LOG.info("from collective %d on summed by the switch", collective)

    def _hold(self, move: int) -> None:
        """Tell the controller when nothing is in flight."""
        if not self.gate.wait_held(move):
            return
        try:
            settled = self.runner.settle(lambda: self.gate.is_for(move))
        except CommunicatorError as error:
            self.fail(error, self._reason(error))
            return
        if settled:
            self.membership.say(Held(move))
