"""Gradients that nobody computed: whole numbers whose sum over the ranks is known at every place.

Each rank has its own numbers, drawn once, which repeat every `PERIOD` elements. No packet's or chunk's length
is a multiple of it. They begin at another place in each bucket and iteration. No number is below 1, so a sum
that lacks a rank or has one twice is wrong at every place; a sum at the wrong place, or of the iteration
before, is wrong at almost every place. No sum is above 2^24 for float32, 2^11 for float16, 2^8 for bfloat16,
up to which a type has all whole numbers; 2^11 for float32, too, if it goes over 16 bits. The switch's fixed
point and its half precision have these numbers, so every strategy has to give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.errors import VerificationError, WorkloadError

PERIOD: Final = 1021  # prime
_PIECE: Final = 64 * PERIOD  # elements that are written or compared at once: they stay in the cache
_BUCKET_STEP: Final = 13
_ITERATION_STEP: Final = 101
MAX_WORKERS: Final = 64  # which leaves bfloat16 four numbers for a rank
_SEED: Final = 7


def summands(rank: int, *, world_size: int, dtype: np.dtype[Any]) -> NDArray[np.int64]:
    """Return a rank's `PERIOD` numbers: from 1 to an N-th of the largest sum in `dtype`."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    most = 2 ** (info.nmant + 1) // world_size
    return np.random.default_rng([_SEED, rank]).integers(1, most, PERIOD, dtype=np.int64, endpoint=True)


class Gradients:
    """One buffer a bucket, `sizes` in elements of `dtype`, summed in place.

    `over_16_bits`: their sums are whole numbers that half precision has, too.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        rank: int,
        world_size: int,
        dtype: np.dtype[Any],
        over_16_bits: bool = False,
    ) -> None:
        if world_size > MAX_WORKERS:
            raise WorkloadError(
                f"{world_size} workers are too many for sums that {dtype} has exactly: at most {MAX_WORKERS}"
            )
        exact = np.dtype(np.float16) if over_16_bits and dtype == np.float32 else dtype
        everybodys = [summands(each, world_size=world_size, dtype=exact) for each in range(world_size)]
        places = np.arange(_PIECE + PERIOD) % PERIOD
        self._own = everybodys[rank].astype(dtype)[places]
        self._sum = np.add.reduce(everybodys).astype(dtype)[places]
        self._bits = np.dtype(f"u{dtype.itemsize}")
        self._buffers = [np.empty(size, dtype) for size in sizes]
        self._iterations: list[int | None] = [None] * len(sizes)
        self._summed = [False] * len(sizes)
        self._wrong: VerificationError | None = None
        self.rank = rank
        self._over_16_bits = over_16_bits

    def fits(self, sizes: Sequence[int], dtype: np.dtype[Any], *, over_16_bits: bool = False) -> bool:
        """Return whether the buffers have just these sizes and this type."""
        same = self._own.dtype == dtype and self._over_16_bits == over_16_bits
        return same and [buffer.size for buffer in self._buffers] == list(sizes)

    def buffer(self, bucket: int) -> NDArray[Any]:
        """Return a bucket's memory, to be summed; its content counts as a sum from now on."""
        self._summed[bucket] = True
        return self._buffers[bucket]

    def renew(self, bucket: int, iteration: int) -> None:
        """Write the gradients of `iteration`, after a check of the sum that the bucket holds.

        `check_all` raises the error of that check: if this rank stopped here, the others would wait for it.
        """
        try:
            self.check(bucket)
        except VerificationError as error:
            self._wrong = self._wrong or error
        if self._iterations[bucket] == iteration and not self._summed[bucket]:
            return
        buffer = self._buffers[bucket]
        phase = _phase(bucket, iteration)
        for start in range(0, buffer.size, _PIECE):
            piece = buffer[start : start + _PIECE]
            piece[...] = self._own[phase : phase + piece.size]
        self._iterations[bucket], self._summed[bucket] = iteration, False

    def check(self, bucket: int) -> None:
        """Raise VerificationError if a bucket holds a wrong sum. All elements are checked."""
        iteration = self._iterations[bucket]
        if iteration is None or not self._summed[bucket]:
            return
        buffer = self._buffers[bucket]
        phase = _phase(bucket, iteration)
        for start in range(0, buffer.size, _PIECE):
            piece = buffer[start : start + _PIECE]
            expected = self._sum[phase : phase + piece.size]
            found, right = piece.view(self._bits), expected.view(self._bits)
            if not np.array_equal(found, right):
                wrong = int(np.flatnonzero(found != right)[0])
                raise VerificationError(
                    f"the sum of bucket {bucket} is wrong on rank {self.rank}: element {start + wrong} is "
                    f"{float(piece[wrong]):g}, not {float(expected[wrong]):g}"
                )

    def check_all(self) -> None:
        """Check every bucket; raise also the first error that `renew` has found."""
        wrong, self._wrong = self._wrong, None
        if wrong is not None:
            raise wrong
        for bucket in range(len(self._buffers)):
            self.check(bucket)


def _phase(bucket: int, iteration: int) -> int:
    return (bucket * _BUCKET_STEP + iteration * _ITERATION_STEP) % PERIOD
