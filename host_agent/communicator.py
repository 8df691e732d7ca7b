"""The Communicator: a worker's collectives on NumPy arrays, one after the other, as calls or as futures."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import numpy as np

from controller.api.messages import Gang, Mode, Ready
from controller.security import tokens
from controller.security.files import TlsFiles, tls_files
from host_agent import joining, metrics, status
from host_agent.adapters import Transport
from host_agent.arguments import (
    by_switch_or_ring,
    contiguous,
    name_of,
    reducible,
    require_root,
    require_rows_for,
    result_array,
    strategy_of,
    wire_of,
)
from host_agent.collectives import in_network, ring
from host_agent.collectives.plan import Array, Call, Steps, Strategy, Wire, cheaper, choose
from host_agent.error_feedback import ErrorFeedback
from host_agent.errors import (
    CommunicatorClosedError,
    CommunicatorError,
    MismatchError,
    RingFallbackWarning,
    UsageError,
)
from host_agent.execution import Begun, Execution, QueuePairs, Task, Turn
from host_agent.membership import Membership, MembershipChange, View
from host_agent.metrics import Statistics
from host_agent.runner import Link, Runner
from host_agent.tensors import Mapped, as_arrays
from host_agent.transport.events import Counters
from host_agent.wire.aggregation import Kind, Reduction

__all__ = ["Communicator", "RingFallbackWarning"]

P = ParamSpec("P")
T = TypeVar("T")
Makes: TypeAlias = "Callable[Concatenate[Any, P], Turn[T]]"


class Collective(Protocol[P, T]):
    """A collective as users call it: it waits for the result, or returns a future with `async_op`."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def __call__(self, *args: Any, async_op: Literal[False], **kwargs: Any) -> T: ...
    @overload
    def __call__(self, *args: Any, async_op: Literal[True], **kwargs: Any) -> Future[T]: ...
    @overload
    def __call__(self, *args: Any, async_op: bool, **kwargs: Any) -> T | Future[T]: ...


class Turns(Protocol):
    """Runs collectives in the order of the calls: now, or as a future."""

    def now(self, task: Any, /) -> Any: ...
    def later(self, task: Any, /) -> Future[Any]: ...


class _Method(Protocol[P, T]):
    def __get__(self, communicator: Communicator, owner: type) -> Collective[P, T]: ...


def collective(makes: Makes[P, T]) -> _Method[P, T]:
    """A method that runs the task that `makes` returns: now, or with `async_op` in the queue's turn."""

    def method(self: Communicator, /, *args: Any, async_op: bool = False, **kwargs: Any) -> T | Future[T]:
        args, kwargs, back = as_arrays(args, kwargs)
        task = makes(self, *args, **kwargs)
        if back is None:
            return self._turns.later(task) if async_op else self._turns.now(task)
        return Mapped(self._turns.later(task), back) if async_op else back(self._turns.now(task))

    signature, named, name = inspect.signature(makes), cast("Any", method), makes.__name__[1:]
    result = signature.return_annotation.partition("[")[2].removesuffix("]")
    option = inspect.Parameter("async_op", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool")
    named.__name__, named.__qualname__, named.__doc__ = name, f"Communicator.{name}", makes.__doc__
    named.__signature__ = signature.replace(
        parameters=[*signature.parameters.values(), option],
        return_annotation=f"{result} | Future[{result}]",
    )
    return cast("_Method[P, T]", method)


def _deprecated(name: str) -> Callable[..., Future[Any]]:
    """The collective's old asynchronous twin."""

    def method(self: Communicator, /, *args: Any, **kwargs: Any) -> Future[Any]:
        warnings.warn(
            f"{name}_async is deprecated and goes with 1.0: call {name}(..., async_op=True)",
            DeprecationWarning,
            stacklevel=2,
        )
        future: Future[Any] = getattr(self, name)(*args, async_op=True, **kwargs)
        return future

    method.__name__, method.__qualname__ = f"{name}_async", f"Communicator.{name}_async"
    method.__doc__ = f"`{name}(..., async_op=True)`. Deprecated."
    return method


class Communicator(AbstractContextManager["Communicator"]):
    """One worker of a job of `world_size` workers, and its collectives.

    Every worker has to call the same collectives in the same order, with the same numbers of elements,
    element types, reductions, roots and strategies; if they differ, every worker gets a MismatchError.
    Results have the same bits on all ranks. Calls raise CommunicatorError. After a UsageError the
    communicator stays usable; after any other error it does not, and the job has ended for all.

    PyTorch's tensors may stand for arrays. Then the result is a new tensor, on the same device; as with
    arrays, the input stays as it is, unless it is `out` too: all_reduce(t, out=t) is in place. Autograd does
    not see it. torch.distributed's own calls go by the backend (docs/pytorch.md).

    Collectives wait for their result. With `async_op=True` they return a Future and run in the order of the
    calls. Do not change an array before its future is done. A future's callbacks may call collectives only
    with `async_op=True`.

    The controller may move a running job between ring and switch, between two collectives. `mode` and
    `mode_reason` tell how the next collective travels, `ready` how the job began. If it does not travel
    through the switch, `join` or the next call warns with the reason (RingFallbackWarning).

    The job outlives its switches: if one lost its state, or is away for long, all workers go on under a new
    generation, by ring if need be. Callers only see that it takes longer. An elastic job outlives workers,
    too: `rank` and `world_size` change, and `on_change` tells. All finish an interrupted collective with the
    dead worker's contribution, or all run it again without it, as if called now: all_gather's result has one
    row for each worker left, AVG divides by their number, and it is a UsageError if the root has died or
    reduce_scatter's rows cannot be divided any more.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        ready: Ready,
        link: Link,
        membership: Membership,
        timeout_s: float | None = None,
        strategy: Strategy | str = Strategy.AUTO,
        transport: Transport = Transport.USERSPACE,
        queue_pairs: QueuePairs | None = None,
        gang: Gang | None = None,
    ) -> None:
        self.ready = ready
        self.is_in_elastic_gang = gang is not None and ready.lease_s > 0
        self.transport = transport
        self.strategy = strategy_of(strategy)
        self._membership = membership
        self._left = False
        self._metrics: metrics.Exposed | None = None
        self.machine_status: Callable[[], dict[str, Any]] | None = None  # of host_agent.machine
        self._execution = Execution(
            View.first(rank, world_size, ready.ring),
            ready,
            Runner(link, rank=rank, timeout_s=timeout_s),
            membership,
            queue_pairs,
            is_in_elastic_gang=self.is_in_elastic_gang,
        )
        self._turns: Turns = self._execution
        if ready.mode is Mode.RING and world_size > 1:
            try:
                warnings.warn(
                    f"this job is not summed by the switch but by ring all-reduce: {ready.mode_reason}",
                    RingFallbackWarning,
                    stacklevel=3,
                )
            except RingFallbackWarning as error:  # made an error by a filter: the others wait for this worker
                self.abort(f"rank {rank} is not to be summed by ring: {error}")
                raise

    @classmethod
    def join(
        cls,
        controller: str,
        *,
        job: str,
        rank: int,
        world_size: int,
        interface: str | None = None,
        path_mtu: int | None = None,
        strategy: Strategy | str = Strategy.AUTO,
        timeout_s: float | None = None,
        join_timeout_s: float = 60.0,
        retry_limit: int = 0,
        transport: Transport | str = Transport.AUTO,
        first_psn: int | None = None,
        tenant: str = "",
        metrics_address: str | None = None,
        tls: TlsFiles | Path | str | None = None,
        join_token: str | None = None,
        elastic: bool = False,
        selective: bool | None = None,
        gang: Gang | None = None,
    ) -> Communicator:
        """Join `job` at the controller ("host:port"); waits until all `world_size` workers have joined.

        `interface` carries RoCE (None: the only one that can). `path_mtu` caps the job's path MTU (None:
        what the link carries). A collective waits for slow workers for as long as the job lives: the
        controller ends it when a worker dies. `timeout_s` also ends it after so long without progress
        (CollectiveTimeoutError), `retry_limit` after so many retransmission timeouts in a row on a connection
        (0: never). Errors: InterfaceError, JobRefusedError, ControllerUnreachableError.

        `transport`: "userspace" speaks RoCE v2 itself on a raw socket. "verbs" leaves it to the interface's
        RDMA device (needs pyverbs, see `host_agent.transport.verbs`); the controller's timeouts and retry
        counts then replace `retry_limit`. "auto" is "verbs" if the interface has a device and pyverbs is
        installed. Workers of one job may differ. `first_psn`: of the connection to the next rank (None:
        random). `tenant`: the job counts against this tenant's quota of slots; the same on all workers
        (empty: the default tenant).

        `metrics_address`: a thread serves this worker's metrics to Prometheus there while it is in the job,
        "HOST:PORT" or "unix:/PATH" (None: the address, or directory for a Unix socket, in the environment's
        P4REDUCE_METRICS; empty: nowhere, without a thread).

        `tls`: this worker's certificate for the controller, as files or as a directory with ca.pem, cert.pem
        and key.pem (None: the directory that P4REDUCE_TLS_DIR names, else no TLS; empty: no TLS).
        `join_token`: the token that the job was created with, or that its first worker brought; the
        controller refuses workers with another one (None: P4REDUCE_JOIN_TOKEN; empty: none). See
        docs/security.md.

        `elastic`: the job goes on without workers that die (the same on all workers); otherwise a death ends
        it for all (WorkerLostError).

        `selective`: repeat only lost packets (True), or everything sent after them too, as RDMA devices do
        (False: so do all workers then). None: the former, unless a worker of the job is on an RDMA device;
        `ready.selective` tells. JobRefusedError where True meets such a device.

        `gang`: the job is one of its planes (`host_agent.machine`, which joins them).
        """
        strategy = strategy_of(strategy)
        where = metrics.where(metrics_address)
        place = joining.join(
            controller,
            job=job,
            rank=rank,
            world_size=world_size,
            interface=interface,
            path_mtu=path_mtu,
            timeout_s=join_timeout_s,
            retry_limit=retry_limit,
            transport=transport,
            first_psn=first_psn,
            tenant=tenant,
            tls=tls_files(tls),
            join_token=tokens.from_environment() if join_token is None else join_token,
            elastic=elastic,
            selective=selective,
            gang=gang,
        )
        communicator = cls(
            rank=rank,
            world_size=world_size,
            ready=place.ready,
            link=place.link,
            membership=place.membership,
            timeout_s=timeout_s,
            strategy=strategy,
            transport=place.queue_pairs.adapter.transport,
            queue_pairs=place.queue_pairs,
            gang=gang,
        )
        if where is not None:
            try:
                communicator._metrics = where.expose(communicator, job=job)
            except UsageError as error:
                communicator.abort(str(error))  # its peers wait for it
                raise
        return communicator

    @property
    def rank(self) -> int:
        """This worker's number among those that the job has now, from 0."""
        return self._execution.member.view.rank

    @property
    def world_size(self) -> int:
        """How many workers the job has now."""
        return self._execution.member.view.world_size

    @property
    def members(self) -> tuple[int, ...]:
        """By rank, the rank that each worker joined with."""
        return self._execution.member.view.members

    @property
    def generation(self) -> int:
        """The number under which the job has its connections now; never the same twice."""
        return self._execution.member.generation

    def on_change(self, callback: Callable[[MembershipChange], None]) -> None:
        """Call `callback` whenever an elastic job goes on without workers that died.

        One thread makes these calls, one after the other. Collectives called before the change may or may not
        be done by then.
        """
        self._execution.on_change(callback)

    def on_end(self, callback: Callable[[CommunicatorError], None]) -> None:
        """Call `callback`, which must not block, with the reason when the job has ended early for all.

        The call comes from any thread, whether or not a collective runs, at once if the job has ended
        already, and at most twice.
        """
        self._execution.on_end(callback)

    @property
    def failure(self) -> CommunicatorError | None:
        """Why the job has ended early, even if no collective has raised it yet."""
        failure = self._execution.ended or self._execution.failure
        return failure if isinstance(failure, CommunicatorError) else None

    @property
    def mode(self) -> Mode:
        """Whether the switch or the ring makes the job's sums now."""
        return self._execution.member.mode

    @property
    def mode_reason(self) -> str:
        """Why not in the network; empty if they are."""
        return self._execution.member.mode_reason

    def _all_reduce(
        self,
        array: Array,
        op: Reduction | str = Reduction.SUM,
        *,
        out: Array | None = None,
        strategy: Strategy | str | None = None,
        wire: Wire | str = Wire.FULL,
        feedback: ErrorFeedback | None = None,
    ) -> Turn[Array]:
        """The element-wise SUM, AVG, MAX, MIN or PROD over all ranks, of integers and floats.

        Products, int64 and float64 go by ring: no switch can make those. All ranks give one shape. `out`
        (C-contiguous) takes the result; it may be `array` itself, but not overlap it in part. Integers wrap
        like NumPy's and AVG rounds them towards zero; sums of floats in the network are within
        `quantisation.error_bound` of the exact ones.

        `wire` "16bit" (SUM and AVG, the same on all ranks) sends float32 through the switch in half the
        bytes, rounded to 11 bits (from (2 - 2**-11) * 2**127 on to infinity). The rounding errors go into the
        next call with the same `feedback`. By ring, and if all ranks' tensors together are small, floats
        travel unchanged.
        """
        source, reduction = reducible(array, op)
        width = wire_of(wire, source.dtype, reduction, feedback)
        result = result_array(out, source)
        how = self._choice(strategy, Kind.ALL_REDUCE, source, reduction)
        what = f"all_reduce({reduction.name}) of {source.size} {name_of(source.dtype)}"
        if width is Wire.HALF:
            what += " over 16 bits"
        if feedback is not None:
            feedback.require(source, self._execution)
            begin = feedback.begin(source.reshape(-1), result, self._execution)
            return Task(what, reduction, how, begin, _as_it_is)
        place = result if out is not None and _is_same(result, source) else None
        flat, into = source.reshape(-1), result.reshape(-1)

        begun = Begun(
            lambda call, strategy: algorithm_of(strategy).all_reduce(
                call if width is Wire.FULL else replace(call, wire=width), flat, into
            ),
            result,
            place,
        )
        return Task(what, reduction, how, lambda view: begun, _as_it_is)

    def _reduce(
        self,
        array: Array,
        root: int = 0,
        op: Reduction | str = Reduction.SUM,
        *,
        strategy: Strategy | str | None = None,
    ) -> Turn[Array | None]:
        """As `all_reduce`, but only `root` gets the result; the others get None."""
        member = self._member(root)
        source, reduction = reducible(array, op)
        what = f"reduce({reduction.name}) of {source.size} {name_of(source.dtype)} to rank {member}"
        return Task(
            what,
            reduction,
            self._choice(strategy, Kind.REDUCE, source, reduction),
            _rooted("reduce", source, np.empty_like(source), member, what),
            lambda result: result if self._execution.member.view.member == member else None,
        )

    def _broadcast(
        self,
        array: Array,
        root: int = 0,
        *,
        out: Array | None = None,
        strategy: Strategy | str | None = None,
    ) -> Turn[Array]:
        """`root`'s array on every rank, bit for bit; other ranks give shape and dtype (any fixed-size)."""
        source, member = contiguous(array), self._member(root)
        what = f"broadcast of {source.size} {source.dtype} from rank {root}"
        return Task(
            what,
            Reduction.NONE,
            self._choice(strategy, Kind.BROADCAST, source),
            _rooted("broadcast", source, result_array(out, source), member, what),
            _as_it_is,
        )

    def _all_gather(self, array: Array, *, strategy: Strategy | str | None = None) -> Turn[Array]:
        """All ranks' arrays (one shape, any fixed-size dtype), stacked: (world_size, *array.shape)."""
        source = contiguous(array)
        return Task(
            f"all_gather of {source.size} {source.dtype}",
            Reduction.NONE,
            self._choice(strategy, Kind.ALL_GATHER, source),
            lambda view: _begun(
                "all_gather", source, np.empty((view.world_size, *source.shape), source.dtype)
            ),
            _as_it_is,
        )

    def _reduce_scatter(
        self, array: Array, op: Reduction | str = Reduction.SUM, *, strategy: Strategy | str | None = None
    ) -> Turn[Array]:
        """This rank's block of the reduction: rows rank·n/N to (rank + 1)·n/N of n; N divides n."""
        source, reduction = reducible(array, op)

        def begin(view: View) -> Begun:
            rows = require_rows_for(view.world_size, source.shape)
            return _begun("reduce_scatter", source, np.empty((rows, *source.shape[1:]), source.dtype))

        view = self._execution.member.view
        if view.members == tuple(range(view.world_size)):
            require_rows_for(view.world_size, source.shape)
        # Else when it starts: others may have called it before workers died.
        what = f"reduce_scatter({reduction.name}) of {source.size} {source.dtype}"
        how = self._choice(strategy, Kind.REDUCE_SCATTER, source, reduction)
        return Task(what, reduction, how, begin, _as_it_is)

    def _barrier(self) -> Turn[None]:
        """Return when all ranks have called it."""
        how = self._choice(None, Kind.BARRIER, np.empty(0, np.int32))
        begun = Begun(lambda call, strategy: algorithm_of(strategy).barrier(call), np.empty(0))
        return Task("barrier", Reduction.NONE, how, lambda view: begun, lambda result: None)

    all_reduce = collective(_all_reduce)
    reduce = collective(_reduce)
    broadcast = collective(_broadcast)
    all_gather = collective(_all_gather)
    reduce_scatter = collective(_reduce_scatter)
    barrier = collective(_barrier)

    def submit(
        self,
        what: str,
        kind: Kind,
        array: Array,
        result: Array,
        steps: Callable[[Call, Strategy], Steps[Any]],
        *,
        strategy: Strategy | str | None = None,
        reduction: Reduction = Reduction.NONE,
        gang_renewal: int = 0,
    ) -> Future[Array]:
        """A collective of one's own, of all workers, in its turn; the future has `result`.

        `steps(call, strategy)` are operations as in `host_agent.collectives`. The strategy is chosen as for
        `kind` of `array`, which, with `what`, tells the call from others. `gang_renewal`: as in `Task`.
        """
        begun = Begun(lambda call, chosen: steps(call.named(kind, array), chosen), result)
        how = self._choice(strategy, kind, array, reduction)
        return self._execution.later(Task(what, reduction, how, lambda view: begun, _as_it_is, gang_renewal))

    def begins_gang_collective(self) -> tuple[int, View]:
        """As `Execution`'s, and the next two."""
        return self._execution.begins_gang_collective()

    def is_begun_anew(self, gang_renewal: int) -> bool:
        """Whether what an elastic gang began after that renewal is dropped."""
        return self._execution.is_begun_anew(gang_renewal)

    def finish_gang_collective(self, gang_renewal: int, what: str) -> None:
        """A collective of all GPUs has its result here. BegunAnewError."""
        self._execution.finish_gang_collective(gang_renewal, what)

    all_reduce_async, reduce_async = _deprecated("all_reduce"), _deprecated("reduce")
    broadcast_async, all_gather_async = _deprecated("broadcast"), _deprecated("all_gather")
    reduce_scatter_async, barrier_async = _deprecated("reduce_scatter"), _deprecated("barrier")

    def counters(self) -> Counters:
        """The connection's counters, over all generations."""
        return self._execution.runner.counters()

    def statistics(self) -> Statistics:
        """Collectives run, time spent in them, and their traffic on the wire."""
        wire, tally = self.counters(), self._execution.tally
        return Statistics(
            **asdict(tally),
            bytes_sent=wire.data_bytes_sent,
            packets_sent=wire.data_packets_sent,
            retransmissions=wire.retransmitted_packets,
            duplicates=wire.duplicates_received,
            timeouts=wire.timeouts,
            renewals=self._execution.member.renewals,
            ring_reason=self._execution.member.ring_reason,
        )

    def status(self, job: str) -> dict[str, Any]:
        """This worker's status, as `host_agent.status` has it."""
        failure = self._execution.failure or self._execution.ended
        return status.status(
            job=job,
            rank=self.rank,
            world_size=self.world_size,
            generation=self.generation,
            runner=self._execution.runner,
            member=self._execution.member,
            failure="" if failure is None else str(failure),
            is_leaving=self._left,
            machine=None if self.machine_status is None else self.machine_status(),
        )

    def leave(self, *, timeout_s: float = 60.0) -> None:
        """Finish what is queued, wait until all workers leave, and close. Idempotent.

        MismatchError if another waits in a collective that this worker has not called, CollectiveTimeoutError
        if others have not left within `timeout_s`: that ends the job. After an error it only closes: the job
        has ended for everybody.
        """
        if self._left:
            return
        self._execution.require_other_thread("leave")
        self._left = True
        try:
            self._execution.close()
            if self._execution.failure is None and self._execution.ended is None:
                self._membership.leave(timeout_s=timeout_s, collectives=self._execution.collectives)
        finally:
            if self._metrics is not None:
                self._metrics.close()
            self._execution.take_down()
            self._membership.close()

    def abort(self, reason: str) -> None:
        """End the job for everybody, with `reason`; waiting collectives raise. Then close."""
        self._execution.fail(CommunicatorClosedError(f"this worker aborted the job: {reason}"), reason)
        self.leave()

    def fail_with(self, reason: str, plane: int) -> None:
        """As `abort`, because another GPU of this machine has failed, the one in that plane."""
        error = CommunicatorClosedError(f"this worker aborted the job: {reason}")
        self._execution.fail(error, reason, plane=plane)
        self.leave()

    def differ(self, error: MismatchError, what: str) -> None:
        """End the job for everybody: others have called something else than this worker, `what` in words.

        For those that know it without a packet, as the workers of one machine do.
        """
        self._execution.differ(error, what)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort(f"rank {self.rank} left with {type(error).__name__}: {error}")
        else:
            self.leave()

    def _member(self, root: int) -> int:
        """The worker with this rank now, by the rank it joined with; later another may have it."""
        view = self._execution.member.view
        require_root(root, view.world_size)
        return view.members[root]

    def _choice(
        self,
        strategy: Strategy | str | None,
        kind: Kind,
        array: Array,
        reduction: Reduction = Reduction.NONE,
    ) -> Callable[[Mode], Strategy]:
        """Chooses the strategy when the collective starts: the job may have moved or lost workers by then."""
        said = self.strategy if strategy is None else strategy_of(strategy)
        wanted = by_switch_or_ring(said, array.dtype, reduction)
        scaled = array.dtype != np.int32 and kind not in (Kind.BROADCAST, Kind.ALL_GATHER)

        def in_mode(mode: Mode) -> Strategy:
            auto = cheaper(kind, array.nbytes, self.world_size, scaled=scaled)
            try:
                return choose(wanted, mode, auto=auto)
            except ValueError as error:
                raise UsageError(f"{error}: {self.mode_reason}") from error

        return in_mode


def algorithm_of(strategy: Strategy) -> ModuleType:
    """The module with a strategy's collectives."""
    return in_network if strategy is Strategy.IN_NETWORK else ring


def _is_same(left: Array, right: Array) -> bool:
    """Whether two arrays have the same memory; the caller knows that they do not overlap in part."""
    return left is right or left.ctypes.data == right.ctypes.data


def _begun(name: str, source: Array, result: Array, **how: Any) -> Begun:
    """The collective of that name, from `source` to `result`."""
    flat, into = source.reshape(-1), result.reshape(-1)
    return Begun(
        lambda call, strategy: getattr(algorithm_of(strategy), name)(call, flat, into, **how), result
    )


def _rooted(name: str, source: Array, result: Array, member: int, what: str) -> Callable[[View], Begun]:
    """As `_begun`, with the worker that joined as `member` as the root, if it lives."""

    def begin(view: View) -> Begun:
        if member not in view.members:
            raise UsageError(f"{what}: the worker that was the root has died")
        return _begun(name, source, result, root=view.members.index(member))

    return begin


def _as_it_is(result: Array) -> Array:
    return result
