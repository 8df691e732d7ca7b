"""The job's own all-reduce: by the switches, or around the ring."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from numpy.typing import NDArray

from host_agent.communicator import Communicator


class JobReducer:
    """Over a job's connections. Leaving the job is up to whoever joined it."""

    def __init__(self, communicator: Communicator, strategy: str) -> None:
        self.rank = communicator.rank
        self.world_size = communicator.world_size
        self._communicator = communicator
        self._strategy = strategy

    def start(self, array: NDArray[Any]) -> Future[Any]:
        """Sum `array` over all ranks, in place."""
        return self._communicator.all_reduce_async(array, out=array, strategy=self._strategy)

    def sum(self, array: NDArray[Any]) -> None:
        """As `start`, and wait."""
        self._communicator.all_reduce(array, out=array, strategy=self._strategy)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._communicator.barrier_async().result()

    def retransmissions(self) -> int:
        """Packets sent again on the job's connections."""
        return self._communicator.statistics().retransmissions

    def close(self) -> None:
        """Nothing of its own."""
