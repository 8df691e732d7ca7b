"""References have the bits of the real endpoints and the switch's rules, and of nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from host_agent.collectives import in_network, ring
from host_agent.collectives.plan import Call, Steps, Strategy
from host_agent.quantisation import BFLOAT16
from host_agent.wire.aggregation import Reduction
from p4reduce.simulation.rack import configs
from p4reduce.workloads.references import Reference, Ringed, Switched
from p4reduce.workloads.tensors import Array, check, tensor
from tests.host_agent.rack import Simulation

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
SEED = 5


def summed(
    strategy: Strategy, dtype: np.dtype[Any], *, ranks: int, elements: int, reduction: Reduction, order: Any
) -> Array:
    """Return what the ranks of a simulated rack get for their seeded tensors."""
    arrays = [tensor(seed=SEED, rank=rank, elements=elements, dtype=dtype) for rank in range(ranks)]

    def run(rank: int) -> Steps[Any]:
        call = Call(rank=rank, world_size=ranks, collective=0, reduction=reduction, ring=order)
        way = ring.all_reduce if strategy is Strategy.RING else in_network.all_reduce
        return (yield from way(call, arrays[rank], arrays[rank]))

    sim = Simulation(configs(ranks, path_mtu=512, window=2, packets=4, ring=order), seed=1)
    try:
        sim.run(run)
    finally:
        sim.close()
    assert len({array.tobytes() for array in arrays}) == 1
    return arrays[0]


def reference_of(strategy: Strategy, order: tuple[int, ...]) -> Reference:
    return Ringed(order=order) if strategy is Strategy.RING else Switched(path_mtu=512, message_packets=4)


@pytest.mark.parametrize("strategy", [Strategy.IN_NETWORK, Strategy.RING])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.AVG], ids=lambda one: one.name)
@pytest.mark.parametrize("order", [(0, 1), (2, 0, 1), (3, 1, 4, 0, 2)], ids=str)
def test_the_real_endpoints_give_these_bits(
    strategy: Strategy, dtype: np.dtype[Any], reduction: Reduction, order: tuple[int, ...]
) -> None:
    for elements in (1, 4, 700, 5003):  # whole in one pass, and in messages with blocks
        result = summed(
            strategy, dtype, ranks=len(order), elements=elements, reduction=reduction, order=order
        )
        found = check(
            result,
            seed=SEED,
            world_size=len(order),
            reduction=reduction,
            strategy=strategy,
            reference=reference_of(strategy, order),
        )
        assert found.same_bits
        assert found.passed


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "reference",
    [
        Switched(path_mtu=256, message_packets=4),
        Switched(path_mtu=256, message_packets=4, racks=((0, 3), (1,), (2,))),
        Ringed(order=(1, 3, 0, 2)),
    ],
    ids=str,
)
def test_pieces_are_those_of_the_whole(dtype: np.dtype[Any], reference: Reference) -> None:
    inputs = [tensor(seed=SEED, rank=rank, elements=4001, dtype=dtype) for rank in range(4)]
    whole = reference.result(inputs, start=0, elements=4001, divisor=4)
    step = reference.step(dtype)
    for start in range(0, 4001, 3 * step if step > 1 else 1000):
        piece = slice(start, start + (3 * step if step > 1 else 1000))
        found = reference.result([one[piece] for one in inputs], start=start, elements=4001, divisor=4)
        assert found.tobytes() == whole[piece].tobytes()


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_each_rack_rounds(dtype: np.dtype[Any]) -> None:
    inputs = [tensor(seed=SEED, rank=rank, elements=4001, dtype=dtype) for rank in range(8)]
    one, two = (
        Switched(path_mtu=1024, message_packets=16, racks=racks).result(inputs, start=0, elements=4001)
        for racks in ((), ((0, 1, 2, 3), (4, 5, 6, 7)))
    )
    assert 0 < np.count_nonzero(one != two) < one.size
    np.testing.assert_allclose(one.astype(np.float64), two.astype(np.float64), atol=0.1)


def test_float32_does_not_know_of_racks() -> None:
    dtype = FLOATS[0]
    inputs = [tensor(seed=SEED, rank=rank, elements=4001, dtype=dtype) for rank in range(4)]
    one, two = (
        Switched(path_mtu=1024, message_packets=16, racks=racks).result(inputs, start=0, elements=4001)
        for racks in ((), ((0, 1), (2, 3)))
    )
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("strategy", [Strategy.IN_NETWORK, Strategy.RING])
def test_a_sum_whose_last_bit_is_another_fails_though_it_is_near_enough(
    dtype: np.dtype[Any], strategy: Strategy
) -> None:
    reference = reference_of(strategy, (0, 1, 2, 3))
    inputs = [tensor(seed=SEED, rank=rank, elements=3000, dtype=dtype) for rank in range(4)]
    result = reference.result(inputs, start=0, elements=3000)
    result.view(f"u{dtype.itemsize}")[2000] ^= 1
    near, held = (
        check(result, seed=SEED, world_size=4, reduction=Reduction.SUM, strategy=strategy, reference=one)
        for one in (None, reference)
    )
    assert (near.passed, near.same_bits) == (True, None)
    assert (held.passed, held.same_bits) == (False, False)
    assert held.largest_error <= held.bound


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_long_tensors_are_looked_at_in_whole_messages(dtype: np.dtype[Any]) -> None:
    """A million elements at a time is no multiple of a message's."""
    reference, elements = Switched(path_mtu=4096, message_packets=16), (1 << 20) + 40_000
    assert (1 << 20) % reference.step(dtype)
    inputs = [tensor(seed=SEED, rank=rank, elements=elements, dtype=dtype) for rank in range(2)]
    result = reference.result(inputs, start=0, elements=elements)
    found = check(result, seed=SEED, world_size=2, reduction=Reduction.SUM, reference=reference)
    assert found.same_bits


def test_integers_and_extremes_are_exact_anyway() -> None:
    reference = Switched(path_mtu=1024, message_packets=16)
    whole = np.dtype(np.int32)
    inputs = [tensor(seed=SEED, rank=rank, elements=5000, dtype=whole) for rank in range(2)]
    found = check(np.add(*inputs), seed=SEED, world_size=2, reduction=Reduction.SUM, reference=reference)
    assert (found.passed, found.exact, found.same_bits) == (True, True, None)
    floats = [tensor(seed=SEED, rank=rank, elements=5000, dtype=BFLOAT16) for rank in range(2)]
    found = check(np.maximum(*floats), seed=SEED, world_size=2, reduction=Reduction.MAX, reference=reference)
    assert (found.passed, found.exact, found.same_bits) == (True, True, None)
