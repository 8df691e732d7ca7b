"""Collectives that the switch sums.

SUM and AVG of floats: as fixed point, or in half precision where the tensor is of 16 bits, with a scale for
each block of neighbours. The first messages announce scales only, and say in their headers, as all do, which
call they are of (`signature.py`): workers that disagree learn of it before any data travels. Blocks in which
some rank has an Inf or NaN go around the ring, in 64-bit floats, and nothing else does: their other elements
are rounded once, as those of other blocks are. MAX and MIN are exact.

Agreeing on a scale takes as long as a small sum does. So a small tensor goes without a scale: in the switch's
sum every rank has a place of its own, with zeros from all others. All ranks add in order of rank, in 64-bit
floats, and round once: the result has the same bits everywhere, is closer than fixed point, and Inf and NaN
come through.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives import ring, words
from host_agent.collectives.plan import Array, Call, Disagreement, Steps, Wait, Wire, ring_parts, sharing
from host_agent.kernels import sum_rows
from host_agent.quantisation import ELEMENT_TYPES
from host_agent.transport.operation import MARKED, Operation, SwitchOp
from host_agent.wire.aggregation import Kind, Reduction, Stage

_SWITCH_OPS = {
    Reduction.SUM: SwitchOp.SUM,
    Reduction.AVG: SwitchOp.SUM,
    Reduction.MAX: SwitchOp.MAX,
    Reduction.MIN: SwitchOp.MAX,
}

_IN_HALF = {SwitchOp.SUM: SwitchOp.SUM_HALF, SwitchOp.MAX: SwitchOp.MAX_HALF}


def all_reduce(call: Call, array: Array, out: Array) -> Steps[bool]:
    """Leave the reduction of all ranks' flat `array` in `out` (may be the same).

    Returns whether the switch made all of it: False where an Inf or NaN sent some around the ring. Where the
    call leaves a residual, it takes the place of what `array` held, and `out` is another one.
    """
    call = call.named(Kind.ALL_REDUCE, array)
    if call.reduction not in (Reduction.SUM, Reduction.AVG) or array.dtype == np.int32:
        yield from _aggregate(call, array, out)
        return True
    if call.world_size * array.nbytes <= call.small_bytes:
        yield from _all_together(call, array, out)
        if call.residual:
            array[...] = 0
        return True
    special = np.zeros(-(-array.size // MARKED), np.uint8)
    ended = yield from _aggregate(call, array, out, special=special)
    if call.residual and not ended:
        array[...] = 0  # nobody knows
    if not special.any():
        return True
    where = np.repeat(special.view(bool), MARKED)[: array.size]
    yield from _around_the_ring(call, array, out, where)
    if call.residual:
        array[where] = 0
    return False


def reduce(call: Call, array: Array, out: Array, *, root: int) -> Steps[bool]:
    """Reduce as `all_reduce` does; only `root` needs what is left in `out`."""
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
    """Sum small floats: the switch puts all ranks' rows together, and each rank adds them up."""
    rows = np.zeros((call.world_size, -(-array.nbytes // 4)), np.int32)
    rows[call.rank].view(np.uint8)[: array.nbytes] = array.view(np.uint8)
    flat = rows.reshape(-1)
    operation = call.operation(
        Stage.TOGETHER, SwitchOp.SUM, flat, flat, element_type=ELEMENT_TYPES[flat.dtype]
    )
    yield from _in_one(call, operation, flat)
    sum_rows(rows, out, divisor=call.world_size if call.reduction is Reduction.AVG else 1)


def _around_the_ring(call: Call, array: Array, out: Array, where: NDArray[np.bool_]) -> Steps[None]:
    """Sum the elements at `where` by ring into `out`: no switch has summed them, on any rank."""
    part = array[where]
    total = np.empty_like(part)
    yield from ring.all_reduce_in_64_bits(call, part, total)
    out[where] = total


def _aggregate(
    call: Call, send: Array, receive: Array, *, special: NDArray[np.uint8] | None = None
) -> Steps[bool]:
    """Sum `send` in the switch into `receive`. `special`: of scaled floats, as `Operation` has it."""
    switch_op = _SWITCH_OPS.get(call.reduction, SwitchOp.SUM)
    half = (Wire.FULL if special is None else call.wire).halves(send.dtype)
    operation = call.operation(
        Stage.TENSOR,
        _IN_HALF[switch_op] if half else switch_op,
        send,
        receive,
        element_type=ELEMENT_TYPES[send.dtype],
        special=special,
        residual=call.residual,
        divisor=call.world_size if call.reduction is Reduction.AVG else 1,
        invert=call.reduction is Reduction.MIN,
    )
    return (yield from _in_one(call, operation, receive))


def _in_one(call: Call, operation: Operation, receive: Array) -> Steps[bool]:
    """Run a whole collective, or a part of it, as one sum of the switch; return what `sharing` returns."""

    def steps() -> Steps[list[int]]:
        yield Wait((yield operation))
        return []

    half = operation.switch_op in _IN_HALF.values()
    return (yield from sharing(call, receive, steps(), whole=False, wire_bytes=2 if half else 4))
