"""Fixed point: no overflow, the documented bound, and native kernels with the reference's bits."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from controller.orchestration.planning import MAX_WORLD_SIZE
from host_agent import kernels
from host_agent.machine import sums
from host_agent.quantisation import (
    BFLOAT16,
    BIAS,
    ELEMENT_TYPES,
    Blocks,
    block_exponent,
    block_sum,
    divide,
    error_bound,
    from_fixed,
    from_half,
    from_ordered,
    headroom_bits,
    max_abs,
    scale_of,
    to_fixed,
    to_half,
    to_ordered,
)
from host_agent.transport.native import library
from host_agent.wire.aggregation import MAX_RANKS, Reduction

FLOATS: list[np.dtype[Any]] = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
BLOCKS = Blocks(message_elements=48, block_elements=16)


@st.composite
def tensors(draw: st.DrawFn, *, ranks: int = 1, finite: bool = True) -> list[NDArray[Any]]:
    """Draw one array a rank, of one float type: random bits, so subnormals and extremes are common."""
    dtype = draw(st.sampled_from(FLOATS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.integers(1, 70))
    shift = draw(st.integers(0, 8 * dtype.itemsize - 2))
    arrays = []
    for _ in range(ranks):
        bits = rng.integers(0, 2 ** (8 * dtype.itemsize), size).astype(f"u{dtype.itemsize}")
        array = (bits >> np.asarray(shift, bits.dtype) if draw(st.booleans()) else bits).view(dtype)
        with np.errstate(invalid="ignore"):
            arrays.append(np.where(np.isfinite(array), array, np.zeros(1, dtype)) if finite else array)
    return arrays


def exact_error(result: NDArray[Any], arrays: list[NDArray[Any]], divisor: int) -> float:
    """Return the largest distance from the exact real result, without sums beyond the type's range."""
    worst = Fraction(0)
    for i, got in enumerate(result.astype(np.float64)):
        if math.isfinite(got):
            exact = sum((Fraction(float(array[i])) for array in arrays), Fraction(0)) / divisor
            worst = max(worst, abs(Fraction(float(got)) - exact))
    return float(worst)


@given(st.data(), st.integers(2, 40), st.sampled_from([Reduction.SUM, Reduction.AVG]), st.booleans())
@settings(deadline=None)
def test_a_sum_stays_within_the_documented_bound_of_each_block(
    data: st.DataObject, ranks: int, reduction: Reduction, half: bool
) -> None:
    arrays = data.draw(tensors(ranks=ranks))
    racks = data.draw(st.integers(1, ranks))
    assert_within_bound(arrays, half=half, average=reduction is Reduction.AVG, racks=racks)


@st.composite
def ties(draw: st.DrawFn, *, ranks: int, half: bool) -> list[NDArray[Any]]:
    """Draw one array a rank, a block of it: numbers halfway between two that can be sent, and right beside
    that.

    The first element is a block's largest. Ranks lean the same way or, drawn by chance, against each other.
    """
    dtype = draw(st.sampled_from(FLOATS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    top = 2.0 ** draw(st.integers(info.minexp, info.maxexp - 10))
    largest = np.array([draw(st.sampled_from([1.0, 1.5, 2.0 - float(info.eps)])) * top], dtype)
    scale = scale_of(block_exponent(largest), ranks, half=half)
    quantum = math.ldexp(1.0, -scale - (24 if half else 0))
    bits = draw(st.integers(1, 22 if half else 30))
    whole = rng.integers(0, 2**bits, 15) * (2.0 ** rng.integers(0, 12, 15) if half else 1)
    near = (whole + 0.5) * quantum
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.minimum(near, float(largest[0])).astype(dtype)
    beside = draw(st.sampled_from([None, 0, np.inf]))
    if beside is not None:
        near = np.minimum(np.nextafter(near, dtype.type(beside)), largest[0])
    signs = rng.choice([-1, 1], (ranks, 15)) if draw(st.booleans()) else np.ones((ranks, 15))
    return [np.concatenate([largest, near * sign.astype(dtype)]) for sign in signs]


@pytest.mark.slow
@given(st.data(), st.integers(2, MAX_WORLD_SIZE), st.booleans(), st.booleans())
@settings(deadline=None)
def test_the_bound_holds_near_ties_for_every_number_of_ranks(
    data: st.DataObject, ranks: int, half: bool, average: bool
) -> None:
    arrays = data.draw(ties(ranks=ranks, half=half))
    racks = data.draw(st.integers(-(-ranks // MAX_RANKS), min(ranks, MAX_RANKS)))
    assert_within_bound(arrays, half=half, average=average, racks=racks)


@pytest.mark.slow
@given(st.data(), st.integers(41, MAX_WORLD_SIZE), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=50)
def test_the_bound_holds_for_as_many_ranks_as_a_job_can_have(
    data: st.DataObject, ranks: int, half: bool, average: bool
) -> None:
    arrays = data.draw(tensors(ranks=ranks))
    racks = data.draw(st.integers(-(-ranks // MAX_RANKS), min(ranks, MAX_RANKS)))
    assert_within_bound(arrays, half=half, average=average, racks=racks)


def assert_within_bound(arrays: list[NDArray[Any]], *, half: bool, average: bool, racks: int) -> None:
    ranks = len(arrays)
    divisor = ranks if average else 1
    behind = [list(range(rack, ranks, racks)) for rack in range(racks)]
    out, special = block_sum(arrays, BLOCKS, half=half, divisor=divisor, racks=behind)
    assert not special.any()
    for block in BLOCKS.slices(out.size):
        parts = [array[block] for array in arrays]
        bound = error_bound(
            max(float(max_abs(part)) for part in parts),
            world_size=ranks,
            dtype=out.dtype,
            reduction=Reduction.AVG if average else Reduction.SUM,
            half=half,
            racks=racks,
        )
        assert exact_error(out[block], parts, divisor) <= bound


@pytest.mark.parametrize("racks", [1, 3])
@pytest.mark.parametrize("half", [False, True], ids=["fixed", "half"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ranks", [3, 7, 31, 100, 255])
def test_the_bound_is_less_than_six_times_what_can_happen(
    ranks: int, dtype: np.dtype[Any], half: bool, racks: int
) -> None:
    """Give all ranks the same numbers, large ones and ties between small ones, so that losses add up."""
    scale = scale_of(block_exponent(np.ones(1, dtype)), ranks, half=half)
    unit = math.ldexp(1.0, -scale - (24 if half else 0))
    random = np.random.default_rng(ranks)
    small = (random.integers(0, 64, 400) + 0.5) * unit
    one = np.concatenate([np.ones(1), random.uniform(0.5, 1, 400), small]).astype(dtype)
    behind = [list(range(rack, ranks, racks)) for rack in range(racks)]
    out, _ = block_sum([one] * ranks, Blocks(one.size, one.size), half=half, racks=behind)
    worst = np.abs(out.astype(np.float64) - ranks * one.astype(np.float64)).max()
    bound = error_bound(1.0, world_size=ranks, dtype=dtype, half=half, racks=racks)
    assert bound / 6 <= worst <= bound


def test_a_block_with_an_infinity_or_nan_is_left_out_and_no_other_one() -> None:
    arrays = [np.ones(100, np.float32) for _ in range(3)]
    arrays[1][50], arrays[2][51] = np.nan, -np.inf
    out, special = block_sum(arrays, BLOCKS, half=False)
    assert np.flatnonzero(special).tolist() == list(range(48, 64))
    assert set(out[~special].tolist()) == {3.0}


@pytest.mark.parametrize(
    ("path_mtu", "message_packets", "half", "message", "block"),
    [
        (4096, 16, True, 32640, 256),
        (4096, 16, False, 16320, 128),
        (256, 2, True, 128, 128),
        (1024, 16, False, 4032, 64),
        (4096, 128, False, 131008, 640),
    ],
)
def test_the_exponents_of_a_message_s_blocks_fit_into_a_header(
    path_mtu: int, message_packets: int, half: bool, message: int, block: int
) -> None:
    blocks = Blocks.of(path_mtu=path_mtu, message_packets=message_packets, half=half)
    assert blocks == Blocks(message, block)
    assert -(-message // block) <= 220


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extreme_values_on_every_rank_do_not_overflow(dtype: np.dtype[Any]) -> None:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    one, two = dtype.type(1), dtype.type(2)
    below_two = np.nextafter(two, dtype.type(0))
    extremes = [one, below_two, two, info.max, info.tiny, info.smallest_subnormal]
    for ranks, largest in product(range(1, 257), [np.array([value, -value], dtype) for value in extremes]):
        magnitude = float(abs(largest[0]))
        scale = scale_of(block_exponent(largest), ranks, half=False)
        lanes = encoded(largest, scale, ordered=False, invert=False).astype(np.int64)
        np.testing.assert_array_equal(lanes, to_fixed(largest, scale))
        assert ranks * np.abs(lanes).max() < 2**31, "a sum overflows"
        result = from_fixed((ranks * lanes).astype(np.int32), scale, dtype).astype(np.float64)
        finite = np.isfinite(result)
        error = np.abs(result - ranks * largest.astype(np.float64))[finite]
        assert error.max(initial=0) <= error_bound(magnitude, world_size=ranks, dtype=dtype)
        assert finite.all() or magnitude == float(info.max)


def test_the_bound_is_tight_enough_to_mean_something() -> None:
    assert error_bound(1.0, world_size=4, dtype=np.float32) < 2.0**-20
    assert error_bound(1.0, world_size=4, dtype=np.int32) == 0
    assert error_bound(1.0, world_size=4, dtype=np.float32, reduction=Reduction.MAX) == 0
    with pytest.raises(ValueError, match="Inf or NaN"):
        error_bound(math.inf, world_size=4, dtype=np.float32)


@pytest.mark.parametrize(
    ("world_size", "bits"),
    [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (32, 5), (128, 7), (129, 8), (255, 8), (256, 9)],
)
def test_headroom_is_the_ceiling_of_log2_and_one_more_where_rounding_would_fill_it(
    world_size: int, bits: int
) -> None:
    assert headroom_bits(world_size) == bits


@given(st.floats(min_value=2.0**-149, max_value=3e38))
def test_a_block_s_exponent_is_a_power_of_two_above_it(magnitude: float) -> None:
    number = np.array([magnitude], np.float32)
    exponent = block_exponent(number) - BIAS
    assert float(number[0]) < 2.0**exponent
    assert float(number[0]) >= 2.0 ** (exponent - 1) or exponent == 1 - BIAS


@pytest.mark.parametrize("ranks", [1, 2, 31, 32, 33, 64, 200, 256])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_numbers_of_all_ranks_fit_into_half_precision(dtype: np.dtype[Any], ranks: int) -> None:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    largest = np.array([info.max], dtype)
    halves = to_half(largest, scale_of(block_exponent(largest), ranks, half=True)).astype(np.float64)
    assert 2.0**5 < ranks * halves[0] < 2.0**7


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_max_abs_tells_of_zeros_infinities_and_nans(dtype: np.dtype[Any]) -> None:
    assert max_abs(np.zeros(0, dtype)) == 0
    assert max_abs(np.array([-0.0, 0], dtype)) == 0
    assert max_abs(np.array([1, -3, 2], dtype)) == 3
    assert np.isinf(max_abs(np.array([1, -np.inf], dtype)))
    assert np.isnan(max_abs(np.array([np.nan, np.inf], dtype)))


@given(tensors(ranks=2, finite=False), st.booleans())
def test_ordered_integers_give_numpys_maximum_and_minimum(arrays: list[NDArray[Any]], minimum: bool) -> None:
    left, right = (to_ordered(array, invert=minimum) for array in arrays)
    result = from_ordered(np.maximum(left, right), arrays[0].dtype, invert=minimum)
    with np.errstate(invalid="ignore"):
        expected = np.minimum(*arrays) if minimum else np.maximum(*arrays)
        np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))


def test_bfloat16_is_rounded_once() -> None:
    just_above_a_tie = np.array([2**30 + 2**22 + 1], np.int32)  # through float32 it would round down
    assert from_fixed(just_above_a_tie, 30, BFLOAT16)[0] == 1 + 2**-7
    assert from_fixed(-just_above_a_tie, 30, BFLOAT16)[0] == -1 - 2**-7
    below = np.array([2**30 + 3 * 2**22 - 1], np.int32)
    assert from_fixed(below, 30, BFLOAT16)[0] == 1 + 2**-7


def test_an_integer_average_is_rounded_towards_zero() -> None:
    assert divide(np.array([7, -7, 8, -2147483648], np.int32), 4).tolist() == [1, -1, 2, -536870912]


def encoded(array: NDArray[Any], scale: int, *, ordered: bool, invert: bool) -> NDArray[Any]:
    lanes = np.empty(array.size, ">i4")
    library().p4r_encode_lanes(
        ELEMENT_TYPES[array.dtype], ordered, array.ctypes.data, array.size, lanes.ctypes.data, scale, invert
    )
    return lanes.astype(np.int32)


def decoded(
    lanes: NDArray[np.int32], dtype: np.dtype[Any], scale: int, *, ordered: bool, divisor: int, invert: bool
) -> NDArray[Any]:
    wire, out = lanes.astype(">i4"), np.empty(lanes.size, dtype)
    library().p4r_decode_lanes(
        ELEMENT_TYPES[dtype], ordered, wire.ctypes.data, wire.size, out.ctypes.data, scale, divisor, invert
    )
    return out


def assert_same_bits(left: NDArray[Any], right: NDArray[Any]) -> None:
    """Compare bits; all NaNs count as one."""
    unsigned = f"u{left.dtype.itemsize}"
    same = (left.view(unsigned) == right.view(unsigned)) | (np.isnan(left) & np.isnan(right))
    assert same.all(), (left[~same], right[~same])


@given(tensors(), st.integers(2, 32))
def test_the_native_encoder_has_the_references_bits(arrays: list[NDArray[Any]], ranks: int) -> None:
    (array,) = arrays
    scale = scale_of(block_exponent(array), ranks, half=False)
    np.testing.assert_array_equal(encoded(array, scale, ordered=False, invert=False), to_fixed(array, scale))


@given(tensors(finite=False), st.booleans())
def test_the_native_ordering_has_the_references_bits(arrays: list[NDArray[Any]], invert: bool) -> None:
    (array,) = arrays
    lanes = encoded(array, 0, ordered=True, invert=invert)
    np.testing.assert_array_equal(lanes, to_ordered(array, invert=invert))
    back = decoded(lanes, array.dtype, 0, ordered=True, divisor=1, invert=invert)
    assert_same_bits(back, from_ordered(lanes, array.dtype, invert=invert))


@given(
    st.sampled_from(FLOATS),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50),
    st.integers(-100, 177),
    st.sampled_from([1, 2, 3, 4, 7, 8, 31, 32]),
)
def test_the_native_decoder_has_the_references_bits(
    dtype: np.dtype[Any], values: list[int], scale: int, divisor: int
) -> None:
    lanes = np.array(values, np.int32)
    native = decoded(lanes, dtype, scale, ordered=False, divisor=divisor, invert=False)
    assert_same_bits(native, from_fixed(lanes, scale, dtype, divisor=divisor))


@given(tensors(), st.integers(2, 256))
def test_the_native_half_encoder_has_the_references_bits(arrays: list[NDArray[Any]], ranks: int) -> None:
    (array,) = arrays
    scale = scale_of(block_exponent(array), ranks, half=True)
    lanes = np.empty(array.size, ">f2")
    library().p4r_encode_half(
        ELEMENT_TYPES[array.dtype], array.ctypes.data, array.size, lanes.ctypes.data, scale
    )
    assert_same_bits(lanes.astype(np.float16), to_half(array, scale))


@given(
    st.sampled_from(FLOATS),
    st.lists(st.integers(0, 0x57FF), min_size=1, max_size=50),
    st.integers(-128, 127),
    st.sampled_from([1, 2, 3, 4, 7, 8, 31, 32]),
)
def test_the_native_half_decoder_has_the_references_bits(
    dtype: np.dtype[Any], bits: list[int], scale: int, divisor: int
) -> None:
    halves = np.array(bits, np.uint16).view(np.float16)
    halves[1::2] *= -1
    wire, native = halves.astype(">f2"), np.empty(halves.size, dtype)
    library().p4r_decode_half(
        ELEMENT_TYPES[dtype], wire.ctypes.data, wire.size, native.ctypes.data, scale, divisor
    )
    assert_same_bits(native, from_half(halves, scale, dtype, divisor=divisor))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("divisor", [1, 2, 3, 8, 24, 32, 1024])
def test_every_half_comes_back_rounded_once_at_the_ends_of_all_scales(
    dtype: np.dtype[Any], divisor: int
) -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    halves = bits.view(np.float16)[np.isfinite(bits.view(np.float16))]
    wire = halves.astype(">f2")
    for scale in (-127, -126, -112, 0, 112, 120, 125, 126):
        native = np.empty(halves.size, dtype)
        library().p4r_decode_half(
            ELEMENT_TYPES[dtype], wire.ctypes.data, wire.size, native.ctypes.data, scale, divisor
        )
        assert_same_bits(native, from_half(halves, scale, dtype, divisor=divisor))


@given(tensors(finite=False), st.integers(1, 80))
def test_the_native_exponents_are_the_references(arrays: list[NDArray[Any]], block: int) -> None:
    (array,) = arrays
    found = sums.exponents(array, np.arange(0, array.size, block, dtype=np.uint64))
    assert found.tolist() == [block_exponent(array[at : at + block]) for at in range(0, array.size, block)]


@given(tensors(finite=False), st.sampled_from([1, 2, 3, 8, 31]))
def test_the_native_division_has_the_references_bits(arrays: list[NDArray[Any]], divisor: int) -> None:
    (array,) = arrays
    native = array.copy()
    kernels.divide_in_place(native, divisor)
    assert_same_bits(native, divide(array, divisor))
