"""The controller's metrics for Prometheus: jobs, switches, and what it reads from switches over P4Runtime.

Flow counters are sums over a job's flows on a switch, and exist only while the job lives. So the jobs that a
switch has room for bound the number of series, whatever the jobs are called.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from controller.api import controller_pb2 as pb
from controller.api.errors import ControllerError
from controller.jobs.renewals import Cause
from controller.service.service import ControllerService
from controller.service.views import PORT_DROPS, link_messages
from controller.telemetry.address import MetricsError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

TIMEOUT_S: Final = 5.0
_Key = tuple[str, ...]
_Gauges = Mapping[str, tuple[str, Callable[[Any], float]]]  # by name: the help, and the value of one
_MODES: Final = {pb.MODE_UNSPECIFIED: "undecided", pb.IN_NETWORK: "in_network", pb.RING: "ring"}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The controller's state at one moment, as messages. `unread`: reads that switches did not answer.

    `renewals`: the number of renewals that the controller has begun, by cause.
    """

    jobs: Sequence[pb.JobInfo] = ()
    status: pb.Status = field(default_factory=pb.Status)
    flows: Sequence[pb.FlowCounters] = ()
    ports: Sequence[pb.Port] = ()
    links: Sequence[pb.Link] = ()
    unread: int = 0
    renewals: Mapping[str, int] = field(default_factory=dict)


class ControllerMetrics:
    """The metrics of the controller that runs in `loop`; `collect` is for other threads."""

    def __init__(self, service: ControllerService, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._failed = 0

    def collect(self) -> Iterable[Metric]:
        """Return all metric families, as they are now. Raise MetricsError if the controller is too busy."""
        work = snapshot(self._service)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # the loop is closed
            work.close()
            raise MetricsError("the controller is being stopped") from error
        try:
            found = future.result(TIMEOUT_S)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise MetricsError(f"the controller did not answer within {TIMEOUT_S:g} s") from error
        except concurrent.futures.CancelledError as error:
            raise MetricsError("the controller is being stopped") from error
        except ControllerError as error:
            raise MetricsError(str(error)) from error
        self._failed += found.unread
        return families(found, unread=self._failed)


async def snapshot(service: ControllerService) -> Snapshot:
    """Ask the service, which asks the switches; leave out what a switch does not answer."""
    jobs = (await service.ListJobs(pb.ListJobsRequest(), _CONTEXT)).jobs
    status = await service.GetStatus(pb.StatusRequest(), _CONTEXT)
    flows: list[pb.FlowCounters] = []
    ports: Sequence[pb.Port] = ()
    unread = 0
    for job in jobs:
        if job.places:
            try:
                flows += (await service.ListCounters(pb.CountersRequest(job=job.spec.name), _CONTEXT)).flows
            except ControllerError:
                unread += 1
    try:
        ports = (await service.ListPorts(pb.PortsRequest(), _CONTEXT)).ports
    except ControllerError:
        unread += 1
    links = link_messages(service.registry, {})
    begun = service.registry.renewer.begun
    renewals = {cause.value: begun[cause] for cause in Cause}
    return Snapshot(
        jobs=jobs, status=status, flows=flows, ports=ports, links=links, unread=unread, renewals=renewals
    )


def families(found: Snapshot, *, unread: int) -> Iterator[Metric]:
    """Yield Prometheus' metric families."""
    yield from _of_jobs(found.jobs)
    yield from _of_each(_SWITCHES, ("switch",), {(s.name,): s for s in found.status.switches})
    yield from _of_flows(found.flows)
    yield from _of_ports(found.ports)
    yield from _of_each(_LINKS, ("link",), {(f"{link.a}:{link.b}",): link for link in found.links})
    yield _counter(
        "job_renewals",
        "Renewals of running jobs under a new generation that this controller began, by cause.",
        ("cause",),
        {(cause,): count for cause, count in found.renewals.items()},
    )
    yield _counter(
        "controller_unanswered_reads", "Reads of switches for these metrics that failed.", (), {(): unread}
    )


# Gauges, with what they say of a job, a switch or a link.
_JOBS: Final[_Gauges] = {
    "job_world_size": ("Workers that a job has.", lambda job: job.spec.world_size),
    "job_workers_connected": (
        "Workers of a job that are connected with the controller.",
        lambda job: sum(worker.connected for worker in job.workers),
    ),
    "job_heartbeat_age_seconds": (
        "For how long the most silent worker of a job was not heard.",
        lambda job: max((worker.heard_s_ago for worker in job.workers), default=0.0),
    ),
    "job_in_network": (
        "Whether the switches make a job's sums (else: ring all-reduce).",
        lambda job: job.mode == pb.IN_NETWORK,
    ),
    "job_renewing": (
        "Whether a job is about to go on under a new generation.",
        lambda job: job.renewing,
    ),
    "job_queue_position": (
        "A job's place in the queue for slots, from 1; 0 where it does not wait.",
        lambda job: job.waitlisted.position,
    ),
}
_SWITCHES: Final[_Gauges] = {
    "switch_connected": ("Whether the controller is connected with the switch.", lambda s: s.connected),
    "switch_slots": ("Slots of the switch.", lambda s: s.slots),
    "switch_slots_allocated": ("Slots of the switch that jobs own.", lambda s: s.slots_used),
    "switch_jobs": ("Jobs that own slots of the switch.", lambda s: s.jobs),
}
_LINKS: Final[_Gauges] = {
    "link_up": ("Whether probes come back over a link between switches.", lambda link: link.up)
}


def _of_each(gauges: _Gauges, labels: Sequence[str], those: Mapping[_Key, Any]) -> Iterator[Metric]:
    for name, (text, value) in gauges.items():
        yield _gauge(name, text, labels, {key: value(one) for key, one in those.items()})


def _of_jobs(jobs: Sequence[pb.JobInfo]) -> Iterator[Metric]:
    phases: Counter[_Key] = Counter(
        (pb.Phase.Name(job.phase).lower(), _MODES[job.mode or job.spec.mode]) for job in jobs
    )
    yield _gauge(
        "jobs", "Jobs that the controller remembers, the last of each name.", ("phase", "mode"), phases
    )
    live: dict[_Key, pb.JobInfo] = {
        (job.spec.name, job.spec.tenant or "default"): job
        for job in jobs
        if job.phase not in (pb.CREATED, pb.ENDED)
    }
    yield from _of_each(_JOBS, ("job", "tenant"), live)
    yield _gauge(
        "job_slots",
        "Slots that a job owns on a switch.",
        ("job", "tenant", "switch"),
        {(*key, place.switch): place.slots for key, job in live.items() for place in job.places},
    )


def _of_flows(flows: Sequence[pb.FlowCounters]) -> Iterator[Metric]:
    packets: Counter[_Key] = Counter()
    octets: Counter[_Key] = Counter()
    for flow in flows:
        for event, value in sorted(flow.counters.items()):
            packets[flow.switch, flow.job, event] += value.packets
            octets[flow.switch, flow.job, event] += value.bytes
    labels = ("switch", "job", "event")
    yield _counter("flow_packets", "What a switch did with the packets of a job's flows.", labels, packets)
    yield _counter("flow_bytes", "Bytes of the packets of a job's flows.", labels, octets)


def _of_ports(ports: Sequence[pb.Port]) -> Iterator[Metric]:
    labels = ("switch", "port", "peer")
    keyed = {(port.switch, str(port.port), port.host or port.peer): port for port in ports}
    for way, text in (("received", "received at"), ("sent", "sent from")):
        for unit in ("packets", "bytes"):
            yield _counter(
                f"port_{way}_{unit}",
                f"{unit.capitalize()} {text} a port, as the P4 program counts.",
                labels,
                {key: getattr(getattr(port, way), unit) for key, port in keyed.items()},
            )
    yield _counter(
        "port_dropped_packets",
        "Packets of no flow that the P4 program dropped, by the port that they came in at.",
        (*labels, "reason"),
        {(*key, why): port.drops[why].packets for key, port in keyed.items() for why in PORT_DROPS},
    )


def _gauge(name: str, text: str, labels: Sequence[str], samples: Mapping[_Key, float]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"p4reduce_{name}", text, labels=labels), samples)


def _counter(name: str, text: str, labels: Sequence[str], samples: Mapping[_Key, float]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"p4reduce_{name}", text, labels=labels), samples)


def _filled(family: Any, samples: Mapping[_Key, float]) -> Metric:
    for key, value in samples.items():
        family.add_metric(key, float(value))
    filled: Metric = family
    return filled


class _Context:
    """The context of calls by the controller itself: raises the errors that the service reports."""

    def peer(self) -> str:
        return "unix:"

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise ControllerError(details)


_CONTEXT: Final = _Context()
