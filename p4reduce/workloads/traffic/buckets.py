"""Buckets, the gradients that are reduced together, as those of PyTorch's DistributedDataParallel (DDP).

DDP's `compute_bucket_assignment_by_size` (torch/csrc/distributed/c10d/reducer.cpp) goes through the
gradients in the order in which they become ready and closes a bucket as soon as it holds at least its limit.
The first bucket has a small limit, so that there is soon something to send, unless the user gave one limit
for all (`bucket_cap_mb`; `_BucketCapacityConfig` in torch/nn/parallel/distributed.py). These are the buckets
that DDP rebuilds after the first iteration, and keeps; the first iteration itself may have one bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.model import Workload

DEFAULT_CAP_BYTES: Final = 25 * 2**20
DEFAULT_FIRST_BYTES: Final = 2**20


@dataclass(frozen=True)
class Bucket:
    """Layers (indexes into the workload's) in the order in which their gradients become ready."""

    layers: tuple[int, ...]
    bytes: int

    @property
    def first(self) -> int:
        """The layer nearest the front: the last to be ready, the first that is needed again."""
        return min(self.layers)

    @property
    def last(self) -> int:
        return max(self.layers)


def buckets(
    workload: Workload, *, cap_bytes: int | None = None, first_bytes: int | None = None
) -> tuple[Bucket, ...]:
    """Return the workload's buckets in the order in which they become ready.

    `cap_bytes` is when a bucket is full (25 MiB; with 0, each layer is a bucket), `first_bytes` the same for
    the first one. As in DDP, that is 1 MiB only if `cap_bytes` is not given either.
    """
    if first_bytes is None:
        first_bytes = DEFAULT_FIRST_BYTES if cap_bytes is None else cap_bytes
    if cap_bytes is None:
        cap_bytes = DEFAULT_CAP_BYTES
    if cap_bytes < 0 or first_bytes < 0:
        raise WorkloadError(f"a bucket cannot hold {min(cap_bytes, first_bytes)} bytes: take 0 or more")
    done: list[Bucket] = []
    indexes: list[int] = []
    size = 0
    limit = first_bytes
    for index in reversed(range(len(workload.layers))):
        indexes.append(index)
        size += workload.layers[index].numel * workload.element_bytes
        if size >= limit:
            done.append(Bucket(tuple(indexes), size))
            indexes, size, limit = [], 0, cap_bytes
    if indexes:
        done.append(Bucket(tuple(indexes), size))
    return tuple(done)
