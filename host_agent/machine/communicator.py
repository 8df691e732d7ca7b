"""A job whose machines have several GPUs: `MachineCommunicator.join(..., gpus_per_host=n)`.

Rank h * n + g is GPU g of machine h. Each worker is in two groups: its machine's workers, over shared
memory, and its plane, local rank g of all machines, which is an ordinary job. A collective adds up inside the
machine, then, each GPU its share, between machines, and gathers. Pieces of a tensor do so at the same time:
while a plane sums one, the next is added up, and the one before gathered.

What ends one plane ends all: its members tell the others of their machines, and these their planes.

An elastic job goes on without machines: who dies takes its whole machine out of all planes. Of a collective
that is under way, some planes may have that machine's part by then, and others not. So every renewal begins
the first collective that no GPU has finished anew, on all GPUs, from its inputs. What some GPU has finished
is finished on all, with that machine's part: each plane gives its results to those that lack them. Before
each collective, a machine's workers wait for each other (`Gate`): all of them begin the same one anew.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from controller.api.messages import MAX_PLANES, Gang, Mode
from host_agent.arguments import (
    by_switch_or_ring,
    contiguous,
    name_of,
    of_switches,
    reducible,
    require_root,
    require_rows_for,
    result_array,
    strategy_of,
    wire_of,
)
from host_agent.collectives import ring
from host_agent.collectives.plan import SMALL_BYTES, Array, Steps, Strategy, Wire
from host_agent.collectives.plan import Call as PlaneCall
from host_agent.collectives.signature import Signature, signature
from host_agent.communicator import Communicator, algorithm_of, collective
from host_agent.error_feedback import ErrorFeedback
from host_agent.errors import (
    CollectiveTimeoutError,
    CommunicatorClosedError,
    CommunicatorError,
    JobEndedError,
    MismatchError,
    UsageError,
)
from host_agent.execution import Tally, Turn
from host_agent.kernels import sum_rows
from host_agent.machine import sums
from host_agent.machine.channel import REGION_BYTES, SLOT_BYTES, Bytes, Gate, Lane, Pace
from host_agent.machine.meeting import Meeting, Who, meet
from host_agent.machine.sums import Form, Piece, pieces_of
from host_agent.membership import MembershipChange
from host_agent.metrics import Statistics
from host_agent.quantisation import Blocks
from host_agent.recovery import NUMBERS, BegunAnewError
from host_agent.transport.events import Counters
from host_agent.wire.aggregation import Kind, Reduction

T = TypeVar("T")
_WORD: Final = 4
_NOTICE_S: Final = 60.0


@dataclass(frozen=True)
class Machine:
    """The worker's place in its machine, and what has come from the machine's other workers."""

    rank: int
    size: int
    pace: Pace

    @property
    def bytes_received(self) -> int:
        return self.pace.bytes_received


@dataclass(frozen=True)
class Call(Turn[T]):
    """A collective that is ready to run. `signature`: what all workers have to call alike.

    `is_empty`: it has nothing to do. `place`: its input, where the result overwrites it. `gang_renewal`: the
    renewal of an elastic job after which it runs.
    """

    what: str
    signature: Signature
    strategy: Strategy
    pipeline: bool
    run: Callable[[Call[T]], T]
    is_empty: bool
    place: Array | None = None
    gang_renewal: int = 0


class _World(NamedTuple):
    """Who is in the job, as a collective sees it. `members`: as `Communicator.members`."""

    rank: int
    size: int
    members: tuple[int, ...]


class _RefusedError(UsageError):
    """A collective cannot be done by the workers that are left, which all find alike."""


class _Turns(NamedTuple):
    now: Callable[[Any], Any]
    later: Callable[[Any], Future[Any]]


class MachineCommunicator(Communicator):
    """As a `Communicator` of all workers of all machines; `plane` is this worker's job between machines."""

    def __init__(
        self,
        plane: Communicator,
        meeting: Meeting,
        *,
        intra_rate_bit_s: float | None = None,
        pipeline: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        who = meeting.who
        self.plane = plane
        self.machine = Machine(who.local_rank, who.local_size, Pace(intra_rate_bit_s))
        self.ready = plane.ready
        self.transport = plane.transport
        self.strategy = plane.strategy
        self._who, self._meeting, self._timeout_s = who, meeting, timeout_s
        self._pipeline = pipeline
        self._left = False
        self._failure: BaseException | None = None
        self._tally = Tally()
        self._what = ""
        self._called = 0
        self._running_since = time.monotonic()
        self._world = _World(who.rank, who.world_size, tuple(range(who.world_size)))
        self._gang_renewal = 0  # of the collective that runs
        self._gang_collective = 0
        self._under_way: list[Future[Array]] = []  # of it, in the plane
        # All collectives begin on this one, so that workers which have called different ones meet there.
        self._lane = Lane(meeting, 0, stalled=self._stalled, look=self._require_not_begun_anew)
        self._results = Lane(meeting, 1, stalled=self._stalled, look=self._require_not_begun_anew)
        self._gate = Gate(meeting, (self._lane, self._results), stalled=self._stalled)
        self._order = ThreadPoolExecutor(1, f"p4reduce-gang{who.rank}", self._note_thread)
        self._gathering = ThreadPoolExecutor(1, f"p4reduce-gather{who.rank}")
        self._queue_thread: int | None = None
        blocks = (plane.ready.path_mtu, plane.ready.message_packets)
        self._blocks = Blocks.of(path_mtu=blocks[0], message_packets=blocks[1], half=False)
        self._turns = _Turns(self._now, self._later)
        plane.machine_status = self._machine_status
        plane.on_end(self._plane_ended)
        meeting.on_failure(self._machine_failed)

    @classmethod
    def join(
        cls,
        controller: str,
        *,
        job: str,
        rank: int,
        world_size: int,
        gpus_per_host: int = 1,
        intra_rate_bit_s: float | None = None,
        pipeline: bool = True,
        timeout_s: float | None = None,
        join_timeout_s: float = 60.0,
        **how: Any,
    ) -> Communicator:
        """Join as `Communicator.join`: GPU rank % gpus_per_host of machine rank // gpus_per_host.

        All workers of a machine, which are processes of one user and one network namespace, share memory.
        What a worker reads of it is held back to `intra_rate_bit_s` (None: not), as a channel of that rate
        in each direction would. `pipeline`: pieces of a tensor are added up, summed by planes and gathered
        at the same time. Both have to be the same on all workers.

        With one GPU a machine it is `Communicator.join`. Errors as there; JobRefusedError, too, where the
        workers of a machine do not come, or differ.
        """
        if not 1 <= gpus_per_host <= MAX_PLANES or world_size % gpus_per_host:
            raise UsageError(
                f"{world_size} workers cannot be {gpus_per_host} on each machine: there may be 1 to "
                f"{MAX_PLANES}, the same number on all"
            )
        if intra_rate_bit_s is not None and not intra_rate_bit_s > 0:
            raise UsageError(f"intra_rate_bit_s {intra_rate_bit_s} is no rate; None does not pace")
        if gpus_per_host == 1:
            return Communicator.join(
                controller,
                job=job,
                rank=rank,
                world_size=world_size,
                timeout_s=timeout_s,
                join_timeout_s=join_timeout_s,
                **how,
            )
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} is no rank of a job of {world_size} workers (0..{world_size - 1})")
        until = time.monotonic() + join_timeout_s
        machine, local_rank = divmod(rank, gpus_per_host)
        who = Who(
            local_rank=local_rank,
            local_size=gpus_per_host,
            rank=rank,
            world_size=world_size,
            settings=f"pipeline {pipeline}, intra_rate_bit_s {intra_rate_bit_s}",
        )
        plane = Communicator.join(
            controller,
            job=f"{job}/{local_rank}",
            rank=machine,
            world_size=world_size // gpus_per_host,
            timeout_s=timeout_s,
            join_timeout_s=join_timeout_s,
            gang=Gang(name=job, plane=local_rank, planes=gpus_per_host),
            **how,
        )
        try:
            left = max(0.1, until - time.monotonic())
            meeting = meet(f"{controller} {job}", who, region_bytes=REGION_BYTES, timeout_s=left)
        except BaseException as error:
            plane.abort(f"rank {rank} could not start: {error}")  # its peers wait for it
            raise
        return cls(
            plane,
            meeting,
            intra_rate_bit_s=intra_rate_bit_s,
            pipeline=pipeline,
            timeout_s=timeout_s,
        )

    # Who we are

    @property
    def rank(self) -> int:
        """This worker's number among those of all machines that the job has now: machine by machine."""
        return self.plane.rank * self.machine.size + self.machine.rank

    @property
    def world_size(self) -> int:
        """How many workers all machines have that the job has now."""
        return self.plane.world_size * self.machine.size

    @property
    def members(self) -> tuple[int, ...]:
        """By rank, the rank that each worker joined with."""
        return self._world_of(self.plane.members, self.plane.rank).members

    @property
    def generation(self) -> int:
        """The plane's."""
        return self.plane.generation

    @property
    def mode(self) -> Mode:
        """Whether the switch or a ring sums this worker's plane now."""
        return self.plane.mode

    @property
    def mode_reason(self) -> str:
        """Why not in the network; empty if they are."""
        return self.plane.mode_reason

    @property
    def failure(self) -> CommunicatorError | None:
        """Why the job has ended early, even if no collective has raised it yet."""
        if isinstance(self._failure, CommunicatorError):
            return self._failure
        return self._meeting.failure or self.plane.failure

    def on_change(self, callback: Callable[[MembershipChange], None]) -> None:
        """As a Communicator's: an elastic job goes on without the workers of whole machines."""
        size, local = self.machine.size, self.machine.rank

        def changed(change: MembershipChange) -> None:
            callback(
                replace(
                    change,
                    old_rank=change.old_rank * size + local,
                    rank=change.rank * size + local,
                    old_world_size=change.old_world_size * size,
                    world_size=change.world_size * size,
                    lost=tuple(rank * size + gpu for rank in change.lost for gpu in range(size)),
                )
            )

        self.plane.on_change(changed)

    def on_end(self, callback: Callable[[CommunicatorError], None]) -> None:
        """As a Communicator's."""
        self._meeting.on_failure(callback)
        self.plane.on_end(callback)

    def counters(self) -> Counters:
        """The plane's connection's."""
        return self.plane.counters()

    def statistics(self) -> Statistics:
        """Collectives run, time spent in them, and the plane's traffic on the wire."""
        return replace(self.plane.statistics(), **asdict(self._tally))

    def status(self, job: str) -> dict[str, Any]:
        """The plane's, and where the worker stands in its machine."""
        return self.plane.status(job)

    def _machine_status(self) -> dict[str, Any]:
        waits_for = {*self._lane.waits_for, *self._results.waits_for, *self._gate.waits_for}
        return {
            "local_rank": self.machine.rank,
            "size": self.machine.size,
            "waits_for": sorted(waits_for - {self.machine.rank}),
        }

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
    ) -> Call[Array]:
        """As a Communicator's, over all workers of all machines; `pipeline` in place of that of `join`.

        Of float32 with the bits that a switch would give which summed all workers at once; 16-bit types,
        and a `wire` of 16 bits, are rounded once more for each machine. Error feedback is a UsageError.
        """
        source, reduction = reducible(array, op)
        width = wire_of(wire, source.dtype, reduction, feedback)
        if feedback is not None:
            raise UsageError("error feedback is for jobs with one GPU a machine: leave it out")
        result = result_array(out, source)
        what = f"all_reduce({reduction.name}) of {source.size} {name_of(source.dtype)}"
        if width is Wire.HALF:
            what += " over 16 bits"

        def run(call: Call[Array]) -> Array:
            self._reduce_into(call, source.reshape(-1), result.reshape(-1), reduction, width)
            return result

        made = self._call(what, Kind.ALL_REDUCE, source, strategy, run, reduction=reduction)
        made = replace(made, place=source if np.shares_memory(source, result) else None)
        return made if pipeline is None else replace(made, pipeline=pipeline)

    def _reduce(
        self,
        array: Array,
        root: int = 0,
        op: Reduction | str = Reduction.SUM,
        *,
        strategy: Strategy | str | None = None,
    ) -> Call[Array | None]:
        """As `all_reduce`, but only `root` gets the result; the others get None."""
        member = self._member(root)
        source, reduction = reducible(array, op)
        what = f"reduce({reduction.name}) of {source.size} {name_of(source.dtype)} to rank {member}"

        def run(call: Call[Array | None]) -> Array | None:
            self._require_alive(member, what)
            result = np.empty_like(source)
            self._reduce_into(call, source.reshape(-1), result.reshape(-1), reduction, Wire.FULL)
            return result if self._who.rank == member else None

        return self._call(what, Kind.REDUCE, source, strategy, run, root=member, reduction=reduction)

    def _broadcast(
        self,
        array: Array,
        root: int = 0,
        *,
        out: Array | None = None,
        strategy: Strategy | str | None = None,
    ) -> Call[Array]:
        """`root`'s array on every rank, bit for bit; other ranks give shape and dtype (any fixed-size)."""
        member = self._member(root)
        source = contiguous(array)
        result = result_array(out, source)
        what = f"broadcast of {source.size} {source.dtype} from rank {member}"

        def run(call: Call[Array]) -> Array:
            self._require_alive(member, what)
            # Each GPU of the root's machine gives its plane a share: zeros from all others make it a sum.
            words = np.zeros(-(-source.nbytes // _WORD), np.int32)
            if self._who.rank == member:
                words.view(np.uint8)[: source.nbytes] = source.reshape(-1).view(np.uint8)
            self._run(call, sums.integers(words, average_of=1), words, words)
            result.reshape(-1).view(np.uint8)[...] = words.view(np.uint8)[: source.nbytes]
            return result

        return self._call(what, Kind.BROADCAST, source, strategy, run, root=member)

    def _all_gather(self, array: Array, *, strategy: Strategy | str | None = None) -> Call[Array]:
        """All ranks' arrays (one shape, any fixed-size dtype), stacked: (world_size, *array.shape)."""
        source = contiguous(array)

        def run(call: Call[Array]) -> Array:
            rows = self._rows(call, source.reshape(-1).view(np.uint8))
            return rows.view(source.dtype).reshape((self._world.size, *source.shape))

        return self._call(
            f"all_gather of {source.size} {source.dtype}", Kind.ALL_GATHER, source, strategy, run
        )

    def _reduce_scatter(
        self, array: Array, op: Reduction | str = Reduction.SUM, *, strategy: Strategy | str | None = None
    ) -> Call[Array]:
        """Rank r's part of the reduction: rows r * k to (r + 1) * k of world_size * k rows."""
        source, reduction = reducible(array, op)
        require_rows_for(self.world_size, source.shape)

        def run(call: Call[Array]) -> Array:
            rank = self._world.rank
            try:
                rows = require_rows_for(self._world.size, source.shape)
            except UsageError as error:
                raise _RefusedError(str(error)) from error
            result: Array = np.empty_like(source)
            self._reduce_into(call, source.reshape(-1), result.reshape(-1), reduction, Wire.FULL)
            part: Array = result[rank * rows : (rank + 1) * rows].copy()
            return part

        what = f"reduce_scatter({reduction.name}) of {source.size} {source.dtype}"
        return self._call(what, Kind.REDUCE_SCATTER, source, strategy, run, reduction=reduction)

    def _barrier(self) -> Call[None]:
        """Return when all ranks have called it."""
        ones = np.ones(1, np.int32)

        def run(call: Call[None]) -> None:
            self._together(call, b"")
            self._in_plane(call, ones, Reduction.SUM).result()
            self._together(call, b"")

        return self._call("barrier", Kind.BARRIER, ones, None, run)

    all_reduce = collective(_all_reduce)
    reduce = collective(_reduce)
    broadcast = collective(_broadcast)
    all_gather = collective(_all_gather)
    reduce_scatter = collective(_reduce_scatter)
    barrier = collective(_barrier)

    # The end

    def leave(self, *, timeout_s: float = 60.0) -> None:
        """Finish what is queued, wait until all workers leave, and close. Idempotent."""
        if self._left:
            return
        self._require_other_thread("leave")
        self._left = True
        try:
            self._order.shutdown(wait=True)
            self._gathering.shutdown(wait=True)
            self._meeting.leave(self._called)
            self.plane.leave(timeout_s=timeout_s)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._meeting.close()

    def abort(self, reason: str) -> None:
        """End the job for everybody, with `reason`; waiting collectives raise. Then close."""
        self._fail(CommunicatorClosedError(f"this worker aborted the job: {reason}"), reason)
        self.leave()

    # Running

    def _later(self, call: Call[T]) -> Future[T]:
        self._require_no_failure(call.what)
        if self._left:
            raise CommunicatorClosedError(f"{call.what}: this communicator has left its job; join again")
        self._called += 1
        return self._order.submit(self._to_its_end, call)

    def _now(self, call: Call[T]) -> T:
        self._require_other_thread(call.what)
        future = self._later(call)
        try:
            return future.result()
        except BaseException as error:
            if not future.done():  # an interrupt of this thread: nothing may use the arrays any more
                self._fail(error)
                if not future.cancel():
                    wait([future])
            raise

    def _to_its_end(self, call: Call[T]) -> T:
        self._require_no_failure(call.what)
        self._what, started, ringed = call.what, time.monotonic(), self.plane.statistics().ring
        is_elastic = self.plane.is_in_elastic_gang and not call.is_empty
        if call.is_empty:
            self._world = self._world_of(self.plane.members, self.plane.rank)
        try:
            result = self._through_renewals(call) if is_elastic else call.run(call)
        except _RefusedError as error:  # by all alike
            raise UsageError(str(error)) from error
        except CommunicatorError as error:
            first = self._meeting.failure or self._of_all(error)  # what came of it is no news
            self._fail(first)
            raise first from error
        except BaseException as error:
            self._fail(error)
            raise
        taken = Strategy.IN_NETWORK if self.plane.statistics().ring == ringed else Strategy.RING
        self._tally.add(taken, switched=None, seconds=time.monotonic() - started)
        return result

    def _through_renewals(self, call: Call[T]) -> T:
        """Run a collective of an elastic job, again where a renewal begins it anew."""
        kept = None if call.place is None else call.place.copy()
        while True:
            renewal, view = self._gate.wait(
                self._gang_collective, self.plane.begins_gang_collective, call.what
            )
            self._world, self._gang_renewal = self._world_of(view.members, view.rank), renewal
            refused: _RefusedError | None = None
            try:
                try:
                    result = call.run(replace(call, gang_renewal=renewal))
                except _RefusedError as error:
                    refused = error
                self.plane.finish_gang_collective(renewal, call.what)
            except BegunAnewError:
                wait(self._under_way)
                if kept is not None and call.place is not None:
                    call.place[...] = kept
                continue
            finally:
                self._under_way.clear()
            self._gang_collective = (self._gang_collective + 1) % NUMBERS
            if refused is not None:
                raise refused
            return result

    def _world_of(self, machines: tuple[int, ...], rank: int) -> _World:
        """Of the machines, by rank as they joined, of which this one has that rank."""
        size = self.machine.size
        members = tuple(machine * size + gpu for machine in machines for gpu in range(size))
        return _World(rank * size + self.machine.rank, len(members), members)

    def _require_not_begun_anew(self) -> None:
        if self.plane.is_begun_anew(self._gang_renewal):
            raise BegunAnewError(self._what)

    def _require_alive(self, member: int, what: str) -> None:
        if member not in self._world.members:
            raise _RefusedError(f"{what}: the worker that was the root has died")

    def _member(self, root: int) -> int:
        """The worker with this rank now, by the rank it joined with; later another may have it."""
        members = self.members
        require_root(root, len(members))
        return members[root]

    def _fail(self, error: BaseException, reason: str | None = None) -> None:
        """No collective runs after this; the job ends for everybody."""
        if self._failure is None:
            self._failure = error
        why = reason or f"rank {self.rank}: {error if isinstance(error, CommunicatorError) else repr(error)}"
        self._meeting.fail(error if isinstance(error, CommunicatorError) and not reason else why)
        self._end_plane(error, why)

    def _end_plane(self, error: BaseException, reason: str) -> None:
        with suppress(CommunicatorError):
            if isinstance(error, MismatchError) and self.plane.failure is None:
                self.plane.differ(error, str(error))
            if (mate := self._mate(error)) is None:
                self.plane.abort(reason)
            else:
                self.plane.fail_with(reason, mate)

    def _mate(self, error: BaseException) -> int | None:
        """The local rank of another worker of this machine that an error is about."""
        rank = error.rank if isinstance(error, JobEndedError) else None
        size, own = self.machine.size, self._who.rank
        return rank % size if rank is not None and rank != own and rank // size == own // size else None

    def _plane_ended(self, error: CommunicatorError) -> None:
        self._meeting.fail(self._of_all(error))

    def _machine_failed(self, error: CommunicatorError) -> None:
        """Another worker of this machine has failed, or its plane has ended: so does ours."""
        # From the thread that watches: a plane's end waits for threads that may wait for that one.
        threading.Thread(
            target=self._end_plane, args=(error, str(error)), name=f"p4reduce-end{self.rank}", daemon=True
        ).start()

    def _of_all(self, error: CommunicatorError) -> CommunicatorError:
        """A plane's error, with the rank among all workers."""
        if not isinstance(error, JobEndedError) or error.rank is None:
            return error
        plane = self.machine.rank if error.plane is None else error.plane
        rank = error.rank * self.machine.size + plane
        told = type(error)(error.reason, rank=rank, host=error.host, first_message=error.first_message)
        told.__cause__ = error
        return told

    def _require_no_failure(self, what: str) -> None:
        failure = self._meeting.failure
        if self._failure is not None and (failure is None or failure is self._failure):
            raise CommunicatorClosedError(
                f"{what}: this communicator failed earlier and its job has ended; join again. "
                f"It was: {self._failure}"
            ) from self._failure
        if failure is not None:
            raise failure.with_traceback(None)

    def _note_thread(self) -> None:
        self._queue_thread = threading.get_ident()

    def _require_other_thread(self, what: str) -> None:
        if threading.get_ident() == self._queue_thread:
            raise UsageError(
                f"{what}: called in a future's callback, where it would wait for itself: call it "
                "in another thread, or a collective with async_op=True"
            )

    def _stalled(self, seconds: float, local_ranks: list[int]) -> None:
        limit = _NOTICE_S if self._timeout_s is None else self._timeout_s
        if seconds < limit:
            return
        first = self.rank - self.machine.rank
        late = ", ".join(f"GPU {rank} (rank {first + rank})" for rank in local_ranks)
        stall = f"{self._what}: {late} of this machine has come no further for {limit:g} s"
        if self._timeout_s is not None:
            raise CollectiveTimeoutError(stall)
        warnings.warn(f"{stall}; waiting on, as no timeout_s is set", RuntimeWarning, stacklevel=2)

    def _call(
        self,
        what: str,
        kind: Kind,
        array: Array,
        strategy: Strategy | str | None,
        run: Callable[[Call[T]], T],
        *,
        root: int = 0,
        reduction: Reduction = Reduction.NONE,
    ) -> Call[T]:
        said = self.strategy if strategy is None else strategy_of(strategy)
        wanted = by_switch_or_ring(said, array.dtype, reduction)
        if wanted is Strategy.IN_NETWORK and self.mode is Mode.RING:
            raise UsageError(
                f"in-network was asked for, but no switch aggregates for this job: {self.mode_reason}"
            )
        called = signature(kind, root, reduction, array.dtype, array.size)
        return Call(what, called, wanted, self._pipeline, run, is_empty=array.size == 0)

    # Sums

    def _reduce_into(self, call: Call[Any], array: Array, out: Array, op: Reduction, wire: Wire) -> None:
        """Leave the reduction of all workers' flat `array` in `out`, which may be the same."""
        divisor = self._world.size if op is Reduction.AVG else 1
        if not of_switches(array.dtype, op):
            self._run(call, sums.in_the_type(array, op, divisor=divisor), array, out)
        elif op in (Reduction.MAX, Reduction.MIN):
            self._run(call, sums.extremes(array, op), array, out)
        elif array.dtype == np.int32:
            self._run(call, sums.integers(array, average_of=divisor), array, out)
        elif self._world.size * array.nbytes <= SMALL_BYTES:
            padded = np.zeros(-(-array.nbytes // _WORD) * _WORD, np.uint8)
            padded[: array.nbytes] = array.view(np.uint8)
            sum_rows(self._rows(call, padded).view(np.int32), out, divisor=divisor)
        elif wire.halves(array.dtype):
            self._run(call, sums.halves(array, divisor=divisor), array, out)
        else:
            self._in_fixed_point(call, array, out, divisor)

    def _in_fixed_point(self, call: Call[Any], array: Array, out: Array, divisor: int) -> None:
        starts = sums.block_starts(array.size, self._blocks)
        agreed = self._agree(call, sums.exponents(array, starts))
        apart = sums.special(starts, agreed, array.size)
        rare = array[apart] if apart.any() else None  # before `out` is written, which may be `array`
        form = sums.fixed_point(array, starts, agreed, workers=self._world.size, divisor=divisor)
        self._run(call, form, array, out, starts=starts.tobytes())
        if rare is not None:
            rows = self._rows(call, rare.view(np.uint8)).view(array.dtype)
            out[apart] = sums.by_ring(rows, divisor=divisor)
            self._tally.non_finite_fallbacks += 1

    def _agree(self, call: Call[Any], own: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
        """The largest of all workers' bytes, one by one."""
        found = np.empty_like(own)

        def merge(rows: list[Any], where: slice) -> Array:
            largest: Array = np.maximum.reduce(rows)
            return largest.astype(np.float16)  # in which a byte is exact, and takes two bytes on the wire

        def fill(where: slice, target: Any) -> None:
            target[:] = own[where]

        def finish(largest: Array, where: slice, target: Any) -> None:
            target[:] = largest.astype(np.uint8)

        form = Form(width=1, op=Reduction.MAX, fill=fill, merge=merge, finish=finish)
        self._run(call, form, own, found)
        return found

    def _run(self, call: Call[Any], form: Form, array: Array, out: Array, *, starts: bytes = b"") -> None:
        """One sum: pieces at the same time, or, without a pipeline, one way after the other."""
        piece_elements = SLOT_BYTES // max(form.width, out.itemsize)
        if starts:
            piece_elements -= self._blocks.block_elements  # pieces end where blocks do
        # Alike without a pipeline: so workers that say differently what they want still take the same steps.
        pieces = pieces_of(out.size, self.machine.size, piece_elements, starts)
        if not call.pipeline or len(pieces) == 1:
            shares = [share for _, share in self._add_up(call, form, pieces)]
            whole = np.concatenate(shares) if shares else np.empty(0, np.int32)
            total = self._in_plane(call, whole, form.op, form).result() if whole.size else whole
            ends = np.cumsum([share.size for share in shares[:-1]], dtype=np.int64)
            self._gather(call, form, zip(pieces, np.split(total, ends) if pieces else (), strict=True), out)
            return
        results: queue.SimpleQueue[tuple[Piece, Future[Array] | None] | None] = queue.SimpleQueue()

        def parts() -> Iterator[tuple[Piece, Array]]:
            while (item := results.get()) is not None:
                piece, future = item
                yield piece, np.empty(0, np.int32) if future is None else future.result()

        def gather() -> None:
            try:
                self._gather(call, form, parts(), out)
            except BegunAnewError:
                raise
            except BaseException as error:
                self._fail(error)  # who adds up waits for slots that nobody will read
                raise

        gathered = self._gathering.submit(gather)
        try:
            for piece, share in self._add_up(call, form, pieces):
                future = self._in_plane(call, share, form.op, form) if share.size else None
                results.put((piece, future))
        finally:
            results.put(None)
            wait([gathered])
        gathered.result()

    def _add_up(self, call: Call[Any], form: Form, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Array]]:
        """Put our numbers of each piece where the others read them, and add up our share of all."""
        local, others, width = self.machine.rank, self.machine.size - 1, form.width

        def fill(piece: Piece, slot: Bytes) -> None:
            form.fill(slice(piece.start, piece.end), slot[: (piece.end - piece.start) * width])

        def received(piece: Piece) -> int:
            mine = piece.share(local)
            return int(others * (mine.stop - mine.start) * width)

        steps = self._lane.carry(pieces, call.what, self.machine.pace, fill=fill, received=received)
        for piece, slots in steps:
            mine = piece.part(local)
            rows = [slot[mine.start * width : mine.stop * width] for slot in slots]
            yield piece, form.merge(rows, piece.share(local))

    def _gather(self, call: Call[Any], form: Form, parts: Iterable[tuple[Piece, Array]], out: Array) -> None:
        """Put our share's result of each piece where the others read it, and take theirs."""
        local, width, into = self.machine.rank, out.itemsize, out.view(np.uint8)

        def fill(step: tuple[Piece, Array], slot: Bytes) -> None:
            piece, part = step
            mine = piece.share(local)
            if part.size:
                form.finish(part, mine, slot[: (mine.stop - mine.start) * width])

        def received(step: tuple[Piece, Array]) -> int:
            piece, _ = step
            mine = piece.share(local)
            return int((piece.end - piece.start - (mine.stop - mine.start)) * width)

        steps = self._results.carry(parts, call.what, self.machine.pace, fill=fill, received=received)
        for (piece, _), slots in steps:
            for rank, slot in enumerate(slots):
                share = piece.share(rank)
                into[share.start * width : share.stop * width] = slot[: (share.stop - share.start) * width]

    def _in_plane(
        self, call: Call[Any], array: Array, op: Reduction, form: Form | None = None
    ) -> Future[Array]:
        """The plane's all-reduce of this; its messages say what the user has called."""
        result = np.empty_like(array)
        wire = Wire.FULL if form is None else form.wire
        narrow = None if form is None else form.by_ring

        def steps(plane_call: PlaneCall, strategy: Strategy) -> Steps[Any]:
            named = replace(plane_call, wire=wire, signature=call.signature)
            if narrow is not None and strategy is Strategy.RING:
                with np.errstate(over="ignore"):
                    halves = array.astype(narrow)
                yield from ring.all_reduce(named, halves, halves)
                result[...] = halves
            else:
                yield from algorithm_of(strategy).all_reduce(named, array, result)

        return self._submit(call, Kind.ALL_REDUCE, array, result, steps, op)

    def _submit(
        self,
        call: Call[Any],
        kind: Kind,
        array: Array,
        result: Array,
        steps: Callable[[PlaneCall, Strategy], Steps[Any]],
        op: Reduction = Reduction.NONE,
    ) -> Future[Array]:
        how: Any = {"strategy": call.strategy, "reduction": op, "gang_renewal": call.gang_renewal}
        future = self.plane.submit(call.what, kind, array, result, steps, **how)
        if self.plane.is_in_elastic_gang:
            self._under_way.append(future)
        return future

    def _rows(self, call: Call[Any], data: Any) -> Array:
        """All workers' bytes, by rank: (world_size, data.size)."""
        self._together(call, b"")  # who has called something else hears it before planes wait for each other
        machines = self._world.size // self.machine.size
        planes_rows = np.empty((machines, data.size), np.uint8)
        if data.size:
            planes_rows = self._gather_in_plane(call, data)
        flat = planes_rows.reshape(-1)
        everybody = np.empty((self.machine.size, flat.size), np.uint8)
        for start in range(0, flat.size, SLOT_BYTES):
            part = flat[start : start + SLOT_BYTES]
            for rank, row in enumerate(self._together(call, part)):
                everybody[rank, start : start + part.size] = row
        by_rank = everybody.reshape(self.machine.size, machines, data.size).transpose(1, 0, 2)
        return np.ascontiguousarray(by_rank).reshape(self._world.size, data.size)

    def _gather_in_plane(self, call: Call[Any], data: Any) -> Array:
        machines = self._world.size // self.machine.size
        result = np.empty((machines, data.size), np.uint8)
        flat = result.reshape(-1)

        def steps(plane_call: PlaneCall, strategy: Strategy) -> Steps[Any]:
            named = replace(plane_call, signature=call.signature)
            program: Steps[Any] = algorithm_of(strategy).all_gather(named, data, flat)
            return program

        self._submit(call, Kind.ALL_GATHER, data, result, steps).result()
        return result

    def _together(self, call: Call[Any], data: Any) -> list[Array]:
        """The bytes of all of the machine's workers, of which all have as many; at most a slot."""
        own = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        self._lane.slot()[: own.size] = own
        self._lane.post(call.what)
        rows = [row[: own.size].copy() for row in self._lane.rows()]
        self.machine.pace.take((self.machine.size - 1) * own.size)
        self._lane.release()
        return rows
