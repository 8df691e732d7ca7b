"""Choice of job or Gloo for a collective, by kind, type and operation alone, so that all ranks agree."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from host_agent.wire.aggregation import Reduction

_LOG = logging.getLogger("p4reduce.torch")

SUMMED: Final = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
ADDED: Final = frozenset(
    (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    )
)  # by one of the two
REDUCED: Final = ("all_reduce", "reduce", "reduce_scatter")
_OPERATIONS: Final = ("SUM", "AVG", "MAX", "MIN")


def goes_by_job(dtype: torch.dtype, operation: str) -> bool:
    """Tell whether a collective of the kinds `REDUCED` goes by the job; else it goes by Gloo, over TCP.

    The job uses the network, or the ring where it has no slots. Broadcast, all_gather and barrier go by the
    job, whatever the type.
    """
    return dtype in SUMMED and operation in _OPERATIONS


def operation_of(op: Any) -> str:
    """Name an operation (SUM, AVG): PyTorch has a member of an enumeration, or an object that equals it."""
    return next((name for name, kind in dist.ReduceOp.RedOpType.__members__.items() if op == kind), str(op))


class Routes:
    """A process group's routes. They count what goes by Gloo in `by_gloo`, and log it once for each kind.

    `says`: False where another rank logs it. `no_job`: the reason why the group has no job; else empty.
    """

    def __init__(self, group: str, *, says: bool = True, no_job: str = "") -> None:
        self._group, self._says, self._no_job = group, says, no_job
        self.by_gloo: Counter[str] = Counter()

    def reduction(self, kind: str, tensors: Sequence[torch.Tensor], op: Any) -> Reduction | None:
        """Return the agent's reduction; None where Gloo has to do it. TypeError where neither can."""
        operation = operation_of(op)
        for tensor in tensors:
            if self._no_job or not goes_by_job(tensor.dtype, operation):
                _require_added(kind, tensors, operation)
                self._tell(f"{kind} {str(tensor.dtype).removeprefix('torch.')} {operation}")
                return None
        return Reduction[operation] if operation in _OPERATIONS else None

    def copied(self, kind: str) -> bool:
        """Return whether a collective that adds nothing goes by the job; else Gloo has to."""
        if self._no_job:
            self._tell(kind)
        return not self._no_job

    def sparse(self, kind: str, tensors: Sequence[torch.Tensor], op: Any) -> None:
        """Count sparse tensors that go by Gloo. It only sums them: raise TypeError for all else."""
        operation = operation_of(op)
        if operation != "SUM" or not all(tensor.is_sparse for tensor in tensors):
            raise TypeError(
                f"{kind}: of sparse tensors Gloo takes the SUM alone, not {operation}, and no dense ones "
                "in the same call: call to_dense(), or divide the sum yourself"
            )
        self._tell(f"{kind} sparse {str(tensors[0].dtype).removeprefix('torch.')} {operation}")

    def _tell(self, name: str) -> None:
        self.by_gloo[name] += 1
        if self._no_job:
            if self._says and self.by_gloo.total() == 1:
                _LOG.warning("process group %s: %s: it goes by Gloo over TCP", self._group, self._no_job)
        elif self._says and self.by_gloo[name] == 1:
            _LOG.warning("process group %s: no switch adds that: %s goes by Gloo over TCP", self._group, name)


def _require_added(kind: str, tensors: Sequence[torch.Tensor], operation: str) -> None:
    for tensor in tensors:
        if tensor.dtype is torch.bool and operation == "AVG":
            raise TypeError(f"{kind}: truth values have no average: convert the tensor, or take SUM")
        if tensor.dtype not in ADDED:
            raise TypeError(
                f"{kind}: neither a switch nor Gloo adds {tensor.dtype}: convert the tensor, or add up what "
                "all_gather brings"
            )
