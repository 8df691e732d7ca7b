"""PyTorch's names and arguments for collectives, and the choice of job or Gloo for each; nothing else.

Some have two names, an older one and one that says what it takes. PyTorch's release and the caller decide
which is called.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.distributed import distributed_c10d as c10d

from p4reduce.torch.group import Group

T = TypeVar("T")

_frames: Any = torch._C._dynamo.eval_frame
_CAN_SKIP = hasattr(_frames, "set_code_exec_strategy")  # private: a later release may lack it


def _opaque(kind: type[T]) -> type[T]:
    """Have `torch.compile` call a class's methods and not trace into them, as it does with backends in C++.

    `torch.compiler.disable` does so too, but takes seconds to import Dynamo, which may not be needed.
    """
    for name, method in list(vars(kind).items()):
        if not inspect.isfunction(method):
            continue
        if not _CAN_SKIP:
            setattr(kind, name, torch.compiler.disable(method))
            continue
        skip = _frames._FrameAction.SKIP
        strategy = _frames._FrameExecStrategy(skip, skip)  # its own frame, and those of what it calls
        _frames.set_code_exec_strategy(method.__code__, strategy)
    return kind


@_opaque
class Collectives:
    """The methods that both of PyTorch's classes for a backend share. `group` carries them out."""

    group: Group

    def getBackendName(self) -> str:
        return "p4reduce"

    def set_timeout(self, timeout: timedelta) -> None:
        """Ignore the time-out, which is for later calls: the job keeps the one that it was joined with."""

    # Sums

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors, opts = _list(tensors), opts or c10d.AllreduceOptions()
        work = self.group.all_reduce(tensors, opts.reduceOp) or self.group.gloo.allreduce(tensors, opts)
        return self.group.kept(work, tensors) if opts.asyncOp else work

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceCoalescedOptions()
        done = self.group.all_reduce(tensors, opts.reduceOp)
        return done or self.group.gloo.allreduce_coalesced(tensors, opts)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        tensors = _list(tensors)
        done = self.group.reduce(tensors, opts.reduceOp, opts.rootRank)
        return done or self.group.gloo.reduce(tensors, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        done = self.group.reduce_scatter(outputs, inputs, opts.reduceOp)
        return done or self.group.gloo.reduce_scatter(outputs, inputs, opts)

    def reduce_scatter_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        done = self.group.reduce_scatter_into([output], [source], opts.reduceOp)
        return done or self.group.gloo.reduce_scatter_into([output], [source], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        done = self.group.reduce_scatter_into(outputs, inputs, opts.reduceOp)
        return done or self.group.gloo.reduce_scatter_into(outputs, inputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Copies

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        tensors = _list(tensors)
        return self.group.broadcast(tensors, opts.rootRank) or self.group.gloo.broadcast(tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self.group.all_gather(outputs, inputs) or self.group.gloo.all_gather(outputs, inputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        rows = [[of_rank[i] for of_rank in outputs] for i in range(len(inputs))]  # by rank first, here alone
        return self.allgather(rows, inputs)

    def all_gather_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [source])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        done = self.group.all_gather_into(outputs, inputs)
        return done or self.group.gloo.all_gather_into(outputs, inputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def barrier(self, opts: Any = None) -> Any:
        return self.group.barrier() or self.group.gloo.barrier(opts)

    # What no switch does

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self.group.gloo.gather(outputs, inputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self.group.gloo.scatter(outputs, inputs, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self.group.gloo.alltoall(outputs, inputs, opts or c10d.AllToAllOptions())

    def all_to_all_single(
        self, output: Any, source: Any, out_sizes: Any, in_sizes: Any, opts: Any = None
    ) -> Any:
        return self.group.gloo.all_to_all_single(
            output, source, out_sizes, in_sizes, opts or c10d.AllToAllOptions()
        )

    alltoall_base = all_to_all_single

    def send(self, tensors: Any, rank: int, tag: int) -> Any:
        return self.group.gloo.send(tensors, rank, tag)

    def recv(self, tensors: Any, rank: int, tag: int) -> Any:
        return self.group.gloo.recv(tensors, rank, tag)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return self.group.gloo.recv_anysource(tensors, tag)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        return self.group.gloo.monitored_barrier(
            self.group.timeout if timeout is None else timeout, wait_all_ranks
        )

    # The end

    def shutdown(self) -> None:
        self.group.leave()

    def abort(self) -> None:
        self.group.abort("abort() of its process group")


def _list(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors
