"""A worker's end of each strategy, by name."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Strategy, Wire
from host_agent.front import Collectives
from host_agent.machine.communicator import MachineCommunicator
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.references import Racks, Reference, of_the_job
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.gloo import Gloo
from p4reduce.workloads.strategies.halving_doubling import HalvingDoubling, plan
from p4reduce.workloads.strategies.machines import FlatRing, ReduceBroadcast, on_machines
from p4reduce.workloads.strategies.pairs import Pairs
from p4reduce.workloads.strategies.parameter_server import SERVER, ParameterServer, SwitchedParameterServer
from p4reduce.workloads.strategies.reducer import Reducer


class JobReducer:
    """The job's own all-reduce: by the switches, or around the ring.

    It uses the job's connections; whoever joined the job leaves it. `how`: more arguments of its all_reduce.
    """

    def __init__(
        self, communicator: Collectives, strategy: Strategy, wire: Wire = Wire.FULL, **how: Any
    ) -> None:
        self.rank = communicator.rank
        self.world_size = communicator.world_size
        self._communicator = communicator
        self._strategy, self._wire = strategy, wire
        self._how: dict[str, Any] = {"strategy": strategy, "wire": wire, **how}

    def start(self, array: NDArray[Any]) -> Future[Any]:
        """Sum `array` over all ranks, in place; return at once."""
        return self._communicator.all_reduce(array, out=array, **self._how, async_op=True)

    def sum(self, array: NDArray[Any]) -> None:
        """Do as `start` does, and wait."""
        self._communicator.all_reduce(array, out=array, **self._how)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._communicator.barrier(async_op=True).result()

    def reference(self, racks: Racks, dtype: np.dtype[Any]) -> Reference | None:
        """Return the only result that its sums may have, bit for bit; None: there are several."""
        return of_the_job(self._communicator, self._strategy, racks, dtype, self._wire)

    def retransmissions(self) -> int:
        """Return the packets retransmitted on the job's connections."""
        return self._communicator.statistics().retransmissions

    def close(self) -> None:
        """Do nothing: it has nothing of its own."""


def open_reducer(
    strategy: str, communicator: Collectives, *, controller: str, job: str, meeting_place: str
) -> Reducer:
    """Connect for `strategy`; all ranks call it. `job` is a prefix that nobody else uses."""
    rank, size = communicator.rank, communicator.world_size
    if strategy in (names.IN_NETWORK, names.RING):
        return JobReducer(communicator, Strategy(strategy))
    if strategy == names.IN_NETWORK_16BIT:
        return JobReducer(communicator, Strategy.IN_NETWORK, Wire.HALF)
    if strategy == names.PARAMETER_SERVER_SWITCH:
        return SwitchedParameterServer(communicator)
    if strategy == names.GLOO:
        return Gloo(Path(meeting_place), controller=controller, rank=rank, world_size=size)
    if strategy in names.OF_SEVERAL_GPUS:
        return _on_machines(strategy, on_machines(communicator), f"{controller} {job} {strategy}")
    if strategy in _PEERS:
        pairs = Pairs(controller, f"{job}-{strategy}", rank=rank, peers=_PEERS[strategy](rank, size))
        kind = HalvingDoubling if strategy == names.HALVING_DOUBLING else ParameterServer
        return kind(pairs, rank=rank, world_size=size)
    raise WorkloadError(f"there is no strategy {strategy!r}")


def _on_machines(strategy: str, communicator: MachineCommunicator, name: str) -> Reducer:
    if strategy == names.FLAT_RING:
        return FlatRing(communicator, name=name)
    if strategy == names.REDUCE_BROADCAST:
        return ReduceBroadcast(communicator, name=name)
    between = Strategy.RING if strategy == names.HIERARCHICAL_RING else Strategy.IN_NETWORK
    return JobReducer(communicator, between, pipeline=strategy == names.HIERARCHICAL)


def pairs_of(strategy: str, world_size: int) -> set[tuple[int, int]]:
    """Return the pairs of ranks that a strategy connects, the lower one first."""
    if strategy not in _PEERS:
        return set()
    peers = _PEERS[strategy]
    return {
        (min(rank, peer), max(rank, peer)) for rank in range(world_size) for peer in peers(rank, world_size)
    }


def _server_peers(rank: int, size: int) -> list[int]:
    return [other for other in range(size) if other != SERVER] if rank == SERVER else [SERVER]


_PEERS = {
    names.HALVING_DOUBLING: lambda rank, size: plan(rank, size).peers,
    names.PARAMETER_SERVER: _server_peers,
}
