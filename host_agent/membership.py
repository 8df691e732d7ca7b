"""A worker's membership in a job, as the layers above see it; `controller_session.py` is the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Protocol

from host_agent.errors import CommunicatorError, JobEndedError, MismatchError, WorkerLostError


class Mode(IntEnum):
    """Where the job's sums are made."""

    IN_NETWORK = 1
    RING = 2


@dataclass(frozen=True, kw_only=True)
class Backup:
    """An interface on which workers can reach each other without the switches; `path_mtu` in bytes."""

    mac: str
    ip: IPv4Address
    path_mtu: int


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """What a worker tells the controller. MACs as text, PSNs and QPNs 24 bit, `path_mtu_max` in bytes."""

    job: str
    world_size: int
    rank: int
    mac: str
    ip: IPv4Address
    qpn_out: int
    psn_out: int
    qpn_in: int
    path_mtu_max: int
    hostname: str
    rnr_nak: bool = (
        False  # a NIC repeats by itself: the switch shall answer what meets a straggler with RNR NAKs
    )
    tenant: str = ""  # whose quota the job's slots count against; empty: the default one
    join_token: str = field(default="", repr=False)
    elastic: bool = False  # the job shall go on without workers that die
    selective: bool = False  # lost packets alone shall be sent again, where all workers ask for it
    backup: Backup | None = None


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A worker next to us on the ring."""

    rank: int
    mac: str
    ip: IPv4Address
    qpn_out: int
    psn_out: int
    qpn_in: int
    hostname: str = ""


@dataclass(frozen=True, kw_only=True)
class RcParameters:
    """What an RDMA device's queue pairs are brought up with, in the encodings of ibv_modify_qp."""

    timeout: int = 16  # 5 bits: 4.096 us * 2^timeout until an unacknowledged packet is sent again; 0 is never
    retry_count: int = 7  # 3 bits: how often in a row, before the queue pair gives up
    rnr_retry: int = 7  # 3 bits: the same for RNR NAKs; 7 is for ever
    min_rnr_timer: int = 12  # 5 bits: how long our own RNR NAKs ask a sender to wait; 12 is 0.64 ms


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The job as the controller has set it up: same on all workers, but for the neighbours.

    `ring`: all ranks, each followed by its successor (empty: by rank). `mode` is the one to begin in. `rank`
    and `world_size` may become others than those that it joined with; world size 0: they are those. `backup`:
    the neighbours' addresses are those of their backup interfaces. `selective`: all send lost packets again
    alone.
    """

    job_id: int
    generation: int
    window: int
    message_packets: int
    path_mtu: int
    mode: Mode
    mode_reason: str
    successor: Neighbour
    predecessor: Neighbour
    heartbeat_s: float
    rc: RcParameters = RcParameters()
    ring: tuple[int, ...] = ()
    rank: int = 0
    world_size: int = 0
    backup: bool = False
    selective: bool = False


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The job is over: why, and by which rank on which host (None, "": not a worker's doing).

    `first_message`: the first that the rank did not contribute to, of those that others wait for.
    `mismatch`: workers have called different things, and the reason names each one's call.
    """

    reason: str
    rank: int | None = None
    host: str = ""
    first_message: int | None = None
    mismatch: bool = False


def error_of(ended: Ended, *, own_rank: int) -> CommunicatorError:
    """What a worker of that rank raises when it hears that its job is over."""
    if ended.mismatch:
        return MismatchError(ended.reason)
    lost = ended.rank is not None and ended.rank != own_rank
    kind = WorkerLostError if lost else JobEndedError
    return kind(ended.reason, rank=ended.rank, host=ended.host, first_message=ended.first_message)


@dataclass(frozen=True)
class Called:
    """What a worker has called. `what`: in words; empty: nothing so far."""

    collective: int
    what: str


@dataclass(frozen=True)
class Pause:
    """A running job is to move: start no collective, and answer `paused`."""

    move: int


@dataclass(frozen=True)
class HoldAt:
    """Run the collectives before this one; when nothing is in flight, answer `held`."""

    move: int
    collective: int


@dataclass(frozen=True)
class Moved:
    """Go on, in this mode. `reason`: why not in the network."""

    move: int
    mode: Mode
    reason: str


MoveStep = Pause | HoldAt | Moved


@dataclass(frozen=True)
class Renew:
    """The job goes on under a new generation: send nothing more in this one, and answer `renewing`."""

    renewal: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Renewing:
    """Where this worker stands: fresh queue pairs, and how many collectives it has finished (modulo 2^32)."""

    renewal: int
    qpn_out: int
    psn_out: int
    qpn_in: int
    collective: int


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """The new generation. `collective`: the first that some worker has not finished.

    `holder`: a rank (new numbering) that has, and gives its result to the others; None: nobody has.
    `members`: by rank (new numbering), the rank that each worker joined with; empty: as before.
    """

    renewal: int
    ready: Ready
    collective: int
    holder: int | None = None
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Started:
    """All workers' connections are ready."""


RenewalStep = Renew | Renewed | Started


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a worker sits in its job now. `ring`: as in `Ready`.

    `members`: by rank, the rank that each worker joined with, by which it is known for as long as it lives.
    """

    rank: int
    world_size: int
    ring: tuple[int, ...] = ()
    members: tuple[int, ...] = ()

    @classmethod
    def first(cls, rank: int, world_size: int, ring: tuple[int, ...] = ()) -> Seat:
        """As the job begins."""
        return cls(rank=rank, world_size=world_size, ring=ring, members=tuple(range(world_size)))

    @property
    def member(self) -> int:
        """The rank that this worker joined with."""
        return self.members[self.rank]

    def after(self, renewed: Renewed) -> Seat:
        """The seat in the new generation."""
        ready = renewed.ready
        if not ready.world_size:
            return Seat(rank=self.rank, world_size=self.world_size, ring=ready.ring, members=self.members)
        return Seat(
            rank=ready.rank,
            world_size=ready.world_size,
            ring=ready.ring,
            members=renewed.members or self.members,
        )


@dataclass(frozen=True, kw_only=True)
class MembershipChange:
    """Workers of an elastic job have died. `lost`: their ranks, as they were numbered before this."""

    old_rank: int
    rank: int
    old_world_size: int
    world_size: int
    lost: tuple[int, ...]
    generation: int
    reason: str


class Membership(Protocol):
    """One session with the controller. Heartbeats run inside it; all calls may come from any thread."""

    def join(self, request: JoinRequest, *, timeout_s: float) -> Ready:
        """Wait for all workers. JobRefusedError, ControllerUnreachableError."""
        ...

    def up(self, *, timeout_s: float) -> None:
        """Say that this worker's QPs are ready, and wait until everybody's are."""
        ...

    def on_ended(self, callback: Callable[[Ended], None]) -> None:
        """Call `callback` once, from any thread, when the job ends early (at once if it has)."""
        ...

    def on_move(self, callback: Callable[[MoveStep], None]) -> None:
        """Call `callback`, which must not block, with every step of a move, those of before included.

        A step may come again, after the session with the controller broke, and is then to be answered again.
        """
        ...

    def paused(self, move: int, next_collective: int) -> None:
        """The first collective that this worker has not started. Does not wait."""
        ...

    def held(self, move: int) -> None:
        """Nothing is in flight. Does not wait."""
        ...

    def on_renewal(self, callback: Callable[[RenewalStep], None]) -> None:
        """Call `callback`, which must not block, with every step of a renewal, those of before included.

        A step may come again, as those of moves.
        """
        ...

    def renewing(self, renewing: Renewing) -> None:
        """Where this worker stands; its old connections send nothing any more. Does not wait."""
        ...

    def up_again(self) -> None:
        """This worker's connections of the new generation are ready. Does not wait."""
        ...

    def counted(self, generation: int, messages: int) -> None:
        """So many messages have been numbered in a generation: for the next heartbeat. Does not wait."""
        ...

    def runs(self, collective: int | None) -> None:
        """This worker is in a collective now, or in none: for the next heartbeat. Does not wait."""
        ...

    def confirm(self, *, timeout_s: float) -> bool:
        """Whether this worker is in its job now, for sure: who is given up must not return results.

        At once where the job is not elastic, or the controller has said so lately; else it is asked. False:
        it did not answer in time; or, before that, the job has ended or this worker has closed its session.
        """
        ...

    def on_compare(self, callback: Callable[[int], None]) -> None:
        """Call `callback`, which must not block, with a collective of which somebody wants to know what this
        worker has called. It is answered by `called`, now, and again when there is more to say.
        """
        ...

    def called(self, called: Called) -> None:
        """What this worker has called. Does not wait."""
        ...

    def abort(self, reason: str, mismatch: Called | None = None) -> None:
        """End the job for everybody, and do not wait. `mismatch`: as another has not called this."""
        ...

    def leave(self, *, timeout_s: float, collectives: int | None = None) -> None:
        """Wait until all workers leave; only then may QPs be taken down. `collectives`: so many ended."""
        ...

    def close(self) -> None:
        """End the session; idempotent."""
        ...
