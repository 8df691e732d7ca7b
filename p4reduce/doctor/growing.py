"""Growth of counters between the two observations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.api import controller_pb2 as pb
from p4reduce.doctor import words
from p4reduce.doctor.facts import Facts
from p4reduce.live.reading import WorkerKey, counted, flow_key


@dataclass(frozen=True)
class Grown:
    """A flow's counter: its value, its growth, and whose flow it is."""

    flow: pb.FlowCounters
    who: str  # rank 2 (h3)
    total: int
    now: int


def growth(now: int, before: int) -> int:
    """Return a counter's growth; a counter that began anew has grown by its value."""
    return now - before if now >= before else now


def flows(facts: Facts, *counters: str) -> Iterator[Grown]:
    """Yield for each flow the sum of these counters, in packets, and its growth."""
    hosts = rank_hosts(facts)
    before = {flow_key(flow): flow.counters for flow in facts.before.counters.value or ()}
    for flow in facts.now.counters.value or ():
        old: Mapping[str, pb.CounterValue] = before.get(flow_key(flow), {})
        grown = sum(growth(counted(flow.counters, name), counted(old, name)) for name in counters)
        who = words.rank(flow.rank, hosts.get((flow.job, flow.rank), ""))
        yield Grown(flow, who, counted(flow.counters, *counters), grown)


def worker(facts: Facts, key: WorkerKey, name: str) -> int:
    """Return the growth of a worker's counter; 0 if one observation lacks the worker's status."""
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
    """Map each rank of each job to its host."""
    return {(job.spec.name, w.worker.rank): w.host for job in facts.now.jobs.value or () for w in job.workers}
