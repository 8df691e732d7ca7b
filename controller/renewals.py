"""One renewal of a running job, as its workers answer: it goes on under a new generation. No I/O.

    ASKING ──all stand──► WRITING ──the switches are written──► RAISING ──all are up──► over, the job goes on
      ▲                      │                                    │
      └── a next renewal ◄───┴──── a worker or a switch fails ◄───┘

Asked, a worker closes its connections for good, and says where it stands: the first collective that it has
not finished. Nothing of the old generation is sent after that. As each collective synchronises, two workers
differ by one at most. The job goes on with the smallest; a worker that has finished that one, the holder,
gives its result to those that have not, and without a holder all do it anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from controller.api.messages import Renewing
from controller.serials import SERIALS, rearmost


class Cause(str, Enum):
    """Why a job is renewed."""

    SWITCH_RESTARTED = "switch_restarted"
    SWITCH_AWAY = "switch_away"
    SWITCH_BACK = "switch_back"
    WORKER_LOST = "worker_lost"
    INTERRUPTED = "interrupted"  # a renewal of which a controller that was restarted knows nothing
    MOVED_IN = "moved_in"  # a job that ran by ring moves into the switch
    RENUMBERED = "renumbered"  # before it has too many messages for one generation


PLANNED = (Cause.MOVED_IN, Cause.RENUMBERED)  # a move first: nothing is cut, and no user need know


class Step(IntEnum):
    """What a renewal waits for: workers to say where they stand, the switches, workers to be up."""

    ASKING = 1
    WRITING = 2
    RAISING = 3


@dataclass
class Renewal:
    """`number` tells one from another, and is the generation that it makes. `ranks`: who takes part.

    `asked_at`, by rank: since when a worker that is connected has had something to answer. When the switches
    are written, ranks are the new ones, the job goes on with the collective `goes_on_with`, and `holder` has
    its result.
    """

    number: int
    cause: Cause
    reason: str
    ranks: Collection[int]
    since: float
    step: Step = Step.ASKING
    answers: dict[int, Renewing] = field(default_factory=dict)
    raised: set[int] = field(default_factory=set)
    asked_at: dict[int, float] = field(default_factory=dict)
    goes_on_with: int = 0
    holder: int | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """Who has not answered this step; nobody while switches are written."""
        if self.step is Step.WRITING:
            return ()
        answered = self.answers if self.step is Step.ASKING else self.raised
        return tuple(rank for rank in sorted(self.ranks) if rank not in answered)

    def has_stopped(self, rank: int) -> bool:
        """Whether a worker has closed its connections, and waits for others."""
        return self.step is not Step.ASKING or rank in self.answers

    def is_behind(self, generation: int) -> bool:
        """Whether a worker that knows of that generation takes no part: the database was an older one."""
        return generation > self.number or (generation == self.number and self.step is Step.ASKING)

    def stands(self, rank: int, standing: Renewing) -> bool:
        """A worker has said where it stands; whether that was the last one."""
        if standing.renewal != self.number or self.step is not Step.ASKING or rank not in self.ranks:
            return False
        self.answers[rank] = standing
        return not self.missing

    @property
    def collective(self) -> int:
        """The one to go on with: the first that some worker has not finished."""
        return rearmost([standing.collective for standing in self.answers.values()])

    @property
    def holders(self) -> tuple[int, ...]:
        """Those who have finished that one."""
        first = self.collective
        return tuple(rank for rank in sorted(self.answers) if self.answers[rank].collective != first)

    @property
    def apart(self) -> tuple[int, int] | None:
        """Two ranks that are further apart than workers can be, the rear one first; None if all is well."""
        first = self.collective
        rear = min(rank for rank, s in self.answers.items() if s.collective == first)
        for rank, standing in sorted(self.answers.items()):
            if (standing.collective - first) % SERIALS > 1:
                return rear, rank
        return None

    def written(self, new_ranks: Mapping[int, int], now: float) -> None:
        """The switches are written; who shall be up, by its rank before."""
        holders = self.holders
        self.holder = new_ranks[holders[0]] if holders else None
        self.goes_on_with = self.collective
        self.step, self.ranks = Step.RAISING, frozenset(new_ranks.values())
        self.asked_at = dict.fromkeys(self.ranks, now)

    def is_up(self, rank: int) -> bool:
        """A worker is up; whether that was the last one."""
        if self.step is not Step.RAISING or rank not in self.ranks:
            return False
        self.raised.add(rank)
        return not self.missing

    def late(self, connected: Collection[int], now: float, limit_s: float) -> tuple[int, ...]:
        """Who is connected, and has not answered for too long."""
        return tuple(
            rank
            for rank in self.missing
            if rank in connected and now - self.asked_at.get(rank, self.since) > limit_s
        )

    def forgive(self, seconds: float, now: float) -> None:
        """The controller itself was stopped for so long, until now."""
        self.since = min(now, self.since + seconds)
        self.asked_at = {rank: min(now, at + seconds) for rank, at in self.asked_at.items()}
