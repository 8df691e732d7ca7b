"""Collectives that the switch sums.

SUM and AVG of floats: one element first, by which the ranks agree on the largest magnitude (MAX), then the
tensor as fixed point. That first message has the tensor's size, element type and reduction in its header as
well, so that workers that disagree learn of it before any data travels. Where the magnitude is Inf or NaN,
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
from host_agent.wire.aggregation import Reduction

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


def reduce_scatter(call: Call, array: Array, out: Array) -> Steps[bool]:
    """Leave part `rank` of the reduction of all ranks' flat `array` in `out`; N divides the size."""
    work = np.empty_like(array)
    switched = yield from all_reduce(call, array, work)
    out[...] = work[ring_parts(work.size, call.world_size)[call.rank]]
    return switched


def all_gather(call: Call, array: Array, out: Array) -> Steps[None]:
    """Leave all ranks' flat `array`s in `out`, in order of rank; all have one size."""
    work = words.pack(call, array, offset=call.rank * array.nbytes, size=out.nbytes, root=0)
    yield from _aggregate(call, work, work)
    words.unpack(call, work, array, out, root=0)


def broadcast(call: Call, array: Array, out: Array, *, root: int) -> Steps[None]:
    """Leave `root`'s flat `array` in `out` everywhere."""
    offset = 0 if call.rank == root else None
    work = words.pack(call, array, offset=offset, size=out.nbytes, root=root)
    yield from _aggregate(call, work, work)
    words.unpack(call, work, array, out, root=root)


def barrier(call: Call) -> Steps[None]:
    """Return when all ranks have called it."""
    ones = np.ones(1, np.int32)
    yield from _aggregate(call, ones, ones)
    if ones[0] != call.world_size:
        raise Disagreement(f"a barrier of {call.world_size} workers counted {ones[0]}")


def _all_together(call: Call, array: Array, out: Array) -> Steps[None]:
    """The sum of small floats, whose ranks' rows the switch puts together.

    The header names the floats' type, not the rows': else the first messages of an int32 sum of as many
    elements could look the same to the switch.
    """
    rows = together.pack(call, array)
    flat = rows.reshape(-1)
    operation = Operation(
        switch_op=SwitchOp.SUM,
        send=flat,
        receive=flat,
        element_type=ELEMENT_TYPES[flat.dtype],
        header_type=ELEMENT_TYPES[array.dtype],
        reduction=call.reduction,
        collective=call.collective,
        total_elements=array.size,
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
    operation = Operation(
        switch_op=SwitchOp.MAX,
        send=value,
        receive=value,
        element_type=ELEMENT_TYPES[value.dtype],
        header_type=ELEMENT_TYPES[array.dtype],
        reduction=call.reduction,
        collective=call.collective,
        total_elements=array.size,
    )
    yield from _in_one(call, operation, value)
    return int(value[0])


def _aggregate(call: Call, send: Array, receive: Array, *, exponent: int = 0) -> Steps[None]:
    operation = Operation(
        switch_op=_SWITCH_OPS.get(call.reduction, SwitchOp.SUM),
        send=send,
        receive=receive,
        element_type=ELEMENT_TYPES[send.dtype],
        reduction=call.reduction,
        collective=call.collective,
        total_elements=send.size,
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
