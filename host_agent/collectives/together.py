"""Small sums of floats in one pass: every rank's tensor travels whole, and each rank adds them up itself.

Agreeing on a scale takes as long as a small sum does. So a tensor that is small goes without: in the sum of
the switch every rank has a place of its own, with zeros from all others. All ranks add in order of rank, in
64-bit floats, and round once: the result has the same bits everywhere, is closer than fixed point, and Inf
and NaN come through.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Array, Call, Disagreement
from host_agent.kernels import sum_rows
from host_agent.quantisation import ELEMENT_TYPES
from host_agent.wire.aggregation import Reduction

# All ranks' tensors together: two or three packets of the largest path MTU, which no link takes long for.
_MOST_BYTES = 8192


def fits(call: Call, array: Array) -> bool:
    """Whether `array` is small enough; the same on all ranks that agree on its size."""
    return call.world_size * array.nbytes <= _MOST_BYTES


def pack(call: Call, array: Array) -> NDArray[np.int32]:
    """(world_size, words): this rank's row holds what it sums, and its bytes; all other rows are zero.

    The header has the size and the reduction. The element type is in the row: words are all the header sees.
    """
    rows = np.zeros((call.world_size, 1 + -(-array.nbytes // 4)), np.int32)
    rows[call.rank, 0] = ELEMENT_TYPES[array.dtype]
    rows[call.rank, 1:].view(np.uint8)[: array.nbytes] = array.view(np.uint8)
    return rows


def unpack(call: Call, rows: NDArray[np.int32], out: Array) -> None:
    """Leave the sum, or average, of all rows in `out`; Disagreement where a rank's element type differs."""
    if (rows[:, 0] != ELEMENT_TYPES[out.dtype]).any():
        raise Disagreement(f"the workers' element types differ; this one's is {out.dtype}")
    sum_rows(rows[:, 1:], out, divisor=call.world_size if call.reduction is Reduction.AVG else 1)
