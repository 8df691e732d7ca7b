"""The engine that carries out the effects of jobs' state machines, one after the other, in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from controller.jobs.effects import Effect
from controller.jobs.job import Job
from controller.orchestration.record import Record

logger = logging.getLogger(__name__)


class Engine:
    """Queue of effects, carried out by `handlers`, one for each kind. They may call `act` again.

    The effects of such a call go to the end of the queue. `on_act`: called at each `act`. `stood_still`:
    called with the seconds that the process itself was stopped for, and the time now. `rng`: the source of
    all the controller's random numbers. `stopping`: begin nothing new. Not thread-safe: one event loop.
    """

    def __init__(self, clock: Callable[[], float], rng: Random, *, interval_s: float) -> None:
        self.clock = clock
        self.rng = rng
        self.handlers: dict[type, Callable[[Record, Any], None]] = {}
        self.stood_still: list[Callable[[float, float], None]] = []
        self.on_act: list[Callable[[], None]] = []
        self.stopping = False
        self._interval_s = interval_s
        self._awake_at: float | None = None
        self._queue: deque[tuple[Record, Effect]] = deque()
        self._at_it = False
        self._tasks: set[asyncio.Task[None]] = set()

    def act(self, record: Record, call: Callable[[Job, float], None]) -> None:
        """Call a job's state machine, and do what it asks for. Raise what the call raises."""
        for tell in self.on_act:
            tell()
        call(record.job, self.clock())
        self.post(record, *record.job.take_effects())

    def post(self, record: Record, *effects: Effect) -> None:
        """Queue effects, and carry out the queue."""
        self._queue.extend((record, effect) for effect in effects)
        if self._at_it:
            return
        self._at_it = True
        wrong: Exception | None = None
        try:
            while self._queue:
                whose, effect = self._queue.popleft()
                try:
                    self.handlers[type(effect)](whose, effect)
                except Exception as error:
                    if wrong is None:
                        wrong = error
                    else:
                        logger.exception("a defect in the controller")
        finally:
            self._at_it = False
        if wrong is not None:
            raise wrong

    # Time.

    def awake(self) -> float:
        """Return the time. If this process itself stood still until now, call `stood_still`."""
        now = self.clock()
        late = 0.0 if self._awake_at is None else now - self._awake_at - self._interval_s
        self._awake_at = now
        if late > 0:
            for tell in self.stood_still:
                tell(late, now)
        return now

    def begin_anew(self) -> float:
        """Return the time, and forget how long ago the last call was."""
        self._awake_at = self.clock()
        return self._awake_at

    # Tasks.

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this in the background; log its defects. `drain` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a defect in the controller", exc_info=error)

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)
