"""The state machine of a job, by itself and against a model that throws everything at it in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.api.errors import ConflictError, InvalidRequestError, NotPossibleError
from controller.api.messages import (
    Abort,
    Called,
    EndCause,
    Ended,
    FromController,
    FromWorker,
    Heartbeat,
    Held,
    HoldAt,
    JobSpec,
    Leave,
    Left,
    Mode,
    Moved,
    Pause,
    Paused,
    Ready,
    Renewing,
    Resumed,
    Start,
    Up,
    Waiting,
)
from controller.jobs.effects import Install, Lost, Over, Relocate, Started, Stayed, Tell
from controller.jobs.job import Job
from controller.jobs.moves import HOLDING_S
from controller.jobs.renewals import Cause
from controller.jobs.specs import Member, Phase
from controller.jobs.states import State
from tests.controller.jobs.made import PLAN, TIMING, joined, member, ready, running, token, told


def ready_for(rank: int, successor: Member, predecessor: Member, size: int) -> Ready:
    """Return the Ready that a worker of a job with that plan is told."""
    return Ready(
        job_id=PLAN.job_id,
        generation=PLAN.generation,
        window=PLAN.window,
        message_packets=PLAN.message_packets,
        path_mtu=PLAN.path_mtu,
        mode=PLAN.mode,
        mode_reason=PLAN.mode_reason,
        successor=successor.worker(),
        predecessor=predecessor.worker(),
        heartbeat_interval_s=TIMING.heartbeat_interval_s,
        heartbeat_timeout_s=TIMING.heartbeat_timeout_s,
        resume_token=token(rank),
        ring=PLAN.ring,
        rank=rank,
        world_size=size,
    )


def test_workers_that_wait_are_told_who_is_missing() -> None:
    job = Job(JobSpec(name="train", world_size=3), TIMING)
    job.join(member(2), 3, now=0.0)
    assert told(job) == [(2, Waiting((0, 1)))]
    job.join(member(0), 3, now=0.0)
    assert told(job) == [(0, Waiting((1,))), (2, Waiting((1,)))]
    job.broken(2)
    assert told(job) == [(0, Waiting((1, 2)))]
    job.join(member(2), 3, now=0.0)
    job.take_effects()
    job.join(member(1), 3, now=0.0)
    assert job.take_effects() == [Install()]


def test_everyone_learns_its_neighbours_on_the_ring() -> None:
    job = joined(3)
    job.take_effects()
    job.planned(PLAN, {rank: token(rank) for rank in range(3)}, 0.0)
    assert told(job) == [
        (rank, ready_for(rank, member((rank + 1) % 3), member((rank + 2) % 3), 3)) for rank in range(3)
    ]


def test_a_job_of_one_is_its_own_neighbour() -> None:
    job = joined(1)
    job.take_effects()
    job.planned(PLAN, {0: token(0)}, 0.0)
    assert told(job) == [(0, ready_for(0, member(0), member(0), 1))]


@pytest.mark.parametrize(
    ("newcomer", "world_size", "error", "text"),
    [
        (member(0), 4, InvalidRequestError, r"world size of 3, but rank 0 \(h1, 10.0.0.1\) says 4"),
        (member(3), 3, InvalidRequestError, r"rank 3 is no rank of job train with 3 workers \(0..2\)"),
        (member(1), 3, ConflictError, r"rank 1 is taken by h2 \(10.0.0.2\), and h2 .* asks for it too"),
        (member(0, path_mtu_max=512), 3, InvalidRequestError, r"path MTU 1024, but the link .* at most 512"),
    ],
    ids=["world size", "rank range", "rank taken", "MTU"],
)
def test_who_does_not_fit_is_refused_and_nobody_else_notices(
    newcomer: Member, world_size: int, error: type[Exception], text: str
) -> None:
    job = Job(JobSpec(name="train", world_size=3, path_mtu=1024), TIMING)
    job.join(member(1), 3, now=0.0)
    job.take_effects()
    with pytest.raises(error, match=text):
        job.join(newcomer, world_size, now=0.0)
    assert job.take_effects() == []
    assert job.missing == (0, 2)


def test_nobody_can_be_up_before_it_has_heard_ready() -> None:
    with pytest.raises(NotPossibleError, match=r"rank 1 .* has not heard Ready"):
        joined(3).hear(1, Up(), 0.0)


def test_silence_ends_the_job_and_names_the_worker() -> None:
    job = running(3, now=100.0)
    for now in (101.0, 104.0):
        job.hear(0, Heartbeat(), now)
        job.hear(2, Heartbeat(), now)
        job.tick(now)
    assert told(job) == []
    job.tick(105.1)
    lost = "rank 1 (h2, 10.0.0.2) sent no heartbeat for 5 s: it has died or hangs"
    assert job.take_effects()[0] == Lost(1, token(1), lost)
    job.hear(1, Heartbeat(), 105.2)
    job.tick(105.3)
    assert not any(isinstance(effect, Lost) for effect in job.take_effects())
    job.go_on_without(token(1), f"{lost}; message 3")
    end = Ended(reason=f"{lost}; message 3", cause=EndCause.WORKER_LOST, rank=1, host="h2")
    assert told(job) == [(rank, end) for rank in range(3)]


def test_a_break_that_is_shorter_than_the_timeout_is_no_matter() -> None:
    job = running(2, now=0.0)
    job.broken(1)
    job.hear(0, Heartbeat(), 4.0)
    job.tick(4.0)
    job.resume(1, token(1), 4.5)
    job.tick(8.0)
    assert told(job) == [(1, Resumed()), (1, Moved(0, Mode.IN_NETWORK))]
    with pytest.raises(InvalidRequestError, match="token"):
        job.resume(1, b"another's", 5.0)


def test_time_in_which_the_controller_itself_was_stopped_counts_for_nobody() -> None:
    job = running(2, now=0.0)
    job.forgive(60.0, 60.0)
    job.tick(64.0)
    assert not any(isinstance(effect, Lost) for effect in job.take_effects())


@pytest.mark.parametrize("order", ["the break first", "a heartbeat first", "the clock first"])
def test_whoever_comes_back_to_a_controller_that_was_stopped_has_the_time_of_a_restart(order: str) -> None:
    """Deliver in any order what was queued while the controller stood still: none shortens that time."""
    job = running(2, now=0.0)
    if order == "the break first":
        job.broken(1)
    elif order == "a heartbeat first":
        job.hear(0, Heartbeat(), 600.0)
    job.forgive(599.0, 600.0)
    job.tick(600.0)
    if order == "the clock first":
        job.broken(1)
    job.hear(0, Heartbeat(), 629.0)
    job.tick(629.0)
    assert [effect for effect in job.take_effects() if isinstance(effect, Lost)] == []
    job.tick(630.5)
    (lost,) = (effect for effect in job.take_effects() if isinstance(effect, Lost))
    assert "rank 1 (h2, 10.0.0.2) has not come back within 30 s after the controller was back" in lost.reason


def test_who_is_dead_is_missed_by_a_controller_that_is_stopped_again_and_again_too() -> None:
    job, now = running(2, now=0.0), 0.0
    for _ in range(100):
        now += 8.0
        job.forgive(7.0, now)
        job.hear(0, Heartbeat(), now)
        job.tick(now)
        if lost := [effect for effect in job.take_effects() if isinstance(effect, Lost)]:
            break
    assert [effect.rank for effect in lost] == [1]


def test_an_abort_is_passed_on_as_it_is() -> None:
    job = running(2)
    job.hear(1, Abort("the workers disagree: rank 1 called all_reduce"), 0.0)
    reason = "the workers disagree: rank 1 called all_reduce"
    end = Ended(reason=reason, cause=EndCause.WORKER_ABORTED, rank=1, host="h2")
    assert {event for _, event in told(job)} == {end}


def test_after_a_restart_all_workers_have_to_come_back() -> None:
    workers = [(member(rank), token(rank)) for rank in range(2)]
    job = Job.recovered(
        JobSpec(name="train", world_size=2),
        TIMING,
        PLAN,
        workers,
        explicit=False,
        phase=Phase.RUNNING,
        now=0.0,
    )
    job.resume(0, token(0), 1.0)
    job.hear(0, Leave(), 29.0)
    job.tick(30.0)
    assert told(job) == [(0, Resumed()), (0, Moved(0, Mode.IN_NETWORK)), (0, Waiting((1,)))]
    job.tick(30.1)
    (lost,) = job.take_effects()
    assert isinstance(lost, Lost)
    assert (lost.rank, lost.token) == (1, token(1))
    assert "rank 1 (h2, 10.0.0.2) has not come back within 30 s" in lost.reason


def test_an_elastic_job_trusts_a_worker_that_hears_ready_after_a_restart() -> None:
    """Check that no result waits for such a worker's word: it was in no other generation."""
    workers = [(member(rank), token(rank)) for rank in range(2)]
    spec = JobSpec(name="train", world_size=2, elastic=True)
    job = Job.recovered(spec, TIMING, PLAN, workers, explicit=False, phase=Phase.READY, now=0.0)
    job.resume(0, token(0), 1.0, PLAN.generation)
    assert job.is_doubtful
    assert job.has_not_heard(member(1))
    job.join_again(1, 1.0)
    assert not job.is_doubtful
    for rank in range(2):
        job.hear(rank, Up(), 2.0)
    told(job)
    for rank in range(2):
        job.hear(rank, Heartbeat(number=1), 3.0)
        assert told(job, quiet=False) == [(rank, Heartbeat(number=1))]


def test_a_worker_that_was_away_when_everybody_left_hears_it_when_it_is_back() -> None:
    job = running(2)
    job.hear(0, Leave(), 1.0)
    job.hear(1, Leave(), 1.0)
    job.take_effects()
    job.broken(1)
    job.resume(1, token(1), 2.0)
    assert told(job) == [(1, Left())]


# Moving between ring and switch.

RING_PLAN = replace(PLAN, mode=Mode.RING, mode_reason="no room")


def by_ring(size: int) -> Job:
    job = joined(size)
    job.planned(RING_PLAN, {rank: token(rank) for rank in range(size)}, 0.0)
    for rank in range(size):
        job.hear(rank, Up(), 0.0)
    job.take_effects()
    return job


def to_all(size: int, event: FromController) -> list[tuple[int, FromController]]:
    return [(rank, event) for rank in range(size)]


def test_a_job_moves_when_all_hold_at_the_furthest_collective() -> None:
    job = by_ring(3)
    job.move_to(Mode.IN_NETWORK, 9, 1.0)
    assert told(job) == to_all(3, Pause(9))
    for rank, collective in ((0, 41), (2, 41), (1, 42)):
        assert told(job) == []
        job.hear(rank, Paused(9, collective), 1.1)
    assert told(job) == to_all(3, HoldAt(9, 42))
    job.hear(1, Held(9), 1.2)
    job.hear(0, Held(9), 1.2)
    assert job.take_effects() == []
    job.hear(2, Held(9), 1.3)
    assert job.take_effects() == [Relocate(Mode.IN_NETWORK)]
    job.moved(Mode.IN_NETWORK, "")
    assert told(job) == to_all(3, Moved(9, Mode.IN_NETWORK))
    assert job.plan == replace(RING_PLAN, mode=Mode.IN_NETWORK, mode_reason="")
    assert job.why_not_move() == ""


def test_where_the_switch_cannot_be_written_all_go_on_by_ring() -> None:
    job = by_ring(1)
    job.move_to(Mode.IN_NETWORK, 1, 0.0)
    job.hear(0, Paused(1, 0), 0.0)
    job.hear(0, Held(1), 0.0)
    job.take_effects()
    job.moved(Mode.RING, "switch s1 is away")
    assert told(job) == [(0, Moved(1, Mode.RING, "switch s1 is away"))]


def test_a_worker_that_comes_back_is_told_where_the_move_is() -> None:
    job = by_ring(2)
    job.move_to(Mode.IN_NETWORK, 7, 0.0)
    told(job)
    job.hear(0, Paused(7, 3), 0.0)
    job.broken(0)
    job.resume(0, token(0), 0.1)
    assert told(job) == [(0, Resumed()), (0, Pause(7))]
    job.hear(0, Paused(7, 3), 0.2)
    job.broken(1)
    job.resume(1, token(1), 0.2)
    job.hear(1, Paused(7, 4), 0.2)
    assert told(job) == [(1, Resumed()), (1, Pause(7)), (0, HoldAt(7, 4)), (1, HoldAt(7, 4))]
    job.hear(0, Held(7), 0.3)
    job.hear(1, Held(7), 0.3)
    assert job.take_effects() == [Relocate(Mode.IN_NETWORK)]
    job.broken(1)
    job.resume(1, token(1), 0.4)
    assert told(job) == [(1, Resumed()), (1, HoldAt(7, 4))]
    job.hear(1, Held(7), 0.5)
    assert job.take_effects() == []
    job.broken(0)
    job.moved(Mode.IN_NETWORK, "")
    assert told(job) == [(1, Moved(7, Mode.IN_NETWORK))]
    job.resume(0, token(0), 0.6)
    assert told(job) == [(0, Resumed()), (0, Moved(0, Mode.IN_NETWORK))]


def test_answers_to_another_move_say_nothing() -> None:
    job = by_ring(1)
    job.move_to(Mode.IN_NETWORK, 2, 0.0)
    job.hear(0, Paused(1, 5), 0.0)
    job.hear(0, Held(2), 0.0)
    assert told(job) == [(0, Pause(2))]
    job.hear(0, Paused(2, 5), 0.0)
    job.hear(0, Held(1), 0.0)
    assert job.take_effects() == [Tell(0, HoldAt(2, 5))]


def test_a_worker_that_does_not_pause_makes_the_others_go_on() -> None:
    job = by_ring(2)
    job.move_to(Mode.IN_NETWORK, 1, 0.0)
    job.hear(0, Paused(1, 0), 0.0)
    told(job)
    for now in (3.0, 5.0, 5.1):
        job.hear(0, Heartbeat(), now)
        job.hear(1, Heartbeat(), now)
        job.tick(now)
    stayed, *tells = [
        e for e in job.take_effects() if e != Tell(0, Heartbeat()) and e != Tell(1, Heartbeat())
    ]
    assert stayed == Stayed("rank 1 (h2, 10.0.0.2) kept the others waiting for 5 s")
    assert tells == [Tell(0, Moved(1, Mode.RING, "no room")), Tell(1, Moved(1, Mode.RING, "no room"))]
    assert job.why_not_move() == ""


def test_a_straggler_may_take_longer_to_hold_but_not_for_ever() -> None:
    job = by_ring(2)
    job.move_to(Mode.IN_NETWORK, 1, 0.0)
    for rank in range(2):
        job.hear(rank, Paused(1, rank), 0.0)
    job.hear(0, Held(1), 0.0)
    job.take_effects()
    for now in (HOLDING_S, HOLDING_S + 1):
        for rank in range(2):
            job.hear(rank, Heartbeat(), now)
        job.tick(now)
        assert any(isinstance(effect, Stayed) for effect in job.take_effects()) == (now > HOLDING_S)


def test_what_is_being_written_is_not_called_off() -> None:
    job = by_ring(1)
    job.move_to(Mode.IN_NETWORK, 1, 0.0)
    job.hear(0, Paused(1, 0), 0.0)
    job.hear(0, Held(1), 0.0)
    job.take_effects()
    job.call_off("another job needs the room")
    job.hear(0, Heartbeat(), 500.0)
    job.tick(500.0)
    assert told(job) == []
    assert job.state is State.RELOCATING


def test_a_job_that_ends_while_it_moves_has_ended() -> None:
    job = by_ring(2)
    job.move_to(Mode.IN_NETWORK, 1, 0.0)
    told(job)
    job.hear(1, Abort("no more"), 0.0)
    end = Ended(reason="no more", cause=EndCause.WORKER_ABORTED, rank=1, host="h2")
    assert job.take_effects() == [Over(), *(Tell(rank, end) for rank in range(2))]
    job.hear(0, Paused(1, 0), 0.0)
    job.hear(0, Held(1), 0.0)
    job.moved(Mode.IN_NETWORK, "")
    assert job.take_effects() == []


def test_only_a_job_whose_workers_are_all_there_and_stay_is_moved() -> None:
    assert ready(2).why_not_move() == "it is ready"
    job = by_ring(2)
    job.broken(1)
    assert job.why_not_move() == "rank 1 is without a connection to the controller"
    job.resume(1, token(1), 0.0)
    job.hear(0, Leave(), 0.0)
    assert job.why_not_move() == "rank 0 is leaving"
    with pytest.raises(NotPossibleError, match="cannot be moved: rank 0 is leaving"):
        job.move_to(Mode.IN_NETWORK, 1, 0.0)


def test_workers_of_one_job_are_of_one_tenant() -> None:
    job = Job(JobSpec(name="train", world_size=2, tenant="blue"), TIMING)
    with pytest.raises(InvalidRequestError, match=r"is of tenant blue, but .* says red"):
        job.join(member(0), 2, 0.0, "red")
    with pytest.raises(InvalidRequestError, match=r"is of tenant blue, but .* says default"):
        job.join(member(0), 2, 0.0)
    job.join(member(0), 2, 0.0, "blue")
    created = Job(JobSpec(name="train", world_size=2, tenant="blue"), TIMING, explicit=True)
    created.join(member(0), 2, 0.0)


class Worker:
    """A worker: what it has said and heard in its life; `session` tells whether it has one."""

    def __init__(self) -> None:
        self.session = True
        self.heard: list[FromController] = []
        self.up = self.leaving = self.gone = False
        self.next = 0  # the first collective not started
        self.step: Pause | HoldAt | None = None  # what it has to answer
        self.mode = Mode.IN_NETWORK

    def has(self, kind: type[FromController]) -> bool:
        return any(isinstance(event, kind) for event in self.heard)

    @property
    def is_over(self) -> bool:
        return self.has(Ended) or self.has(Left)


class JobMachine(RuleBasedStateMachine):
    """Workers join, talk, vanish and come back in any order. A worker that heard of the end goes away."""

    SIZE = 3

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.job = Job(JobSpec(name="train", world_size=self.SIZE), TIMING)
        self.workers: dict[int, Worker] = {}
        self.installing = False
        self.writing: Relocate | None = None
        self.moves = 0
        self.modes: dict[int, Mode] = {}  # of collectives that have started
        self.starts = self.overs = 0
        self.lost: list[Lost] = []

    def settle(self) -> None:
        """Do what the job asks for, and check the promises at the very moment."""
        for effect in self.job.take_effects():
            if isinstance(effect, Install):
                assert sorted(self.workers) == list(range(self.SIZE))
                self.installing = True
            elif isinstance(effect, Started):
                self.starts += 1
            elif isinstance(effect, Over):
                self.overs += 1
            elif isinstance(effect, Lost):
                self.lost.append(effect)
            elif isinstance(effect, Relocate):
                assert self.writing is None
                assert len({w.next for w in self.workers.values()}) == 1, "they hold at different collectives"
                self.writing = effect
            elif isinstance(effect, Tell):
                worker = self.workers[effect.rank]
                assert worker.session, "told a worker that has no session"
                assert not worker.is_over, "told something after the end"
                worker.heard.append(effect.event)
                if isinstance(effect.event, (Pause, HoldAt)):
                    worker.step = effect.event
                if isinstance(effect.event, Moved):
                    assert self.writing is None, "told to go on while the switch is written"
                    worker.step, worker.mode = None, effect.event.mode
                if isinstance(effect.event, Start):
                    assert all(w.up for w in self.workers.values()), "started before all were up"
                if isinstance(effect.event, Left):
                    assert all(w.leaving for w in self.workers.values()), "left before all wanted to"
                if worker.is_over:
                    assert self.overs == 1, "the end was told before it was acted on"
                    worker.session = False

    def some(self, data: st.DataObject, **wanted: bool) -> int | None:
        ranks = [r for r, w in self.workers.items() if all(getattr(w, k) == v for k, v in wanted.items())]
        return data.draw(st.sampled_from(ranks)) if ranks else None

    @precondition(lambda self: self.job.phase in (Phase.CREATED, Phase.JOINING))
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(self.job.missing))
        self.workers[rank] = Worker()
        self.job.join(member(rank), self.SIZE, self.now)
        self.settle()

    @precondition(lambda self: self.installing and self.job.live)
    @rule()
    def plan(self) -> None:
        self.installing = False
        self.job.planned(PLAN, {rank: token(rank) for rank in range(self.SIZE)}, self.now)
        self.settle()

    @rule(data=st.data(), said=st.sampled_from([Up(), Leave(), Heartbeat()]))
    def say(self, data: st.DataObject, said: FromWorker) -> None:
        rank = self.some(data, session=True)
        if rank is None or not self.workers[rank].has(Ready):
            return
        worker = self.workers[rank]
        worker.up |= isinstance(said, Up)
        worker.leaving |= isinstance(said, Leave)
        self.job.hear(rank, said, self.now)
        self.settle()

    @precondition(lambda self: self.job.phase is Phase.RUNNING)
    @rule(data=st.data())
    def collective(self, data: st.DataObject) -> None:
        """Start a worker's next collective unless it is held; no worker can be two ahead of another."""
        rank = data.draw(st.sampled_from(sorted(self.workers)))
        worker = self.workers[rank]
        held = isinstance(worker.step, Pause) or (
            isinstance(worker.step, HoldAt) and worker.next >= worker.step.collective
        )
        if held or worker.is_over or worker.next > min(w.next for w in self.workers.values()):
            return
        assert self.modes.setdefault(worker.next, worker.mode) is worker.mode, "a collective in two modes"
        worker.next += 1

    @precondition(lambda self: not self.job.why_not_move())
    @rule(mode=st.sampled_from(Mode))
    def move(self, mode: Mode) -> None:
        self.moves += 1
        self.job.move_to(mode, self.moves, self.now)
        self.settle()

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        rank = self.some(data, session=True)
        if rank is not None:
            self.reply(rank)

    def reply(self, rank: int) -> None:
        """Answer what the controller has said of a move."""
        worker = self.workers[rank]
        if isinstance(worker.step, Pause):
            self.job.hear(rank, Paused(worker.step.move, worker.next), self.now)
        elif isinstance(worker.step, HoldAt) and worker.next >= worker.step.collective:
            self.job.hear(rank, Held(worker.step.move), self.now)
        self.settle()

    @precondition(lambda self: self.writing is not None)
    @rule(works=st.booleans())
    def write(self, works: bool) -> None:
        assert self.writing is not None
        assert self.job.plan is not None
        mode, self.writing = self.writing.mode if works else self.job.plan.mode, None
        self.job.moved(mode, "")
        self.settle()

    @rule()
    def call_off(self) -> None:
        self.job.call_off("something else")
        self.settle()

    @rule(data=st.data(), how=st.sampled_from(["broken", "broken", "broken", "closed", "abort"]))
    def fail(self, data: st.DataObject, how: str) -> None:
        rank = self.some(data, session=True)
        if rank is None:
            return
        worker = self.workers[rank]
        withdraws = self.job.phase is Phase.JOINING and how != "abort"
        if how == "abort":
            self.job.hear(rank, Abort("no more"), self.now)
        else:
            worker.session = False
            worker.gone = how == "closed"
            if how == "closed":  # as the registry does: its session is the one thing it has no more
                self.job.workers[rank].connected = False
            getattr(self.job, how)(rank)
        if withdraws:
            del self.workers[rank]
        self.settle()

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        rank = self.some(data, session=False, is_over=False, gone=False)
        if rank is None or not self.workers[rank].has(Ready):
            return
        self.workers[rank].session = True
        self.job.resume(rank, token(rank), self.now)
        self.settle()

    @precondition(lambda self: self.lost)
    @rule()
    def go_on_without_the_lost(self) -> None:
        lost = self.lost.pop()
        self.job.go_on_without(lost.token, lost.reason)
        self.settle()

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.5]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.job.tick(self.now)
        self.settle()

    @rule()
    def delete(self) -> None:
        self.job.end("it was deleted", EndCause.DELETED)
        self.settle()

    @invariant()
    def one_end(self) -> None:
        assert self.starts <= 1
        assert self.overs == (0 if self.job.live else 1)
        if not self.job.live:
            for worker in self.workers.values():
                assert not worker.session, "a worker with a session was not told the end"
                assert sum(isinstance(event, (Ended, Left)) for event in worker.heard) <= 1

    def teardown(self) -> None:
        """End the job as it stands, and check that everybody who can come back hears of the end, once."""
        self.job.end("the test is over", EndCause.DELETED)
        self.settle()
        for rank, worker in self.workers.items():
            if not worker.is_over and not worker.gone and worker.has(Ready):
                worker.session = True
                self.job.resume(rank, token(rank), self.now)
                self.settle()
                assert worker.is_over
        ends = {event for w in self.workers.values() for event in w.heard if isinstance(event, (Ended, Left))}
        assert len(ends) <= 1, "workers were told different ends"


TestJobMachine = pytest.mark.slow(JobMachine.TestCase)


class MoveMachine(JobMachine):
    """The same, once the job runs by ring."""

    def __init__(self) -> None:
        super().__init__()
        for rank in range(self.SIZE):
            self.workers[rank] = Worker()
            self.workers[rank].mode = Mode.RING
            self.job.join(member(rank), self.SIZE, self.now)
        self.settle()
        self.installing = False
        self.job.planned(RING_PLAN, {rank: token(rank) for rank in range(self.SIZE)}, self.now)
        for rank, worker in self.workers.items():
            worker.up = True
            self.job.hear(rank, Up(), self.now)
        self.settle()

    @precondition(lambda self: self.job.move is not None)
    @rule(rounds=st.integers(1, 3))
    def go_on(self, rounds: int) -> None:
        """Let everybody who can do what the move waits for."""
        for _ in range(rounds):
            for rank, worker in self.workers.items():
                if isinstance(worker.step, HoldAt) and worker.next < worker.step.collective:
                    assert self.modes.setdefault(worker.next, worker.mode) is worker.mode
                    worker.next += 1
                if worker.session:
                    self.reply(rank)


TestMoveMachine = pytest.mark.slow(MoveMachine.TestCase)
TestMoveMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# The lease of an elastic job


def elastic(size: int) -> Job:
    """Return a running job that goes on without workers that die."""
    job = Job(JobSpec(name="train", world_size=size, elastic=True), TIMING)
    for rank in range(size):
        job.join(member(rank), size, 0.0, elastic=True)
    job.planned(PLAN, {rank: token(rank) for rank in range(size)}, 0.0)
    for rank in range(size):
        job.hear(rank, Up(), 0.0)
    return job


def test_only_an_elastic_job_has_a_lease_and_it_is_over_before_anybody_is_given_up() -> None:
    readies = [
        e.event
        for job in (elastic(2), running(2))
        for e in job.take_effects()
        if isinstance(e, Tell) and isinstance(e.event, Ready)
    ]
    leases = {ready.lease_s for ready in readies}
    assert leases <= {0.0, TIMING.lease_s}
    assert 0 < TIMING.lease_s < min(TIMING.lost_timeout_s, TIMING.heartbeat_timeout_s)


def test_heartbeats_in_an_elastic_job_are_answered_with_their_number() -> None:
    job, other = elastic(2), running(2)
    told(job)
    told(other)
    job.hear(1, Heartbeat(number=7), 1.0)
    other.hear(1, Heartbeat(number=7), 1.0)
    assert [e for e in job.take_effects() if isinstance(e, Tell)] == [Tell(1, Heartbeat(number=7))]
    assert other.take_effects() == []


def test_who_is_being_given_up_or_keeps_a_renewal_waiting_is_not_told_that_it_belongs() -> None:
    job = elastic(3)
    told(job)
    job.renew(80, Cause.SWITCH_RESTARTED, "a switch restarted", 1.0)
    job.take_effects()
    job.hear(1, Heartbeat(number=3), 1.0)
    assert job.take_effects() == []
    job.hear(1, Renewing(renewal=80, qpn_out=0x301, psn_out=0, qpn_in=0x302, collective=4), 1.0)
    job.hear(1, Heartbeat(number=4), 1.0)
    assert job.take_effects() == [Tell(1, Heartbeat(number=4))]
    for rank in (0, 1):
        job.hear(rank, Heartbeat(), 9.0)
    job.tick(9.0)
    assert any(isinstance(effect, Lost) and effect.rank == 2 for effect in job.take_effects())
    job.hear(2, Heartbeat(number=9), 9.0)
    assert job.take_effects() == []


@pytest.mark.parametrize("size", [2, 3])
def test_a_job_that_runs_takes_nobody_in_even_if_it_has_lost_that_rank(size: int) -> None:
    """Check that a dead process is refused that is started again and joins as the lost rank."""
    job = elastic(size)
    job.closed(size - 1)
    (lost,) = [effect for effect in job.take_effects() if isinstance(effect, Lost)]
    job.go_on_without(lost.token, lost.reason)
    job.renew(80, Cause.WORKER_LOST, lost.reason, 1.0)
    with pytest.raises(ConflictError, match=r"is running and takes nobody in, rank .* under another name"):
        job.join(member(size - 1), size, 1.0, elastic=True)
    assert len(job.workers) == size - 1


def test_a_mismatch_and_a_silence_that_end_a_job_at_once_end_it_once() -> None:
    """End a job that is only ready, as a controller restarted with a full disk may know it."""
    job = ready(2)
    job.hear(0, Abort("sizes differ", Called(4, "all_reduce")), 10.0)
    job.tick(10.0 + 2 * TIMING.lost_timeout_s)
    assert isinstance(job.outcome, Ended)
    assert job.outcome.cause is EndCause.MISMATCH
    assert [type(effect) for effect in job.take_effects()].count(Over) == 1
