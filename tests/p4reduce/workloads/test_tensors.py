"""Seeded tensors, and the check of their reductions."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.collectives.plan import Strategy
from host_agent.quantisation import divide
from host_agent.wire.aggregation import Reduction
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.tensors import (
    DTYPES,
    OPERATIONS,
    Array,
    _parts,
    check,
    complaint,
    digest,
    dtype_of,
    operation_of,
    tensor,
)


def _tensors(dtype: str, *, elements: int, world_size: int, seed: int = 4) -> list[Array]:
    return [
        tensor(seed=seed, rank=rank, elements=elements, dtype=DTYPES[dtype]) for rank in range(world_size)
    ]


def test_tensors_differ_between_ranks_and_seeds_only() -> None:
    one, two = _tensors("float32", elements=100, world_size=2)
    again, _ = _tensors("float32", elements=100, world_size=2)
    other, _ = _tensors("float32", elements=100, world_size=2, seed=5)
    assert digest(one) == digest(again)
    assert len({digest(array) for array in (one, two, other)}) == 3


def test_a_tensor_does_not_depend_on_how_it_is_cut() -> None:
    """Long tensors are made in parts of a million elements."""
    long = tensor(seed=1, rank=0, elements=(1 << 20) + 5, dtype=DTYPES["int32"])
    assert long.size == (1 << 20) + 5
    assert digest(long[:1000]) == digest(
        tensor(seed=1, rank=0, elements=1 << 20, dtype=DTYPES["int32"])[:1000]
    )


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_nor_on_the_length_of_the_parts(dtype: str) -> None:
    wanted = _tensors(dtype, elements=10_001, world_size=1)[0]
    for part in (1, 999, 5000):
        pieces = list(_parts(part, seed=4, rank=0, elements=10_001, dtype=DTYPES[dtype]))
        assert [start for start, _ in pieces] == list(range(0, 10_001, part))
        assert digest(np.concatenate([piece for _, piece in pieces])) == digest(wanted)


def test_digest_sees_every_bit() -> None:
    array = np.zeros(9, np.float32)
    changed = array.copy()
    changed[8] = -0.0
    assert digest(array) != digest(changed)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(sorted(OPERATIONS)),
    st.integers(1, 300),
    st.integers(1, 5),
)
def test_numpys_own_result_passes(dtype: str, op: str, elements: int, world_size: int) -> None:
    arrays = _tensors(dtype, elements=elements, world_size=world_size)
    reduction = OPERATIONS[op]
    result = _reduce(arrays, reduction)
    outcome = check(result, seed=4, world_size=world_size, reduction=reduction)
    assert outcome.passed
    if dtype in ("int32", "int64") or op in ("max", "min"):
        assert outcome.exact


def _reduce(arrays: list[Array], reduction: Reduction) -> Array:
    """Reduce by another way than the check's: one after the other, in Python's integers or 64-bit floats."""
    dtype = arrays[0].dtype
    columns = zip(*(array.tolist() for array in arrays), strict=True)
    found: list[Any] = []
    for column in columns:
        if reduction is Reduction.MAX:
            found.append(max(column))
        elif reduction is Reduction.MIN:
            found.append(min(column))
        elif dtype.kind == "i":
            half = 2 ** (8 * dtype.itemsize - 1)
            total = math.prod(column) if reduction is Reduction.PROD else sum(column)
            total = (total + half) % (2 * half) - half
            towards_zero = abs(total) // len(column) * (1 if total > 0 else -1)
            found.append(towards_zero if reduction is Reduction.AVG else total)
        elif reduction is Reduction.PROD:
            found.append(math.prod(column))
        else:
            found.append(sum(column) / (len(column) if reduction is Reduction.AVG else 1))
    return np.array(found, None if dtype.kind != "i" else dtype).astype(dtype)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_wrong_element_fails(dtype: str, strategy: Strategy) -> None:
    arrays = _tensors(dtype, elements=50, world_size=3)
    result = _reduce(arrays, Reduction.SUM)
    result[17] = result[17] + np.asarray(2).astype(result.dtype)
    outcome = check(result, seed=4, world_size=3, reduction=Reduction.SUM, strategy=strategy)
    assert not outcome.exact
    assert not outcome.passed


def _added_up(arrays: list[Array], order: list[int]) -> Array:
    """Add the arrays one after the other, in their own type."""
    total = np.zeros_like(arrays[0])
    for place in order:
        total = total + arrays[place]
    return total


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 32])
def test_what_is_added_up_in_the_type_itself_passes_in_any_order(dtype: str, world_size: int) -> None:
    arrays = _tensors(dtype, elements=5000, world_size=world_size)
    chance = np.random.default_rng(world_size)
    for _ in range(3):
        result = _added_up(arrays, [int(place) for place in chance.permutation(world_size)])
        found = check(result, seed=4, world_size=world_size, reduction=Reduction.SUM, strategy=Strategy.RING)
        assert found.passed
        assert found.exact or 0 < found.largest_error <= found.bound
        averaged = check(
            divide(result, world_size),
            seed=4,
            world_size=world_size,
            reduction=Reduction.AVG,
            strategy=Strategy.RING,
        )
        assert averaged.passed


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_element_is_held_to_its_own_bound(dtype: str) -> None:
    """Check that a small element has a small bound, even where another element is large."""
    arrays = _tensors(dtype, elements=5000, world_size=8)
    result = _added_up(arrays, list(range(8)))
    magnitudes = np.add.reduce([np.abs(array.astype(np.float64)) for array in arrays])
    small = int(np.argmin(magnitudes))
    eps = float(ml_dtypes.finfo(DTYPES[dtype]).eps)  # type: ignore[no-untyped-call]
    result[small] = (result[small].astype(np.float64) + 10 * eps * magnitudes[small]).astype(result.dtype)
    outcome = check(result, seed=4, world_size=8, reduction=Reduction.SUM, strategy=Strategy.RING)
    assert not outcome.passed
    assert outcome.bound == pytest.approx(7 / 2 * eps * magnitudes[small])
    assert outcome.bound < 7 / 2 * eps * magnitudes.max() / 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("world_size", [2, 8, 16])
def test_a_sum_that_lacks_a_rank_fails(dtype: str, world_size: int) -> None:
    arrays = _tensors(dtype, elements=500, world_size=world_size)
    result = _added_up(arrays, list(range(1, world_size)))
    for strategy in Strategy:
        outcome = check(result, seed=4, world_size=world_size, reduction=Reduction.SUM, strategy=strategy)
        assert not outcome.passed


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_fails(dtype: str, strategy: Strategy, value: float) -> None:
    result = _reduce(_tensors(dtype, elements=50, world_size=3), Reduction.SUM)
    result[17] = value
    assert not check(result, seed=4, world_size=3, reduction=Reduction.SUM, strategy=strategy).passed


def test_complaints_say_what_is_wrong() -> None:
    off = {"largest_error": 0.5, "bound": 0.25, "same_bits": None}
    assert complaint(off) == "off by 0.5, the bound is 0.25"
    assert complaint({**off, "same_bits": False}) == "off by 0.5, the bound is 0.25"
    assert complaint({**off, "largest_error": float("nan")}) == "off by nan, the bound is 0.25"
    near = complaint({**off, "largest_error": 0.125, "same_bits": False})
    assert near.startswith("off by 0.125, less than the bound 0.25, but")
    assert near.endswith("its bits are others")


def test_names() -> None:
    assert dtype_of("int32") == np.int32
    assert operation_of("Sum") is Reduction.SUM
    with pytest.raises(WorkloadError, match="'float8' is no element type; there are int32, int64"):
        dtype_of("float8")
    with pytest.raises(WorkloadError, match="'xor' is no operation; there are sum, avg, max, min"):
        operation_of("xor")
