"""Placement of a job's workers on a fabric's hosts: rank by rank, a host once for each of its GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, zip_longest

from p4reduce.workloads.errors import WorkloadError
from topologies.state import ClusterState, HostState

PACKED, SPREAD = "packed", "spread"


def place(
    cluster: ClusterState,
    *,
    workers: int | None = None,
    placement: str = PACKED,
    hosts: Sequence[str] = (),
    gpus_per_host: int | None = None,
) -> list[HostState]:
    """Return the host of each rank in a running cluster: `place_on`, with a worker on each GPU.

    `gpus_per_host`: use only so many of a host's GPUs (None: all).
    """
    gpus = cluster.gpus_per_host if gpus_per_host is None else gpus_per_host
    if not 1 <= gpus <= cluster.gpus_per_host:
        raise WorkloadError(
            f"{gpus} workers a host do not fit cluster {cluster.name}: a GPU has one worker, and its hosts "
            f"have {cluster.gpus_per_host} each (p4reduce up --gpus-per-host {gpus})"
        )
    racks = {leaf.name: [host.name for host in cluster.hosts_of(leaf.name)] for leaf in cluster.leaves()}
    names = place_on(racks, workers=workers, placement=placement, hosts=hosts, gpus_per_host=gpus)
    return [cluster.host(name) for name in names for _ in range(gpus)]


def planes_of(job: str, gpus_per_host: int) -> list[str]:
    """Return the controller's names of a job: with several GPUs a host, those of its planes."""
    return [job] if gpus_per_host == 1 else [f"{job}/{plane}" for plane in range(gpus_per_host)]


def labels_of(cluster: ClusterState, hosts: Sequence[HostState]) -> list[str]:
    """Return the ranks' labels, given their hosts: h1, or with several GPUs a host h1/0, h1/1."""
    gpus = gpus_of(cluster, hosts)
    return [host.name if gpus == 1 else f"{host.name}/{rank % gpus}" for rank, host in enumerate(hosts)]


def gpus_of(cluster: ClusterState, hosts: Sequence[HostState]) -> int:
    """Return the number of GPUs that the ranks use on each host; WorkloadError if hosts differ.

    If hosts have one GPU each, this is 1: several workers on a host are then independent of each other.
    """
    if cluster.gpus_per_host == 1:
        return 1
    runs = [len(list(same)) for _, same in groupby(host.name for host in hosts)]
    if len(runs) != len({host.name for host in hosts}) or len(set(runs)) > 1:
        raise WorkloadError(
            "the workers of a host have consecutive ranks, the same number on each: "
            f"{', '.join(host.name for host in hosts)}"
        )
    return runs[0] if runs else 1


def place_on(
    racks: Mapping[str, Sequence[str]],
    *,
    workers: int | None = None,
    placement: str = PACKED,
    hosts: Sequence[str] = (),
    gpus_per_host: int = 1,
) -> list[str]:
    """Choose the hosts for `workers` workers (None: on every host); WorkloadError if they do not fit.

    `racks` has the hosts of each leaf. `hosts` names the workers' hosts. Without it, `placement` is "packed"
    (rack after rack is filled), "spread" (racks take turns), or the number of hosts of each leaf: "3,1".
    """
    if workers is not None and workers % gpus_per_host:
        raise WorkloadError(
            f"{workers} workers do not fill hosts with {gpus_per_host} GPUs each: take a multiple of "
            f"{gpus_per_host}"
        )
    if workers is not None:
        workers //= gpus_per_host
    if hosts:
        return _named(racks, hosts, workers=workers)
    if placement not in (PACKED, SPREAD):
        return _counted(racks, counts_of(placement), workers=workers)
    if placement == PACKED:
        order = list(chain.from_iterable(racks.values()))
    else:
        turns = chain.from_iterable(zip_longest(*racks.values()))
        order = [host for host in turns if host is not None]
    wanted = len(order) if workers is None else workers
    if not 1 <= wanted <= len(order):
        raise WorkloadError(f"{wanted} workers do not fit {len(order)} hosts: a job has one worker a host")
    return order[:wanted]


def counts_of(placement: str) -> list[int]:
    """Parse the number of workers of each leaf, as "3,1"; WorkloadError if it is not a placement."""
    if re.fullmatch(r"\d+(\s*,\s*\d+)*", placement) is None:
        raise WorkloadError(
            f"{placement!r} is no placement: say {PACKED}, {SPREAD}, or how many workers each leaf has (3,1)"
        )
    return [int(word) for word in placement.split(",")]


def _named(racks: Mapping[str, Sequence[str]], names: Sequence[str], *, workers: int | None) -> list[str]:
    known = list(chain.from_iterable(racks.values()))
    for name in names:
        if name not in known:
            raise WorkloadError(f"there is no host {name!r}, there are {', '.join(known)}")
        if names.count(name) > 1:
            raise WorkloadError(f"host {name} is named twice: a job has one worker a host")
    if workers not in (None, len(names)):
        raise WorkloadError(f"{workers} workers do not fit the {len(names)} hosts that are named")
    return list(names)


def _counted(racks: Mapping[str, Sequence[str]], counts: Sequence[int], *, workers: int | None) -> list[str]:
    if len(counts) != len(racks):
        leaves = "1 leaf" if len(racks) == 1 else f"{len(racks)} leaves"
        raise WorkloadError(
            f"a placement has a number of workers for each leaf (0: none), {len(counts)} do not fit {leaves}"
        )
    for (leaf, hosts), count in zip(racks.items(), counts, strict=True):
        if count > len(hosts):
            raise WorkloadError(f"{count} workers do not fit leaf {leaf}, which has {len(hosts)} hosts")
    chosen = [host for hosts, count in zip(racks.values(), counts, strict=True) for host in hosts[:count]]
    if workers not in (None, len(chosen)):
        raise WorkloadError(f"{workers} workers are not the {len(chosen)} of the placement")
    if not chosen:
        raise WorkloadError("a placement without workers is none")
    return chosen
