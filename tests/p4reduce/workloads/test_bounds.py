"""Bounds that links set, worked out by hand."""

from __future__ import annotations

import pytest

from p4reduce.workloads.bounds import Fabric, link_bound_s, ring_to_in_network
from p4reduce.workloads.strategies import names

_SECOND = 100_000_000 // 8  # bytes that 100 Mbit/s carry in one


def in_a_rack(workers: int) -> Fabric:
    return Fabric(leaves=["s1"] * workers, rate_mbit=100.0)


@pytest.mark.parametrize(
    ("strategy", "workers", "seconds"),
    [
        (names.IN_NETWORK, 4, 1.0),
        (names.IN_NETWORK, 8, 1.0),
        (names.RING, 4, 1.5),
        (names.RING, 8, 1.75),
        (names.RING, 2, 1.0),
        (names.GLOO, 8, 1.75),
        (names.HALVING_DOUBLING, 8, 1.75),
        (names.HALVING_DOUBLING, 3, 3.0),  # fold, two halves, unfold: one tensor each
        (names.PARAMETER_SERVER, 4, 3.0),
        (names.PARAMETER_SERVER_SWITCH, 8, 2.0),
        (names.IN_NETWORK, 1, 0.0),
    ],
)
def test_in_a_rack(strategy: str, workers: int, seconds: float) -> None:
    assert link_bound_s(strategy, size=_SECOND, fabric=in_a_rack(workers)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("strategy", "uplink_rate", "seconds"),
    [
        (names.IN_NETWORK, 100.0, 1.0),
        (names.IN_NETWORK, 50.0, 2.0),  # by one of the two uplinks
        (names.RING, 100.0, 1.5),
        (names.RING, 25.0, 6.0),  # one connection leaves each rack, by one of the two uplinks
        (names.HALVING_DOUBLING, 25.0, 2 * (0.5 + 1.0)),  # two exchanges of a quarter cross, over 50 Mbit/s
        (names.PARAMETER_SERVER, 100.0, 3.0),
        (names.PARAMETER_SERVER, 25.0, 4.0),  # two tensors to the server's rack over 50 Mbit/s
    ],
)
def test_with_uplinks_between_two_racks_of_two(strategy: str, uplink_rate: float, seconds: float) -> None:
    fabric = Fabric(leaves=["l1", "l1", "l2", "l2"], rate_mbit=100.0, uplink_rate_mbit=uplink_rate, uplinks=2)
    assert link_bound_s(strategy, size=_SECOND, fabric=fabric) == pytest.approx(seconds)


def test_a_ring_goes_through_one_rack_after_the_other_and_gloos_by_rank() -> None:
    fabric = Fabric(leaves=["l1", "l2", "l1", "l2"], rate_mbit=100.0, uplink_rate_mbit=100.0, uplinks=1)
    assert link_bound_s(names.RING, size=_SECOND, fabric=fabric) == pytest.approx(1.5)
    assert link_bound_s(names.GLOO, size=_SECOND, fabric=fabric) == pytest.approx(3.0)


def test_the_gain_of_two_workers_is_none() -> None:
    assert [ring_to_in_network(workers) for workers in (2, 4, 8)] == [1.0, 1.5, 1.75]
