"""Jobs that go on under a new generation, on switches in memory: a switch fails, a worker, the disk."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from controller.api.errors import ConflictError, InvalidRequestError, NotPossibleError, QueuePairTakenError
from controller.api.messages import (
    Abort,
    EndCause,
    Ended,
    Heartbeat,
    JobSpec,
    Leave,
    Left,
    Mode,
    Renewing,
    Resumed,
    Up,
)
from controller.database.store import StoredJob
from controller.entries import Entry, TableEntry, key_of
from controller.fabric.marks import mark_of
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.jobs.renewals import Cause
from controller.jobs.specs import Phase
from controller.jobs.states import State
from controller.orchestration import sessions
from controller.orchestration.record import stored
from controller.service.views import job_info
from controller.slots.admission import Quotas, TenantQuota
from controller.slots.allocator import SwitchAllocator
from controller.switches.queries import SlotContent
from controller.switches.updates import SwitchError
from tests.controller.bench import ACROSS, ONE_RACK, RACKS, Bench, Worker, member, say
from tests.controller.told import heard

CONFIG = RACKS


async def test_a_leaf_that_restarted_gives_its_jobs_a_new_generation(b: Bench) -> None:
    workers = await b.start()
    first, mode, _ = workers[0].plan
    workers[1].collective = 11
    await b.restart_switch()
    await b.go(workers)
    (plan,) = {worker.plan for worker in workers}
    assert plan == (plan[0], Mode.IN_NETWORK, 3)
    assert (plan[0] > first, mode) == (True, Mode.IN_NETWORK)
    assert [w.renewed and (w.renewed.collective, w.renewed.holder) for w in workers] == [(10, 1)] * 3
    assert [worker.started for worker in workers] == [2] * 3
    assert b.job.renewal is None
    info = job_info(b.registry, b.registry.job("train"))
    assert (info.renewals, info.renewing, list(info.awaited)) == (1, False, [])
    assert "l1 was restarted" in info.renewal_reason
    assert b.registry.renewer.begun == {Cause.SWITCH_RESTARTED: 1}
    await b.go(workers, 3.0)  # the old generation's guards go when nobody sends any more
    assert b.used() == {"l1": 256}
    assert len(b.of_jobs("l1")) == 1 + 5 * 3
    assert b.is_as_wanted()
    say(workers, Leave())
    await b.go(workers)
    assert [worker.end for worker in workers] == [Left()] * 3
    assert b.used() == {}
    assert b.store.running() == []


@pytest.mark.parametrize("up", [0, 1, 2])
@pytest.mark.parametrize("elastic", [False, True])
async def test_a_job_whose_workers_are_not_all_up_is_renewed_as_one_that_runs(
    b: Bench, up: int, elastic: bool
) -> None:
    """Renew it while some wait for Start, and the others still bring their connections up."""
    workers = await b.ready_workers(elastic=elastic)
    first = workers[0].plan[0]
    say(workers[:up], Up())
    assert b.job.phase is Phase.READY
    await b.restart_switch()
    for worker in workers[up:]:
        worker.session.hear(Up())  # of the generation before: it was on its way
    await b.go(workers)
    assert [worker.started for worker in workers] == [1] * 3
    (plan,) = {worker.plan for worker in workers}
    assert (plan[0] > first, plan[1]) == (True, Mode.IN_NETWORK)
    assert [job.phase for job in b.store.jobs() if job.outcome is None] == [Phase.RUNNING]
    await b.go(workers, 3.0)
    assert b.used() == {"l1": 256}
    assert b.is_as_wanted()


async def test_a_job_whose_workers_are_not_all_up_waits_for_its_switch(b: Bench) -> None:
    workers = await b.ready_workers(backup=True)
    await b.lose("l1", forget=True)
    await b.go(workers, b.config.switch_timeout_s + 5.0)
    for worker in workers:
        assert worker.end is None
        worker.session.hear(Up())
    await b.go(workers, b.config.switch_timeout_s + 2.0)
    assert {worker.plan[1] for worker in workers} == {Mode.RING}
    assert workers[0].ready is not None
    assert workers[0].ready.backup
    await b.find("l1")
    await b.go(workers, 3.0)
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}


async def test_a_controller_that_restarts_with_a_switch_renews_jobs_that_are_not_up(b: Bench) -> None:
    workers = await b.ready_workers()
    workers[0].session.hear(Up())
    await b.lose("l1", forget=True)
    await b.restart()
    await b.resume(*workers)
    workers[0].session.hear(Up())
    await b.find("l1")
    workers[1].session.hear(Up())
    await b.go(workers, 1.0)
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}
    assert [worker.started for worker in workers] == [1] * 3


async def test_a_job_across_racks_is_renewed_on_all_of_its_switches(b: Bench) -> None:
    workers = await b.start(hosts=ACROSS)
    other = await b.start("other", (3, 4))
    await b.restart_switch("l1")
    assert [other[0].renew, other[0].started] == [None, 1]
    await b.go(workers, 3.0)
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}
    assert b.used() == {"l1": 256, "l2": 512, "s1": 256}
    assert b.is_as_wanted()


async def test_nothing_is_added_up_in_the_old_generation_once_the_renewal_has_begun(b: Bench) -> None:
    workers = await b.start(elastic=True)
    workers[0].silent = True
    old = {e for e in b.of_jobs("l1") if getattr(e, "table", "") == MEMBER_QP}
    workers[2].session.hear(Abort("no more"))
    await b.go(workers[:2])
    assert b.tables("l1") == {MEMBER_QP}
    assert b.of_jobs("l1") == old
    assert list(job_info(b.registry, b.registry.job("train")).awaited) == [0]
    workers[0].answer()
    await b.go(workers[:2], 10.0)
    assert FLOW in b.tables("l1")
    assert b.of_jobs("l1") > old  # the third may not know yet
    await b.go(workers[:2], 70.0)
    assert not b.of_jobs("l1") & old
    assert b.used() == {"l1": 256}


async def test_an_elastic_job_goes_on_without_the_worker_that_died(b: Bench) -> None:
    workers = await b.start(hosts=ACROSS, elastic=True)
    workers[3].collective = 11
    workers[1].session.broken()
    rest = [workers[0], *workers[2:]]
    await b.go(rest, 7.0)
    assert [worker.rank for worker in rest] == [0, 1, 2]
    assert {worker.plan[1:] for worker in rest} == {(Mode.IN_NETWORK, 3)}
    for worker in rest:
        renewed = worker.renewed
        assert renewed is not None
        assert (renewed.holder, renewed.members, renewed.collective) == (2, (0, 2, 3), 10)
        assert worker.renew is not None
        assert "rank 1 (h4, 10.0.2.1) has been without a connection" in worker.renew.reason
    with pytest.raises(NotPossibleError, match=r"train goes on without this worker: rank 1 .* 5 s"):
        await b.resume(workers[1])
    info = job_info(b.registry, b.registry.job("train"))
    assert (info.spec.world_size, len(info.workers), list(info.ring)) == (4, 3, [0, 1, 2])
    # And again: who is renumbered is so everywhere.
    rest[0].session.closed()
    await b.go(rest[1:], 1.0)
    assert [worker.rank for worker in rest[1:]] == [0, 1]
    renewed = rest[1].renewed
    assert renewed is not None
    assert renewed.members == (2, 3)
    assert rest[1].started == 3
    say(rest[1:], Leave())
    await b.go(rest[1:])
    assert rest[2].end == Left()


async def test_who_was_dropped_knows_nothing_of_the_end_for_who_has_its_rank_now(b: Bench) -> None:
    workers = await b.start(elastic=True)
    workers[0].session.hear(Abort("no more"))
    await b.go(workers[1:], 1.0)
    assert workers[1].rank == 0
    b.registry.engine.act(b.registry.job("train"), lambda job, now: job.end("enough", EndCause.DELETED))
    workers[0].session.took_end()
    assert not b.job.workers[0].knows_end
    workers[1].session.took_end()
    assert b.job.workers[0].knows_end


async def test_a_dropped_worker_that_took_its_end_keeps_no_queue_pairs_retired(b: Bench) -> None:
    for takes_its_end_late in (False, True):
        workers = await b.start(elastic=True)
        first = b.qp
        workers[2].session.hear(Abort("out of memory"))
        if not takes_its_end_late:
            workers[2].session.took_end()
        await b.go(workers[:2], 3.0)
        if takes_its_end_late:  # the job has other ranks by now
            assert b.retired(first) == {(0, first + 1), (1, first)}, "what it may send to"
            workers[2].session.took_end()
            b.now += 2.0
        assert b.retired(first) == set()
        say(workers[:2], Leave())
        await b.go(workers[:2])


async def test_who_leaves_in_a_renewal_keeps_no_queue_pairs_retired(b: Bench) -> None:
    workers = await b.start()
    first = b.qp
    for worker in workers:
        worker.silent = True
    await b.restart_switch()
    await b.go(workers)
    for worker in workers:
        assert worker.renew is not None
        worker.session.hear(Leave())
    await b.go(workers)
    assert [worker.end for worker in workers] == [Left()] * 3
    assert len(b.retired(first)) == 6
    b.now += b.registry.renewer.guarding_s
    assert b.retired(first) == set()


async def test_who_offers_numbers_that_it_cannot_have_is_not_asked_for_ever(
    b: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that it ends whatever the others offer."""
    monkeypatch.setattr(sessions, "_MOST_OFFERS", 5)
    workers = await b.start()
    number = b.store.newest_generation
    first = workers[2].qp
    for worker in workers:
        worker.silent = True
    await b.restart_switch()
    for attempt in range(1, 7):
        await b.go(workers)
        assert b.store.newest_generation == number + attempt
        workers[0].answer()
        workers[2].qp = first
        if attempt <= 5:
            workers[2].answer()
    with pytest.raises(QueuePairTakenError, match="new ones were asked for 5 times"):
        workers[2].answer()
    await b.go(workers)
    assert b.store.newest_generation == number + 6


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_dropped_worker_may_still_send_when_all_others_have_left(b: Bench, restarts: bool) -> None:
    workers = await b.start(elastic=True)
    first = b.qp
    say(workers[:2], Leave())
    workers[2].session.broken()  # stopped, for an hour
    await b.go(workers[:2], 8.0)
    assert [worker.end for worker in workers[:2]] == [Left()] * 2
    if restarts:
        await b.restart()
    b.now += 3600.0
    assert b.retired(first) == {(0, first + 1), (1, first)}


@pytest.mark.parametrize("mode", [None, Mode.RING])
async def test_a_restart_knows_who_may_send_in_a_generation_before_the_last(
    b: Bench, mode: Mode | None
) -> None:
    """Check a job by ring, and one whose guards of that generation are gone: no switch tells of it."""
    workers = await b.start(spec=JobSpec(name="train", world_size=3, elastic=True, mode=mode))
    first = b.qp
    workers[2].session.broken()  # stopped, for an hour
    rest = workers[:2]
    await b.go(rest, 100.0)
    stopped = {(0, first + 1), (1, first)}
    assert b.retired(first) == stopped
    await b.restart()
    await b.resume(*rest)
    await b.go(rest, 3.0)
    assert b.retired(first) == stopped
    say(rest, Leave())
    await b.go(rest)
    await b.restart()
    b.now += 3600.0
    assert b.retired(first) == stopped


async def test_who_is_dropped_while_its_job_is_taken_off_is_known_after_a_restart(b: Bench) -> None:
    workers = await b.start(elastic=True)
    first = b.qp
    running = b.registry.job("train")
    assert running.job.plan is not None
    workers[2].session.hear(Abort("no more"))
    plan = replace(running.job.plan, mode=Mode.RING)
    b.store.save_job(stored(running.job, plan, (), running.job.phase))  # as `Allocations.take_off` does
    await b.go(workers[:2], 3.0)
    await b.restart()
    b.now += 3600.0
    assert b.retired(first) == {(0, first + 1), (1, first)}


async def test_a_defect_in_asking_what_a_dead_worker_had_sent_keeps_nobody_waiting(
    b: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slots(first: int, count: int, *, step: int = 1) -> list[SlotContent]:
        raise ValueError("a defect")

    workers = await b.start(elastic=True)
    monkeypatch.setattr(b.switches["l1"], "slots", slots)
    workers[2].session.closed()
    await b.go(workers[:2], 1.0)
    assert {worker.plan[2] for worker in workers[:2]} == {2}


async def test_one_worker_that_is_left_goes_on_alone(b: Bench) -> None:
    workers = await b.start(hosts=(0, 1), elastic=True)
    workers[0].session.closed()
    await b.go(workers[1:], 1.0)
    (alone,) = workers[1:]
    assert alone.plan[1:] == (Mode.RING, 1)
    assert alone.ready is not None
    assert alone.ready.successor == alone.ready.predecessor
    assert alone.ready.mode_reason == "a job of one worker has nothing to add up"
    assert alone.started == 2


async def test_a_job_whose_database_is_from_a_backup_is_renewed_behind_what_its_workers_know(
    b: Bench,
) -> None:
    """Check it, as workers take no part in a renewal that is not behind the last; no switch knows of it."""
    workers = await b.start(
        elastic=True, spec=JobSpec(name="train", world_size=3, mode=Mode.RING, elastic=True)
    )
    older = sqlite3.connect(":memory:")
    b.store.connection.backup(older)
    for _ in range(300):  # of other jobs, more than are reserved
        b.store.next_generation()
    workers[2].session.broken()
    rest = workers[:2]
    await b.go(rest, 7.0)
    ((generation, mode, size),) = {worker.plan for worker in rest}
    assert (mode, size) == (Mode.RING, 2)
    b.registry.stop()
    await b.registry.drain()
    b.store.close()
    for path in b.path.parent.glob("c.db*"):
        path.unlink()
    restored = sqlite3.connect(b.path)
    older.backup(restored)
    restored.close()
    b.registry = b._start()
    await b.settled()
    assert b.store.newest_generation < generation
    await b.resume(*rest)
    await b.go(rest, 40.0)  # rank 2, which the backup still has, does not come
    for worker in rest:
        assert worker.end is None
        assert worker.plan[0] > generation
        assert worker.started == 3


@pytest.mark.parametrize("mode", [None, Mode.RING])
@pytest.mark.parametrize("first", [0, 1, 2])
async def test_who_was_given_up_after_the_backup_is_not_taken_in_again(
    b: Bench, first: int, mode: Mode | None
) -> None:
    """Stop it in a sum of all three, which the rest has done anew since: it must return nothing of it."""
    workers = await b.start(spec=JobSpec(name="train", world_size=3, elastic=True, mode=mode))
    copy = b.back_up()
    workers[2].session.broken()
    rest = workers[:2]
    await b.go(rest, 7.0)
    assert {worker.plan[2] for worker in rest} == {2}
    for worker in workers:
        worker.collective = 11
    await b.restore(copy, listen=True)
    for worker in (*workers[first:], *workers[:first]):
        assert not any(other.asks(50) for other in workers)
        with contextlib.suppress(NotPossibleError):
            await b.resume(worker)
    assert not workers[2].asks(51)
    await b.go(rest, 2.0)
    assert isinstance(workers[2].end, Ended)
    assert re.search(r"rank 2 .* the others have gone on without it", workers[2].end.reason)
    assert {worker.plan[1:] for worker in rest} == {(mode or Mode.IN_NETWORK, 2)}
    assert [worker.asks(52) for worker in rest] == [True] * 2
    assert [worker.end for worker in rest] == [None] * 2
    with pytest.raises(NotPossibleError, match="goes on without this worker"):
        await b.resume(workers[2])


async def test_after_a_restart_no_worker_of_an_elastic_job_is_in_it_for_sure_before_all_are_back(
    b: Bench,
) -> None:
    """Check that all wait for the last one, which may know of a later generation than the database."""
    workers = await b.start(elastic=True)
    await b.restart(listen=True)
    for worker in workers[:2]:
        await b.resume(worker)
        assert not worker.asks(50)
    await b.resume(workers[2])
    assert [worker.asks(51) for worker in workers] == [True] * 3
    await b.restart(listen=True)
    await b.resume(*workers[:2])
    await b.go(workers[:2], b.config.resume_timeout_s - 1.0)
    assert not any(worker.asks(52) for worker in workers[:2])
    await b.go(workers[:2], 3.0)
    assert {worker.plan[2] for worker in workers[:2]} == {2}
    assert [worker.asks(53) for worker in workers[:2]] == [True] * 2


async def test_who_had_not_heard_how_a_renewal_ended_is_no_worker_that_was_given_up(b: Bench) -> None:
    workers = await b.start(elastic=True)
    copy = b.back_up()
    workers[2].session.broken()
    rest, deaf = workers[:2], workers[1]
    before, deaf.deaf = deaf.ready, True
    await b.go(rest, 7.0)
    deaf.ready, deaf.answered, deaf.deaf = before, [rest[0].plan[0]], False
    assert [worker.plan[2] for worker in rest] == [2, 3]
    await b.restore(copy, listen=True)
    await b.resume(workers[2], rest[0], deaf)
    deaf.answer(rest[0].plan[0])
    await b.go(rest, 2.0)
    assert {worker.plan[2] for worker in rest} == {2}
    assert [worker.asks(50) for worker in rest] == [True] * 2
    workers[2].listen()
    assert isinstance(workers[2].end, Ended)


async def test_no_worker_can_make_the_generations_run_out(b: Bench) -> None:
    workers = await b.start()
    assert workers[0].ready is not None
    newest, token = b.store.newest_generation, workers[0].ready.resume_token
    with pytest.raises(ConflictError, match="no controller can have given out generation 4294967295"):
        b.registry.sessions.resume("train", 2**32 - 1, 0, token)
    assert b.store.newest_generation == newest
    b.registry.sessions.resume("train", newest + 2**19, 0, token)
    b.registry.sessions.resume("train", newest + 2**20, 0, token)
    with pytest.raises(ConflictError, match="no controller can have given out"):
        b.registry.sessions.resume("train", newest + 2**20 + 2**19, 0, token)


async def test_an_elastic_job_ends_when_fewer_are_left_than_it_needs(b: Bench) -> None:
    spec = JobSpec(name="train", world_size=3, elastic=True, min_workers=2)
    workers = await b.start(spec=spec)
    workers[2].session.hear(Abort("first"))
    await b.go(workers[:2], 1.0)
    assert b.job.world_size == 2
    workers[1].session.hear(Abort("second"))
    await b.go(workers[:1])
    assert workers[0].end == Ended(
        reason="second; 1 worker is left, and the job needs 2",
        cause=EndCause.WORKER_ABORTED,
        rank=1,
        host="h2",
    )
    await b.go(workers[:1], 80.0)
    assert b.used() == {}


@pytest.mark.parametrize("spec", [{"min_workers": 1}, {"elastic": True, "min_workers": 4}])
async def test_a_least_number_of_workers_that_means_nothing_is_refused(
    b: Bench, spec: dict[str, int]
) -> None:
    with pytest.raises(InvalidRequestError):
        b.registry.create_job(JobSpec(name="train", world_size=3, **spec))  # type: ignore[arg-type]


async def test_all_workers_have_to_want_the_same(b: Bench) -> None:
    b.registry.sessions.join("train", 2, member(CONFIG, 0, 0), elastic=True)
    with pytest.raises(InvalidRequestError, match="goes on without workers that die, but rank 1"):
        b.registry.sessions.join("train", 2, member(CONFIG, 1, 1))


SLOTS = {  # in order of slot: message, who has contributed
    "behind": ((17, 0b101), (18, 0b001)),
    "ahead": ((17, 0b010), (16, 0b111)),
}


@pytest.mark.parametrize(
    ("slots", "text", "number"),
    [
        ("behind", "the first message it did not contribute to is 17", 17),
        ("ahead", "it had contributed to all sums that the others have begun", None),
        ("", "what it had sent is not known, as switch l1 has no sums of the job", None),
        ("away", "is not known, as switch l1 does not say: unreachable: it was unplugged", None),
    ],
)
async def test_who_died_and_what_it_lacked_is_told(
    b: Bench, slots: str, text: str, number: int | None
) -> None:
    workers = await b.start()
    generation, base = workers[0].plan[0], b.registry.job("train").allocations["l1"].region.base
    for place, (message, bitmap) in enumerate(SLOTS.get(slots, ())):
        slot = SlotContent(base + place, generation, message, bitmap, 1, 0)
        b.switches["l1"].slot_content[base + place] = slot
    if slots == "away":
        await b.lose("l1")
    workers[1].session.broken()
    await b.go([workers[0], workers[2]], 7.0)
    end = workers[0].end
    assert isinstance(end, Ended)
    assert end.reason.startswith(
        "rank 1 (h2, 10.0.1.2) has been without a connection to the controller for 5 s"
    )
    assert text in end.reason
    assert (end.rank, end.host, end.first_message) == (1, "h2", number)


@pytest.mark.parametrize("answered", [False, True])
async def test_a_second_worker_that_dies_is_told_of_as_far_as_it_had_been_able_to_send(
    b: Bench, answered: bool
) -> None:
    """Check the blame: the first death stops all, and a worker that heard of it sends nothing more."""
    workers = await b.start(elastic=True)
    generation, base = workers[0].plan[0], b.registry.job("train").allocations["l1"].region.base
    b.switches["l1"].slot_content[base] = SlotContent(base, generation, 17, 0b100, 1, 0)
    workers[0].session.closed()
    workers[1].silent, workers[2].silent = not answered, True
    await b.go(workers[1:])
    workers[1].session.closed()
    workers[2].silent = False
    await b.go(workers[2:], 1.0)
    assert workers[2].renew is not None
    missed = "the first message it did not contribute to is 17"
    stopped = "it sent nothing any more, as the job was being renewed"
    assert (stopped if answered else missed) in workers[2].renew.reason
    assert (missed if answered else stopped) not in workers[2].renew.reason
    assert workers[2].plan[1:] == (Mode.RING, 1)


async def test_a_worker_that_pauses_is_waited_for_and_one_that_hangs_is_lost(b: Bench) -> None:
    workers = await b.start()
    await b.go(workers[:2], 12.0)
    await b.go(workers, 2.0)
    assert (workers[0].end, workers[0].renew) == (None, None)
    await b.go(workers[:2], 16.0)
    end = workers[0].end
    assert isinstance(end, Ended)
    assert "rank 2 (h3, 10.0.1.3) sent no heartbeat for 15 s: it has died or hangs" in end.reason
    workers[2].listen()  # it wakes up
    assert workers[2].end == end


async def test_a_worker_that_lives_but_does_not_answer_is_lost(b: Bench) -> None:
    workers = await b.start(elastic=True)
    workers[1].silent = workers[2].deaf = True
    await b.restart_switch()
    await b.go(workers, 17.0)
    assert isinstance(workers[1].end, Ended)
    assert "did not take part for 15 s when the job was renewed (switch l1" in workers[1].end.reason
    await b.go(workers, 16.0)
    assert isinstance(workers[2].end, Ended)
    assert workers[0].plan[1:] == (Mode.RING, 1)


async def test_workers_that_are_further_apart_than_can_be_end_the_job(b: Bench) -> None:
    workers = await b.start()
    workers[1].collective = 12
    await b.restart_switch()
    await b.go(workers)
    assert workers[2].end == Ended(
        reason="job train cannot go on: rank 0 (h1, 10.0.1.1) has not finished collective 10, but rank 1 "
        "(h2, 10.0.1.2) stands at 12",
        cause=EndCause.CANNOT_GO_ON,
    )


async def test_a_worker_that_is_leaving_takes_part(b: Bench) -> None:
    """Check that it is asked: it has finished what others lack, and maybe nobody else has."""
    workers = await b.start()
    workers[2].collective = 11
    workers[2].session.hear(Leave())
    await b.restart_switch()
    await b.go(workers)
    assert workers[0].renewed is not None
    assert workers[0].renewed.holder == 2
    say(workers[:2], Leave())
    await b.go(workers)
    assert [worker.end for worker in workers] == [Left()] * 3


async def test_all_may_leave_in_the_middle_of_a_renewal(b: Bench) -> None:
    workers = await b.start(elastic=True)
    workers[0].silent = True
    say(workers[:2], Leave())
    workers[2].session.closed()
    await b.go(workers[:2])
    assert [worker.end for worker in workers[:2]] == [Left()] * 2


async def test_a_switch_that_fails_again_in_the_middle_begins_anew(b: Bench) -> None:
    workers = await b.start()
    workers[1].silent = True
    await b.restart_switch()
    await b.go(workers)
    assert b.tables("l1") == {MEMBER_QP}
    workers[1].silent, workers[0].deaf = False, True
    workers[1].answer()
    await b.go(workers)
    assert workers[1].renewed is not None
    first = workers[1].renewed.renewal
    await b.restart_switch()
    workers[0].deaf = False
    await b.go(workers, 3.0)
    assert workers[1].renewed.renewal > first
    assert [worker.started for worker in workers] == [2] * 3
    assert b.used() == {"l1": 256}
    assert b.is_as_wanted()


async def test_a_worker_that_is_away_meanwhile_is_told_when_it_is_back(b: Bench) -> None:
    workers = await b.start()
    away = workers[1]
    away.session.broken()
    await b.restart_switch()
    await b.go([workers[0], workers[2]], 1.0)
    await b.resume(away)
    away.silent = True
    await b.go(workers)
    assert away.renew is not None
    away.session.broken()
    await b.resume(away)
    away.silent = False
    away.deaf = True
    await b.go(workers)
    away.session.broken()
    await b.resume(away)
    away.renewed, away.deaf = None, False
    await b.go(workers)
    assert away.renewed is not None
    assert [worker.started for worker in workers] == [2] * 3
    assert away.ready is not None
    with pytest.raises(InvalidRequestError, match="token"):
        b.registry.sessions.resume("train", away.plan[0], 0, away.ready.resume_token)


async def test_a_renewal_that_begins_anew_counts_the_calls_of_its_own_answers(b: Bench) -> None:
    workers = await b.start(elastic=True)
    for worker in workers:
        worker.called = 10
    workers[0].called, workers[2].silent = 12, True
    await b.restart_switch("l1")
    await b.go(workers[:2])
    workers[0].called = 11
    b.registry.job("train").job.workers[2].connected = False
    workers[2].session.broken()
    await b.pass_time(b.config.lost_timeout_s + 1, workers[0].session, workers[1].session)
    await b.go(workers[:2])
    told = [worker.renewed for worker in workers[:2]]
    assert [one.ranks_from for one in told if one is not None] == [11] * 2


async def test_answers_that_are_no_qps_are_refused(b: Bench) -> None:
    workers = await b.start()
    await b.lose("l1")
    for bad in ({"qpn_out": 1}, {"psn_out": 1 << 24}, {"qpn_in": 5}):
        values = {"qpn_out": 5, "psn_out": 5, "qpn_in": 6, "collective": 0, **bad}
        with pytest.raises(InvalidRequestError):
            workers[0].session.hear(Renewing(renewal=1, **values))


@pytest.mark.parametrize(
    ("whose", "why"),
    [
        ("own", r"QP 0x\w+ of host .* belongs to rank 1 .* of job train"),
        ("another worker's", r"QP 0x\w+ of host .* belongs to rank 1 .* of job other"),
        ("before", r"QP 0x\w+ of host .* was that of rank 1 .* of job train, and may still be sent to"),
    ],
)
async def test_a_worker_whose_new_queue_pairs_have_old_numbers_is_asked_for_others(
    b: Bench, whose: str, why: str
) -> None:
    workers = await b.start()
    other = await b.start("other")
    old = workers[1].qp

    async def renewed() -> None:
        await b.lose("l1", forget=True)
        await b.find("l1")
        await b.go([*workers, *other])

    if whose == "before":
        await renewed()
    workers[1].silent = True
    await renewed()
    asked = workers[1].renew
    assert asked is not None
    if whose == "another worker's":
        old = other[1].qp
    answer = Renewing(renewal=asked.renewal, qpn_out=old, psn_out=5, qpn_in=0x777, collective=10)
    workers[1].session.hear(answer)
    workers[1].silent = False
    await b.go(workers)
    again = workers[1].renew
    assert again is not None
    assert again.renewal > asked.renewal
    assert re.match(why, again.reason)
    assert {worker.started for worker in workers} == {3 if whose == "before" else 2}
    assert {old, 0x777}.isdisjoint({b.job.workers[1].member.qpn_out, b.job.workers[1].member.qpn_in})


async def test_without_its_switch_a_job_goes_on_by_ring_over_the_backup_interfaces_and_back(
    b: Bench,
) -> None:
    workers = await b.start(hosts=ACROSS, backup=True)
    await b.lose("l2", forget=True)
    await b.go(workers, 8.0)
    assert workers[0].renew is None
    await b.go(workers, 5.0)
    for worker in workers:
        assert worker.ready is not None
        plan = worker.ready
        assert (plan.mode, plan.backup, plan.path_mtu) == (Mode.RING, True, 1024)
        assert plan.mode_reason == "switch l2 is away: unreachable: it was unplugged"
    await b.go(workers, 30.0)
    assert [worker.started for worker in workers] == [2] * 4
    assert b.registry.waitlist.waitlisted(b.registry.job("train")) is None
    await b.find("l2")
    await b.go(workers, 3.0)
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}
    assert [worker.started for worker in workers] == [3] * 4
    assert b.registry.renewer.begun == {Cause.SWITCH_AWAY: 1, Cause.SWITCH_BACK: 1}
    assert b.used() == {"l1": 256, "l2": 256, "s1": 256}
    assert b.is_as_wanted()


async def test_a_worker_that_dies_while_its_switch_is_away(b: Bench) -> None:
    workers = await b.start(backup=True, elastic=True)
    await b.lose("l1")
    workers[1].session.closed()
    rest = [workers[0], workers[2]]
    await b.go(rest, 1.0)
    assert {worker.plan[1:] for worker in rest} == {(Mode.RING, 2)}
    assert rest[0].ready is not None
    assert rest[0].ready.backup
    await b.find("l1")
    await b.go(rest, 1.0)
    assert {worker.plan[1:] for worker in rest} == {(Mode.IN_NETWORK, 2)}


@pytest.mark.slow
async def test_a_job_that_must_run_in_the_network_waits_for_its_switch(
    b: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.orchestration.allocations._SWITCH_PATIENCE_S", 0.05)
    spec = JobSpec(name="train", world_size=3, mode=Mode.IN_NETWORK, elastic=True)
    workers = await b.start(spec=spec, backup=True)
    await b.lose("l1", forget=True)
    workers[1].session.closed()
    rest = [workers[0], workers[2]]
    await b.go(rest, 20.0)
    assert rest[0].renewed is None
    info = job_info(b.registry, b.registry.job("train"))
    assert "it must run in the network" in info.renewal_reason
    await b.find("l1")
    await b.go(rest, 4.0)
    assert {worker.plan[1:] for worker in rest} == {(Mode.IN_NETWORK, 2)}


async def test_a_job_that_must_run_in_the_network_takes_a_generation_that_its_switch_has_not_had(
    b: Bench,
) -> None:
    """Find another switch's past while workers are asked: it may have had the number in question."""
    spec = JobSpec(name="train", world_size=4, mode=Mode.IN_NETWORK)
    workers = await b.start(spec=spec, hosts=ACROSS)
    for worker in workers:
        worker.silent = True
    await b.restart_switch("l2")
    await b.go(workers)
    assert {worker.renew and worker.renew.renewal for worker in workers} == {b.store.newest_generation}
    doubtful = b.store.newest_generation
    await b.lose("l1")
    mark = mark_of(doubtful + 1000)
    b.switches["l1"].entries[key_of(mark)] = mark
    await b.find("l1")
    for worker in workers:
        worker.silent = False
        worker.answer()
    await b.go(workers, b.registry.renewer.guarding_s + 10.0)
    assert [worker.end for worker in workers] == [None] * 4
    (plan,) = {worker.plan for worker in workers}
    assert plan == (doubtful + 1001, Mode.IN_NETWORK, 4)
    assert b.job.renewal is None
    assert b.is_as_wanted()


async def test_a_move_ends_when_the_job_is_renewed(b: Bench) -> None:
    workers = await b.start()
    running = b.registry.job("train")
    b.registry.waitlist.move_out(running, "drained")
    await b.restart_switch()
    await b.go(workers, 1.0)
    assert b.job.move is None
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}
    b.registry.waitlist.move_out(running, "drained")


async def test_a_renewal_waits_for_switches_that_are_being_written(b: Bench) -> None:
    """Lose a worker while the job is taken off its switches."""
    workers = await b.start(elastic=True)
    running = b.registry.job("train")
    b.registry.waitlist.move_out(running, "drained")
    b.all_hold(workers)
    async with b.registry.switches["l1"].lock:
        await asyncio.sleep(0)
        assert running.installing
        workers[2].session.hear(Abort("no more"))
        for worker in workers[:2]:
            worker.listen()
        await asyncio.sleep(0)
        assert FLOW in b.tables("l1")
    await b.go(workers[:2], 3.0)
    assert {worker.plan[1:] for worker in workers[:2]} == {(Mode.IN_NETWORK, 2)}
    assert b.is_as_wanted()


async def test_a_job_that_comes_half_off_its_switch_is_renewed(
    b: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break the switch while the job is moved off it, so that what was removed cannot be written again."""
    workers = await b.start()
    running, switch = b.registry.job("train"), b.switches["l1"]
    first = workers[0].plan[0]

    async def fail(entries: object) -> None:
        switch._erase([entry for entry in b.of_jobs("l1") if getattr(entry, "table", "") == FLOW][:1])
        raise SwitchError("switch l1 broke off")

    for name in ("remove", "adopt"):
        monkeypatch.setattr(switch, name, fail)
    b.registry.waitlist.move_out(running, "drained")
    b.all_hold(workers)
    await b.registry.drain()
    monkeypatch.undo()
    await b.go(workers, 3.0)
    (plan,) = {worker.plan for worker in workers}
    assert (plan[0] > first, plan[1]) == (True, Mode.IN_NETWORK)
    assert workers[0].renew is not None
    assert "half removed: switch l1 broke off" in workers[0].renew.reason
    assert [worker.started for worker in workers] == [2] * 3
    assert b.used() == {"l1": 256}
    assert b.is_as_wanted()


async def until_written(b: Bench, workers: Sequence[Worker]) -> None:
    """Wait until the workers have answered, and wait for a switch that is locked."""
    for _ in range(3):
        for worker in workers:
            worker.listen()
        await asyncio.sleep(0)
    assert b.job.state is State.REBUILDING


async def test_what_was_written_for_a_renewal_that_failed_meanwhile_is_taken_off_again(
    b: Bench,
) -> None:
    workers = await b.start(elastic=True)
    async with b.registry.switches["l1"].lock:
        workers[2].session.hear(Abort("no more"))
        await until_written(b, workers[:2])
        b.registry.renewer.begin(b.registry.job("train"), Cause.WORKER_LOST, "once more")
        await asyncio.sleep(0)
    await b.go(workers[:2], 80.0)
    assert {worker.plan[1:] for worker in workers[:2]} == {(Mode.IN_NETWORK, 2)}
    assert b.used() == {"l1": 256}
    assert b.is_as_wanted()
    heard_of = [job.plan.generation for job in b.store.jobs()]
    assert heard_of == [workers[2].plan[0], workers[0].plan[0]]
    assert b.store.running() == heard_of[1:]


# The controller is restarted


@pytest.mark.parametrize("when", ["asked", "answered", "written", "raised"])
async def test_a_controller_that_is_restarted_in_the_middle_begins_anew(b: Bench, when: str) -> None:
    workers = await b.start(elastic=True)
    workers[0].silent = when in ("asked", "answered")
    await b.restart_switch()
    if when == "asked":
        b.switches["l1"].entries.clear()  # nobody has heard
    else:
        for worker in workers:
            worker.listen()
    if when == "raised":
        workers[1].deaf = True
        await b.go(workers)
    await b.restart()
    workers[0].silent = workers[1].deaf = False
    for worker in workers:
        answered, heard_of = worker.renew, worker.renewed
        await b.resume(worker)
        worker.listen()
        if answered is not None and heard_of is None and answered is worker.renew:
            worker.answer()
        elif heard_of is not None and heard_of is worker.renewed:
            worker.session.hear(Up())
    await b.go(workers, 4.0)
    (plan,) = {worker.plan for worker in workers}
    assert plan == (b.job.plan.generation if b.job.plan is not None else 0, Mode.IN_NETWORK, 3)
    assert b.job.renewal is None
    assert all(worker.started >= 2 for worker in workers)
    await b.go(workers, 80.0)  # who has not answered since the restart may not know of the old generation
    assert b.used() == {"l1": 256}
    assert b.is_as_wanted()
    say(workers, Leave())
    await b.go(workers)
    assert b.used() == {}


async def test_what_is_left_of_old_generations_is_known_after_a_restart(b: Bench) -> None:
    workers = await b.start(elastic=True)
    old = {e for e in b.of_jobs("l1") if getattr(e, "table", "") == MEMBER_QP}
    workers[2].session.hear(Abort("no more"))
    await b.go(workers[:2], 1.0)
    await b.restart()
    assert old < b.of_jobs("l1")
    await b.resume(*workers[:2])
    assert job_info(b.registry, b.registry.job("train")).renewals == 1
    await b.go(workers[:2], 80.0)
    assert not old & b.of_jobs("l1")
    assert b.used() == {"l1": 256}
    with pytest.raises(NotPossibleError, match="without this worker"):
        await b.resume(workers[2])
    b.registry.delete_job("train")
    await b.go(workers[:2], 80.0)
    await b.restart()
    assert b.registry.jobs() == []
    await b.resume(workers[0])
    assert heard(workers[0].session)[0] == Ended(reason="job train was deleted", cause=EndCause.DELETED)


async def test_who_is_dead_is_known_after_a_restart_in_the_middle_of_a_renewal(b: Bench) -> None:
    """Check that a controller that is restarted again and again does not wait for the dead each time."""
    workers = await b.start(elastic=True)
    workers[0].silent = True  # the renewal is not over when the controller dies
    workers[2].session.hear(Abort("no more"))
    await b.go(workers[:2], 1.0)
    for _ in range(2):
        await b.restart()
    with pytest.raises(NotPossibleError, match="goes on without this worker: no more"):
        await b.resume(workers[2])
    workers[0].silent = False
    await b.resume(*workers[:2])
    await b.go(workers[:2], 2.0)
    assert {worker.plan[1:] for worker in workers[:2]} == {(Mode.IN_NETWORK, 2)}
    assert b.job.renewal is None
    await b.go(workers[:2], 80.0)
    assert b.used() == {"l1": 256}
    assert b.is_as_wanted()


# Into the switches, and there again


NO_ROOM = Quotas(tenants={"default": TenantQuota(slots=0)})


async def by_ring(b: Bench) -> list[Worker]:
    """Return the workers of a job over two racks that runs by ring for want of slots."""
    b.registry.waitlist.set_quotas(NO_ROOM)
    workers = await b.start(hosts=ACROSS)
    assert {worker.plan[1] for worker in workers} == {Mode.RING}
    return workers


async def move(b: Bench, workers: list[Worker], quotas: Quotas | None) -> None:
    """Move a job into the switches, or out of them."""
    b.registry.waitlist.set_quotas(quotas)
    if quotas is not None:
        b.registry.waitlist.move_out(b.registry.job("train"), "drained")
    for _ in range(4):
        await b.go(workers, 0.5)


async def test_a_job_that_moves_into_the_switches_has_a_new_generation_there_every_time(
    b: Bench,
) -> None:
    """Check that also where the job gets the same flow indexes, as after a restart of the controller."""
    workers = await by_ring(b)
    given: list[int] = [workers[0].plan[0]]
    regions = []
    for _ in range(3):
        await move(b, workers, None)
        (plan,) = {worker.plan for worker in workers}
        assert plan[1] is Mode.IN_NETWORK
        assert plan[0] > given[-1]
        given.append(plan[0])
        assert all(w.renewed and (w.renewed.collective, w.renewed.holder) == (10, None) for w in workers)
        allocations = b.registry.job("train").allocations
        assert set(allocations) == {"l1", "l2", "s1"}
        regions.append({name: allocation.region for name, allocation in allocations.items()})
        for name in ("l1", "l2"):
            assert generations(b.of_jobs(name)) == {plan[0]}
        assert b.is_as_wanted()
        assert job_info(b.registry, b.registry.job("train")).renewals == 0
        await move(b, workers, NO_ROOM)
        assert b.used() == {}
        await b.restart()
        await b.resume(*workers)
        b.registry.waitlist.set_quotas(NO_ROOM)
        await b.go(workers)
    assert regions == [regions[0]] * 3
    assert b.registry.renewer.begun[Cause.INTERRUPTED] == 0


def generations(entries: Iterable[Entry]) -> set[int]:
    """Return the generations named in entries of jobs."""
    found = set()
    for entry in entries:
        if isinstance(entry, TableEntry):
            found |= {value for name, value in entry.params if name == "generation"}
    return found


@pytest.mark.parametrize("refusing", ["l1", "l2", "s1"])
async def test_a_job_that_a_switch_refuses_goes_on_by_ring_and_is_tried_again(
    b: Bench, refusing: str
) -> None:
    workers = await by_ring(b)
    b.switches[refusing].fails = SwitchError(f"{refusing} is full")
    b.registry.waitlist.set_quotas(None)
    for _ in range(3):
        await asyncio.sleep(0)
        await b.go(workers)
    plan = b.job.plan
    assert plan is not None
    assert (plan.mode, plan.mode_reason) == (Mode.RING, f"{refusing} is full")
    assert (b.used(), b.registry.job("train").allocations) == ({}, {})
    assert b.is_as_wanted()
    await b.go(workers, 3.0)
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}
    assert b.is_as_wanted()


async def test_a_job_that_dies_while_it_is_placed_leaves_nothing(b: Bench) -> None:
    workers = await by_ring(b)
    s1 = b.switches["s1"]
    install = s1.install

    async def meanwhile(entries: Sequence[Entry]) -> None:
        workers[0].session.hear(Abort("gone"))
        await install(entries)

    s1.install = meanwhile  # type: ignore[method-assign]
    await move(b, workers, None)
    assert not b.job.live
    for worker in workers:
        worker.session.took_end()
    await b.pass_time(3.0)
    assert b.used() == {}
    assert b.is_as_wanted()


@pytest.mark.parametrize("b", [replace(CONFIG, renumber_messages=1000)], indirect=True)
async def test_a_job_in_the_network_is_renumbered_before_it_has_too_many_messages(b: Bench) -> None:
    workers = await b.start(hosts=ACROSS)
    first = workers[0].plan[0]
    for messages in (999, 1000):
        workers[1].session.hear(Heartbeat(generation=first - 1, messages=10**6))  # of another generation
        workers[2].session.hear(Heartbeat(generation=first, messages=messages))
        await b.go(workers, 4.0)
        assert (workers[0].plan[0] > first) is (messages == 1000)
    (plan,) = {worker.plan for worker in workers}
    assert plan[1] is Mode.IN_NETWORK
    assert b.registry.renewer.begun == {Cause.RENUMBERED: 1}
    info = job_info(b.registry, b.registry.job("train"))
    assert (info.renewals, info.renewal_reason) == (0, "")
    await b.go(workers, 10.0)
    assert b.registry.renewer.begun == {Cause.RENUMBERED: 1}
    assert b.is_as_wanted()
    assert b.used() == {"l1": 256, "l2": 256, "s1": 256}


async def test_a_job_that_fills_its_switch_is_renumbered_into_its_old_slots(b: Bench) -> None:
    for switch in b.registry.switches.values():
        switch.allocator = SwitchAllocator(slots=256, jobs=2)
    workers = await b.start(hosts=ACROSS)
    first = workers[0].plan[0]
    assert b.used() == {"l1": 256, "l2": 256, "s1": 256}
    workers[0].session.hear(Heartbeat(generation=first, messages=2**29))
    await b.go(workers, 8.0)
    (plan,) = {worker.plan for worker in workers}
    assert plan == (b.registry.job("train").generation, Mode.IN_NETWORK, 4)
    assert plan[0] > first
    assert b.registry.renewer.begun == {Cause.RENUMBERED: 1}


@pytest.mark.parametrize("way", ["in", "again"])
async def test_with_a_full_disk_a_job_stays_as_it_is(b: Bench, way: str) -> None:
    """Check that it takes no generation of those reserved for jobs that cannot stay as they are."""
    workers = await (by_ring(b) if way == "in" else b.start(hosts=ACROSS))
    before = workers[0].plan
    fill(b)
    if way == "in":
        b.registry.waitlist.set_quotas(None)
    else:
        workers[0].session.hear(Heartbeat(generation=before[0], messages=2**29))
    await b.go(workers, 3.0)
    await b.go(workers)
    assert {worker.plan for worker in workers} == {before}
    assert not any(worker.renew for worker in workers)
    assert b.job.move is None
    free(b)
    workers[0].session.hear(Heartbeat(generation=before[0], messages=2**29))
    await b.go(workers, 70.0)
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}
    assert workers[0].plan[0] > before[0]


# The disk is full


def fill(b: Bench) -> None:
    """Let no further write find room."""
    b.store.connection.execute("PRAGMA query_only = ON")


def free(b: Bench) -> None:
    b.store.connection.execute("PRAGMA query_only = OFF")


async def test_with_a_full_disk_jobs_go_on_and_new_ones_are_refused(b: Bench) -> None:
    workers = await b.start(elastic=True)
    fill(b)
    await b.restart_switch()
    await b.go(workers, 3.0)
    (first,) = {worker.plan for worker in workers}
    assert first[1:] == (Mode.RING, 3)
    assert workers[0].ready is not None
    assert f"the controller's database {b.path} cannot be written" in workers[0].ready.mode_reason
    (qp,) = {worker.qp for worker in workers}
    workers[2].session.hear(Abort("no more"))
    await b.go(workers[:2], 1.0)
    assert {worker.plan[1:] for worker in workers[:2]} == {(Mode.RING, 2)}
    session = b.registry.sessions.join("new", 1, member(CONFIG, 0, 3))
    await b.registry.drain()
    (ended, _) = heard(session)
    assert isinstance(ended, Ended)
    assert f"the controller's database {b.path} cannot be written" in ended.reason
    with pytest.raises(sqlite3.Error):
        b.registry.create_job(JobSpec(name="other", world_size=1))
    free(b)
    await b.go(workers[:2], 3.0)
    (known,) = [job for job in b.store.jobs() if job.phase is Phase.RUNNING]
    assert known.plan.generation == workers[0].plan[0] > first[0]
    await b.go(workers[:2], 3.0)
    assert {worker.plan[1] for worker in workers[:2]} == {Mode.IN_NETWORK}
    await b.restart()
    b.now += 3600.0  # who was dropped while the disk was full may still send in that generation
    assert b.retired(qp) == {(0, qp + 1), (1, qp)}


async def test_a_disk_that_is_full_when_a_generation_is_saved(
    b: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that its entries are taken off, and that the job, which keeps the generation, is saved later."""
    workers = await b.start(elastic=True)
    async with b.registry.switches["l1"].lock:
        workers[2].session.hear(Abort("no more"))
        await until_written(b, workers[:2])
    save = b.store.supersede

    def full(job: StoredJob) -> None:
        fill(b)
        save(job)

    monkeypatch.setattr(b.store, "supersede", full)
    await b.go(workers[:2])
    assert {worker.plan[1:] for worker in workers[:2]} == {(Mode.RING, 2)}
    monkeypatch.undo()
    free(b)
    b.now += 1.0  # the job is saved before its switch is cleaned
    await b.go(workers[:2], 0.5)
    known = [job.plan.generation for job in b.store.jobs() if job.phase is Phase.RUNNING]
    assert known == [workers[0].plan[0]]
    await b.go(workers[:2], 80.0)
    assert {worker.plan[1] for worker in workers[:2]} == {Mode.IN_NETWORK}
    assert b.used() == {"l1": 256}  # and nothing of the one that was taken off


@pytest.mark.parametrize("renewed", [False, True])
async def test_a_job_that_was_deleted_does_not_come_back_with_the_controller(b: Bench, renewed: bool) -> None:
    """Delete it, maybe in the middle of a renewal; its workers hear nothing, so that guards stay."""
    workers = await b.start()
    if renewed:
        for worker in workers:
            worker.silent = True
        await b.restart_switch()
        await b.go(workers)
    b.registry.delete_job("train")
    await b.registry.drain()
    assert b.tables("l1") == {MEMBER_QP}
    await b.restart()
    assert b.registry.jobs() == []
    await b.resume(workers[0])
    assert heard(workers[0].session)[0] == Ended(reason="job train was deleted", cause=EndCause.DELETED)
    await b.go([], 80.0)
    assert b.used() == {}
    first = b.qp
    await b.restart()
    assert (b.registry.jobs(), b.store.running()) == ([], [])
    assert len(b.retired(first)) == 6, "none of its workers took the end"


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_guards_stay_as_long_as_ever_where_the_controller_stood_still(
    b: Bench, when: str, renewed: bool
) -> None:
    """Stop the controller before or after their time begins: nobody hears anything. They stay no longer."""
    workers = await b.start()
    for worker in workers:
        worker.silent = True
    await b.go(workers, 0.5)
    still_s = b.registry.renewer.guarding_s + 30.0
    b.now += still_s if when == "before" else 0.0
    if renewed:
        b.registry.renewer.begin(b.registry.job("train"), Cause.SWITCH_AWAY, "switch l1 is away")
    else:
        b.registry.delete_job("train")
    await b.registry.drain()
    b.now += still_s if when == "after" else 0.0
    b.registry.tick()
    await b.registry.drain()
    guards = {entry for entry in b.of_jobs("l1") if entry.table == MEMBER_QP}
    assert len(guards) == 6
    await b.go([], b.registry.renewer.guarding_s - 5.0)
    assert b.of_jobs("l1") == guards
    await b.go([], 10.0)
    assert b.of_jobs("l1") == set()


@pytest.mark.parametrize("deleted", [False, True])
async def test_what_a_job_was_to_become_does_not_come_back_when_it_is_over(b: Bench, deleted: bool) -> None:
    """Kill the controller after the job's end, before the entries of its next generation are removed."""
    workers = await b.start()
    for worker in workers:
        worker.silent = True
    await b.restart_switch()
    await b.go(workers)
    install, died = b.switches["l1"].install, asyncio.Event()

    async def die(entries: Sequence[Entry]) -> None:
        await install(entries)
        await died.wait()

    b.switches["l1"].install = die  # type: ignore[method-assign]
    for worker in workers:
        worker.answer()
    for _ in range(5):
        await asyncio.sleep(0)
    assert [job.is_draft for job in b.store.jobs()] == [False, True]
    if deleted:
        b.registry.delete_job("train")
    else:
        b.registry.engine.act(b.registry.job("train"), lambda job, now: job.end("enough", EndCause.DELETED))
    saved = b.path.with_name("as-it-was.db")
    b.store.connection.execute("VACUUM INTO ?", (str(saved),))
    b.switches["l1"].install = install  # type: ignore[method-assign]
    died.set()
    await b.registry.drain()
    b.path = saved
    await b.restart()
    listed = [(running.job.spec.name, running.job.outcome) for running in b.registry.jobs()]
    assert listed == ([] if deleted else [("train", Ended(reason="enough", cause=EndCause.DELETED))])
    await b.go([], 80.0)
    assert b.used() == {}
    assert b.is_as_wanted()


async def test_with_a_full_disk_a_job_is_not_deleted_but_ended(b: Bench) -> None:
    await b.start()
    fill(b)
    with pytest.raises(sqlite3.Error):
        b.registry.delete_job("train")
    assert not b.job.live
    free(b)
    await b.go([], 1.0)
    (known,) = b.store.jobs()
    assert known.phase is Phase.ENDED
    b.registry.delete_job("train")
    await b.restart()
    assert b.registry.jobs() == []


async def test_a_switch_that_refuses_while_the_disk_is_full(
    b: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the job goes on by ring in the generation that was to be forgotten."""
    workers = await b.start(elastic=True)
    async with b.registry.switches["l1"].lock:
        workers[2].session.hear(Abort("no more"))
        await until_written(b, workers[:2])

    async def refuse(entries: object) -> None:
        fill(b)
        raise SwitchError("refused")

    monkeypatch.setattr(b.switches["l1"], "install", refuse)
    await b.go(workers[:2])
    assert {worker.plan[1:] for worker in workers[:2]} == {(Mode.RING, 2)}
    monkeypatch.undo()
    free(b)
    b.now += 1.0
    b.registry.renewer.tick()
    await b.go(workers[:2], 2.0)
    known = [job.plan.generation for job in b.store.jobs() if job.phase is Phase.RUNNING]
    assert known == [workers[0].plan[0]]


@pytest.mark.slow
async def test_what_dead_workers_of_an_old_generation_had_does_not_keep_a_controller_from_starting(
    b: Bench,
) -> None:
    """End so many jobs that the old generation is forgotten, while its row stays for its guards."""
    workers = await b.start(elastic=True)
    workers[2].session.hear(Abort("no more"))
    await b.go(workers[:2], 1.0)
    for number in range(120):
        sessions = await b.run_job(f"short{number}", (3, 4))
        for session in sessions:
            session.hear(Leave())
        await b.registry.drain()
    assert [known.dropped for known in b.store.jobs() if known.dropped]
    hung, install = asyncio.Event(), b.switches["l2"].install

    async def hang(entries: object) -> None:
        await hung.wait()

    b.switches["l2"].install = hang  # type: ignore[method-assign]
    b.qp += 2
    for rank, host in enumerate((3, 4)):
        b.registry.sessions.join("new", 2, member(b.config, rank, host, qp=b.qp))
    for _ in range(10):
        await asyncio.sleep(0)
    # The database of a controller that dies now: one that ends well would not leave a job half set up.
    died = b.path.with_name("died.db")
    b.store.connection.execute("VACUUM INTO ?", (str(died),))
    b.switches["l2"].install = install  # type: ignore[method-assign]
    hung.set()
    await b.registry.drain()
    b.path = died
    await b.restart()
    await b.resume(*workers[:2])
    await b.go(workers[:2], 3.0)
    assert b.job.phase is Phase.RUNNING
    assert len(b.job.workers) == 2


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_job_that_ended_while_the_disk_was_full_stays_so(b: Bench, deleted: bool) -> None:
    """End a job by ring: it has nothing on a switch, and its last generation was never saved."""
    workers = await b.start(spec=JobSpec(name="train", world_size=3, mode=Mode.RING, elastic=True))
    fill(b)
    workers[2].session.hear(Abort("no more"))
    await b.go(workers[:2], 2.0)
    say(workers[:2], Leave())
    await b.go(workers[:2], 1.0)
    assert [worker.end for worker in workers[:2]] == [Left(), Left()]
    if deleted:
        with contextlib.suppress(sqlite3.Error):
            b.registry.delete_job("train")
    free(b)
    await b.go([], 2.0)
    assert not [known for known in b.store.jobs() if known.outcome is None]
    await b.restart()
    assert not [running for running in b.registry.jobs() if running.job.workers and running.job.live]
    again = await b.join("train", ONE_RACK)
    assert len(again) == len(ONE_RACK)


async def test_who_had_been_told_to_start_starts_a_job_that_was_not_saved_as_running(b: Bench) -> None:
    """Check that it also goes on by ring when its switch stays away."""
    workers = await b.ready_workers(backup=True)
    fill(b)
    say(workers, Up())
    await b.go(workers)
    assert [worker.started for worker in workers] == [1, 1, 1]
    await b.restart()
    for worker in workers:
        await b.resume(worker)
        worker.session.hear(Up())
    await b.go(workers, 1.0)
    assert b.job.phase is Phase.RUNNING
    await b.lose("l1", forget=True)
    await b.go(workers, b.config.switch_timeout_s + 5.0)
    assert {worker.plan[1:] for worker in workers} == {(Mode.RING, 3)}


async def test_a_job_that_is_ready_goes_on_by_ring_when_its_switch_stays_away(b: Bench) -> None:
    """Check it however it comes that some worker does not come up."""
    workers = await b.ready_workers(backup=True)
    workers[0].session.hear(Up())
    await b.lose("l1", forget=True)
    await b.go(workers, b.config.switch_timeout_s + 5.0)
    assert {worker.plan[1:] for worker in workers} == {(Mode.RING, 3)}
    assert b.job.phase is Phase.RUNNING


async def test_a_controller_that_dies_with_a_full_disk_takes_its_workers_back(b: Bench) -> None:
    workers = await b.start()
    fill(b)
    await b.restart_switch()
    await b.go(workers, 1.0)
    (unsaved,) = {worker.plan for worker in workers}
    await b.restart()
    await b.resume(*workers)
    await b.go(workers, 3.0)
    (plan,) = {worker.plan for worker in workers}
    assert plan[0] > unsaved[0]
    assert plan[1] is Mode.IN_NETWORK
    assert b.used() == {"l1": 256}
    assert heard(workers[0].session) in ([], [Resumed()])


async def test_who_was_given_up_while_the_disk_was_full_is_not_taken_in_again(b: Bench) -> None:
    """Use a database that knows neither the rest's generation nor which worker is not in it."""
    workers = await b.start(elastic=True)
    rest = workers[:2]
    fill(b)
    workers[2].session.broken()
    await b.go(rest, 7.0)
    assert {worker.plan[2] for worker in rest} == {2}
    await b.restart(listen=True)
    await b.resume(workers[2])
    assert not workers[2].asks(50)
    await b.resume(*rest)
    assert not workers[2].asks(51)
    await b.go(rest, 2.0)
    assert {worker.plan[2] for worker in rest} == {2}
    assert [worker.asks(52) for worker in rest] == [True] * 2
    assert isinstance(workers[2].end, Ended)


@pytest.mark.parametrize("written", [False, True])
async def test_a_renewal_that_began_before_workers_were_back_is_not_behind_what_they_know(
    b: Bench, written: bool
) -> None:
    """Restore a backup: workers take no part in a renewal that is not newer than their last one."""

    def begin(b: Bench) -> None:
        b.registry.renewer.begin(b.registry.job("train"), Cause.SWITCH_AWAY, "switch l1 is away")

    workers = await b.start(spec=JobSpec(name="train", world_size=3, mode=Mode.RING))
    copy = b.back_up()
    for _ in range(300):  # of other jobs, more than are reserved
        b.store.next_generation()
    workers[0].silent = not written
    begin(b)
    await b.go(workers)
    last = workers[1].plan[0] if written else workers[1].answered[-1]
    await b.restore(copy, listen=True)
    begin(b)
    assert b.job.renewal is not None
    assert b.job.renewal.number < last
    for worker in workers:
        await b.resume(worker)
        if worker.answered:
            worker.answer(worker.answered[-1])
    workers[0].silent = False
    await b.go(workers, 1.0)
    (plan,) = {worker.plan for worker in workers}
    assert plan[0] > last
    assert all(worker.renew and worker.renew.renewal == plan[0] for worker in workers)
