"""Floats as 32-bit integers that a switch can add: the reference code, and the bound on the error.

SUM and AVG. A tensor is cut into blocks of neighbours. For each block all ranks agree on e, with |x| < 2^e
for every element x of every rank's block: e is a float32's exponent field, less 126, so that it fits into a
byte. Each rank sends round(x · 2^s), to nearest even, with

    s = 31 - h - e,    h = ceil(log2 N) for N <= 128, floor(log2 N) + 1 above

so that the sum of N lanes is below 2^31 in magnitude: it cannot overflow.

- N <= 128: 31 - h >= 24, the most significand bits that a type has. So the largest elements keep all their
  bits, and a lane is strictly below 2^(31 - h) <= 2^31 / N.
- N > 128: the largest are rounded, and may become 2^(31 - h) itself. But h is the smallest integer with
  N < 2^h, so that N · 2^(31 - h) is below 2^31 all the same. Up to 256, only N = 256 pays a bit for that.

The sum times 2^-s (divided by N for AVG) is rounded once to the element type.
Integer addition has no order, so that the result has the same bits on every rank, in every run, on every
switch.

Half precision, for types of 16 bits. Each rank sends x · 2^s as binary16, with s = 6 - floor(log2 N) - e: N
numbers up to 2^(6 - floor(log2 N)) are below 2^7 in sum. Elements down to 2^-14 keep all 11 bits then,
2^(floor(log2 N) - 19) of the block's largest or less; of smaller ones, multiples of 2^-24. A switch adds them
as integers in units of 2^-24, which is exact, as 31 bits end at 2^7, and rounds the sum once to binary16.
No sum of some of them is rounded to more than so many of the largest, which is a binary16.

MAX and MIN need no scale: a float's bit pattern, with the lower 31 bits of negative ones inverted, sorts as
a signed integer. The result is exact, Inf and NaN (which wins over everything, as in NumPy) included.

A NaN in a result is always the same one, without a sign or payload: processors differ in which they make of
two, or of Inf - Inf.

The transport converts block by block in native code (`host_agent/native/blocks.h`); tests hold it to the
functions here, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from host_agent.float_mode import default_float_mode
from host_agent.wire.aggregation import CHUNK_BYTES, HEADER_BYTES, LANE_BYTES, ElementType, Reduction

Scale: TypeAlias = int | NDArray[np.int32]  # one for all elements, or each element's
_Exponent = TypeVar("_Exponent", int, NDArray[np.int32])
BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
ELEMENT_TYPES: Final[dict[np.dtype[Any], ElementType]] = {
    np.dtype(np.int32): ElementType.INT32,
    np.dtype(np.float32): ElementType.FLOAT32,
    np.dtype(np.float16): ElementType.FLOAT16,
    BFLOAT16: ElementType.BFLOAT16,
}
# A ring adds these as well, each in its own type.
REDUCIBLE: Final[dict[np.dtype[Any], ElementType]] = {
    **ELEMENT_TYPES,
    np.dtype(np.int64): ElementType.INT64,
    np.dtype(np.float64): ElementType.FLOAT64,
}
LANE_BITS: Final = 31  # without the sign
SIGNIFICAND_BITS: Final = 24  # of float32, the most of all element types
HALF_SUM_BITS: Final = 7  # what all ranks' numbers are in sum is less: 2 to this power
HALF_UNITS: Final = 24  # binary16 counts in units of 2^-24
SPECIAL: Final = 255  # the exponent of a block in which some rank has an Inf or NaN
BIAS: Final = 126  # numbers of a block with exponent b are below 2^(b - BIAS)


@dataclass(frozen=True)
class Blocks:
    """The blocks of a tensor: it is cut into messages, and each message into blocks with one scale."""

    message_elements: int
    block_elements: int

    @classmethod
    def of(cls, *, path_mtu: int, message_packets: int, half: bool) -> Blocks:
        """Choose as few chunks a block as the header's spare bytes allow."""
        width = LANE_BYTES // 2 if half else LANE_BYTES
        chunks = path_mtu * message_packets // CHUNK_BYTES - 1
        in_a_block = -(-chunks // (CHUNK_BYTES - HEADER_BYTES))
        return cls(chunks * CHUNK_BYTES // width, in_a_block * CHUNK_BYTES // width)

    def slices(self, size: int) -> Iterator[slice]:
        """Yield the blocks of a tensor of that size."""
        for message in range(0, size, self.message_elements):
            end = min(message + self.message_elements, size)
            for start in range(message, end, self.block_elements):
                yield slice(start, min(start + self.block_elements, end))


def headroom_bits(world_size: int) -> int:
    """Return h: the bits that a lane leaves free so that the sum of N rounded lanes cannot overflow."""
    bits = (world_size - 1).bit_length()
    return bits if LANE_BITS - bits >= SIGNIFICAND_BITS else world_size.bit_length()


@default_float_mode()
def max_abs(array: NDArray[Any]) -> np.floating[Any]:
    """Return the largest magnitude, in the array's type: 0 without elements, NaN if one is NaN."""
    with np.errstate(invalid="ignore"):
        largest: np.floating[Any] = np.max(np.abs(array), initial=0)
    return largest


@default_float_mode()
def exponents(array: NDArray[Any]) -> NDArray[np.int32]:
    """Return the exponent field of each element as a float32: 0 for zeros, 1 also for subnormals."""
    with np.errstate(invalid="ignore"):
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.int32) & np.int32(0x7FFFFFFF)
    fields: NDArray[np.int32] = np.maximum(bits >> (SIGNIFICAND_BITS - 1), bits != 0, dtype=np.int32)
    return fields


def block_exponent(array: NDArray[Any]) -> int:
    """Return the exponent of the largest magnitude."""
    return int(np.max(exponents(array), initial=0))


def scale_of(exponent: _Exponent, world_size: int, *, half: bool) -> _Exponent:
    """Return s: a block's numbers are multiplied by 2^s."""
    if half:
        return HALF_SUM_BITS - world_size.bit_length() + BIAS - exponent
    return LANE_BITS - headroom_bits(world_size) + BIAS - exponent


@default_float_mode()
def to_fixed(array: NDArray[Any], scale: Scale) -> NDArray[np.int32]:
    """Return round(x · 2^scale), to nearest even. Elements must be below the agreed 2^e."""
    return np.rint(np.ldexp(array.astype(np.float64), scale)).astype(np.int32)


@default_float_mode()
def from_fixed(lanes: NDArray[np.int32], scale: Scale, dtype: DTypeLike, *, divisor: int = 1) -> NDArray[Any]:
    """Return lane · 2^-scale / divisor, rounded once to `dtype`; Inf if that is beyond it."""
    return round_once(np.ldexp(lanes.astype(np.float64), -scale) / divisor, np.dtype(dtype))


@default_float_mode()
def to_half(array: NDArray[Any], scale: Scale) -> NDArray[np.float16]:
    """Return x · 2^scale as binary16, to nearest even."""
    return np.ldexp(array.astype(np.float64), scale).astype(np.float16)


@default_float_mode()
def from_half(
    halves: NDArray[np.float16], scale: Scale, dtype: DTypeLike, *, divisor: int = 1
) -> NDArray[Any]:
    """Return h · 2^-scale / divisor, rounded once to `dtype`; Inf if that is beyond it."""
    return round_once(np.ldexp(halves.astype(np.float64), -scale) / divisor, np.dtype(dtype))


@default_float_mode()
def block_sum(
    arrays: Sequence[NDArray[Any]],
    blocks: Blocks,
    *,
    half: bool,
    divisor: int = 1,
    racks: Sequence[Sequence[int]] = (),
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the switches' sum of all ranks' floats, and a mask of blocks without one, due to an Inf or NaN.

    `racks`: which ranks are behind which leaf, if there are several.
    """
    dtype, size = arrays[0].dtype, arrays[0].size
    out, special = np.zeros(size, dtype), np.zeros(size, bool)
    starts = [block.start for block in blocks.slices(size)]
    if not starts:
        return out, special
    largest = np.maximum.reduceat(np.maximum.reduce([exponents(array) for array in arrays]), starts)
    exponent = np.repeat(largest, np.diff([*starts, size]))
    special[exponent == SPECIAL] = True
    some = (exponent > 0) & ~special
    scale = scale_of(exponent[some], len(arrays), half=half)
    if half:
        rows = [to_half(array[some], scale).astype(np.float64) for array in arrays]
        if len(racks) > 1:
            partials = [np.add.reduce([rows[rank] for rank in rack]).astype(np.float16) for rack in racks]
            rows = [partial.astype(np.float64) for partial in partials]
        halves = np.add.reduce(rows, initial=0.0).astype(np.float16)
        out[some] = from_half(halves, scale, dtype, divisor=divisor)
    else:
        total = np.add.reduce([to_fixed(array[some], scale) for array in arrays], dtype=np.int32)
        out[some] = from_fixed(total, scale, dtype, divisor=divisor)
    return out, special


@default_float_mode()
def divide(array: NDArray[Any], divisor: int) -> NDArray[Any]:
    """Divide a sum as AVG does: floats to nearest even, integers towards zero."""
    if array.dtype.kind == "i":
        quotient, rest = np.divmod(array, array.dtype.type(divisor))
        quotient += ((rest != 0) & (array < 0)).astype(array.dtype)
        return quotient
    with np.errstate(invalid="ignore"):
        return round_once(array.astype(np.float64) / divisor, array.dtype)


@default_float_mode()
def to_ordered(array: NDArray[Any], *, invert: bool = False) -> NDArray[np.int32]:
    """Return integers that sort as the floats, or the reverse (`invert`); NaN is the largest in both."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.int32)
    ordered: NDArray[np.int32] = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    if invert:
        ordered = ~ordered
    with np.errstate(invalid="ignore"):
        ordered[np.isnan(array)] = np.iinfo(np.int32).max
    return ordered


@default_float_mode()
def from_ordered(ordered: NDArray[np.int32], dtype: DTypeLike, *, invert: bool = False) -> NDArray[Any]:
    """Return the floats that `to_ordered` came from (the one NaN for a NaN)."""
    if invert:
        ordered = ~ordered
    bits: NDArray[np.int32] = ordered ^ ((ordered >> 31) & np.int32(0x7FFFFFFF))
    floats: NDArray[np.float32] = bits.view(np.float32)
    return _with_one_nan(floats).astype(dtype)


def error_bound(
    largest: float,
    *,
    world_size: int,
    dtype: DTypeLike,
    reduction: Reduction = Reduction.SUM,
    half: bool = False,
    racks: int = 1,
) -> float:
    """Return how far any element of an in-network result may be from the exact (real-number) one.

    `largest` is the largest magnitude in its block, of all ranks' tensors. Integers, MAX and MIN are exact.

    - Fixed point: each rank's number is rounded to a multiple of the quantum 2^-s (half a quantum each). With
      float32 that is below N · 2^(h - 31) · largest, for 4 workers 2^-27 · largest.
    - `half`: each number is rounded to binary16, 11 bits or a multiple of 2^(-24 - s). So is the sum, and
      where workers are in several `racks`, each rack's sum.
    - The result is rounded to the element type (half a unit in its last place).
    """
    dtype = np.dtype(dtype)
    if dtype == np.int32 or reduction not in (Reduction.SUM, Reduction.AVG) or largest == 0:
        return 0.0
    if not math.isfinite(largest):
        raise ValueError("where an Inf or NaN is, nothing is summed as integers: there is no bound")
    exponent = max(math.frexp(largest)[1] + BIAS, 1)
    scale = scale_of(exponent, world_size, half=half)
    if half:
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        unit = math.ldexp(0.5, -HALF_UNITS - scale)
        exact = float(info.eps) >= 2.0**-10  # of numbers that are not small for their block
        cut = max(unit, 0.0 if exact else largest * 2.0**-11)
        total = world_size * (largest + cut)
        lost = world_size * cut + (total * 2.0**-11 + racks * unit) * (2 if racks > 1 else 1)
    else:
        lost = world_size * math.ldexp(0.5, -scale)
    if reduction is Reduction.AVG:
        lost /= world_size
    summands = world_size if reduction is Reduction.SUM else 1
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    rounded = (summands * largest + lost) * float(info.eps) / 2 + float(info.smallest_subnormal) / 2
    return lost + rounded


@default_float_mode()
def round_once(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round to nearest even, straight from 64 bits; ml_dtypes alone would go through float32."""
    values = _with_one_nan(values)
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


def _with_one_nan(values: NDArray[Any]) -> NDArray[Any]:
    """Return the floats with every NaN as the quiet one without a sign or payload."""
    nans = np.isnan(values)
    return np.where(nans, values.dtype.type(np.nan), values) if nans.any() else values
