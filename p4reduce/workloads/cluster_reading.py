"""Reading of a cluster file, with the checks of how its parts fit together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controller.config import ConfigError, parse_config
from p4reduce.workloads.cluster_file import ClusterFile, Job, Torch
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.placement import place_on
from p4reduce.workloads.torch_runs.script import Script, require_torch
from p4reduce.workloads.validation import Document, Mistake
from topologies.controlling import config_on_paper
from topologies.errors import TopologyError
from topologies.state import HostKind


def read(path: Path) -> ClusterFile:
    """Read and check a cluster file; ClusterFileError, with line and key, for all that is wrong."""
    return _checked(ClusterFile.of(Document.load(path)))


def with_jobs(file: ClusterFile, **changes: Any) -> ClusterFile:
    """Return the file with all jobs changed, as by `elastic=True`. ClusterFileError if one cannot be."""
    jobs = tuple(job.model_copy(update=changes) for job in file.jobs)
    return _checked(file.model_copy(update={"jobs": jobs}))


def _checked(file: ClusterFile) -> ClusterFile:
    # What the jobs need of a fabric can only be said of one that is right.
    found = list(_topology(file)) or [*_controller(file), *_jobs(file)]
    if found:
        raise file.wrong(found)
    return file


def _topology(file: ClusterFile) -> Iterator[Mistake]:
    try:
        hosts = len(file.topology.on_paper().hosts)
    except TopologyError as error:
        yield ["topology", "hosts"], str(error)
        return
    kinds = len(file.topology.host_kind)
    if kinds not in (1, hosts):
        yield (
            ["topology", "host_kind"],
            f"{kinds} kinds of host for {hosts} hosts: say one, or one for each",
        )
        return
    try:
        file.fabric_options().validate()
    except TopologyError as error:
        yield ["switch"] if "BMv2" in str(error) else ["topology"], str(error)


def _controller(file: ClusterFile) -> Iterator[Mistake]:
    on_paper = file.topology.on_paper()
    try:
        parse_config(
            {
                **config_on_paper(on_paper, target=file.switch.target.value, path_mtu=file.topology.path_mtu),
                **file.controller_options(),
            }
        )
    except ConfigError as error:
        given = [key for key in type(file.controller).model_fields if key in file.controller.model_fields_set]
        named = [key for key in given if key in str(error)]
        yield ["controller", *named[:1]], str(error)


def _jobs(file: ClusterFile) -> Iterator[Mistake]:
    names = [job.name for job in file.jobs]
    for index, job in enumerate(file.jobs):
        where: list[int | str] = ["jobs", index]
        if names.index(job.name) != index:
            yield [*where, "name"], f"another job is called {job.name!r} already"
        try:
            workers = len(hosts_of(file, job)) * file.topology.gpus_per_host
        except WorkloadError as error:
            key = next(
                (key for key in ("hosts", "placement", "workers") if key in job.model_fields_set), "name"
            )
            yield [*where, key], str(error)
        else:
            yield from _steps(file, job, index, workers=workers)
        if job.path_mtu is not None and job.path_mtu > file.topology.path_mtu:
            yield [*where, "path_mtu"], f"{job.path_mtu} is more than the links' {file.topology.path_mtu}"


def _steps(file: ClusterFile, job: Job, index: int, *, workers: int) -> Iterator[Mistake]:
    where: list[int | str] = ["workload"] if job.workload is None else ["jobs", index, "workload"]
    for place, step in enumerate(file.workload_of(job)):
        if step.train is not None and step.train.wire == "16bit" and file.topology.gpus_per_host > 1:
            yield (
                [*where, place, "train", "wire"],
                "16 bits with error feedback are for hosts with one GPU: leave it out",
            )
        if step.torch is not None:
            yield from _script(file, job, step.torch, [*where, place, "torch"])
        if job.mode == "ring" and step.all_reduce is not None and step.all_reduce.strategy == "in-network":
            yield (
                [*where, place, "all_reduce", "strategy"],
                f"job {job.name} runs by ring (its mode): its all-reduces cannot be in-network",
            )
        for rank in step.all_reduce.late_s if step.all_reduce is not None else ():
            if rank >= workers:
                yield (
                    [*where, place, "all_reduce", "late_s"],
                    f"job {job.name} has no rank {rank}: its {workers} workers are 0 to {workers - 1}",
                )


def _script(file: ClusterFile, job: Job, given: Torch, where: list[int | str]) -> Iterator[Mistake]:
    if len(file.workload_of(job)) > 1:
        yield where, f"a script is all that a job does: give job {job.name} no other steps"
    if job.elastic:
        yield where, f"a script ends when a worker dies: job {job.name} cannot be elastic"
    try:
        Script.of(given.words, directory=file.directory)
    except WorkloadError as error:
        yield [*where, "script"], str(error)
    kinds = dict(
        zip([host.name for host in file.topology.on_paper().hosts], file.fabric_options().kinds, strict=True)
    )
    try:
        require_torch([name for name in hosts_of(file, job) if kinds[name] is HostKind.ROCE])
    except WorkloadError as error:
        yield where, str(error)


def hosts_of(file: ClusterFile, job: Job) -> list[str]:
    """Return the names of a job's hosts, in order of their ranks. WorkloadError."""
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
        gpus_per_host=file.topology.gpus_per_host,
    )
