"""A worker among those of its machine, as a machine without I/O, threads or a clock: what its call may do.

The workers of a machine with several GPUs take every call together, in a *step* of one number: also a call of
no elements, one that is refused, and one that was cancelled. A call goes through these stages:

    IDLE ── begin ──► MEETING ── all mates are at this step ──► RUNNING ── has_result ──► FINISHING ──► IDLE
                        ▲   │                                   ▲    │                        │
                        │   └─ strict ─► ASKING ──► AGREEING ───┘    │ dropped                │ dropped
                        └────────────────────────────────────────────┴────────────────────────┘

MEETING: this worker has told its mates which call it is in (`Tell`), and waits for theirs. If one of them is
in a different call, the job fails with a MismatchError that names both. So nothing of a call happens before
all mates are known to have made it.

ASKING, AGREEING: a call that may go through switches only is refused on all GPUs if the plane of any of them
goes by ring. Each asks its plane, in a collective of that plane, so that all machines get the same answer,
and tells its mates. A move may come later: then the rest of the call goes by ring.

RUNNING: the call adds up inside the machine and in the planes.

FINISHING, in elastic jobs: the result is there, and is this worker's once no renewal asks where it stands
(`Member.finish_gang_collective`).

In an elastic job a renewal begins anew the first call that no GPU of the job has finished. Workers in that
call drop what they have, and meet again, after the renewal. A call that some GPU has finished is finished on
all. Mates meet after the same renewal, so they see the same workers in the job.

A change that only some may have heard of counts for all from the same step on. A call's root is one of the
workers that the job has as `Member.view_at` says for the number of the call. A call is refused on all GPUs,
in its step, where that worker has died, or where the job has had workers since (`Member.views_since`) that
cannot divide its rows.

A mate may be one step ahead: it passes a step when it has seen all others there, which is before they have
seen each other. So a `Notice` has a worker's last two calls. It cannot be two ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Final, NamedTuple


class Way(IntEnum):
    """The way in which a worker's plane takes a call that may go through switches only."""

    UNKNOWN = 0
    IN_NETWORK = 1
    BY_RING = 2


@dataclass(frozen=True)
class Asked:
    """A call, as its user made it. `what`: in words. `digest`: of all that mates have to call alike.

    `root`: a rank, as the job is at this call, and `member`: who that was when the call was made (None: as
    `seen` has it). `rows`: what the workers have to divide. `strict`: through switches only.
    """

    what: str
    digest: bytes
    root: int | None = None
    member: int | None = None
    rows: int | None = None
    strict: bool = False
    is_cancelled: bool = False


CANCELLED: Final = Asked("(cancelled)", bytes(32), is_cancelled=True)


@dataclass(frozen=True)
class Said:
    """One call, as a worker tells of it. `renewal`: after which it is, or was, in it."""

    step: int
    renewal: int
    way: Way
    what: str
    digest: bytes


@dataclass(frozen=True)
class Notice:
    """A worker's place. `lanes`: how many slots it has posted in each. `calls`: the last two."""

    step: int
    renewal: int
    lanes: tuple[int, ...]
    calls: tuple[Said, ...]

    def of(self, step: int) -> Said | None:
        """Return what was said of that step's call."""
        return next((said for said in self.calls if said.step == step), None)


class Place(NamedTuple):
    """The job after a renewal. `worlds`: its workers as this step's call sees them, and all later, to now."""

    renewal: int
    worlds: tuple[World, ...]

    @property
    def world(self) -> World:
        """The workers that it has now."""
        return self.worlds[-1]

    @property
    def seen(self) -> World:
        """The workers as this step's call sees them."""
        return self.worlds[0]


class World(NamedTuple):
    """The workers of the job. `members`: by rank, the rank that each joined with."""

    rank: int
    members: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of the workers."""
        return len(self.members)


@dataclass(frozen=True)
class Tell:
    """Order to tell the mates where this worker stands."""

    notice: Notice


@dataclass(frozen=True)
class Start:
    """Order to run the call, then `has_result`. `root`: its rank now. `lanes`: the slots to go on behind."""

    world: World
    renewal: int
    root: int
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """Order to ask the plane, in a collective of its own, whether it goes by ring; then `found_way`.

    `start`: as the call will be started.
    """

    start: Start


@dataclass(frozen=True)
class Finish:
    """Order to ask the plane's member if the result is this worker's, then `finished`; else `dropped`."""

    renewal: int


@dataclass(frozen=True)
class Return:
    """The call is over. `refused`: why nobody does it (UsageError)."""

    refused: str | None


@dataclass(frozen=True)
class Differ:
    """The mates have called different collectives: the job has to end."""

    reason: str


Action = Tell | Ask | Start | Finish | Return | Differ


class Stage(Enum):
    """The stages of a call."""

    IDLE = auto()
    MEETING = auto()
    ASKING = auto()
    AGREEING = auto()
    RUNNING = auto()
    FINISHING = auto()


_NOWHERE: Final = Place(0, (World(0, ()),))


@dataclass
class Gang:
    """A worker's gang: `local_rank` of `size` workers of a machine; the first joined as `first_rank`.

    `step`: the number of the call in its turn, or of the next.
    """

    local_rank: int
    size: int
    first_rank: int
    is_elastic: bool
    step: int = 0
    stage: Stage = Stage.IDLE
    _asked: Asked = CANCELLED
    _way: Way = Way.UNKNOWN
    _place: Place = _NOWHERE
    _lanes: tuple[int, ...] = ()
    _before: Said | None = None  # the last call
    _refused: str | None = None
    _mates: dict[int, Notice] = field(default_factory=dict)
    _left: dict[int, int] = field(default_factory=dict)
    _actions: list[Action] = field(default_factory=list)

    def actions(self) -> list[Action]:
        """Return what is to be done, in order; each once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def late(self) -> tuple[int, ...]:
        """The local ranks that this worker's call waits for."""
        if self.stage is Stage.MEETING:
            return tuple(rank for rank in self._others if not self._is_there(rank))
        if self.stage is Stage.AGREEING:
            return tuple(rank for rank in self._others if not self._way_of(rank))
        return ()

    # The call

    def begin(self, asked: Asked, lanes: tuple[int, ...], place: Place) -> None:
        """Begin a call, whose turn it is."""
        assert self.stage is Stage.IDLE
        self._asked = asked
        self._meet(lanes, place)

    def stands(self, place: Place) -> None:
        """Note where the plane stands: a renewal may be over while this worker meets its mates."""
        assert self.stage is Stage.MEETING
        if place != self._place:
            self._place = place
            self._tell()
            self._perhaps_start()

    def found_way(self, way: Way) -> None:
        """Note how the plane takes the call."""
        assert self.stage is Stage.ASKING
        self.stage, self._way = Stage.AGREEING, way
        self._tell()
        self._perhaps_agree()

    def has_result(self) -> None:
        """Note that the call has run here."""
        assert self.stage is Stage.RUNNING
        self._end(None)

    def finished(self) -> None:
        """Note that the result is this worker's."""
        assert self.stage is Stage.FINISHING
        self._return()

    def dropped(self, lanes: tuple[int, ...], place: Place) -> None:
        """Drop all that the call had here: a renewal begins it anew."""
        assert self.stage not in (Stage.IDLE, Stage.MEETING)
        self._actions.clear()
        self._meet(lanes, place)

    # The mates

    def heard(self, mate: int, notice: Notice) -> None:
        """Take a notice from another worker of the machine."""
        self._mates[mate] = notice
        self._perhaps_start()
        self._perhaps_agree()

    def left(self, mate: int, calls: int) -> None:
        """Note that another worker has left the job after so many calls."""
        self._left[mate] = calls
        self._perhaps_start()

    # What comes of it

    def _meet(self, lanes: tuple[int, ...], place: Place) -> None:
        self.stage, self._way, self._lanes, self._place = Stage.MEETING, Way.UNKNOWN, lanes, place
        self._tell()
        self._perhaps_start()

    def _tell(self) -> None:
        before = () if self._before is None else (self._before,)
        notice = Notice(self.step, self._place.renewal, self._lanes, (*before, self._said()))
        self._actions.append(Tell(notice))

    def _said(self) -> Said:
        return Said(self.step, self._place.renewal, self._way, self._asked.what, self._asked.digest)

    def _perhaps_start(self) -> None:
        if self.stage is not Stage.MEETING:
            return
        if differs := self._difference() or self._in_vain():
            self._actions.append(Differ(differs))
            return
        if not all(map(self._is_there, self._others)):
            return
        refused = self._refusal()
        if refused is not None or self._asked.is_cancelled:
            self._end(refused)
        elif self._asked.strict:
            self.stage = Stage.ASKING
            self._actions.append(Ask(self._as_it_starts()))
        else:
            self._start()

    def _perhaps_agree(self) -> None:
        if self.stage is not Stage.AGREEING or not all(map(self._way_of, self._others)):
            return
        ways = {self.local_rank: self._way, **{rank: self._way_of(rank) for rank in self._others}}
        by_ring = [str(rank) for rank, way in sorted(ways.items()) if way is Way.BY_RING]
        if by_ring:
            self._end(
                "in-network was asked for, but no switch aggregates for this job: the plane"
                f"{'s' * (len(by_ring) > 1)} of GPU {', '.join(by_ring)} of each machine "
                f"go{'es' * (len(by_ring) == 1)} by ring"
            )
        else:
            self._start()

    def _start(self) -> None:
        self.stage = Stage.RUNNING
        self._actions.append(self._as_it_starts())

    def _as_it_starts(self) -> Start:
        notices = [notice.lanes for notice in self._mates.values()]
        lanes = tuple(max(steps) for steps in zip(self._lanes, *notices, strict=True))
        return Start(self._place.world, self._place.renewal, self._root() or 0, lanes)

    def _end(self, refused: str | None) -> None:
        self._refused = refused
        if self.is_elastic:
            self.stage = Stage.FINISHING
            self._actions.append(Finish(self._place.renewal))
        else:
            self._return()

    def _return(self) -> None:
        self._before = self._said()
        self.stage, self.step = Stage.IDLE, self.step + 1
        self._actions.append(Return(self._refused))

    def _root(self) -> int | None:
        """Return the rank that the call's root has now; None if it has no root, or one that has died."""
        if self._asked.root is None:
            return None
        member = self._asked.member
        if member is None:
            member = self._place.seen.members[self._asked.root]
        return self._place.world.members.index(member) if member in self._place.world.members else None

    def _refusal(self) -> str | None:
        """Say why the present workers cannot do the call, which all of them find alike; None if they can."""
        asked = self._asked
        if asked.root is not None and asked.member is None and not 0 <= asked.root < self._place.seen.size:
            last = self._place.seen.size - 1
            return f"root {asked.root} is no rank of a job of {self._place.seen.size} workers (0..{last})"
        if asked.root is not None and self._root() is None:
            return f"{asked.what}: the worker that was the root has died"
        # Of any since: another machine may have refused the call before more workers died.
        sizes = (
            world.size for world in self._place.worlds if asked.rows is not None and asked.rows % world.size
        )
        if size := next(sizes, None):
            return f"{asked.what}: the first dimension, {asked.rows}, is not a multiple of {size} workers"
        return None

    # Who is where

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.size) if rank != self.local_rank)

    def _is_there(self, mate: int) -> bool:
        """Tell whether a mate is in this step after the same renewal, or past it: nothing held it up."""
        notice = self._mates.get(mate)
        return notice is not None and notice.step >= self.step and notice.renewal == self._place.renewal

    def _way_of(self, mate: int) -> Way:
        """Return how a mate's plane takes this call, as the mate found after the same renewal."""
        said = self._mates[mate].of(self.step)
        return Way.UNKNOWN if said is None or said.renewal != self._place.renewal else said.way

    def _difference(self) -> str:
        """Say who has called what in this step, if that differs; else return ""."""
        said = {self.local_rank: (self._asked.digest, self._asked.what)}
        for mate, notice in self._mates.items():
            theirs = notice.of(self.step)
            if theirs is not None:
                said[mate] = (theirs.digest, theirs.what)
        if len({digest for digest, _ in said.values()}) < 2:
            return ""
        return f"the workers called different collectives: {_who_called_what(said, self.first_rank)}"

    def _in_vain(self) -> str:
        """Say who among the mates that this step waits for has left; return "" if nobody has."""
        gone = {mate: calls for mate, calls in self._left.items() if calls <= self.step}
        if not gone:
            return ""
        told = (
            f"rank {self.first_rank + mate} has left after {calls} collective{'s' * (calls != 1)}"
            for mate, calls in sorted(gone.items())
        )
        return (
            f"the workers disagree about how many collectives there are: {'; '.join(told)}; "
            f"rank {self.first_rank + self.local_rank}: {self._asked.what}, as one more. All workers have to "
            "call the same collectives in the same order"
        )


def _who_called_what(said: Mapping[int, tuple[bytes, str]], first_rank: int) -> str:
    """Return the calls in words, with the ranks of the callers."""
    calls: dict[tuple[str, bytes], list[str]] = {}
    for mate, (digest, what) in sorted(said.items()):
        calls.setdefault((what, digest), []).append(str(first_rank + mate))
    alike = len({what for what, _ in calls}) < len(calls)
    return "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}: {what}"
        + (f" (with other settings, digest {digest.hex()[:8]})" if alike else "")
        for (what, digest), ranks in calls.items()
    )
