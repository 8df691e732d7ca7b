"""A worker's session as the registry sees it: what it says comes in as calls, what it is told is a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from controller.comparing import Called
from controller.jobs import Ended, Event, Job, Left
from controller.renewals import Standing

if TYPE_CHECKING:
    from controller.registry import Registry
    from controller.running import Running


class Session:
    """One connection of one worker. `events` ends with None; then the session is over for the controller.

    `told`: how the job ended, once that is among the events. `token`: the worker's, once it has one.
    """

    def __init__(self, registry: Registry, running: Running, rank: int, token: bytes = b"") -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.rank = rank
        self.running = running
        self.token = token
        self.told: Left | Ended | None = None
        self._registry = registry

    def heartbeat(
        self, generation: int = 0, messages: int = 0, number: int = 0, running: int | None = None
    ) -> None:
        """The worker lives, has numbered so many messages in that generation, and is in that collective.

        Its heartbeats are numbered from 1.
        """

        def beat(job: Job, now: float) -> None:
            job.counted(self.rank, generation, messages, now)
            job.runs(self.rank, running, now)
            job.heartbeat(self.rank, number, now)

        self._do(beat)

    def up(self) -> None:
        """Its QPs are ready. NotPossibleError."""
        self._do(lambda job, now: job.up(self.rank, now))

    def leave(self, collectives: int | None = None) -> None:
        """It wants to leave with the others, and has called so many collectives. NotPossibleError."""
        self._do(lambda job, now: job.leave(self.rank, now, collectives))

    def paused(self, move: int, next_collective: int) -> None:
        """It starts no collective; the first that it has not started."""
        self._do(lambda job, now: job.paused(self.rank, move, next_collective, now))

    def held(self, move: int) -> None:
        """It has nothing in flight."""
        self._do(lambda job, now: job.held(self.rank, move, now))

    def stands(self, renewal: int, standing: Standing) -> None:
        """It sends nothing any more, and where it stands. InvalidRequestError, ConflictError."""
        if self.running.sessions.get(self.rank) is self:
            self._registry.stands(self, renewal, standing)

    def abort(self, reason: str, mismatch: Called | None = None) -> None:
        """It wants the job to end; `mismatch`: as another worker has called something else than this."""
        if mismatch is None:
            self._do(lambda job, now: job.abort(self.rank, reason))
        else:
            self._do(lambda job, now: job.disagrees(self.rank, mismatch, reason, now))

    def called(self, called: Called) -> None:
        """What it has called, as it was asked."""
        self._do(lambda job, now: job.called(self.rank, called, now))

    def closed(self) -> None:
        """It ended the session on purpose."""
        self._end(lambda job, now: job.closed(self.rank))

    def took_end(self) -> None:
        """It ended the session after it was told that the job is over."""
        self._registry.took_end(self)

    def broken(self) -> None:
        """The connection is gone."""
        self._end(lambda job, now: job.broken(self.rank))

    def _do(self, call: Callable[[Job, float], None]) -> None:
        if self.running.sessions.get(self.rank) is self:
            self._registry.act(self.running, call)

    def _end(self, call: Callable[[Job, float], None]) -> None:
        """A session that another one has replaced, or that was told the end, ends without effect."""
        if self.running.sessions.get(self.rank) is self:
            del self.running.sessions[self.rank]
            self._registry.act(self.running, call)
        self.events.put_nowait(None)
