"""Collectives that no switch does, by PyTorch's Gloo over TCP on the management network.

Gloo reads a tensor's memory in order and ignores its strides, and it knows fewer types than PyTorch. So it
gets dense tensors here, and data that is only copied goes as bytes where Gloo does not know the type.
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
from p4reduce.torch.routes import ADDED, operation_of
from p4reduce.torch.views import dense, require_dense
from p4reduce.torch.work import NO_TIMEOUT, Work

_COPIED: Final = ADDED - {torch.complex64, torch.complex128}
_WAKING_TAG: Final = 1 << 30  # nobody sends with it
_WAKING_S: Final = 0.001


class ByGloo:
    """A process group's Gloo. Its collectives return works, which `abort` ends with an error."""

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
        self._raw: weakref.WeakSet[_Passed] = weakref.WeakSet()
        self._barriers = 0  # monitored ones under way

    def abort(self, reason: str) -> None:
        """End all waits, and have later ones fail: Gloo itself would let callers wait on."""
        self._over = UsageError(f"process group {self._name} was aborted: {reason}")
        for future in list(self._pending):
            self._end(future)
        self.group.abort()
        if self._waits_in_gloo():
            self._close_pairs()

    def _waits_in_gloo(self) -> bool:
        return self._barriers > 0 or any(not work.is_completed() for work in list(self._raw))

    def _close_pairs(self) -> None:
        """Wake callers that wait in Gloo: it closes all its connections when a receive times out."""
        for rank in range(self.group.size()):
            if rank != self.group.rank():
                with suppress(RuntimeError):  # that time-out, or closed already
                    into = torch.empty(1)
                    self.group.recv([into], rank, _WAKING_TAG).wait(timedelta(seconds=_WAKING_S))

    def _end(self, future: Future[Any]) -> None:
        if self._over is not None:
            with suppress(InvalidStateError):
                future.set_exception(self._over.with_traceback(None))

    def is_busy(self) -> bool:
        """Tell whether a collective is under way."""
        return any(not future.done() for future in list(self._pending))

    def may_wait(self) -> bool:
        """Tell whether a caller may be waiting; a send or receive counts until its `wait` has returned."""
        return self.is_busy() or self._waits_in_gloo()

    def require_open(self) -> None:
        """Raise UsageError if it has been aborted."""
        if self._over is not None:
            raise self._over.with_traceback(None)

    # Sums

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        return self._reduced("all_reduce", tensors, opts, self.group.allreduce)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        return self._reduced("all_reduce", tensors, opts, self.group.allreduce_coalesced)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        is_root = opts.rootRank == self.group.rank()
        return self._reduced("reduce", tensors, opts, self.group.reduce, divides=is_root)

    def _reduced(
        self,
        what: str,
        tensors: Sequence[torch.Tensor],
        opts: Any,
        call: Callable[[list[torch.Tensor], Any], Any],
        *,
        divides: bool = True,
    ) -> Work:
        into = [t.detach() if t.is_sparse else dense(t) for t in tensors]
        divisor = self._divisor(into, opts.reduceOp)
        if divisor > 1:
            opts.reduceOp = dist.ReduceOp.SUM
        try:
            made = call(into, opts)
        finally:
            if divisor > 1:
                opts.reduceOp = dist.ReduceOp.AVG
        return self._work(what, made, tensors, into, divisor=divisor if divides else 1)

    def _divisor(self, tensors: Sequence[torch.Tensor], op: Any) -> int:
        """Return the number to divide a sum by here: Gloo itself averages only floats."""
        whole = any(not (t.is_floating_point() or t.is_complex()) for t in tensors)
        return self.group.size() if whole and operation_of(op) == "AVG" else 1

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
        """Sum all on all ranks, as Gloo's reduce_scatter does: that has no futures; some shapes crash it."""
        how, divisor = c10d.AllreduceOptions(), self._divisor(whole, opts.reduceOp)
        how.reduceOp = opts.reduceOp if divisor == 1 else dist.ReduceOp.SUM
        rank = self.group.rank()
        own = [t.reshape(self.group.size(), -1)[rank] for t in whole]
        futures = [self._future(self.group.allreduce([t], how)) for t in whole]
        return self._awaited("reduce_scatter", futures, outputs, own, divisor=divisor)

    # Copies

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        into = [_sendable(t) for t in tensors]
        return self._work("broadcast", self.group.broadcast(into, opts), tensors, into)

    def all_gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        into = [[_sendable(t) for t in row] for row in outputs]
        flat, filled = ([t for row in rows for t in row] for rows in (outputs, into))
        return self._awaited("all_gather", self._gathered(into, inputs), flat, filled)

    def all_gather_into(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Work:
        into = [_flat(_sendable(t)) for t in outputs]
        rows = [list(whole.split(whole.numel() // self.group.size() or 1)) for whole in into]
        return self._awaited("all_gather", self._gathered(rows, inputs), outputs, into)

    def _gathered(
        self, rows: Sequence[list[torch.Tensor]], inputs: Sequence[torch.Tensor]
    ) -> list[Future[Any]]:
        return [
            self._future(self.group.allgather([[one.view(-1) for one in row]], [_flat(_sendable(t))]))
            for row, t in zip(rows, inputs, strict=True)
            if t.numel()
        ]

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Work:
        require_dense([*inputs, *(t for row in outputs for t in row)], "gather")
        into = [[_sendable(t) for t in row] for row in outputs]
        made = self.group.gather(into, [_sendable(t) for t in inputs], opts)
        return self._work(
            "gather", made, [t for row in outputs for t in row], [t for row in into for t in row]
        )

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Work:
        require_dense([*outputs, *(t for row in inputs for t in row)], "scatter")
        into = [_sendable(t) for t in outputs]
        made = self.group.scatter(into, [[_sendable(t) for t in row] for row in inputs], opts)
        return self._work("scatter", made, outputs, into)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any) -> Work:
        require_dense([*outputs, *inputs], "all_to_all")
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
        require_dense([output, source], "all_to_all")
        into = _rows(output)
        made = self.group.alltoall_base(into, _rows(source), list(output_sizes), list(input_sizes), opts)
        return self._work("all_to_all", made, [output], [into])

    def send(self, tensors: Sequence[torch.Tensor], rank: int, tag: int) -> Any:
        """Send at once, beside all other calls: ranks may send before they receive."""
        require_dense(tensors, "send")
        return self._passed(self.group.send([_sendable(t) for t in tensors], rank, tag))

    def recv(self, tensors: Sequence[torch.Tensor], rank: int, tag: int) -> Any:
        return self._received(tensors, lambda into: self.group.recv(into, rank, tag))

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> Any:
        return self._received(tensors, lambda into: self.group.recv_anysource(into, tag))

    # Barriers

    def barrier(self, opts: Any = None) -> Work:
        made = self.group.barrier(opts or c10d.BarrierOptions())
        return self._work("barrier", made, [], [])

    def monitored_barrier(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Wait for all ranks; the error names those that do not come."""
        self._barriers += 1
        try:
            self.group.monitored_barrier(timeout, wait_all_ranks)
        except RuntimeError:
            self.require_open()
            raise
        finally:
            self._barriers -= 1

    # What is under way

    def _received(self, tensors: Sequence[torch.Tensor], call: Callable[[list[torch.Tensor]], Any]) -> Any:
        require_dense(tensors, "recv")
        into = [_sendable(t) for t in tensors]
        return self._passed(call(into), tensors, into)

    def _passed(
        self, made: Any, outputs: Sequence[torch.Tensor] = (), filled: Sequence[torch.Tensor] = ()
    ) -> _Passed:
        work = _Passed(made, outputs, filled, self.require_open)
        self._raw.add(work)
        return work

    def _work(
        self,
        what: str,
        made: Any,
        outputs: Sequence[torch.Tensor],
        filled: Sequence[torch.Tensor],
        *,
        divisor: int = 1,
    ) -> Work:
        """Return the work of Gloo's `made`. Gloo fills `filled`, from which `outputs` get their elements."""
        work = self._awaited(what, [self._future(made)], outputs, filled, divisor=divisor)
        work.made = made
        return work

    def _awaited(
        self,
        what: str,
        futures: Sequence[Future[Any]],
        outputs: Sequence[torch.Tensor],
        filled: Sequence[torch.Tensor],
        *,
        divisor: int = 1,
    ) -> _GloosWork:
        def finish(_: list[Any]) -> None:
            for one in filled if divisor > 1 else ():
                one.div_(divisor, rounding_mode="trunc")  # as the network and the ring do
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
    """A collective's work, which knows the sender where Gloo does."""

    made: Any = None

    def source_rank(self) -> int:
        return int(self.made._source_rank())

    _source_rank = source_rank


class _Passed(dist.Work):  # type: ignore[misc]
    """A send or receive. Gloo's own work has no future, so `wait` copies what was received into `outputs`.

    `require_open` raises an error if Gloo was aborted.
    """

    def __init__(
        self,
        made: Any,
        outputs: Sequence[torch.Tensor],
        filled: Sequence[torch.Tensor],
        require_open: Callable[[], None],
    ) -> None:
        super().__init__()
        self._made, self._outputs, self._filled = made, outputs, filled
        self._require_open = require_open
        self._is_over = False

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if not self._is_over:
            try:
                self._made.wait(timeout)
            except RuntimeError:
                self._require_open()
                raise
            _put_back(self._outputs, self._filled)
            self._is_over = True
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._is_over or bool(self._made.is_completed())

    def is_success(self) -> bool:
        return bool(self._made.is_success())

    def exception(self) -> Any:
        return self._made.exception()

    def source_rank(self) -> int:
        return int(self._made._source_rank())

    _source_rank = source_rank


def _tell(made: Any, future: Future[Any]) -> None:
    """End `future` once Gloo's work is done. Its own future is done before that has told the profiler so.

    A caller that went on in between, and ended the profiler, had a segmentation fault.
    """
    with suppress(InvalidStateError):  # aborted meanwhile
        try:
            made.wait()
        except RuntimeError as error:
            future.set_exception(error)
        else:
            future.set_result(None)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return dense(tensor).reshape(-1)


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    return dense(tensor) if tensor.dtype in _COPIED else _flat(tensor).view(torch.uint8)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as `_sendable` does, but keep the first dimension, which is split over ranks."""
    rows = dense(tensor)
    if tensor.dtype in _COPIED:
        return rows
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:])).view(torch.uint8)


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.data_ptr() == other.data_ptr())


def _put_back(tensors: Sequence[torch.Tensor], filled: Sequence[torch.Tensor]) -> None:
    """Give tensors the elements that Gloo has put into dense copies, or into sparse tensors of its own."""
    for tensor, one in zip(tensors, filled, strict=True):
        if tensor.is_sparse:
            with torch.no_grad():
                tensor.copy_(one)  # other indices, and more of them
        elif not _shares(tensor, one):
            elements = one if one.dtype == tensor.dtype else one.reshape(-1).view(tensor.dtype)
            tensor.detach().copy_(elements.reshape(tensor.shape))


def _gloo(
    store: dist.Store, *, rank: int, size: int, timeout: timedelta, controller: str, interface: str | None
) -> dist.ProcessGroupGloo:
    """Create Gloo on the management network, without GLOO_SOCKET_IFNAME: that may name the job's links."""
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
