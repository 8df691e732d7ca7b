"""Answers of a running cluster to all questions at one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from controller.api import controller_pb2 as pb
from topologies import wires
from topologies.state import ClusterState
from topologies.wires import Traffic

T = TypeVar("T")
WorkerKey = tuple[str, int]  # job and rank
PlaceKey = tuple[str, str]  # job and switch


@dataclass(frozen=True)
class Answer(Generic[T]):
    """A value, the time of its question (monotonic clock), and the previous answer: rates need two."""

    at: float
    value: T
    before: Answer[T] | None = None

    def then(self, at: float, value: T) -> Answer[T]:
        """Return the next answer."""
        return Answer(at, value, Answer(self.at, self.value))

    @property
    def seconds(self) -> float | None:
        """Seconds between the two answers; None if there is only one."""
        return None if self.before is None or self.before.at >= self.at else self.at - self.before.at


@dataclass(frozen=True, kw_only=True)
class Line:
    """A link of a host or between switches, as the kernel sees it. Up: away from the host, to the spine."""

    name: str
    is_up: bool
    up: Traffic
    down: Traffic
    rate_mbit: float | None
    uplink: bool = False


@dataclass(frozen=True, kw_only=True)
class SlotUse:
    """Slots of a job on a switch: those that hold an incomplete sum, and all that it has."""

    open: int
    allocated: int


@dataclass(frozen=True)
class Agent:
    """A worker's own counts, by the names of its metrics (`host_agent/metrics.py`) without their prefix."""

    counts: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.counts.get(name, 0.0)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All answers, each of the time of its own question. `remarks`: what could not be asked, and why.

    `at`: seconds of a monotonic clock. `asked_s`: how long all questions took.
    """

    at: float
    cluster: ClusterState
    jobs: Sequence[pb.JobInfo] = ()
    status: pb.Status = field(default_factory=pb.Status)
    flows: Answer[Sequence[pb.FlowCounters]] | None = None
    ports: Answer[Sequence[pb.Port]] | None = None
    lines: Answer[Mapping[str, Line]] | None = None
    links: Sequence[pb.Link] = ()
    slots: Answer[Mapping[PlaceKey, SlotUse]] | None = None
    agents: Answer[Mapping[WorkerKey, Agent]] | None = None
    remarks: tuple[str, ...] = ()
    asked_s: float = 0.0


def lines(cluster: ClusterState, interfaces: Mapping[str, Any]) -> dict[str, Line]:
    """Return a cluster's links by name (`h1:s1`, `l1:s1`), from the kernel's data on switches' interfaces."""
    found = {}
    for host in cluster.hosts:
        interface = interfaces.get(cluster.switch(host.switch).interfaces.get(host.port, ""))
        if interface is not None:
            counted = interface["stats64"]
            found[f"{host.name}:{host.switch}"] = Line(
                name=f"{host.name}:{host.switch}",
                is_up=_carries(interface)
                and (cluster.wires is None or _carries(interfaces.get(wires.wire_end(host.interface)))),
                up=Traffic(counted["rx"]["packets"], counted["rx"]["bytes"]),
                down=Traffic(counted["tx"]["packets"], counted["tx"]["bytes"]),
                rate_mbit=cluster.rate_mbit,
            )
    for wire in wires.decode(cluster, interfaces):
        found[wire.link.name] = Line(
            name=wire.link.name,
            is_up=wire.is_up,
            up=wire.upward,
            down=wire.downward,
            rate_mbit=cluster.uplink_rate_mbit,
            uplink=True,
        )
    return found


def _carries(interface: Mapping[str, Any] | None) -> bool:
    """Return whether an interface and its opposite are up; with wires between, each end has one opposite."""
    return interface is not None and "LOWER_UP" in interface["flags"] and interface.get("qdisc") != wires.HOLE


def counted(counters: Mapping[str, pb.CounterValue], *names: str, unit: str = "packets") -> int:
    """Add some counters, in packets or bytes; a missing counter counts as 0."""
    return sum(getattr(counters[name], unit) for name in names if name in counters)


def flow_key(flow: pb.FlowCounters) -> tuple[str, int, int, str]:
    """Return the key that identifies a flow."""
    return flow.job, flow.generation, flow.rank, flow.switch


def slot_use(jobs: Sequence[pb.JobInfo], slots: Sequence[pb.Slot]) -> dict[PlaceKey, SlotUse]:
    """Compute the use of slots from the controller's list of slots that hold something."""
    found = {
        (job.spec.name, place.switch): SlotUse(open=0, allocated=place.slots)
        for job in jobs
        for place in job.places
    }
    for slot in slots:
        key = (slot.job, slot.switch)
        if key in found and slot.state != "complete":
            found[key] = SlotUse(open=found[key].open + 1, allocated=found[key].allocated)
    return found
