"""Fixed point: no overflow, the documented bound, and native kernels with the reference's bits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from host_agent import kernels
from host_agent.quantisation import (
    BFLOAT16,
    ELEMENT_TYPES,
    INFINITY_BITS,
    divide,
    error_bound,
    exponent_of,
    from_fixed,
    from_ordered,
    headroom_bits,
    magnitude_bits,
    magnitude_of,
    max_abs,
    scale_exponent,
    to_fixed,
    to_ordered,
)
from host_agent.transport.native import library
from host_agent.wire.aggregation import Reduction

FLOATS: list[np.dtype[Any]] = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
INT32 = np.dtype(np.int32)


@st.composite
def tensors(draw: st.DrawFn, *, ranks: int = 1, finite: bool = True) -> list[NDArray[Any]]:
    """One array a rank, of one float type: random bit patterns, so subnormals and extremes are common."""
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


def summed(arrays: list[NDArray[Any]], divisor: int = 1) -> NDArray[Any]:
    """What ranks and switch make of these arrays."""
    largest = max(float(max_abs(array)) for array in arrays)
    if largest == 0:
        return np.zeros_like(arrays[0])
    scale = scale_exponent(largest, len(arrays))
    lanes = np.sum([to_fixed(array, scale).astype(np.int64) for array in arrays], axis=0)
    assert np.abs(lanes).max() < 2**31, "a sum overflowed"
    return from_fixed(lanes.astype(np.int32), scale, arrays[0].dtype, divisor=divisor)


def exact_error(result: NDArray[Any], arrays: list[NDArray[Any]], divisor: int) -> float:
    """The largest distance from the real-number result, exactly; sums beyond the type's range left out."""
    worst = Fraction(0)
    for i, got in enumerate(result.astype(np.float64)):
        if math.isfinite(got):
            exact = sum((Fraction(float(array[i])) for array in arrays), Fraction(0)) / divisor
            worst = max(worst, abs(Fraction(float(got)) - exact))
    return float(worst)


@given(st.data(), st.integers(2, 32), st.sampled_from([Reduction.SUM, Reduction.AVG]))
@settings(deadline=None)
def test_a_sum_never_overflows_and_stays_within_the_documented_bound(
    data: st.DataObject, ranks: int, reduction: Reduction
) -> None:
    arrays = data.draw(tensors(ranks=ranks))
    divisor = ranks if reduction is Reduction.AVG else 1
    largest = max(float(max_abs(array)) for array in arrays)
    bound = error_bound(largest, world_size=ranks, dtype=arrays[0].dtype, reduction=reduction)
    assert exact_error(summed(arrays, divisor), arrays, divisor) <= bound


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ranks", range(1, 257))
def test_extreme_values_on_every_rank_do_not_overflow(dtype: np.dtype[Any], ranks: int) -> None:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    one, two = dtype.type(1), dtype.type(2)
    below_two = np.nextafter(two, dtype.type(0))
    extremes = [one, below_two, two, info.max, info.tiny, info.smallest_subnormal]
    for largest in (np.array([value, -value], dtype) for value in extremes):
        magnitude = float(abs(largest[0]))
        scale = scale_exponent(magnitude, ranks)
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
def test_the_exponent_is_the_smallest_power_of_two_above(magnitude: float) -> None:
    exponent = exponent_of(magnitude)
    assert 2.0 ** (exponent - 1) <= magnitude < 2.0**exponent


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
    """All NaNs count as one."""
    unsigned = f"u{left.dtype.itemsize}"
    same = (left.view(unsigned) == right.view(unsigned)) | (np.isnan(left) & np.isnan(right))
    assert same.all(), (left[~same], right[~same])


@given(tensors(), st.integers(2, 32))
def test_the_native_encoder_has_the_references_bits(arrays: list[NDArray[Any]], ranks: int) -> None:
    (array,) = arrays
    scale = scale_exponent(float(max_abs(array)) or 1.0, ranks)
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


@given(tensors(finite=False))
def test_the_native_largest_magnitude_is_the_references(arrays: list[NDArray[Any]]) -> None:
    (array,) = arrays
    bits = kernels.magnitude_bits(array)
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        is_nan = array != array
    if is_nan.any():
        assert bits > INFINITY_BITS
    else:
        assert bits == magnitude_bits(array)
        assert math.isinf(max_abs(array)) or magnitude_of(bits) == float(max_abs(array))


@given(st.integers(0, INFINITY_BITS - 1))
def test_a_magnitude_is_what_its_bits_stand_for(bits: int) -> None:
    assert magnitude_of(bits) == float(np.uint32(bits).view(np.float32))


@given(tensors(finite=False), st.sampled_from([1, 2, 3, 8, 31]))
def test_the_native_division_has_the_references_bits(arrays: list[NDArray[Any]], divisor: int) -> None:
    (array,) = arrays
    native = array.copy()
    kernels.divide_in_place(native, divisor)
    assert_same_bits(native, divide(array, divisor))
