"""What no switch does: PyTorch's Gloo, over TCP on the management network.

Gloo takes a tensor's memory as it lies there, whatever its strides say, and knows fewer types than PyTorch.
Here tensors are given to it dense, and what is only copied goes as bytes where it does not know the type.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from host_agent.errors import UsageError
from host_agent.netinfo import local_address_towards
from p4reduce.torch.completion import completer
from p4reduce.torch.routes import operation_of
from p4reduce.torch.views import dense
from p4reduce.torch.work import NO_TIMEOUT, Work

_ADDED: Final = frozenset(
    (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    )
)
_COPIED: Final = _ADDED - {torch.complex64, torch.complex128}


class ByGloo:
    """A process group's. Its collectives return what to wait for, which `abort` ends as well."""

    def __init__(
        self,
        store: dist.Store,
        *,
        rank: int,
        size: int,
        timeout: timedelta,
        controller: str,
        interface: str | None,
        name: str,
        abort: Callable[[str], None],
    ) -> None:
        self._name, self._abort = name, abort
        self.group = _gloo(
            store, rank=rank, size=size, timeout=timeout, controller=controller, interface=interface
        )
        self._pending: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self._over: UsageError | None = None
        self._raw: weakref.WeakSet[Any] = weakref.WeakSet()  # works of Gloo's own

    def abort(self, reason: str) -> None:
        """Who waits, waits no longer, and nobody begins to: Gloo itself would let them."""
        self._over = UsageError(f"process group {self._name} was aborted: {reason}")
        for future in list(self._pending):
            self._end(future)
        self.group.abort()

    def _end(self, future: Future[Any]) -> None:
        if self._over is not None:
            with suppress(InvalidStateError):
                future.set_exception(self._over.with_traceback(None))

    def is_busy(self) -> bool:
        """Whether a collective is under way."""
        return any(not future.done() for future in list(self._pending))

    def may_wait(self) -> bool:
        """Whether somebody may wait: also for what is sent or received, which is only over when one has."""
        return self.is_busy() or any(not work.is_completed() for work in list(self._raw))

    def require_open(self) -> None:
        """UsageError where it has been aborted."""
        if self._over is not None:
            raise self._over.with_traceback(None)

    # Sums

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        return self._in_place("all_reduce", tensors, opts.reduceOp, lambda t: self.group.allreduce(t, opts))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        def call(into: list[torch.Tensor]) -> Any:
            return self.group.allreduce_coalesced(into, opts)

        return self._in_place("all_reduce", tensors, opts.reduceOp, call)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        return self._in_place("reduce", tensors, opts.reduceOp, lambda t: self.group.reduce(t, opts))

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Work:
        joined = [torch.cat([_flat(t) for t in row]) for row in inputs]
        return self._scattered(outputs, joined, opts)

    def reduce_scatter_into(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Work:
        return self._scattered(outputs, [_flat(t).clone() for t in inputs], opts)

    def _scattered(self, outputs: Sequence[torch.Tensor], whole: Sequence[torch.Tensor], opts: Any) -> Work:
        """All is summed everywhere, as Gloo does, too; its own has no futures, and some shapes crash it."""
        _require_added("reduce_scatter", outputs, opts.reduceOp)
        how = c10d.AllreduceOptions()
        how.reduceOp = opts.reduceOp
        rank = self.group.rank()
        own = [t.reshape(self.group.size(), -1)[rank] for t in whole]
        futures = [self._future(self.group.allreduce([t], how)) for t in whole]
        return self._awaited("reduce_scatter", futures, outputs, own)

    # Copies

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Work:
        into = [[_sendable(t) for t in row] for row in outputs]
        made = self.group.gather(into, [_sendable(t) for t in inputs], opts)
        return self._work(
            "gather", made, [t for row in outputs for t in row], [t for row in into for t in row]
        )

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Work:
        into = [_sendable(t) for t in outputs]
        made = self.group.scatter(into, [[_sendable(t) for t in row] for row in inputs], opts)
        return self._work("scatter", made, outputs, into)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any) -> Work:
        into = [_sendable(t) for t in outputs]
        made = self.group.alltoall(into, [_sendable(t) for t in inputs], opts)
        return self._work("all_to_all", made, outputs, into)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any,
    ) -> Work:
        into = _rows(output)
        made = self.group.alltoall_base(into, _rows(source), list(output_sizes), list(input_sizes), opts)
        return self._work("all_to_all", made, [output], [into])

    def send(self, tensors: Sequence[torch.Tensor], rank: int, tag: int) -> Any:
        """Gloo's own, at once and beside all others: ranks may send before they receive."""
        return self._noted(self.group.send([_sendable(t) for t in tensors], rank, tag))

    def recv(self, tensors: Sequence[torch.Tensor], rank: int, tag: int) -> Any:
        return self._received(tensors, lambda into: self.group.recv(into, rank, tag))

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> Any:
        return self._received(tensors, lambda into: self.group.recv_anysource(into, tag))

    # Barriers

    def monitored_barrier(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Names who does not come."""
        self.group.monitored_barrier(timeout, wait_all_ranks)

    # What is under way

    def _received(self, tensors: Sequence[torch.Tensor], call: Callable[[list[torch.Tensor]], Any]) -> Any:
        into = [_sendable(t) for t in tensors]
        made = self._noted(call(into))
        if all(_shares(a, b) for a, b in zip(tensors, into, strict=True)):
            return made
        return _Received(made, tensors, into)

    def _noted(self, made: Any) -> Any:
        self._raw.add(made)
        return made

    def _in_place(
        self, what: str, tensors: Sequence[torch.Tensor], op: Any, call: Callable[[list[torch.Tensor]], Any]
    ) -> Work:
        _require_added(what, tensors, op)
        into = [dense(t) for t in tensors]
        return self._work(what, call(into), tensors, into)

    def _work(
        self, what: str, made: Any, outputs: Sequence[torch.Tensor], filled: Sequence[torch.Tensor]
    ) -> Work:
        """`filled` is what Gloo fills of `outputs`."""
        work = self._awaited(what, [self._future(made)], outputs, filled)
        work.made = made
        return work

    def _awaited(
        self,
        what: str,
        futures: Sequence[Future[Any]],
        outputs: Sequence[torch.Tensor],
        filled: Sequence[torch.Tensor],
    ) -> _GloosWork:
        def finish(_: list[Any]) -> None:
            _put_back(outputs, filled)

        what = f"{what} of process group {self._name} by Gloo"
        return _GloosWork(futures, list(outputs), what=what, abort=self._abort, finish=finish)

    def _future(self, made: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._pending.add(future)
        self._end(future)
        # Nothing that PyTorch's profiler sees is done in Gloo's thread, which has the caller's state of it.
        made.get_future().add_done_callback(lambda _: completer.put(lambda: _tell(made, future)))
        return future


class _GloosWork(Work):
    """Knows who has sent, where Gloo does."""

    made: Any = None

    def source_rank(self) -> int:
        return int(self.made._source_rank())

    _source_rank = source_rank


class _Received(dist.Work):  # type: ignore[misc]
    """Of Gloo's own, which has no future: what it brought is put in its place by who waits."""

    def __init__(self, made: Any, outputs: Sequence[torch.Tensor], filled: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._made, self._outputs, self._filled = made, outputs, filled
        self._is_over = False

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if not self._is_over:
            self._made.wait(timeout)
            _put_back(self._outputs, self._filled)
            self._is_over = True
        return True

    def is_completed(self) -> bool:
        return self._is_over

    def source_rank(self) -> int:
        return int(self._made._source_rank())

    _source_rank = source_rank


def _tell(made: Any, future: Future[Any]) -> None:
    """Gloo's future is done a little before its work is, which still tells the profiler of its end.

    Who went on by then, and ended the profiler, had a segmentation fault.
    """
    with suppress(InvalidStateError):  # aborted meanwhile
        try:
            made.wait()
        except RuntimeError as error:
            future.set_exception(error)
        else:
            future.set_result(None)


def _require_added(what: str, tensors: Sequence[torch.Tensor], op: Any) -> None:
    for tensor in tensors:
        whole = not (tensor.is_floating_point() or tensor.is_complex())
        if whole and operation_of(op) == "AVG":
            raise TypeError(
                f"{what}: the average of {tensor.dtype} is no {tensor.dtype}: convert the tensor, or take SUM"
            )
        if tensor.dtype not in _ADDED:
            raise TypeError(
                f"{what}: neither a switch nor Gloo adds {tensor.dtype}: convert the tensor, or add up what "
                "all_gather brings"
            )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return dense(tensor).reshape(-1)


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    return dense(tensor) if tensor.dtype in _COPIED else _flat(tensor).view(torch.uint8)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """As `_sendable`, with the first dimension, which is cut."""
    rows = dense(tensor)
    if tensor.dtype in _COPIED:
        return rows
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:])).view(torch.uint8)


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.data_ptr() == other.data_ptr())


def _put_back(tensors: Sequence[torch.Tensor], filled: Sequence[torch.Tensor]) -> None:
    """Where Gloo has filled a dense copy, its elements."""
    for tensor, one in zip(tensors, filled, strict=True):
        if not _shares(tensor, one):
            elements = one if one.dtype == tensor.dtype else one.reshape(-1).view(tensor.dtype)
            tensor.detach().copy_(elements.reshape(tensor.shape))


def _gloo(
    store: dist.Store, *, rank: int, size: int, timeout: timedelta, controller: str, interface: str | None
) -> dist.ProcessGroupGloo:
    """On the management network; GLOO_SOCKET_IFNAME may name the fabric's links, which are the job's."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    new_device = dist.ProcessGroupGloo.create_device
    address = local_address_towards(controller)
    if interface is not None:
        options._devices = [new_device(interface=interface)]
    elif address is not None:
        options._devices = [new_device(hostname=str(address))]
    else:
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
    return dist.ProcessGroupGloo(store, rank, size, options)
