"""Bounds by the links: the least time of a strategy if only payload takes time.

Links are full duplex. A strategy is its phases, one after the other. A phase is flows of payload at the same
time, and lasts as long as its busiest link direction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.halving_doubling import plan as halving_doubling

Phase = dict[tuple[int, int], float]  # (sender, receiver): share of the tensor


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The leaf of each rank, rates in Mbit/s, and the uplinks of a leaf (0: a rack)."""

    leaves: Sequence[str]
    rate_mbit: float
    uplink_rate_mbit: float | None = None
    uplinks: int = 0


def link_bound_s(strategy: str, *, size: int, fabric: Fabric) -> float:
    """Return the least time in seconds for `size` bytes a worker."""
    workers = len(fabric.leaves)
    if workers == 1:
        return 0.0
    if strategy == names.IN_NETWORK:
        return _switched(fabric, passes=1) * size
    if strategy == names.IN_NETWORK_16BIT:
        return _switched(fabric, passes=0.5) * size  # of float32
    if strategy == names.PARAMETER_SERVER_SWITCH:
        return _switched(fabric, passes=2) * size  # the push, and the pull with the others' zeros
    return size * sum(_phase_s(phase, fabric) for phase in _phases(strategy, fabric.leaves))


def ring_to_in_network(workers: int) -> float:
    """Return how many times as long a ring takes: 2(N-1)/N if headers are free (Patarasuk and Yuan, 2009)."""
    return 2 * (workers - 1) / workers


def _phases(strategy: str, leaves: Sequence[str]) -> list[Phase]:
    workers = len(leaves)
    if strategy in (names.RING, names.GLOO):
        share = ring_to_in_network(workers)
        order = _by_rack(leaves) if strategy == names.RING else list(range(workers))
        return [dict.fromkeys(zip(order, [*order[1:], order[0]], strict=True), share)]
    if strategy == names.HALVING_DOUBLING:
        return _halving_doubling(workers)
    if strategy == names.PARAMETER_SERVER:
        others = range(1, workers)
        return [{**{(rank, 0): 1.0 for rank in others}, **{(0, rank): 1.0 for rank in others}}]
    raise ValueError(f"no bound is known for {strategy}")


def _by_rack(leaves: Sequence[str]) -> list[int]:
    """Return the order of the job's own ring: rack after rack (fabric/trees.py). Gloo's ring is by rank."""
    racks = list(dict.fromkeys(leaves))
    return sorted(range(len(leaves)), key=lambda rank: racks.index(leaves[rank]))


def _halving_doubling(workers: int) -> list[Phase]:
    phases: list[Phase] = []
    steps = [halving_doubling(rank, workers) for rank in range(workers)]
    folds = {(rank, plan.folds_with): 1.0 for rank, plan in enumerate(steps) if plan.folds_with is not None}
    if folds:  # both ways, before and after
        phases += [folds, folds]
    for number in range(max(len(plan.partners) for plan in steps)):
        share = 2.0 ** -(number + 1)
        exchange = {(rank, plan.partners[number]): share for rank, plan in enumerate(steps) if plan.partners}
        phases += [exchange, exchange]
    return phases


def _switched(fabric: Fabric, *, passes: float) -> float:
    """Return seconds a byte: in a pass, each host and rack sends and receives the tensor over one uplink."""
    slowest = fabric.rate_mbit
    if len(set(fabric.leaves)) > 1 and fabric.uplink_rate_mbit is not None:
        slowest = min(slowest, fabric.uplink_rate_mbit)
    return passes * 8 / (slowest * 1e6)


def _phase_s(phase: Phase, fabric: Fabric) -> float:
    """Return seconds a byte of the tensor."""
    load: dict[tuple[str, str], float] = defaultdict(float)
    for (sender, receiver), share in phase.items():
        at_host = share * 8 / (fabric.rate_mbit * 1e6)
        load["up", str(sender)] += at_host
        load["down", str(receiver)] += at_host
        here, there = fabric.leaves[sender], fabric.leaves[receiver]
        if here != there and fabric.uplink_rate_mbit is not None:
            over_one = share * 8 / (fabric.uplink_rate_mbit * 1e6)  # a connection does not use two uplinks
            load["connection", f"{sender} {receiver}"] += over_one
            load["leaf up", here] += over_one / max(1, fabric.uplinks)
            load["leaf down", there] += over_one / max(1, fabric.uplinks)
    return max(load.values())
