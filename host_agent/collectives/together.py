"""Small sums of floats in one pass: every rank's tensor travels whole, and each rank adds them up itself.

Agreeing on a scale takes as long as a small sum does. So a tensor that is small goes without: in the sum of
the switch every rank has a place of its own, with zeros from all others. All ranks add in order of rank, in
64-bit floats, and round once: the result has the same bits everywhere, is closer than fixed point, and Inf
and NaN come through.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Array, Call
from host_agent.kernels import sum_rows
from host_agent.wire.aggregation import Reduction


def fits(call: Call, array: Array) -> bool:
    """Whether `array` is small enough; the same on all ranks that agree on its size."""
    return call.world_size * array.nbytes <= call.small_bytes


def pack(call: Call, array: Array) -> NDArray[np.int32]:
    """(world_size, words): this rank's row holds its array's bytes; all other rows are zero."""
    rows = np.zeros((call.world_size, -(-array.nbytes // 4)), np.int32)
    rows[call.rank].view(np.uint8)[: array.nbytes] = array.view(np.uint8)
    return rows


def unpack(call: Call, rows: NDArray[np.int32], out: Array) -> None:
    """Leave the sum, or average, of all rows in `out`."""
    sum_rows(rows, out, divisor=call.world_size if call.reduction is Reduction.AVG else 1)
