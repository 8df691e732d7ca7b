"""Timed sums on one worker, the same for all strategies."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from host_agent.collectives.plan import Strategy, Wire
from host_agent.wire.aggregation import Reduction
from p4reduce.workloads.references import Racks
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.reducer import Reducer
from p4reduce.workloads.tensors import check, digest, dtype_of, tensor


def time_sums(
    reducer: Reducer,
    *,
    strategy: str,
    elements: int,
    dtype: str,
    seed: int,
    repeat: int,
    verify: bool,
    racks: Racks,
) -> dict[str, Any]:
    """Sum `repeat` tensors one after the other, as a training step does; measure the mean time of one.

    Time starts behind a barrier, and nothing waits for the other ranks between the sums: small sums would be
    timed with the barrier's own unevenness otherwise. `began` in the answer is that moment by the machine's
    monotonic clock. `verify`: compare with NumPy's sum, and with the reference if there is one, for which
    `racks` are the ranks behind each leaf.
    """
    source = tensor(seed=seed, rank=reducer.rank, elements=elements, dtype=dtype_of(dtype))
    arrays = [source, *(source.copy() for _ in range(repeat - 1))]
    before = reducer.retransmissions()
    reducer.barrier()
    began, started = time.monotonic(), time.perf_counter()
    for array in arrays:
        reducer.sum(array)
    seconds = (time.perf_counter() - started) / repeat
    after = reducer.retransmissions()
    answer: dict[str, Any] = {
        "seconds": seconds,
        "began": began,
        "digests": sorted({digest(array) for array in arrays}),
        "retransmissions": None if before is None or after is None else after - before,
    }
    if verify:
        # All others add in floating point, in some order; but float32 inside of hosts as whole numbers.
        whole = strategy == names.HIERARCHICAL_RING and source.dtype == np.float32
        how = Strategy.IN_NETWORK if whole or strategy in names.IN_THE_SWITCH else Strategy.RING
        found = check(
            source,
            seed=seed,
            world_size=reducer.world_size,
            reduction=Reduction.SUM,
            strategy=how,
            reference=reducer.reference(racks, source.dtype),
            wire=Wire.HALF if strategy == names.IN_NETWORK_16BIT else Wire.FULL,
        )
        answer["check"] = {**asdict(found), "passed": found.passed}
    return answer
