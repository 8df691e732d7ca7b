"""Each strategy beside its closed form, beside a fabric of which every link is there, and bound otherwise."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from p4reduce.scale.fabric import Fabric
from p4reduce.scale.flows import Flow, Link, max_min
from p4reduce.scale.strategies import Sizes, machine_hop_rates, simulate, tree_flow
from p4reduce.workloads import hierarchy
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.names import IN_NETWORK
from tests.p4reduce.scale.fabrics import FACTOR, RATE, fabric

SIZE = 1 << 30
TENSOR_S = SIZE * 8 / RATE


def time_of(strategy: str, on: Fabric, *, piece: int | None = None, size: int = SIZE) -> float:
    """Return the time, in times of one tensor at the rate between machines."""
    return simulate(strategy, Sizes(size=size, piece=piece), on).seconds / (size * 8 / RATE)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", hierarchy.ALL)
@pytest.mark.parametrize(
    ("gpus_per_host", "hosts"), [(1, 2), (1, 8), (2, 3), (4, 4), (8, 4), (8, 16), (8, 128)]
)
@pytest.mark.parametrize("k", [1.0, 2.0, 8.0])
def test_closed_forms(strategy: str, gpus_per_host: int, hosts: int, k: float) -> None:
    on = fabric(hosts=hosts, gpus_per_host=gpus_per_host, k=k)
    shape = hierarchy.Shape(hosts=hosts, gpus_per_host=gpus_per_host, k=k)  # of payload: headers are paid for
    expected = hierarchy.tensors_of_time(strategy, shape)
    assert time_of(strategy, on) == pytest.approx(expected, rel=0.01)
    carried = simulate(strategy, Sizes(size=SIZE), on).nic_bytes / FACTOR / SIZE
    assert carried == pytest.approx(hierarchy.tensors_per_nic(strategy, shape), rel=0.01)


@pytest.mark.parametrize(("k", "ratio"), [(1, 0.75), (2, 1.07), (4, 1.36), (8, 1.58)])
def test_flat_ring_over_hierarchical_phases_at_four_by_four(k: float, ratio: float) -> None:
    on = fabric(hosts=4, gpus_per_host=4, k=k)
    found = time_of(names.FLAT_RING, on) / time_of(names.HIERARCHICAL_PHASES, on)
    assert found == pytest.approx(ratio, rel=0.01)


def test_in_a_pipeline_it_wins_by_the_whole_ratio() -> None:
    on = fabric(hosts=4, gpus_per_host=4, k=2)
    found = time_of(names.FLAT_RING, on) / time_of(names.HIERARCHICAL, on)
    assert found == pytest.approx(1.875, rel=0.01)


@pytest.mark.parametrize(("gpus_per_host", "hosts"), [(4, 4), (8, 4), (8, 16)])
def test_the_crossing_is_where_the_formula_has_it(gpus_per_host: int, hosts: int) -> None:
    def ahead(k: float) -> bool:
        on = fabric(hosts=hosts, gpus_per_host=gpus_per_host, k=k)
        return time_of(names.HIERARCHICAL_PHASES, on) < time_of(names.FLAT_RING, on)

    low, high = 1.0, 4.0
    assert not ahead(low)
    assert ahead(high)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if ahead(middle) else (middle, high)
    shape = fabric(hosts=hosts, gpus_per_host=gpus_per_host).shape
    expected = hierarchy.threshold_k(names.HIERARCHICAL_PHASES, shape)
    assert high == pytest.approx(expected, rel=0.01)


class Whole:
    """Every machine, NIC and uplink of a fabric, and every flow on them."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.capacities: dict[Link, float] = {}
        for host in range(fabric.hosts):
            self.capacities |= {("up", host): fabric.rate / 8, ("down", host): fabric.rate / 8}
        for rack in range(fabric.racks):
            for spine in range(fabric.spines):
                between = fabric.uplink_rate / 8
                self.capacities |= {("up", rack, spine): between, ("down", rack, spine): between}

    def rack(self, host: int) -> int:
        return host // self.fabric.leaf_hosts

    def hop(self, plane: int, host: int, limits: dict[bool, float]) -> Flow:
        """Return the flow from a machine to the next one."""
        following = (host + 1) % self.fabric.hosts
        loads: dict[Link, float] = {("up", host): 1, ("down", following): 1}
        crosses = self.rack(host) != self.rack(following)
        if crosses:
            spine = self.fabric.spine(plane)
            loads |= {("up", self.rack(host), spine): 1, ("down", self.rack(following), spine): 1}
        return Flow(size=1, loads=loads, limit=limits[crosses])

    def tree(self, plane: int, limit: float) -> Flow:
        loads: dict[Link, float] = {link: 1 for link in self.capacities if len(link) == 2}  # type: ignore[arg-type]
        if self.fabric.racks > 1:
            spine = self.fabric.spine(plane)
            loads |= {(way, rack, spine): 1 for way in ("up", "down") for rack in range(self.fabric.racks)}
        return Flow(size=1, loads=loads, limit=limit)


@pytest.mark.parametrize("uplink_share", [0.2, 0.7, 5.0])
@pytest.mark.parametrize(
    ("hosts", "leaf_hosts", "spines", "planes"),
    [(4, 4, 2, 3), (5, 2, 2, 3), (6, 2, 3, 8), (8, 4, 4, 8), (7, 3, 1, 2)],
)
def test_one_machine_stands_for_all(
    hosts: int, leaf_hosts: int, spines: int, planes: int, uplink_share: float
) -> None:
    on = fabric(
        hosts=hosts,
        gpus_per_host=planes,
        leaf_hosts=leaf_hosts,
        spines=spines,
        uplink_rate=uplink_share * RATE,
    )
    whole = Whole(on)
    limits = dict.fromkeys((False, True), 1e12)
    every = max_min(
        [whole.hop(plane, host, limits) for plane in range(planes) for host in range(hosts)], whole.capacities
    ).reshape(planes, hosts)
    for host in range(hosts):
        crosses = whole.rack(host) != whole.rack((host + 1) % hosts)
        np.testing.assert_allclose(every[:, host], machine_hop_rates(on, planes, crosses=crosses), rtol=1e-9)
    limit = on.window_limit(crosses=on.racks > 1)
    np.testing.assert_allclose(
        max_min([whole.tree(plane, limit) for plane in range(planes)], whole.capacities),
        max_min(
            [tree_flow(on, 1, plane=plane, workers=1) for plane in range(planes)], on.capacities()
        ),
        rtol=1e-9,
    )  # fmt: skip


def test_uplinks_that_are_too_thin_bound_what_crosses_them() -> None:
    """Eight planes by four spines, each uplink with half of what a NIC has: two planes share half a NIC."""
    two_racks: dict[str, Any] = {"hosts": 32, "gpus_per_host": 8, "spines": 4}
    thin = fabric(**two_racks, uplink_rate=RATE * FACTOR / 8)
    assert time_of(names.HIERARCHICAL, thin, piece=1 << 19) == pytest.approx(2.0, rel=0.01)
    assert time_of(IN_NETWORK, thin) == pytest.approx(8.0, rel=0.01)  # 8 over the NIC, one over the uplink
    one = fabric(hosts=32, gpus_per_host=1, uplink_rate=RATE * FACTOR / 8)
    assert time_of(IN_NETWORK, one) == pytest.approx(8.0, rel=0.01)
    assert time_of(names.FLAT_RING, one) == pytest.approx(8 * 2 * 31 / 32, rel=0.01)


def test_a_small_window_bounds_a_long_way() -> None:
    """A window each time that its first message is there and back."""
    on = fabric(hosts=4, gpus_per_host=1, alpha_s=100e-6)
    message, wire = on.framing.payload_bytes, on.framing.wire_bytes(on.framing.payload_bytes)
    round_trip = 200e-6 + (wire + on.framing.packet_bytes) * 8 / on.rate
    expected = SIZE / (8 * message / round_trip)
    assert simulate(IN_NETWORK, Sizes(size=SIZE), on).seconds == pytest.approx(expected, rel=0.01)


def test_what_latencies_cost() -> None:
    """Check a few bytes: they pay a tree's way once, for floats twice, and a ring's in each of its steps."""
    on = fabric(hosts=8, gpus_per_host=1, alpha_s=1e-3)
    few = Sizes(size=64)
    assert simulate(IN_NETWORK, few, on).seconds == pytest.approx(4e-3, rel=0.01)
    assert simulate(IN_NETWORK, Sizes(size=64, floats=False), on).seconds == pytest.approx(2e-3, rel=0.01)
    assert simulate(names.FLAT_RING, few, on).seconds == pytest.approx(14 * 2e-3, rel=0.01)
    eight = fabric(hosts=2, gpus_per_host=8, alpha_s=1e-3)
    inside, tree = 7 * 1e-3, 2e-3
    found = simulate(names.HIERARCHICAL, few, eight).seconds
    assert found == pytest.approx(tree + inside + tree + inside, rel=0.01)
    # A ring of 16, of whose hops two are of 2 ms: 30 steps go round nearly twice.
    assert simulate(names.FLAT_RING, few, eight).seconds == pytest.approx(30e-3 + 4e-3, rel=0.01)


def test_time_never_falls_with_size() -> None:
    on = fabric(hosts=20, gpus_per_host=8, alpha_s=1e-6)
    for strategy in hierarchy.ALL:
        times = [simulate(strategy, Sizes(size=2**power), on).seconds for power in range(3, 28)]
        assert all(math.isfinite(time) for time in times)
        # A piece more may be a little faster than one that is as long as they come.
        assert all(later >= 0.9 * earlier for earlier, later in itertools.pairwise(times)), strategy
