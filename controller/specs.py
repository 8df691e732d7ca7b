"""What a job is: what was asked for, who has joined, how it runs, how long its workers may be silent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address


class Phase(IntEnum):
    """As in controller.proto."""

    CREATED = 1
    JOINING = 2
    INSTALLING = 3
    READY = 4
    RUNNING = 5
    ENDED = 6


class Mode(IntEnum):
    """Where the job's sums are made; as in controller.proto."""

    IN_NETWORK = 1
    RING = 2


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What was asked for. None: whatever is best; then `mode` falls back to RING.

    `tenant`: whose quota the job's slots count against; empty: the default one's.
    """

    name: str
    world_size: int
    mode: Mode | None = None
    path_mtu: int | None = None
    window: int | None = None
    message_packets: int | None = None
    tenant: str = ""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A worker as it joined. `host` is its name in the configuration; `path_mtu_max` in bytes.

    `rnr_nak`: its NIC repeats by itself, and wants RNR NAKs for what it sends too early.
    """

    rank: int
    mac: str
    ip: IPv4Address
    qpn_out: int
    psn_out: int
    qpn_in: int
    hostname: str = ""
    host: str = ""
    path_mtu_max: int = 4096
    rnr_nak: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host or self.hostname}, {self.ip})"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a job runs, on all workers and on the switches. `window` in messages, `path_mtu` in bytes.

    `ring`: all ranks, each followed by its successor; empty: in ascending order.
    """

    job_id: int
    generation: int
    window: int
    message_packets: int
    path_mtu: int
    mode: Mode
    mode_reason: str = ""
    ring: tuple[int, ...] = ()

    @property
    def slots(self) -> int:
        """The size of the job's region: of two windows, for the reason in docs/architecture.md."""
        return 2 * self.window * self.message_packets


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a worker may be silent: between heartbeats, and after a restart of the controller."""

    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    resume_timeout_s: float

    @property
    def patience_s(self) -> float:
        """How long a worker that hears nothing any more may go on with its job.

        It notices after a heartbeat's timeout, tries to come back for the resume's, and the last try may take
        another heartbeat's.
        """
        return self.resume_timeout_s + 2 * (self.heartbeat_timeout_s + self.heartbeat_interval_s)
