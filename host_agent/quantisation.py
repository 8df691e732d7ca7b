"""Floats as 32-bit integers that a switch can add: the reference, and the bound on what it costs.

SUM and AVG. All ranks agree on e, the smallest integer with |x| < 2^e for every element x of every rank's
tensor (a MAX all-reduce of one element, the largest |x|). Each rank sends round(x · 2^s), to nearest even,
with

    s = 31 - h - e,    h = ceil(log2 N) for N <= 128, floor(log2 N) + 1 above

so that the sum of N lanes is below 2^31 in magnitude: it cannot overflow.

- N <= 128: 31 - h >= 24, the most significand bits that a type has. So the largest elements keep all their
  bits, and a lane is strictly below 2^(31 - h) <= 2^31 / N.
- N > 128: the largest are rounded, and may become 2^(31 - h) itself. But h is the smallest integer with
  N < 2^h, so that N · 2^(31 - h) is below 2^31 all the same. Up to 256, only N = 256 pays a bit for that.

The sum times 2^-s (divided by N for AVG) is rounded once to the element type.
Integer addition has no order, so that the result has the same bits on every rank, in every run, on every
switch.

MAX and MIN need no scale: a float's bit pattern, with the lower 31 bits of negative ones inverted, sorts as
a signed integer. The result is exact, Inf and NaN (which wins over everything, as in NumPy) included.

The transport converts message by message in native code (`p4r_encode_lanes`, `p4r_decode_lanes`), and whole
tensors go through `kernels.py`; tests hold both to the functions here, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from host_agent.wire.aggregation import ElementType, Reduction

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
ELEMENT_TYPES: Final[dict[np.dtype[Any], ElementType]] = {
    np.dtype(np.int32): ElementType.INT32,
    np.dtype(np.float32): ElementType.FLOAT32,
    np.dtype(np.float16): ElementType.FLOAT16,
    BFLOAT16: ElementType.BFLOAT16,
}
LANE_BITS: Final = 31  # without the sign
SIGNIFICAND_BITS: Final = 24  # of float32, the most of all element types
INFINITY_BITS: Final = 0x7F800000  # of float32; NaNs' are above


def headroom_bits(world_size: int) -> int:
    """h: how many bits N summands can add, and what each is rounded up by."""
    bits = (world_size - 1).bit_length()
    return bits if LANE_BITS - bits >= SIGNIFICAND_BITS else world_size.bit_length()


def max_abs(array: NDArray[Any]) -> np.floating[Any]:
    """The largest magnitude, in the array's own type: 0 where there is no element, NaN where one is NaN."""
    with np.errstate(invalid="ignore"):
        largest: np.floating[Any] = np.max(np.abs(array), initial=0)
    return largest


def magnitude_bits(array: NDArray[Any]) -> int:
    """The largest magnitude in the array as the bits of a float32, which sort as the magnitudes do."""
    with np.errstate(invalid="ignore"):
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)
    return int(np.max(bits, initial=0))


def magnitude_of(bits: int) -> float:
    """What `magnitude_bits` stands for, finite; exact.

    Made from integers: where a thread takes subnormals for zeros (DAZ), a float32 that is one would become 0.
    """
    exponent, fraction = bits >> (SIGNIFICAND_BITS - 1), bits & ((1 << (SIGNIFICAND_BITS - 1)) - 1)
    if exponent:
        fraction += 1 << (SIGNIFICAND_BITS - 1)
    return math.ldexp(fraction, max(exponent, 1) - 150)


def exponent_of(magnitude: float) -> int:
    """The smallest e with `magnitude` < 2^e. It has to be finite and above zero."""
    return math.frexp(magnitude)[1]


def scale_exponent(agreed_max_abs: float, world_size: int) -> int:
    """s of `round(x · 2^s)`, from the largest magnitude of all ranks, finite and above zero."""
    return LANE_BITS - headroom_bits(world_size) - exponent_of(agreed_max_abs)


def to_fixed(array: NDArray[Any], scale: int) -> NDArray[np.int32]:
    """round(x · 2^scale), to nearest even. Elements must be below the agreed 2^e."""
    return np.rint(np.ldexp(array.astype(np.float64), scale)).astype(np.int32)


def from_fixed(lanes: NDArray[np.int32], scale: int, dtype: DTypeLike, *, divisor: int = 1) -> NDArray[Any]:
    """lane · 2^-scale / divisor, rounded once to `dtype`; Inf where that is beyond it."""
    return _round_once(np.ldexp(lanes.astype(np.float64), -scale) / divisor, np.dtype(dtype))


def divide(array: NDArray[Any], divisor: int) -> NDArray[Any]:
    """What AVG does to a sum: floats to nearest even, integers towards zero."""
    if array.dtype == np.int32:
        return np.trunc(array / divisor).astype(np.int32)
    with np.errstate(invalid="ignore"):
        return _round_once(array.astype(np.float64) / divisor, array.dtype)


def to_ordered(array: NDArray[Any], *, invert: bool = False) -> NDArray[np.int32]:
    """Integers that sort as the floats do, or the other way round (`invert`); NaN is the largest in both."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.int32)
    ordered: NDArray[np.int32] = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    if invert:
        ordered = ~ordered
    with np.errstate(invalid="ignore"):
        ordered[np.isnan(array)] = np.iinfo(np.int32).max
    return ordered


def from_ordered(ordered: NDArray[np.int32], dtype: DTypeLike, *, invert: bool = False) -> NDArray[Any]:
    """The floats that `to_ordered` came from (any NaN for a NaN)."""
    if invert:
        ordered = ~ordered
    bits: NDArray[np.int32] = ordered ^ ((ordered >> 31) & np.int32(0x7FFFFFFF))
    floats: NDArray[Any] = bits.view(np.float32).astype(dtype)
    return floats


def error_bound(
    largest: float, *, world_size: int, dtype: DTypeLike, reduction: Reduction = Reduction.SUM
) -> float:
    """How far any element of an in-network result may be from the exact (real-number) one.

    `largest` is the largest magnitude in all ranks' tensors. Two roundings: each rank's to a multiple of the
    quantum 2^-s (half a quantum each), and the result's to the element type (half a unit in its last place).
    With float32 the first is below N · 2^(h - 31) · largest, for 4 workers 2^-27 · largest.
    Integers, MAX and MIN are exact.
    """
    dtype = np.dtype(dtype)
    if dtype == np.int32 or reduction not in (Reduction.SUM, Reduction.AVG) or largest == 0:
        return 0.0
    if not math.isfinite(largest):
        raise ValueError("tensors with Inf or NaN are not summed as integers: there is no bound")
    summands = world_size if reduction is Reduction.SUM else 1
    quantised = summands * math.ldexp(0.5, -scale_exponent(largest, world_size))
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    rounded = (summands * largest + quantised) * float(info.eps) / 2 + float(info.smallest_subnormal) / 2
    return quantised + rounded


def _round_once(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """To nearest even, straight from 64 bits; ml_dtypes alone would go through float32."""
    with np.errstate(over="ignore"):
        if dtype != BFLOAT16:
            return values.astype(dtype)
        nearest = values.astype(np.float32)
    # Round to odd: where float32 is not exact, take the one of its two neighbours with the odd pattern.
    inexact = np.isfinite(nearest) & (nearest.astype(np.float64) != values)
    towards_zero = np.where(np.abs(nearest.astype(np.float64)) > np.abs(values), 1, 0).astype(np.uint32)
    bits = nearest.view(np.uint32)
    odd = (bits - towards_zero) | np.uint32(1)
    return np.where(inexact, odd, bits).astype(np.uint32).view(np.float32).astype(dtype)
