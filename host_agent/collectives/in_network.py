"""Collectives that the switch sums.

SUM and AVG of floats: one element first, by which the ranks agree on the largest magnitude (MAX), then the
tensor as fixed point. Each message says in its header which call it is of (`signature.py`), that first one
too, so that workers that disagree learn of it before any data travels. Where the magnitude is Inf or NaN,
some rank's tensor holds one, and the sum goes around the ring in floating point. Small ones go whole instead,
in one pass (`together.py`). Everything else needs one pass: MAX and MIN are exact.
"""

from __future__ import annotations

import numpy as np

from host_agent.collectives import ring, together, words
from host_agent.collectives.plan import Array, Call, Disagreement, Steps, Wait, ring_parts, sharing
from host_agent.kernels import magnitude_bits
from host_agent.quantisation import ELEMENT_TYPES, INFINITY_BITS, magnitude_of, scale_exponent
from host_agent.transport.operation import Operation, SwitchOp
from host_agent.wire.aggregation import Kind, Reduction, Stage

_SWITCH_OPS = {
    Reduction.SUM: SwitchOp.SUM,
    Reduction.AVG: SwitchOp.SUM,
    Reduction.MAX: SwitchOp.MAX,
    Reduction.MIN: SwitchOp.MAX,
}


def all_reduce(call: Call, array: Array, out: Array) -> Steps[bool]:
    """Leave the reduction of all ranks' flat `array` in `out` (may be the same).

    Returns whether the switch made it: False where an Inf or NaN sent it around the ring.
    """
    call = call.named(Kind.ALL_REDUCE, array)
    exponent = 0
    if call.reduction in (Reduction.SUM, Reduction.AVG) and array.dtype != np.int32:
        if together.fits(call, array):
            yield from _all_together(call, array, out)
            return True
        agreed = yield from _agree_on_magnitude(call, array)
        if agreed >= INFINITY_BITS:
            yield from ring.all_reduce(call, array, out)
            return False
        if agreed == 0:
            out[...] = 0
            return True
        exponent = scale_exponent(magnitude_of(agreed), call.world_size)
    yield from _aggregate(call, array, out, exponent=exponent)
    return True


def reduce(call: Call, array: Array, out: Array, *, root: int) -> Steps[bool]:
    """As `all_reduce`; who is not `root` has no use for what is left in `out`."""
    return all_reduce(call.named(Kind.REDUCE, array, root=root), array, out)


def reduce_scatter(call: Call, array: Array, out: Array) -> Steps[bool]:
    """Leave part `rank` of the reduction of all ranks' flat `array` in `out`; N divides the size."""
    call = call.named(Kind.REDUCE_SCATTER, array)
    work = np.empty_like(array)
    switched = yield from all_reduce(call, array, work)
    out[...] = work[ring_parts(work.size, call.world_size)[call.rank]]
    return switched


def all_gather(call: Call, array: Array, out: Array) -> Steps[None]:
    """Leave all ranks' flat `array`s in `out`, in order of rank; all have one size."""
    call = call.named(Kind.ALL_GATHER, array)
    work = words.pack(array, offset=call.rank * array.nbytes, size=out.nbytes)
    yield from _aggregate(call, work, work)
    words.unpack(work, out)


def broadcast(call: Call, array: Array, out: Array, *, root: int) -> Steps[None]:
    """Leave `root`'s flat `array` in `out` everywhere."""
    call = call.named(Kind.BROADCAST, array, root=root)
    work = words.pack(array, offset=0 if call.rank == root else None, size=out.nbytes)
    yield from _aggregate(call, work, work)
    words.unpack(work, out)


def barrier(call: Call) -> Steps[None]:
    """Return when all ranks have called it."""
    ones = np.ones(1, np.int32)
    call = call.named(Kind.BARRIER, ones)
    yield from _aggregate(call, ones, ones)
    if ones[0] != call.world_size:
        raise Disagreement(f"a barrier of {call.world_size} workers counted {ones[0]}")


def _all_together(call: Call, array: Array, out: Array) -> Steps[None]:
    """The sum of small floats, whose ranks' rows the switch puts together."""
    rows = together.pack(call, array)
    flat = rows.reshape(-1)
    operation = call.operation(
        Stage.TOGETHER, SwitchOp.SUM, flat, flat, element_type=ELEMENT_TYPES[flat.dtype]
    )
    yield from _in_one(call, operation, flat)
    together.unpack(call, rows, out)


def _agree_on_magnitude(call: Call, array: Array) -> Steps[int]:
    """The bits of the largest magnitude in all ranks' arrays; NaN and Inf win over all others.

    They are integers all the way: what ranks decide by them does not depend on how a thread's processor takes
    subnormals. The header names the floats' type, which is what the ranks have to agree on.
    """
    mine = magnitude_bits(array) if call.magnitude_bits is None else call.magnitude_bits
    value = np.array([mine], np.int32)
    operation = call.operation(
        Stage.MAGNITUDE, SwitchOp.MAX, value, value, element_type=ELEMENT_TYPES[value.dtype]
    )
    yield from _in_one(call, operation, value)
    return int(value[0])


def _aggregate(call: Call, send: Array, receive: Array, *, exponent: int = 0) -> Steps[None]:
    operation = call.operation(
        Stage.TENSOR,
        _SWITCH_OPS.get(call.reduction, SwitchOp.SUM),
        send,
        receive,
        element_type=ELEMENT_TYPES[send.dtype],
        exponent=exponent,
        divisor=call.world_size if call.reduction is Reduction.AVG else 1,
        invert=call.reduction is Reduction.MIN,
    )
    yield from _in_one(call, operation, receive)


def _in_one(call: Call, operation: Operation, receive: Array) -> Steps[None]:
    """The whole collective, or the last part of it: one sum of the switch's."""

    def steps() -> Steps[None]:
        yield Wait((yield operation))

    yield from sharing(call, receive, steps(), whole=False)
