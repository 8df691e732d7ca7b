"""Numbers whose sums end beyond their type on the way, though not in the end; and the NaNs that there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.quantisation import round_once
from host_agent.wire.aggregation import Reduction
from p4reduce.simulation.cases import Case

Array = NDArray[Any]
NAN_PAYLOADS = (0x7FC00001, 0xFFC00000, 0x7FFFFFFF, 0xFFA00001)  # of float32; the last is a signalling one


class Beyond(Case):
    """Averages, or sums that cancel out, of numbers so large that the type does not take three of them.

    They have three bits, so that every way to sum which does not overflow gives the same, exact bits.
    """

    def inputs(self, world_size: int, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        size = self.elements * world_size if self.name == "reduce_scatter" else self.elements
        return large(rng, world_size, size, self.dtype, averaged=self.reduction is Reduction.AVG)


def large(
    rng: np.random.Generator, workers: int, size: int, dtype: np.dtype[Any], *, averaged: bool
) -> list[Array]:
    """Return all ranks' arrays: of one sign if averaged, else with a sum that is one rank's number."""
    top = {"float16": 15, "bfloat16": 127, "float32": 127}[dtype.name]
    numbers = [np.ldexp(rng.integers(4, 8, size) / 4.0, top) for _ in range(workers)]
    signs = rng.choice([-1.0, 1.0], size)
    if averaged:
        return [(signs * one).astype(dtype) for one in numbers]
    first = signs * numbers[0]
    arrays = [first, first, -first, *(np.zeros(size) for _ in range(workers - 3))]
    return [array.astype(dtype) for array in arrays]


def rounded_once(arrays: Sequence[Array], *, divisor: int = 1) -> Array:
    """Return the exact sum, divided, rounded once to the type."""
    with np.errstate(invalid="ignore"):
        total = np.add.reduce([array.astype(np.float64) for array in arrays])
        return round_once(total / divisor, arrays[0].dtype)


def nans(dtype: np.dtype[Any]) -> Array:
    """Return NaNs of several signs and payloads."""
    if dtype.itemsize == 8:
        return np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(dtype)
    bits = np.array(NAN_PAYLOADS, np.uint32)
    if dtype == np.float32:
        return bits.view(dtype)
    exponent, mantissa = (0x7C00, 10) if dtype == np.float16 else (0x7F80, 7)
    halves = (bits >> 16 & 0x8000) | exponent | np.maximum(bits >> (23 - mantissa) & (2**mantissa - 1), 1)
    found: Array = halves.astype(np.uint16).view(dtype)
    return found


def has_the_one_nan(array: Array) -> bool:
    """Tell whether every NaN of a result is the quiet one without a sign or payload."""
    found = array[np.isnan(array)]
    return found.tobytes() == np.full(found.size, np.nan, array.dtype).tobytes()
