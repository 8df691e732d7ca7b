"""The Communicator: a worker's collectives on NumPy arrays, one after the other, as calls or as futures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from controller.api.messages import Gang, Mode, Ready
from controller.security import tokens
from controller.security.files import TlsFiles, tls_files
from host_agent import joining, metrics, status
from host_agent.adapters import Transport
from host_agent.arguments import strategy_of
from host_agent.collectives.plan import Array, Call, Steps, Strategy, Wire, cheaper, choose
from host_agent.errors import (
    CommunicatorClosedError,
    CommunicatorError,
    MismatchError,
    RingFallbackWarning,
    UsageError,
)
from host_agent.execution import Begun, Execution, QueuePairs, Task
from host_agent.front import Collectives, Wanted
from host_agent.membership import Membership, MembershipChange, View
from host_agent.metrics import Statistics
from host_agent.recovery import NUMBERS, algorithm_of
from host_agent.runner import Link, Runner
from host_agent.transport.events import Counters
from host_agent.wire.aggregation import Kind, Reduction

__all__ = ["Communicator", "RingFallbackWarning"]


class Communicator(Collectives):
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
        self._joined_size = world_size
        self._left = False
        self._metrics: metrics.Exposed | None = None
        self.machine_status: Callable[[], dict[str, Any]] | None = None  # of host_agent.machine
        self._execution = Execution(
            View.first(rank, world_size, ready.ring),
            ready,
            Runner(link, rank=rank, timeout_s=timeout_s, who_is_missing=membership.who_is_missing),
            membership,
            queue_pairs,
            is_in_elastic_gang=self.is_in_elastic_gang,
        )
        self._turns = self._execution.turns
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
    def _view(self) -> View:
        """The workers in the job, as the next call sees them."""
        member = self._execution.member
        return member.view_at(member.called)

    @property
    def rank(self) -> int:
        return self._view.rank

    @property
    def world_size(self) -> int:
        return self._view.world_size

    @property
    def members(self) -> tuple[int, ...]:
        return self._view.members

    @property
    def generation(self) -> int:
        return self._execution.member.generation

    def on_change(self, callback: Callable[[MembershipChange], None]) -> None:
        self._execution.on_change(callback)

    def on_end(self, callback: Callable[[CommunicatorError], None]) -> None:
        self._execution.on_end(callback)

    @property
    def failure(self) -> CommunicatorError | None:
        failure = self._execution.ended or self._execution.failure
        return failure if isinstance(failure, CommunicatorError) else None

    @property
    def mode(self) -> Mode:
        return self._execution.member.mode

    @property
    def mode_reason(self) -> str:
        return self._execution.member.mode_reason

    def _call_of(self, wanted: Wanted[Any]) -> Task[Any]:
        choose = self._choice(wanted.strategy, wanted.kind, wanted.source)
        begin = self._feeding_back(wanted) if wanted.feedback is not None else _begin(wanted)
        shape = wanted.source.shape if wanted.kind is Kind.REDUCE_SCATTER else None
        return Task(wanted.what, wanted.reduction, choose, begin, wanted.root, shape)

    def _feeding_back(self, wanted: Wanted[Any]) -> Callable[[View, int], Begun]:
        assert wanted.feedback is not None
        assert wanted.result is not None
        wanted.feedback.require(wanted.source, self._execution)
        begin = wanted.feedback.begin(wanted.source.reshape(-1), wanted.result, self._execution)
        return lambda view, root: begin(view)

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
        choose: Callable[[Mode], Strategy] | None = None,
    ) -> Future[Array]:
        """Run a collective of one's own, of all workers, in its turn; return a future that gets `result`.

        `steps(call, strategy)` are operations as in `host_agent.collectives`. `choose` gives the strategy.
        Without it, the strategy is chosen as for `kind` of `array`. `what`, `kind` and `array` tell the call
        from others. `gang_renewal`: as in `Task`.
        """
        begun = Begun(lambda call, chosen: steps(call.named(kind, array), chosen), result)
        how = choose or self._choice(self._strategy(strategy, array, reduction), kind, array)
        task: Task[Array] = Task(what, reduction, how, lambda view, root: begun, gang_renewal=gang_renewal)
        return self._turns.later(task)

    def leave_warnings(self) -> None:
        """Leave warnings of the ring to the runner of this plane, which calls `warn_of_ring`."""
        self._execution.warns_of_ring = False

    def warn_of_ring(self, stacklevel: int) -> None:
        """Warn as `Execution.warn_of_ring` does."""
        self._execution.warn_of_ring(stacklevel + 1)

    def view_at(self, call: int) -> View:
        """Return who is in the job, as a gang's call of that number sees it."""
        return self._execution.member.view_at(call)

    def gang_called(self, calls: int) -> None:
        """Note that the user has made so many calls on all GPUs."""
        self._execution.member.called = calls % NUMBERS

    def begins_gang_collective(self, call: int) -> tuple[int, tuple[View, ...]]:
        """Begin a collective of all GPUs; see `Execution.begins_gang_collective`."""
        return self._execution.begins_gang_collective(call)

    def is_begun_anew(self, gang_renewal: int) -> bool:
        """Tell whether a renewal dropped what an elastic gang began after renewal `gang_renewal`."""
        return self._execution.is_begun_anew(gang_renewal)

    def finish_gang_collective(self, gang_renewal: int, what: str) -> None:
        """Count a collective of all GPUs as finished, as its result is here. BegunAnewError."""
        self._execution.finish_gang_collective(gang_renewal, what)

    def counters(self) -> Counters:
        return self._execution.runner.counters()

    def statistics(self) -> Statistics:
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
        if self._left:
            return
        self._turns.require_other_thread("leave")
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
        self._execution.fail(CommunicatorClosedError(f"this worker aborted the job: {reason}"), reason)
        self.leave()

    def fail_with(self, reason: str, plane: int) -> None:
        """Abort as `abort` does, because another GPU of this machine, the one in that plane, has failed."""
        error = CommunicatorClosedError(f"this worker aborted the job: {reason}")
        self._execution.fail(error, reason, plane=plane)
        self.leave()

    def differ(self, error: MismatchError, what: str) -> None:
        """End the job for everybody: others have called something else than this worker (`what`, in words).

        Meant for callers that know it without a packet, such as the workers of one machine.
        """
        self._execution.differ(error, what)

    def _choice(self, wanted: Strategy, kind: Kind, array: Array) -> Callable[[Mode], Strategy]:
        """Return a function that chooses the strategy at the start: the job may have changed by then."""
        scaled = array.dtype != np.int32 and kind not in (Kind.BROADCAST, Kind.ALL_GATHER)
        member, nbytes = self._execution.member, array.nbytes

        def in_mode(mode: Mode) -> Strategy:
            auto = cheaper(kind, nbytes, member.view.world_size, scaled=scaled)
            try:
                return choose(wanted, mode, auto=auto)
            except ValueError as error:
                raise UsageError(f"{error}: {self.mode_reason}") from error

        return in_mode


def _begin(wanted: Wanted[Any]) -> Callable[[View, int], Begun]:
    """Return a function that prepares a collective for the workers in the job when it starts."""
    source, result = wanted.source, wanted.result
    name = wanted.kind.name.lower()

    def run(into: Array, **how: Any) -> Callable[[Call, Strategy], Steps[Any]]:
        def steps(call: Call, strategy: Strategy) -> Steps[Any]:
            call = call if wanted.wire is Wire.FULL else replace(call, wire=wanted.wire)
            program: Steps[Any] = getattr(algorithm_of(strategy), name)(
                call, source.reshape(-1), into.reshape(-1), **how
            )
            return program

        return steps

    def begin(view: View, root: int) -> Begun:
        match wanted.kind:
            case Kind.ALL_REDUCE:
                assert result is not None
                return Begun(run(result), result, result if wanted.is_in_place else None)
            case Kind.BROADCAST:
                assert result is not None
                return Begun(run(result, root=root), result)
            case Kind.REDUCE:
                into = np.empty_like(source)
                return Begun(run(into, root=root), into, gives=_given_to(view.rank == root))
            case Kind.ALL_GATHER:
                into = np.empty((view.world_size, *source.shape), source.dtype)
                return Begun(run(into), into)
            case Kind.REDUCE_SCATTER:
                rows = source.shape[0] // view.world_size
                into = np.empty((rows, *source.shape[1:]), source.dtype)
                return Begun(run(into), into)
            case Kind.BARRIER:
                return Begun(
                    lambda call, strategy: algorithm_of(strategy).barrier(call),
                    np.empty(0),
                    gives=_given_to(False),
                )
            case _:
                raise AssertionError(f"{wanted.kind.name} is not a collective of users")

    return begin


def _given_to(has_it: bool) -> Callable[[Array], Array | None]:
    """Return a function that gives the result to a user who gets it, and None to others."""
    return lambda result: result if has_it else None
