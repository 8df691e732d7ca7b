"""Checks of what users pass to collectives, which also make it uniform. UsageError if it is wrong."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Strategy, Wire
from host_agent.error_feedback import ErrorFeedback
from host_agent.errors import UsageError
from host_agent.quantisation import ELEMENT_TYPES, REDUCIBLE
from host_agent.wire.aggregation import Reduction

Array = NDArray[Any]

_MAX_ELEMENTS = 2**32 - 1
_LONGEST_NAME = 120  # characters of a type's
_REDUCTIONS = {r.name.lower(): r for r in Reduction if r is not Reduction.NONE}


@functools.lru_cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return str(dtype), which is slow to compute, with a hash in place of the end of a long name."""
    name = str(dtype)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}... ({hashlib.sha256(name.encode()).hexdigest()[:8]})"


def contiguous(array: Array) -> Array:
    """Return `array`, or a copy of it in C order and this machine's byte order."""
    array = np.asarray(array)
    if array.dtype.hasobject or array.dtype.itemsize == 0:
        raise UsageError(f"arrays of dtype {array.dtype} cannot be sent: elements need a fixed size")
    if array.nbytes > _MAX_ELEMENTS:
        raise UsageError(f"an array of {array.nbytes} bytes is too large for one collective (limit: 4 GiB)")
    if array.flags.c_contiguous and array.dtype.isnative:
        return array
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)


def reducible(array: Array, op: Reduction | str) -> tuple[Array, Reduction]:
    """Return `contiguous(array)`, if it can be reduced, and the reduction that `op` is or names."""
    array = contiguous(array)
    found = _REDUCTIONS.get(op.lower()) if isinstance(op, str) else op
    if found is None or found not in _REDUCTIONS.values():
        raise UsageError(f"{op!r} is no reduction; there are {', '.join(_REDUCTIONS)}")
    if array.dtype not in REDUCIBLE:
        names = ", ".join(str(dtype) for dtype in REDUCIBLE)
        raise UsageError(f"dtype {array.dtype} cannot be reduced; convert to one of {names}")
    return array, Reduction(found)


def result_array(out: Array | None, like: Array) -> Array:
    """Return `out`, or a new array shaped like `like`. `out` may be `like`, but not overlap it in part."""
    if out is None:
        return np.empty_like(like)
    if out.shape != like.shape or out.dtype != like.dtype:
        raise UsageError(f"out is {out.dtype}{list(out.shape)}, the result {like.dtype}{list(like.shape)}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError("out has to be C-contiguous and writeable")
    if out is not like and np.may_share_memory(out, like) and out.ctypes.data != like.ctypes.data:
        raise UsageError("out overlaps the array in part; it has to be the array itself or other memory")
    return out


def strategy_of(strategy: Strategy | str) -> Strategy:
    """Return the strategy itself, or the one of that name."""
    try:
        return Strategy(strategy)
    except ValueError as error:
        names = ", ".join(s.value for s in Strategy)
        raise UsageError(f"{strategy!r} is no strategy; there are {names}") from error


def of_switches(dtype: np.dtype[Any], reduction: Reduction) -> bool:
    """Tell whether a switch can make this reduction; all others go by ring."""
    return dtype in ELEMENT_TYPES and reduction is not Reduction.PROD


def by_switch_or_ring(strategy: Strategy, dtype: np.dtype[Any], reduction: Reduction) -> Strategy:
    """Return the strategy, or RING if no switch can do it. UsageError if IN_NETWORK was asked for then."""
    if reduction is Reduction.NONE or of_switches(dtype, reduction):
        return strategy
    if strategy is Strategy.IN_NETWORK:
        raise UsageError(
            f"no switch makes the {reduction.name.lower()} of {dtype}: leave the strategy out (or say "
            "strategy='ring'), or convert the array"
        )
    return Strategy.RING


def wire_of(wire: Wire | str, dtype: np.dtype[Any], reduction: Reduction, feedback: object = None) -> Wire:
    """Return the wire itself, or the one of that name in any case, if it can carry this reduction."""
    if feedback is not None and not isinstance(feedback, ErrorFeedback):
        raise UsageError(
            f"feedback has to be an ErrorFeedback, not {feedback!r}: make one with ErrorFeedback(), and give "
            "it to each call with this tensor"
        )
    try:
        wire = Wire(wire.lower() if isinstance(wire, str) else wire)
    except ValueError as error:
        names = ", ".join(w.value for w in Wire)
        raise UsageError(f"{wire!r} is no width of the wire; there are {names}") from error
    if wire is Wire.FULL:
        if feedback is not None:
            raise UsageError("error feedback is for a wire of 16 bits: say wire='16bit', or leave it out")
        return wire
    if dtype.kind == "i" or dtype.itemsize > 4 or reduction not in (Reduction.SUM, Reduction.AVG):
        raise UsageError(
            f"a wire of 16 bits is for sum and avg of floats, not for {reduction.name.lower()} of {dtype}"
        )
    return wire
