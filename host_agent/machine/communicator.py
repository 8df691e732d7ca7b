"""A job whose machines have several GPUs: `MachineCommunicator.join(..., gpus_per_host=n)`.

Rank h * n + g is GPU g of machine h. Each worker is in two groups: its machine's workers, over shared
memory, and its plane, local rank g of all machines, which is an ordinary job. `gang.py` decides what a call
may do among those of the machine; here are the threads, the memory and the plane that it needs.
`hierarchy.py` runs it.

A failure in one plane ends the gang: its workers notify their machines, which notify the other planes.

An elastic job goes on without machines: a worker that dies takes its whole machine out of all planes. In a
collective under way, some planes may have that machine's part by then, and others not. So every renewal
begins anew the first collective that no GPU has finished, on all GPUs, from its inputs. A collective that
some GPU has finished is finished on all, with that machine's part: each plane gives its results to those that
lack them.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from controller.api.messages import MAX_PLANES, Gang, Mode
from host_agent.collectives.plan import Strategy
from host_agent.collectives.signature import Signature, described, signature
from host_agent.communicator import Communicator
from host_agent.errors import (
    CommunicatorClosedError,
    CommunicatorError,
    JobEndedError,
    MismatchError,
    UsageError,
)
from host_agent.execution import Tally
from host_agent.front import Collectives, Wanted
from host_agent.machine.channel import REGION_BYTES, Board, Lane, Pace
from host_agent.machine.gang import (
    CANCELLED,
    Action,
    Ask,
    Asked,
    Differ,
    Finish,
    Place,
    Return,
    Stage,
    Start,
    Tell,
    World,
)
from host_agent.machine.gang import Gang as Machinery
from host_agent.machine.hierarchy import Hierarchy, Machine, Running
from host_agent.machine.meeting import Meeting, Who, meet
from host_agent.membership import MembershipChange, View
from host_agent.metrics import Statistics
from host_agent.quantisation import Blocks
from host_agent.recovery import NUMBERS, BegunAnewError
from host_agent.runner import NOTICE_S, give_up_or_say_so
from host_agent.transport.events import Counters
from host_agent.turns import Turns
from host_agent.wire.aggregation import Kind

_SOON_S: Final = 0.02  # how long a wait goes on before anybody is told of it


@dataclass(frozen=True)
class Call:
    """A collective that is ready to run. `signature`: what machines compare of it, except for its number."""

    wanted: Wanted[Any]
    asked: Asked
    signature: Signature
    pipeline: bool

    @property
    def what(self) -> str:
        """The call in words."""
        return self.wanted.what


@dataclass(frozen=True)
class _CatchUp:
    """Stand-in for calls that were cancelled: takes their steps if no other call does."""

    what: str = "a call that was cancelled"


_CATCH_UP: Final = _CatchUp()


class _RefusedError(Exception):
    """Refusal of a collective that the workers that are left cannot do, which all find alike."""


class MachineCommunicator(Collectives):
    """A `Communicator` of all workers of all machines; `plane` is this worker's job between machines."""

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
        self._joined_size = who.world_size
        self._who, self._meeting, self._timeout_s = who, meeting, timeout_s
        self._pipeline = pipeline
        self._left = False
        self._failure: BaseException | None = None
        self._unheard: BaseException | None = None  # the error that a cancelled call came to
        self._is_heard = False  # a call of the user's has raised an error, or the user has aborted
        self._tally = Tally()
        self._called = 0
        self._roots: dict[int, int] = {}  # of calls, as who they joined when those were made
        # What runs
        self._what = ""
        self._noticed = (0, 0)  # the last line in the log: of which step, after how long
        self._running_since = time.monotonic()
        self._renewal = 0  # after which
        self._gang = Machinery(
            who.local_rank, who.local_size, who.rank - who.local_rank, plane.is_in_elastic_gang
        )
        self._board = Board(meeting)
        self._waits_for: tuple[int, ...] = ()
        ready = plane.ready
        self._on = Hierarchy(
            plane=plane,
            machine=self.machine,
            lane=Lane(meeting, 0, stalled=self._stalled, look=self._require_not_begun_anew),
            results=Lane(meeting, 1, stalled=self._stalled, look=self._require_not_begun_anew),
            blocks=Blocks.of(path_mtu=ready.path_mtu, message_packets=ready.message_packets, half=False),
            gathering=ThreadPoolExecutor(1, f"p4reduce-gather{who.rank}"),
            under_way=[],
            fail=self._fail,
            fell_back=self._tally.fell_back,
        )
        self._turns = Turns(
            f"p4reduce-gang{who.rank}",
            admit=self._admit,
            perform=self._perform,
            fail=self._fail,
            cancelled=self._cancelled,
        )
        plane.machine_status = self._machine_status
        plane.leave_warnings()
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
    ) -> Collectives:
        """Join as `Communicator.join`: GPU rank % gpus_per_host of machine rank // gpus_per_host.

        All workers of a machine, which are processes of one user and one network namespace, share memory. A
        worker's reads are held back to `intra_rate_bit_s` (None: not), as a channel of that rate in each
        direction would do. `pipeline`: pieces of a tensor are added up, summed by planes and gathered at the
        same time. Both have to be the same on all workers.

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
    def _seen(self) -> World:
        """The workers of all machines, as the next call sees them."""
        return self._world_of(self.plane.view_at(self._called))

    @property
    def rank(self) -> int:
        """Number of this worker among those of all machines, which are counted machine by machine."""
        return self._seen.rank

    @property
    def world_size(self) -> int:
        """Number of workers on all machines."""
        return self._seen.size

    @property
    def members(self) -> tuple[int, ...]:
        return self._seen.members

    @property
    def generation(self) -> int:
        """The plane's generation."""
        return self.plane.generation

    @property
    def mode(self) -> Mode:
        """The maker of the sums of this worker's plane now: switch or ring."""
        return self.plane.mode

    @property
    def mode_reason(self) -> str:
        return self.plane.mode_reason

    @property
    def failure(self) -> CommunicatorError | None:
        if isinstance(self._failure, CommunicatorError):
            return self._failure
        return self._meeting.failure or self.plane.failure

    def on_change(self, callback: Callable[[MembershipChange], None]) -> None:
        """Call `callback` as a Communicator does: an elastic job loses the workers of whole machines."""
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
        self._meeting.on_failure(callback)
        self.plane.on_end(callback)

    def counters(self) -> Counters:
        """Return the counters of the plane's connection."""
        return self.plane.counters()

    def statistics(self) -> Statistics:
        """Return the collectives run, the time spent in them, and the plane's traffic on the wire."""
        return replace(self.plane.statistics(), **asdict(self._tally))

    def status(self, job: str) -> dict[str, Any]:
        """Return the plane's status, and where the worker stands in its machine."""
        return self.plane.status(job)

    def _machine_status(self) -> dict[str, Any]:
        waits_for = {*self._on.lane.waits_for, *self._on.results.waits_for, *self._waits_for}
        return {
            "local_rank": self.machine.rank,
            "size": self.machine.size,
            "waits_for": sorted(waits_for - {self.machine.rank}),
        }

    # The end

    def leave(self, *, timeout_s: float = 60.0) -> None:
        if self._left:
            return
        self._turns.require_other_thread("leave")
        with self._turns.order:  # a call that another thread makes is in the queue, or refused
            self._left = True
        try:
            self._turns.close()
            if not self._turns.are_over(timeout_s=timeout_s):
                raise CommunicatorClosedError(
                    f"leave: a collective that another thread has called is not over after {timeout_s:g} s; "
                    "wait for it before, or abort"
                )
            self._raise_unheard()
            # The machine hears of our own failure, whatever it is, a moment later.
            if self._failure is self.failure is None:
                self._catch_up(self._called)
            self._meeting.leave(self._called)
            self.plane.leave(timeout_s=timeout_s)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._meeting.close()
            self._let_go()

    def _let_go(self) -> None:
        """Give the machine's memory back, unless a call of a job that has failed may still use it."""
        if self._turns.is_idle:
            self._on.gathering.shutdown(wait=True)
            for part in (self._board, self._on.lane, self._on.results):
                part.close()
            self._meeting.regions.clear()

    def abort(self, reason: str) -> None:
        self._is_heard = True  # by whoever ends the job itself
        self._fail(CommunicatorClosedError(f"this worker aborted the job: {reason}"), reason)
        self.leave()

    # Running

    def _call_of(self, wanted: Wanted[Any]) -> Call:
        if wanted.feedback is not None:
            raise UsageError("error feedback is for jobs with one GPU a machine: leave it out")
        source, ready = wanted.source, self.ready
        pipeline = self._pipeline if wanted.pipeline is None else wanted.pipeline
        rows = (*source.shape, 0)[0] if wanted.kind is Kind.REDUCE_SCATTER else None
        is_elastic = self.plane.is_in_elastic_gang
        named = signature(wanted.kind, wanted.root or 0, wanted.reduction, source.dtype, source.size)
        settings = (
            *(wanted.kind.name, wanted.reduction.name, wanted.root, described(source.dtype), source.size),
            *(wanted.strategy.value, wanted.wire.value, pipeline),
            *(ready.path_mtu, ready.message_packets, self._who.world_size, is_elastic),
            rows if is_elastic else None,  # whoever is left refuses by them
        )
        what = wanted.what
        if is_elastic and rows is not None:
            what += f" in {rows} rows"
        if wanted.strategy is not Strategy.AUTO:
            what += f" ({wanted.strategy.value})"
        if wanted.pipeline is not None:
            what += f" {'with' if pipeline else 'without'} a pipeline"
        asked = Asked(
            what,
            hashlib.sha256(repr(settings).encode()).digest(),
            root=wanted.root,
            rows=rows,
            strict=wanted.strategy is Strategy.IN_NETWORK,
        )
        return Call(wanted, asked, named, pipeline)

    def _admit(self, call: Call | _CatchUp) -> int:
        self._require_no_failure(call)
        if self._left:
            raise CommunicatorClosedError(f"{call.what}: this communicator has left its job; join again")
        number = self._called
        if isinstance(call, Call):
            if call.asked.root is not None and call.asked.root < (seen := self._seen).size:
                self._roots[number] = seen.members[call.asked.root]
            self.plane.warn_of_ring(stacklevel=5)  # _admit, the turn's two, the front's method, the user
            self._called += 1
            self.plane.gang_called(self._called)
        return number

    def _cancelled(self, number: int) -> None:
        """Queue a step for a cancelled call: the mates have to hear of it, even if no other call is made."""
        with suppress(CommunicatorError):
            self._turns.later(_CATCH_UP)

    def _hears(self, call: Call | _CatchUp, error: BaseException) -> None:
        """Note whether the user hears of an error: nobody asks for a cancelled call's result."""
        if isinstance(call, Call):
            self._is_heard = True
        elif not self._is_heard:
            self._unheard = error

    def _perform(self, call: Call | _CatchUp, number: int) -> Any:
        self._require_no_failure(call)
        self._what, started, ringed = call.what, time.monotonic(), self.plane.statistics().ring
        try:
            self._catch_up(number)
            if not isinstance(call, Call):
                return None
            result = self._through(_rooted(call.asked, self._roots.pop(number, None)), call)
        except _RefusedError as error:  # by all alike
            raise UsageError(str(error)) from None
        except CommunicatorError as error:
            first = self._meeting.failure or self._of_all(error)  # what came of it is no news
            self._hears(call, first)  # first: another call may find out that the job has failed at once
            self._fail(first)
            raise first from error
        except BaseException as error:
            self._hears(call, error)
            self._fail(error)
            raise
        taken = Strategy.IN_NETWORK if self.plane.statistics().ring == ringed else Strategy.RING
        self._tally.add(taken, switched=None, seconds=time.monotonic() - started)
        return result

    def _catch_up(self, number: int) -> None:
        """Take the steps of calls that were cancelled."""
        while self._gang.step < number:
            self._through(CANCELLED, None)

    def _through(self, asked: Asked, call: Call | None) -> Any:
        """Take one step as the gang decides, and again if a renewal begins it anew."""
        gang, result = self._gang, None
        kept = None
        if call is not None and gang.is_elastic and call.wanted.is_in_place:
            kept = call.wanted.source.copy()
        gang.begin(asked, self._lanes, self._place())
        while True:
            try:
                match self._next():
                    case Ask(start):
                        gang.found_way(self._running(call, start).way())
                    case Start() as start:
                        for lane, behind in zip((self._on.lane, self._on.results), start.lanes, strict=True):
                            lane.go_on_from(behind)
                        result = self._running(call, start).run()
                        gang.has_result()
                    case Finish(renewal):
                        self.plane.finish_gang_collective(renewal, asked.what)
                        gang.finished()
                    case Return(refused):
                        self._on.under_way.clear()
                        if refused is not None:
                            raise _RefusedError(refused)
                        return result
                    case Differ(reason):
                        raise MismatchError(reason)
            except BegunAnewError:
                wait(self._on.under_way)
                self._on.under_way.clear()
                if kept is not None and call is not None:
                    call.wanted.source[...] = kept
                gang.dropped(self._lanes, self._place())

    def _next(self) -> Action:
        """Let the gang hear of its mates and the plane until it wants something that takes time."""
        gang, meeting, began = self._gang, self._meeting, time.monotonic()
        while True:
            for action in gang.actions():
                if not isinstance(action, Tell):
                    self._waits_for = ()
                    return action
                self._board.tell(action.notice)
            if meeting.failure is not None:
                raise meeting.failure
            late = gang.late
            left = {mate: meeting.left[mate] for mate in late if mate in meeting.left}
            news = {mate: self._board.news(mate) for mate in range(gang.size) if mate != gang.local_rank}
            for mate, notice in news.items():
                if notice is not None:
                    gang.heard(mate, notice)
            for mate, calls in left.items():  # who has left had said all that it had to say
                gang.left(mate, calls)
            if gang.is_elastic:
                self._look_at_plane()
            if any(news.values()) or left or not late:
                continue
            self._board.wait(late[0])
            if (seconds := time.monotonic() - began) > _SOON_S:
                self._waits_for = late
                self._stalled(seconds, list(late))

    def _look_at_plane(self) -> None:
        """Look at the plane: a renewal may be over, or begin anew a call that waits for mates."""
        match self._gang.stage:
            case Stage.MEETING:
                self._gang.stands(self._place())
            case Stage.AGREEING:
                self._require_not_begun_anew()

    def _running(self, call: Call | None, start: Start) -> Running:
        assert call is not None
        self._renewal = start.renewal
        named = replace(call.signature, root=start.root, step=self._gang.step % NUMBERS)
        return Running(self._on, call.wanted, named, start, pipeline=call.pipeline)

    @property
    def _lanes(self) -> tuple[int, ...]:
        return self._on.lane.step, self._on.results.step

    def _place(self) -> Place:
        if not self._gang.is_elastic:
            world = self._world_of(self.plane.view_at(0))
            return Place(0, (world,))
        renewal, views = self.plane.begins_gang_collective(self._gang.step)
        return Place(renewal, tuple(map(self._world_of, views)))

    def _world_of(self, view: View) -> World:
        """Return the workers of a plane's machines."""
        size = self.machine.size
        members = tuple(machine * size + gpu for machine in view.members for gpu in range(size))
        return World(view.rank * size + self.machine.rank, members)

    def _require_not_begun_anew(self) -> None:
        if self.plane.is_begun_anew(self._renewal):
            raise BegunAnewError(self._what)

    def _fail(self, error: BaseException, reason: str | None = None) -> None:
        """Run no collective after this, and end the job for everybody."""
        if self._failure is None:
            self._failure = error
        self._turns.stop()
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
        """Return the local rank of another worker of this machine that an error is about."""
        rank = error.rank if isinstance(error, JobEndedError) else None
        size, own = self.machine.size, self._who.rank
        return rank % size if rank is not None and rank != own and rank // size == own // size else None

    def _plane_ended(self, error: CommunicatorError) -> None:
        self._meeting.fail(self._of_all(error))

    def _machine_failed(self, error: CommunicatorError) -> None:
        """End this worker's plane, as another worker of this machine has failed, or its plane has ended."""
        # From the thread that watches: a plane's end waits for threads that may wait for that one.
        threading.Thread(
            target=self._end_plane, args=(error, str(error)), name=f"p4reduce-end{self.rank}", daemon=True
        ).start()

    def _of_all(self, error: CommunicatorError) -> CommunicatorError:
        """Return a plane's error with the rank among all workers."""
        if not isinstance(error, JobEndedError) or error.rank is None:
            return error
        plane = self.machine.rank if error.plane is None else error.plane
        rank = error.rank * self.machine.size + plane
        told = type(error)(error.reason, rank=rank, host=error.host, first_message=error.first_message)
        told.__cause__ = error
        return told

    def _require_no_failure(self, call: Call | _CatchUp) -> None:
        try:
            self._raise_unheard()
            failure = self._meeting.failure
            if self._failure is not None and (failure is None or failure is self._failure):
                raise CommunicatorClosedError(
                    f"{call.what}: this communicator failed earlier and its job has ended; join again. "
                    f"It was: {self._failure}"
                ) from self._failure
            if failure is not None:
                raise failure.with_traceback(None)
        except BaseException as error:
            self._hears(call, error)
            raise

    def _raise_unheard(self) -> None:
        if self._unheard is not None and not self._is_heard:
            raise self._unheard

    def _stalled(self, seconds: float, local_ranks: list[int]) -> None:
        if seconds < (NOTICE_S if self._timeout_s is None else self._timeout_s):
            return
        notice = self._gang.step, int(seconds // NOTICE_S)
        if self._timeout_s is None and notice == self._noticed:
            return
        self._noticed = notice
        late = ", ".join(f"GPU {gpu} (rank {self.rank - self.machine.rank + gpu})" for gpu in local_ranks)
        stall = f"{self._what}: {late} of this machine has come no further for {seconds:.0f} s"
        give_up_or_say_so(stall, self._timeout_s)


def _rooted(asked: Asked, member: int | None) -> Asked:
    """Return the call with the worker of its root, whom mates have to take for the root, too."""
    if member is None:
        return asked
    digest = hashlib.sha256(asked.digest + member.to_bytes(4, "big")).digest()
    return replace(asked, member=member, digest=digest)
