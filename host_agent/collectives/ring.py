"""Ring collectives over PASS messages: N - 1 steps, each sends a part ahead and takes one from behind.

Every part passes every rank, so that no rank is done before all have entered: the phases are synchronising,
which the switch's slots rely on (docs/protocol.md). Parts are added in the order of the ring, the sum of a
part in one place only, and copied from there: results have the same bits on all ranks. For the same reason
no rank is done before it knows that all have called the same: each compares the header of every message with
what it has called itself, before it passes anything on. Here parts and places
count along the ring, which need not be in order of rank.

A rank can finish while others lack almost everything, and only whoever finished has it (docs/protocol.md,
renewals). So what is small is kept, and large ones end with a barrier: who is past it knows that all have it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from host_agent.collectives import words
from host_agent.collectives.plan import Array, Call, Steps, Wait, sharing
from host_agent.kernels import divide_in_place
from host_agent.quantisation import REDUCIBLE
from host_agent.transport.events import EventType
from host_agent.transport.operation import Arrival, Operation, SwitchOp
from host_agent.wire.aggregation import ElementType, Kind, Reduction, Stage

_RAW_SIZES = (1, 2, 4, 8)  # bytes an element
_MOST_KEPT = 256 * 1024  # bytes; copying more takes longer than a barrier
_ARRIVALS = {
    Reduction.SUM: Arrival.SUM,
    Reduction.AVG: Arrival.SUM,
    Reduction.MAX: Arrival.MAX,
    Reduction.MIN: Arrival.MIN,
    Reduction.PROD: Arrival.PROD,
}


def all_reduce(call: Call, array: Array, out: Array) -> Steps[None]:
    """Leave the reduction of all ranks' `array` in `out` (both flat; may be the same)."""
    call = call.named(Kind.ALL_REDUCE, array)
    yield from _for_all(call, out, _all_reduce(call, array, out))


def reduce(call: Call, array: Array, out: Array, *, root: int) -> Steps[None]:
    """As `all_reduce`; who is not `root` has no use for what is left in `out`."""
    return all_reduce(call.named(Kind.REDUCE, array, root=root), array, out)


def _all_reduce(call: Call, array: Array, out: Array) -> Steps[None]:
    _copy(array, out)
    parts = call.parts(out.size)
    owned = (call.position + 1) % call.world_size
    ids = yield from _reduce_parts(call, out, parts, owned=owned)
    yield from _gather_parts(call, out, parts, owned=owned, sent=ids)


def reduce_scatter(call: Call, array: Array, out: Array) -> Steps[None]:
    """Leave part `rank` of the reduction of all ranks' flat `array` in `out`; N divides the size."""
    call = call.named(Kind.REDUCE_SCATTER, array)
    work = array.copy()
    parts = call.parts(work.size)
    ids = yield from _reduce_parts(call, work, parts, owned=call.position)
    out[...] = work[parts[call.position]]
    yield from until_sent(ids)
    yield from _barrier(call)  # nobody else has this rank's part


def all_gather(call: Call, array: Array, out: Array) -> Steps[None]:
    """Leave all ranks' flat `array`s in `out`, in order of rank; all have one size."""
    call = call.named(Kind.ALL_GATHER, array)
    array, out = _sendable(array), _sendable(out)
    yield from _for_all(call, out, _all_gather(call, array, out, Stage.RING_GATHER))


def _all_gather(call: Call, array: Array, out: Array, stage: Stage) -> Steps[None]:
    parts = call.parts(out.size)
    _copy(array, out[parts[call.position]])
    yield from _gather_parts(call, out, parts, owned=call.position, sent=[], stage=stage)


def broadcast(call: Call, array: Array, out: Array, *, root: int) -> Steps[None]:
    """Leave `root`'s flat `array` in `out` everywhere: an all-reduce of its words and the others' zeros."""
    call = call.named(Kind.BROADCAST, array, root=root)
    work = words.pack(array, offset=0 if call.rank == root else None, size=out.nbytes)
    yield from all_reduce(replace(call, reduction=Reduction.SUM), work, work)
    words.unpack(work, out)


def barrier(call: Call) -> Steps[None]:
    """Return when all ranks have called it."""
    yield from _barrier(call.named(Kind.BARRIER, np.ones(1, np.int32)))


def _barrier(call: Call) -> Steps[None]:
    """A barrier of its own, or the end of another collective."""
    ones, out = np.ones(1, np.int32), np.empty(call.world_size, np.int32)
    yield from sharing(call, out, _all_gather(call, ones, out, Stage.RING_BARRIER), whole=True)


def _for_all(call: Call, out: Array, steps: Steps[None]) -> Steps[None]:
    """`steps`, which leave the same bytes in `out` on all ranks, so that a renewal can tell who has them."""
    if out.nbytes <= _MOST_KEPT:
        yield from sharing(call, out, steps, whole=True)
    else:
        yield from steps
        yield from _barrier(call)


def _reduce_parts(call: Call, work: Array, parts: list[slice], *, owned: int) -> Steps[list[int]]:
    """N - 1 steps after which part `owned` of `work` holds its reduction; the ids of the operations."""
    size, ids = call.world_size, []
    for step in range(size - 1):
        send = parts[(owned - 1 - step) % size]
        receive = parts[(owned - 2 - step) % size]
        arrival = _ARRIVALS[call.reduction]
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
) -> Steps[None]:
    """N - 1 steps after which all parts are everywhere. `sent`: operations that may still read from `work`.

    The step before sent the part that each step here receives N - 1 operations later: it is done with by
    then only if it was acknowledged.
    """
    size, ids = call.world_size, list(sent)
    for step in range(size - 1):
        if sent:
            yield Wait(sent[step], EventType.COMPLETED)
        send = parts[(owned - step) % size]
        receive = parts[(owned - 1 - step) % size]
        ids.append((yield _pass(call, stage, work, send, receive, Arrival.STORE)))
        yield Wait(ids[-1])
    yield from until_sent(ids)


def until_sent(ids: list[int]) -> Steps[None]:
    """Operations complete in order: when the last one has, none reads from its buffer any more."""
    if ids:  # none in a job of one worker
        yield Wait(ids[-1], EventType.COMPLETED)


def pass_on(call: Call, array: Array, out: Array) -> Steps[int]:
    """Give `array` to the successor, and leave the predecessor's, of that size, in `out`.

    A step of a program of one's own (`Communicator.submit`), which has to end with a `barrier`. The answer is
    the operation, which reads from `array` until `until_sent` of it.
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
    """`array`, viewed as smaller words where its elements have a size that no operation takes."""
    size = array.dtype.itemsize
    return array if size in _RAW_SIZES else array.view(f"u{math.gcd(size, max(_RAW_SIZES))}")


def _copy(source: Array, target: Array) -> None:
    if not np.shares_memory(source, target):
        target[...] = source
