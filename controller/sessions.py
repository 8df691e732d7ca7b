"""A worker's session as the registry sees it: `hear` takes what it says, what it is told is a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from controller.adoption import Account
from controller.api.errors import InvalidRequestError
from controller.api.messages import (
    Abort,
    Called,
    Ended,
    FromController,
    FromWorker,
    Heartbeat,
    Held,
    Join,
    Leave,
    Left,
    Paused,
    Renewing,
    Resume,
    Up,
)
from controller.guarding import in_one_line
from controller.jobs import Job
from controller.planning import member_from

if TYPE_CHECKING:
    from controller.registry import Registry
    from controller.running import Running


class Session:
    """One connection of one worker. `events` ends with None; then the session is over for the controller.

    `told`: how the job ended, once that is among the events. `token`: the worker's, once it has one.
    """

    def __init__(self, registry: Registry, running: Running, rank: int, token: bytes = b"") -> None:
        self.events: asyncio.Queue[FromController | None] = asyncio.Queue()
        self.rank = rank
        self.running = running
        self.token = token
        self.told: Left | Ended | None = None
        self._registry = registry

    def hear(self, said: FromWorker) -> None:
        """What the worker says. ControllerError where it says what it must not."""
        match said:
            case Heartbeat():
                self._do(lambda job, now: _beat(job, self.rank, said, now))
            case Up():
                self._do(lambda job, now: job.up(self.rank, now))
            case Leave():
                self._do(lambda job, now: job.leave(self.rank, now, said.collectives))
            case Paused():
                self._do(lambda job, now: job.paused(self.rank, said.move, said.next_collective, now))
            case Held():
                self._do(lambda job, now: job.held(self.rank, said.move, now))
            case Renewing():
                if self.running.sessions.get(self.rank) is self:
                    self._registry.renewing(self, said)
            case Abort(reason, None):
                self._do(lambda job, now: job.abort(self.rank, in_one_line(reason)))
            case Abort(reason, Called() as called):
                called, why = _printable(called), in_one_line(reason)
                self._do(lambda job, now: job.disagrees(self.rank, called, why, now))
            case Called():
                self._do(lambda job, now: job.called(self.rank, _printable(said), now))
            case _:
                raise InvalidRequestError(f"{type(said).__name__.lower()} in the middle of a session")

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


def begin(
    registry: Registry, first: FromWorker, require_host: Callable[[str], None] = lambda host: None
) -> Session:
    """The session that a worker's first message asks for. ControllerError says why not.

    `require_host` raises something where the caller may not speak for a host.
    """
    match first:
        case Join():
            member = member_from(registry.config, first)
            require_host(member.host)
            how = (first.job, first.world_size, member, first.tenant)
            return registry.join(*how, elastic=first.elastic, token=first.join_token)
        case Resume():
            who = (first.job, first.generation, first.rank, first.token)
            account = None
            if registry.is_behind(first.job, first.generation, first.token):
                account = Account.of(registry.config, first)
            if registry.knows(first.job, first.generation, first.token):
                require_host(registry.host_of(*who))
            elif account is not None:
                require_host(account.member.host)
            return registry.resume(*who, account, answered=first.answered)
    raise InvalidRequestError(
        f"a session begins with join or resume, not with {type(first).__name__.lower()}"
    )


def _beat(job: Job, rank: int, beat: Heartbeat, now: float) -> None:
    job.counted(rank, beat.generation, beat.messages, now)
    job.runs(rank, beat.running, now)
    job.heartbeat(rank, beat.number, now)


def _printable(called: Called) -> Called:
    return replace(called, what=in_one_line(called.what))
