"""Simulated time, and an asyncio event loop for each process that has one.

Nothing waits: the clock is an integer of nanoseconds that jumps to the next event. Events at the same time
happen in the order in which they were asked for. A killed process does nothing any more: not even what a
cancelled task would do on its way out.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
NS = 1_000_000_000
_logger = logging.getLogger("controller.loop")


class Clock:
    """Events by time; `step` does the next one. `trace`: a checksum of the frames and when they arrived."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self.trace = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    @property
    def now_s(self) -> float:
        """The time in seconds, as asyncio and the controller count."""
        return self.now_ns / NS

    @property
    def next_ns(self) -> int | None:
        """The time of the next event; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def at(self, time_ns: int, action: Callable[..., None], *args: Any) -> None:
        """Have something done, now or later."""
        self._order += 1
        heapq.heappush(self._heap, (time_ns, self._order, action, args))

    def after(self, delay_ns: int, action: Callable[..., None], *args: Any) -> None:
        """Have something done after a delay, counted from now."""
        self.at(self.now_ns + delay_ns, action, *args)

    def step(self) -> None:
        """Do what comes next."""
        time_ns, _, action, args = heapq.heappop(self._heap)
        if time_ns > self.now_ns:
            self.now_ns = time_ns
        self.events += 1
        action(*args)


def new_loop(clock: Clock) -> ProcessLoop:
    """Make the event loop of a process that is started."""
    kind: Any = ProcessLoop  # asyncio's class has much that no process here asks for
    return kind(clock)  # type: ignore[no-any-return]


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.alive = True
        self.stopped = False
        self.tasks: list[asyncio.Task[Any]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._woken = False

    def kill(self) -> None:
        """Stop for ever: nothing of the process runs any more."""
        self.alive = False
        self._ready.clear()

    def stop(self) -> None:
        """Stop (SIGSTOP): what is due meanwhile waits."""
        self.stopped = True

    def go_on(self) -> None:
        """Go on (SIGCONT): all that was due is run at once."""
        self.stopped = False
        self._run_ready()

    def abandon(self) -> None:
        """Let go of what the process left, after everything; what that does has no effect."""
        self.alive, self.stopped = True, False
        for task in self.tasks:
            if not task.done():
                task.cancel()
        for _ in range(100):
            if not self._ready:
                break
            self._run_ready()
        self.alive = False
        self.tasks.clear()

    def _run_ready(self) -> None:
        self._woken = False
        if not self.alive or self.stopped:
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(before)

    def _wake(self) -> None:
        if not self._woken and self.alive:
            self._woken = True
            self.clock.at(self.clock.now_ns, self._run_ready)

    # What asyncio asks for.

    def time(self) -> float:
        return self.clock.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake()
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.clock.at(max(self.clock.now_ns, round(when * NS)), self._due, handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if self.alive and not handle.cancelled():
            self._ready.append(handle)
            self._run_ready()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: it stays among the events, where it has no effect."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name)
        self.tasks.append(task)
        if len(self.tasks) > 200:
            self.tasks = [task for task in self.tasks if not task.done()]
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what a callback raises, as the controller logs its tasks' defects.

        Say nothing of futures and tasks that were killed while somebody waited for them.
        """
        if "handle" in context:
            _logger.error("%s", context["message"], exc_info=context.get("exception"))
