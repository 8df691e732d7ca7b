"""The part of a job's state machine that lets it go on under a new generation, without whom it has lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller.api.errors import NotPossibleError
from controller.api.messages import EndCause, Ended, Left, Renew, Renewed, Renewing, Start
from controller.events import Detach, Interrupted, Lost, Rebuild, Renumbered, Started, Stayed, WentOn
from controller.jobstate import JobState
from controller.moves import Step as MoveStep
from controller.renewals import Cause, Renewal, Step
from controller.specs import Member, Phase, Plan


class RenewableJob(JobState):
    """See controller/renewals.py."""

    def renewing(self, rank: int, standing: Renewing, now: float) -> None:
        """A worker sends nothing any more in the old generation, and says where it stands."""
        self.heard(rank, now)
        if self.renewal is not None and standing.renewal <= self.renewal.number:
            if self.renewal.stands(rank, standing):
                self._all_stand()
        elif self.is_set_up and self.plan is not None and standing.renewal >= self.plan.generation:
            self._interrupted(Cause.INTERRUPTED, "the controller was restarted while the job was renewed")

    def awaits(self, rank: int, number: int) -> bool:
        """Whether that renewal is waiting to hear where a worker stands."""
        renewal = self.renewal
        if renewal is None or number != renewal.number or renewal.step is not Step.ASKING:
            return False
        return rank in renewal.missing

    def renew(self, number: int, cause: Cause, reason: str, now: float) -> None:
        """Begin to go on as generation `number`, instead of a renewal under way. NotPossibleError.

        A job that is only ready runs from here on: its workers, up or not, wait for what comes next.
        """
        if not self.is_set_up:
            raise NotPossibleError(f"job {self.spec.name} cannot be renewed: it is {self.phase.name.lower()}")
        self._begins_to_run()
        if self.move is not None:
            if self.move.step is not MoveStep.WRITING:
                self._effects.append(Stayed(f"it is renewed: {reason}"))
            self.move = None
        self.renewal = Renewal(number, cause, reason, frozenset(self.seats), now)
        self._effects.append(Detach())
        self._tell_all(Renew(number, reason))

    def renewed_members(self) -> list[Member]:
        """The workers as they will be: new QPs, ranks without gaps."""
        assert self.renewal is not None
        members = []
        for new, old in enumerate(sorted(self.seats)):
            standing = self.renewal.answers[old]
            members.append(
                replace(
                    self.seats[old].member,
                    rank=new,
                    qpn_out=standing.qpn_out,
                    psn_out=standing.psn_out,
                    qpn_in=standing.qpn_in,
                    joined_as=self.seats[old].member.original_rank,
                )
            )
        return members

    @property
    def offered(self) -> list[Member]:
        """Workers as they shall be, as far as they have said which QPs they have for that."""
        renewal = self.renewal
        if renewal is None or renewal.step is Step.RAISING:
            return []
        return [
            replace(self.seats[rank].member, qpn_out=standing.qpn_out, qpn_in=standing.qpn_in)
            for rank, standing in sorted(renewal.answers.items())
            if rank in self.seats
        ]

    def is_rebuilding(self, number: int) -> bool:
        """Whether `renewed` is what that renewal waits for."""
        renewal = self.renewal
        return self.live and renewal is not None and renewal.number == number and renewal.step is Step.WRITING

    def renewed(self, plan: Plan, now: float) -> None:
        """The switches are written: everybody comes up in the generation of the plan."""
        renewal = self.renewal
        if renewal is None or not self.is_rebuilding(plan.generation):
            raise NotPossibleError(f"job {self.spec.name}: nobody waits for generation {plan.generation}")
        members, old = self.renewed_members(), sorted(self.seats)
        self.seats = {
            member.rank: replace(self.seats[rank], member=member, generation=plan.generation, up=False)
            for member, rank in zip(members, old, strict=True)
        }
        self.plan = plan
        self.departed, self.numbered = {}, 0
        new_ranks = {rank: new for new, rank in enumerate(old)}
        renewal.written(new_ranks, now)
        self._effects.append(Renumbered(new_ranks))
        for rank in sorted(self.seats):
            self._tell_renewal(rank, now)

    def has_stopped(self, token: bytes) -> bool:
        """Whether a worker has taken down its connections for a renewal, and waits."""
        renewal = self.renewal
        return renewal is not None and any(
            seat.token == token and renewal.has_stopped(rank) for rank, seat in self.seats.items()
        )

    def bury(self, token: bytes, reason: str, first_message: int | None = None) -> None:
        """A worker that is lost has no part in the job any more; only an elastic one goes on."""
        rank = next((r for r, seat in self.seats.items() if seat.token == token and seat.lost), None)
        if rank is None or not self.live or self.comparison is not None:
            return
        if self._can_lose_workers:
            self._drop(rank, reason)
        else:
            self.end(reason, EndCause.WORKER_LOST, rank=rank, first_message=first_message)

    def drop_again(self, dropped: Mapping[bytes, str]) -> None:
        """Workers, by token, that the job was to go on without when the controller was restarted."""
        for rank, seat in sorted(self.seats.items()):
            if seat.token in dropped and self._can_lose_workers:
                self._drop(rank, dropped[seat.token])

    def went_on_without(self, dropped: Mapping[bytes, str]) -> None:
        """The same of a job that was over by then."""
        for rank, seat in sorted(self.seats.items()):
            if seat.token in dropped:
                self.departed[rank] = self.seats.pop(rank)
                self.dropped[seat.token] = dropped[seat.token]

    def _drop_left_behind(self) -> bool:
        """A later generation than some workers know of has run: without them, as it waits for all of its own.

        The database had not got it. They may hold a sum in which they have a part, and which the others have
        done anew without them, so there is no way back. Only elastic jobs leave anybody behind. Whether
        there was one.
        """
        if not self.spec.elastic or self.comparison is not None:
            return False
        behind = [
            rank
            for rank, seat in sorted(self.seats.items())
            if (seat.generation or self.newest) < self.newest
        ]
        for rank in behind:
            if self.live:
                self._begins_to_run()
                text = f"{self.seats[rank].member} was given up before the controller was restarted"
                self._drop(rank, f"{text}: the others have gone on without it")
        return bool(behind)

    def _begins_to_run(self) -> None:
        if self.phase is Phase.READY:
            self.phase = Phase.RUNNING
            self._effects.append(Started())

    def _interrupted(self, cause: Cause, reason: str) -> None:
        self._effects.append(Interrupted(cause, reason))

    def _all_stand(self) -> None:
        renewal = self.renewal
        assert renewal is not None
        if (apart := renewal.apart) is None:
            renewal.step = Step.WRITING
            self._effects.append(Rebuild(renewal.number))
            return
        (rear, ahead), answers = apart, renewal.answers
        self.end(
            f"job {self.spec.name} cannot go on: {self.seats[rear].member} has not finished collective "
            f"{answers[rear].collective}, but {self.seats[ahead].member} stands at "
            f"{answers[ahead].collective}",
            EndCause.CANNOT_GO_ON,
        )

    def _tell_renewal(self, rank: int, now: float) -> None:
        """What a worker has to know of the renewal now."""
        renewal = self.renewal
        assert renewal is not None
        if renewal.step is Step.RAISING:
            event = Renewed(
                renewal=renewal.number,
                ready=self._ready(rank),
                collective=renewal.goes_on_with,
                holder=renewal.holder,
                members=tuple(member.original_rank for member in self.members),
            )
            self._tell(rank, event)
        elif rank in renewal.missing:
            self._tell(rank, Renew(renewal.number, renewal.reason))
        renewal.asked_at[rank] = now

    def _go_on(self) -> None:
        renewal, self.renewal = self.renewal, None
        assert renewal is not None
        self._effects.append(WentOn(renewal.cause))
        self._tell_all(Start())

    @property
    def _can_lose_workers(self) -> bool:
        return self.spec.elastic and self.phase is Phase.RUNNING

    def _lose(self, rank: int, reason: str) -> None:
        seat = self.seats[rank]
        if seat.lost:
            return
        if self.phase is not Phase.RUNNING:
            self.end(reason, EndCause.WORKER_LOST, rank=rank)
            return
        seat.lost = True
        if self.comparison is not None:  # that is why the job ends, for this worker as for all
            self.comparison.gone(rank, reason)
            return
        self._effects.append(Lost(rank, seat.token, reason))

    def _lose_late(self, now: float) -> None:
        """Workers that are there and do not answer keep all others waiting."""
        assert self.renewal is not None
        connected = [rank for rank, seat in self.seats.items() if seat.connected]
        limit_s, why = self.timing.heartbeat_timeout_s, self.renewal.reason
        for rank in self.renewal.late(connected, now, limit_s):
            who = self.seats[rank].member
            self._lose(rank, f"{who} did not take part for {limit_s:g} s when the job was renewed ({why})")

    def _drop(self, rank: int, reason: str, cause: EndCause = EndCause.WORKER_LOST) -> None:
        """Go on without a worker."""
        who = self.seats[rank].member
        self._tell(rank, Ended(reason=reason, cause=cause, rank=rank, host=who.host or who.hostname))
        seat = self.departed[rank] = self.seats.pop(rank)
        self.dropped[seat.token] = reason
        least = max(1, self.spec.min_workers)
        if len(self.seats) < least:
            left = len(self.seats)
            needed = f"{left} {'worker is' if left == 1 else 'workers are'} left, and the job needs {least}"
            self.end(reason if not self.seats else f"{reason}; {needed}", cause, rank=rank)
        elif all(seat.leaving for seat in self.seats.values()):
            self._finish(Left())
        else:
            self._interrupted(Cause.WORKER_LOST, reason)
