"""The state machine of a renewal: by itself, and against everything that can happen, in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.api.errors import NotPossibleError
from controller.api.messages import (
    Abort,
    Compare,
    EndCause,
    Ended,
    FromController,
    Heartbeat,
    JobSpec,
    Leave,
    Left,
    Renew,
    Renewed,
    Renewing,
    Start,
    Up,
    Waiting,
)
from controller.jobs.effects import (
    Detach,
    Interrupted,
    Lost,
    Over,
    Rebuild,
    Renumbered,
    Started,
    Tell,
    WentOn,
)
from controller.jobs.job import Job
from controller.jobs.renewals import Agreed, Cause, Renewal, agree
from controller.jobs.specs import Member, Phase, Plan
from tests.controller.jobs.made import PLAN, TIMING, member, ready, running, token, told

REASON = "switch s1 was restarted"


def answer(renewal: int, collective: int, qp: int = 0x900) -> Renewing:
    return Renewing(renewal=renewal, qpn_out=qp, psn_out=5, qpn_in=qp + 1, collective=collective)


@pytest.mark.parametrize(
    ("stand", "collective", "holder", "apart"),
    [
        ([4, 4, 4], 4, None, None),
        ([5, 4, 5], 4, 0, None),
        ([4, 4, 5], 4, 2, None),
        ([2**32 - 1, 0, 2**32 - 1], 2**32 - 1, 1, None),
        ([4, 6, 5], 4, 1, (0, 1)),
        ([1, 2**32 - 1, 0], 2**32 - 1, 0, (1, 0)),
    ],
)
def test_where_to_go_on(
    stand: list[int], collective: int, holder: int | None, apart: tuple[int, int] | None
) -> None:
    renewal = Renewal(9, Cause.SWITCH_RESTARTED, REASON, range(3), 0.0)
    answers = [renewal.answered(rank, answer(9, number)) for rank, number in enumerate(stand)]
    assert answers == [False, False, True]
    assert (renewal.collective, renewal.apart) == (collective, apart)
    assert list(renewal.holders)[:1] == ([] if holder is None else [holder])
    renewal.written({0: 0, 1: 1, 2: 2}, 1.0)
    assert renewal.holder == holder


@pytest.mark.parametrize(
    ("called", "ranks_from"),
    [
        ([[8]], 8),
        ([[8, 9, 8]], 9),
        ([[8, 9], [10, 8]], 10),
        ([[2**32 - 1, 0], [2**32 - 2, 2**32 - 1]], 0),
        ([[8, None, 9]], None),
        ([[8, 9], [9, None]], None),
        ([[None]], None),
    ],
)
def test_new_ranks_hold_from_the_furthest_call_of_all_workers_of_all_planes(
    called: list[list[int | None]], ranks_from: int | None
) -> None:
    planes = []
    for of_plane in called:
        renewal = Renewal(9, Cause.WORKER_LOST, REASON, range(len(of_plane)), 0.0)
        for rank, number in enumerate(of_plane):
            renewal.answered(rank, replace(answer(9, 4), called=number))
        planes.append(renewal)
    assert agree(planes, 0, begins_anew=False) == Agreed(ranks_from=ranks_from)


def test_a_renewal_that_was_over_for_anybody_is_told_to_all_planes() -> None:
    planes = []
    for of_plane in ([3, 0], [0, 5]):
        renewal = Renewal(9, Cause.WORKER_LOST, REASON, range(2), 0.0)
        for rank, over in enumerate(of_plane):
            renewal.answered(rank, replace(answer(9, 4), over=over))
        planes.append(renewal)
    assert agree(planes, 0, begins_anew=False).over == 5


def test_from_renew_to_start() -> None:
    job = running(3)
    job.renew(80, Cause.SWITCH_RESTARTED, REASON, 1.0)
    assert job.take_effects() == [Detach(), *(Tell(rank, Renew(80, REASON)) for rank in range(3))]
    assert job.awaited == (0, 1, 2)
    job.hear(0, Up(), 1.0)  # from before
    job.hear(2, answer(80, 8, 0x30), 1.0)
    job.hear(0, answer(79, 99), 1.0)  # of another
    job.hear(0, answer(80, 7, 0x10), 1.0)
    assert job.take_effects() == []
    job.hear(1, answer(80, 7, 0x20), 1.0)
    assert job.take_effects() == [Rebuild(80)]
    plan = replace(PLAN, generation=80)
    job.renewed(plan, 2.0, Agreed())
    renumbered, *tells = job.take_effects()
    assert renumbered == Renumbered({0: 0, 1: 1, 2: 2})
    for rank, tell in enumerate(tells):
        assert isinstance(tell, Tell)
        assert isinstance(tell.event, Renewed)
        assert (tell.rank, tell.event.collective, tell.event.holder) == (rank, 7, 2)
        assert tell.event.ready.successor.qpn_in == (0x11, 0x21, 0x31)[(rank + 1) % 3]
    for rank in (1, 1, 0):
        job.hear(rank, Up(), 2.0)
    assert list(job.awaited) == [2]
    assert job.take_effects() == []
    job.hear(2, Up(), 2.0)
    assert job.take_effects() == [WentOn(Cause.SWITCH_RESTARTED), *(Tell(rank, Start()) for rank in range(3))]
    assert (job.renewal, job.phase, job.plan) == (None, Phase.RUNNING, plan)


@pytest.mark.parametrize("late", [False, True], ids=["before", "crosses"])
def test_what_ran_before_a_renewal_does_not_run_after_it(late: bool) -> None:
    """Check that such a call is compared anew: a gang may refuse it, and the next call has its number."""
    job = running(2)
    ran = Heartbeat(generation=PLAN.generation, running=0)
    job.hear(0, ran, 1.0)
    job.renew(80, Cause.WORKER_LOST, REASON, 1.0)
    for rank in range(2):
        job.hear(rank, answer(80, 0, 0x10 * (rank + 1)), 1.0)
    job.renewed(replace(PLAN, generation=80), 2.0, Agreed())
    for rank in range(2):
        job.hear(rank, Up(), 2.0)
    if late:
        job.hear(0, ran, 2.0)  # sent before it heard Start
    job.take_effects()
    job.hear(1, Leave(0), 2.1)
    assert told(job) == [(1, Waiting((0,)))]
    job.hear(0, Heartbeat(generation=80, running=0), 2.2)
    assert told(job) == [(0, Compare(0))]


def test_a_job_that_is_ready_runs_when_it_is_renewed_and_one_that_is_over_is_not_renewed() -> None:
    job = ready(2)
    job.renew(80, Cause.SWITCH_RESTARTED, REASON, 1.0)
    assert job.take_effects() == [Started(), Detach(), *(Tell(rank, Renew(80, REASON)) for rank in range(2))]
    assert job.phase is Phase.RUNNING
    job.end("enough", EndCause.DELETED)
    with pytest.raises(NotPossibleError, match="it is ended"):
        job.renew(81, Cause.SWITCH_RESTARTED, REASON, 1.0)


@pytest.mark.parametrize("made", [ready, running])
def test_an_answer_to_a_renewal_that_nobody_knows_of_begins_one(made: Callable[[int], Job]) -> None:
    """Answer from before a restart that may have lost that the job ran; an old answer does nothing."""
    job = made(2)
    job.hear(0, answer(PLAN.generation - 1, 3), 0.0)
    assert job.take_effects() == []
    job.hear(0, answer(90, 3), 0.0)
    job.resume(1, token(1), 0.0, PLAN.generation + 1)
    begun = [effect.cause for effect in job.take_effects() if isinstance(effect, Interrupted)]
    assert begun == [Cause.INTERRUPTED] * 2


def test_of_two_that_die_at_once_each_has_its_own_reason() -> None:
    job = running(3)
    job.spec = replace(job.spec, elastic=True)
    job.hear(0, Heartbeat(), 6.0)
    job.tick(6.0)
    lost = [effect for effect in job.take_effects() if isinstance(effect, Lost)]
    assert [(effect.rank, effect.token) for effect in lost] == [(1, token(1)), (2, token(2))]
    for effect in lost:
        job.go_on_without(effect.token, effect.reason)
    effects = job.take_effects()
    assert [type(effect) for effect in effects] == [Tell, Interrupted] * 2
    assert sorted(job.workers) == [0]
    with pytest.raises(NotPossibleError, match=r"goes on without this worker: rank 1 .* sent no heartbeat"):
        job.rank_of(1, token(1))


@pytest.mark.parametrize("answered", [(), (79,), (78, 79)])
def test_who_was_given_up_before_a_restart_on_an_older_database(answered: tuple[int, ...]) -> None:
    """Drop rank 0 if it was not in generation 78; the old database and a renewal of its time know it."""
    spec = JobSpec(name="train", world_size=3, elastic=True)
    workers = [(member(rank), token(rank)) for rank in range(3)]
    job = Job.recovered(spec, TIMING, PLAN, workers, explicit=False, phase=Phase.RUNNING, now=0.0)
    job.resume(0, token(0), 0.0, PLAN.generation, answered)
    job.resume(1, token(1), 0.0, PLAN.generation + 1)
    job.resume(2, token(2), 0.0, PLAN.generation + 1)
    assert (0 in job.workers) == (78 in answered)
    gone = [effect.event for effect in job.take_effects() if isinstance(effect, Tell) and effect.rank == 0]
    if 78 not in answered:
        assert isinstance(gone[-1], Ended)
        assert "given up before the controller was restarted" in gone[-1].reason


class Worker:
    """An agent, by the rank that it joined with; `finished`: how many collectives."""

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.rank = identity
        self.generation = PLAN.generation
        self.finished = 0
        self.asked: Renew | None = None
        self.renewed: Renewed | None = None
        self.running = True
        self.session = True
        self.alive = True
        self.leaving = False
        self.end: Ended | Left | None = None

    def __repr__(self) -> str:
        return f"worker {self.identity}"


class RenewalMachine(RuleBasedStateMachine):
    """Switches and workers fail in any order, while workers answer, vanish for a time, and come back."""

    SIZE = 4
    elastic = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.job = Job(JobSpec(name="train", world_size=self.SIZE, elastic=self.elastic), TIMING)
        for rank in range(self.SIZE):
            self.job.join(member(rank), self.SIZE, self.now, elastic=self.elastic)
        self.job.take_effects()
        self.job.planned(PLAN, {rank: token(rank) for rank in range(self.SIZE)}, self.now)
        for rank in range(self.SIZE):
            self.job.hear(rank, Up(), self.now)
        self.job.take_effects()
        self.workers = [Worker(rank) for rank in range(self.SIZE)]
        self.number = PLAN.generation
        self.rebuilding: int | None = None
        self.lost: list[Lost] = []
        self.overs = 0

    # What the controller does

    def by_rank(self, rank: int) -> Worker:
        return next(w for w in self.workers if w.rank == rank and w.end is None and self.takes_part(w))

    def takes_part(self, worker: Worker) -> bool:
        return any(state.token == token(worker.identity) for state in self.job.workers.values())

    def settle(self) -> None:
        for effect in self.job.take_effects():
            if isinstance(effect, Interrupted):
                self.begin(effect.cause, effect.reason)
            elif isinstance(effect, Rebuild):
                self.rebuilding = effect.renewal
            elif isinstance(effect, Lost):
                self.lost.append(effect)
            elif isinstance(effect, Over):
                self.overs += 1
            elif isinstance(effect, Renumbered):
                for worker in self.workers:
                    if self.takes_part(worker):
                        worker.rank = effect.ranks[worker.rank]
            elif isinstance(effect, Tell):
                self.hear(effect.rank, effect.event)

    def begin(self, cause: Cause, reason: str) -> None:
        if self.job.phase is Phase.RUNNING:
            self.number += 1
            self.job.renew(self.number, cause, reason, self.now)
            self.settle()

    def hear(self, rank: int, event: FromController) -> None:
        known = [w for w in self.workers if w.rank == rank and w.session and w.end is None]
        taking_part = [w for w in known if self.takes_part(w)]
        if not known:
            return  # its session broke with this on its way
        dropped = isinstance(event, Ended) and self.job.phase is not Phase.ENDED
        worker = known[0] if dropped or not taking_part else taking_part[0]
        if isinstance(event, (Ended, Left)):
            worker.end, worker.session = event, False
        elif isinstance(event, Renew):
            assert event.renewal > worker.generation, "asked for what is over"
            worker.asked, worker.running = event, False
        elif isinstance(event, Renewed):
            self.check(worker, event)
            worker.renewed = event
        elif isinstance(event, Start):
            assert worker.renewed is not None
            assert all(
                w.renewed is not None and w.renewed.renewal == worker.renewed.renewal
                for w in self.workers
                if self.takes_part(w)
            ), "started before all were up"
            self.go_on(worker)

    def check(self, worker: Worker, event: Renewed) -> None:
        """Check the promises at the moment when a worker is told."""
        assert worker.asked is not None
        assert event.renewal == worker.asked.renewal == event.ready.generation > worker.generation
        assert event.ready.rank == worker.rank
        assert event.ready.world_size == len(event.members) == len(self.job.workers)
        assert event.members[worker.rank] == worker.identity
        members = [self.workers[identity] for identity in event.members]
        assert event.collective == min(w.finished for w in members)
        holders = [rank for rank, w in enumerate(members) if w.finished > event.collective]
        assert event.holder == (holders[0] if holders else None)

    def go_on(self, worker: Worker) -> None:
        assert worker.renewed is not None
        worker.generation, worker.running = worker.renewed.renewal, True
        if worker.renewed.holder is not None:
            worker.finished = worker.renewed.collective + 1

    # What happens

    @rule(data=st.data())
    def collective(self, data: st.DataObject) -> None:
        """Finish a worker's next collective, if all others are in it or further."""
        self.finish(data.draw(st.sampled_from(self.workers)))

    def finish(self, worker: Worker) -> None:
        peers = [w for w in self.workers if self.takes_part(w)]
        together = all(w.generation == worker.generation for w in peers)
        if worker.running and worker.alive and together and worker.end is None and self.takes_part(worker):
            worker.finished += all(w.finished >= worker.finished for w in peers)

    @rule()
    def switch_fails(self) -> None:
        self.begin(Cause.SWITCH_RESTARTED, REASON)

    @rule(data=st.data())
    def talk(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        if worker.session and worker.alive and worker.end is None and self.takes_part(worker):
            self.answer(worker)

    @rule()
    def all_talk(self) -> None:
        for worker in self.workers:
            if worker.session and worker.alive and worker.end is None and self.takes_part(worker):
                self.answer(worker)

    def answer(self, worker: Worker) -> None:
        """Send what the worker has to say next."""
        asked, renewed = worker.asked, worker.renewed
        if asked is not None and asked.renewal > worker.generation:
            if renewed is not None and renewed.renewal == asked.renewal:
                self.job.hear(worker.rank, Up(), self.now)
            else:
                self.job.hear(worker.rank, answer(asked.renewal, worker.finished), self.now)
        else:
            self.job.hear(worker.rank, Heartbeat(), self.now)
        self.settle()

    @precondition(lambda self: self.rebuilding is not None)
    @rule()
    def write(self) -> None:
        number, self.rebuilding = self.rebuilding, None
        assert number is not None
        if self.job.is_rebuilding(number):
            self.job.renewed(replace(PLAN, generation=number), self.now, Agreed())
            self.settle()

    @rule(data=st.data(), how=st.sampled_from(["dies", "broken", "broken", "closed", "abort"]))
    def fails(self, data: st.DataObject, how: str) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        if not worker.session or not worker.alive or worker.end is not None or not self.takes_part(worker):
            return
        if how == "abort":
            self.job.hear(worker.rank, Abort("no more"), self.now)
        else:
            worker.session = False
            worker.alive = how == "broken"
            getattr(self.job, "closed" if how == "closed" else "broken")(worker.rank)
        self.settle()

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        if not worker.session and worker.alive and worker.end is None:
            self.come_back(worker)

    def come_back(self, worker: Worker) -> None:
        try:
            worker.rank = self.job.rank_of(worker.rank, token(worker.identity), worker.generation)
        except NotPossibleError as error:
            assert not self.takes_part(worker)
            worker.end = Ended(reason=str(error))
            return
        worker.session = True
        self.job.resume(worker.rank, token(worker.identity), self.now)
        self.settle()

    @precondition(lambda self: self.lost)
    @rule()
    def go_on_without_the_lost(self) -> None:
        lost = self.lost.pop(0)
        self.job.go_on_without(lost.token, lost.reason)
        self.settle()

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.5]))
    def wait(self, seconds: float) -> None:
        """Let time pass, while workers that are connected send heartbeats."""
        self.now += seconds
        for worker in self.workers:
            if worker.session and worker.end is None and self.takes_part(worker):
                self.job.hear(worker.rank, Heartbeat(), self.now)
        self.job.tick(self.now)
        self.settle()

    @rule(finishing=st.sets(st.integers(0, SIZE - 1)))
    def some_finish(self, finishing: set[int]) -> None:
        """Finish a collective on some workers before a switch fails."""
        for identity in finishing:
            self.finish(self.workers[identity])
        self.switch_fails()

    @rule()
    def renew_all(self) -> None:
        """Let nothing fail for a while, so that a renewal completes."""
        self.all_talk()
        if self.rebuilding is not None:
            self.write()
        self.all_talk()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Let a worker leave that has no collective left: here, one that is behind no other."""
        worker = data.draw(st.sampled_from(self.workers))
        peers = [w for w in self.workers if self.takes_part(w)]
        there = worker.session and worker.alive and worker.end is None and worker in peers
        if there and not worker.leaving and all(w.finished <= worker.finished for w in peers):
            worker.leaving = True
            self.job.hear(worker.rank, Leave(), self.now)
            self.settle()

    @invariant()
    def one_end(self) -> None:
        assert self.overs == (0 if self.job.live else 1)
        ranks = sorted(self.job.workers)
        if self.job.live and self.job.renewal is None:
            assert ranks == list(range(len(ranks))) or self.elastic
        finished = [w.finished for w in self.workers if self.takes_part(w)]
        assert not finished or max(finished) - min(finished) <= 1, "collectives synchronise"

    def teardown(self) -> None:
        """Check that once nothing fails any more the job runs again or has ended, and everybody knows."""
        for _ in range(40):
            if not self.job.live:
                break
            for worker in self.workers:
                if worker.alive and not worker.session and worker.end is None:
                    self.come_back(worker)
            self.all_talk()
            while self.lost:
                self.go_on_without_the_lost()
            if self.rebuilding is not None:
                self.write()
            self.wait(1.0)
        assert not self.job.live or (self.job.phase is Phase.RUNNING and self.job.renewal is None)
        if self.job.live:
            living = [w for w in self.workers if self.takes_part(w)]
            assert sorted(w.rank for w in living) == list(range(len(living)))
            assert self.job.plan is not None
            assert {w.generation for w in living} == {self.job.plan.generation}


TestRenewalMachine = pytest.mark.slow(RenewalMachine.TestCase)
TestRenewalMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class RigidMachine(RenewalMachine):
    """The same where the death of one is the end for all."""

    elastic = False


TestRigidMachine = pytest.mark.slow(RigidMachine.TestCase)
TestRigidMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class Sums:
    """Sums of a worker: whose parts are in each, and which of them its user has got.

    `knows`, `rank`: the newest generation of which it has heard, and its rank in that. `confirmed_at`: when
    it was last told that it is in its job.
    """

    def __init__(self, identity: int) -> None:
        self.knows, self.rank = PLAN.generation, identity
        self.answered: list[int] = []
        self.confirmed_at = -1e9
        self.made: dict[int, frozenset[int]] = {}
        self.returned: dict[int, frozenset[int]] = {}


class RestoredMachine(RenewalMachine):
    """The same where the controller is restarted, also on an old database: nobody goes on with other sums."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = [Sums(rank) for rank in range(self.SIZE)]
        self.members = {PLAN.generation: frozenset(range(self.SIZE))}
        self.parts: set[tuple[int, int, int]] = set()  # generation, collective, who has given its part
        self.beats = 0
        self.backup = self.stored()

    def stored(self) -> tuple[Plan, list[tuple[Member, bytes]]]:
        """Return the job as the database has it, which may not know which workers were dropped."""
        assert self.job.plan is not None
        workers = {**self.job.workers.departed, **self.job.workers}
        return self.job.plan, [(worker.member, worker.token) for _, worker in sorted(workers.items())]

    @rule()
    def back_up(self) -> None:
        self.backup = self.stored()

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        if not self.job.live:
            return
        plan, workers = self.backup if data.draw(st.booleans()) else self.stored()
        self.job = Job.recovered(
            *(self.job.spec, TIMING, plan, workers), explicit=False, phase=Phase.RUNNING, now=self.now
        )
        self.rebuilding, self.lost = None, []
        for worker in self.workers:
            worker.session = False
        if data.draw(st.booleans()):
            self.all_come_back(data)

    def cut_off(self, worker: Worker) -> None:
        if worker.session and worker.alive and worker.end is None and self.takes_part(worker):
            worker.session = False
            self.job.broken(worker.rank)
            self.settle()

    @rule(data=st.data())
    def one_is_given_up(self, data: st.DataObject) -> None:
        """Drop a worker in a sum that it has all of; another may not hear how the rest goes on without it."""
        stopped, deaf, *rest = data.draw(st.permutations(self.workers))
        self.give_parts()
        self.cut_off(stopped)
        self.wait(5.5)
        while self.lost:
            self.go_on_without_the_lost()
        self.all_talk()
        if data.draw(st.booleans()):
            self.cut_off(deaf)
        if self.rebuilding is not None:
            self.write()
        self.all_talk()
        self.give_parts()
        for worker in [stopped, *rest, deaf][: data.draw(st.integers(0, self.SIZE))]:
            self.finish(worker)
        if data.draw(st.booleans()):
            self.restart(data)

    @rule(data=st.data())
    def all_come_back(self, data: st.DataObject) -> None:
        for worker in data.draw(st.permutations(self.workers)):
            if not worker.session and worker.alive and worker.end is None:
                self.come_back(worker)
            for other in self.workers:
                self.ask(other)

    def come_back(self, worker: Worker) -> None:
        sums = self.sums[worker.identity]
        if not self.job.workers.knows(token(worker.identity)):  # as the database knows that it was given up
            worker.end = Ended(reason="there is no job with this worker")
            return
        try:
            worker.rank = self.job.rank_of(sums.rank, token(worker.identity), sums.knows)
        except NotPossibleError as error:
            worker.end = Ended(reason=str(error))
            return
        worker.session = True
        self.job.resume(sums.rank, token(worker.identity), self.now, sums.knows, sums.answered)
        self.settle()

    def answer(self, worker: Worker) -> None:
        if worker.asked is not None and worker.asked.renewal > self.sums[worker.identity].knows:
            self.sums[worker.identity].answered.append(worker.asked.renewal)
        super().answer(worker)
        self.ask(worker)

    def ask(self, worker: Worker) -> None:
        if worker.session and worker.alive and worker.end is None and self.takes_part(worker):
            self.beats += 1
            self.job.hear(worker.rank, Heartbeat(number=self.beats), self.now)
            self.settle()

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        for worker in self.workers:
            self.ask(worker)

    def hear(self, rank: int, event: FromController) -> None:
        known = [w for w in self.workers if w.rank == rank and w.session and w.end is None]
        for worker in known:
            if isinstance(event, Ended) and event.reason.endswith("the others have gone on without it"):
                newest = max(sums.knows for sums in self.sums)
                assert worker.identity not in self.members[newest] or self.takes_part(worker)
            if isinstance(event, Heartbeat) and event.number and self.takes_part(worker):
                self.sums[worker.identity].confirmed_at = self.now
                self.returns(worker)
            elif isinstance(event, Renewed) and self.takes_part(worker):
                sums = self.sums[worker.identity]
                sums.knows, sums.rank, sums.answered = event.renewal, event.ready.rank, []
                self.members[event.renewal] = frozenset(event.members)
        if isinstance(event, Start):
            for worker in known:
                self.go_on(worker)
        else:
            super().hear(rank, event)

    def go_on(self, worker: Worker) -> None:
        """Go on once all of the generation are there; the others get what one has finished as it is."""
        renewed = worker.renewed
        if renewed is None or worker.generation == renewed.renewal:
            return
        peers = [self.workers[identity] for identity in renewed.members]
        if any(peer.asked is None or peer.asked.renewal != renewed.renewal for peer in (worker, *peers)):
            return
        if any(self.sums[peer.identity].knows != renewed.renewal for peer in peers):
            return
        if renewed.holder is not None:
            made = self.sums[renewed.members[renewed.holder]].made[renewed.collective]
            assert self.sums[worker.identity].made.setdefault(renewed.collective, made) == made
        super().go_on(worker)
        self.returns(worker)

    def finish(self, worker: Worker) -> None:
        """Finish a worker's next collective if all its parts have come, maybe long ago."""
        self.give_parts()
        generation, collective = worker.generation, worker.finished
        members = self.members[generation]
        there = worker.running and worker.alive and worker.end is None
        if there and all((generation, collective, member) in self.parts for member in members):
            worker.finished += 1
            self.sums[worker.identity].made[collective] = members
            self.returns(worker)

    def give_parts(self) -> None:
        for worker in self.workers:
            if worker.running and worker.alive and worker.end is None:
                self.parts.add((worker.generation, worker.finished, worker.identity))

    def returns(self, worker: Worker) -> None:
        """Return finished sums to a worker's user, if the worker is in its job for sure."""
        sums = self.sums[worker.identity]
        if self.now - sums.confirmed_at > TIMING.lease_s:
            return
        for collective in sums.made.keys() - sums.returned.keys():
            sums.returned[collective] = sums.made[collective]
            for other in self.workers:
                theirs = self.sums[other.identity]
                if self.takes_part(other) and theirs.knows >= sums.knows and other.end is None:
                    assert theirs.returned.get(collective, sums.made[collective]) == sums.made[collective]

    @invariant()
    def one_end(self) -> None:
        self.give_parts()
        outcome = self.job.outcome
        assert not isinstance(outcome, Ended) or "has not finished collective" not in outcome.reason


TestRestoredMachine = pytest.mark.slow(RestoredMachine.TestCase)
TestRestoredMachine.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
