"""Parts that the collectives share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.messages import Mode
from host_agent.collectives.plan import Strategy, cheaper, choose, ring_parts
from host_agent.wire.aggregation import Kind


@given(st.integers(0, 1000), st.integers(1, 32))
def test_a_rings_parts_cover_the_tensor_and_differ_by_one_element_at_most(elements: int, ranks: int) -> None:
    parts = ring_parts(elements, ranks)
    assert [i for part in parts for i in range(elements)[part]] == list(range(elements))
    sizes = [part.stop - part.start for part in parts]
    assert len(parts) == ranks
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == -(-elements // ranks)


def test_auto_takes_the_switch_where_it_helps_and_the_ring_where_there_is_none() -> None:
    assert choose(Strategy.AUTO, Mode.IN_NETWORK, auto=Strategy.IN_NETWORK) is Strategy.IN_NETWORK
    assert choose(Strategy.AUTO, Mode.IN_NETWORK, auto=Strategy.RING) is Strategy.RING
    assert choose(Strategy.RING, Mode.IN_NETWORK, auto=Strategy.IN_NETWORK) is Strategy.RING
    assert choose(Strategy.AUTO, Mode.RING, auto=Strategy.IN_NETWORK) is Strategy.RING


def test_asking_for_the_switch_where_there_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="no switch aggregates"):
        choose(Strategy.IN_NETWORK, Mode.RING, auto=Strategy.IN_NETWORK)


@pytest.mark.parametrize("world_size", range(2, 33))
def test_the_switch_is_cheaper_for_every_sum_and_for_what_is_small(world_size: int) -> None:
    for nbytes in (0, 4, 5000, 10**6, 10**9):
        for kind in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST, Kind.BARRIER):
            for scaled in (False, True):
                assert cheaper(kind, nbytes, world_size, scaled=scaled) is Strategy.IN_NETWORK
    for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
        assert cheaper(kind, 10**8, world_size) is Strategy.RING  # which sends an N-th less
        if world_size > 3:
            assert cheaper(kind, 1000, world_size) is Strategy.IN_NETWORK
