"""Collectives as users call them: arguments are checked here, and calls put in order.

A class derived from `Collectives` turns a `Wanted`, one call that was found to be valid, into what its
`Turns` runs.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

import numpy as np

from controller.api.messages import Mode, Ready
from host_agent.arguments import (
    by_switch_or_ring,
    contiguous,
    name_of,
    reducible,
    result_array,
    strategy_of,
    wire_of,
)
from host_agent.collectives.plan import Array, Strategy, Wire
from host_agent.error_feedback import ErrorFeedback
from host_agent.errors import CommunicatorError
from host_agent.membership import MembershipChange, require_root, require_rows_for
from host_agent.metrics import Statistics
from host_agent.tensors import Mapped, as_arrays
from host_agent.transport.events import Counters
from host_agent.wire.aggregation import Kind, Reduction

if TYPE_CHECKING:
    from host_agent.adapters import Transport
    from host_agent.turns import Turns

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="Collectives")
_ONES = np.ones(1, np.int32)
Makes: TypeAlias = "Callable[Concatenate[Any, P], Wanted[T]]"


@dataclass(frozen=True, kw_only=True)
class Wanted(Generic[T]):
    """A collective that a user has called, which makes a T. `what` names it in errors.

    `source`: C-contiguous; `result`: what takes the result, or an array of the result's size, which may be
    `source` itself; None where its size depends on the workers. `root`: as the user gave it. `pipeline`: of
    machines with several GPUs; None: as they joined.
    """

    kind: Kind
    what: str
    source: Array
    result: Array | None = None
    reduction: Reduction = Reduction.NONE
    root: int | None = None
    strategy: Strategy
    wire: Wire = Wire.FULL
    feedback: ErrorFeedback | None = None
    pipeline: bool | None = None

    @property
    def is_in_place(self) -> bool:
        """True if the result overwrites the input; arrays that overlap in part were refused before."""
        return self.result is not None and self.result.ctypes.data == self.source.ctypes.data


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


class _Method(Protocol[P, T]):
    def __get__(self, communicator: Collectives, owner: type) -> Collective[P, T]: ...


def _collective(makes: Makes[P, T]) -> _Method[P, T]:
    """Make the method that runs what `makes` returns: now, or with `async_op` in the queue's turn."""

    def method(self: Collectives, /, *args: Any, async_op: bool = False, **kwargs: Any) -> T | Future[T]:
        args, kwargs, back = as_arrays(args, kwargs)
        call = self._call_of(makes(self, *args, **kwargs))
        if back is None:
            return self._turns.later(call) if async_op else cast("T", self._turns.now(call))
        return Mapped(self._turns.later(call), back) if async_op else back(self._turns.now(call))

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
    """Make the collective's old asynchronous twin."""

    def method(self: Collectives, /, *args: Any, **kwargs: Any) -> Future[Any]:
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


class Collectives(AbstractContextManager["Collectives"], ABC):
    """One worker of a job, and its collectives: `Communicator`, or `MachineCommunicator` with several GPUs.

    `ready`: the job as it began, of machines with several GPUs this worker's plane. `strategy`: where a call
    gives none. `transport`: of its connections.
    """

    ready: Ready
    strategy: Strategy
    transport: Transport
    _turns: Turns[Any]
    _joined_size: int  # workers that the job had when it began

    @abstractmethod
    def _call_of(self, wanted: Wanted[Any]) -> Any:
        """Make what `_turns` runs. UsageError: this worker cannot do it."""

    # Who is in the job

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of this worker among those of the job, from 0, as its next collective sees them."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of workers in the job, as the next collective sees it."""

    @property
    @abstractmethod
    def members(self) -> tuple[int, ...]:
        """The rank that each worker joined with, by present rank."""

    @property
    @abstractmethod
    def generation(self) -> int:
        """The number under which the job has its connections now; never the same twice."""

    @property
    @abstractmethod
    def mode(self) -> Mode:
        """The maker of the job's sums now: switch or ring."""

    @property
    @abstractmethod
    def mode_reason(self) -> str:
        """The reason why sums are not made in the network; empty if they are."""

    @property
    @abstractmethod
    def failure(self) -> CommunicatorError | None:
        """The error with which the job has ended early, even if no collective has raised it yet."""

    @abstractmethod
    def on_change(self, callback: Callable[[MembershipChange], None]) -> None:
        """Call `callback` whenever an elastic job goes on without workers that died.

        One thread makes these calls, one after the other. Collectives called before the change may or may not
        be done by then.
        """

    @abstractmethod
    def on_end(self, callback: Callable[[CommunicatorError], None]) -> None:
        """Call `callback`, which must not block, with the reason when the job has ended early for all.

        The call comes from any thread, whether or not a collective runs, at once if the job has ended
        already, and at most twice.
        """

    @abstractmethod
    def counters(self) -> Counters:
        """Return the connection's counters, over all generations."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return the collectives run, the time spent in them, and their traffic on the wire."""

    @abstractmethod
    def status(self, job: str) -> dict[str, Any]:
        """Return this worker's status, as `host_agent.status` has it."""

    # The end

    @abstractmethod
    def leave(self, *, timeout_s: float = 60.0) -> None:
        """Finish what is queued, wait until all workers leave, and close. Idempotent.

        MismatchError if another waits in a collective that this worker has not called, CollectiveTimeoutError
        if others have not left within `timeout_s`: that ends the job. After an error it only closes: the job
        has ended for everybody.
        """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the job for everybody, with `reason`; waiting collectives raise. Then close."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort(f"rank {self.rank} left with {type(error).__name__}: {error}")
        else:
            self.leave()

    # Collectives

    def _all_reduce(
        self,
        array: Array,
        op: Reduction | str = Reduction.SUM,
        *,
        out: Array | None = None,
        strategy: Strategy | str | None = None,
        wire: Wire | str = Wire.FULL,
        feedback: ErrorFeedback | None = None,
        pipeline: bool | None = None,
    ) -> Wanted[Array]:
        """Return the element-wise SUM, AVG, MAX, MIN or PROD over all ranks, of integers and floats.

        Products, int64 and float64 go by ring: no switch can make those. All ranks give one shape. `out`
        (C-contiguous) takes the result; it may be `array` itself, but not overlap it in part. Integers wrap
        like NumPy's and AVG rounds them towards zero; sums of floats in the network are within
        `quantisation.error_bound` of the exact ones.

        `wire` "16bit" (SUM and AVG, the same on all ranks) sends float32 through the switch in half the
        bytes, rounded to 11 bits (from (2 - 2**-11) * 2**127 on to infinity). The rounding errors go into the
        next call with the same `feedback`. By ring, and if all ranks' tensors together are small, floats
        travel unchanged.

        With several GPUs a machine, sums of float32 have the bits that a switch would give which summed all
        workers at once; 16-bit types, and a `wire` of 16 bits, are rounded once more for each machine. Error
        feedback is a UsageError there. `pipeline` stands in place of that of `join`; the same on all ranks.
        """
        source, reduction = reducible(array, op)
        width = wire_of(wire, source.dtype, reduction, feedback)
        what = f"all_reduce({reduction.name}) of {source.size} {name_of(source.dtype)}"
        return Wanted(
            kind=Kind.ALL_REDUCE,
            what=f"{what} over 16 bits" if width is Wire.HALF else what,
            source=source,
            result=result_array(out, source),
            reduction=reduction,
            strategy=self._strategy(strategy, source, reduction),
            wire=width,
            feedback=feedback,
            pipeline=pipeline,
        )

    def _reduce(
        self,
        array: Array,
        root: int = 0,
        op: Reduction | str = Reduction.SUM,
        *,
        strategy: Strategy | str | None = None,
    ) -> Wanted[Array | None]:
        """Reduce as `all_reduce` does, but only `root` gets the result; the others get None."""
        require_root(root, self._joined_size)
        source, reduction = reducible(array, op)
        return Wanted(
            kind=Kind.REDUCE,
            what=f"reduce({reduction.name}) of {source.size} {name_of(source.dtype)} to rank {root}",
            source=source,
            reduction=reduction,
            root=root,
            strategy=self._strategy(strategy, source, reduction),
        )

    def _broadcast(
        self,
        array: Array,
        root: int = 0,
        *,
        out: Array | None = None,
        strategy: Strategy | str | None = None,
    ) -> Wanted[Array]:
        """Return `root`'s array on every rank, bit for bit; others give shape and dtype (any fixed-size)."""
        require_root(root, self._joined_size)
        source = contiguous(array)
        return Wanted(
            kind=Kind.BROADCAST,
            what=f"broadcast of {source.size} {name_of(source.dtype)} from rank {root}",
            source=source,
            result=result_array(out, source),
            root=root,
            strategy=self._strategy(strategy, source),
        )

    def _all_gather(self, array: Array, *, strategy: Strategy | str | None = None) -> Wanted[Array]:
        """Return all ranks' arrays (one shape, any fixed-size dtype), stacked: (world_size, *array.shape)."""
        source = contiguous(array)
        return Wanted(
            kind=Kind.ALL_GATHER,
            what=f"all_gather of {source.size} {name_of(source.dtype)}",
            source=source,
            strategy=self._strategy(strategy, source),
        )

    def _reduce_scatter(
        self, array: Array, op: Reduction | str = Reduction.SUM, *, strategy: Strategy | str | None = None
    ) -> Wanted[Array]:
        """Return this rank's block of the reduction: rows rank·n/N to (rank + 1)·n/N of n; N divides n."""
        source, reduction = reducible(array, op)
        if not (self.ready.lease_s and source.shape):  # else when it starts, on all alike: some may have died
            require_rows_for(self.world_size, source.shape)
        return Wanted(
            kind=Kind.REDUCE_SCATTER,
            what=f"reduce_scatter({reduction.name}) of {source.size} {name_of(source.dtype)}",
            source=source,
            reduction=reduction,
            strategy=self._strategy(strategy, source, reduction),
        )

    def _barrier(self) -> Wanted[None]:
        """Return when all ranks have called it."""
        return Wanted(kind=Kind.BARRIER, what="barrier", source=_ONES, strategy=self._strategy(None, _ONES))

    all_reduce = _collective(_all_reduce)
    reduce = _collective(_reduce)
    broadcast = _collective(_broadcast)
    all_gather = _collective(_all_gather)
    reduce_scatter = _collective(_reduce_scatter)
    barrier = _collective(_barrier)

    all_reduce_async, reduce_async = _deprecated("all_reduce"), _deprecated("reduce")
    broadcast_async, all_gather_async = _deprecated("broadcast"), _deprecated("all_gather")
    reduce_scatter_async, barrier_async = _deprecated("reduce_scatter"), _deprecated("barrier")

    def _strategy(
        self, strategy: Strategy | str | None, array: Array, reduction: Reduction = Reduction.NONE
    ) -> Strategy:
        said = self.strategy if strategy is None else strategy_of(strategy)
        return by_switch_or_ring(said, array.dtype, reduction)
