"""Data-parallel training: a worker's part, the same training in one process, and a comparison of the two.

Every step, each worker computes the gradient over its shard, the switch sums the gradients in the chosen
type, and all workers take the same step. The error of the sum is bounded: each worker rounds its gradient to
the type (half a unit in the last place), and the all-reduce stays within `quantisation.error_bound`, or
around a ring within (N - 1) such roundings of the summands' magnitudes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Wire
from host_agent.error_feedback import ErrorFeedback
from host_agent.front import Collectives
from host_agent.quantisation import error_bound, round_once
from p4reduce.workloads.digits import Descent, Floats, Network, load
from p4reduce.workloads.tensors import digest, dtype_of

# 64-bit sums in another order differ by less than this, relative to the sum of magnitudes.
_REORDERING: Final = 1e-12
_OWED: Final = 2.0**-11  # what half precision takes from an element is less, relative to the largest


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The training in one process, and the workers' sums compared with the full batch's gradient.

    `worst_share` is the largest error of any summed gradient as a share of its bound: above 1 is wrong.
    """

    accuracy: float
    worst_share: float
    parameter_distance: float

    @property
    def within_bound(self) -> bool:
        """True if every step's sum was within its bound."""
        return self.worst_share <= 1.0


def train(
    communicator: Collectives,
    *,
    steps: int,
    seed: int,
    dtype: str = "float32",
    wire: str = "full",
    record: str | None = None,
) -> dict[str, Any]:
    """Train as one worker; rank 0 writes every summed gradient, as float32, to the file `record`.

    `dtype` is the gradients' type; parameters stay 64-bit floats. `wire` "16bit": float32 goes in half
    precision, with error feedback.
    """
    training, test = load(seed=seed)
    members = communicator.members
    shard = training.shard(communicator.rank, communicator.world_size)
    recording = record is not None and communicator.rank == 0
    network = Network()
    descent = Descent(network.initial(seed=seed))
    reduced = np.empty(network.size, dtype_of(dtype))
    sums: list[NDArray[np.float32]] = []
    seconds = []
    feedback = ErrorFeedback() if wire == Wire.HALF and reduced.dtype == np.float32 else None
    before, by_ring = communicator.counters().data_bytes_sent, communicator.statistics().ring
    for _ in range(steps):
        if communicator.members != members:  # of an elastic job: who is left shares the examples anew
            members = communicator.members
            shard = training.shard(communicator.rank, communicator.world_size)
        gradient = round_once(network.gradient(descent.parameters, shard), reduced.dtype)
        started = time.perf_counter()
        communicator.all_reduce(gradient, out=reduced, wire=wire, feedback=feedback)
        seconds.append(time.perf_counter() - started)
        if recording:
            sums.append(reduced.astype(np.float32))
        descent.step(reduced.astype(np.float64) / len(training))
    if sums and record is not None:
        np.save(record, np.stack(sums))
    return {
        "accuracy": network.accuracy(descent.parameters, test),
        "digest": digest(descent.parameters),
        "workers": communicator.world_size,
        "by_ring": communicator.statistics().ring > by_ring,
        "seconds": seconds,
        "bytes": reduced.nbytes,
        "bytes_sent": (communicator.counters().data_bytes_sent - before) / steps,
    }


def compare(
    record: Path,
    *,
    world_size: int,
    seed: int,
    dtype: str = "float32",
    wire: str = "full",
    by_ring: bool = False,
) -> Reference:
    """Train in this process on the full batch, and compare the workers' recorded sums with their bound.

    `by_ring`: some of the sums may have gone around the ring.
    """
    sums = np.load(record)
    network = Network()
    training, test = load(seed=seed)
    alone = Descent(network.initial(seed=seed))
    together = Descent(network.initial(seed=seed))
    shards = [training.shard(rank, world_size) for rank in range(world_size)]
    kind = dtype_of(dtype)
    info = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    unit, least = float(info.eps) / 2, float(info.smallest_subnormal) / 2
    over_16_bits = wire == Wire.HALF and kind == np.float32
    half = (Wire.HALF if over_16_bits else Wire.FULL).halves(kind)
    worst = owed = 0.0
    for recorded in sums:
        parts: list[Floats] = [network.gradient(together.parameters, shard) for shard in shards]
        exact = network.gradient(together.parameters, training)
        summed = recorded.astype(np.float64)
        sent = [round_once(part, kind).astype(np.float64) for part in parts]
        largest = max(float(np.abs(part).max()) for part in sent)
        largest += owed  # by each rank, from the step before
        bound = world_size * owed + error_bound(
            largest, world_size=world_size, dtype=kind, half=half, racks=world_size
        )
        if by_ring:
            bound = max(bound, (world_size - 1) * unit * float(np.sum(np.abs(sent), axis=0).max()))
        owed = _OWED * largest if over_16_bits else 0.0
        magnitudes = float(np.sum(np.abs(parts), axis=0).max())
        rounding = magnitudes * (unit + _REORDERING) + world_size * least
        worst = max(worst, float(np.abs(summed - exact).max()) / (bound + rounding))
        together.step(summed / len(training))
        alone.step(network.gradient(alone.parameters, training) / len(training))
    distance = np.abs(alone.parameters - together.parameters).max() / np.abs(alone.parameters).max()
    return Reference(
        accuracy=network.accuracy(alone.parameters, test),
        worst_share=worst,
        parameter_distance=float(distance),
    )
