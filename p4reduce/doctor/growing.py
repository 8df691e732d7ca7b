"""What counters grew by between the two observations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.api import controller_pb2 as pb
from p4reduce.doctor import words
from p4reduce.doctor.facts import Facts
from p4reduce.live.reading import WorkerKey, counted, flow_key


@dataclass(frozen=True)
class Grown:
    """A flow's counter: what it says, by how much that has grown, and whose flow it is."""

    flow: pb.FlowCounters
    who: str  # rank 2 (h3)
    total: int
    now: int


def growth(now: int, before: int) -> int:
    """A counter that began anew has grown by what it says."""
    return now - before if now >= before else now


def flows(facts: Facts, *counters: str) -> Iterator[Grown]:
    """Each flow's packets of these counters together."""
    hosts = rank_hosts(facts)
    before = {flow_key(flow): flow.counters for flow in facts.before.counters.value or ()}
    for flow in facts.now.counters.value or ():
        old: Mapping[str, pb.CounterValue] = before.get(flow_key(flow), {})
        grown = sum(growth(counted(flow.counters, name), counted(old, name)) for name in counters)
        who = words.rank(flow.rank, hosts.get((flow.job, flow.rank), ""))
        yield Grown(flow, who, counted(flow.counters, *counters), grown)


def worker(facts: Facts, key: WorkerKey, name: str) -> int:
    """By how much a counter of a worker has grown; 0 where one observation lacks its status."""
    values = []
    for observation in (facts.before, facts.now):
        found = next(
            (w for w in observation.workers if (w.job, w.rank) == key and w.status is not None), None
        )
        if found is None or found.status is None:
            return 0
        values.append(found.status.counters.get(name, 0))
    return growth(values[1], values[0])


def rank_hosts(facts: Facts) -> dict[WorkerKey, str]:
    """The host of each rank of each job."""
    return {(job.spec.name, w.worker.rank): w.host for job in facts.now.jobs.value or () for w in job.workers}
