"""One renewal of a running job, as its workers answer (jobs/states.py). No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from controller.api.messages import Renewing
from controller.jobs.serials import SERIALS, furthest, rearmost
from controller.jobs.specs import Member
from controller.jobs.workers import WorkerState


class Cause(str, Enum):
    """The cause of a renewal."""

    SWITCH_RESTARTED = "switch_restarted"
    SWITCH_AWAY = "switch_away"
    SWITCH_BACK = "switch_back"
    WORKER_LOST = "worker_lost"
    INTERRUPTED = "interrupted"  # a renewal of which a controller that was restarted knows nothing
    MOVED_IN = "moved_in"  # a job that ran by ring moves into the switch
    RENUMBERED = "renumbered"  # before it has too many messages for one generation


PLANNED = (Cause.MOVED_IN, Cause.RENUMBERED)  # a move first: nothing is cut, and no user need know


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """The part of `Renewed` that is the same in all planes of a gang, under the same names."""

    gang_renewal: int = 0
    gang_collective: int | None = None
    ranks_from: int | None = None
    over: int = 0


@dataclass
class Renewal:
    """A renewal of `ranks`. `number` tells one from another, and is the generation that it makes.

    `waiting`: the ranks that have not answered the present step; none while switches are written. `asked_at`,
    by rank: since when a worker that is connected has had something to answer. Once the switches are written,
    ranks are the new ones, the job goes on with the collective `goes_on_with`, and `holder` has its result.
    `agreed`: the values agreed on with all planes of a gang.
    """

    number: int
    cause: Cause
    reason: str
    ranks: Collection[int]
    since: float
    waiting: set[int] = field(default_factory=set)
    answers: dict[int, Renewing] = field(default_factory=dict)
    asked_at: dict[int, float] = field(default_factory=dict)
    goes_on_with: int = 0
    holder: int | None = None
    agreed: Agreed = Agreed()

    def __post_init__(self) -> None:
        self.waiting = set(self.ranks)

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that are waited for, in order."""
        return tuple(sorted(self.waiting))

    def answered(self, rank: int, answer: Renewing) -> bool:
        """Note a worker's answer to Renew, and tell whether it was the last one."""
        self.answers[rank] = answer
        self.waiting.discard(rank)
        return not self.waiting

    def members(self, workers: Mapping[int, WorkerState]) -> list[Member]:
        """Return the workers that have answered as they will be: new QPs, ranks without gaps."""
        return [
            replace(
                worker.member,
                rank=new,
                qpn_out=self.answers[old].qpn_out,
                psn_out=self.answers[old].psn_out,
                qpn_in=self.answers[old].qpn_in,
                joined_as=worker.member.original_rank,
            )
            for new, (old, worker) in enumerate(sorted(workers.items()))
            if old in self.answers
        ]

    @property
    def collective(self) -> int:
        """The collective to go on with: the first that some worker has not finished."""
        return rearmost([answer.collective for answer in self.answers.values()])

    @property
    def holders(self) -> tuple[int, ...]:
        """The ranks that have finished that collective."""
        first = self.collective
        return tuple(rank for rank in sorted(self.answers) if self.answers[rank].collective != first)

    @property
    def apart(self) -> tuple[int, int] | None:
        """Two ranks further apart than workers can be, the rear one first; None if all is well."""
        first = self.collective
        rear = min(rank for rank, s in self.answers.items() if s.collective == first)
        for rank, answer in sorted(self.answers.items()):
            if (answer.collective - first) % SERIALS > 1:
                return rear, rank
        return None

    def written(self, new_ranks: Mapping[int, int], now: float) -> None:
        """Note that the switches are written. `new_ranks`: the workers that shall come up, by old rank."""
        holders = self.holders
        self.holder = new_ranks[holders[0]] if holders else None
        self.goes_on_with = self.collective
        self.waiting = set(new_ranks.values())
        self.asked_at = dict.fromkeys(self.waiting, now)

    def is_up(self, rank: int) -> bool:
        """Note that a worker is up, and tell whether it was the last one."""
        self.waiting.discard(rank)
        return not self.waiting

    def late(self, connected: Collection[int], now: float, limit_s: float) -> tuple[int, ...]:
        """Return the ranks that are connected, and have not answered for too long."""
        return tuple(
            rank
            for rank in self.missing
            if rank in connected and now - self.asked_at.get(rank, self.since) > limit_s
        )

    def forgive(self, seconds: float, now: float) -> None:
        """Extend times: the controller itself was stopped for so many seconds, until now."""
        self.since = min(now, self.since + seconds)
        self.asked_at = {rank: min(now, at + seconds) for rank, at in self.asked_at.items()}


def agree(planes: Iterable[Renewal], number: int, *, begins_anew: bool) -> Agreed:
    """Combine the answers of the workers of all planes; a job of its own is one plane.

    `number`: the number of this renewal of an elastic gang. `begins_anew`: the gang begins anew the first
    collective, of all GPUs, that nobody has finished.
    """
    answers = [answer for renewal in planes for answer in renewal.answers.values()]
    unfinished = [answer.gang_collective for answer in answers if answer.gang_collective is not None]
    called = [answer.called for answer in answers if answer.called is not None]
    return Agreed(
        gang_renewal=number,
        gang_collective=furthest(unfinished) if begins_anew else None,
        ranks_from=furthest(called) if called and len(called) == len(answers) else None,
        over=max((answer.over for answer in answers), default=0),
    )
