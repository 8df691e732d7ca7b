"""Ways to add up over all workers of a machine's planes: inside the machine first, exactly.

A tensor goes in pieces. For each piece a worker puts its numbers into its slot, adds up its own share of all
slots, gives that to its plane, and puts the plane's result where all workers of the machine read it. A `Form`
says how numbers look on the way:

- int32 as they are. Sums wrap, as in the switch.
- float32 as whole numbers, with the scales of one flat job of all workers: its blocks, the largest exponent
  of all workers (`exponents`), and headroom for all of them. So inside a machine and between machines the
  additions are those of integers, and the result has the bits that a switch would give that summed all
  workers' messages at once (`host_agent.quantisation`).
- 16-bit floats, and float32 on a wire of 16 bits, in float32 inside the machine, in order of local ranks,
  and in half precision between machines: a machine's sum is rounded, as a rack's is.
- MAX and MIN of floats as integers that sort like them.

All code here that rounds is native, or runs in `default_float_mode`: a machine's results have the same bits
whichever of its workers added them up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives import ring
from host_agent.collectives.plan import Array, Wire, ring_parts
from host_agent.float_mode import default_float_mode
from host_agent.kernels import divide_in_place, fold_into, round_floats, sum_floats
from host_agent.machine.channel import Bytes, sum_words
from host_agent.quantisation import (
    ELEMENT_TYPES,
    LANE_BITS,
    SPECIAL,
    Blocks,
    from_ordered,
    headroom_bits,
    round_once,
    to_ordered,
)
from host_agent.transport.native import library
from host_agent.wire.aggregation import Reduction

# In a pipeline the network waits for the first piece, and the last one's gathering for the network: of so
# many pieces the first goes in these eighths, the smallest first, and the last from its end.
LEAST_CUT, EIGHTHS = 4, (1, 1, 2, 4)
_WORD = 4


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `end` of a tensor; local rank g adds up those from `cuts[g]` to `cuts[g + 1]`."""

    start: int
    end: int
    cuts: tuple[int, ...]

    def share(self, local_rank: int) -> slice:
        return slice(self.cuts[local_rank], self.cuts[local_rank + 1])

    def part(self, local_rank: int) -> slice:
        """Return its share, counted from the beginning of the piece."""
        return slice(self.cuts[local_rank] - self.start, self.cuts[local_rank + 1] - self.start)


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form in which numbers travel. `width`: bytes of one in a slot. `op`, `wire`: of the planes'
    all-reduce.

    `fill(where, target)` puts a piece of this worker's tensor into its slot. `merge(rows, where)` adds up the
    rows' shares, which are of the tensor's elements `where`. `finish(sums, where, target)` converts what the
    plane gave to the tensor's own type. `by_ring`: the type of shares in a plane's ring, which knows no
    `wire`.
    """

    width: int
    op: Reduction
    wire: Wire = Wire.FULL
    fill: Callable[[slice, Bytes], None]
    merge: Callable[[list[Bytes], slice], Array]
    finish: Callable[[Array, slice, Bytes], None]
    by_ring: np.dtype[Any] | None = None


@lru_cache(maxsize=64)
def pieces_of(elements: int, local_size: int, piece_elements: int, starts: bytes = b"") -> tuple[Piece, ...]:
    """Return a tensor in pieces, smaller ones at its ends.

    If `starts` (of blocks, uint64) are given, blocks stay whole.
    """
    if not elements:
        return ()
    block_starts = np.frombuffer(starts, np.uint64) if starts else None

    def cuts(start: int, end: int, parts: int) -> list[int]:
        inner = [start + (end - start) * part // parts for part in range(1, parts)]
        if block_starts is not None:
            places = np.searchsorted(block_starts, inner, side="right") - 1
            inner = [max(start, int(block_starts[place])) for place in places]
        return [start, *inner, end]

    bounds = cuts(0, elements, -(-elements // piece_elements))
    if len(bounds) > LEAST_CUT:
        first, last, at = (
            cuts(bounds[0], bounds[1], 8),
            cuts(bounds[-2], bounds[-1], 8),
            tuple(accumulate(EIGHTHS[:-1])),
        )
        bounds[-1:-1] = [last[8 - place] for place in reversed(at)]
        bounds[1:1] = [first[place] for place in at]
    return tuple(
        Piece(start, end, tuple(cuts(start, end, local_size)))
        for start, end in pairwise(bounds)
        if end > start
    )


def integers(array: Array, *, average_of: int) -> Form:
    """Return the form for SUM of int32, divided towards zero if `average_of` is more than 1."""

    def finish(sums: Array, where: slice, target: Bytes) -> None:
        if average_of > 1:
            divide_in_place(sums, average_of)
        target[:] = sums.view(np.uint8)

    return Form(width=_WORD, op=Reduction.SUM, fill=_as_it_is(array), merge=_add_words, finish=finish)


def extremes(array: Array, op: Reduction) -> Form:
    """Return the form for MAX or MIN: floats travel as integers that sort as they do."""
    dtype, invert = array.dtype, op is Reduction.MIN
    if dtype == np.int32:
        pick = np.maximum if op is Reduction.MAX else np.minimum

        def merge_integers(rows: list[Bytes], where: slice) -> Array:
            found: Array = pick.reduce([row.view(np.int32) for row in rows])
            return found

        return Form(width=_WORD, op=op, fill=_as_it_is(array), merge=merge_integers, finish=_copy)

    def fill(where: slice, target: Bytes) -> None:
        target.view(np.int32)[:] = to_ordered(array[where], invert=invert)

    def merge(rows: list[Bytes], where: slice) -> Array:
        found: Array = np.maximum.reduce([row.view(np.int32) for row in rows])
        return found if dtype == np.float32 else from_ordered(found, dtype, invert=invert)

    def finish(sums: Array, where: slice, target: Bytes) -> None:
        floats = from_ordered(sums, dtype, invert=invert) if dtype == np.float32 else sums
        target[:] = floats.view(np.uint8)

    plane_op = Reduction.MAX if dtype == np.float32 else op
    return Form(width=_WORD, op=plane_op, fill=fill, merge=merge, finish=finish)


def in_the_type(array: Array, op: Reduction, *, divisor: int) -> Form:
    """Return the form for reductions that no switch can do: in the array's type, local ranks first."""
    dtype = array.dtype

    def merge(rows: list[Bytes], where: slice) -> Array:
        total: Array = rows[0].view(dtype).copy()
        for row in rows[1:]:
            fold_into(total, row.view(dtype), ring.ARRIVALS[op])
        return total

    def finish(sums: Array, where: slice, target: Bytes) -> None:
        if divisor > 1:
            divide_in_place(sums, divisor)
        target[:] = sums.view(np.uint8)

    plane_op = Reduction.SUM if op is Reduction.AVG else op
    return Form(width=dtype.itemsize, op=plane_op, fill=_as_it_is(array), merge=merge, finish=finish)


def halves(array: Array, *, divisor: int) -> Form:
    """Return the form for SUM of floats that go on in 16 bits: divided, and rounded once more to their type.

    For an average (`divisor` above 1) the numbers are made smaller first, so that no sum on the way exceeds
    float32. float16 needs no such step.
    """
    dtype = array.dtype
    down = 0 if dtype == np.float16 else (divisor - 1).bit_length()

    def merge(rows: list[Bytes], where: slice) -> Array:
        total = np.empty(rows[0].size // dtype.itemsize, np.float32)
        sum_floats([row.view(dtype) for row in rows], total, exponent=-down)
        return total

    def finish(sums: Array, where: slice, target: Bytes) -> None:
        round_floats(sums, target, dtype, exponent=down, divisor=divisor)

    return Form(
        width=dtype.itemsize,
        op=Reduction.SUM,
        wire=Wire.HALF,
        fill=_as_it_is(array),
        merge=merge,
        finish=finish,
        by_ring=None if dtype == np.float32 else dtype,
    )


@lru_cache(maxsize=64)
def block_starts(elements: int, blocks: Blocks) -> NDArray[np.uint64]:
    """Return where each block of a tensor begins, in elements."""
    messages = np.arange(0, elements, blocks.message_elements, dtype=np.uint64)
    inside = np.arange(0, blocks.message_elements, blocks.block_elements, dtype=np.uint64)
    starts = (messages[:, np.newaxis] + inside).reshape(-1)
    starts = starts[starts < elements]
    starts.flags.writeable = False
    return starts


def exponents(array: Array, starts: NDArray[np.uint64]) -> Bytes:
    """Return the exponent of each block of this worker's floats, as `quantisation.block_exponent`."""
    found = np.empty(starts.size, np.uint8)
    library().p4r_exponents_of_blocks(
        ELEMENT_TYPES[array.dtype],
        array.ctypes.data,
        starts.ctypes.data,
        starts.size,
        array.size,
        found.ctypes.data,
    )
    return found


def fixed_point(
    array: Array, starts: NDArray[np.uint64], agreed: Bytes, *, workers: int, divisor: int
) -> Form:
    """Return the form for SUM of floats as whole numbers, with the agreed exponents of all `workers`.

    Blocks in which some worker has an Inf or NaN come out as zeros (`special`).
    """
    kind, most, width = ELEMENT_TYPES[array.dtype], LANE_BITS - headroom_bits(workers), array.dtype.itemsize

    def blocks_in(where: slice) -> slice:
        first, last = np.searchsorted(starts, [where.start, where.stop])
        return slice(int(first), int(last))

    def fill(where: slice, target: Bytes) -> None:
        blocks = blocks_in(where)
        library().p4r_encode_blocks(
            kind,
            array.ctypes.data + where.start * width,
            starts[blocks].ctypes.data,
            blocks.stop - blocks.start,
            where.stop,
            agreed[blocks].ctypes.data,
            most,
            target.ctypes.data,
        )

    def finish(sums: Array, where: slice, target: Bytes) -> None:
        blocks = blocks_in(where)
        library().p4r_decode_blocks(
            kind,
            sums.ctypes.data,
            starts[blocks].ctypes.data,
            blocks.stop - blocks.start,
            where.stop,
            agreed[blocks].ctypes.data,
            most,
            divisor,
            target.ctypes.data,
        )

    return Form(width=_WORD, op=Reduction.SUM, fill=fill, merge=_add_words, finish=finish)


def special(starts: NDArray[np.uint64], agreed: Bytes, elements: int) -> NDArray[np.bool_]:
    """Return a mask of the elements in blocks in which some worker has an Inf or NaN."""
    lengths = np.diff(np.append(starts, np.uint64(elements)))
    return np.repeat(agreed == SPECIAL, lengths.astype(np.int64))


@default_float_mode()
def by_ring(rows: Array, *, divisor: int) -> Array:
    """Return the sums of (workers, elements), with the bits of `ring.all_reduce_in_64_bits`."""
    out: Array = np.empty_like(rows[0])
    workers = len(rows)
    with np.errstate(invalid="ignore"):
        for start in range(0, out.size, ring.AT_ONCE):
            wide = rows[:, start : start + ring.AT_ONCE].astype(np.float64)
            for first, part in enumerate(ring_parts(wide.shape[1], workers)):
                total = wide[first, part]
                for step in range(1, workers):
                    total = total + wide[(first + step) % workers, part]
                wide[0, part] = total
            out[start : start + ring.AT_ONCE] = round_once(wide[0] / divisor, out.dtype)
    return out


def _as_it_is(array: Array) -> Callable[[slice, Bytes], None]:
    def fill(where: slice, target: Bytes) -> None:
        target[:] = array[where].view(np.uint8)

    return fill


def _add_words(rows: list[Bytes], where: slice) -> Array:
    out = np.empty(rows[0].size // _WORD, np.int32)
    if out.size:
        sum_words(rows, out)
    return out


def _copy(sums: Array, where: slice, target: Bytes) -> None:
    target[:] = sums.view(np.uint8)
