"""One sum over all GPUs, by each strategy: its time on a simulated fabric, and the bytes that a NIC carries.

Rings send in steps, each part when the predecessor's part is there. A sum in the network is a coflow: it has
one rate on all links of its tree, and not more than its window allows. docs/scale.md lists what is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p4reduce.scale.fabric import GPU_IN, GPU_OUT, NIC_DOWN, NIC_UP, Fabric, downlink, uplink
from p4reduce.scale.flows import Flow, Link, max_min
from p4reduce.scale.pipeline import MAX_PIECES, Stages, pieces_of, play
from p4reduce.scale.ring import ring_s
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.names import IN_NETWORK


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Duration of a sum, and the bytes on the wire, each way, at a machine's NIC."""

    seconds: float
    nic_bytes: float


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """`size` bytes a GPU. `floats`: the elements need scales first if a switch adds them up.

    `piece`: bytes of each plane in a piece of `hierarchical`'s pipeline; None: `default_piece`.
    """

    size: int
    floats: bool = True
    piece: int | None = None


def simulate(strategy: str, sizes: Sizes, fabric: Fabric) -> Sum:
    """Simulate one sum with nothing else on the fabric."""
    return _STRATEGIES[strategy](sizes, fabric)


def default_piece(fabric: Fabric, size: int) -> int:
    """Return the bytes of a plane in a piece.

    It is the most of a window, 1 MiB of the tensor, and what leaves `MAX_PIECES` pieces.
    """
    n = fabric.gpus_per_host
    return max(fabric.framing.window_bytes, 2**20 // n, -(-size // n // MAX_PIECES))


def _flat_ring(sizes: Sizes, fabric: Fabric) -> Sum:
    """Simulate a ring through the ranks of machine after machine: of n hops, all but one stay inside."""
    n = fabric.gpus_per_host
    part = sizes.size / fabric.gpus
    to_next, ways = _machine_hops(fabric, part, planes=1)
    inside = part * 8 / fabric.intra_rate
    sends = np.full((fabric.hosts, n), inside)
    latencies = np.full((fabric.hosts, n), fabric.alpha_s)
    sends[:, -1], latencies[:, -1] = to_next[0], ways
    steps = 2 * (fabric.gpus - 1)
    return Sum(
        seconds=ring_s(sends.ravel(), latencies.ravel(), steps=steps),
        nic_bytes=steps * fabric.framing.wire_bytes(part),
    )


def _hierarchical_ring(sizes: Sizes, fabric: Fabric) -> Sum:
    """Simulate a reduce-scatter inside, a ring of machines for each plane at once, an all-gather inside."""
    n, share = fabric.gpus_per_host, sizes.size / fabric.gpus_per_host
    inside = (n - 1) * (fabric.alpha_s + share * 8 / fabric.intra_rate)
    between = _ring_of_machines(share, fabric, planes=n)
    return Sum(seconds=2 * inside + between.seconds, nic_bytes=between.nic_bytes)


def _reduce_broadcast(sizes: Sizes, fabric: Fabric) -> Sum:
    """Simulate a chain of GPUs inside, message behind message, a ring of machines, and the chain back."""
    n, between = fabric.gpus_per_host, _ring_of_machines(sizes.size, fabric, planes=1)
    if n == 1:
        return between
    message = min(sizes.size, fabric.framing.payload_bytes)
    chain = (sizes.size + (n - 2) * message) * 8 / fabric.intra_rate + (n - 1) * fabric.alpha_s
    return Sum(seconds=2 * chain + between.seconds, nic_bytes=between.nic_bytes)


def _in_network(sizes: Sizes, fabric: Fabric) -> Sum:
    """Simulate a sum in which each GPU is a worker: n tensors over each NIC, one over an uplink."""
    n, framing = fabric.gpus_per_host, fabric.framing
    size = framing.wire_bytes(sizes.size)
    if sizes.floats:
        size += framing.announcement_bytes(sizes.size)
    tree = tree_flow(fabric, size, plane=0, workers=n)
    seconds = size / float(max_min([tree], fabric.capacities())[0])
    return Sum(seconds=seconds + fabric.tree_s(size) + _agreed_s(sizes, fabric), nic_bytes=n * size)


def _hierarchical(sizes: Sizes, fabric: Fabric) -> Sum:
    """Simulate pieces in a pipeline: reduce-scatter inside, each plane in the network, all-gather inside."""
    piece = default_piece(fabric, sizes.size) if sizes.piece is None else sizes.piece
    return _by_planes(sizes, fabric, pieces_of(sizes.size / fabric.gpus_per_host, piece))


def _hierarchical_phases(sizes: Sizes, fabric: Fabric) -> Sum:
    """Simulate the same stages with one piece: they are phases, one after the other."""
    return _by_planes(sizes, fabric, [sizes.size / fabric.gpus_per_host])


def _by_planes(sizes: Sizes, fabric: Fabric, pieces: Sequence[float]) -> Sum:
    n, framing = fabric.gpus_per_host, fabric.framing
    if n == 1:
        return _in_network(sizes, fabric)
    before = framing.announcement_bytes(sizes.size / n) if sizes.floats else 0

    def in_the_network(number: int, plane: int) -> Flow:
        size = framing.wire_bytes(pieces[number]) + (before if number == 0 else 0)
        return tree_flow(fabric, size, plane=plane, workers=1)

    def inside(number: int) -> Flow:
        return Flow(size=(n - 1) * pieces[number], loads={GPU_OUT: 1, GPU_IN: 1})

    stages = Stages(
        pieces=len(pieces),
        planes=n,
        inside=inside,
        inside_s=(n - 1) * fabric.alpha_s,
        in_the_network=in_the_network,
        in_the_network_s=fabric.tree_s(framing.wire_bytes(pieces[0])),
    )
    played = play(stages, fabric.capacities(), begin_s=_agreed_s(sizes, fabric))
    return Sum(seconds=played.seconds, nic_bytes=played.carried[NIC_UP])


def _agreed_s(sizes: Sizes, fabric: Fabric) -> float:
    """Return the time until all workers have the scales of the first message of floats."""
    return fabric.tree_s(fabric.framing.announcement_bytes(1)) if sizes.floats else 0.0


def tree_flow(fabric: Fabric, size: float, *, plane: int, workers: int) -> Flow:
    """Make the coflow of `workers` of each machine, up to the switch that completes the sum, and back."""
    loads: dict[Link, float] = {NIC_UP: workers, NIC_DOWN: workers}
    if fabric.racks > 1:
        spine = fabric.spine(plane)
        loads |= {uplink(spine): 1, downlink(spine): 1}
    return Flow(size=size, loads=loads, limit=fabric.window_limit(crosses=fabric.racks > 1))


def _ring_of_machines(size: float, fabric: Fabric, *, planes: int) -> Sum:
    """Simulate a ring of machines for each of `planes`, with `size` bytes each; the slowest plane counts."""
    part, steps = size / fabric.hosts, 2 * (fabric.hosts - 1)
    by_plane, ways = _machine_hops(fabric, part, planes=planes)
    kinds = {sends.tobytes(): sends for sends in by_plane}.values()
    return Sum(
        seconds=max(ring_s(sends, ways, steps=steps) for sends in kinds),
        nic_bytes=planes * steps * fabric.framing.wire_bytes(part),
    )


def _machine_hops(
    fabric: Fabric, part: float, *, planes: int
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Return how long each machine sends a part to the next, by plane, and how long the part is under way."""
    crosses = np.zeros(fabric.hosts, dtype=bool)
    if fabric.racks > 1:
        crosses[fabric.leaf_hosts - 1 :: fabric.leaf_hosts] = True
        crosses[-1] = True
    size = fabric.framing.wire_bytes(part)
    ways = np.where(crosses, fabric.way_s(size, crosses=True), fabric.way_s(size, crosses=False))
    near = size / machine_hop_rates(fabric, planes, crosses=False)
    if not crosses.any():
        return [np.full(fabric.hosts, near[plane]) for plane in range(planes)], ways
    far = size / machine_hop_rates(fabric, planes, crosses=True)
    return [np.where(crosses, far[plane], near[plane]) for plane in range(planes)], ways


def machine_hop_rates(fabric: Fabric, planes: int, *, crosses: bool) -> NDArray[np.float64]:
    """Return the rates of the connections from one machine to the next, one a plane."""
    flows = []
    for plane in range(planes):
        loads: dict[Link, float] = {NIC_UP: 1, NIC_DOWN: 1}
        if crosses:
            spine = fabric.spine(plane)
            loads |= {uplink(spine): 1, downlink(spine): 1}
        limit = fabric.window_limit(crosses=crosses, answer_s=fabric.way_s(0, crosses=crosses))
        flows.append(Flow(size=1, loads=loads, limit=limit))
    return max_min(flows, fabric.capacities())


_STRATEGIES: Final[dict[str, Callable[[Sizes, Fabric], Sum]]] = {
    names.HIERARCHICAL: _hierarchical,
    names.HIERARCHICAL_PHASES: _hierarchical_phases,
    names.HIERARCHICAL_RING: _hierarchical_ring,
    names.FLAT_RING: _flat_ring,
    names.REDUCE_BROADCAST: _reduce_broadcast,
    IN_NETWORK: _in_network,
}
