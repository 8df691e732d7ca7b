"""The interface of a worker's membership in a job; `controller_session.py` implements it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controller.api.messages import (
    Called,
    Compare,
    EndCause,
    Ended,
    Held,
    HoldAt,
    Join,
    Moved,
    Pause,
    Paused,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Start,
    Up,
)
from host_agent.errors import CommunicatorError, JobEndedError, MismatchError, UsageError, WorkerLostError


def error_of(ended: Ended, *, own_rank: int) -> CommunicatorError:
    """Return the error that a worker of that rank raises when it hears that its job is over."""
    if ended.cause is EndCause.MISMATCH:
        return MismatchError(ended.reason)
    by_a_worker = ended.cause in (EndCause.WORKER_LOST, EndCause.WORKER_ABORTED)
    by_itself = ended.rank == own_rank and ended.plane is None
    kind = WorkerLostError if by_a_worker and not by_itself else JobEndedError
    return kind(
        ended.reason,
        rank=ended.rank,
        host=ended.host,
        first_message=ended.first_message,
        plane=ended.plane,
    )


def require_rows_for(world_size: int, shape: tuple[int, ...]) -> int:
    """Return how many rows each worker gets of an array of that shape. UsageError."""
    if not shape or shape[0] % world_size:
        raise UsageError(
            f"reduce_scatter: the first dimension of shape {shape} is not a multiple of {world_size} workers"
        )
    return shape[0] // world_size


def require_root(root: int, world_size: int) -> None:
    """Raise UsageError where a collective's root is not a rank of the job."""
    if not 0 <= root < world_size:
        raise UsageError(f"root {root} is no rank of a job of {world_size} workers (0..{world_size - 1})")


Request = Pause | HoldAt | Moved | Renew | Renewed | Start | Compare  # what `Member.hear` takes
Answer = Paused | Held | Renewing | Up | Called


@dataclass(frozen=True, kw_only=True)
class View:
    """The workers in the job, as a worker of that rank sees them in one generation. `ring`: as in `Ready`.

    `members`: by rank, the rank that each worker joined with, by which it is known for as long as it lives.
    """

    rank: int
    world_size: int
    ring: tuple[int, ...] = ()
    members: tuple[int, ...] = ()

    @classmethod
    def first(cls, rank: int, world_size: int, ring: tuple[int, ...] = ()) -> View:
        """Return the view at the job's beginning."""
        return cls(rank=rank, world_size=world_size, ring=ring, members=tuple(range(world_size)))

    @property
    def member(self) -> int:
        """The rank that this worker joined with."""
        return self.members[self.rank]

    def member_of(self, rank: int) -> int | None:
        """Return the rank that this rank's worker joined with; None: it is not a rank of the job."""
        return self.members[rank] if 0 <= rank < self.world_size else None

    def place_of(self, member: int) -> int | None:
        """Return the rank of the worker that joined as `member`; None: it is not in the job any more."""
        return self.members.index(member) if member in self.members else None

    def after(self, renewed: Renewed) -> View:
        """Return the view of the new generation."""
        ready = renewed.ready
        if not ready.world_size:
            return View(rank=self.rank, world_size=self.world_size, ring=ready.ring, members=self.members)
        return View(
            rank=ready.rank,
            world_size=ready.world_size,
            ring=ready.ring,
            members=renewed.members or self.members,
        )


@dataclass(frozen=True, kw_only=True)
class MembershipChange:
    """Death of workers of an elastic job. `lost`: their ranks, as they were numbered before this."""

    old_rank: int
    rank: int
    old_world_size: int
    world_size: int
    lost: tuple[int, ...]
    generation: int
    reason: str


class Membership(Protocol):
    """One session with the controller. Heartbeats run inside it; all calls may come from any thread."""

    def join(self, request: Join, *, timeout_s: float) -> Ready:
        """Wait for all workers. JobRefusedError, ControllerUnreachableError."""
        ...

    def up(self, *, timeout_s: float) -> None:
        """Say that this worker's QPs are ready, and wait until everybody's are."""
        ...

    def on_ended(self, callback: Callable[[Ended], None]) -> None:
        """Call `callback` once, from any thread, when the job ends early (at once if it has)."""
        ...

    def listen(self, callback: Callable[[Request], None]) -> None:
        """Call `callback`, which must not block, with every request to this worker, earlier ones included.

        After the session with the controller broke, a request may come again, and needs an answer again.
        """
        ...

    def say(self, answer: Answer) -> None:
        """Answer a request; Compare may get several answers. Does not wait."""
        ...

    def who_is_missing(self, *, timeout_s: float) -> str:
        """Say in a sentence whom this worker's collective waits for, as the controller knows.

        If the controller does not answer in time, the sentence says that.
        """
        ...

    def counted(self, generation: int, messages: int) -> None:
        """Note for the next heartbeat how many messages have been numbered in a generation. Does not wait."""
        ...

    def runs(self, collective: int | None) -> None:
        """Note for the next heartbeat the collective that this worker is in, or None. Does not wait."""
        ...

    def confirm(self, *, timeout_s: float) -> bool:
        """Return whether this worker is surely in its job: one that was given up must not return results.

        True at once if the job is not elastic, or the controller has said so lately; otherwise it asks. False
        if there is no answer in time, or if the job has ended or this worker has closed its session before.
        """
        ...

    def abort(self, reason: str, mismatch: Called | None = None, plane: int | None = None) -> None:
        """End the job for everybody, and do not wait. `mismatch`: this worker's call, which another has not
        made. `plane`: the plane of another GPU of this machine that has failed.
        """
        ...

    def leave(self, *, timeout_s: float, collectives: int | None = None) -> None:
        """Wait until all workers leave; only then may QPs be taken down. `collectives`: so many ended."""
        ...

    def close(self) -> None:
        """End the session; idempotent."""
        ...
