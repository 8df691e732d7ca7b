"""A worker's side of its session with the controller, as a machine: without I/O, threads or a clock.

    Join ──► Waiting… ──► Ready ──► Up ──► Start ──► (heartbeats, moves, renewals) ──► Leave ──► Left
                            │                                 │
                            └── the stream breaks: Resume ◄───┘      Ended: at any time

What happens comes in as calls, with the time in nanoseconds; what is to be done comes out of `actions`, in
order; `timeout` is due at `next_timeout`. What the controller may not have taken before a stream broke is
said again in the next one.

The job does not depend on the session: the controller may be stopped, dead or out of reach for as long as it
likes, and training goes on. A stream that breaks is opened again, at least once a second, until the worker is
told that its job is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from controller.api.messages import (
    Abort,
    Ended,
    FromController,
    FromWorker,
    Heartbeat,
    Join,
    Leave,
    Left,
    Moved,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Resume,
    Resumed,
    Start,
    Up,
    Waiting,
)

NS: Final = 1_000_000_000
FIRST_RETRY_NS: Final = NS // 10
LONGEST_RETRY_NS: Final = NS
FIRST_ASK_NS: Final = NS // 50
SAY_AFTER_NS: Final = 10 * NS  # of being out of reach; and
SAY_EVERY_NS: Final = 60 * NS
_UNANSWERED: Final = 64  # heartbeats whose time of sending is kept
_LONG_AGO: Final = -(1 << 62)


@dataclass(frozen=True)
class Open:
    """Open a stream to the controller, in place of the last one; this is the first that is said in it."""

    first: Join | Resume


@dataclass(frozen=True)
class Send:
    """Say it in the stream that was opened last."""

    message: FromWorker


@dataclass(frozen=True)
class Break:
    """The stream is dead, and nobody has noticed: end it, and call `broken`."""


@dataclass(frozen=True)
class Close:
    """This worker says no more: end its side of the stream."""


@dataclass(frozen=True)
class Away:
    """Tell people that the controller has been out of reach for so long, and the job goes on without it."""

    for_ns: int
    why: str


Action = Open | Send | Break | Close | Away


class Session:
    """`join`: what the worker joins with; in it, `worker` has the queue pairs of `ready`.

    `ready`: the newest, in the present mode. `started`: everybody's queue pairs are ready, and no renewal has
    come since, which `renewing` says. `missing_ranks`: who has not joined. `left`, `ended`, `refused` (why):
    how it came to its end. `trouble`: why there is no stream now. `is_first`: no stream has ended yet.

    `counted` and `running` are what the next heartbeat says: so many messages have been numbered in a
    generation; the collective that this worker is in.
    """

    def __init__(self, join: Join) -> None:
        self.join = join
        self.ready: Ready | None = None
        self.started = self.renewing = self.left = False
        self.ended: Ended | None = None
        self.refused: str | None = None
        self.missing_ranks: tuple[int, ...] = ()
        self.trouble = ""
        self.counted = Heartbeat()
        self.running: int | None = None
        self._actions: list[Action] = []
        self.is_first = True  # no stream has ended yet
        self._talking = self._closed = False
        self._opened_at = self._heard_at = 0
        # What has been said, to say it again.
        self._up = False
        self._standing: Renewing | None = None
        self._leaving: Leave | None = None
        self._aborting: Abort | None = None
        # When to act next, by itself.
        self._open_at: int | None = None
        self._beat_at: int | None = None
        self._ask_at: int | None = None
        self._retry_ns, self._ask_ns = FIRST_RETRY_NS, FIRST_ASK_NS
        self._away_since: int | None = None
        self._said_away_at = 0
        self._lease = _Lease()

    def actions(self) -> list[Action]:
        """What is to be done, in order; each once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def rank(self) -> int:
        """This worker's, in the present generation."""
        return self.join.worker.rank if self.ready is None or not self.ready.world_size else self.ready.rank

    @property
    def is_over(self) -> bool:
        """The job has come to its end, or this worker's part in it."""
        return self._closed or self.left or self.ended is not None or self.refused is not None

    @property
    def belongs(self) -> bool:
        """It is in its job still, as far as it knows."""
        return self.ended is None and self._aborting is None and not self._closed

    @property
    def is_leaving(self) -> bool:
        """It has said that it calls no more collectives."""
        return self._leaving is not None

    # What this worker does

    def begin(self, now: int) -> None:
        """Join."""
        self._open(now)

    def say(self, message: FromWorker) -> None:
        """An answer to what was asked, Up, Leave or Abort; Renewing and these three again after a break."""
        match message:
            case Renewing():
                self._standing = message
            case Up():
                self._up = True
            case Leave():
                self._leaving = message
            case Abort():
                self._aborting = message
        self._send(message)

    def confirm(self, now: int) -> bool:
        """Whether this worker is in its job for sure (see `Ready.lease_s`); else it is asked until it is."""
        if self.is_sure(now):
            return True
        if self._ask_at is None:
            self._ask_at, self._ask_ns = now, FIRST_ASK_NS
            self._ask(now)
        return False

    def is_sure(self, now: int) -> bool:
        """Whether no heartbeat has to be answered before a result is returned."""
        ready = self.ready
        return ready is None or not ready.lease_s or self._lease.holds(round(ready.lease_s * NS), now)

    def ask_no_more(self) -> None:
        """Nobody waits any more for what `confirm` asks."""
        self._ask_at = None

    def took_end(self) -> None:
        """This worker has acted on the job's end. The controller reads Close as: its connections are down."""
        self._actions.append(Close())

    def close(self) -> None:
        """End the session; idempotent."""
        if not self._closed:
            self._closed = True
            self._actions.append(Close())

    # What the controller says, or does not

    def heard(self, said: FromController | None, now: int) -> None:
        """Anything; None is something of a later release."""
        self._heard_at, self.trouble = now, ""
        match said:
            case Heartbeat(number=number):
                self._lease.answered(number)
                if self.is_sure(now):
                    self._ask_at = None
            case Waiting(missing_ranks):
                self.missing_ranks = missing_ranks
            case Ready():
                self.ready = said
                self._beat_at = now + round(said.heartbeat_interval_s * NS)
            case Renew():
                self.renewing, self.started = True, False
                self._up = False
            case Renewed() if self._standing is not None and self._standing.renewal == said.renewal:
                self._use_queue_pairs_of(self._standing)
                self.ready, self._standing = said.ready, None
                self._up = False  # it may have been said for the generation before
            case Start() if self._standing is None:
                self.started, self.renewing = True, False
            case Moved(mode=mode, mode_reason=reason) if self.ready is not None:
                self.ready = replace(self.ready, mode=mode, mode_reason=reason)
            case Resumed():
                self._say_again()
            case Left():
                self.left = True
            case Ended():
                self._end(said)

    def broken(self, why: str, now: int, *, final: bool) -> None:
        """The stream has ended. `final`: the controller knows this worker, or will take it, no more."""
        self._talking = self.is_first = False
        if self.is_over:
            return
        if final and self.ready is None:
            self.refused = why
        elif final:
            self._end(Ended(reason=f"the controller did not take this worker back: {why}"))
        else:
            self.trouble, self.missing_ranks = why, ()
            self._open_later(now)

    # Time

    def next_timeout(self) -> int | None:
        """When `timeout` is due; None: not before something happens."""
        if self.is_over:
            return None
        due = [at for at in (self._open_at, self._beat_at, self._ask_at) if at is not None]
        return min(due, default=None)

    def timeout(self, now: int) -> None:
        """Do what is due."""
        if self.is_over:
            return
        if self._open_at is not None and now >= self._open_at:
            self._open(now)
        if self._ask_at is not None and now >= self._ask_at:
            self._ask(now)
        if self._beat_at is not None and now >= self._beat_at:
            self._beat(now)
            assert self.ready is not None
            self._beat_at = now + round(self.ready.heartbeat_interval_s * NS)
            silent = now - max(self._heard_at, self._opened_at)
            if self._talking and silent > self.ready.heartbeat_timeout_s * NS:
                self._talking = False  # TCP has not noticed
                self._actions.append(Break())

    def _open(self, now: int) -> None:
        self._open_at, self._opened_at, self._talking = None, now, True
        ready = self.ready
        if ready is None:
            self._actions.append(Open(self.join))
            return
        resume = Resume(
            job=self.join.job,
            generation=ready.generation,
            rank=self.rank,
            token=ready.resume_token,
            joined=self.join,
            ready=ready,
            answered=0 if self._standing is None else self._standing.renewal,
        )
        self._actions.append(Open(resume))

    def _open_later(self, now: int) -> None:
        if self._away_since is None or self._heard_at > self._away_since:  # the last stream was taken up
            self._away_since, self._retry_ns = now, FIRST_RETRY_NS
            self._said_away_at = now - SAY_EVERY_NS + SAY_AFTER_NS
        if self.ready is not None and now - self._said_away_at >= SAY_EVERY_NS:
            self._said_away_at = now
            self._actions.append(Away(now - self._away_since, self.trouble))
        self._open_at = now + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, LONGEST_RETRY_NS)

    def _ask(self, now: int) -> None:
        self._beat(now)
        self._ask_at = now + self._ask_ns
        self._ask_ns = min(2 * self._ask_ns, LONGEST_RETRY_NS)

    def _beat(self, now: int) -> None:
        if self._talking:
            self._send(replace(self.counted, number=self._lease.next_number(now), running=self.running))

    def _say_again(self) -> None:
        """What the controller may not have taken before the stream broke."""
        if self._standing is not None:
            self._send(self._standing)
        elif self._up:  # also after Start: a controller may not have been able to save that it said so
            self._send(Up())
        if self._aborting is not None:
            self._send(self._aborting)
        elif self._leaving is not None:
            self._send(self._leaving)

    def _send(self, message: FromWorker) -> None:
        if self._talking:
            self._actions.append(Send(message))

    def _end(self, ended: Ended) -> None:
        if self.ended is None:
            self.ended = ended

    def _use_queue_pairs_of(self, standing: Renewing) -> None:
        """This worker has these from now on."""
        worker = replace(
            self.join.worker, qpn_out=standing.qpn_out, psn_out=standing.psn_out, qpn_in=standing.qpn_in
        )
        self.join = replace(self.join, worker=worker)


class _Lease:
    """Since when this worker is known to be in its job: when it sent the last heartbeat that was answered.

    By this machine's clock alone, and before the controller counts from when it heard that one.
    """

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # by number, those without an answer
        self._number = 0
        self._since = _LONG_AGO

    def next_number(self, now: int) -> int:
        """Of a heartbeat that is sent now."""
        self._number += 1
        self._sent[self._number] = now
        if len(self._sent) > _UNANSWERED:
            del self._sent[min(self._sent)]
        return self._number

    def answered(self, number: int) -> None:
        """That one has come; 0: none."""
        self._since = max(self._since, self._sent.get(number, _LONG_AGO))
        self._sent = {later: at for later, at in self._sent.items() if later > number}

    def holds(self, lease_ns: int, now: int) -> bool:
        """Whether it is not longer ago than that."""
        return now - self._since < lease_ns
