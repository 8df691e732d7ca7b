"""A cluster file's jobs, run at the same time on a running cluster, and their results."""

from __future__ import annotations

import importlib.metadata
import platform
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from controller.api.admin import AdminClient
from p4reduce.workloads.allreduce import link_rows
from p4reduce.workloads.cluster_file import ClusterFile, Job
from p4reduce.workloads.cluster_reading import hosts_of
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.placement import place
from p4reduce.workloads.steps import Result, exact, run_steps
from p4reduce.workloads.team import Team
from p4reduce.workloads.torch_runs.jobs import ScriptJob
from p4reduce.workloads.torch_runs.script import Script
from topologies import wires
from topologies.state import ClusterState

Progress = Callable[[str], None]
_LOOK_S: Final = 0.2
_PACKAGES: Final = ("p4reduce", "numpy", "finsy", "grpcio", "protobuf")


@dataclass
class Report:
    """Results of a run so far: `jobs` by name."""

    file: ClusterFile
    cluster: ClusterState | None = None
    jobs: dict[str, Result] = field(default_factory=dict)
    links: list[dict[str, Any]] = field(default_factory=list)
    program: str = ""
    up_s: float | None = None
    run_s: float | None = None
    error: str | None = None

    @property
    def exact(self) -> bool:
        """True if every sum that was checked was right; sums of scripts are not checked."""
        return all(job["right"] for job in self.jobs.values())

    @property
    def succeeded(self) -> bool:
        """True if all jobs ran and all sums were right."""
        return self.error is None and self.exact and len(self.jobs) == len(self.file.jobs)

    def as_json(self) -> dict[str, Any]:
        """Return the object that 'p4reduce run' writes."""
        return {
            "succeeded": self.succeeded,
            "exact": self.exact,
            "error": self.error,
            "name": self.file.name,
            "topology": _topology(self.cluster),
            "up_s": self.up_s,
            "run_s": self.run_s,
            "jobs": [self.jobs[job.name] for job in self.file.jobs if job.name in self.jobs],
            "links": self.links,
            "versions": {
                **{name: importlib.metadata.version(name) for name in _PACKAGES},
                "python": platform.python_version(),
                "kernel": platform.release(),
                "program_sha256": self.program,
            },
            "configuration": self.file.model_dump(mode="json", exclude_none=True),
        }


def require_work(file: ClusterFile) -> None:
    """Raise ClusterFileError if a file has nothing to run."""
    if not file.jobs:
        raise file.wrong(
            [(["jobs"], "there are no jobs to run: the cluster file needs 'jobs' and 'workload'")]
        )
    idle = [index for index, job in enumerate(file.jobs) if not file.workload_of(job)]
    if idle:
        why = "job {} has nothing to do: give it, or all jobs, a 'workload'"
        raise file.wrong([(["jobs", index, "name"], why.format(file.jobs[index].name)) for index in idle])


def create_jobs(cluster: ClusterState, file: ClusterFile) -> None:
    """Create a file's jobs at the controller, for workers to join."""
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        for job in file.jobs:
            admin.create_job(
                job.name,
                len(hosts_of(file, job)) * cluster.gpus_per_host,
                gpus_per_host=cluster.gpus_per_host,
                mode="" if job.mode == "auto" else job.mode,
                path_mtu=job.path_mtu,
                window=job.window,
                message_packets=job.message_packets,
                tenant=job.tenant,
                elastic=job.elastic,
                selective=job.selective,
            )


def play(cluster: ClusterState, file: ClusterFile, report: Report, *, progress: Progress) -> None:
    """Run all jobs to their ends; `report` fills up meanwhile, so an interruption leaves partial results."""
    require_work(file)
    report.cluster = cluster
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        report.program = next((s.program_sha256 for s in admin.status().switches), "")
    create_jobs(cluster, file)
    before = wires.wires(cluster)
    with ExitStack() as stack:
        progress("workers start")
        teams: list[Team | ScriptJob] = []
        for job in file.jobs:
            hosts = place(cluster, hosts=hosts_of(file, job))
            given = file.script_of(job)
            if given is None:
                teams.append(stack.enter_context(Team(cluster, len(hosts), hosts=hosts)))
            else:
                script = Script.of(given.words, directory=file.directory)
                teams.append(ScriptJob(cluster, hosts, script, job.name))
        started = time.monotonic()
        try:
            _all_at_once(file, teams, report, progress)
        finally:
            report.run_s = time.monotonic() - started
            report.links = link_rows(wires.since(wires.wires(cluster), before))


def _all_at_once(
    file: ClusterFile, teams: list[Team | ScriptJob], report: Report, progress: Progress
) -> None:
    """Run each job in a thread. If one fails or time is over, end all workers, and so the threads."""
    stop = threading.Event()
    began = time.monotonic()

    def one(job: Job, team: Team | ScriptJob) -> None:
        if stop.wait(job.start_after_s):
            return
        start_s = time.monotonic() - began
        if isinstance(team, ScriptJob):
            found = team.run(progress)
        else:
            found = run_steps(team, job, file.workload_of(job), timeout_s=file.timeout_s, progress=progress)
        report.jobs[job.name] = {
            "name": job.name,
            "tenant": job.tenant or "default",
            "workers": team.size,
            "hosts": hosts_of(file, job),
            "start_s": start_s,
            "end_s": time.monotonic() - began,
            "right": exact(found),
            **found,
        }

    with ThreadPoolExecutor(max_workers=len(teams)) as pool:
        try:
            running = {pool.submit(one, job, team): job for job, team in zip(file.jobs, teams, strict=True)}
            _wait(running, deadline=began + file.timeout_s, timeout_s=file.timeout_s)
        finally:
            stop.set()
            for team in teams:
                team.terminate()


def _wait(running: dict[Future[None], Job], *, deadline: float, timeout_s: float) -> None:
    """Wait until all jobs are done; raise the first error, with its job's name.

    It waits in small steps, so that signals are handled.
    """
    left = set(running)
    while left:
        done, left = wait(left, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
        for future in done:
            error = future.exception()
            if isinstance(error, WorkloadError):
                raise WorkloadError(f"job {running[future].name}: {error}") from error
            if error is not None:
                raise error
        if left and time.monotonic() > deadline:
            names = ", ".join(sorted(running[future].name for future in left))
            raise WorkloadError(f"not done after {timeout_s:g} s (timeout_s): {names}")


def _topology(cluster: ClusterState | None) -> dict[str, Any] | None:
    if cluster is None:
        return None
    return {
        "kind": cluster.topology,
        "target": cluster.target,
        "path_mtu": cluster.path_mtu,
        "rate_mbit": cluster.rate_mbit,
        "uplink_rate_mbit": cluster.uplink_rate_mbit,
        "switches": [
            {"name": s.name, "device_id": s.device_id, "role": s.role.value} for s in cluster.switches
        ],
        "hosts": [{"name": h.name, "ip": h.ip, "switch": h.switch, "port": h.port} for h in cluster.hosts],
        "links": [link.name for link in cluster.links],
    }
