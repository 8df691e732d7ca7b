"""The job's own all-reduce: by the switches, or around the ring."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Strategy, Wire
from host_agent.communicator import Communicator
from p4reduce.workloads.references import Racks, Reference, of_the_job


class JobReducer:
    """Over a job's connections; whoever joined it leaves it. `how`: more arguments of its all_reduce."""

    def __init__(
        self, communicator: Communicator, strategy: Strategy, wire: Wire = Wire.FULL, **how: Any
    ) -> None:
        self.rank = communicator.rank
        self.world_size = communicator.world_size
        self._communicator = communicator
        self._strategy, self._wire = strategy, wire
        self._how: dict[str, Any] = {"strategy": strategy, "wire": wire, **how}

    def start(self, array: NDArray[Any]) -> Future[Any]:
        """Sum `array` over all ranks, in place."""
        return self._communicator.all_reduce(array, out=array, **self._how, async_op=True)

    def sum(self, array: NDArray[Any]) -> None:
        """As `start`, and wait."""
        self._communicator.all_reduce(array, out=array, **self._how)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._communicator.barrier(async_op=True).result()

    def reference(self, racks: Racks, dtype: np.dtype[Any]) -> Reference | None:
        """What its sums have to be, bit for bit."""
        return of_the_job(self._communicator, self._strategy, racks, dtype, self._wire)

    def retransmissions(self) -> int:
        """Packets sent again on the job's connections."""
        return self._communicator.statistics().retransmissions

    def close(self) -> None:
        """Nothing of its own."""
