"""Pairs of workers in one process: each a thread, a pair two queues."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.strategies.pairs import Pairs

Array = NDArray[Any]
_PATIENCE_S = 20.0


class LocalPair:
    """One end of a communicator of two: the calls that strategies make, over queues."""

    def __init__(self, rank: int, outgoing: Queue[Array], incoming: Queue[Array]) -> None:
        self.rank = rank
        self.bytes_sent = 0
        self._outgoing = outgoing
        self._incoming = incoming
        self._queue = ThreadPoolExecutor(max_workers=1)

    def all_gather(self, array: Array, *, async_op: bool = False) -> Array | Future[Array]:
        future = self._queue.submit(self._gather, array.copy())
        return future if async_op else future.result()

    def reduce_scatter(self, array: Array) -> Array:
        half = array.size // 2
        assert 2 * half == array.size
        halves = array[:half], array[half:]
        other = self._swap(halves[1 - self.rank].copy())
        return halves[self.rank] + other

    def reduce(self, array: Array, root: int) -> Array | None:
        total = array + self._swap(array.copy())
        return total if self.rank == root else None

    def broadcast(self, array: Array, root: int) -> Array:
        other = self._swap(array.copy())
        return array if self.rank == root else other

    def close(self) -> None:
        self._queue.shutdown()

    def _gather(self, array: Array) -> Array:
        other = self._swap(array)
        return np.stack([array, other] if self.rank == 0 else [other, array])

    def _swap(self, array: Array) -> Array:
        self.bytes_sent += array.nbytes
        self._outgoing.put(array)
        other = self._incoming.get(timeout=_PATIENCE_S)
        assert other.shape == array.shape
        return other


def local_pairs(peers: list[list[int]]) -> list[dict[int, LocalPair]]:
    """Return each rank's ends, by peer; everybody's peers have to be each other's."""
    ways: dict[tuple[int, int], Queue[Array]] = {
        (rank, peer): Queue() for rank, own in enumerate(peers) for peer in own
    }
    return [
        {peer: LocalPair(int(rank > peer), ways[rank, peer], ways[peer, rank]) for peer in own}
        for rank, own in enumerate(peers)
    ]


def as_pairs(ends: dict[int, LocalPair]) -> Pairs:
    """Return the ends as the type that strategies take."""
    return cast(Pairs, ends)
