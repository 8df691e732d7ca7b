"""A worker's membership in a job, as the layers above see it; `controller_session.py` is the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Protocol


class Mode(IntEnum):
    """Where the job's sums are made."""

    IN_NETWORK = 1
    RING = 2


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

    `ring`: all ranks, each followed by its successor (empty: by rank). `mode` is the one to begin in.
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


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The job is over: why, and by which rank (None: not a worker's doing)."""

    reason: str
    rank: int | None = None


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

    def held(self, move: int, psn: int) -> None:
        """Nothing is in flight; the next PSN of QP_out. Does not wait."""
        ...

    def abort(self, reason: str) -> None:
        """End the job for everybody. Does not wait."""
        ...

    def leave(self, *, timeout_s: float) -> None:
        """Wait until all workers leave; only then may QPs be taken down."""
        ...

    def close(self) -> None:
        """End the session; idempotent."""
        ...
