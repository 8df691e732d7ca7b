"""Half-precision lanes as a switch adds them: integers in units of the smallest number, rounded once.

A 32-bit lane holds two numbers laid out as IEEE 754's binary16. In units of 2^-24 each is an integer: its
significand, shifted by its exponent. Infinities, NaNs and other numbers as large lose bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UNIT = 2.0**-24


def numbers(lanes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the first and the second number of each lane, as two rows."""
    bits = np.stack([lanes >> 16, lanes]).astype(np.int64)
    field, fraction = bits >> 10 & 31, bits & 1023
    shift = np.where(field == 0, 0, field - 1)
    significand = np.where(field == 0, fraction, fraction | 1024) << (shift & 15)
    magnitude = np.where(shift < 16, significand, significand << 16 & 0x7FFFFFFF)
    signed: NDArray[np.int32] = np.where(bits >> 15 & 1, -magnitude, magnitude).astype(np.int32)
    return signed


def rounded(sums: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return two rows of sums as lanes, each number rounded to nearest, ties to even.

    -2^31, which no sum of senders can be, becomes -0.
    """
    halves = np.where(sums == np.iinfo(np.int32).min, -0.0, sums * UNIT).astype(np.float16)
    first, second = halves.view(np.uint16).astype(np.uint32)
    lanes: NDArray[np.int32] = (first << 16 | second).view(np.int32)
    return lanes
