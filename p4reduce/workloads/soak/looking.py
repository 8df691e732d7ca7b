"""Use of the machine by a cluster: memory, descriptors and threads of each process, slots, files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from topologies import namespaces, state
from topologies.processes import ProcessId
from topologies.state import ClusterState

_MORE_MEMORY: Final = 0.25
_MORE_MIB: Final = 24.0
_MORE_DESCRIPTORS: Final = 12
_MORE_THREADS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process: its name, pid and start, and its use of the machine."""

    name: str
    id: ProcessId
    rss_mib: float
    descriptors: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class Look:
    """The cluster in a quiet moment."""

    at_s: float
    processes: list[Process]
    slots: int
    jobs: int
    database_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return the look for the report."""
        return {
            "at_s": round(self.at_s, 1),
            "slots": self.slots,
            "jobs": self.jobs,
            "database_bytes": self.database_bytes,
            "processes": [
                {
                    "name": one.name,
                    "pid": one.id.pid,
                    "rss_mib": one.rss_mib,
                    "descriptors": one.descriptors,
                    "threads": one.threads,
                }
                for one in self.processes
            ],
        }


def look(cluster: ClusterState, workers: dict[str, ProcessId], *, at_s: float) -> Look:
    """Look at the cluster now."""
    now = state.load(cluster.name) or cluster
    known = {f"switch {switch.name}": switch.process for switch in now.switches}
    if now.controller_process is not None:
        known["controller"] = now.controller_process
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        slots, jobs = sum(switch.slots_used for switch in admin.status().switches), len(admin.list_jobs())
    found = [_process(name, process) for name, process in {**known, **workers}.items()]
    return Look(
        at_s=at_s,
        processes=[one for one in found if one is not None],
        slots=slots,
        jobs=jobs,
        database_bytes=sum(path.stat().st_size for path in now.directory.rglob("controller.db*")),
    )


def grown(looks: Sequence[Look]) -> list[str]:
    """Describe what has grown between the first and the last look at a process, or is left of jobs."""
    complaints = []
    first: dict[ProcessId, Process] = {}
    last: dict[ProcessId, Process] = {}
    for one in looks:
        for process in one.processes:
            first.setdefault(process.id, process)
            last[process.id] = process
    for key, before in first.items():
        after = last[key]
        more = after.rss_mib - before.rss_mib
        if more > max(_MORE_MIB, _MORE_MEMORY * before.rss_mib):
            complaints.append(f"{after.name}: {before.rss_mib:.0f} MiB became {after.rss_mib:.0f} MiB")
        if after.descriptors > before.descriptors + _MORE_DESCRIPTORS:
            complaints.append(f"{after.name}: {before.descriptors} descriptors became {after.descriptors}")
        if after.threads > before.threads + _MORE_THREADS:
            complaints.append(f"{after.name}: {before.threads} threads became {after.threads}")
    if looks:
        end = looks[-1]
        if end.slots or end.jobs:
            complaints.append(f"{end.slots} slots and {end.jobs} jobs are left")
    return complaints


def delete_ended_jobs(cluster: ClusterState) -> int:
    """Delete jobs that have ended; return their number."""
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        ended = [job.spec.name for job in admin.list_jobs() if job.phase == pb.ENDED]
        for name in ended:
            admin.delete_job(name)
    return len(ended)


def left(cluster: ClusterState, looks: Sequence[Look]) -> list[str]:
    """Describe what is still there of a cluster that was taken down."""
    found = [
        f"{one.name} (process {one.id.pid})" for look in looks for one in look.processes if one.id.alive()
    ]
    if namespaces.exists(cluster.namespace):
        found.append(f"network namespace {cluster.namespace}")
    if cluster.directory.exists():
        found.append(str(cluster.directory))
    return [f"left when all is over: {', '.join(found)}"] if found else []


def _process(name: str, process: ProcessId) -> Process | None:
    """Read a process's use of the machine; None if it is gone."""
    folder = Path(f"/proc/{process.pid}")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        words = dict(
            line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
        )
        if "VmRSS" not in words or not process.alive():
            return None
        return Process(
            name=name,
            id=process,
            rss_mib=round(int(words["VmRSS"].split()[0]) / 1024, 1),
            descriptors=len(os.listdir(folder / "fd")),
            threads=int(words["Threads"]),
        )
    return None
