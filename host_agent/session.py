"""Worker's side of its session with the controller, as a state machine: without I/O, threads or a clock.

A worker in its job is in one of eight states; `_AFTER` has every transition except those to a final state:

    JOINING ──Ready──► CONNECTING ──Start──► RUNNING
                         │      ▲                │
                       Renew    └─Renewed─┐    Renew
                         └──────────► RENEWING ◄─┘

    REFUSED: the controller does not let it join.    LEFT: all workers have left.
    ENDED: the job is over for all.                  CLOSED: this worker has ended the session by itself.

Leave and Abort do not change the state: a worker that leaves takes part in renewals until all leave, and one
that aborts hears Ended. A broken stream does not change it either. The next stream begins with Resume, and
the worker repeats in it what the controller may have missed: Renewing, or else Up, and Abort, or else Leave.

Events come in as calls, with the time in nanoseconds; `actions` returns what is to be done, in order;
`timeout` is due at `next_timeout`.

The job does not depend on the session: training goes on while the controller is stopped, dead or out of
reach, for any time. The worker opens a new stream at least once a second until it hears that its job is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from controller.api.messages import (
    Abort,
    Ended,
    FromController,
    FromWorker,
    Heartbeat,
    Join,
    Lacking,
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
    """Order to open a stream to the controller, which replaces the last one, with this first message."""

    first: Join | Resume


@dataclass(frozen=True)
class Send:
    """Order to send a message in the stream that was opened last."""

    message: FromWorker


@dataclass(frozen=True)
class Break:
    """The stream is dead without an error: end it, and call `broken`."""


@dataclass(frozen=True)
class Close:
    """Order to end this worker's side of the stream: it says no more."""


@dataclass(frozen=True)
class Away:
    """Order to log that the controller is out of reach for so long, and the job goes on without it."""

    for_ns: int
    why: str


Action = Open | Send | Break | Close | Away


class State(Enum):
    """A worker's state in its job; the last four are final."""

    JOINING = auto()  # it waits for all the others
    CONNECTING = auto()  # it connects to its neighbours, or waits until all are connected
    RUNNING = auto()
    RENEWING = auto()  # its connections are cut, and the workers say where they stand
    REFUSED = auto()
    LEFT = auto()
    ENDED = auto()
    CLOSED = auto()


_AFTER: Final = {
    (State.JOINING, Ready): State.CONNECTING,
    (State.CONNECTING, Start): State.RUNNING,
    (State.CONNECTING, Renew): State.RENEWING,
    (State.RUNNING, Renew): State.RENEWING,
    (State.RENEWING, Renewed): State.CONNECTING,
    (State.RENEWING, Start): State.RUNNING,  # Renew was said again, and Renewed has come
}
_OVER: Final = (State.REFUSED, State.LEFT, State.ENDED, State.CLOSED)


class Session:
    """A worker's session with the controller.

    `join`: what the worker joined with, except for `join.worker`, which has its present queue pairs.
    `ready`: the newest, in the present mode. `missing_*`: who has not joined, or, when this worker leaves,
    who has not left. `lacking`: the last answer to Stalled. `last_error`: why there is no stream now.
    `is_first`: no stream has ended yet. `refused`, `ended`: why, in these states.

    `counted` and `running` are what the next heartbeat says: so many messages have been numbered in a
    generation; the collective that this worker is in.
    """

    def __init__(self, join: Join) -> None:
        self.join = join
        self.ready: Ready | None = None
        self.state = State.JOINING
        self.ended: Ended | None = None
        self.refused: str | None = None
        self.missing_ranks: tuple[int, ...] = ()
        self.missing_workers: tuple[str, ...] = ()
        self.lacking: Lacking | None = None
        self.last_error = ""
        self.counted = Heartbeat()
        self.running: int | None = None
        self._actions: list[Action] = []
        self.is_first = True
        self._talking = self._is_closed = False
        self._opened_at = self._heard_at = 0
        # What has been said, to say it again.
        self._up = False
        self._answers: list[Renewing] = []  # to Renew; until Renewed comes
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
        """Return what is to be done, in order; each once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def missing(self) -> str:
        """The workers that have not joined or left, in words; empty if none is known to be missing."""
        if self.missing_workers:
            return ", ".join(self.missing_workers)
        ranks = ", ".join(map(str, self.missing_ranks))
        return f"rank{'s' * (len(self.missing_ranks) > 1)} {ranks}" if ranks else ""

    @property
    def have(self) -> str:
        """The verb that goes with `missing`."""
        return "has" if len(self.missing_workers or self.missing_ranks) == 1 else "have"

    @property
    def rank(self) -> int:
        """Rank of this worker in the present generation."""
        return self.join.worker.rank if self.ready is None or not self.ready.world_size else self.ready.rank

    @property
    def is_over(self) -> bool:
        """True once the job, or this worker's part in it, has ended."""
        return self.state in _OVER

    @property
    def has_begun(self) -> bool:
        """True if collectives may be called: all workers are connected, or are to be connected anew."""
        return self.state in (State.RUNNING, State.RENEWING)

    @property
    def is_member(self) -> bool:
        """True while this worker is in its job, as far as it knows, and has not aborted it."""
        return not self.is_over and self._aborting is None

    @property
    def is_leaving(self) -> bool:
        """True once this worker has said that it calls no more collectives."""
        return self._leaving is not None

    # What this worker does

    def begin(self, now: int) -> None:
        """Join the job."""
        self._open(now)

    def say(self, message: FromWorker) -> None:
        """Say an answer to a request, Up, Leave, Abort, or Stalled."""
        match message:
            case Renewing():
                if message not in self._answers:  # it may be asked twice
                    self._answers.append(message)
            case Up():
                self._up = True
            case Leave():
                self._leaving = message
            case Abort():
                self._aborting = message
        self._send(message)

    def confirm(self, now: int) -> bool:
        """Return whether this worker is surely in its job (`Ready.lease_s`); if not, ask until it is."""
        if self.holds_lease(now):
            return True
        if self._ask_at is None:
            self._ask_ns = FIRST_ASK_NS
            self._ask(now)
        return False

    def holds_lease(self, now: int) -> bool:
        """Tell whether a result may be returned without waiting for an answered heartbeat."""
        ready = self.ready
        return ready is None or not ready.lease_s or self._lease.holds(round(ready.lease_s * NS), now)

    def ask_no_more(self) -> None:
        """Stop asking: nobody waits for the answer to `confirm` any more."""
        self._ask_at = None

    def close(self) -> None:
        """Say no more; idempotent. After Ended, this tells the controller that the connections are down."""
        if not self._is_closed:
            self._is_closed = True
            self._actions.append(Close())
            self._go(State.CLOSED)

    # What the controller says, or does not

    def heard(self, said: FromController | None, now: int) -> None:
        """Take a message of the controller; None stands for one of a later release."""
        self._heard_at, self.last_error = now, ""
        match said:
            case Heartbeat(number=number):
                self._lease.answered(number)
                if self.holds_lease(now):
                    self._ask_at = None
            case Waiting(ranks, workers):
                self.missing_ranks, self.missing_workers = ranks, workers
            case Lacking():
                self.lacking = said
            case Ready():
                self.ready = said
                self._beat_at = now + round(said.heartbeat_interval_s * NS)
            case Renew():
                self._up = False
            case Renewed():
                if not self._answers or self._answers[-1].renewal != said.renewal:
                    return  # of one that was given up
                self._use_queue_pairs_of(self._answers[-1])
                self.ready, self._answers = said.ready, []
                self._up = False  # this worker was slow to say it, for the generation before
            case Start() if self._answers:
                return  # of the generation before
            case Moved(mode=mode, mode_reason=reason) if self.ready is not None:
                self.ready = replace(self.ready, mode=mode, mode_reason=reason)
            case Resumed():
                self._say_again()
            case Left():
                self._go(State.LEFT)
            case Ended():
                self._end(said)
        if said is not None and (after := _AFTER.get((self.state, type(said)))):
            self.state = after

    def broken(self, why: str, now: int, *, final: bool) -> None:
        """Note that the stream has ended. `final`: the controller does not know, or take, this worker."""
        self._talking = self.is_first = False
        if self.is_over:
            return
        if final and self.state is State.JOINING:
            self.refused = why
            self._go(State.REFUSED)
        elif final:
            self._end(Ended(reason=f"the controller did not take this worker back: {why}"))
        else:
            self.last_error, self.missing_ranks, self.missing_workers = why, (), ()
            self._open_later(now)

    # Time

    def next_timeout(self) -> int | None:
        """Return when `timeout` is due; None: not before something happens."""
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
            answered=tuple(answer.renewal for answer in self._answers),
        )
        self._actions.append(Open(resume))

    def _open_later(self, now: int) -> None:
        if self._away_since is None or self._heard_at > self._away_since:  # the last stream was taken up
            self._away_since, self._retry_ns = now, FIRST_RETRY_NS
            self._said_away_at = now - SAY_EVERY_NS + SAY_AFTER_NS
        if self.ready is not None and now - self._said_away_at >= SAY_EVERY_NS:
            self._said_away_at = now
            self._actions.append(Away(now - self._away_since, self.last_error))
        self._open_at = now + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, LONGEST_RETRY_NS)

    def _ask(self, now: int) -> None:
        self._beat(now)
        self._ask_at = now + self._ask_ns
        self._ask_ns = min(2 * self._ask_ns, LONGEST_RETRY_NS)

    def _beat(self, now: int) -> None:
        self._send(replace(self.counted, number=self._lease.next_number(now), running=self.running))

    def _say_again(self) -> None:
        """Repeat what the controller may have missed when the stream broke."""
        if self._answers:
            self._send(self._answers[-1])
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
        self._go(State.ENDED)

    def _go(self, end: State) -> None:
        """Go to one of the final states; the first one stays."""
        if not self.is_over:
            self.state = end

    def _use_queue_pairs_of(self, answer: Renewing) -> None:
        """Take these queue pairs as this worker's from now on."""
        worker = replace(
            self.join.worker, qpn_out=answer.qpn_out, psn_out=answer.psn_out, qpn_in=answer.qpn_in
        )
        self.join = replace(self.join, worker=worker)


class _Lease:
    """A worker's lease: it surely was in its job when it sent the last heartbeat that was answered.

    Only this machine's clock counts. The controller counts from when it heard that heartbeat, which is later.
    """

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # by number, those without an answer
        self._number = 0
        self._since = _LONG_AGO

    def next_number(self, now: int) -> int:
        """Return the number of a heartbeat that is sent now."""
        self._number += 1
        self._sent[self._number] = now
        if len(self._sent) > _UNANSWERED:
            del self._sent[min(self._sent)]
        return self._number

    def answered(self, number: int) -> None:
        """Note the answer to the heartbeat of that number; 0: none."""
        self._since = max(self._since, self._sent.get(number, _LONG_AGO))
        self._sent = {later: at for later, at in self._sent.items() if later > number}

    def holds(self, lease_ns: int, now: int) -> bool:
        """Tell whether the last answered heartbeat was sent less than `lease_ns` ago."""
        return now - self._since < lease_ns
