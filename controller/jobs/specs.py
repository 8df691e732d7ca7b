"""Descriptions of a job: its workers, its plan, the times that its workers may be silent."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv4Address

from controller.api.messages import Mode, RcParameters, Worker


class Phase(IntEnum):
    """Phase of a job, with the numbers of controller.proto."""

    CREATED = 1
    JOINING = 2
    INSTALLING = 3
    READY = 4
    RUNNING = 5
    ENDED = 6


@dataclass(frozen=True, kw_only=True)
class Backup:
    """The interface on which a worker can be reached without the switches; `path_mtu` in bytes."""

    mac: str
    ip: IPv4Address
    path_mtu: int


@dataclass(frozen=True, kw_only=True)
class Member(Worker):
    """A worker as it joined. `host` is its name in the configuration; `path_mtu_max` in bytes.

    `rnr_nak`: its NIC retransmits by itself, and needs RNR NAKs for what it sends too early. `selective`: it
    asks for selective retransmission, or for go-back-N (None: for neither). `backup`: None if there is no
    such interface. `joined_as`: the rank that it joined with, if it may have another since. `plane`: the
    local rank of its GPU, in a gang.
    """

    host: str = ""
    path_mtu_max: int = 4096
    rnr_nak: bool = False
    selective: bool | None = None
    backup: Backup | None = None
    joined_as: int | None = None
    plane: int | None = None

    def worker(self, *, backup: bool = False) -> Worker:
        """Return the worker as others are told of it; with `backup`, at its backup interface."""
        at = self.backup if backup and self.backup is not None else self
        return Worker(
            rank=self.rank,
            mac=at.mac,
            ip=at.ip,
            qpn_out=self.qpn_out,
            psn_out=self.psn_out,
            qpn_in=self.qpn_in,
            hostname=self.hostname,
        )

    @property
    def original_rank(self) -> int:
        """The rank that it joined with."""
        return self.rank if self.joined_as is None else self.joined_as

    def __str__(self) -> str:
        where = f"({self.host or self.hostname}, {self.ip})"
        if self.plane is None:
            return f"rank {self.rank} {where}"
        return f"GPU {self.plane} of machine {self.rank} {where}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job's parameters on all workers and switches. `window` in messages, `path_mtu` in bytes.

    `ring`: all ranks, each followed by its successor; empty: in ascending order. `backup`: by ring over the
    backup interfaces. `selective`: selective retransmission. `renewals`: the number of times that the job
    went on under a new generation; `renewal_reason`: the reason of the last.
    """

    job_id: int
    generation: int
    window: int
    message_packets: int
    path_mtu: int
    mode: Mode
    mode_reason: str = ""
    ring: tuple[int, ...] = ()
    backup: bool = False
    selective: bool = False
    renewals: int = 0
    renewal_reason: str = ""

    @property
    def slots(self) -> int:
        """The number of slots in the job's region: two windows (docs/protocol.md: m mod 2W)."""
        return slots_of(self.window, self.message_packets)

    def is_like(self, other: Plan) -> bool:
        """Tell whether planes of one gang may have these two: they cut and add up alike."""
        return _common(self) == _common(other)


def _common(plan: Plan) -> tuple[object, ...]:
    return plan.mode, plan.path_mtu, plan.window, plan.message_packets, plan.selective, plan.backup


def slots_of(window: int, message_packets: int) -> int:
    """Return the number of slots in a region: two windows."""
    return 2 * window * message_packets


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Limits on a worker's silence, and the parameters `rc` of its RDMA device's queue pairs.

    The limits hold between heartbeats, after a restart of the controller, and without a connection.
    """

    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    resume_timeout_s: float
    lost_timeout_s: float = 5.0
    rc: RcParameters = field(default_factory=RcParameters)

    @property
    def lease_s(self) -> float:
        """Seconds after its last answered message for which a worker of an elastic job is sure to be in it.

        The controller drops it no earlier than this and a margin, since clocks may run at different rates.
        """
        return 0.8 * min(self.lost_timeout_s, self.heartbeat_timeout_s)

    @property
    def patience_s(self) -> float:
        """Seconds for which guards stay for a worker that is not known to have stopped.

        After a heartbeat's timeout such a worker notices that it hears nothing. It comes back, which may take
        the resume's timeout and another heartbeat's, and is told. A worker that is away for longer meets no
        later job's QPs: orchestration/retired.py.
        """
        return self.resume_timeout_s + 2 * (self.heartbeat_timeout_s + self.heartbeat_interval_s)
