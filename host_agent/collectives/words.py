"""Moving bytes by adding: every rank contributes its own bytes and zeros elsewhere, as 32-bit words.

In front of them go words by which each rank sees that all named the same root and dtype, which no header
says.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Array, Call, Disagreement


def pack(call: Call, array: Array, *, offset: int | None, size: int, root: int) -> NDArray[np.int32]:
    """The words of this rank: `array`'s bytes at byte `offset` of `size` (None: none of them), else zeros."""
    check = _check_words(root, array)
    words = np.zeros(check.size + -(-size // 4), np.int32)
    words[: check.size] = check
    if offset is not None:
        words[check.size :].view(np.uint8)[offset : offset + array.nbytes] = array.view(np.uint8)
    return words


def unpack(call: Call, words: NDArray[np.int32], array: Array, out: Array, *, root: int) -> None:
    """Leave the summed bytes in `out`; Disagreement where a rank named another root or dtype."""
    check = _check_words(root, array)
    if not np.array_equal(words[: check.size], check * call.world_size):
        raise Disagreement(
            f"the workers named different roots or dtypes; this one has root {root} and {array.dtype}"
        )
    out.view(np.uint8)[...] = words[check.size :].view(np.uint8)[: out.nbytes]


def _check_words(root: int, array: Array) -> NDArray[np.int32]:
    """Each value that has to be equal on all ranks, and its square.

    N values add up to N times this rank's, and so do their squares, only if none differs (their variance is
    zero). Values stay below 2^13, so that 32 squares fit a word.
    """
    values = np.array([root, ord(array.dtype.kind) * 64 + min(array.dtype.itemsize, 63)], np.int32)
    return np.concatenate([values, values * values])
