"""The calls of a job in their order, where a call may have to wait before it can be made.

It may wait for the job, which is joined with the first call, or for a tensor that a GPU still computes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeAlias

from host_agent.errors import CollectiveTimeoutError, CommunicatorError, UsageError
from host_agent.front import Collectives

Call: TypeAlias = Callable[[Collectives], "Future[Any]"]
Ready: TypeAlias = Callable[[], None]


_LOOK_S: Final = 0.5


class _Waiting(NamedTuple):
    call: Call
    ready: Ready | None
    future: Future[Any]


class Line:
    """A process group's calls. `join` returns the communicator within the seconds that it is given.

    `lost` returns an error once the other ranks cannot join any more, so that waiting is of no use.

    A thread makes the calls that have to wait, and all calls behind them; others are made at once. The
    caller's thread does not wait: ranks may use two new groups for the first time in different orders.
    """

    def __init__(
        self,
        name: str,
        join: Callable[[float], Collectives],
        *,
        timeout_s: float,
        lost: Callable[[], CommunicatorError | None] = lambda: None,
    ) -> None:
        self._name, self._join, self._timeout_s, self._lost = name, join, timeout_s, lost
        self._changed = threading.Condition()
        self._communicator: Collectives | None = None
        self._waiting: deque[_Waiting] = deque()  # the first of them is being made
        self._runs = self._stays = self._is_joining = False
        self._over: CommunicatorError | None = None
        self._pid = os.getpid()

    @property
    def communicator(self) -> Collectives | None:
        """The job's communicator, while it is joined."""
        return self._communicator

    @property
    def is_own(self) -> bool:
        """True if this process made it, and not one that this one was forked from."""
        return os.getpid() == self._pid

    def require_own(self) -> None:
        """Raise UsageError in a process that was forked from the one that made it."""
        if not self.is_own:
            raise UsageError(
                f"process group {self._name} is its parent process's: one that was forked (a data loader's "
                "worker?) takes no part in it"
            )

    def begin(self, timeout_s: float) -> None:
        """Join now, in the caller's thread."""
        self._communicator = self._join(timeout_s)

    def call(self, call: Call, ready: Ready | None = None) -> Future[Any]:
        """Make `call` behind all earlier ones, and after `ready` has returned; return its future."""
        with self._changed:
            self.require_own()
            if self._over is not None:
                raise self._over.with_traceback(None)
            if ready is None and not self._waiting and self._communicator is not None:
                return call(self._communicator)
            future: Future[Any] = Future()
            self._waiting.append(_Waiting(call, ready, future))
            self._stays = self._stays or ready is not None
            if not self._runs:
                self._runs, self._is_joining = True, self._communicator is None
                threading.Thread(target=self._run, name="p4reduce-line", daemon=True).start()
            self._changed.notify_all()
            return future

    def end(self, why: str, end: Callable[[Collectives], None]) -> None:
        """Refuse calls from now on, and have `end` end a communicator that is joined. Idempotent."""
        with self._changed:
            communicator, self._communicator = self._communicator, None
            over = self._over = self._over or UsageError(f"process group {self._name} {why}")
            waiting: deque[_Waiting] = deque()
            if self._is_joining and self.is_own:  # nobody waits for that
                waiting, self._waiting = self._waiting, waiting
            self._changed.notify_all()
        for one in waiting:
            one.future.set_exception(over)
        if communicator is not None and self.is_own:
            end(communicator)

    def _run(self) -> None:
        try:
            communicator = self._communicator or self._joined()
        except Exception as error:  # noqa: BLE001 (who waits for the calls raises it)
            self._fail(error)
            return
        while (waiting := self._next()) is not None:
            _make(waiting, communicator)
            with self._changed:
                self._waiting.popleft()

    def _joined(self) -> Collectives:
        began, joined = time.monotonic(), threading.Event()
        threading.Thread(target=self._look, args=(joined,), name="p4reduce-look", daemon=True).start()
        try:
            communicator = self._join(self._timeout_s)
        except CommunicatorError as error:
            if time.monotonic() - began < self._timeout_s:
                raise
            told = f"process group {self._name}: timeout of {self._timeout_s:g} s: {error}"
            raise CollectiveTimeoutError(told) from error
        finally:
            joined.set()
        with self._changed:
            self._is_joining = False
            if self._over is None:
                self._communicator = communicator
                return communicator
        communicator.abort(str(self._over))
        raise self._over

    def _look(self, joined: threading.Event) -> None:
        while not joined.wait(_LOOK_S):
            if (error := self._lost()) is not None:
                self._fail(error)
                return

    def _next(self) -> _Waiting | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._over or not self._stays)
            if self._waiting:
                return self._waiting[0]
            self._runs = False
            return None

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._over = self._over or UsageError(f"process group {self._name} could not join: {error}")
            waiting, self._waiting = self._waiting, deque()
            self._runs = False
        for one in waiting:
            one.future.set_exception(error)


def _make(waiting: _Waiting, communicator: Collectives) -> None:
    """Make a waiting call, and pass the outcome of the call's own future on to the waiting one."""
    future = waiting.future

    def done(made: Future[Any]) -> None:
        error = made.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(made.result())

    try:
        if waiting.ready is not None:
            waiting.ready()
        made = waiting.call(communicator)
    except Exception as error:  # noqa: BLE001 (as above)
        future.set_exception(error)
        return
    made.add_done_callback(done)
