"""Run of one collective of all GPUs: up inside the machine, through the planes, and back.

A machine's workers add up first. Each GPU then sums its share between machines, and all gather the shares.
Pieces of a tensor are under way at the same time: while a plane sums one piece, the machine adds up the next
and gathers the one before.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from controller.api.messages import Mode
from host_agent.arguments import of_switches
from host_agent.collectives import ring
from host_agent.collectives.plan import SMALL_BYTES, Array, Steps, Strategy, Wire
from host_agent.collectives.plan import Call as PlaneCall
from host_agent.collectives.signature import Signature
from host_agent.communicator import Communicator
from host_agent.front import Wanted
from host_agent.kernels import sum_rows
from host_agent.machine import sums
from host_agent.machine.channel import SLOT_BYTES, Bytes, Lane, Pace
from host_agent.machine.gang import Start, Way
from host_agent.machine.sums import Form, Piece, pieces_of
from host_agent.quantisation import Blocks
from host_agent.recovery import BegunAnewError, algorithm_of
from host_agent.wire.aggregation import Kind, Reduction

_WORD: Final = 4


@dataclass(frozen=True)
class Machine:
    """The worker's place in its machine, and what has come from the machine's other workers."""

    rank: int
    size: int
    pace: Pace

    @property
    def bytes_received(self) -> int:
        """Bytes from other workers of the machine, since this one joined."""
        return self.pace.bytes_received


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """The parts that a call runs on.

    `lane` carries what is added up, `results` what is gathered. `under_way`: the plane's futures of the
    call. `blocks`: of the job's floats. `fail`: called with errors of the gathering thread, as others wait
    for it.
    """

    plane: Communicator
    machine: Machine
    lane: Lane
    results: Lane
    blocks: Blocks
    gathering: ThreadPoolExecutor
    under_way: list[Future[Array]]
    fail: Callable[[BaseException], None]
    fell_back: Callable[[], None]  # blocks went around the ring for an Inf or NaN


class Running:
    """A call that its gang has started. `signature`: what machines have to call alike."""

    def __init__(
        self, on: Hierarchy, wanted: Wanted[Any], signature: Signature, start: Start, *, pipeline: bool
    ) -> None:
        self._on, self._wanted, self._signature, self._start = on, wanted, signature, start
        self._world = start.world
        self._pipeline = pipeline

    def run(self) -> Any:
        """Run the call; return its result."""
        wanted, source, rank = self._wanted, self._wanted.source, self._world.rank
        flat = source.reshape(-1)
        match wanted.kind:
            case Kind.ALL_REDUCE:
                assert wanted.result is not None
                self._reduce_into(flat, wanted.result.reshape(-1))
                return wanted.result
            case Kind.REDUCE:
                result = np.empty_like(source)
                self._reduce_into(flat, result.reshape(-1))
                return result if rank == self._start.root else None
            case Kind.REDUCE_SCATTER:
                result = np.empty_like(source)
                self._reduce_into(flat, result.reshape(-1))
                rows = source.shape[0] // self._world.size
                return result[rank * rows : (rank + 1) * rows].copy()
            case Kind.BROADCAST:
                assert wanted.result is not None
                self._broadcast(flat, wanted.result.reshape(-1))
                return wanted.result
            case Kind.ALL_GATHER:
                gathered = self._rows(flat.view(np.uint8))
                return gathered.view(source.dtype).reshape((self._world.size, *source.shape))
            case Kind.BARRIER:
                self._in_plane(np.ones(1, np.int32), Reduction.SUM).result()
                self._together(b"")  # the others' planes are through
                return None
            case _:
                raise AssertionError(f"{wanted.kind.name} is not a collective of users")

    def way(self) -> Way:
        """Ask how this worker's plane takes the call; all machines find the same."""
        modes: list[Mode] = []

        def steps(plane_call: PlaneCall, strategy: Strategy) -> Steps[Any]:
            by_ring[0] = modes[-1] is Mode.RING
            named = replace(plane_call, signature=self._signature)
            program: Steps[Any] = algorithm_of(strategy).all_reduce(named, by_ring, by_ring)
            return program

        def choose(mode: Mode) -> Strategy:
            modes.append(mode)
            return Strategy.RING if mode is Mode.RING else Strategy.IN_NETWORK

        by_ring = np.zeros(1, np.int32)
        self._submit(by_ring, by_ring, steps, Reduction.MAX, choose=choose).result()
        return Way.BY_RING if by_ring[0] else Way.IN_NETWORK

    def _broadcast(self, source: Array, result: Array) -> None:
        # Each GPU of the root's machine gives its plane a share: zeros from all others make it a sum.
        words = np.zeros(-(-source.nbytes // _WORD), np.int32)
        if self._world.rank == self._start.root:
            words.view(np.uint8)[: source.nbytes] = source.view(np.uint8)
        self._run(sums.integers(words, average_of=1), words, words)
        result.view(np.uint8)[...] = words.view(np.uint8)[: source.nbytes]

    def _reduce_into(self, array: Array, out: Array) -> None:
        """Leave the reduction of all workers' flat `array` in `out`, which may be the same."""
        op, wire = self._wanted.reduction, self._wanted.wire
        divisor = self._world.size if op is Reduction.AVG else 1
        if not of_switches(array.dtype, op):
            self._run(sums.in_the_type(array, op, divisor=divisor), array, out)
        elif op in (Reduction.MAX, Reduction.MIN):
            self._run(sums.extremes(array, op), array, out)
        elif array.dtype == np.int32:
            self._run(sums.integers(array, average_of=divisor), array, out)
        elif self._world.size * array.nbytes <= SMALL_BYTES:
            padded = np.zeros(-(-array.nbytes // _WORD) * _WORD, np.uint8)
            padded[: array.nbytes] = array.view(np.uint8)
            sum_rows(self._rows(padded).view(np.int32), out, divisor=divisor)
        elif wire.halves(array.dtype):
            self._run(sums.halves(array, divisor=divisor), array, out)
        else:
            self._in_fixed_point(array, out, divisor)

    def _in_fixed_point(self, array: Array, out: Array, divisor: int) -> None:
        starts = sums.block_starts(array.size, self._on.blocks)
        agreed = self._agree(sums.exponents(array, starts))
        apart = sums.special(starts, agreed, array.size)
        rare = array[apart] if apart.any() else None  # before `out` is written, which may be `array`
        form = sums.fixed_point(array, starts, agreed, workers=self._world.size, divisor=divisor)
        self._run(form, array, out, starts=starts.tobytes())
        if rare is not None:
            rows = self._rows(rare.view(np.uint8)).view(array.dtype)
            out[apart] = sums.by_ring(rows, divisor=divisor)
            self._on.fell_back()

    def _agree(self, own: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
        """Return the largest of all workers' bytes, one by one."""
        found = np.empty_like(own)

        def merge(rows: list[Any], where: slice) -> Array:
            largest: Array = np.maximum.reduce(rows)
            return largest.astype(np.float16)  # in which a byte is exact, and takes two bytes on the wire

        def fill(where: slice, target: Any) -> None:
            target[:] = own[where]

        def finish(largest: Array, where: slice, target: Any) -> None:
            target[:] = largest.astype(np.uint8)

        form = Form(width=1, op=Reduction.MAX, fill=fill, merge=merge, finish=finish)
        self._run(form, own, found)
        return found

    def _run(self, form: Form, array: Array, out: Array, *, starts: bytes = b"") -> None:
        """Run one sum: pieces at the same time, or, without a pipeline, one stage after the other."""
        piece_elements = SLOT_BYTES // max(form.width, out.itemsize)
        if starts:
            piece_elements -= self._on.blocks.block_elements  # pieces end where blocks do
        pieces = pieces_of(out.size, self._on.machine.size, piece_elements, starts)
        if not self._pipeline or len(pieces) == 1:
            shares = [share for _, share in self._add_up(form, pieces)]
            whole = np.concatenate(shares) if shares else np.empty(0, np.int32)
            total = self._in_plane(whole, form.op, form).result() if whole.size else whole
            ends = np.cumsum([share.size for share in shares[:-1]], dtype=np.int64)
            self._gather(form, zip(pieces, np.split(total, ends) if pieces else (), strict=True), out)
            return
        results: queue.SimpleQueue[tuple[Piece, Future[Array] | None] | None] = queue.SimpleQueue()

        def parts() -> Iterator[tuple[Piece, Array]]:
            while (item := results.get()) is not None:
                piece, future = item
                yield piece, np.empty(0, np.int32) if future is None else future.result()

        def gather() -> None:
            try:
                self._gather(form, parts(), out)
            except BegunAnewError:
                raise
            except BaseException as error:
                self._on.fail(error)  # who adds up waits for slots that nobody will read
                raise

        gathered = self._on.gathering.submit(gather)
        try:
            for piece, share in self._add_up(form, pieces):
                future = self._in_plane(share, form.op, form) if share.size else None
                results.put((piece, future))
        finally:
            results.put(None)
            wait([gathered])
        gathered.result()

    def _add_up(self, form: Form, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Array]]:
        """Put our numbers of each piece where the others read them, and add up our share of all."""
        local, others, width = self._on.machine.rank, self._on.machine.size - 1, form.width

        def fill(piece: Piece, slot: Bytes) -> None:
            form.fill(slice(piece.start, piece.end), slot[: (piece.end - piece.start) * width])

        def received(piece: Piece) -> int:
            mine = piece.share(local)
            return int(others * (mine.stop - mine.start) * width)

        steps = self._on.lane.carry(pieces, self._on.machine.pace, fill=fill, received=received)
        for piece, slots in steps:
            mine = piece.part(local)
            rows = [slot[mine.start * width : mine.stop * width] for slot in slots]
            yield piece, form.merge(rows, piece.share(local))

    def _gather(self, form: Form, parts: Iterable[tuple[Piece, Array]], out: Array) -> None:
        """Put our share's result of each piece where the others read it, and take theirs."""
        local, width, into = self._on.machine.rank, out.itemsize, out.view(np.uint8)

        def fill(step: tuple[Piece, Array], slot: Bytes) -> None:
            piece, part = step
            mine = piece.share(local)
            if part.size:
                form.finish(part, mine, slot[: (mine.stop - mine.start) * width])

        def received(step: tuple[Piece, Array]) -> int:
            piece, _ = step
            mine = piece.share(local)
            return int((piece.end - piece.start - (mine.stop - mine.start)) * width)

        steps = self._on.results.carry(parts, self._on.machine.pace, fill=fill, received=received)
        for (piece, _), slots in steps:
            for rank, slot in enumerate(slots):
                share = piece.share(rank)
                into[share.start * width : share.stop * width] = slot[: (share.stop - share.start) * width]

    def _in_plane(self, array: Array, op: Reduction, form: Form | None = None) -> Future[Array]:
        """Return the future of the plane's all-reduce of this; its messages carry the user's call."""
        result = np.empty_like(array)
        wire = Wire.FULL if form is None else form.wire
        narrow = None if form is None else form.by_ring

        def steps(plane_call: PlaneCall, strategy: Strategy) -> Steps[Any]:
            named = replace(plane_call, wire=wire, signature=self._signature)
            if narrow is not None and strategy is Strategy.RING:
                yield from ring.all_reduce(named, array, result, narrow=narrow)
            else:
                yield from algorithm_of(strategy).all_reduce(named, array, result)

        return self._submit(array, result, steps, op)

    def _submit(
        self,
        array: Array,
        result: Array,
        steps: Callable[[PlaneCall, Strategy], Steps[Any]],
        op: Reduction = Reduction.NONE,
        *,
        kind: Kind = Kind.ALL_REDUCE,
        choose: Callable[[Mode], Strategy] | None = None,
    ) -> Future[Array]:
        on, wanted = self._on, self._wanted
        # What has to go through switches only has been agreed on before.
        way = Strategy.AUTO if wanted.strategy is Strategy.IN_NETWORK else wanted.strategy
        how: Any = {"strategy": way, "reduction": op, "gang_renewal": self._start.renewal, "choose": choose}
        future = on.plane.submit(wanted.what, kind, array, result, steps, **how)
        if on.plane.is_in_elastic_gang:
            on.under_way.append(future)
        return future

    def _rows(self, data: Any) -> Array:
        """Return all workers' bytes, by rank: (world_size, data.size)."""
        size = self._on.machine.size
        machines = self._world.size // size
        flat = np.empty(0, np.uint8)
        if data.size:
            flat = self._gather_in_plane(data).reshape(-1)
        everybody = np.empty((size, flat.size), np.uint8)
        for start in range(0, flat.size, SLOT_BYTES):
            part = flat[start : start + SLOT_BYTES]
            for rank, row in enumerate(self._together(part)):
                everybody[rank, start : start + part.size] = row
        by_rank = everybody.reshape(size, machines, data.size).transpose(1, 0, 2)
        return np.ascontiguousarray(by_rank).reshape(self._world.size, data.size)

    def _gather_in_plane(self, data: Any) -> Array:
        machines = self._world.size // self._on.machine.size
        result = np.empty((machines, data.size), np.uint8)
        flat = result.reshape(-1)

        def steps(plane_call: PlaneCall, strategy: Strategy) -> Steps[Any]:
            named = replace(plane_call, signature=self._signature)
            program: Steps[Any] = algorithm_of(strategy).all_gather(named, data, flat)
            return program

        self._submit(data, result, steps, kind=Kind.ALL_GATHER).result()
        return result

    def _together(self, data: Any) -> list[Array]:
        """Return the bytes of all of the machine's workers, each as many as `data`; at most a slot."""
        own = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        lane, machine = self._on.lane, self._on.machine
        lane.slot()[: own.size] = own
        lane.post()
        rows = [row[: own.size].copy() for row in lane.rows()]
        machine.pace.take((machine.size - 1) * own.size)
        lane.release()
        return rows
