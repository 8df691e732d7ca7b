"""A process group: a job of its own, and Gloo over the management network for what no switch adds.

- all_reduce, reduce, reduce_scatter: by the job for SUM, AVG, MAX and MIN of float32, float16, bfloat16 and
  int32, the rest by Gloo (`routes.py`);
- broadcast, all_gather: by the job, as bytes of any type, and barrier;
- gather, scatter, all_to_all, send and receive: by Gloo;
- all of a group that has more ranks on one machine than on another: by Gloo.

The default group's job is joined when the group is made, another's at its first collective. A group of one
rank has none (`alone.py`).
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

import torch
import torch.distributed as dist

from host_agent.error_feedback import ErrorFeedback
from host_agent.errors import CommunicatorError, UsageError
from host_agent.front import Collectives
from host_agent.machine.communicator import MachineCommunicator
from host_agent.wire.aggregation import Reduction
from p4reduce import torch_environment as environment
from p4reduce.torch import completion
from p4reduce.torch.alone import Alone
from p4reduce.torch.by_gloo import ByGloo
from p4reduce.torch.line import Call, Line
from p4reduce.torch.routes import Routes, operation_of
from p4reduce.torch.transfer import Staging, Transfer
from p4reduce.torch.views import numbers, raw, require_dense
from p4reduce.torch.work import Work

_LOG = logging.getLogger("p4reduce.torch")
Tensors: TypeAlias = Sequence[torch.Tensor]
_CPU: Final = torch.device("cpu")
_ALL_HERE_S: Final = 60.0  # they have just met at PyTorch's store
# DDP's join() gives C++ the work of an all_reduce of one number, of which C++ keeps its own part alone: where
# nobody in Python has it any more, it waits for ever. C++ waits for it after the forward pass, which may have
# such calls, too.
_SMALL_KEPT: Final = 1024
_SMALL_BYTES: Final = 16
_LEAVING_S: Final = 5.0  # at the interpreter's exit


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for `init_process_group("p4reduce", pg_options=...)`, in place of environment variables.

    `controller`: "host:port" (None: P4REDUCE_CONTROLLER). `job`: its name (None: P4REDUCE_JOB, or the
    launcher's name for the run). `wire` "16bit": all_reduce sends sums of float32 in half of their bytes.
    `gloo_interface`: the one that Gloo uses (None: the one that leads to the controller).
    `intra_rate_bit_s`: between the GPUs of a machine (None: P4REDUCE_INTRA_RATE, or as fast as memory is).
    The others are as in `Communicator.join`. `join_timeout_s` None is at most a minute for the default group.
    For others it is the group's time-out: their ranks need not come to the first collective together.
    """

    controller: str | None = None
    job: str | None = None
    wire: str = "full"
    interface: str | None = None
    gloo_interface: str | None = None
    path_mtu: int | None = None
    selective: bool | None = None
    tenant: str = ""
    join_timeout_s: float | None = None
    intra_rate_bit_s: float | None = None

    def address(self) -> str:
        """Return the controller's address; raise UsageError where none is given."""
        controller = self.controller or os.environ.get(environment.CONTROLLER, "")
        if not controller:
            raise UsageError(
                "p4reduce needs its controller's address: set P4REDUCE_CONTROLLER=HOST:PORT, or give "
                "pg_options=p4reduce.torch.Options(controller='HOST:PORT'); 'p4reduce torch' sets it"
            )
        return controller

    def inside(self) -> dict[str, Any]:
        """Return `MachineCommunicator.join`'s rate inside a machine; raise UsageError if it is no number."""
        said = os.environ.get(environment.INTRA_RATE, "")
        if self.intra_rate_bit_s is not None or not said:
            return {"intra_rate_bit_s": self.intra_rate_bit_s}
        try:
            return {"intra_rate_bit_s": float(said)}
        except ValueError as error:
            raise UsageError(f"{environment.INTRA_RATE} is bit/s, as 1e9: {said!r} is no number") from error


class Group:
    """Collectives for PyTorch's classes for a backend. All ranks call the same ones in the same order.

    `ranks`: numbers in the default group; empty for that group itself. Collectives return a Work, or None
    where the caller has to use Gloo, with the same arguments.
    """

    def __init__(
        self,
        store: dist.Store,
        *,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        ranks: Sequence[int],
        options: Options,
        join: Callable[..., Collectives] = MachineCommunicator.join,
    ) -> None:
        self.rank, self.size, self.name, self.timeout = rank, size, name, timeout
        self.options, self.store = options, store
        self._ranks = ranks or range(size)
        self._on_machine = environment.gpus_per_machine(os.environ)
        self._on_each = environment.ranks_on_each(self._ranks, self._on_machine)
        no_job = self._unevenness() if ranks and self._on_each is None else ""
        self.routes = Routes(name, says=rank == 0, no_job=no_job)
        self.controller = options.address()
        epoch = _epoch(store, size)
        self.job = _agreed_job(store, rank=rank, epoch=epoch, group=name if ranks else "", options=options)
        own = dist.PrefixStore(f"p4reduce/gloo/{epoch}", store)
        self._gloo = ByGloo(
            own,
            rank=rank,
            size=size,
            timeout=timeout,
            controller=self.controller,
            interface=options.gloo_interface,
            name=name,
            abort=self.abort,
        )
        self._join = join
        self._line = Line(name, self._joined, timeout_s=timeout.total_seconds(), lost=_default_groups_failure)
        self._staging: dict[torch.device, Staging] = {}
        self._under_way: weakref.WeakSet[Work] = weakref.WeakSet()
        self._small: deque[Any] = deque(maxlen=_SMALL_KEPT)
        completion.watch(self)
        if not ranks:
            global _default_group
            _default_group = weakref.ref(self)
        if size == 1:
            self._line.begin(0.0)
        elif not ranks:
            # What is wrong with it, the user hears at once.
            self._line.begin(min(_ALL_HERE_S, timeout.total_seconds()))
        if no_job:
            _end_with_default_group(self._gloo)

    @property
    def communicator(self) -> Collectives | None:
        """The job's communicator while it is joined, with its counters and statistics."""
        return self._line.communicator

    @property
    def gloo(self) -> ByGloo:
        """Gloo, for what no switch does. UsageError in a forked process, and after an abort."""
        self._line.require_own()
        self._gloo.require_open()
        return self._gloo

    @property
    def by_gloo(self) -> Mapping[str, int]:
        """Number of collectives that Gloo did in place of the job, by kind, type and operation."""
        return self.routes.by_gloo

    # Collectives

    def all_reduce(
        self,
        tensors: Tensors,
        op: Any,
        *,
        wire: str | None = None,
        feedback: ErrorFeedback | None = None,
    ) -> Work | None:
        """Reduce each tensor in place. `wire` (None: the options') and `feedback` are the Communicator's."""
        reduction = self._reduction("all_reduce", tensors, op)
        if reduction is None:
            return None
        wire = self._wire(tensors, reduction) if wire is None else wire

        def call(array: Any) -> Call:
            return lambda c: c.all_reduce(
                array, reduction, out=array, wire=wire, feedback=feedback, async_op=True
            )

        return self._in_place("all_reduce", tensors, self._numbers, call)

    def reduce(self, tensors: Tensors, op: Any, root: int) -> Work | None:
        """Reduce into the root's tensors; the other ranks' tensors stay as they are."""
        reduction = self._reduction("reduce", tensors, op)
        if reduction is None:
            return None

        def call(array: Any) -> Call:
            return lambda c: c.reduce(array, root, reduction, async_op=True)

        outputs = tensors if self.rank == root else []
        return self._out_of_place("reduce", tensors, self._numbers, call, [[t] for t in outputs], tensors)

    def broadcast(self, tensors: Tensors, root: int) -> Work | None:
        """Copy the root's bytes into all ranks' tensors."""
        require_dense(tensors, "broadcast")
        if not self.routes.copied("broadcast"):
            return None

        def call(array: Any) -> Call:
            return lambda c: c.broadcast(array, root, out=array, async_op=True)

        return self._in_place("broadcast", tensors, raw, call)

    def all_gather(self, outputs: Sequence[Tensors], inputs: Tensors) -> Work | None:
        """Gather each rank's `inputs[i]` in `outputs[i][rank]`."""
        for row, tensor in zip(outputs, inputs, strict=True):
            require_dense([*row, tensor], "all_gather")
            if len(row) != self.size or any(
                t.numel() != tensor.numel() or t.dtype != tensor.dtype for t in row
            ):
                raise ValueError(
                    f"all_gather: {self.size} outputs of {tensor.numel()} elements of {tensor.dtype} are "
                    f"needed, as the input is; given: {', '.join(f'{t.numel()} of {t.dtype}' for t in row)}"
                )
        if not self.routes.copied("all_gather"):
            return None
        return self._out_of_place(
            "all_gather", inputs, raw, _gather, outputs, [t for row in outputs for t in row]
        )

    def all_gather_into(self, outputs: Tensors, inputs: Tensors) -> Work | None:
        """Gather all ranks' `inputs[i]` in `outputs[i]`, one behind the other."""
        require_dense([*outputs, *inputs], "all_gather")
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.numel() != tensor.numel() * self.size or output.dtype != tensor.dtype:
                raise ValueError(
                    f"all_gather: an output of {self.size} times {tensor.numel()} elements of {tensor.dtype} "
                    f"is needed, not of {output.numel()} of {output.dtype}"
                )
        if not self.routes.copied("all_gather"):
            return None
        return self._out_of_place("all_gather", inputs, raw, _gather, [[t] for t in outputs], outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], op: Any) -> Work | None:
        """Put the reduction of all ranks' `inputs[i][rank]` into this rank's `outputs[i]`."""
        for row in inputs:
            if len({t.numel() for t in row}) > 1 or len(row) != self.size:
                raise ValueError(
                    f"reduce_scatter: {self.size} inputs of one size are needed; given are "
                    f"{', '.join(str(t.numel()) for t in row)} elements"
                )
        if self._reduction("reduce_scatter", [t for row in inputs for t in row], op) is None:
            return None
        joined = [torch.cat([t.detach().reshape(-1) for t in row]) for row in inputs]
        return self.reduce_scatter_into(outputs, joined, op)

    def reduce_scatter_into(self, outputs: Tensors, inputs: Tensors, op: Any) -> Work | None:
        """Put this rank's part of the reduction of `inputs[i]` into `outputs[i]`."""
        reduction = self._reduction("reduce_scatter", inputs, op)
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.numel() * self.size != tensor.numel() or output.dtype != tensor.dtype:
                raise ValueError(
                    f"reduce_scatter: an input of {self.size} times {output.numel()} elements of "
                    f"{output.dtype} is needed, not of {tensor.numel()} of {tensor.dtype}"
                )
        if reduction is None:
            return None

        def call(array: Any) -> Call:
            return lambda c: c.reduce_scatter(array, reduction, async_op=True)

        return self._out_of_place(
            "reduce_scatter", inputs, self._numbers, call, [[t] for t in outputs], outputs
        )

    def barrier(self) -> Work | None:
        """Begin a barrier: its work is over when all ranks are here."""
        if not self.routes.copied("barrier"):
            return None
        return self._work("barrier", [lambda c: c.barrier(async_op=True)], [], Transfer(None))

    def kept(self, work: Any, tensors: Tensors) -> Any:
        """Return the `work` of an async all_reduce, and keep it for C++ if its tensors are tiny."""
        if any(tensor.is_sparse for tensor in tensors):
            return work
        if sum(tensor.untyped_storage().nbytes() for tensor in tensors) <= _SMALL_BYTES:
            self._small.append(work)
        return work

    # The end

    def is_busy(self) -> bool:
        """Tell whether a collective is under way."""
        return self._gloo.is_busy() or any(not work.is_completed() for work in list(self._under_way))

    def may_wait(self) -> bool:
        """Tell whether a caller may be waiting in C++."""
        return self.is_busy() or self._gloo.may_wait()

    def leave(self) -> None:
        """Finish what is under way, and leave the job as the others do. Idempotent.

        PyTorch destroys all groups in a loop, so that a job that has ended already is only logged. Callers
        that wait for its collectives get the error.
        """
        self._leave("was destroyed", _ALL_HERE_S)

    def _leave(self, why: str, timeout_s: float) -> None:
        try:
            self._line.end(why, lambda communicator: communicator.leave(timeout_s=timeout_s))
        except CommunicatorError as error:
            _LOG.warning("process group %s has not left its job as agreed: %s", self.name, error)

    def abort(self, reason: str) -> None:
        """End the job for all of its ranks, which are told why."""
        if not self._line.is_own:
            return
        reason = f"rank {self.rank}: {reason}"
        self._line.end(f"was aborted: {reason}", lambda communicator: communicator.abort(reason))
        self._gloo.abort(reason)

    def at_exit(self) -> None:
        """Leave or abort the job at the interpreter's exit, so that no other rank waits for this one."""
        if not self._line.is_own:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is not None:
            self.abort(f"its process ended with {type(error).__name__}: {error}")
        elif self.is_busy():
            self.abort("its process ended while collectives were under way")
        else:
            self._leave("ended with its process", _LEAVING_S)

    # Calls of the job

    def _reduction(self, kind: str, tensors: Tensors, op: Any) -> Reduction | None:
        if kind == "all_reduce" and any(tensor.is_sparse for tensor in tensors):
            self.routes.sparse(kind, tensors, op)
            return None
        require_dense(tensors, kind)
        if self.size == 1 and operation_of(op) != "PREMUL_SUM":
            return Reduction.SUM
        return self.routes.reduction(kind, tensors, op)

    def _numbers(self, tensor: torch.Tensor) -> Any:
        return raw(tensor) if self.size == 1 else numbers(tensor)  # there is nothing to add

    def _wire(self, tensors: Tensors, reduction: Reduction) -> str:
        sums = reduction in (Reduction.SUM, Reduction.AVG)
        return self.options.wire if sums and all(t.dtype == torch.float32 for t in tensors) else "full"

    def _transfer(self, tensors: Tensors) -> Transfer:
        device = tensors[0].device if tensors else _CPU
        if device.type == "cpu":
            return Transfer(None)
        if device not in self._staging:
            self._staging[device] = Staging(device)
        return Transfer(self._staging[device])

    def _in_place(
        self, what: str, tensors: Tensors, view: Callable[[torch.Tensor], Any], call: Callable[[Any], Call]
    ) -> Work:
        """Begin a collective in place. A contiguous tensor of a CPU is used without a copy."""
        transfer = self._transfer(tensors)
        hosts = [transfer.host(tensor) for tensor in tensors]

        def finish(_: list[Any]) -> None:
            for tensor, host in zip(tensors, hosts, strict=True):
                transfer.back(tensor, host)

        return self._work(what, [call(view(host)) for host in hosts], tensors, transfer, finish)

    def _out_of_place(
        self,
        what: str,
        inputs: Tensors,
        view: Callable[[torch.Tensor], Any],
        call: Callable[[Any], Call],
        rows: Sequence[Tensors],
        outputs: Tensors,
    ) -> Work:
        """Begin a collective. `rows[i]`: the tensors that get equal parts of the result of `inputs[i]`."""
        transfer = self._transfer(inputs)
        calls = [call(view(transfer.host(tensor))) for tensor in inputs]

        def finish(results: list[Any]) -> None:
            for row, result in zip(rows, results, strict=False):  # there are none but at a root
                parts = result.reshape(len(row), -1)
                for tensor, part in zip(row, parts, strict=True):
                    transfer.fill(tensor, part)

        return self._work(what, calls, outputs, transfer, finish)

    def _work(
        self,
        what: str,
        calls: Sequence[Call],
        outputs: Tensors,
        transfer: Transfer,
        finish: Callable[[list[Any]], None] | None = None,
    ) -> Work:
        with torch.profiler.record_function(f"p4reduce:{what}"):
            work = Work(
                [self._line.call(call, transfer.ready) for call in calls],
                list(outputs),
                what=f"{what} of process group {self.name}",
                abort=self.abort,
                finish=finish,
                transfer=transfer,
            )
        self._under_way.add(work)
        return work

    def _joined(self, timeout_s: float) -> Collectives:
        if self.size == 1:
            return cast("Collectives", Alone())
        options, gpus = self.options, self._gpus_per_host()
        communicator = self._join(
            self.controller,
            job=self.job,
            rank=self.rank,
            world_size=self.size,
            interface=options.interface,
            path_mtu=options.path_mtu,
            timeout_s=self.timeout.total_seconds(),
            join_timeout_s=timeout_s if options.join_timeout_s is None else options.join_timeout_s,
            selective=options.selective,
            tenant=options.tenant,
            **({} if gpus == 1 else {"gpus_per_host": gpus, **options.inside()}),
        )
        communicator.on_end(self._hear_end)
        return communicator

    def _gpus_per_host(self) -> int:
        """Return the number of the group's ranks on each machine; raise UsageError where it differs."""
        if self._on_each is None:
            raise UsageError(
                f"process group {self.name}: {self._unevenness()}: start as many on each machine, or make "
                "the group with backend='gloo'"
            )
        return self._on_each

    def _unevenness(self) -> str:
        return (
            f"not all machines (of {self._on_machine} ranks) have as many of its ranks "
            f"{', '.join(map(str, self._ranks))}, one machine after the other"
        )

    def _hear_end(self, error: CommunicatorError) -> None:
        """Abort Gloo when the job has ended: its collectives would wait for ranks that are gone."""
        completion.completer.put(lambda: self._gloo.abort(str(error)))


_default_group: Callable[[], Group | None] = lambda: None  # noqa: E731 (a weak reference later)


def default_group() -> Group | None:
    """Return the group of all ranks; None before it is made, and once nobody refers to it."""
    return _default_group()


def _default_groups_failure() -> CommunicatorError | None:
    """Return the failure of the default group's job, if any: after it, ranks join no other group either."""
    group = default_group()
    communicator = None if group is None or group.size == 1 else group.communicator
    return None if communicator is None else communicator.failure


def _end_with_default_group(gloo: ByGloo) -> None:
    """Abort `gloo` when the default group's job ends: its group has no job that would tell of a lost rank."""
    group = default_group()
    communicator = None if group is None or group.size == 1 else group.communicator
    if communicator is not None:
        kept = weakref.ref(gloo)

        def hear(error: CommunicatorError) -> None:
            if (still := kept()) is not None:
                completion.completer.put(lambda: still.abort(str(error)))

        communicator.on_end(hear)


def _gather(array: Any) -> Call:
    return lambda c: c.all_gather(array, async_op=True)


def _epoch(store: dist.Store, size: int) -> int:
    """Return how many earlier groups had this store: groups may have the name and store of earlier ones."""
    return (int(store.add("p4reduce/epoch", 1)) - 1) // size


def _agreed_job(store: dist.Store, *, rank: int, epoch: int, group: str, options: Options) -> str:
    """Return the job's name, which the group's first rank chooses."""
    key = f"p4reduce/job/{epoch}"
    if rank == 0:
        default = default_group() if group else None
        base = options.job or environment.job_of(os.environ) or (default.job if default is not None else "")
        base = base or f"torch-{os.urandom(4).hex()}"
        store.set(key, "".join([base, f":{group}" if group else "", f"@{epoch + 1}" if epoch else ""]))
    return bytes(store.get(key)).decode()
