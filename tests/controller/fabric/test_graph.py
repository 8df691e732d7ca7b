"""Use of spines: which ones can be used, and how traffic is spread over them."""

from __future__ import annotations

from itertools import combinations

import pytest

from controller.fabric.graph import ALL_UP, Graph, LinkState, spread
from tests.controller.bench import fabric

GRAPH = Graph.of(fabric((2, 2, 1), spines=2))


def test_links_are_counted_by_spine() -> None:
    assert [(link.name, link.leaf_port, link.spine_port, link.index) for link in GRAPH.uplinks("l3")] == [
        ("l3:s1", 101, 3, 0),
        ("l3:s2", 102, 3, 1),
    ]
    assert [link.leaf for link in GRAPH.downlinks("s2")] == ["l1", "l2", "l3"]
    assert Graph.of(fabric((4,), spines=0)).links == ()


@pytest.mark.parametrize(
    ("state", "leaves", "spines"),
    [
        (ALL_UP, ("l1", "l2", "l3"), ("s1", "s2")),
        (LinkState(down=frozenset({"l2:s1"})), ("l1", "l2"), ("s2",)),
        (LinkState(down=frozenset({"l2:s1"})), ("l1", "l3"), ("s1", "s2")),
        (LinkState(lost=frozenset({"s2"})), ("l1", "l3"), ("s1",)),
        (LinkState(drained=frozenset({"s1"})), ("l1", "l3"), ("s2",)),
        (LinkState(drained=frozenset({"l1:s1", "l3:s2"})), ("l1", "l3"), ()),
    ],
)
def test_a_spine_is_usable_if_all_leaves_can_reach_it(
    state: LinkState, leaves: tuple[str, ...], spines: tuple[str, ...]
) -> None:
    assert GRAPH.common_spines(leaves, state) == spines


def test_why_no_spine_joins_leaves_is_said_for_each() -> None:
    state = LinkState(down=frozenset({"l2:s1"}), drained=frozenset({"s2"}))
    assert GRAPH.why_apart(("l1", "l2"), state) == ("no spine joins l1, l2 (l2:s1: no answer; s2 is drained)")
    assert GRAPH.why_apart(("l1", "l3"), LinkState(lost=frozenset({"s1", "s2"}))) == (
        "no spine joins l1, l3 (s1 is away; s2 is away)"
    )


@pytest.mark.parametrize("count", [12, 16])
@pytest.mark.parametrize("spines", [1, 2, 3, 4])
def test_traffic_is_spread_evenly_and_what_works_stays_where_it_is(count: int, spines: int) -> None:
    names = [f"s{n}" for n in range(1, spines + 1)]
    before = spread(count, names, names)
    for usable in (set(some) for n in range(1, spines + 1) for some in combinations(names, n)):
        after = spread(count, names, usable)
        loads = [after.count(name) for name in usable]
        assert len(after) == count
        assert sum(loads) == count
        assert max(loads) - min(loads) <= 1
        assert all(now == was for now, was in zip(after, before, strict=True) if was in usable)
    assert spread(count, names, ()) == ()
