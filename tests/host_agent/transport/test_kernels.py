"""The native kernels against the reference in `host_agent.quantisation` and NumPy, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from host_agent import kernels, quantisation
from host_agent.quantisation import ELEMENT_TYPES, REDUCIBLE
from host_agent.transport import ElementType, native
from host_agent.transport.operation import Arrival
from tests.host_agent.beyond import has_the_one_nan, nans

LIB = native.library()
FLOATS = {
    ElementType.FLOAT32: np.dtype(np.float32),
    ElementType.FLOAT16: np.dtype(np.float16),
    ElementType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
DTYPES = {ElementType.INT32: np.dtype(np.int32), **FLOATS}
WORLD = 4
SIZES = st.integers(0, 1500)
SEEDS = st.integers(0, 2**32 - 1)


def encode(
    kind: ElementType, array: NDArray[Any], *, exponent: int = 0, ordered: bool = False, invert: bool = False
) -> NDArray[np.int32]:
    lanes = np.zeros(array.size, ">i4")
    LIB.p4r_encode_lanes(kind, ordered, array.ctypes.data, array.size, lanes.ctypes.data, exponent, invert)
    return lanes.astype(np.int32)


def decode(
    kind: ElementType,
    values: NDArray[np.int32],
    *,
    exponent: int = 0,
    divisor: int = 1,
    ordered: bool = False,
    invert: bool = False,
) -> NDArray[Any]:
    lanes, out = values.astype(">i4"), np.zeros(values.size, DTYPES[kind])
    LIB.p4r_decode_lanes(
        kind, ordered, lanes.ctypes.data, lanes.size, out.ctypes.data, exponent, divisor, invert
    )
    return out


def numbers(dtype: np.dtype[Any], size: int, seed: int) -> NDArray[Any]:
    """Return numbers of the whole range; floats of all sizes, Inf and NaN among them."""
    random = np.random.default_rng(seed)
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, size, dtype=dtype.type, endpoint=True)
    if dtype == np.float64:
        return random.integers(0, 2**64, size, dtype=np.uint64).view(np.float64)
    kind = REDUCIBLE[dtype]
    return floats(kind, size, seed, top(kind), finite=False)


def floats(kind: ElementType, size: int, seed: int, magnitude: int, *, finite: bool = True) -> NDArray[Any]:
    """Return numbers below 2^magnitude, some zero or subnormal, some (if not `finite`) Inf and NaN."""
    random = np.random.default_rng(seed)
    low = -148 if kind is not ElementType.FLOAT16 else -24
    exponents = random.integers(min(low, magnitude - 1), magnitude, size)
    with np.errstate(over="ignore"):
        values = np.ldexp(random.uniform(-1, 1, size), exponents).astype(FLOATS[kind])
    values[~np.isfinite(values)] = 0
    if not finite and size:
        values[random.integers(0, size, 3)] = [np.inf, -np.inf, np.nan]
    return values


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Tell whether arrays are equal, with -0 and 0 apart, and any NaN equal to any."""
    if left.dtype.kind == "i":
        return np.array_equal(left, right)
    there = ~np.isnan(left)
    return np.array_equal(left, right, equal_nan=True) and np.array_equal(
        np.signbit(left[there]), np.signbit(right[there])
    )


def top(kind: ElementType) -> int:
    return 15 if kind is ElementType.FLOAT16 else 127


@given(st.sampled_from(list(FLOATS)), SIZES, SEEDS, st.integers(-140, 127))
def test_fixed_point_is_the_reference(kind: ElementType, size: int, seed: int, magnitude: int) -> None:
    array = floats(kind, size, seed, min(magnitude, top(kind)))
    scale = quantisation.scale_of(quantisation.block_exponent(array), WORLD, half=False)
    assert np.array_equal(encode(kind, array, exponent=scale), quantisation.to_fixed(array, scale))


@given(st.sampled_from(list(FLOATS)), SIZES, SEEDS, st.integers(-100, 287), st.integers(1, 32))
def test_the_way_back_is_rounded_once(
    kind: ElementType, size: int, seed: int, exponent: int, divisor: int
) -> None:
    random = np.random.default_rng(seed)
    sums = (random.integers(-(2**31), 2**31, size) >> random.integers(0, 31, size)).astype(np.int32)
    expected = quantisation.from_fixed(sums, exponent, FLOATS[kind], divisor=divisor)
    assert same_bits(decode(kind, sums, exponent=exponent, divisor=divisor), expected)


@given(st.sampled_from(list(FLOATS)), SIZES, SEEDS, st.booleans())
def test_ordered_integers_are_the_reference(kind: ElementType, size: int, seed: int, minimum: bool) -> None:
    array = floats(kind, size, seed, top(kind), finite=False)
    ordered = encode(kind, array, ordered=True, invert=minimum)
    assert np.array_equal(ordered, quantisation.to_ordered(array, invert=minimum))
    back = decode(kind, ordered, ordered=True, invert=minimum)
    assert same_bits(back, quantisation.from_ordered(ordered, FLOATS[kind], invert=minimum))
    assert np.array_equal(back, array, equal_nan=True)


@given(SIZES, SEEDS, st.booleans(), st.integers(1, 32))
def test_int32(size: int, seed: int, invert: bool, divisor: int) -> None:
    values = np.random.default_rng(seed).integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32)
    lanes = encode(ElementType.INT32, values, invert=invert)
    assert np.array_equal(lanes, ~values if invert else values)
    expected = quantisation.divide(values, divisor)
    assert np.array_equal(decode(ElementType.INT32, lanes, divisor=divisor, invert=invert), expected)


@given(st.sampled_from(list(REDUCIBLE)), st.sampled_from(list(Arrival)[1:]), SIZES, SEEDS)
def test_folding_is_numpys(dtype: np.dtype[Any], arrival: Arrival, size: int, seed: int) -> None:
    mine, theirs = numbers(dtype, size, seed), numbers(dtype, size, seed + 1)
    fold = {Arrival.SUM: np.add, Arrival.MAX: np.maximum, Arrival.MIN: np.minimum, Arrival.PROD: np.multiply}
    with np.errstate(all="ignore"):
        expected = fold[arrival](mine, theirs)
    target = mine.copy()
    LIB.p4r_fold(arrival, REDUCIBLE[dtype], target.ctypes.data, theirs.ctypes.data, size)
    assert np.array_equal(target, expected, equal_nan=dtype.kind != "i")


@given(st.sampled_from(list(REDUCIBLE)), SIZES, SEEDS, st.integers(1, 64))
def test_division_is_the_reference(dtype: np.dtype[Any], size: int, seed: int, divisor: int) -> None:
    array = numbers(dtype, size, seed)
    expected = quantisation.divide(array, divisor)
    LIB.p4r_divide(REDUCIBLE[dtype], array.ctypes.data, size, divisor)
    assert same_bits(array, expected)


def test_integers_are_divided_towards_zero() -> None:
    for dtype in (np.int32, np.int64):
        least = np.iinfo(dtype).min
        array = np.array([7, -7, least, least + 1, 0, -1], dtype)
        assert quantisation.divide(array, 2).tolist() == [3, -3, least // 2, -((-(least + 1)) // 2), 0, 0]


def test_every_float16_goes_both_ways() -> None:
    """Send all 65,536 of them through lanes that sort as they do."""
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    assert same_bits(
        decode(ElementType.FLOAT16, encode(ElementType.FLOAT16, every, ordered=True), ordered=True), every
    )


@pytest.mark.parametrize("kind", DTYPES)
def test_unaligned_lanes(kind: ElementType) -> None:
    """Shift lanes, as a payload starts 54 bytes into a frame."""
    array = np.arange(100).astype(DTYPES[kind])
    for shift in range(4):
        raw = np.zeros(404, np.uint8)
        target = raw[shift : shift + 400]
        LIB.p4r_encode_lanes(kind, 0, array.ctypes.data, 100, target.ctypes.data, 3, 0)
        back = np.zeros_like(array)
        LIB.p4r_decode_lanes(kind, 0, target.ctypes.data, 100, back.ctypes.data, 3, 1, 0)
        assert np.array_equal(back, array)


@pytest.mark.parametrize("size", [0, 1, 5, 9000, 300_001])
@pytest.mark.parametrize("offset", [0, 3, 4, 9])
@pytest.mark.parametrize("dtype", list(ELEMENT_TYPES), ids=str)
def test_a_tensor_is_kept_whole_wherever_it_lies(dtype: np.dtype[Any], offset: int, size: int) -> None:
    """Copy large ones too, which go past the caches, 16 bytes at a time where the copy's place allows it."""
    array = np.random.default_rng(size).standard_normal(size + 3).astype(dtype)[3:]
    copy = np.full(array.nbytes + offset + 16, 0x5A, np.uint8)
    kernels.keep(array, copy[offset:])
    assert copy[offset : offset + array.nbytes].tobytes() == array.tobytes()
    assert set(copy[:offset].tolist()) | set(copy[offset + array.nbytes :].tolist()) <= {0x5A}


@pytest.mark.parametrize("dtype", [kind for kind in ELEMENT_TYPES if kind != np.int32], ids=str)
@pytest.mark.parametrize("divisor", [1, 2])
def test_a_sum_of_rows_that_is_no_number_is_always_the_same_one(dtype: np.dtype[Any], divisor: int) -> None:
    """Add Inf - Inf and two NaNs: every rank adds for itself, and processors make different NaNs of them."""
    size = 13  # more than a vector, and a rest
    quiet = {4: [0x7FC12345, 0xFFC54321], 2: [0x7FD1, 0xFFE2]}[dtype.itemsize]
    bits = np.dtype(f"u{dtype.itemsize}")
    nans = [np.full(size, one, bits).view(dtype) for one in quiet]
    infinities = [np.full(size, one, dtype) for one in (np.inf, -np.inf)]
    pairs = [
        nans,
        nans[::-1],
        infinities,
        infinities[::-1],
        [nans[1], infinities[0]],
        [infinities[1], nans[0]],
    ]
    seen = set()
    for pair in pairs:
        rows = np.zeros((2, -(-size * dtype.itemsize // 4)), np.int32)
        for row, values in zip(rows, pair, strict=True):
            row.view(np.uint8)[: values.nbytes] = values.view(np.uint8)
        out = np.zeros(size, dtype)
        kernels.sum_rows(rows, out, divisor=divisor)
        assert np.isnan(out).all()
        seen |= set(out.view(bits).tolist())
    assert len(seen) == 1, [hex(one) for one in seen]


@given(st.sampled_from(list(FLOATS)), SIZES, SEEDS, st.integers(1, 5), st.sampled_from([0, -1, -7]))
def test_a_sum_of_floats_is_numpys_in_order(
    kind: ElementType, size: int, seed: int, count: int, exponent: int
) -> None:
    rows = [floats(kind, size, seed + row, top(kind), finite=False) for row in range(count)]
    out, expected = np.full(size, 7, np.float32), np.zeros(size, np.float32)
    kernels.sum_floats(rows, out, exponent=exponent)
    with np.errstate(all="ignore"):
        for row in rows:
            expected += np.ldexp(row.astype(np.float32), exponent)
    assert same_bits(out, expected)


@given(st.sampled_from(list(FLOATS)), SIZES, SEEDS, st.integers(1, 300), st.sampled_from([0, 1, 7]))
def test_sums_are_rounded_once(kind: ElementType, size: int, seed: int, divisor: int, exponent: int) -> None:
    sums = floats(ElementType.FLOAT32, size, seed, 127, finite=False)
    out = np.zeros(size * FLOATS[kind].itemsize, np.uint8)
    kernels.round_floats(sums, out, FLOATS[kind], exponent=exponent, divisor=divisor)
    with np.errstate(invalid="ignore"):
        exact = np.ldexp(sums.astype(np.float64), exponent) / divisor
        assert out.tobytes() == quantisation.round_once(exact, FLOATS[kind]).tobytes()


@given(st.sampled_from(list(FLOATS)), st.integers(1, 1500), SEEDS)
def test_one_infinity_or_nan_is_found_wherever_it_is(kind: ElementType, size: int, seed: int) -> None:
    array = floats(kind, size, seed, top(kind))
    assert not kernels.has_special(array)
    for odd in (np.inf, -np.inf, np.nan):
        changed = array.copy()
        changed[seed % size] = odd
        assert kernels.has_special(changed)


@pytest.mark.parametrize("dtype", [kind for kind in REDUCIBLE if kind.kind != "i"], ids=str)
@pytest.mark.parametrize("arrival", list(Arrival)[1:], ids=lambda arrival: arrival.name)
def test_folding_and_division_make_one_nan(dtype: np.dtype[Any], arrival: Arrival) -> None:
    """Leave it to the ring's last addition in sums of floats that are added once more."""
    odd = nans(dtype)
    ones, inf = np.ones(odd.size, dtype), np.array([np.inf], dtype)
    mine = np.tile(np.concatenate([odd, ones, odd, inf]), 9)
    theirs = np.tile(np.concatenate([ones, odd, odd[::-1], -inf]), 9)
    kernels.fold_into(mine, theirs, arrival)
    assert has_the_one_nan(mine) or (arrival is Arrival.SUM and dtype != np.float64)
    assert np.isnan(mine[: 3 * odd.size]).all()
    again = np.tile(odd, 9)
    kernels.divide_in_place(again, 3)
    assert has_the_one_nan(again)
