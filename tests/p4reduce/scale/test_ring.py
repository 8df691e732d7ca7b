"""A ring's steps, by hand and beside the same ring of which every part is a flow of its own."""

from __future__ import annotations

import numpy as np
import pytest

from p4reduce.scale.flows import Flow, Network
from p4reduce.scale.ring import ring_s


def by_events(sends_s: list[float], latencies_s: list[float], *, steps: int) -> float:
    """Simulate a ring with a flow on its hop's own link for each part, and an event for each arrival."""
    size, bytes_ = len(sends_s), 1000.0
    network = Network({hop: bytes_ / sends_s[hop] for hop in range(size)})
    sent, arrived, started = [0] * size, [0] * size, [0] * size

    def go(rank: int) -> None:
        """Start the next part, where the one from behind is there and the last one has gone."""
        step = started[rank]
        if step == steps or sent[rank] < step or arrived[rank] < step:
            return
        started[rank] += 1

        def was_sent() -> None:
            sent[rank] += 1
            network.after(latencies_s[rank], was_received)
            go(rank)

        def was_received() -> None:
            following = (rank + 1) % size
            arrived[following] += 1
            go(following)

        network.start(Flow(size=bytes_, loads={rank: 1}), was_sent)

    for rank in range(size):
        go(rank)
    return network.run()


def test_where_all_hops_are_alike_a_step_is_a_part_and_its_way() -> None:
    assert ring_s(np.full(8, 2.0), np.full(8, 0.5), steps=14) == pytest.approx(14 * 2.5)
    assert ring_s(np.full(2, 2.0), np.full(2, 0.5), steps=0) == 0


def test_a_slow_hop_holds_everybody_up_in_each_step() -> None:
    found = ring_s(np.array([1.0, 1.0, 5.0, 1.0]), np.zeros(4), steps=60)
    assert found == pytest.approx(60 * 5.0, rel=0.02)


def test_a_long_way_costs_once_a_round() -> None:
    """Check that it does not cost in each step: parts of other steps are under way meanwhile."""
    found = ring_s(np.full(4, 0.0), np.array([1.0, 1.0, 5.0, 1.0]), steps=40)
    assert found == pytest.approx(40 * 2.0)


@pytest.mark.parametrize("seed", range(8))
def test_beside_events(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 9))
    sends, latencies = random.uniform(0.1, 3.0, size), random.uniform(0.0, 3.0, size)
    steps = 2 * (size - 1)
    expected = by_events(list(sends), list(latencies), steps=steps)
    assert ring_s(sends, latencies, steps=steps) == pytest.approx(expected), f"seed {seed}"
