"""The controller's record of a job: its state machine, its workers' sessions, its allocations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from controller.api.messages import Ended, FromController, Left
from controller.database.store import StoredJob
from controller.jobs.job import Job
from controller.jobs.specs import Phase, Plan
from controller.slots.allocation import Allocation


class Mailbox:
    """Messages for a worker. After None in `events` the session is over for the controller.

    `told`: the job's end, once the events say so. `token`: the worker's, once it has one.
    """

    def __init__(self, rank: int, token: bytes = b"") -> None:
        self.events: asyncio.Queue[FromController | None] = asyncio.Queue()
        self.rank = rank
        self.token = token
        self.told: Left | Ended | None = None


@dataclass
class Queueing:
    """A job in the queue for slots. `why`: why its last move failed."""

    since: float
    tries: int = 0
    not_before: float = 0.0
    why: str = ""


@dataclass
class Retries:
    """Times of the next tries at what a job's generation needs, and since when that has failed.

    `failing_since`: the switches could not be written; `rebuild`: the generation to write again, and when.
    `save_at`: when to save the generation again. `away_since`: a switch that the job needs is away;
    `warned_at`: when the log last said so.
    """

    failing_since: float | None = None
    rebuild: tuple[int, float] | None = None
    save_at: float | None = None
    away_since: float | None = None
    warned_at: float | None = None


@dataclass(eq=False)
class Record:
    """A job, its workers' sessions by rank, and its allocations by switch (empty: it has none anywhere).

    `planes`: the planes of its gang that have begun, in order, itself among them; all of them share the list.
    A job of its own is a gang of one plane. The `leader` of a gang has what concerns its slots: its place in
    the queue, and the number of slots a region that it was `granted` when it was let in. `leases`, by token:
    until when workers that an elastic gang goes on without may return results, unless they end their sessions
    before.

    Work under way: `installing`: switches are being written; `rebuilding`: the generation that is being
    rebuilt; `cleaning`: it is being taken away; `when_written`: calls that wait until switches are not being
    written.

    Waiting: `waits_for`: the reason in words; `retries`; `queueing`: its place in the queue, if it has one;
    `moving_out`: the reason, if it is moving out; `allocated_at`: when it got its slots; `renumbered_at`: the
    last try to renumber it; `refused`: how often in this renewal workers offered queue pairs whose numbers
    they cannot have; `stuck`: no spine can be used, which has been logged; `without`: spines that had no room
    for it, which has been logged.

    Remains: `before`: what earlier generations have left on switches; `free_at`: when the guards of an ended
    job may go; `flows_removed`: the switches that hold only its guards; `ended_at`: None also if that was
    before a restart; `deleted`: nobody asks for it any more; `unheard`: no worker has heard of its
    generation, and the database forgets it when no switch has anything of it.

    Not in the database: `unsaved`: its generation is not saved; `behind`: earlier ones that are not. `later`,
    by token, for a database from a backup: the later generation that a worker came back with, and its QPs
    there.
    """

    job: Job
    allocations: dict[str, Allocation] = field(default_factory=dict)
    sessions: dict[int, Mailbox] = field(default_factory=dict)
    installing: bool = False
    rebuilding: int | None = None
    cleaning: bool = False
    when_written: list[Callable[[], None]] = field(default_factory=list)
    waits_for: str = ""
    retries: Retries = field(default_factory=Retries)
    queueing: Queueing | None = None
    moving_out: str | None = None
    allocated_at: float = 0.0
    renumbered_at: float | None = None
    refused: int = 0
    stuck: bool = False
    without: set[str] = field(default_factory=set)
    before: list[Record] = field(default_factory=list)
    free_at: float = 0.0
    flows_removed: set[str] = field(default_factory=set)
    ended_at: float | None = None
    deleted: bool = False
    unheard: bool = False
    unsaved: bool = False
    behind: list[StoredJob] = field(default_factory=list)
    later: dict[bytes, tuple[int, frozenset[int]]] = field(default_factory=dict)
    granted: int | None = None
    leases: dict[bytes, float] = field(default_factory=dict)
    planes: list[Record] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.planes = self.planes or [self]

    @property
    def live_planes(self) -> list[Record]:
        """The planes that are not over: all, until their workers leave or the gang ends."""
        return [plane for plane in self.planes if plane.job.live]

    @property
    def leader(self) -> Record:
        """The first live plane of its gang; itself if all are over."""
        return next(iter(self.live_planes), self)

    @property
    def is_whole(self) -> bool:
        """True if all planes of its gang are there, and none is over."""
        gang = self.job.spec.gang
        return len(self.live_planes) == (1 if gang is None else gang.planes)

    @property
    def what(self) -> str:
        """Name with its kind, "job j" or "gang g", for messages."""
        gang = self.job.spec.gang
        return f"job {self.job.spec.name}" if gang is None else f"gang {gang.name}"

    @property
    def generation(self) -> int | None:
        """The generation; None before there is a plan."""
        return self.job.plan.generation if self.job.plan is not None else None

    @property
    def leaves(self) -> tuple[str, ...]:
        """The leaves that it has an allocation on."""
        return tuple(name for name, allocation in self.allocations.items() if allocation.role == "leaf")

    @property
    def leaves_first(self) -> list[Allocation]:
        """The allocations, those on leaves before those on spines, by switch."""
        return sorted(self.allocations.values(), key=lambda allocation: (allocation.role, allocation.switch))


def stored(
    job: Job,
    plan: Plan,
    allocations: Iterable[Allocation],
    phase: Phase,
    tokens: Mapping[int, bytes] | None = None,
) -> StoredJob:
    """Return the job as the database keeps it; `tokens` by rank if workers do not have theirs yet."""
    return StoredJob(
        spec=job.spec,
        explicit=job.explicit,
        plan=plan,
        workers=tuple(
            (worker.member, tokens[rank] if tokens else worker.token)
            for rank, worker in sorted(job.workers.everybody.items())
        ),
        dropped=job.workers.departures,
        phase=phase if job.outcome is None else Phase.ENDED,
        outcome=job.outcome,
        allocations=tuple(sorted(allocations, key=lambda allocation: allocation.switch)),
    )
