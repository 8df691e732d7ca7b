"""Several GPUs a machine: the ways to sum over them, and the time of each in closed form.

A machine has n GPUs behind one NIC; H machines have P = nH. Each GPU passes data on inside its machine by a
channel, which is k times as fast as the NIC, both ways. Headers and latencies are free, and only channels and
NICs take time. Local rank g of all machines makes up *plane* g. Times are in units of the tensor over the
NIC's rate; those of the flat ring and of the ring of machines are 2(N-1)/N (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from p4reduce.workloads.bounds import Fabric, ring_to_in_network
from p4reduce.workloads.strategies.names import (
    FLAT_RING,
    HIERARCHICAL,
    HIERARCHICAL_PHASES,
    HIERARCHICAL_RING,
    IN_NETWORK,
    OF_SEVERAL_GPUS,
    REDUCE_BROADCAST,
)

ALL: Final = (*OF_SEVERAL_GPUS, IN_NETWORK)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Machines, GPUs a machine, and k: the rate inside a machine over the rate between machines."""

    hosts: int
    gpus_per_host: int
    k: float

    def __post_init__(self) -> None:
        if self.hosts < 2 or self.gpus_per_host < 1 or not self.k > 0:
            raise ValueError(f"{self} has no sums between machines")

    @property
    def gpus(self) -> int:
        return self.hosts * self.gpus_per_host


def tensors_of_time(strategy: str, shape: Shape) -> float:
    """Return the time of a sum, in units of the tensor over the NIC's rate."""
    return _TIMES[strategy](shape)


def link_bound_s(
    strategy: str, *, size: int, fabric: Fabric, gpus_per_host: int, intra_rate_mbit: float | None
) -> float:
    """Return the least time in seconds for `size` bytes a worker; `fabric` has the leaf of each worker.

    An uplink carries what a NIC carries. Planes take different uplinks, as many as there are.
    """
    rate = intra_rate_mbit
    shape = Shape(
        hosts=len(fabric.leaves) // gpus_per_host,
        gpus_per_host=gpus_per_host,
        k=math.inf if rate is None else rate / fabric.rate_mbit,
    )
    narrower = 1.0
    if len(set(fabric.leaves)) > 1 and fabric.uplink_rate_mbit is not None:
        ways = 1 if strategy in _RINGS_OF_ONE else max(1, min(gpus_per_host, fabric.uplinks))
        narrower = max(1.0, fabric.rate_mbit / (fabric.uplink_rate_mbit * ways))
    bound = max(tensors_of_time(strategy, shape), tensors_per_nic(strategy, shape) * narrower)
    return bound * size * 8 / (fabric.rate_mbit * 1e6)


def tensors_per_nic(strategy: str, shape: Shape) -> float:
    """Return the load of a NIC each way, in tensors."""
    return _CARRIED[strategy](shape)


def threshold_k(strategy: str, shape: Shape) -> float:
    """Return the k above which `hierarchical` or `hierarchical-phases` beats the flat ring; inf: never."""
    ring = ring_to_in_network(shape.gpus)
    if ring <= 1:
        return math.inf
    if strategy == HIERARCHICAL_PHASES:
        return ring_to_in_network(shape.gpus_per_host) / (ring - 1)
    return 0.0  # where k < 1, the channel bounds both, and the flat ring has more to carry over it


def speedup_of_iteration(share: float, workers: int) -> float:
    """Return S(f), the speed-up of an iteration in which a ring's sums take the share f.

    Sums in the network take 1 where the ring takes 2(N-1)/N, and nothing overlaps.
    """
    return 1 / (1 - share + share / ring_to_in_network(workers))


def _inside(shape: Shape) -> float:
    """Return the time of reduce-scatter and all-gather inside: 2(n-1)/n of the tensor over each channel."""
    return ring_to_in_network(shape.gpus_per_host) / shape.k


def _flat_ring(shape: Shape) -> float:
    slowest = min(1.0, shape.k) if shape.gpus_per_host > 1 else 1.0
    return ring_to_in_network(shape.gpus) / slowest


def _hierarchical_ring(shape: Shape) -> float:
    return _inside(shape) + ring_to_in_network(shape.hosts)


def _reduce_broadcast(shape: Shape) -> float:
    inside = 2 / shape.k if shape.gpus_per_host > 1 else 0.0
    return inside + ring_to_in_network(shape.hosts)


def _in_network(shape: Shape) -> float:
    return float(shape.gpus_per_host)


def _hierarchical(shape: Shape) -> float:
    return max(_inside(shape), 1.0)


def _hierarchical_phases(shape: Shape) -> float:
    return _inside(shape) + 1.0


_TIMES: Final[dict[str, Callable[[Shape], float]]] = {
    FLAT_RING: _flat_ring,
    HIERARCHICAL_RING: _hierarchical_ring,
    REDUCE_BROADCAST: _reduce_broadcast,
    IN_NETWORK: _in_network,
    HIERARCHICAL: _hierarchical,
    HIERARCHICAL_PHASES: _hierarchical_phases,
}
_CARRIED: Final[dict[str, Callable[[Shape], float]]] = {
    FLAT_RING: lambda shape: ring_to_in_network(shape.gpus),
    HIERARCHICAL_RING: lambda shape: ring_to_in_network(shape.hosts),
    REDUCE_BROADCAST: lambda shape: ring_to_in_network(shape.hosts),
    IN_NETWORK: lambda shape: float(shape.gpus_per_host),
    HIERARCHICAL: lambda shape: 1.0,
    HIERARCHICAL_PHASES: lambda shape: 1.0,
}
_RINGS_OF_ONE: Final = frozenset({FLAT_RING, REDUCE_BROADCAST})  # one connection between two racks
