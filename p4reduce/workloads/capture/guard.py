"""A guard that keeps a capture's packets out of running jobs' connections."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

import numpy as np

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from p4reduce.workloads.capture.plan import Plan
from p4reduce.workloads.errors import WorkloadError

_WITH_WORKERS: Final = (pb.JOINING, pb.INSTALLING, pb.READY, pb.RUNNING)


def require_no_jobs_packets(plan: Plan) -> list[str]:
    """Return notes about the running jobs. WorkloadError if a job could take a packet for one of its own.

    That is a packet between two of a job's hosts for one of its queue pairs: a switch takes a packet into a
    flow by port, addresses and queue pair, and a worker by addresses and queue pair. Jobs that begin later
    need no check: workers draw their queue pairs' numbers at random from 2^24.
    """
    with AdminClient(f"unix:{plan.cluster.control_socket}") as admin:
        jobs = [job for job in admin.list_jobs() if job.phase in _WITH_WORKERS]
    owners: dict[tuple[int, int], pb.JobInfo] = {}
    for job in jobs:
        for worker in (each.worker for each in job.workers):
            for qp in (worker.qpn_in, worker.qpn_out):
                owners[int(IPv4Address(worker.ip)), qp] = job
    addresses = np.array([int(IPv4Address(host.ip)) for host in plan.hosts], np.int64)
    sources, destinations = addresses[plan.played["from"]], addresses[plan.played["to"]]
    kinds, first, counts = np.unique(
        np.stack([sources, destinations, plan.packets.queue_pairs], axis=1),
        axis=0,
        return_index=True,
        return_counts=True,
    )
    others = 0
    for (source, destination, qp), row, count in zip(kinds.tolist(), first, counts, strict=True):
        owner = owners.get((destination, qp))
        if owner is None:
            continue
        if str(IPv4Address(source)) in {each.worker.ip for each in owner.workers}:
            raise WorkloadError(
                f"packet {plan.packets.numbers[row]} would go from {IPv4Address(source)} to queue pair "
                f"{qp:#x} of {IPv4Address(destination)}, both of job {owner.spec.name!r}, and could be taken "
                "for one of its own: map its endpoints to other hosts, or wait until the job has ended"
            )
        others += int(count)
    if not others:
        return []
    return [
        f"{others} packets are for queue pairs of running jobs, but not from their workers: none is taken"
    ]
