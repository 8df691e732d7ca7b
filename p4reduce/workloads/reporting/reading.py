"""Figures of a run that pages, tables and the verdict share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.hierarchy import Shape
from p4reduce.workloads.run_file import LinkBytes, Result, Run
from p4reduce.workloads.strategies import names

# In a run there is one kind: of hosts with one GPU, or with several.
_IN_NETWORK: Final = (names.IN_NETWORK, names.HIERARCHICAL, names.HIERARCHICAL_PHASES)
RINGS: Final = (names.RING, names.FLAT_RING)
# As people say them; what is unknown is called by its name.
NAMES: Final = {
    names.IN_NETWORK: "in-network",
    names.IN_NETWORK_16BIT: "in-network, 16 bits",
    names.RING: "ring",
    names.HALVING_DOUBLING: "halving-doubling",
    names.PARAMETER_SERVER: "parameter server",
    names.PARAMETER_SERVER_SWITCH: "parameter server + switch",
    names.GLOO: "Gloo over TCP",
    names.HIERARCHICAL: "hierarchical",
    names.HIERARCHICAL_PHASES: "hierarchical phases",
    names.HIERARCHICAL_RING: "hierarchical ring",
    names.FLAT_RING: "flat ring",
    names.REDUCE_BROADCAST: "reduce and broadcast",
}


@dataclass(frozen=True)
class Busiest:
    """The link that carried most one way, and its bytes."""

    link: str
    way: Literal["up", "down"]
    bytes: int


def name_of(strategy: str) -> str:
    """Return a strategy's name for people."""
    return NAMES.get(strategy, strategy)


def result_of(run: Run, strategy: str) -> Result | None:
    """Return that strategy's result; None if it did not run."""
    return next((result for result in run.results if result.strategy == strategy), None)


def switched_of(run: Run) -> Result | None:
    """Return in-network's result, or with several GPUs a host the hierarchy's; None if it did not run."""
    return _first(run, _IN_NETWORK)


def ring_of(run: Run) -> Result | None:
    """Return the result of the ring of all workers; None if it did not run."""
    return _first(run, RINGS)


def _first(run: Run, strategies: tuple[str, ...]) -> Result | None:
    return next((found for name in strategies if (found := result_of(run, name)) is not None), None)


def speedup(run: Run, result: Result) -> float | None:
    """Return how many times as fast as ring a result is, by the medians; None if no ring ran."""
    ring = ring_of(run)
    return ring.median_s / result.median_s if ring is not None else result.speedup_over_ring


def rate_bound(run: Run, result: Result | None = None) -> float | None:
    """Return the speed-up over ring that these links allow `result` (in-network).

    It differs from the textbook's bound if uplinks are narrow, or channels between GPUs slow.
    """
    found, ring = result or switched_of(run), ring_of(run)
    if found is None or ring is None or not found.link_bound_s or not ring.link_bound_s:
        return None
    return ring.link_bound_s / found.link_bound_s


def shape_of(run: Run) -> Shape | None:
    """Return the shape of the hosts that took part; None if they have one GPU, or links have no rate."""
    fabric = run.topology
    if fabric.gpus_per_host == 1 or fabric.rate_mbit is None:
        return None
    k = math.inf if fabric.intra_rate_mbit is None else fabric.intra_rate_mbit / fabric.rate_mbit
    hosts = workers(run) // fabric.gpus_per_host
    return Shape(hosts=hosts, gpus_per_host=fabric.gpus_per_host, k=k)


def workers(run: Run) -> int:
    """Return the number of workers that took part."""
    return max(result.workers for result in run.results)


def busiest(links: dict[str, LinkBytes]) -> Busiest | None:
    """Return the busiest link and way; None if no bytes were counted."""
    ways = [
        found
        for name, each in links.items()
        for found in (Busiest(name, "up", each.up), Busiest(name, "down", each.down))
    ]
    return max(ways, key=lambda way: way.bytes, default=None)


def uplinks(run: Run) -> tuple[str, ...]:
    """Return the links between switches."""
    switches = {switch.name for switch in run.topology.switches}
    return tuple(link for link in run.topology.links if link.partition(":")[0] in switches)


def rate_of(run: Run, link: str) -> float | None:
    """Return a link's rate in Mbit/s, each way; None if it has none."""
    if link in uplinks(run) and run.topology.uplink_rate_mbit is not None:
        return run.topology.uplink_rate_mbit
    return run.topology.rate_mbit


def checked(run: Run) -> Run:
    """Return the run if its parts fit together. WorkloadError says which do not."""
    if not run.results:
        skipped = "; ".join(f"{name}: {why}" for name, why in run.skipped.items())
        raise WorkloadError(
            f"the run has no results to report{f' ({skipped})' if skipped else ''}: measure again"
        )
    seen: set[str] = set()
    for result in run.results:
        where = f"results of {result.strategy!r}"
        if result.strategy in seen:
            raise WorkloadError(f"{where}: there are two; a strategy is measured once in a run")
        seen.add(result.strategy)
        if result.workers < 1 or result.bytes < 1:
            raise WorkloadError(f"{where}: {result.workers} workers and {result.bytes} bytes measure nothing")
        if min([result.median_s, result.min_s, result.max_s, *result.seconds]) <= 0:
            raise WorkloadError(f"{where}: a time is not above 0")
        _know_links(run, result.bytes_per_link, where)
    switches = {switch.name for switch in run.topology.switches}
    for host in run.topology.hosts:
        if host.switch not in switches:
            raise WorkloadError(
                f"topology: host {host.name!r} is behind {host.switch!r}, which is no switch of it"
            )
    ends = switches | {host.name for host in run.topology.hosts}
    for link in run.topology.links:
        if not set(link.split(":")) <= ends or link.count(":") != 1:
            raise WorkloadError(f"topology: link {link!r} does not join two of its hosts and switches")
    for strategy, samples in run.samples.items():
        for sample in samples:
            _know_links(run, sample.links, f"samples of {strategy!r}")
    return run


def _know_links(run: Run, links: dict[str, LinkBytes], where: str) -> None:
    unknown = sorted(set(links) - set(run.topology.links))
    if unknown:
        raise WorkloadError(f"{where}: the topology has no link {unknown[0]!r}")
