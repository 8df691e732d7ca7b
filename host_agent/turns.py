"""Calls of a communicator, one after the other, in the order in which they were made, from any thread.

A call runs in its caller's thread, or, as a future, in a queue's. It takes a number when it is made, and runs
when all before it are over. An interrupt (Ctrl-C) may strike between any two instructions. So a call notes
what it has taken in its `_Turn`, under the lock that gives it. A thread waits for its turn on a condition: a
lock that an interrupt left taken would block the others for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, Protocol, TypeVar

from host_agent.errors import UsageError

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Named(Protocol[T_co]):
    """A call that makes a T. `what` names it in errors."""

    @property
    def what(self) -> str: ...


C = TypeVar("C", bound=Named[Any])
_LOOK_S: Final = 0.5  # how often who waits looks whether the job is over


class _Turn(Generic[C]):
    """One call's place. `number`: what `admit` gave it. `is_taken`: it may have a number already."""

    def __init__(self, call: C) -> None:
        self.call = call
        self.is_taken = False
        self.place: int | None = None
        self.number: int | None = None
        self.is_over = False


class Turns(Generic[C]):
    """The order of a communicator's calls.

    `admit(call)` gives a call its number, and raises where none is taken any more. `perform(call, number)`
    runs it, and has dealt with an error that it raises. `fail(error)` ends the job: a call was interrupted
    that others wait for. `cancelled(number)` tells of a future that was cancelled before it ran.
    """

    def __init__(
        self,
        name: str,
        *,
        admit: Callable[[C], int],
        perform: Callable[[C, int], Any],
        fail: Callable[[BaseException], None],
        cancelled: Callable[[int], None],
    ) -> None:
        # Held while numbers are given out. Entered as it is: a Condition's own __enter__ is Python, where an
        # interrupt may come behind the lock and before the `with`.
        self.order: Final = threading.RLock()
        self._changed = threading.Condition(self.order)
        self._admit, self._perform, self._fail, self._cancelled = admit, perform, fail, cancelled
        self._places = 0  # given out
        self._serving = 0  # all before this place are over
        self._over: set[int] = set()  # behind it
        self._is_stopped = False
        self._queue = ThreadPoolExecutor(1, name, initializer=self._note_thread)
        self._queue_thread: int | None = None

    def now(self, call: C) -> Any:
        """Run the call in this thread when its turn comes.

        When an interrupt leaves here, the job has failed and nothing uses the call's arrays any more.
        """
        self.require_other_thread(call.what)
        turn = _Turn(call)
        try:
            with self.order:
                self._take(turn)
            return self._run(turn)
        except BaseException as error:
            if turn.is_taken and not turn.is_over:
                self._fail(error)
            raise
        finally:
            try:
                self._end(turn)
            except BaseException as error:  # else all later ones wait for this turn
                self._fail(error)
                raise

    def later(self, call: C) -> Future[Any]:
        """Return the future of a call that runs after all that were made before it."""
        turn = _Turn(call)
        try:
            with self.order:
                self._take(turn)
                future = self._queue.submit(self._run_queued, turn)
            future.add_done_callback(lambda future: self._forget(future, turn))
        except BaseException as error:
            if turn.is_taken:
                self._fail(error)
                self._end(turn)
            raise
        return future

    def stop(self) -> None:
        """Let all calls that wait for their turn run: they find out that the job is over. Does not block."""
        self._is_stopped = True
        if self.order.acquire(blocking=False):  # else they see it when they look again
            try:
                self._changed.notify_all()
            finally:
                self.order.release()

    def close(self, *, cancel: bool = False) -> None:
        """Return when all queued calls have run; with `cancel`, those that run now."""
        self._queue.shutdown(wait=True, cancel_futures=cancel)

    @property
    def is_idle(self) -> bool:
        """True if no call runs, or waits for its turn."""
        with self.order:
            return self._serving == self._places

    def are_over(self, *, timeout_s: float) -> bool:
        """Wait for the calls of other threads, too: True when they, or the job, are over in that time."""
        until = time.monotonic() + timeout_s
        with self.order:
            while not self.is_idle and not self._is_stopped:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(_LOOK_S, left))
        return True

    def require_other_thread(self, what: str) -> None:
        """Raise UsageError in a future's callback: a call that waits there for the queue waits for itself."""
        if threading.get_ident() == self._queue_thread:
            raise UsageError(
                f"{what}: called in a future's callback, where it would wait for itself: call it "
                "in another thread, or a collective with async_op=True"
            )

    def _note_thread(self) -> None:
        self._queue_thread = threading.get_ident()

    def _take(self, turn: _Turn[C]) -> None:
        turn.is_taken = True  # first: an interrupt may come before the number is written down
        try:
            turn.number = self._admit(turn.call)
        except Exception:
            turn.is_taken = False
            raise
        turn.place, self._places = self._places, self._places + 1

    def _run(self, turn: _Turn[C]) -> Any:
        assert turn.number is not None
        with self.order:
            while self._serving != turn.place and not self._is_stopped:
                self._changed.wait(_LOOK_S)
        try:
            return self._perform(turn.call, turn.number)
        except Exception:
            turn.is_over = True  # `perform` has told the others; it may not have got so far in an interrupt
            raise

    def _run_queued(self, turn: _Turn[C]) -> Any:
        try:
            return self._run(turn)
        finally:
            self._end(turn)

    def _forget(self, future: Future[Any], turn: _Turn[C]) -> None:
        if future.cancelled():
            assert turn.number is not None
            self._cancelled(turn.number)
            self._end(turn)

    def _end(self, turn: _Turn[C]) -> None:
        with self.order:
            if turn.place is None:
                return
            turn.is_over = True
            self._over.add(turn.place)
            while self._serving in self._over:
                self._over.discard(self._serving)
                self._serving += 1
            self._changed.notify_all()
