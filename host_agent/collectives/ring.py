"""Ring collectives over PASS messages: N - 1 steps, each sends a part ahead and takes one from behind.

Every part passes every rank, so that no rank is done before all have entered: the phases are synchronising,
which the switch's slots rely on (docs/protocol.md). Parts are added in the order of the ring, the sum of a
part in one place only, and copied from there: results have the same bits on all ranks. For the same reason no
rank is done before it knows that all have called the same: each compares the header of every message with its
own call, before it passes anything on. Parts and places count along the ring, which need not be in order of
rank.

A ring adds in the type of the tensor. Beyond that type's range, a sum on its way becomes Inf and stays Inf,
although the next summand, or AVG's division, would bring it back, and although a switch would give a finite
sum. So elements that come out as Inf or NaN are added once more, in 64-bit floats, and rounded once. All
ranks know the same elements: by the bits of the result, or by the barrier at the end.

A rank can finish while others lack almost everything, and only that rank has the result (docs/protocol.md,
renewals). So small results are kept, and large ones end with a barrier: a rank that is past it knows that all
have it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives import words
from host_agent.collectives.plan import Array, Call, Steps, Wait, sharing, until_sent
from host_agent.float_mode import default_float_mode
from host_agent.kernels import divide_in_place, has_special
from host_agent.quantisation import ELEMENT_TYPES, REDUCIBLE, round_once
from host_agent.transport.events import EventType
from host_agent.transport.operation import Arrival, Operation, SwitchOp
from host_agent.wire.aggregation import ElementType, Kind, Reduction, Stage

_RAW_SIZES = (1, 2, 4, 8)  # bytes an element
_IS_THERE, _SAYS = 1, 2  # in a barrier
_MOST_KEPT = 256 * 1024  # bytes; copying more takes longer than a barrier
AT_ONCE: Final = 1 << 20  # elements that are added in 64-bit floats together: 8 MB for each rank
ARRIVALS: Final = {
    Reduction.SUM: Arrival.SUM,
    Reduction.AVG: Arrival.SUM,
    Reduction.MAX: Arrival.MAX,
    Reduction.MIN: Arrival.MIN,
    Reduction.PROD: Arrival.PROD,
}


def all_reduce(call: Call, array: Array, out: Array, *, narrow: np.dtype[Any] | None = None) -> Steps[None]:
    """Leave the reduction of all ranks' `array` in `out` (both flat; may be the same).

    `narrow`: a shorter float type, which the numbers have on their way.
    """
    call = call.named(Kind.ALL_REDUCE, array)
    work, before = _begin(call, array, out, narrow)
    parts = call.parts(work.size)
    owned = (call.position + 1) % call.world_size
    if out.nbytes <= _MOST_KEPT:
        yield from sharing(call, out, _small(call, before, work, out, parts, owned), whole=True)
        return
    yield from until_sent((yield from _all_reduce(call, work, parts, owned)))
    _copy(work, out)
    if (yield from _barrier(call, says=before is not None and has_special(work[parts[owned]]))):
        assert before is not None  # as all ranks have the same types
        yield from until_sent((yield from _again(call, before, work, out)))
        yield from _barrier(call)


def reduce(call: Call, array: Array, out: Array, *, root: int) -> Steps[None]:
    """Reduce as `all_reduce` does; only `root` needs what is left in `out`."""
    return all_reduce(call.named(Kind.REDUCE, array, root=root), array, out)


def all_reduce_in_64_bits(call: Call, array: Array, out: Array) -> Steps[None]:
    """Sum floats of all ranks in 64 bits, and round once. `out` is another array."""
    call = call.named(Kind.ALL_REDUCE, array)
    yield from _for_all(call, out, _in_64_bits(call, array, out))


def reduce_scatter(call: Call, array: Array, out: Array) -> Steps[None]:
    """Leave part `rank` of the reduction of all ranks' flat `array` in `out`; N divides the size."""
    call = call.named(Kind.REDUCE_SCATTER, array)
    work = array.copy()
    parts = call.parts(work.size)
    ids = yield from _reduce_parts(call, work, parts, owned=call.position)
    out[...] = work[parts[call.position]]
    yield from until_sent(ids)
    # A barrier at the end: nobody else has this rank's part.
    if (yield from _barrier(call, says=_may_overflow(call, out) and has_special(out))):
        yield from _scatter_again(call, array, out, parts)
        yield from _barrier(call)


def _begin(call: Call, array: Array, out: Array, narrow: np.dtype[Any] | None) -> tuple[Array, Array | None]:
    """Return the array that goes around the ring with this rank's numbers, and these if sums may overflow."""
    if narrow is not None:
        with np.errstate(over="ignore", invalid="ignore"), default_float_mode():
            return array.astype(narrow), array
    before: Array | None = None
    if _may_overflow(call, array):
        before = array if not np.shares_memory(array, out) else _kept(call, array)
    _copy(array, out)
    return out, before


def _kept(call: Call, array: Array) -> Array:
    """Return a copy of an array that the result overwrites: the copy kept for a renewal, if there is one."""
    kept = call.shared.before
    return array.copy() if kept is None or kept.nbytes != array.nbytes else kept.view(array.dtype)


def _may_overflow(call: Call, array: Array) -> bool:
    """Tell whether wider floats can take sums that these cannot."""
    is_sum = call.reduction in (Reduction.SUM, Reduction.AVG)
    return is_sum and array.dtype in ELEMENT_TYPES and array.dtype != np.int32


def _small(
    call: Call, before: Array | None, work: Array, out: Array, parts: list[slice], owned: int
) -> Steps[list[int]]:
    """Run a small all-reduce; return the operations that may still read from their buffers."""
    ids = yield from _all_reduce(call, work, parts, owned)
    _copy(work, out)
    if before is not None and has_special(work):
        yield from until_sent(ids)
        ids = yield from _again(call, before, work, out)
    return ids


def _all_reduce(call: Call, work: Array, parts: list[slice], owned: int) -> Steps[list[int]]:
    ids = yield from _reduce_parts(call, work, parts, owned=owned)
    return (yield from _gather_parts(call, work, parts, owned=owned, sent=ids))


def _again(call: Call, before: Array, work: Array, out: Array) -> Steps[list[int]]:
    """Add up once more, in 64-bit floats and into `out`, the elements of `work` that are Inf or NaN."""
    where = _special(work)
    total = np.empty(np.count_nonzero(where), out.dtype)
    ids = yield from _in_64_bits(call, before[where], total)
    out[where] = total
    return ids


def _scatter_again(call: Call, array: Array, out: Array, parts: list[slice]) -> Steps[None]:
    """Do as `_again`, where each rank has its own part of the result in `out`."""
    mine, everybodys = _special(out).view(np.uint8), np.empty(array.size, np.uint8)
    yield from until_sent((yield from _all_gather(call, mine, everybodys, Stage.RING_GATHER)))
    where = everybodys.view(np.bool_)
    total = np.empty(np.count_nonzero(where), array.dtype)
    yield from until_sent((yield from _in_64_bits(call, array[where], total)))
    first = np.count_nonzero(where[: parts[call.position].start])
    own = mine.view(np.bool_)
    out[own] = total[first : first + np.count_nonzero(own)]


def _in_64_bits(call: Call, array: Array, out: Array) -> Steps[list[int]]:
    """Run `all_reduce` in 64-bit floats, one part at a time, which bounds the memory."""
    owned, ids = (call.position + 1) % call.world_size, list[int]()
    for start in range(0, array.size, AT_ONCE):
        yield from until_sent(ids)
        part = slice(start, start + AT_ONCE)
        with np.errstate(invalid="ignore"), default_float_mode():
            wide = array[part].astype(np.float64)
        ids = yield from _all_reduce(call, wide, call.parts(wide.size), owned)
        with np.errstate(invalid="ignore"):
            out[part] = round_once(wide, out.dtype)
    return ids


def _special(array: Array) -> NDArray[np.bool_]:
    """Return a mask of the floats that are Inf or NaN."""
    return ~np.isfinite(array)


def all_gather(call: Call, array: Array, out: Array) -> Steps[None]:
    """Leave all ranks' flat `array`s in `out`, in order of rank; all have one size."""
    call = call.named(Kind.ALL_GATHER, array)
    array, out = _sendable(array), _sendable(out)
    yield from _for_all(call, out, _all_gather(call, array, out, Stage.RING_GATHER))


def _all_gather(call: Call, array: Array, out: Array, stage: Stage) -> Steps[list[int]]:
    parts = call.parts(out.size)
    _copy(array, out[parts[call.position]])
    return (yield from _gather_parts(call, out, parts, owned=call.position, sent=[], stage=stage))


def broadcast(call: Call, array: Array, out: Array, *, root: int) -> Steps[None]:
    """Leave `root`'s flat `array` in `out` everywhere: an all-reduce of its words and the others' zeros."""
    call = call.named(Kind.BROADCAST, array, root=root)
    work = words.pack(array, offset=0 if call.rank == root else None, size=out.nbytes)
    yield from all_reduce(replace(call, reduction=Reduction.SUM), work, work)
    words.unpack(work, out)


def barrier(call: Call) -> Steps[None]:
    """Return when all ranks have called it."""
    yield from _barrier(call.named(Kind.BARRIER, np.ones(1, np.int32)))


def _barrier(call: Call, *, says: bool = False) -> Steps[bool]:
    """Run a barrier, alone or at the end of another collective; return whether some rank `says` so."""
    own, out = np.array([_SAYS if says else _IS_THERE], np.int32), np.empty(call.world_size, np.int32)
    yield from sharing(call, out, _all_gather(call, own, out, Stage.RING_BARRIER), whole=True)
    return bool((out == _SAYS).any())


def _for_all(call: Call, out: Array, steps: Steps[list[int]]) -> Steps[None]:
    """Run `steps`, which leave the same bytes in `out` on all ranks; a renewal can then tell who has them."""
    if out.nbytes <= _MOST_KEPT:
        yield from sharing(call, out, steps, whole=True)
    else:
        yield from until_sent((yield from steps))
        yield from _barrier(call)


def _reduce_parts(call: Call, work: Array, parts: list[slice], *, owned: int) -> Steps[list[int]]:
    """Take N - 1 steps after which part `owned` of `work` holds its reduction; return the operations' ids."""
    size, ids = call.world_size, []
    for step in range(size - 1):
        send = parts[(owned - 1 - step) % size]
        receive = parts[(owned - 2 - step) % size]
        arrival = ARRIVALS[call.reduction]
        ids.append((yield _pass(call, Stage.RING_REDUCE, work, send, receive, arrival)))
        yield Wait(ids[-1])
    if call.reduction is Reduction.AVG:
        divide_in_place(work[parts[owned]], size)
    return ids


def _gather_parts(
    call: Call,
    work: Array,
    parts: list[slice],
    *,
    owned: int,
    sent: list[int],
    stage: Stage = Stage.RING_GATHER,
) -> Steps[list[int]]:
    """Take N - 1 steps after which all parts are everywhere.

    `sent`: operations that may still read from `work`. Returns all operations that may do so then. A part
    that a step receives was sent N - 1 operations before: its buffer is free only once that is acknowledged.
    """
    size, ids = call.world_size, list(sent)
    for step in range(size - 1):
        if sent:
            yield Wait(sent[step], EventType.COMPLETED)
        send = parts[(owned - step) % size]
        receive = parts[(owned - 1 - step) % size]
        ids.append((yield _pass(call, stage, work, send, receive, Arrival.STORE)))
        yield Wait(ids[-1])
    return ids


def pass_on(call: Call, array: Array, out: Array) -> Steps[int]:
    """Give `array` to the successor, and leave the predecessor's, of that size, in `out`.

    A step for programs of one's own (`Communicator.submit`), which have to end with a `barrier`. Returns the
    operation's id: the operation reads from `array` until `until_sent` of it.
    """
    operation = yield call.operation(
        Stage.RING_GATHER,
        SwitchOp.PASS,
        array,
        out,
        element_type=REDUCIBLE.get(array.dtype, ElementType.RAW),
        arrival=Arrival.STORE,
        cut_elements=array.size,
    )
    yield Wait(operation)
    return operation


def _pass(call: Call, stage: Stage, work: Array, send: slice, receive: slice, arrival: Arrival) -> Operation:
    return call.operation(
        stage,
        SwitchOp.PASS,
        work[send],
        work[receive],
        element_type=REDUCIBLE.get(work.dtype, ElementType.RAW),
        arrival=arrival,
        cut_elements=-(-work.size // call.world_size),
    )


def _sendable(array: Array) -> Array:
    """Return `array`, viewed as smaller words if no operation takes elements of its size."""
    size = array.dtype.itemsize
    return array if size in _RAW_SIZES else array.view(f"u{math.gcd(size, max(_RAW_SIZES))}")


def _copy(source: Array, target: Array) -> None:
    if not np.shares_memory(source, target):
        target[...] = source
