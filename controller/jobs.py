"""One job as a state machine: who has joined, who may start, who is missing, when all may leave.

    CREATED ──join──► JOINING ──the last join──► INSTALLING ──planned──► READY ──the last up──► RUNNING
       ▲                │                            │                     │                       │
       └─the last one   │                            └──────────┬──────────┴───────────┬───────────┘
         withdraws ─────┘       abort, a lost worker, `end` ────┴──► ENDED ◄───────────┘ the last leave

A job that runs may be moved between ring and switch (controller/moves.py), and renewed when a switch or, in
an elastic job, a worker fails (controller/renewals.py), any number of times. Its phase is RUNNING meanwhile.

Nothing here does I/O or reads a clock: times come in as seconds of any clock that does not go back, and
what is to be done comes out of `take_effects`. A session that breaks before Ready frees its rank; later,
the worker may resume until its heartbeats have been missing for too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.api.errors import ConflictError, InvalidRequestError, NotPossibleError
from controller.api.messages import (
    Called,
    Compare,
    EndCause,
    Ended,
    Heartbeat,
    JobSpec,
    Left,
    Mode,
    Moved,
    Resumed,
    Start,
    Waiting,
)
from controller.comparing import Comparison
from controller.events import Install, Relocate, Started, Stayed
from controller.jobstate import Seat
from controller.moves import Move, Step
from controller.renewable import RenewableJob
from controller.renewals import Cause
from controller.serials import ahead
from controller.specs import Member, Phase, Plan, Timing


class Job(RenewableJob):
    """See the top of the file."""

    @classmethod
    def recovered(
        cls,
        spec: JobSpec,
        timing: Timing,
        plan: Plan,
        workers: Sequence[tuple[Member, bytes]],
        *,
        explicit: bool,
        running: bool,
        now: float,
    ) -> Job:
        """A job from before a restart of the controller: it lives if all workers resume in time."""
        job = cls(spec, timing, explicit, Phase.RUNNING if running else Phase.READY, plan=plan)
        for member, token in workers:
            job.seats[member.rank] = Seat(
                member, now, timing.resume_timeout_s, token, connected=False, recovered=True
            )
        return job

    # What workers do.

    def check(self, member: Member, world_size: int, tenant: str = "", *, elastic: bool = False) -> None:
        """Raise what speaks against taking this worker in: InvalidRequestError, ConflictError."""
        name, spec = self.spec.name, self.spec
        if world_size != spec.world_size:
            raise InvalidRequestError(
                f"job {name} has a world size of {spec.world_size}, but {member} says {world_size}: "
                "start all workers with the same"
            )
        if tenant != spec.tenant and (tenant or not self.explicit):  # who created it need not say it again
            raise InvalidRequestError(
                f"job {name} is of tenant {spec.tenant or 'default'}, but {member} says "
                f"{tenant or 'default'}: start all workers with the same"
            )
        if elastic != spec.elastic and (elastic or not self.explicit):
            ways = ("goes on without workers that die", "ends when a worker dies")
            raise InvalidRequestError(
                f"job {name} {ways[not spec.elastic]}, but {member} wants one that {ways[not elastic]}: "
                "start all workers alike"
            )
        if not 0 <= member.rank < spec.world_size:
            raise InvalidRequestError(
                f"rank {member.rank} is no rank of job {name} with {spec.world_size} workers "
                f"(0..{spec.world_size - 1})"
            )
        if spec.path_mtu is not None and member.path_mtu_max < spec.path_mtu:
            raise InvalidRequestError(
                f"job {name} was created with path MTU {spec.path_mtu}, but the link of {member} carries at "
                f"most {member.path_mtu_max}: raise the link's MTU, or create the job with a smaller path MTU"
            )
        taken = self.seats.get(member.rank)
        if taken is not None:
            raise ConflictError(
                f"job {name}: rank {member.rank} is taken by {taken.member.host or taken.member.hostname} "
                f"({taken.member.ip}), and {member.host or member.hostname} ({member.ip}) asks for it too: "
                "each worker needs a rank of its own"
            )

    def join(
        self, member: Member, world_size: int, now: float, tenant: str = "", *, elastic: bool = False
    ) -> None:
        """Take a worker in; `check` says what is raised."""
        self.check(member, world_size, tenant, elastic=elastic)
        self.seats[member.rank] = Seat(member, now, self.timing.heartbeat_timeout_s)
        if self.missing:
            self.phase = Phase.JOINING
            self._tell_all(Waiting(self.missing))
        else:
            self.phase = Phase.INSTALLING
            self._effects.append(Install())

    def has_not_heard(self, member: Member) -> bool:
        """Whether a worker that joins has been taken in already, as nobody else has these QPs and PSN."""
        seat = self.seats.get(member.rank)
        return self.phase is Phase.READY and seat is not None and seat.member == member and not seat.up

    def join_again(self, rank: int, now: float) -> None:
        """It is told so once more, and belongs to this generation: it has never heard of another."""
        assert self.plan is not None
        seat = self.seats[rank]
        seat.connected, seat.generation = True, self.plan.generation
        self.heard(rank, now)
        self._tell(rank, self._ready(rank))

    def up(self, rank: int, now: float) -> None:
        """A worker's QPs are ready. NotPossibleError before Ready."""
        self._require_plan(rank, "ready to start")
        self.heard(rank, now)
        self.seats[rank].up = True
        if self.renewal is not None:
            if self.renewal.is_up(rank):
                self._go_on()
        elif self.phase is Phase.RUNNING:  # it lost its session before it heard
            self._tell(rank, Start())
        elif self.phase is Phase.READY and all(seat.up for seat in self.seats.values()):
            self.phase = Phase.RUNNING
            self._effects.append(Started())
            self._tell_all(Start())

    def heartbeat(self, rank: int, number: int, now: float) -> None:
        """A worker lives. In an elastic job it may return results for a while after it hears that this came.

        Not so whoever is being given up, or keeps a renewal waiting and may be given up for that; nor anybody
        before all have come back after a restart, as this one may have been given up before it.
        """
        self.heard(rank, now)
        late = self.renewal is not None and rank in self.renewal.missing
        unsure = late or self.seats[rank].lost or self.is_doubtful
        if self.spec.elastic and self.is_set_up and number and not unsure:
            self._tell(rank, Heartbeat(number=number))

    def leave(self, rank: int, now: float, collectives: int | None = None) -> None:
        """A worker is done, and stays only for its peers' sake. NotPossibleError before Ready.

        `collectives`: how many it has called (None: it does not say).
        """
        self._require_plan(rank, "leaving")
        self.heard(rank, now)
        seat = self.seats[rank]
        seat.leaving, seat.left_after, seat.in_collective = True, collectives, None
        if not self.live:
            return
        if all(seat.leaving for seat in self.seats.values()):
            self._finish(Left())
        elif self.comparison is not None:
            self._compared(now)
        else:
            self._find_who_waits_in_vain(now)

    def counted(self, rank: int, generation: int, messages: int, now: float) -> None:
        """A worker has numbered so many messages in that generation."""
        self.heard(rank, now)
        if self.plan is not None and generation == self.plan.generation:
            self.numbered = max(self.numbered, messages)

    def paused(self, rank: int, number: int, next_collective: int, now: float) -> None:
        """A worker starts no collective; the first that it has not started."""
        self.heard(rank, now)
        if self.move is not None and self.move.paused(rank, number, next_collective, now):
            self._tell_all(self.move.saying)

    def held(self, rank: int, number: int, now: float) -> None:
        """A worker has nothing in flight."""
        self.heard(rank, now)
        if self.move is not None and self.move.held(rank, number):
            self._effects.append(Relocate(self.move.mode))

    def disagrees(self, rank: int, called: Called, reason: str, now: float) -> None:
        """A worker has met another call than its own: the job ends, elastic or not, when all are known."""
        self.heard(rank, now)
        if not self.is_set_up:
            self.abort(rank, reason)
        elif self.comparison is None:
            self._compare(called.collective, reason, now)
        self.called(rank, called, now)

    def called(self, rank: int, called: Called, now: float) -> None:
        """What a worker has called, as it was asked."""
        self.heard(rank, now)
        if not self.is_set_up:
            return
        if self.comparison is not None:
            self.comparison.called(rank, called)
            self._compared(now)

    def runs(self, rank: int, collective: int | None, now: float) -> None:
        """The collective that a worker is in."""
        self.heard(rank, now)
        self.seats[rank].in_collective = collective
        self._find_who_waits_in_vain(now)

    def abort(self, rank: int, reason: str) -> None:
        """A worker wants the job to end; an elastic one goes on without it."""
        reason = reason or f"{self.seats[rank].member} gave up without saying why"
        if self.comparison is not None:  # it ends; this one may have failed as another has stopped for that
            return
        if self._can_lose_workers:
            self._drop(rank, reason, EndCause.WORKER_ABORTED)
        else:
            self.end(reason, EndCause.WORKER_ABORTED, rank=rank)

    def closed(self, rank: int) -> None:
        """A worker ended its session on purpose, without having left."""
        seat = self.seats[rank]
        seat.connected = False
        if self.phase is Phase.JOINING:
            self._withdraw(rank)
        elif self.phase is Phase.RUNNING:
            self._lose(rank, f"{seat.member} closed its session before everybody had left")
        else:
            reason = f"{seat.member} closed its session before everybody had left"
            self.end(reason, EndCause.WORKER_LOST, rank=rank)

    def broken(self, rank: int) -> None:
        """A worker's session broke; before Ready there is no way back for it."""
        seat = self.seats[rank]
        seat.connected = False
        if not seat.recovered:  # else this is about the time when the controller was away
            seat.patience_s = min(seat.patience_s, self.timing.lost_timeout_s)
        if self.phase is Phase.JOINING:
            self._withdraw(rank)
        elif self.phase is Phase.INSTALLING:
            reason = f"{seat.member} lost its connection with the controller during set-up"
            self.end(reason, EndCause.WORKER_LOST, rank=rank)

    def heard_end(self, rank: int) -> None:
        """A worker ended its session after it was told that the job is over."""
        if not self.live and rank in self.seats:
            self.seats[rank].knows_end = True

    def resume(
        self, rank: int, token: bytes, now: float, generation: int | None = None, answered: int = 0
    ) -> None:
        """A worker is back, and knows of that generation; what is raised says `rank_of`.

        `answered`: the renewal that it has answered last, where it has not heard how that ended.
        """
        rank = self.rank_of(rank, token, generation)
        seat = self.seats[rank]
        seat.connected = True
        self.heard(rank, now)
        if self.plan is not None:
            known = self.plan.generation if generation is None else generation
            self.newest = max(self.newest, known)
            seat.generation = max(seat.generation or 0, known, answered)
        if isinstance(self.outcome, (Left, Ended)):
            self._tell(rank, self.outcome)
        if not self.live:
            return
        renewed = self._drop_left_behind()
        if not self.live or rank not in self.seats:
            return
        self._tell(rank, Resumed())
        if self.comparison is not None:
            self._tell(rank, Compare(self.comparison.collective))
        if self.renewal is not None and not self.renewal.is_behind(generation or 0):
            self._tell_renewal(rank, now)
        elif self.move is not None:
            self._tell(rank, self.move.saying)
        elif self.is_set_up and self.plan is not None:
            if generation not in (None, self.plan.generation):
                if not renewed:
                    why = "the controller was restarted while the job was renewed"
                    self._interrupted(Cause.INTERRUPTED, why)
            elif self.phase is Phase.RUNNING:  # it may not have heard how a move ended
                self._tell(rank, Moved(0, self.plan.mode, self.plan.mode_reason))

    # What the controller does.

    def planned(self, plan: Plan, tokens: Mapping[int, bytes], now: float) -> None:
        """The switch is written. The tokens, by rank, let workers resume."""
        if self.phase is not Phase.INSTALLING:
            raise NotPossibleError(f"job {self.spec.name} is {self.phase.name}, nobody waits for its plan")
        self.plan, self.phase, self._beaten_at = plan, Phase.READY, now
        for rank in plan.ring or sorted(self.seats):
            self.seats[rank].token, self.seats[rank].generation = tokens[rank], plan.generation
            self.heard(rank, now)
            self._tell(rank, self._ready(rank))

    def why_not_move(self) -> str:
        """Why the job cannot be moved now; empty if it can."""
        if self.phase is not Phase.RUNNING:
            return f"it is {self.phase.name.lower()}"
        if self.renewal is not None:
            return f"it is being renewed: {self.renewal.reason}"
        if self.move is not None:
            return "it is being moved already"
        for rank, seat in sorted(self.seats.items()):
            if seat.leaving:
                return f"rank {rank} is leaving"
            if not seat.connected:
                return f"rank {rank} is without a connection to the controller"
        return ""

    def move_to(self, mode: Mode, number: int, now: float) -> None:
        """Begin to move; `number` tells one move from another. NotPossibleError: `why_not_move`."""
        if why := self.why_not_move():
            raise NotPossibleError(f"job {self.spec.name} cannot be moved: {why}")
        self.move = Move(number, mode, frozenset(self.seats), now)
        self._tell_all(self.move.saying)

    def moved(self, mode: Mode, reason: str) -> None:
        """The switches are written, or could not be: all go on, in this mode. Nothing after the job's end."""
        move, self.move = self.move, None
        if not self.live or self.plan is None or self.renewal is not None:
            return
        self.plan = replace(self.plan, mode=mode, mode_reason=reason)
        self._tell_all(Moved(move.number if move is not None else 0, mode, reason))

    def call_off(self, reason: str) -> None:
        """Move no more, unless the switches are being written already."""
        if self.move is None or self.move.step is Step.WRITING or self.plan is None:
            return
        self._effects.append(Stayed(reason))
        self.moved(self.plan.mode, self.plan.mode_reason)

    def tick(self, now: float) -> None:
        """Time has passed: heartbeats are due, or overdue."""
        if not self.is_set_up:
            return
        for rank, seat in sorted(self.seats.items()):
            if now - seat.heard_at > seat.patience_s:
                self._lose(rank, self._silence(seat))
        if self.comparison is not None:
            self._compared(now)
        if not self.live:
            return
        if self.renewal is not None:
            self._lose_late(now)
        if self.move is not None and self.move.is_late(now, self.timing.lost_timeout_s):
            seat = self.seats[self.move.missing[0]]
            self.call_off(f"{seat.member} kept the others waiting for {now - self.move.since:.0f} s")
        if now - self._beaten_at >= self.timing.heartbeat_interval_s:
            self._beaten_at = now
            self._tell_all(Heartbeat())

    def forgive(self, seconds: float, now: float) -> None:
        """The controller itself was stopped for so long, until now: nobody could be heard."""
        for seat in self.seats.values():
            seat.heard_at = min(now, seat.heard_at + seconds)
        if self.renewal is not None:
            self.renewal.forgive(seconds, now)
        if self.move is not None:
            self.move.since = min(now, self.move.since + seconds)
        if self.comparison is not None:
            self.comparison.since = min(now, self.comparison.since + seconds)
        if seconds > self.timing.lost_timeout_s:  # sessions may have been given up meanwhile
            self.expect_back(now, again=False)

    def expect_back(self, now: float, *, again: bool = True) -> None:
        """The controller was away, and can hear workers from now on: they have as long as after a restart.

        Without `again`, who has not come back since the last time has what is left of that.
        """
        for seat in self.seats.values():
            if self.is_set_up and not seat.lost and (again or not seat.recovered):
                seat.heard_at, seat.patience_s, seat.recovered = now, self.timing.resume_timeout_s, True

    def _ask(self, collective: int) -> None:
        for rank, seat in sorted(self.seats.items()):
            if not seat.leaving:
                self._tell(rank, Compare(collective))

    def _find_who_waits_in_vain(self, now: float) -> None:
        """A collective that one has left before will never have a result."""
        if not self.is_set_up or self.comparison is not None or self.renewal is not None:
            return
        left = [(seat.left_after, seat) for seat in self.seats.values() if seat.left_after is not None]
        for seat in self.seats.values():
            for collectives, away in left:
                if seat.in_collective is not None and ahead(seat.in_collective, collectives) >= 0:
                    reason = f"{seat.member} waits for {away.member}, which has left"
                    self._compare(seat.in_collective, reason, now)
                    self._compared(now)
                    return

    def _compare(self, collective: int, reason: str, now: float) -> None:
        self.comparison = Comparison(collective, frozenset(self.seats), reason, now)
        for rank, seat in self.seats.items():
            if seat.lost:
                self.comparison.gone(rank, "it is lost")
        self._ask(collective)

    def _compared(self, now: float) -> None:
        """End the job where it is known who has called what, or nobody is waited for any more."""
        comparison = self.comparison
        assert comparison is not None
        for rank, seat in self.seats.items():
            if seat.left_after is not None:
                comparison.left(rank, seat.left_after)
        if comparison.is_complete or comparison.is_late(now, self.timing.lost_timeout_s):
            self._finish(Ended(reason=comparison.outcome, cause=EndCause.MISMATCH))

    def _silence(self, seat: Seat) -> str:
        if seat.recovered:
            return (
                f"{seat.member} has not come back within {seat.patience_s:g} s after the controller was back"
                ": it has died, or cannot reach the controller"
            )
        how = "sent no heartbeat" if seat.connected else "has been without a connection to the controller"
        return f"{seat.member} {how} for {seat.patience_s:g} s: it has died or hangs"

    def _withdraw(self, rank: int) -> None:
        del self.seats[rank]
        if self.seats:
            self._tell_all(Waiting(self.missing))
        else:
            self.phase = Phase.CREATED

    def _require_plan(self, rank: int, what: str) -> None:
        if self.plan is None and self.live:
            raise NotPossibleError(f"{self.seats[rank].member} is {what}, but has not heard Ready")
