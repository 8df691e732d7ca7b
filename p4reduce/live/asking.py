"""Questions to a running cluster: to the controller, the kernel, and workers for their metrics.

It asks no more than it needs.

| asked | of whom | how often | why not more often |
| --- | --- | --- | --- |
| jobs, status | the controller, which knows | each time | |
| links' bytes | the kernel | each time | |
| flow counters | the controller, which asks the leaves and spines | each time | |
| port counters, links' state | the same | every 3 s | drops are rare |
| workers' counts | each worker | every 2 s | a worker has better things to do |
| slots | the controller, which asks the switches with a packet a slot | 1/40 of the time | takes long |
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from controller.api.errors import ControllerError, NotFoundError, UnreachableError
from controller.telemetry import client
from controller.telemetry.address import Address, MetricsError
from p4reduce.live import reading as r
from p4reduce.live.reading import Agent, Answer, Reading, WorkerKey
from topologies import state, wires
from topologies.errors import TopologyError
from topologies.state import ClusterState

T = TypeVar("T")
TIMEOUT_S: Final = 5.0
PORTS_S: Final = 3.0
AGENTS_S: Final = 2.0
SLOTS_S: Final = 2.0
SLOTS_PART: Final = 40  # of the time that asking for slots takes, until it is done again
_AGENT_TIMEOUT_S: Final = 1.0
_AT_ONCE: Final = 8
_PREFIX: Final = "p4reduce_agent_"


class ClusterGoneError(TopologyError):
    """The cluster that was looked at does not run any more."""


class Asker(contextlib.AbstractContextManager["Asker"]):
    """A context manager that asks one cluster again and again, from one thread at a time.

    `sparing`: ask for some things less often, as in the table above. The parameters besides the name are for
    tests.
    """

    def __init__(
        self,
        name: str,
        *,
        sparing: bool = True,
        find: Callable[[str], ClusterState] = state.running,
        admin: Callable[[str], Any] = lambda target: AdminClient(target, timeout_s=TIMEOUT_S),
        interfaces: Callable[[ClusterState], Mapping[str, Any]] = wires.interfaces,
        agents: Callable[[ClusterState], dict[WorkerKey, Agent]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._sparing = sparing
        self._find = find
        self._make_admin = admin
        self._interfaces = interfaces
        self._ask_agents = agents or read_agents
        self._clock = clock
        self._cluster: ClusterState | None = None
        self._admin: AdminClient | None = None
        self._slots_due = 0.0
        self._flows: Answer[Sequence[pb.FlowCounters]] | None = None
        self._ports: Answer[Sequence[pb.Port]] | None = None
        self._lines: Answer[Mapping[str, r.Line]] | None = None
        self._slots: Answer[Mapping[r.PlaceKey, r.SlotUse]] | None = None
        self._agents: Answer[Mapping[WorkerKey, Agent]] | None = None
        self._links: Sequence[pb.Link] = ()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a question under way fails. May be called from any thread."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def ask(self) -> Reading:
        """Ask what is going on now. ClusterGoneError; ControllerError if the controller does not answer."""
        started = self._clock()
        try:
            cluster = self._find(self.name)
        except TopologyError as error:
            self._forget()
            raise ClusterGoneError(str(error)) from error
        if self._cluster is None or self._cluster.owner != cluster.owner:
            self._forget()  # another cluster of the same name
        self._cluster = cluster
        if self._admin is None:
            self._admin = self._make_admin(f"unix:{cluster.control_socket}")
        try:
            return self._ask(cluster, self._admin, started)
        except UnreachableError:
            self.close()  # gRPC would wait longer and longer before it tries again
            raise

    def _ask(self, cluster: ClusterState, admin: AdminClient, started: float) -> Reading:
        remarks: list[str] = []
        jobs, status = admin.list_jobs(), admin.status()
        placed = [job for job in jobs if job.places]
        now = self._clock()
        self._lines = _next(self._lines, now, r.lines(cluster, self._interfaces(cluster)))
        self._flows = _next(self._flows, self._clock(), _counters(admin, placed, remarks))
        if self._is_due(self._ports, now, PORTS_S):
            try:
                self._ports = _next(self._ports, self._clock(), admin.ports())
                self._links = admin.links() if cluster.links else ()
            except UnreachableError as error:
                remarks.append(str(error))
        if self._is_due(self._agents, now, AGENTS_S):
            self._agents = _next(self._agents, self._clock(), self._ask_agents(cluster))
        self._ask_for_slots(admin, placed, remarks)
        return Reading(
            at=started,
            cluster=cluster,
            jobs=jobs,
            status=status,
            flows=self._flows,
            ports=self._ports,
            lines=self._lines,
            links=self._links,
            slots=self._slots,
            agents=self._agents,
            remarks=tuple(dict.fromkeys(remarks)),
            asked_s=self._clock() - started,
        )

    def _is_due(self, last: Answer[Any] | None, now: float, period_s: float) -> bool:
        return last is None or not self._sparing or now - last.at >= period_s

    def _ask_for_slots(self, admin: AdminClient, jobs: Sequence[pb.JobInfo], remarks: list[str]) -> None:
        started = self._clock()
        if not jobs:
            self._slots = None
        if not jobs or (self._sparing and started < self._slots_due):
            return
        try:
            found = r.slot_use(jobs, admin.slots())
        except (UnreachableError, NotFoundError) as error:
            remarks.append(str(error))
        else:
            self._slots = Answer(started, found)
        took = self._clock() - started
        self._slots_due = self._clock() + max(SLOTS_S, SLOTS_PART * took)

    def _forget(self) -> None:
        self.close()
        self._cluster = None
        self._slots_due = 0.0
        self._flows = self._ports = self._lines = self._slots = self._agents = None
        self._links = ()


def _next(before: Answer[T] | None, at: float, value: T) -> Answer[T]:
    return Answer(at, value) if before is None else before.then(at, value)


def _counters(admin: AdminClient, jobs: Sequence[pb.JobInfo], remarks: list[str]) -> list[pb.FlowCounters]:
    """Ask for the flow counters of all jobs; if a leaf is away, of each job that does not need it."""
    if not jobs:
        return []
    try:
        return admin.counters()
    except UnreachableError as error:
        remarks.append(str(error))
    found: list[pb.FlowCounters] = []
    for job in jobs:
        with contextlib.suppress(ControllerError):  # said already, or it has just ended
            found += admin.counters(job.spec.name)
    return found


def read_agents(cluster: ClusterState) -> dict[WorkerKey, Agent]:
    """Read the counts of all workers that tell them; a worker that is just leaving is left out."""
    from host_agent.metrics import SOCKETS

    def fetch(path: Path) -> str:
        try:
            return client.fetch(Address(path=path), timeout_s=_AGENT_TIMEOUT_S)
        except MetricsError:
            return ""

    paths = sorted(cluster.metrics.glob(SOCKETS))
    if not paths:
        return {}
    found: dict[WorkerKey, Agent] = {}
    with ThreadPoolExecutor(min(_AT_ONCE, len(paths))) as pool:  # one that hangs does not hold up the others
        for text in pool.map(fetch, paths):
            found.update(decode_agent(text))
    return found


def decode_agent(text: str) -> dict[WorkerKey, Agent]:
    """Decode a worker's counts from its metrics; other labels become part of the name: `collectives.ring`."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[WorkerKey, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith(_PREFIX):
            continue
        for sample in family.samples:
            labels = dict(sample.labels)
            key = (labels.pop("job"), int(labels.pop("rank")))
            name = ".".join([family.name[len(_PREFIX) :], *labels.values()])
            found.setdefault(key, {})[name] = sample.value
    return {key: Agent(counts) for key, counts in found.items()}
