"""Moving bytes by adding: every rank contributes its own bytes and zeros elsewhere, as 32-bit words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Array


def pack(array: Array, *, offset: int | None, size: int) -> NDArray[np.int32]:
    """Return this rank's words: `array`'s bytes at byte `offset` of `size` (None: no bytes), else zeros."""
    words = np.zeros(-(-size // 4), np.int32)
    if offset is not None:
        words.view(np.uint8)[offset : offset + array.nbytes] = array.view(np.uint8)
    return words


def unpack(words: NDArray[np.int32], out: Array) -> None:
    """Leave the summed bytes in `out`."""
    out.view(np.uint8)[...] = words.view(np.uint8)[: out.nbytes]
