"""One job as a state machine: joining, starting, moves, renewals, lost workers and leaving.

`jobs/states.py` has the states, and the table of which follows which. Only `_becomes` changes the state of a
job once it is made. `hear` takes what a worker says; the controller makes all other calls. `take_effects`
returns what is to be done and said, in the order in which it came up.

Nothing here does I/O or reads a clock: times come in as seconds of a monotonic clock. A session that breaks
before Ready frees its rank. After Ready the worker may resume, until its heartbeats have been missing for too
long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.api.errors import ConflictError, InvalidRequestError, NotPossibleError
from controller.api.messages import (
    Abort,
    Called,
    Compare,
    EndCause,
    Ended,
    FromController,
    FromWorker,
    Gang,
    Heartbeat,
    Held,
    JobSpec,
    Lacking,
    Leave,
    Left,
    Mode,
    Moved,
    Paused,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Resumed,
    Stalled,
    Start,
    Up,
    Waiting,
)
from controller.jobs import effects
from controller.jobs.comparing import Comparison, in_vain
from controller.jobs.moves import Move
from controller.jobs.renewals import Agreed, Cause, Renewal
from controller.jobs.specs import Member, Phase, Plan, Timing
from controller.jobs.states import MOVING, RENEWING, State, require
from controller.jobs.workers import Workers, WorkerState, require_alike


class Job:
    """A job; the top of the file says more. `explicit`: it was created, and not by the first worker to join.

    `move` and `renewal`: those under way; `comparison`: of workers' calls, before the job ends for a
    mismatch. `numbered`: the number of messages in its generation so far. `newest`: the newest generation
    that a worker has come back from; the database may be older.
    """

    def __init__(self, spec: JobSpec, timing: Timing, *, explicit: bool = False) -> None:
        self.spec = spec
        self.timing = timing
        self.explicit = explicit
        self.workers = Workers()
        self.plan: Plan | None = None
        self.outcome: Left | Ended | effects.Superseded | None = None
        self.move: Move | None = None
        self.renewal: Renewal | None = None
        self.comparison: Comparison | None = None
        self.numbered = self.newest = 0
        self._state = State.CREATED
        self._effects: list[effects.Effect] = []
        self._beaten_at = 0.0

    @classmethod
    def recovered(
        cls,
        spec: JobSpec,
        timing: Timing,
        plan: Plan,
        workers: Sequence[tuple[Member, bytes]],
        *,
        explicit: bool,
        phase: Phase,
        now: float,
        outcome: Left | Ended | effects.Superseded | None = None,
        dropped: Mapping[bytes, str] | None = None,
    ) -> Job:
        """Make a job from before a restart of the controller: it lives if all workers resume in time.

        With an `outcome` it is over, and had gone on without those `dropped` before.
        """
        job = cls(spec, timing, explicit=explicit)
        for member, token in workers:
            job.workers[member.rank] = WorkerState(
                member, now, timing.resume_timeout_s, token, connected=False, recovered=True
            )
        job.plan, job._state = plan, State.RUNNING if phase is Phase.RUNNING else State.READY
        if outcome is not None:
            for rank, worker in sorted(job.workers.items()):
                if dropped and worker.token in dropped:
                    job.workers.drop(rank, dropped[worker.token])
            job._becomes(State.ENDED)
            job.outcome = outcome
        return job

    def generation_so_far(self) -> Job:
        """Return its generation so far as a job that is over.

        The record of what it leaves on switches when the job goes on under another generation needs that.
        """
        job = Job(self.spec, self.timing, explicit=self.explicit)
        for rank, worker in self.workers.everybody.items():
            job.workers[rank] = replace(worker, knows_end=False)
        job.plan, job.outcome, job._state = self.plan, effects.Superseded(), State.ENDED
        return job

    def draft(self) -> Job:
        """Return the job as it will be when it is renewed: new QPs, ranks without gaps."""
        assert self.renewal is not None
        job = Job(self.spec, self.timing, explicit=self.explicit)
        job._state = State.INSTALLING
        for member, rank in zip(self.renewal.members(self.workers), sorted(self.workers), strict=True):
            job.workers[member.rank] = replace(self.workers[rank], member=member)
        return job

    # What it is.

    @property
    def state(self) -> State:
        """State in jobs/states.py."""
        return self._state

    @property
    def phase(self) -> Phase:
        """Phase that people see."""
        return self._state.phase

    @property
    def live(self) -> bool:
        """True if the job is not over."""
        return self._state is not State.ENDED

    @property
    def is_set_up(self) -> bool:
        """True if it runs, or shall run as soon as all workers are up."""
        return self.phase in (Phase.READY, Phase.RUNNING)

    @property
    def members(self) -> list[Member]:
        """The members that have joined, by rank."""
        return self.workers.members

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not joined."""
        return tuple(rank for rank in range(self.spec.world_size) if rank not in self.workers)

    @property
    def world_size(self) -> int:
        """The number of workers; in an elastic job it can shrink."""
        return self.spec.world_size if self.plan is None else len(self.workers)

    @property
    def awaited(self) -> tuple[int, ...]:
        """The ranks that a renewal or a move waits for."""
        if self.renewal is not None:
            return self.renewal.missing
        return tuple(sorted(self.move.missing)) if self.move is not None else ()

    @property
    def is_doubtful(self) -> bool:
        """True if the job may have gone on without some of the workers that have a part in it.

        A database that is from a backup, or on a disk that was full, does not know that; the workers do.
        """
        return any(
            worker.generation is None or worker.is_behind(self.newest) for worker in self.workers.values()
        )

    @property
    def offered(self) -> list[Member]:
        """The workers that have offered new QPs for a renewal, as they will be."""
        if self.renewal is None or self._state is State.RAISING:
            return []
        return self.renewal.members(self.workers)

    def rank_of(self, rank: int, token: bytes, generation: int | None = None) -> int:
        """Return the present rank of the worker with that token, which had `rank` in that generation.

        None: the present generation. Raise InvalidRequestError if the token is another's, NotPossibleError if
        its worker was dropped.
        """
        this = generation is None or (self.plan is not None and generation == self.plan.generation)
        return self.workers.rank_of(self.spec.name, rank, token, has_been_renumbered=not this)

    def take_effects(self) -> list[effects.Effect]:
        """Return the effects to carry out, in order, each once."""
        taken, self._effects = self._effects, []
        return taken

    def _becomes(self, state: State) -> None:
        """Change the job's state. No other place does."""
        self._state = require(self._state, state)
        if self._state not in MOVING:
            self.move = None
        if self._state not in RENEWING:
            self.renewal = None

    # Joining.

    def check(
        self,
        member: Member,
        world_size: int,
        tenant: str = "",
        *,
        elastic: bool = False,
        gang: Gang | None = None,
    ) -> None:
        """Raise InvalidRequestError or ConflictError if this worker cannot be taken in."""
        require_alike(
            self._spec_for(gang),
            self.workers,
            member,
            world_size,
            tenant,
            elastic=elastic,
            gang=gang,
            free=self.explicit,
        )
        if self._state not in (State.CREATED, State.JOINING):
            raise ConflictError(
                f"job {self.spec.name} is {self.phase.name.lower()} and takes nobody in, {member} neither: "
                "start it when the job has ended, or under another name"
            )

    def _spec_for(self, gang: Gang | None) -> JobSpec:
        """Return the spec; a created job becomes a plane if its first worker says so."""
        free = self.explicit and not self.workers and self.spec.gang is None
        return replace(self.spec, gang=gang) if free else self.spec

    def join(
        self,
        member: Member,
        world_size: int,
        now: float,
        tenant: str = "",
        *,
        elastic: bool = False,
        gang: Gang | None = None,
    ) -> None:
        """Take a worker in. Raise what `check` raises."""
        self.check(member, world_size, tenant, elastic=elastic, gang=gang)
        self.spec = self._spec_for(gang)
        self._becomes(State.JOINING)
        self.workers[member.rank] = WorkerState(member, now, self.timing.heartbeat_timeout_s)
        self._who_has_joined_changed()

    def _who_has_joined_changed(self) -> None:
        if self.spec.gang is None:
            self.gathered()
        else:
            self._effects.append(effects.Gathered())

    def gathered(self, missing_workers: tuple[str, ...] = ()) -> None:
        """Tell all workers who has not joined, or have the job set up when all have.

        A plane is set up when all planes of its gang are complete. `missing_workers`: in words, those missing
        there.
        """
        if self._state is not State.JOINING:
            return
        if self.missing or missing_workers:
            self._tell_all(Waiting(self.missing, missing_workers))
        else:
            self._becomes(State.INSTALLING)
            self._effects.append(effects.Install())

    def has_not_heard(self, member: Member) -> bool:
        """Tell whether a worker that joins has been taken in already: nobody else has its QPs and PSN."""
        worker = self.workers.get(member.rank)
        return self._state is State.READY and worker is not None and worker.member == member and not worker.up

    def join_again(self, rank: int, now: float) -> None:
        """Send Ready once more to a worker that never heard it; it belongs to this generation."""
        assert self.plan is not None
        worker = self.workers[rank]
        worker.connected, worker.generation = True, self.plan.generation
        self._heard(rank, now)
        self._tell(rank, self._ready(rank))

    def planned(self, plan: Plan, tokens: Mapping[int, bytes], now: float) -> None:
        """Note that the switches are written, and send Ready. The tokens, by rank, let workers resume."""
        if self._state is not State.INSTALLING:
            raise NotPossibleError(f"job {self.spec.name} is {self.phase.name}, nobody waits for its plan")
        self._becomes(State.READY)
        self.plan, self._beaten_at = plan, now
        for rank in plan.ring or sorted(self.workers):
            self.workers[rank].token, self.workers[rank].generation = tokens[rank], plan.generation
            self._heard(rank, now)
            self._tell(rank, self._ready(rank))

    # What workers say.

    def hear(self, rank: int, said: FromWorker, now: float) -> None:
        """Act on a worker's message. Raise NotPossibleError or InvalidRequestError if it may not send it."""
        if isinstance(said, (Up, Leave)) and self.plan is None and self.live:
            what = "ready to start" if isinstance(said, Up) else "leaving"
            raise NotPossibleError(f"{self.workers[rank].member} is {what}, but has not heard Ready")
        self._heard(rank, now)
        match said:
            case Heartbeat():
                self._heartbeat(rank, said, now)
            case Up():
                self._up(rank)
            case Leave():
                self._leave(rank, said.collectives, now)
            case Paused(number, next_collective):
                move = self._moving(State.PAUSING, number)
                if move is not None and move.paused(rank, next_collective, now):
                    self._becomes(State.HOLDING)
                    self._tell_all(move.saying)
            case Held(number):
                move = self._moving(State.HOLDING, number)
                if move is not None and move.held(rank):
                    self._becomes(State.RELOCATING)
                    self._effects.append(effects.Relocate(move.mode))
            case Renewing():
                self._renewing(rank, said)
            case Abort(reason, None, plane):
                self._abort(rank, reason, plane)
            case Abort(reason, Called() as called):
                self._disagrees(rank, called, reason, now)
            case Called():
                self._called(rank, said, now)
            case Stalled(collective):
                if self.is_set_up:
                    self._effects.append(effects.Stuck(self.workers[rank].token, collective))
            case _:
                raise InvalidRequestError(f"{type(said).__name__.lower()} in the middle of a session")

    def _heartbeat(self, rank: int, beat: Heartbeat, now: float) -> None:
        """Note that a worker lives. In an elastic job, answer, which renews its lease to return results.

        Do not renew the lease of a worker that is being dropped, or that keeps a renewal waiting and may be
        dropped for that. After a restart, renew none before all workers have come back: this one may have
        been dropped before it.
        """
        is_current = self.plan is not None and beat.generation == self.plan.generation
        if is_current:
            self.numbered = max(self.numbered, beat.messages)
        # What ran before a renewal may be refused after it, in a gang, and its number goes to the next call.
        self.workers[rank].in_collective = beat.running if is_current else None
        self._find_who_waits_in_vain(now)
        late = self.renewal is not None and rank in self.renewal.waiting
        unsure = late or self.workers[rank].lost or self.is_doubtful
        if self.spec.elastic and self.is_set_up and beat.number and not unsure:
            self._tell(rank, Heartbeat(number=beat.number))

    def _up(self, rank: int) -> None:
        """Note that a worker's QPs are ready, and let the job run when all are."""
        self.workers[rank].up = True
        if self._state is State.RAISING:
            assert self.renewal is not None
            cause = self.renewal.cause
            if self.renewal.is_up(rank):
                self._becomes(State.RUNNING)
                self._effects.append(effects.WentOn(cause))
                self._tell_all(Start())
        elif self._state is State.READY and all(worker.up for worker in self.workers.values()):
            self._begin_to_run()
            self._tell_all(Start())
        elif self.phase is Phase.RUNNING and self.renewal is None:  # it lost its session before it heard
            self._tell(rank, Start())

    def _leave(self, rank: int, collectives: int | None, now: float) -> None:
        """Let a worker leave after so many calls; it stays for its peers' sake until all leave."""
        worker = self.workers[rank]
        worker.leaving, worker.left_after, worker.in_collective = True, collectives, None
        if not self.live:
            return
        there = tuple(sorted(rank for rank, worker in self.workers.items() if not worker.leaving))
        if not there:
            self._finish(Left())
            return
        if self.comparison is not None:
            self._compared(now)
        else:
            self._find_who_waits_in_vain(now)
        if self.comparison is None:
            for other in sorted(self.workers.keys() - {*there}):
                self._tell(other, Waiting(there))

    def _abort(self, rank: int, reason: str, plane: int | None = None) -> None:
        """End the job as a worker asks; an elastic one goes on without that worker.

        `plane`: the cause is another worker of its machine, in that plane.
        """
        reason = reason or f"{self.workers[rank].member} gave up without saying why"
        if self.comparison is not None:  # it ends; this one may have failed as another has stopped for that
            return
        if self._can_lose_workers:
            self._drop(rank, reason, EndCause.WORKER_ABORTED, plane=self._other_plane(plane))
        else:
            self.end(reason, EndCause.WORKER_ABORTED, rank=rank, plane=self._other_plane(plane))

    def _other_plane(self, plane: int | None) -> int | None:
        """Return the plane if it is another one of this gang, else None."""
        gang = self.spec.gang
        if gang is None or plane is None or plane == gang.plane or plane not in range(gang.planes):
            return None
        return plane

    # Sessions that end, and begin again.

    def closed(self, rank: int) -> None:
        """Take out a worker that ended its session on purpose: it withdraws, or is lost."""
        worker = self.workers[rank]
        worker.connected = False
        reason = f"{worker.member} closed its session before everybody had left"
        if self._state is State.JOINING:
            self._withdraw(rank)
        else:
            self._lose(rank, reason)

    def broken(self, rank: int) -> None:
        """Mark a worker as disconnected. Before Ready, its rank is freed, or the set-up fails."""
        worker = self.workers[rank]
        worker.connected = False
        if not worker.recovered:  # else this is about the time when the controller was away
            worker.patience_s = min(worker.patience_s, self.timing.lost_timeout_s)
        if self._state is State.JOINING:
            self._withdraw(rank)
        elif self._state is State.INSTALLING:
            reason = f"{worker.member} lost its connection with the controller during set-up"
            self.end(reason, EndCause.WORKER_LOST, rank=rank)

    def heard_end(self, rank: int) -> None:
        """Note that a worker ended its session after it was told that the job is over."""
        if not self.live and rank in self.workers:
            self.workers[rank].knows_end = True

    def resume(
        self, rank: int, token: bytes, now: float, generation: int | None = None, answered: Sequence[int] = ()
    ) -> None:
        """Take back a worker that knows of that generation. Raise what `rank_of` raises.

        `answered`: the renewals that it has answered since, without hearing their end.
        """
        rank = self.rank_of(rank, token, generation)
        worker = self.workers[rank]
        worker.connected = True
        self._heard(rank, now)
        if self.plan is not None:
            known = self.plan.generation if generation is None else generation
            self.newest = max(self.newest, known)
            worker.generation = max(worker.generation or 0, known, self.plan.generation)
            worker.answered = answered
        if isinstance(self.outcome, (Left, Ended)):
            self._tell(rank, self.outcome)
        if not self.live:
            return
        renewed = self._drop_left_behind()
        if not self.live or rank not in self.workers:
            return
        self._tell(rank, Resumed())
        if self.comparison is not None:
            self._tell(rank, Compare(self.comparison.collective))
        if self.renewal is not None and not self._is_ahead(generation or 0):
            self._tell_renewal(rank, now)
        elif self.move is not None:
            self._tell(rank, self.move.saying)
        elif self.is_set_up and self.plan is not None:
            if generation not in (None, self.plan.generation):
                if not renewed:
                    self._interrupted(Cause.INTERRUPTED, RESTARTED)
            elif self.phase is Phase.RUNNING:  # it may not have heard how a move ended
                self._tell(rank, Moved(0, self.plan.mode, self.plan.mode_reason))

    def _is_ahead(self, generation: int) -> bool:
        """Tell whether a worker is ahead of the renewal, so that it takes no part: the database was older."""
        assert self.renewal is not None
        number = self.renewal.number
        return generation > number or (generation == number and self._state is State.ASKING)

    # Moving.

    def why_not_move(self) -> str:
        """Say why the job cannot be moved now; return "" if it can."""
        if self.phase is not Phase.RUNNING:
            return f"it is {self.phase.name.lower()}"
        if self.renewal is not None:
            return f"it is being renewed: {self.renewal.reason}"
        if self.move is not None:
            return "it is being moved already"
        for rank, worker in sorted(self.workers.items()):
            if worker.leaving:
                return f"rank {rank} is leaving"
            if not worker.connected:
                return f"rank {rank} is without a connection to the controller"
        return ""

    def move_to(self, mode: Mode, number: int, now: float) -> None:
        """Begin a move; `number` tells one from another. Raise NotPossibleError if `why_not_move` says so."""
        if why := self.why_not_move():
            raise NotPossibleError(f"job {self.spec.name} cannot be moved: {why}")
        self._becomes(State.PAUSING)
        self.move = Move(number, mode, frozenset(self.workers), now)
        self._tell_all(self.move.saying)

    def _moving(self, state: State, number: int) -> Move | None:
        """Return the move if a worker's answer is to this step of it; other answers are old."""
        return self.move if self._state is state and self.move and self.move.number == number else None

    def moved(self, mode: Mode, reason: str) -> None:
        """End a move, as the switches are written or could not be: all go on in this mode.

        Do nothing after the job's end.
        """
        if self._state is State.RELOCATING:
            self._move_ends(mode, reason)

    def call_off(self, reason: str, *, at_switches: bool = False) -> None:
        """Call off the move, unless the switches are being written.

        With `at_switches`, call it off even if all workers hold: the switches are not being written.
        """
        states = MOVING if at_switches else (State.PAUSING, State.HOLDING)
        if self._state in states and self.plan is not None:
            self._effects.append(effects.Stayed(reason))
            self._move_ends(self.plan.mode, self.plan.mode_reason)

    def _move_ends(self, mode: Mode, reason: str) -> None:
        assert self.move is not None
        assert self.plan is not None
        number = self.move.number
        self._becomes(State.RUNNING)
        self.plan = replace(self.plan, mode=mode, mode_reason=reason)
        self._tell_all(Moved(number, mode, reason))

    # Renewing.

    def renew(self, number: int, cause: Cause, reason: str, now: float) -> None:
        """Begin to go on as generation `number`, in place of a renewal under way. Raise NotPossibleError.

        A job that is only ready runs from here on: its workers, up or not, wait for what comes next.
        """
        if not self.is_set_up:
            raise NotPossibleError(f"job {self.spec.name} cannot be renewed: it is {self.phase.name.lower()}")
        if self._state is State.READY:
            self._effects.append(effects.Started())
        if self._state in (State.PAUSING, State.HOLDING):
            self._effects.append(effects.Stayed(f"it is renewed: {reason}"))
        self._becomes(State.ASKING)
        self.renewal = Renewal(number, cause, reason, frozenset(self.workers), now)
        self._effects.append(effects.Detach())
        self._tell_all(Renew(number, reason))

    def awaits(self, rank: int, number: int) -> bool:
        """Tell whether that renewal is waiting for a worker's answer."""
        renewal = self.renewal
        return (
            renewal is not None
            and self._state is State.ASKING
            and number == renewal.number
            and rank in renewal.waiting
        )

    def _renewing(self, rank: int, answer: Renewing) -> None:
        """Note a worker's answer to Renew: it sends nothing more in the old generation."""
        if self.spec.elastic and self.spec.gang is not None and answer.gang_collective is None:
            raise InvalidRequestError(
                f"{self.workers[rank].member} does not say in which collective of its elastic gang it is: "
                "update p4reduce on its machine"
            )
        if self.renewal is not None and answer.renewal <= self.renewal.number:
            asked = self._state is State.ASKING and answer.renewal == self.renewal.number
            if asked and self.renewal.answered(rank, answer):
                self._all_answered()
        elif self.is_set_up and self.plan is not None and answer.renewal >= self.plan.generation:
            self._interrupted(Cause.INTERRUPTED, RESTARTED)

    def _all_answered(self) -> None:
        renewal = self.renewal
        assert renewal is not None
        if (apart := renewal.apart) is None:
            self._becomes(State.REBUILDING)
            self._effects.append(effects.Rebuild(renewal.number))
            return
        (rear, front), answers = apart, renewal.answers
        self.end(
            f"job {self.spec.name} cannot go on: {self.workers[rear].member} has not finished collective "
            f"{answers[rear].collective}, but {self.workers[front].member} stands at "
            f"{answers[front].collective}",
            EndCause.CANNOT_GO_ON,
        )

    def is_rebuilding(self, number: int) -> bool:
        """Tell whether that renewal waits for the call of `renewed`."""
        return self._state is State.REBUILDING and self.renewal is not None and self.renewal.number == number

    def renewed(self, plan: Plan, now: float, agreed: Agreed) -> None:
        """Bring all workers up in the generation of the plan, as the switches are written."""
        renewal = self.renewal
        if renewal is None or not self.is_rebuilding(plan.generation):
            raise NotPossibleError(f"job {self.spec.name}: nobody waits for generation {plan.generation}")
        self._becomes(State.RAISING)
        new_ranks = self.workers.renumber(renewal.members(self.workers), plan.generation)
        self.plan, self.numbered = plan, 0
        renewal.agreed = agreed
        renewal.written(new_ranks, now)
        self._effects.append(effects.Renumbered(new_ranks))
        for rank in sorted(self.workers):
            self._tell_renewal(rank, now)

    def has_stopped(self, token: bytes) -> bool:
        """Tell whether a worker has taken down its connections for a renewal, and waits."""
        renewal = self.renewal
        return renewal is not None and any(
            worker.token == token and (self._state is not State.ASKING or rank not in renewal.waiting)
            for rank, worker in self.workers.items()
        )

    def _tell_renewal(self, rank: int, now: float) -> None:
        """Tell a worker the present step of the renewal."""
        renewal = self.renewal
        assert renewal is not None
        if self._state is State.RAISING:
            event = Renewed(
                renewal=renewal.number,
                ready=self._ready(rank),
                collective=renewal.goes_on_with,
                holder=renewal.holder,
                members=tuple(member.original_rank for member in self.members),
                gang_renewal=renewal.agreed.gang_renewal,
                gang_collective=renewal.agreed.gang_collective,
                ranks_from=renewal.agreed.ranks_from,
                over=renewal.agreed.over,
            )
            self._tell(rank, event)
        elif rank in renewal.waiting:
            self._tell(rank, Renew(renewal.number, renewal.reason))
        renewal.asked_at[rank] = now

    # Calls that do not match.

    def _disagrees(self, rank: int, called: Called, reason: str, now: float) -> None:
        """Compare the calls of all workers, as one has met another call than its own.

        The job ends when all are known, elastic or not.
        """
        if not self.is_set_up:
            self._abort(rank, reason)
        elif self.comparison is None:
            self._compare(called.collective, reason, now)
        self._called(rank, called, now)

    def tell_who_is_missing(self, stuck: effects.Stuck, who: str) -> None:
        """Tell a worker that asked which workers its collective waits for."""
        for rank, worker in self.workers.items():
            if worker.token == stuck.token and self.live:
                self._tell(rank, Lacking(stuck.collective, who))

    def _called(self, rank: int, called: Called, now: float) -> None:
        """Note a worker's call, which it was asked for."""
        if self.is_set_up and self.comparison is not None:
            self.comparison.called(rank, called)
            self._compared(now)

    def _find_who_waits_in_vain(self, now: float) -> None:
        """Compare calls if a worker is in a collective that another has left before: it has no result."""
        if not self.is_set_up or self.comparison is not None or self.renewal is not None:
            return
        if found := in_vain(self.workers):
            collective, reason = found
            self._compare(collective, reason, now)
            self._compared(now)

    def _compare(self, collective: int, reason: str, now: float) -> None:
        self.comparison = Comparison(
            collective,
            frozenset(self.workers),
            reason,
            now,
            each="rank" if self.spec.gang is None else "machine",
        )
        for rank, worker in sorted(self.workers.items()):
            if not worker.leaving:
                self._tell(rank, Compare(collective))

    def _compared(self, now: float) -> None:
        """End the job if all calls are known, or nobody is waited for any more."""
        comparison = self.comparison
        assert comparison is not None
        comparison.update(self.workers)
        if comparison.is_complete or comparison.is_late(now, self.timing.lost_timeout_s):
            self._finish(Ended(reason=comparison.outcome, cause=EndCause.MISMATCH))

    # Workers that are lost.

    @property
    def _can_lose_workers(self) -> bool:
        return self.spec.elastic and self.phase is Phase.RUNNING

    def _lose(self, rank: int, reason: str) -> None:
        worker = self.workers[rank]
        if worker.lost:
            return
        if self.comparison is not None:  # that is why the job ends, for this worker as for all
            worker.lost = True
            self.comparison.gone(rank, reason)
        elif self.phase is Phase.RUNNING:
            worker.lost = True
            self._effects.append(effects.Lost(rank, worker.token, reason))
        else:
            self.end(reason, EndCause.WORKER_LOST, rank=rank)

    def go_on_without(self, token: bytes, reason: str, first_message: int | None = None) -> None:
        """Go on without a lost worker; a job that is not elastic ends."""
        rank = next((r for r, worker in self.workers.items() if worker.token == token and worker.lost), None)
        if rank is None or not self.live or self.comparison is not None:
            return
        if self._can_lose_workers:
            self._drop(rank, reason)
        else:
            self.end(reason, EndCause.WORKER_LOST, rank=rank, first_message=first_message)

    def drop_again(self, dropped: Mapping[bytes, str]) -> None:
        """Drop the workers, by token, that the job was to go on without when the controller was restarted."""
        for rank, worker in sorted(self.workers.items()):
            if worker.token in dropped and self._can_lose_workers:
                self._drop(rank, dropped[worker.token], has_stopped=False)

    def _drop_left_behind(self) -> bool:
        """Drop workers that a later generation has run without, and tell whether there was one.

        The database did not have that generation, which had waited for all of its own workers. Those left
        behind may hold a sum with a part of theirs, which the others have computed anew without them, so
        there is no way back. Only elastic jobs leave workers behind.
        """
        if not self.spec.elastic or self.comparison is not None:
            return False
        behind = [rank for rank, worker in sorted(self.workers.items()) if worker.is_behind(self.newest)]
        for rank in behind:
            if self.live:
                if self._state is State.READY:
                    self._begin_to_run()
                text = f"{self.workers[rank].member} was given up before the controller was restarted"
                why = f"{text}: the others have gone on without it"
                self._drop(rank, why, has_stopped=False)
        return bool(behind)

    def _drop(
        self,
        rank: int,
        reason: str,
        cause: EndCause = EndCause.WORKER_LOST,
        *,
        plane: int | None = None,
        has_stopped: bool = True,
    ) -> None:
        """Go on without a worker, and a gang without its machine. `plane`: the cause's, if another one."""
        machine = self.workers[rank].member.original_rank
        if not self._leave_out(rank, reason, cause, plane):
            return
        if self.spec.gang is not None:
            self._effects.append(effects.MachineLost(machine, rank, reason, cause, has_stopped))
        if all(worker.leaving for worker in self.workers.values()):
            self._finish(Left())
        else:
            self._interrupted(Cause.WORKER_LOST, reason)

    def drop_machine(self, machine: int, reason: str, cause: EndCause, plane: int) -> None:
        """Go on without the worker of a machine that `plane` goes on without: all are renewed then.

        It may live, and return results until it hears so or its lease is over. If this plane cannot lose it,
        the plane ends, and with it the gang.
        """
        rank = next((r for r, w in self.workers.items() if w.member.original_rank == machine), None)
        if rank is None or not self.live:
            return
        if not self._can_lose_workers:
            self.end(reason, cause, rank=rank, plane=plane)
        elif self.comparison is not None:
            self.workers[rank].lost = True
            self.comparison.gone(rank, reason)
        elif self._leave_out(rank, reason, cause, plane) and all(w.leaving for w in self.workers.values()):
            self._finish(Left())

    def _leave_out(self, rank: int, reason: str, cause: EndCause, plane: int | None) -> bool:
        """Take a worker out of the job. Return True if enough others are left, else end the job."""
        who = self.workers[rank].member
        host = who.host or who.hostname
        self._tell(rank, Ended(reason=reason, cause=cause, rank=rank, host=host, plane=plane))
        self.workers.drop(rank, reason)
        left, least = len(self.workers), max(1, self.spec.min_workers)
        if left >= least:
            return True
        what = "worker" if self.spec.gang is None else "machine"
        needed = f"{left} {what + ' is' if left == 1 else what + 's are'} left, and the job needs {least}"
        self.end(reason if not self.workers else f"{reason}; {needed}", cause, rank=rank, plane=plane)
        return False

    # Time.

    def tick(self, now: float) -> None:
        """Send heartbeats that are due, and act on overdue ones."""
        if not self.is_set_up:
            return
        for rank, worker in sorted(self.workers.items()):
            if now - worker.heard_at > worker.patience_s:
                self._lose(rank, worker.silence)
        if self.comparison is not None and self.live:
            self._compared(now)
        if not self.live:
            return
        if self.renewal is not None:
            self._lose_late(self.renewal, now)
        if self.move is not None and self.move.is_late(self._state, now, self.timing.lost_timeout_s):
            worker = self.workers[min(self.move.missing)]
            self.call_off(f"{worker.member} kept the others waiting for {now - self.move.since:.0f} s")
        if now - self._beaten_at >= self.timing.heartbeat_interval_s:
            self._beaten_at = now
            self._tell_all(Heartbeat())

    def _lose_late(self, renewal: Renewal, now: float) -> None:
        """Lose workers that are connected but keep all others waiting for an answer."""
        connected = [rank for rank, worker in self.workers.items() if worker.connected]
        limit_s, why = self.timing.heartbeat_timeout_s, renewal.reason
        for rank in renewal.late(connected, now, limit_s):
            who = self.workers[rank].member
            self._lose(rank, f"{who} did not take part for {limit_s:g} s when the job was renewed ({why})")

    def forgive(self, seconds: float, now: float) -> None:
        """Extend times: the controller itself was stopped for so many seconds, until now."""
        for worker in self.workers.values():
            worker.heard_at = min(now, worker.heard_at + seconds)
        if self.renewal is not None:
            self.renewal.forgive(seconds, now)
        if self.move is not None:
            self.move.since = min(now, self.move.since + seconds)
        if self.comparison is not None:
            self.comparison.since = min(now, self.comparison.since + seconds)
        if seconds > self.timing.lost_timeout_s:  # sessions may have been given up meanwhile
            self.expect_back(now, again=False)

    def expect_back(self, now: float, *, again: bool = True) -> None:
        """Give workers as long to come back as after a restart, as the controller was away.

        Without `again`, a worker that has not come back since the last time keeps the rest of its time.
        """
        for worker in self.workers.values():
            if self.is_set_up and not worker.lost and (again or not worker.recovered):
                worker.heard_at, worker.patience_s, worker.recovered = now, self.timing.resume_timeout_s, True

    def wait_on(self, now: float) -> None:
        """Give workers that have not come back since the controller was away all the time again."""
        for worker in self.workers.values():
            if worker.recovered and not worker.lost:
                worker.heard_at = now

    # Ends.

    def end(
        self,
        reason: str,
        cause: EndCause,
        *,
        rank: int | None = None,
        first_message: int | None = None,
        plane: int | None = None,
    ) -> None:
        """End the job early, for all workers; do nothing if it is over. `rank`: in that `plane` of a gang."""
        if self.live:
            worker = None if rank is None else self.workers.everybody.get(rank)
            host = "" if worker is None else worker.member.host or worker.member.hostname
            ended = Ended(reason=reason, cause=cause, rank=rank, host=host, first_message=first_message)
            self._finish(ended if plane is None else replace(ended, plane=plane))

    def end_with(self, outcome: Ended, plane: int) -> None:
        """End as that plane of the gang has; do nothing if this one is over."""
        own = self.spec.gang is not None and self.spec.gang.plane == plane
        if self.live:  # the first message counts those of that plane
            of = None if outcome.rank is None or own else plane
            self._finish(replace(outcome, first_message=None, plane=of))

    def discard(self) -> None:
        """End a draft that nobody has heard of."""
        self._becomes(State.ENDED)
        self.outcome = effects.Superseded()

    def _finish(self, outcome: Left | Ended) -> None:
        self._becomes(State.ENDED)
        self.outcome = outcome
        self._effects.append(effects.Over())
        self._tell_all(outcome)

    # Small things that several of these do.

    def _heard(self, rank: int, now: float) -> None:
        self.workers[rank].heard(now, self.timing.heartbeat_timeout_s)

    def _begin_to_run(self) -> None:
        self._becomes(State.RUNNING)
        self._effects.append(effects.Started())

    def _interrupted(self, cause: Cause, reason: str) -> None:
        self._effects.append(effects.Interrupted(cause, reason))

    def _withdraw(self, rank: int) -> None:
        del self.workers[rank]
        if not self.workers:
            self._becomes(State.CREATED)
            self._effects.append(effects.Vacated())
        self._who_has_joined_changed()

    def _ready(self, rank: int) -> Ready:
        assert self.plan is not None
        created = self.spec if self.explicit else None
        lease_s = self.timing.lease_s if self.spec.elastic else 0.0
        return self.workers.ready(rank, self.plan, self.timing, lease_s=lease_s, created=created)

    def _tell_all(self, event: FromController) -> None:
        for rank in sorted(self.workers):
            self._tell(rank, event)

    def _tell(self, rank: int, event: FromController) -> None:
        if self.workers[rank].connected:
            self._effects.append(effects.Tell(rank, event))


RESTARTED = "the controller was restarted while the job was renewed"
