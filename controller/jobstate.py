"""Who is in a job, and what it has come to: what all parts of a job's state machine stand on. No I/O."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from controller.api.errors import InvalidRequestError, NotPossibleError
from controller.api.messages import EndCause, Ended, FromController, JobSpec, Left, Ready
from controller.comparing import Comparison
from controller.events import Effect, Over, Superseded, Tell
from controller.moves import Move
from controller.renewals import Renewal
from controller.specs import Member, Phase, Plan, Timing


@dataclass
class Seat:
    """A worker's standing in its job: last heard of at `heard_at`, lost after `patience_s` of silence.

    `recovered`: it has to come back, as the controller was away. `lost`: it is, and never comes back.
    `generation`: the newest that its worker is known to belong to; None: it has not come back since the
    controller was started. `knows_end`: it has acted on the job's end, and sends nothing more.
    `in_collective`: the one that it is in, as it said. `left_after`: so many collectives, and calls no more.
    """

    member: Member
    heard_at: float
    patience_s: float
    token: bytes = b""
    generation: int | None = None
    connected: bool = True
    up: bool = False
    leaving: bool = False
    recovered: bool = False
    lost: bool = False
    knows_end: bool = False
    in_collective: int | None = None
    left_after: int | None = None


@dataclass
class JobState:
    """See the top of the file. `seats` by rank; `dropped` says, by token, why a worker has none any more.

    `departed`, by rank: those of this generation among them. `numbered`: how many messages it has had.
    `newest`: the newest generation that a worker has come back from; the database may be older.
    """

    spec: JobSpec
    timing: Timing
    explicit: bool = False
    phase: Phase = Phase.CREATED
    seats: dict[int, Seat] = field(default_factory=dict)
    plan: Plan | None = None
    outcome: Left | Ended | Superseded | None = None
    move: Move | None = None
    renewal: Renewal | None = None
    comparison: Comparison | None = None
    dropped: dict[bytes, str] = field(default_factory=dict)
    departed: dict[int, Seat] = field(default_factory=dict)
    numbered: int = 0
    newest: int = 0
    _effects: list[Effect] = field(default_factory=list)
    _beaten_at: float = 0.0

    @property
    def members(self) -> list[Member]:
        """Those who have joined, by rank."""
        return [self.seats[rank].member for rank in sorted(self.seats)]

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not joined."""
        return tuple(rank for rank in range(self.spec.world_size) if rank not in self.seats)

    @property
    def world_size(self) -> int:
        """How many workers it has; in an elastic job fewer and fewer."""
        return self.spec.world_size if self.plan is None else len(self.seats)

    @property
    def departures(self) -> dict[bytes, str]:
        """Why, by token, workers of this generation have no part in the job any more."""
        return {seat.token: self.dropped[seat.token] for seat in self.departed.values()}

    @property
    def awaited(self) -> tuple[int, ...]:
        """The ranks that a renewal or a move waits for."""
        if self.renewal is not None:
            return self.renewal.missing
        return self.move.missing if self.move is not None else ()

    @property
    def live(self) -> bool:
        """Not over."""
        return self.phase is not Phase.ENDED

    @property
    def is_set_up(self) -> bool:
        """It runs, or shall run as soon as all workers are up."""
        return self.phase in (Phase.READY, Phase.RUNNING)

    @property
    def is_doubtful(self) -> bool:
        """Whether the job may have gone on without some of the workers that have a seat.

        A database that is from a backup, or on a disk that was full, does not know that; the workers do.
        """
        return any(seat.generation is None or seat.generation < self.newest for seat in self.seats.values())

    def take_effects(self) -> list[Effect]:
        """What has to be done, in order; each once."""
        effects, self._effects = self._effects, []
        return effects

    def heard(self, rank: int, now: float) -> None:
        """Anything came from a worker, so it lives."""
        seat = self.seats[rank]
        seat.heard_at, seat.patience_s, seat.recovered = now, self.timing.heartbeat_timeout_s, False

    def end(
        self, reason: str, cause: EndCause, *, rank: int | None = None, first_message: int | None = None
    ) -> None:
        """End the job early, for all workers; nothing where it has ended."""
        if self.live:
            seat = None if rank is None else self.seats.get(rank) or self.departed.get(rank)
            host = "" if seat is None else seat.member.host or seat.member.hostname
            self._finish(Ended(reason=reason, cause=cause, rank=rank, host=host, first_message=first_message))

    def knows(self, token: bytes) -> bool:
        """Whether a worker with that token has or had a part in the job."""
        return any(hmac.compare_digest(known, token) for known in self._tokens)

    def rank_of(self, rank: int, token: bytes, generation: int | None = None) -> int:
        """The rank now of the worker with that token, which had `rank` in that generation (None: this one).

        InvalidRequestError where the token is another's; NotPossibleError where its worker was given up.
        """
        this = generation is None or (self.plan is not None and generation == self.plan.generation)
        for known, seat in self.seats.items():
            if seat.token and hmac.compare_digest(seat.token, token) and (known == rank or not this):
                return known
        for dropped, why in self.dropped.items():
            if hmac.compare_digest(dropped, token):
                raise NotPossibleError(f"job {self.spec.name} goes on without this worker: {why}")
        raise InvalidRequestError(
            f"job {self.spec.name}: rank {rank} cannot be resumed, the token is not the one it was given"
        )

    def _ready(self, rank: int) -> Ready:
        plan, timing = self.plan, self.timing
        assert plan is not None
        ring = plan.ring or tuple(sorted(self.seats))
        place = ring.index(rank)
        successor, predecessor = self.seats[ring[(place + 1) % len(ring)]], self.seats[ring[place - 1]]
        return Ready(
            job_id=plan.job_id,
            generation=plan.generation,
            window=plan.window,
            message_packets=plan.message_packets,
            path_mtu=plan.path_mtu,
            mode=plan.mode,
            mode_reason=plan.mode_reason,
            successor=successor.member.worker(backup=plan.backup),
            predecessor=predecessor.member.worker(backup=plan.backup),
            heartbeat_interval_s=timing.heartbeat_interval_s,
            heartbeat_timeout_s=timing.heartbeat_timeout_s,
            resume_token=self.seats[rank].token,
            rc=timing.rc,
            ring=plan.ring,
            rank=rank,
            world_size=len(ring),
            selective=plan.selective,
            backup=plan.backup,
            lease_s=timing.lease_s if self.spec.elastic else 0.0,
            created=self.spec if self.explicit else None,
        )

    @property
    def _tokens(self) -> list[bytes]:
        return [*(seat.token for seat in self.seats.values() if seat.token), *self.dropped]

    def _finish(self, outcome: Left | Ended) -> None:
        self.phase, self.outcome, self.move, self.renewal = Phase.ENDED, outcome, None, None
        self._effects.append(Over())
        self._tell_all(outcome)

    def _tell_all(self, event: FromController) -> None:
        for rank in sorted(self.seats):
            self._tell(rank, event)

    def _tell(self, rank: int, event: FromController) -> None:
        seat = self.seats[rank]
        if not seat.connected:
            return
        self._effects.append(Tell(rank, event))
