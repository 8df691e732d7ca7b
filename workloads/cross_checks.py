"""What no single value of a cluster file can tell: whether its parts fit each other."""

from __future__ import annotations

from controller.config import ConfigError, parse_config
from topologies.controlling import config_on_paper
from topologies.errors import TopologyError
from workloads.cluster_file import ClusterFile, Job
from workloads.errors import WorkloadError
from workloads.placement import place_on


def check(file: ClusterFile) -> None:
    """ClusterFileError, with line and key, where something does not fit."""
    _check_topology(file)
    _check_controller(file)
    _check_jobs(file)


def _check_topology(file: ClusterFile) -> None:
    try:
        hosts = len(file.topology.on_paper().hosts)
    except TopologyError as error:
        raise file.wrong(["topology", "hosts"], str(error)) from error
    kinds = len(file.topology.host_kind)
    if kinds not in (1, hosts):
        raise file.wrong(
            ["topology", "host_kind"], f"{kinds} kinds of host for {hosts} hosts: say one, or one for each"
        )
    try:
        file.fabric_options().validate()
    except TopologyError as error:
        raise file.wrong(["topology"], str(error)) from error


def _check_controller(file: ClusterFile) -> None:
    on_paper = file.topology.on_paper()
    try:
        parse_config(
            {
                **config_on_paper(on_paper, target=file.switch.target.value, path_mtu=file.topology.path_mtu),
                **file.controller_options(),
            }
        )
    except ConfigError as error:
        named = [key for key in type(file.controller).model_fields if key in str(error)]
        raise file.wrong(["controller", *named[:1]], str(error)) from error


def _check_jobs(file: ClusterFile) -> None:
    names = [job.name for job in file.jobs]
    for index, job in enumerate(file.jobs):
        where: list[int | str] = ["jobs", index]
        if names.index(job.name) != index:
            raise file.wrong([*where, "name"], f"another job is called {job.name!r} already")
        try:
            workers = len(hosts_of(file, job))
        except WorkloadError as error:
            key = next(
                (key for key in ("hosts", "placement", "workers") if key in job.model_fields_set), "name"
            )
            raise file.wrong([*where, key], str(error)) from error
        _check_late(file, job, index, workers=workers)
        if job.path_mtu is not None and job.path_mtu > file.topology.path_mtu:
            raise file.wrong(
                [*where, "path_mtu"], f"{job.path_mtu} is more than the links' {file.topology.path_mtu}"
            )


def _check_late(file: ClusterFile, job: Job, index: int, *, workers: int) -> None:
    where: list[int | str] = ["workload"] if job.workload is None else ["jobs", index, "workload"]
    for place, step in enumerate(file.workload_of(job)):
        for rank in step.all_reduce.late_s if step.all_reduce is not None else ():
            if rank >= workers:
                raise file.wrong(
                    [*where, place, "all_reduce", "late_s"],
                    f"job {job.name} has no rank {rank}: its {workers} workers are 0 to {workers - 1}",
                )


def hosts_of(file: ClusterFile, job: Job) -> list[str]:
    """The names of a job's hosts, by rank; WorkloadError."""
    on_paper = file.topology.on_paper()
    racks = {
        switch.name: [host.name for host in on_paper.hosts if host.switch == switch.name]
        for switch in on_paper.switches
    }
    return place_on(
        {leaf: hosts for leaf, hosts in racks.items() if hosts},
        workers=job.workers,
        placement=job.placement,
        hosts=job.hosts,
    )
