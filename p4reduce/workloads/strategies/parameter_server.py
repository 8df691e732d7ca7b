"""A parameter server at rank 0: workers push gradients, it adds them up, they pull the sum.

Without help from the switch, the server's link carries every worker's gradient. The tensor goes in pieces, so
pushing one and pulling another share the link's two directions. If the switch aggregates, one tensor arrives
at the server and one leaves it. The pull is a sum, too, of the server's tensor and the others' zeros: our
switches copy in this way.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Strategy
from host_agent.front import Collectives
from p4reduce.workloads.references import Racks, Reference, of_the_job
from p4reduce.workloads.strategies.pairs import PairsReducer
from p4reduce.workloads.strategies.queued import QueuedReducer

SERVER: Final = 0
_PIECE_BYTES: Final = 256 * 1024
_IN_FLIGHT: Final = 2  # pieces on the way to the server while their predecessors' sums come back


class ParameterServer(PairsReducer):
    """A parameter server over reliable connections between the server and each worker."""

    def _sum(self, array: NDArray[Any]) -> None:
        size = min(array.size, max(1, _PIECE_BYTES // array.itemsize))
        pieces = -(-array.size // size)
        whole = array
        if pieces * size != array.size:
            whole = np.zeros(pieces * size, array.dtype)
            whole[: array.size] = array
        rows = whole.reshape(pieces, size)
        # In each step all exchange a piece: gradients one way, the sum of `behind` steps ago the other.
        behind = min(_IN_FLIGHT, pieces)
        if self.rank == SERVER:
            self._serve(rows, behind)
        else:
            self._work(rows, behind)
        if whole is not array:
            array[...] = whole[: array.size]

    def _serve(self, rows: NDArray[Any], behind: int) -> None:
        workers = [self._pairs[rank] for rank in range(1, self.world_size)]
        nothing = np.zeros_like(rows[0])
        flying: deque[list[Future[NDArray[Any]]]] = deque()
        for step in range(len(rows) + behind):
            if step >= behind:
                _add(rows, step - behind, flying.popleft())
            outgoing = rows[step - behind] if step >= behind else nothing
            flying.append([worker.all_gather(outgoing, async_op=True) for worker in workers])
        for exchange in flying:  # the last sums are on their way
            for future in exchange:
                future.result()

    def _work(self, rows: NDArray[Any], behind: int) -> None:
        server = self._pairs[SERVER]
        nothing = np.zeros_like(rows[0])
        flying: deque[Future[NDArray[Any]]] = deque()
        for step in range(len(rows) + behind):
            flying.append(server.all_gather(rows[step] if step < len(rows) else nothing, async_op=True))
            if len(flying) > behind:
                _take(rows, step - behind, flying.popleft(), behind)
        for place, future in enumerate(flying, start=len(rows)):
            _take(rows, place, future, behind)


class SwitchedParameterServer(QueuedReducer):
    """A parameter server over a job's own connections. Whoever joined the job leaves it."""

    def __init__(self, communicator: Collectives) -> None:
        super().__init__(rank=communicator.rank, world_size=communicator.world_size)
        self._communicator = communicator

    def _sum(self, array: NDArray[Any]) -> None:
        pushed = self._communicator.reduce(array, root=SERVER, strategy="in-network")
        parameters = array if pushed is None else pushed
        self._communicator.broadcast(parameters, root=SERVER, out=array, strategy="in-network")

    def reference(self, racks: Racks, dtype: np.dtype[Any]) -> Reference | None:
        """Return the only result of its sums, bit for bit: the switch makes them on the way to the server."""
        return of_the_job(self._communicator, Strategy.IN_NETWORK, racks, dtype)

    def retransmissions(self) -> int:
        """Return the packets retransmitted on the job's connections."""
        return self._communicator.statistics().retransmissions

    def _barrier(self) -> None:
        self._communicator.barrier()

    def _close(self) -> None:
        pass


def _add(rows: NDArray[Any], piece: int, exchange: list[Future[NDArray[Any]]]) -> None:
    """Add all workers' piece to the server's own, in order of rank, so the sum is the same each time."""
    for future in exchange:
        rows[piece] += future.result()[1]


def _take(rows: NDArray[Any], step: int, future: Future[NDArray[Any]], behind: int) -> None:
    """Take what came in a step: nothing in the first `behind` steps, then the sum of a piece."""
    got = future.result()[SERVER]
    if step >= behind:
        rows[step - behind] = got
