"""A worker among those of its machine: the gang that ships, on memory and a channel that are simulated.

Its mates see a worker's `Memory` after a moment: its newest notice, and what it has posted. As in the
channel, posts are taken by their number alone, and those of a call that is begun anew stay there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
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
from p4reduce.simulation.invariant import InvariantError

_KEPT: Final = 2  # posts that mates may still take: none is further ahead than by one call


class Owner(Protocol):
    """The worker whose gang it is, which has a plane, a user and a connection with the controller."""

    joined_as: int
    has_given_up: bool
    settings: tuple[int, int]  # the path MTU, and packets of a message

    @property
    def plan_size(self) -> int:
        """The number of machines that the job began with."""

    @property
    def over(self) -> bool: ...
    @property
    def in_job(self) -> Member: ...
    @property
    def work(self) -> Work:
        """The user's call that runs, or is made next."""

    def cancels(self, collective: int) -> bool:
        """Return whether its user cancels that call before its turn."""

    def go(self) -> None:
        """Make the call that is next, and begin in the plane what is to run there, if it may."""

    def nothing(self) -> Any:
        """Return the result of a call of no elements, which its planes do not see."""

    def gathered(self, collective: int) -> None:
        """Note that the machine has the results of all planes."""

    def call_is_over(self, result: Any, refused: str | None) -> None:
        """Note that the gang's call is over; whether it was done is the same on all GPUs."""

    def differ(self, reason: str) -> None:
        """Give up: workers of this machine have called different collectives."""

    def wake_mates(self) -> None:
        """Let them see, after a moment, what this worker has put into its memory."""


@dataclass(frozen=True)
class Post:
    """A plane's result of a step, after that renewal, as number `slot` of all that a worker has posted."""

    slot: int
    step: int
    renewal: int
    result: Any


@dataclass(frozen=True)
class Memory:
    """The memory that a worker shares with its mates.

    `lane`: the number of its next post; `posts`: the last ones. `left`: it has left the job after so many
    calls.
    """

    notice: Notice | None = None
    lane: int = 0
    posts: tuple[Post, ...] = ()
    left: int | None = None

    def with_post(self, post: Post) -> Memory:
        """Return it with one post more."""
        return replace(self, lane=post.slot + 1, posts=(*self.posts, post)[-_KEPT:])


class Mate(Protocol):
    """Another worker of the machine."""

    @property
    def memory(self) -> Memory:
        """The memory as this worker sees it."""


class InMachine:
    """A worker's gang. `mates`: the machine's other workers, by local rank."""

    def __init__(self, worker: Owner, local_rank: int, size: int, *, elastic: bool) -> None:
        self.worker = worker
        self.mates: dict[int, Mate] = {}
        first = worker.joined_as * size
        self.gang = Gang(local_rank, size, first, is_elastic=elastic)
        self.memory = Memory()
        self.post: Post | None = None  # of the call that runs
        self.start: Start | None = None  # what runs in the plane, or is to, is for this
        self.is_asking = False

    @property
    def root(self) -> int:
        """The rank in the plane of the machine that has the root of what runs."""
        assert self.start is not None
        return self.start.root // self.gang.size

    @property
    def is_running(self) -> bool:
        """True if the plane has something to do for the call."""
        return self.start is not None and self.post is None

    def begin(self) -> None:
        """Make the user's next call, if it may be made."""
        if self.gang.stage is Stage.IDLE:
            self.worker.in_job.called = self.gang.step + 1
            self.gang.begin(self._asked(), self._lanes, self._place())
            self._hear()
            self.act()

    def act(self) -> None:
        """Do what the gang wants."""
        while actions := self.gang.actions():
            for action in actions:
                match action:
                    case Tell(notice):
                        self.memory = replace(self.memory, notice=notice)
                        self.worker.wake_mates()
                    case Ask(start):
                        self.start, self.is_asking = start, True
                        self.worker.go()
                    case Start() as start:
                        self.start, self.is_asking = start, False
                        self.memory = replace(self.memory, lane=start.lanes[0])
                        if self.worker.work.is_empty:
                            self.came_to(self.worker.nothing())
                        else:
                            self.worker.go()
                    case Finish():
                        self._perhaps_finish()
                    case Return(refused):
                        post, self.start, self.post = self.post, None, None
                        self.worker.call_is_over(None if post is None else post.result, refused)
                    case Differ(reason):
                        self.worker.differ(reason)

    def came_to(self, result: Any) -> None:
        """Take the plane's result of the call, or of the question by which way it takes one."""
        assert self.start is not None
        if self.is_asking:
            self.is_asking, self.start = False, None
            self.gang.found_way(Way.BY_RING if result[0] else Way.IN_NETWORK)
        else:
            self.post = Post(self.memory.lane, self.gang.step, self.start.renewal, result)
            self.memory = self.memory.with_post(self.post)
            self.worker.wake_mates()
            self._perhaps_gathered()
        self.act()

    def look(self) -> None:
        """Look at the mates and the plane: a mate has come further, or the plane is renewed."""
        if self.worker.over or self.worker.has_given_up:
            return
        self._hear()
        self._look_at_plane()
        self._perhaps_gathered()
        self._perhaps_finish()
        self.act()
        self.worker.go()

    def drop(self) -> None:
        """Drop what the call has: a renewal begins it anew."""
        self.start, self.post, self.is_asking = None, None, False
        self.gang.dropped(self._lanes, self._place())
        self.act()

    def leave(self) -> None:
        """Let the mates know that there are no more calls."""
        self.memory = replace(self.memory, left=self.gang.step)
        self.worker.wake_mates()

    @property
    def is_dropped(self) -> bool:
        """True if the renewal that is over has begun anew the call that the gang is in."""
        if not self.gang.is_elastic or self.gang.stage in (Stage.IDLE, Stage.MEETING):
            return False
        return self.worker.in_job.begun_anew > self._renewal

    @property
    def _renewal(self) -> int:
        """The renewal after which the call has been started."""
        notice = self.memory.notice
        return 0 if notice is None else notice.renewal

    @property
    def _lanes(self) -> tuple[int, ...]:
        return (self.memory.lane,)

    def _hear(self) -> None:
        for rank, mate in self.mates.items():
            if mate.memory.notice is not None:
                self.gang.heard(rank, mate.memory.notice)
            if mate.memory.left is not None:
                self.gang.left(rank, mate.memory.left)

    def _look_at_plane(self) -> None:
        if self.gang.is_elastic and self.gang.stage is Stage.MEETING:
            self.gang.stands(self._place())

    def _perhaps_gathered(self) -> None:
        post = self.post
        if post is None or self.gang.stage is not Stage.RUNNING:
            return
        if all(mate.memory.lane > post.slot for mate in self.mates.values()):
            for rank, mate in self.mates.items():
                self._check(post, rank, mate.memory)
            self.worker.gathered(post.step)
            self.gang.has_result()

    def _check(self, own: Post, rank: int, memory: Memory) -> None:
        """Require that a mate's post of that number is of the same call, after the same renewal."""
        theirs = next((post for post in memory.posts if post.slot == own.slot), None)
        if theirs is None or (theirs.step, theirs.renewal) != (own.step, own.renewal):
            raise InvariantError(
                f"{self.worker} takes post {own.slot} of GPU {rank} for step {own.step} after renewal "
                f"{own.renewal}: it is {theirs}"
            )

    def _perhaps_finish(self) -> None:
        if self.gang.stage is Stage.FINISHING and self.worker.in_job.finish_gang_collective():
            self.gang.finished()

    def _asked(self) -> Asked:
        worker = self.worker
        if worker.cancels(self.gang.step):
            return CANCELLED
        work = worker.work
        digest = hashlib.sha256(repr((_compared(work), worker.settings)).encode()).digest()
        root = work.root % worker.plan_size * self.gang.size if work.name == "broadcast" else None
        return Asked(words_of(work), digest, root=root, strict=work.strict)

    def _place(self) -> Place:
        member = self.worker.in_job
        if not self.gang.is_elastic:
            return Place(0, (self._world_of(member.view),))
        return Place(member.gang_renewal, tuple(map(self._world_of, member.views_since(self.gang.step))))

    def _world_of(self, view: View) -> World:
        size = self.gang.size
        members = tuple(machine * size + gpu for machine in view.members for gpu in range(size))
        return World(view.rank * size + self.gang.local_rank, members)


def words_of(work: Work) -> str:
    """Return a call as mates name it when calls differ."""
    return f"{work.name} of {work.elements} {work.dtype} by {work.reduction}, {work.module}"


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
