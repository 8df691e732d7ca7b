"""Operations on whole tensors in native code; some give the same bits as `quantisation.py`."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.quantisation import ELEMENT_TYPES, REDUCIBLE
from host_agent.transport.native import library
from host_agent.transport.operation import Arrival


def keep(array: NDArray[Any], copy: NDArray[np.uint8]) -> None:
    """Copy a C-contiguous array; a large one past the caches."""
    library().p4r_keep(array.ctypes.data, array.nbytes, copy.ctypes.data)


def sum_rows(rows: NDArray[np.int32], out: NDArray[Any], *, divisor: int) -> None:
    """Add up the floats at the beginning of each of `rows` (n, words; each contiguous) into `out`.

    Each row has `out.size` floats. They are added in the order of the rows in 64-bit floats, divided, and
    rounded once.
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
    """Divide a C-contiguous sum as AVG does: floats to nearest even, integers towards zero."""
    library().p4r_divide(REDUCIBLE[array.dtype], array.ctypes.data, array.size, divisor)


def fold_into(target: NDArray[Any], source: NDArray[Any], fold: Arrival) -> None:
    """Fold C-contiguous numbers into others of their type, as a ring folds what arrives. Integers wrap."""
    library().p4r_fold(
        fold, REDUCIBLE[target.dtype], target.ctypes.data, source.ctypes.data, min(target.size, source.size)
    )


def has_special(array: NDArray[Any]) -> bool:
    """Tell whether an Inf or NaN is among C-contiguous floats of one of the switch's types."""
    return bool(library().p4r_has_special(ELEMENT_TYPES[array.dtype], array.ctypes.data, array.size))


def sum_floats(rows: Sequence[NDArray[Any]], out: NDArray[np.float32], *, exponent: int) -> None:
    """Add up C-contiguous floats of one type, times 2^exponent, into `out`: in order, in 32-bit floats."""
    library().p4r_sum_floats(
        ELEMENT_TYPES[rows[0].dtype],
        (c_void_p * len(rows))(*(row.ctypes.data for row in rows)),
        len(rows),
        out.size,
        exponent,
        out.ctypes.data,
    )


def round_floats(
    sums: NDArray[np.float32], target: NDArray[np.uint8], dtype: np.dtype[Any], *, exponent: int, divisor: int
) -> None:
    """Leave sums · 2^exponent / divisor in the bytes of `target`, rounded once to `dtype`."""
    library().p4r_round_floats(
        ELEMENT_TYPES[dtype], sums.ctypes.data, sums.size, exponent, divisor, target.ctypes.data
    )
