"""Data-parallel training: a worker's part, the same training in one process, and how the two compare.

Every step, each worker takes the gradient over its shard, the switch sums the gradients as float32, and
all workers go the same step. What the sum may be off by is known: each worker rounds its gradient to float32
(half a unit in the last place), and the all-reduce stays within `quantisation.error_bound`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from host_agent.communicator import Communicator
from host_agent.quantisation import error_bound
from workloads.digits import Descent, Floats, Network, load
from workloads.tensors import digest

# 64-bit sums in another order differ by less than this, relative to the sum of magnitudes.
_REORDERING: Final = 1e-12


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The training in one process, and the workers' sums against the full batch's gradient.

    `worst_share` is the largest error of any summed gradient as a share of its bound: above 1 is wrong.
    """

    accuracy: float
    worst_share: float
    parameter_distance: float

    @property
    def within_bound(self) -> bool:
        """Whether every step's sum was as close as documented."""
        return self.worst_share <= 1.0


def train(communicator: Communicator, *, steps: int, seed: int, record: str | None = None) -> dict[str, Any]:
    """One worker's part; rank 0 writes every summed gradient to the file `record`."""
    training, test = load(seed=seed)
    members = communicator.members
    shard = training.shard(communicator.rank, communicator.world_size)
    recording = record is not None and communicator.rank == 0
    network = Network()
    descent = Descent(network.initial(seed=seed))
    reduced = np.empty(network.size, np.float32)
    sums: list[NDArray[np.float32]] = []
    seconds = []
    before = communicator.counters().data_bytes_sent
    for _ in range(steps):
        if communicator.members != members:  # of an elastic job: who is left shares the examples anew
            members = communicator.members
            shard = training.shard(communicator.rank, communicator.world_size)
        gradient = network.gradient(descent.parameters, shard).astype(np.float32)
        started = time.perf_counter()
        communicator.all_reduce(gradient, out=reduced)
        seconds.append(time.perf_counter() - started)
        if recording:
            sums.append(reduced.copy())
        descent.step(reduced.astype(np.float64) / len(training))
    if sums and record is not None:
        np.save(record, np.stack(sums))
    return {
        "accuracy": network.accuracy(descent.parameters, test),
        "digest": digest(descent.parameters),
        "workers": communicator.world_size,
        "seconds": seconds,
        "bytes": reduced.nbytes,
        "bytes_sent": (communicator.counters().data_bytes_sent - before) / steps,
    }


def compare(record: Path, *, world_size: int, seed: int) -> Reference:
    """Train in this process on the full batch, and hold the workers' recorded sums against their bound."""
    sums = np.load(record)
    network = Network()
    _, test = load(seed=seed)
    alone = Descent(network.initial(seed=seed))
    together = Descent(network.initial(seed=seed))
    worst = 0.0
    for error, bound in _steps(sums, alone, together, network, world_size=world_size, seed=seed):
        worst = max(worst, error / bound)
    distance = np.abs(alone.parameters - together.parameters).max() / np.abs(alone.parameters).max()
    return Reference(
        accuracy=network.accuracy(alone.parameters, test),
        worst_share=worst,
        parameter_distance=float(distance),
    )


def _steps(
    sums: NDArray[np.float32],
    alone: Descent,
    together: Descent,
    network: Network,
    *,
    world_size: int,
    seed: int,
) -> Iterator[tuple[float, float]]:
    """Take both trainings through all steps; the largest error of each sum, and its bound."""
    training, _ = load(seed=seed)
    shards = [training.shard(rank, world_size) for rank in range(world_size)]
    for recorded in sums:
        parts: list[Floats] = [network.gradient(together.parameters, shard) for shard in shards]
        exact = network.gradient(together.parameters, training)
        summed = recorded.astype(np.float64)
        largest = max(float(np.abs(part.astype(np.float32)).max()) for part in parts)
        magnitudes = np.sum(np.abs(parts), axis=0).max()
        rounding = float(magnitudes) * (float(np.finfo(np.float32).eps) / 2 + _REORDERING)
        bound = error_bound(largest, world_size=world_size, dtype=np.float32) + rounding
        yield float(np.abs(summed - exact).max()), bound
        together.step(summed / len(training))
        alone.step(network.gradient(alone.parameters, training) / len(training))
