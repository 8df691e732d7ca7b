"""The closed forms, by the table that they are from."""

from __future__ import annotations

import math

import pytest

from p4reduce.workloads.bounds import Fabric
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.hierarchy import (
    ALL,
    Shape,
    link_bound_s,
    speedup_of_iteration,
    tensors_of_time,
    tensors_per_nic,
    threshold_k,
)
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.names import (
    FLAT_RING,
    HIERARCHICAL,
    HIERARCHICAL_PHASES,
    HIERARCHICAL_RING,
    IN_NETWORK,
    REDUCE_BROADCAST,
)

FOUR = Shape(hosts=4, gpus_per_host=4, k=2.0)


@pytest.mark.parametrize(
    ("strategy", "time", "carried"),
    [
        (FLAT_RING, 1.875, 1.875),
        (HIERARCHICAL_RING, 0.75 + 1.5, 1.5),
        (REDUCE_BROADCAST, 1.0 + 1.5, 1.5),
        (IN_NETWORK, 4.0, 4.0),
        (HIERARCHICAL_PHASES, 1.75, 1.0),
        (HIERARCHICAL, 1.0, 1.0),
    ],
)
def test_four_machines_of_four(strategy: str, time: float, carried: float) -> None:
    assert tensors_of_time(strategy, FOUR) == pytest.approx(time)
    assert tensors_per_nic(strategy, FOUR) == pytest.approx(carried)


def test_a_pipeline_takes_what_its_slowest_stage_takes() -> None:
    assert tensors_of_time(HIERARCHICAL, FOUR) == 1.0
    assert tensors_of_time(HIERARCHICAL, Shape(hosts=4, gpus_per_host=4, k=1.0)) == 1.5


@pytest.mark.parametrize(
    ("gpus_per_host", "hosts", "k"), [(4, 4, 1.714), (8, 4, 1.867), (8, 16, 1.778), (8, 128, 1.753)]
)
def test_from_which_k_on_the_hierarchy_pays(gpus_per_host: int, hosts: int, k: float) -> None:
    shape = Shape(hosts=hosts, gpus_per_host=gpus_per_host, k=1.0)
    assert threshold_k(HIERARCHICAL_PHASES, shape) == pytest.approx(k, abs=5e-4)
    assert threshold_k(HIERARCHICAL, shape) == 0


def test_at_the_threshold_both_take_the_same() -> None:
    k = threshold_k(HIERARCHICAL_PHASES, FOUR)
    there = Shape(hosts=4, gpus_per_host=4, k=k)
    both = [tensors_of_time(strategy, there) for strategy in (HIERARCHICAL_PHASES, FLAT_RING)]
    assert both[0] == pytest.approx(both[1])


def test_two_gpus_gain_nothing_and_single_ones_need_no_channel() -> None:
    for strategy in (HIERARCHICAL, HIERARCHICAL_PHASES):
        assert threshold_k(strategy, Shape(hosts=2, gpus_per_host=1, k=1.0)) == math.inf
    alone = Shape(hosts=8, gpus_per_host=1, k=0.01)
    assert [tensors_of_time(strategy, alone) for strategy in ALL] == [1.0, 1.0, 1.75, 1.75, 1.75, 1.0]
    assert threshold_k(HIERARCHICAL_PHASES, alone) == 0


def test_a_slow_channel_bounds_the_flat_ring() -> None:
    assert tensors_of_time(FLAT_RING, Shape(hosts=4, gpus_per_host=4, k=0.5)) == 3.75


def test_the_speedup_of_an_iteration() -> None:
    assert speedup_of_iteration(0.0, 8) == 1
    assert speedup_of_iteration(1.0, 8) == 1.75
    assert speedup_of_iteration(5 / 6, 6) == pytest.approx(1.5)  # the share 0.83 of six machines


def test_strategies_by_name() -> None:
    assert names.strategies_of("all", ALL) == ALL
    assert names.strategies_of(" Hierarchical, flat-ring", ALL) == (HIERARCHICAL, FLAT_RING)
    for text, message in (("ring", "'ring' is no strategy; there are hierarchical,"), ("", "no strategy"),
                          ("flat-ring,flat-ring", "given twice")):  # fmt: skip
        with pytest.raises(WorkloadError, match=message):
            names.strategies_of(text, ALL)


@pytest.mark.parametrize("wrong", [{"hosts": 1}, {"gpus_per_host": 0}, {"k": 0.0}])
def test_shapes_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no sums between machines"):
        Shape(**{"hosts": 4, "gpus_per_host": 4, "k": 1.0, **wrong})  # type: ignore[arg-type]


def test_what_links_allow_on_hosts_with_several_gpus() -> None:
    """8 Mbit/s carry a megabyte a second."""

    def bound(strategy: str, fabric: Fabric, rate: float | None) -> float:
        return link_bound_s(strategy, size=1_000_000, fabric=fabric, gpus_per_host=4, intra_rate_mbit=rate)

    rack = Fabric(leaves=["s1"] * 16, rate_mbit=8.0)
    assert bound(HIERARCHICAL, rack, 16.0) == 1.0
    assert bound(names.HIERARCHICAL_PHASES, rack, 16.0) == 1.75
    assert bound(names.HIERARCHICAL_PHASES, rack, None) == 1.0
    assert bound(FLAT_RING, rack, 16.0) == 1.875
    narrow = Fabric(leaves=["l1"] * 8 + ["l2"] * 8, rate_mbit=8.0, uplink_rate_mbit=4.0, uplinks=2)
    assert bound(HIERARCHICAL, narrow, None) == 1.0  # two planes on each of two uplinks
    assert bound(FLAT_RING, narrow, None) == 3.75  # a connection has one of them


@pytest.mark.parametrize(
    ("text", "there", "message"),
    [
        (
            "ring",
            names.OF_SEVERAL_GPUS,
            "strategy ring is for hosts with one GPU .--gpus-per-host.; here there are hierarchical, ",
        ),
        ("hierarchical", names.ALL, "strategy hierarchical is for hosts with several GPUs"),
        ("fastest", names.OF_SEVERAL_GPUS, "'fastest' is no strategy; there are hierarchical, "),
    ],
)
def test_which_strategies_are_of_which_hosts(text: str, there: tuple[str, ...], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        names.strategies_of(text, there)
