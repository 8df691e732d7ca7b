"""Facts about a running cluster, observed twice: comparing the two observations shows what moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from controller.api import controller_pb2 as pb
from p4reduce.live.reading import Line
from topologies.state import ClusterState

T = TypeVar("T")


class ProcessState(str, Enum):
    """State of a process as the kernel gives it, in the few kinds that matter here."""

    RUNS = "runs"
    SLEEPS = "sleeps"
    STOPPED = "stopped"  # SIGSTOP, Ctrl-Z, or a debugger
    STUCK = "in uninterruptible sleep"  # mostly waiting for a disk
    GONE = "gone"


@dataclass(frozen=True)
class Process:
    """A process, and the CPU time it has used so far."""

    pid: int
    state: ProcessState
    cpu_s: float = 0.0

    @property
    def is_well(self) -> bool:
        """True if the process can run: it is neither stopped, stuck nor gone."""
        return self.state in (ProcessState.RUNS, ProcessState.SLEEPS)


@dataclass(frozen=True)
class Said(Generic[T]):
    """An answer, or the reason why there is none."""

    value: T | None = None
    why: str = "not asked"
    is_late: bool = False  # it did not come in time


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """A worker's own account of itself (`host_agent.status`). Times are seconds before it was asked.

    Messages count up from 0: `posted`, `sent` and `received` are the next message to post, to send, and to
    receive a sum for; `acked` is the oldest message that is not acknowledged.
    """

    job: str
    rank: int
    generation: int
    next_collective: int  # the first that it has not begun
    collective: str = ""  # that it is in; empty: none
    for_s: float = 0.0  # for so long
    idle_s: float | None = None
    is_held: bool = False
    is_leaving: bool = False
    failure: str = ""
    mode: str = ""
    posted: int = 0
    sent: int = 0
    acked: int = 0
    received: int = 0
    timeouts_in_a_row: int = 0
    sent_s_ago: float | None = None
    received_s_ago: float | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    where: str = ""  # the user's innermost frame of the main thread: "train.py:83 in load"
    stack: tuple[str, ...] = ()
    local_rank: int | None = None  # of several GPUs a machine
    waits_for: tuple[int, ...] = ()  # local ranks of its own machine

    @property
    def position(self) -> tuple[int, ...]:
        """The numbers that change when anything useful happens; a retransmission changes none of them."""
        return self.next_collective, self.posted, self.sent, self.acked, self.received, self.generation

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> WorkerStatus:
        """Decode what came over the socket. KeyError, TypeError: it is something else."""
        progress, running = said["progress"], said["collective"]
        machine = said.get("machine") or {}  # older agents do not say
        main = next((t for t in said["threads"] if t["name"] == "MainThread"), None)
        same = (
            *("job", "rank", "generation", "next_collective", "idle_s", "is_held", "is_leaving", "failure"),
            *("mode", "sent_s_ago", "received_s_ago", "counters"),
        )
        return cls(
            **{name: said[name] for name in same},
            collective=running["what"] if running else "",
            for_s=running["for_s"] if running else 0.0,
            **{way: progress[f"{way}_messages"] for way in ("posted", "sent", "acked", "received")},
            timeouts_in_a_row=progress["timeouts_in_a_row"],
            where=main["users"] if main else "",
            stack=tuple(main["stack"]) if main else (),
            local_rank=machine.get("local_rank"),
            waits_for=tuple(machine.get("waits_for", ())),
        )


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A process that joined a job as one of its ranks; `host` is known by its network namespace."""

    job: str
    rank: int
    process: Process
    host: str = ""
    status: WorkerStatus | None = None
    why: str = ""  # it says nothing


Losses: TypeAlias = Mapping[str, int]
"""A port's own counts of lost packets, by "direction.reason"."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Frames counted at both ends of hosts' links, almost at once: hosts, then switches, then hosts again.

    By host; `up` is what a host has sent or its switch has received from it, `down` is the other direction.
    """

    hosts: Mapping[str, Ends]
    switches: Mapping[str, Ends]
    hosts_again: Mapping[str, Ends]


@dataclass(frozen=True)
class Ends:
    """Frames from the host to the switch, and to the host, as one end counts them."""

    up: int
    down: int


@dataclass(frozen=True, kw_only=True)
class Echo:
    """Results of the probes from one host to another over the fabric."""

    sent: int
    received: int
    overtaken: int = 0
    fastest_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Facts found at one time (`at`: seconds of a monotonic clock).

    Keys of `processes`: "controller", "owner", "wires", "switch s1", "host h1", "machine h1".
    """

    at: float
    processes: Mapping[str, Process] = field(default_factory=dict)
    workers: Sequence[Worker] = ()
    jobs: Said[Sequence[pb.JobInfo]] = Said()
    status: Said[pb.Status] = Said()
    counters: Said[Sequence[pb.FlowCounters]] = Said()
    ports: Said[Sequence[pb.Port]] = Said()
    links: Said[Sequence[pb.Link]] = Said()
    lines: Mapping[str, Line] = field(default_factory=dict)
    losses: Mapping[tuple[str, int], Losses] = field(default_factory=dict)  # by switch and port


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The file system of the controller's database."""

    path: str
    free_bytes: int
    free_inodes: int = 1


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All facts. Questions that are asked only once are asked with the second observation."""

    cluster: ClusterState
    before: Observation
    now: Observation
    slots: Said[Sequence[pb.Slot]] = Said()
    flows: Said[Sequence[pb.Flow]] = Said()
    plan: Said[pb.PlanReport] = Said()
    samples: Sequence[Sequence[Sample]] = ()  # in turns; a second one where the first looks bad
    echoes: Mapping[tuple[str, str], Echo] = field(default_factory=dict)  # by host, from and to
    echo_turns: int = 1  # a second one, whose echoes these are, where none of the first came back
    management: Mapping[str, str] = field(default_factory=dict)  # by host: why not to the controller, or ""
    disk: Disk | None = None
    last_words: Mapping[str, str] = field(default_factory=dict)  # "controller", "switch s1": ends of logs
    rules: Sequence[str] = ()  # faults that somebody injects, in words
    left_behind: Sequence[str] = ()  # clusters whose owner was killed
    asked_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds between the two observations."""
        return max(1e-3, self.now.at - self.before.at)
