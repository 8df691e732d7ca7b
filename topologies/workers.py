"""The processes of jobs' ranks: workers tell their rank in their metrics, at sockets named by pid."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from controller.telemetry.address import Address, MetricsError
from controller.telemetry.client import fetch
from host_agent.metrics import SOCKETS
from topologies.errors import TopologyError
from topologies.processes import ProcessId
from topologies.state import ClusterState

_SAMPLE: Final = "p4reduce_agent_in_network"
_TIMEOUT_S: Final = 1.0


def find_worker(cluster: ClusterState, job: str, rank: int) -> ProcessId:
    """Return the process of a rank. Raise TopologyError that names those there are.

    A paused process is not found.
    """
    found: dict[tuple[str, int], ProcessId] = {}
    for name, number, process in _workers(cluster):
        if (name, number) == (job, rank):
            return process
        found[name, number] = process
    ranks = sorted(number for name, number in found if name == job)
    if ranks:
        there = f"its workers here are {', '.join(map(str, ranks))}"
    else:
        jobs = sorted({name for name, _ in found})
        there = f"workers here are in {', '.join(jobs)}" if jobs else "no worker here is in a job"
    raise TopologyError(f"cluster {cluster.name} has no rank {rank} of job {job!r}: {there}")


def _workers(cluster: ClusterState) -> Iterator[tuple[str, int, ProcessId]]:
    from prometheus_client.parser import text_string_to_metric_families

    for path in sorted(cluster.metrics.glob(SOCKETS)):
        with contextlib.suppress(ProcessLookupError, MetricsError, ValueError):
            process = ProcessId.of(int(path.name.split("-")[1]))
            if process.paused():
                continue
            text = fetch(Address(path=path), timeout_s=_TIMEOUT_S)
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == _SAMPLE:
                        yield sample.labels["job"], int(sample.labels["rank"]), process
