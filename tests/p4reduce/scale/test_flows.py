"""Rates are max-min fair, and flows end when their bytes are through."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.scale.flows import Flow, Link, Network, max_min


def rates(flows: list[Flow], capacities: Mapping[Link, float]) -> list[float]:
    return [float(rate) for rate in max_min(flows, capacities)]


def over(*links: str, size: float = 1.0, limit: float = math.inf) -> Flow:
    return Flow(size=size, loads=dict.fromkeys(links, 1.0), limit=limit)


def test_who_shares_a_link_has_the_same() -> None:
    assert rates([over("a"), over("a"), over("a")], {"a": 9.0}) == pytest.approx([3, 3, 3])


def test_what_one_cannot_use_others_have() -> None:
    """Bertsekas and Gallager's example: a long flow is held by the link with the most on it."""
    flows = [over("a", "b"), over("a"), over("b"), over("b")]
    assert rates(flows, {"a": 12.0, "b": 6.0}) == pytest.approx([2, 10, 2, 2])


def test_a_limit_leaves_the_rest_to_others() -> None:
    assert rates([over("a", limit=1.0), over("a")], {"a": 10.0}) == pytest.approx([1, 9])
    assert rates([Flow(size=1, loads={}, limit=4.0)], {}) == [4.0]


def test_a_coflow_has_one_rate_on_a_tree_and_loads_count() -> None:
    """Four workers of a machine share its NIC; the uplink has their sum once."""
    tree = Flow(size=1, loads={"NIC": 4, "uplink": 1})
    assert rates([tree], {"NIC": 8.0, "uplink": 8.0}) == pytest.approx([2])
    assert rates([tree, over("uplink")], {"NIC": 8.0, "uplink": 8.0}) == pytest.approx([2, 6])
    assert rates([tree, over("NIC")], {"NIC": 10.0, "uplink": 9.0}) == pytest.approx([2, 2])


LINKS = "abcde"
FLOWS = st.lists(
    st.builds(
        Flow,
        size=st.just(1.0),
        loads=st.dictionaries(st.sampled_from(LINKS), st.floats(0.1, 8.0), min_size=1),
        limit=st.one_of(st.just(math.inf), st.floats(0.01, 100.0)),
    ),
    min_size=1,
    max_size=12,
)
CAPACITIES = st.fixed_dictionaries({link: st.floats(0.5, 100.0) for link in LINKS})


@given(flows=FLOWS, capacities=CAPACITIES)
def test_no_link_has_too_much_and_every_flow_has_a_bottleneck(
    flows: list[Flow], capacities: Mapping[Link, float]
) -> None:
    """Max-min fair is: a flow is at its limit, or on a full link of which nobody else has more."""
    found = rates(flows, capacities)
    used: dict[Link, float] = {
        link: math.fsum(rate * flow.loads.get(link, 0.0) for flow, rate in zip(flows, found, strict=True))
        for link in LINKS
    }
    assert all(used[link] <= capacities[link] * (1 + 1e-6) for link in LINKS)
    for flow, rate in zip(flows, found, strict=True):
        assert rate <= flow.limit * (1 + 1e-6)
        full = [link for link in flow.loads if used[link] >= capacities[link] * (1 - 1e-6)]
        most = [
            max(r for f, r in zip(flows, found, strict=True) if link in f.loads) <= rate * (1 + 1e-6)
            for link in full
        ]
        assert rate >= flow.limit * (1 - 1e-6) or any(most)


@given(flows=FLOWS, capacities=CAPACITIES, seed=st.randoms(use_true_random=False))
def test_the_order_of_flows_does_not_matter(
    flows: list[Flow], capacities: Mapping[Link, float], seed: object
) -> None:
    order = list(range(len(flows)))
    seed.shuffle(order)  # type: ignore[attr-defined]
    found = rates(flows, capacities)
    assert rates([flows[place] for place in order], capacities) == pytest.approx([found[p] for p in order])


def test_rates_change_when_flows_come_and_go() -> None:
    network = Network({"a": 10.0})
    ends: dict[str, float] = {}
    network.start(over("a", size=50), lambda: ends.update(first=network.now))
    network.after(2.0, lambda: network.start(over("a", size=20), lambda: ends.update(second=network.now)))
    # 20 alone; then 5 each a second: the second ends at 6, the first has 10 left.
    assert network.run() == pytest.approx(7)
    assert ends == {"first": pytest.approx(7), "second": pytest.approx(6)}
    assert network.carried == {"a": 70}


def test_flows_of_no_bytes_end_at_once_and_equal_ones_together() -> None:
    network, ended = Network({"a": 10.0}), []
    for name, size in (("x", 0.0), ("y", 30.0), ("z", 30.0)):
        network.start(over("a", size=size), lambda name=name: ended.append((name, network.now)))  # type: ignore[misc]
    network.run()
    assert ended == [("x", 0.0), ("y", pytest.approx(6)), ("z", pytest.approx(6))]


@pytest.mark.parametrize("wrong", [{"size": -1.0}, {"limit": 0.0}, {"loads": {"a": 0.0}}, {"loads": {}}])
def test_flows_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="rate"):
        Flow(**{"size": 1.0, "loads": {"a": 1.0}, **wrong})  # type: ignore[arg-type]
