"""Gradients that nobody computed: whole numbers whose sum over the ranks is known at every place.

Rank r has (r + 1) times a base that repeats every `_PERIOD` elements, which no packet's or chunk's length is
a multiple of; it begins elsewhere in each bucket and each iteration. So sums that lack a rank, have one
twice, are at the wrong place or an iteration old are wrong numbers. All sums are below 2^24: float32 has them
exactly, and fixed point too, so that every strategy has to give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workloads.errors import VerificationError, WorkloadError

_PERIOD: Final = 1021  # prime
_PIECE: Final = 64 * _PERIOD  # elements that are written or compared at once: they stay in the cache
_BUCKET_STEP: Final = 13
_ITERATION_STEP: Final = 101
MAX_WORKERS: Final = 64


class Gradients:
    """One float32 buffer a bucket, `sizes` in elements, summed in place."""

    def __init__(self, sizes: Sequence[int], *, rank: int, world_size: int) -> None:
        if world_size > MAX_WORKERS:
            raise WorkloadError(
                f"{world_size} workers are too many for sums that float32 has exactly: at most {MAX_WORKERS}"
            )
        base = (np.arange(_PIECE + _PERIOD) % _PERIOD + 1).astype(np.float32)
        self._own = base * np.float32(rank + 1)
        self._sum = base * np.float32(world_size * (world_size + 1) // 2)
        self._buffers = [np.empty(size, np.float32) for size in sizes]
        self._iterations: list[int | None] = [None] * len(sizes)
        self._summed = [False] * len(sizes)
        self._wrong: VerificationError | None = None
        self.rank = rank

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether it has buffers of just these sizes."""
        return [buffer.size for buffer in self._buffers] == list(sizes)

    def buffer(self, bucket: int) -> NDArray[Any]:
        """A bucket's memory, to be summed; its content counts as a sum from now on."""
        self._summed[bucket] = True
        return self._buffers[bucket]

    def renew(self, bucket: int, iteration: int) -> None:
        """Write the gradients of `iteration`. A sum that the bucket holds is looked at before.

        Where that was wrong, `check_all` says so: the others would wait for whoever stops here.
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
        """VerificationError where a bucket holds a sum that is wrong. All elements are looked at."""
        iteration = self._iterations[bucket]
        if iteration is None or not self._summed[bucket]:
            return
        buffer = self._buffers[bucket]
        phase = _phase(bucket, iteration)
        for start in range(0, buffer.size, _PIECE):
            piece = buffer[start : start + _PIECE]
            expected = self._sum[phase : phase + piece.size]
            if not np.array_equal(piece, expected):
                wrong = int(np.flatnonzero(piece != expected)[0])
                raise VerificationError(
                    f"the sum of bucket {bucket} is wrong on rank {self.rank}: element {start + wrong} is "
                    f"{piece[wrong]:g}, not {expected[wrong]:g}"
                )

    def check_all(self) -> None:
        """`check` of every bucket, and of all that have been renewed since."""
        wrong, self._wrong = self._wrong, None
        if wrong is not None:
            raise wrong
        for bucket in range(len(self._buffers)):
            self.check(bucket)


def _phase(bucket: int, iteration: int) -> int:
    return (bucket * _BUCKET_STEP + iteration * _ITERATION_STEP) % _PERIOD
