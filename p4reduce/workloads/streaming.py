"""All-reduces one after the other, each exact or an error, for as long as wanted: a load for injected faults.

The last two elements of every tensor are the stream's own: the number of ranks that want to stop, so that
all stop after the same sum, and the bits of the ranks in the sum. So a sum says itself whose tensors it has,
and is compared with exactly these.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from host_agent.front import Collectives
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.tensors import Array, tensor

_OWN = 2
_INT32 = np.dtype(np.int32)


def stream(
    communicator: Collectives, *, elements: int, seed: int, directory: str, pause_s: float = 0.0
) -> dict[str, Any]:
    """Reduce until the file `stop` appears in the directory; write the progress to this rank's file there.

    It works in place, as training does, and sleeps for `pause_s` after each sum. The result has `parts`: from
    which sum on which ranks (as they joined) were in it, and in which mode. WorkloadError if a sum is wrong.
    """
    origin, size = communicator.rank, communicator.world_size
    inputs = [tensor(seed=seed, rank=rank, elements=elements, dtype=_INT32) for rank in range(size)]
    sums: dict[int, Array] = {}
    stop, progress = Path(directory) / "stop", Path(directory) / f"progress-{origin}"
    written = Path(directory) / f"written-{origin}"
    result, number, stopped = np.empty(elements + _OWN, _INT32), 0, False
    parts: list[tuple[list[int], str, int]] = []
    while not stopped:
        result[:elements] = np.roll(inputs[origin], number)
        result[elements:] = stop.exists(), 1 << origin
        communicator.all_reduce(result, out=result)
        mask, stopped = int(result[elements + 1]), bool(result[elements])
        if mask not in sums:
            ranks = [rank for rank in range(size) if mask >> rank & 1]
            sums[mask] = np.asarray(np.sum([inputs[rank] for rank in ranks], axis=0, dtype=_INT32))
        if not np.array_equal(result[:elements], np.roll(sums[mask], number)):
            raise WorkloadError(f"all-reduce {number} is wrong: it is not the sum of ranks {mask:#b}")
        ranks, mode = [rank for rank in range(size) if mask >> rank & 1], communicator.mode.name.lower()
        if not parts or parts[-1][:2] != (ranks, mode):
            parts.append((ranks, mode, number))
        number += 1
        written.write_text(str(number))
        written.replace(progress)  # nobody reads half of it
        time.sleep(pause_s)
    return {
        "collectives": number,
        "parts": [{"ranks": ranks, "mode": mode, "from": first} for ranks, mode, first in parts],
        "rank": communicator.rank,
        "world_size": communicator.world_size,
        "generation": communicator.generation,
    }
