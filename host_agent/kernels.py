"""Operations on whole tensors in native code; some give the same bits as `quantisation.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.quantisation import ELEMENT_TYPES, REDUCIBLE
from host_agent.transport.native import library


def keep(array: NDArray[Any], copy: NDArray[np.uint8]) -> None:
    """Copy a C-contiguous array; a large one past the caches."""
    library().p4r_keep(array.ctypes.data, array.nbytes, copy.ctypes.data)


def sum_rows(rows: NDArray[np.int32], out: NDArray[Any], *, divisor: int) -> None:
    """Add up the floats at the beginning of each of `rows` (n, words; each contiguous) into `out`.

    `out.size` of each; in the order of the rows, in 64-bit floats; divided, rounded once.
    """
    library().p4r_sum_rows(
        ELEMENT_TYPES[out.dtype],
        rows.ctypes.data,
        rows.strides[0],
        len(rows),
        out.size,
        divisor,
        out.ctypes.data,
    )


def divide_in_place(array: NDArray[Any], divisor: int) -> None:
    """What AVG does to a C-contiguous sum: floats to nearest even, integers towards zero."""
    library().p4r_divide(REDUCIBLE[array.dtype], array.ctypes.data, array.size, divisor)
