"""A worker among those of its machine: the gang that ships, on memory and a channel that are simulated.

What the shared memory of a machine does is done here in simulated time: mates see a worker's newest notice
after a moment, and each other's parts of a result when they have them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from host_agent.machine.gang import (
    CANCELLED,
    Ask,
    Asked,
    Differ,
    Finish,
    Gang,
    Notice,
    Place,
    Return,
    Stage,
    Start,
    Tell,
    Way,
    World,
)
from host_agent.member import Member
from host_agent.membership import View
from p4reduce.simulation.faults.schedule import Work

_LANES: Final = (0, 0)  # how the channel's slots go round is not simulated


class Owner(Protocol):
    """The worker whose gang it is, which has a plane, a user and a connection with the controller."""

    joined_as: int
    has_given_up: bool
    settings: tuple[int, int]  # the path MTU, and packets of a message

    @property
    def plan_size(self) -> int:
        """How many machines the job began with."""

    @property
    def over(self) -> bool: ...
    @property
    def in_job(self) -> Member: ...
    @property
    def work(self) -> Work:
        """The user's call that runs, or is made next."""

    def cancels(self, collective: int) -> bool:
        """Whether its user cancels that call before its turn."""

    def go(self) -> None:
        """Make the call that is next, and begin in the plane what is to run there, if it may."""

    def nothing(self) -> Any:
        """The result of a call of no elements, which its planes do not see."""

    def gathered(self, mates: Iterable[Any], collective: int) -> None:
        """The machine has the results of all planes."""

    def call_is_over(self, result: Any, refused: str | None) -> None:
        """The gang's call is over; whether it was done is the same on all GPUs."""

    def differ(self, reason: str) -> None:
        """Workers of this machine have called different collectives."""

    def wake(self, mate: Any) -> None:
        """Let a mate see, after a moment, what this worker has put into its memory."""


@dataclass(frozen=True)
class Part:
    """A plane's result of a step, after that renewal."""

    step: int
    renewal: int
    result: Any


class InMachine:
    """A worker's gang. `mates`: those of the machine's other workers, by local rank."""

    def __init__(self, worker: Owner, local_rank: int, size: int, *, elastic: bool) -> None:
        self.worker = worker
        self.mates: dict[int, InMachine] = {}
        first = worker.joined_as * size
        self.gang = Gang(local_rank, size, first, is_elastic=elastic)
        self.notice: Notice | None = None
        self.part: Part | None = None
        self.start: Start | None = None  # what runs in the plane, or is to, is for this
        self.is_asking = False
        self.has_left: int | None = None  # after so many calls

    @property
    def root(self) -> int:
        """The rank in the plane of the machine that has the root of what runs."""
        assert self.start is not None
        return self.start.root // self.gang.size

    @property
    def is_running(self) -> bool:
        """The plane has something to do for the call."""
        return self.start is not None and self.part is None

    def begin(self) -> None:
        """The user makes the next call, if it may."""
        if self.gang.stage is Stage.IDLE:
            self.worker.in_job.called = self.gang.step + 1
            self.gang.begin(self._asked(), _LANES, self._place())
            for mate in self.mates.values():
                self._look(mate)
            self.act()

    def act(self) -> None:
        """Do what the gang wants."""
        while actions := self.gang.actions():
            for action in actions:
                match action:
                    case Tell(notice):
                        self.notice = notice
                        self._wake()
                    case Ask(start):
                        self.start, self.is_asking = start, True
                        self.worker.go()
                    case Start() as start:
                        self.start, self.is_asking = start, False
                        if self.worker.work.elements or self.worker.work.name == "barrier":
                            self.worker.go()
                        else:
                            self.came_to(self.worker.nothing())
                    case Finish():
                        self._perhaps_finish()
                    case Return(refused):
                        part, self.start, self.part = self.part, None, None
                        self.worker.call_is_over(None if part is None else part.result, refused)
                    case Differ(reason):
                        self.worker.differ(reason)

    def came_to(self, result: Any) -> None:
        """The plane has done its part of the call, or of the question how it takes one."""
        assert self.start is not None
        if self.is_asking:
            self.is_asking, self.start = False, None
            self.gang.found_way(Way.BY_RING if result[0] else Way.IN_NETWORK)
        else:
            self.part = Part(self.gang.step, self.start.renewal, result)
            self._wake()
            self._perhaps_gathered()
        self.act()

    def look(self) -> None:
        """A mate has come further, or the plane is renewed."""
        if self.worker.over or self.worker.has_given_up:
            return
        for mate in self.mates.values():
            self._look(mate)
        self._look_at_plane()
        self._perhaps_gathered()
        self._perhaps_finish()
        self.act()
        self.worker.go()

    def drop(self) -> None:
        """Drop what the call has: a renewal begins it anew."""
        self.start, self.part, self.is_asking = None, None, False
        self.gang.dropped(_LANES, self._place())
        self.act()

    @property
    def is_dropped(self) -> bool:
        """The renewal that is over has begun anew what the gang is in."""
        if not self.gang.is_elastic or self.gang.stage in (Stage.IDLE, Stage.MEETING):
            return False
        return self.worker.in_job.begun_anew > self._renewal

    @property
    def _renewal(self) -> int:
        """After which the call has been started."""
        notice = self.notice
        return 0 if notice is None else notice.renewal

    def _look(self, mate: InMachine) -> None:
        rank = mate.gang.local_rank
        if mate.notice is not None:
            self.gang.heard(rank, mate.notice)
        if mate.has_left is not None:
            self.gang.left(rank, mate.has_left)

    def _look_at_plane(self) -> None:
        if self.gang.is_elastic and self.gang.stage is Stage.MEETING:
            self.gang.stands(self._place())

    def _perhaps_gathered(self) -> None:
        part = self.part
        if part is None or self.gang.stage is not Stage.RUNNING:
            return
        if all(mate._has(part) for mate in self.mates.values()):
            self.worker.gathered([mate.worker for mate in self.mates.values()], part.step)
            self.gang.has_result()

    def _has(self, part: Part) -> bool:
        """Tell whether this worker has put its own part of that result where its mates read it."""
        own = self.part
        if own is not None and (own.step, own.renewal) == (part.step, part.renewal):
            return True
        return self.gang.step > part.step

    def _perhaps_finish(self) -> None:
        if self.gang.stage is Stage.FINISHING and self.worker.in_job.finish_gang_collective():
            self.gang.finished()

    def _wake(self) -> None:
        for mate in self.mates.values():
            self.worker.wake(mate.worker)

    def _asked(self) -> Asked:
        worker = self.worker
        if worker.cancels(self.gang.step):
            return CANCELLED
        work = worker.work
        words = f"{work.name} of {work.elements} {work.dtype} by {work.reduction}, {work.module}"
        digest = hashlib.sha256(repr((_compared(work), worker.settings)).encode()).digest()
        root = work.root % worker.plan_size * self.gang.size if work.name == "broadcast" else None
        return Asked(words, digest, root=root, strict=work.strict)

    def _place(self) -> Place:
        member = self.worker.in_job
        if not self.gang.is_elastic:
            return Place(0, (self._world_of(member.view),))
        return Place(member.gang_renewal, tuple(map(self._world_of, member.views_since(self.gang.step))))

    def _world_of(self, view: View) -> World:
        size = self.gang.size
        members = tuple(machine * size + gpu for machine in view.members for gpu in range(size))
        return World(view.rank * size + self.gang.local_rank, members)


def _compared(work: Work) -> tuple[object, ...]:
    return (
        work.module,
        work.name,
        work.dtype,
        work.elements,
        work.reduction,
        work.root,
        work.half,
        work.strict,
    )
