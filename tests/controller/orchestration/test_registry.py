"""Jobs, slots, switches and the database together, on a switch in memory and a clock that the tests turn."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import pytest

from controller.api.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    NotPossibleError,
    QueuePairTakenError,
)
from controller.api.messages import (
    Abort,
    EndCause,
    Ended,
    JobSpec,
    Leave,
    Left,
    Mode,
    Moved,
    Renew,
    Resumed,
    Start,
    Up,
)
from controller.database.store import Store, StoredJob
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.jobs.specs import Phase
from controller.service.views import job_info
from controller.switches.managed_switch import guards_of
from controller.switches.updates import SwitchError
from p4src import MAX_JOBS
from tests.controller.bench import PATIENCE_S, RACK, Bench
from tests.controller.told import ended_of, heard, plan_of, ready_of


async def test_a_job_from_join_to_left(b: Bench) -> None:
    sessions = await b.join("train", 4)
    readies = [ready_of(session) for session in sessions]
    assert len({plan_of(ready) for ready in readies}) == 1
    plan = readies[0]
    assert (plan.mode, plan.window, plan.message_packets, plan.path_mtu) == (Mode.IN_NETWORK, 8, 16, 2048)
    assert [r.successor.rank for r in readies] == [1, 2, 3, 0]
    assert len(b.switch.of_jobs) == 1 + 5 * 4  # a group; emit, two flows and two guards a rank
    for session in sessions:
        session.hear(Up())
    assert [heard(session) for session in sessions] == [[Start()]] * 4
    for session in sessions:
        assert b.used() == {"s1": 256}
        session.hear(Leave())
    await b.registry.drain()
    assert [heard(session) for session in sessions] == [[Left(), None]] * 4
    assert b.switch.of_jobs == {}
    assert b.used() == {}


async def test_the_smallest_link_sets_the_path_mtu(b: Bench) -> None:
    first = b.registry.sessions.join("train", 2, b.member(0))
    b.registry.sessions.join("train", 2, b.member(1, path_mtu_max=512))
    await b.registry.drain()
    assert ready_of(first).path_mtu == 512


async def test_generations_go_up_and_survive_restarts(b: Bench) -> None:
    seen = []
    for i in range(4):
        sessions = await b.run_job("train", 2)
        seen.append(ready_of(sessions[0]).generation)
        await b.leave(sessions)
        if i % 2:
            await b.restart()
    assert seen == sorted(set(seen))


@pytest.mark.parametrize(
    ("size", "reason"),
    [(1, "a job of one worker has nothing to add up"), (33, "32 workers at most, the job has 33")],
)
async def test_what_a_switch_cannot_add_up_runs_by_ring(b: Bench, size: int, reason: str) -> None:
    plan = ready_of((await b.join("train", size))[0])
    assert plan.mode is Mode.RING
    assert reason in plan.mode_reason
    assert b.switch.of_jobs == {}


async def test_without_free_slots_a_job_runs_by_ring_and_with_them_in_the_network_again(b: Bench) -> None:
    jobs = [await b.run_job(f"job{i}", 2) for i in range(MAX_JOBS)]
    plan = ready_of((await b.join("late", 2))[0])
    assert plan.mode is Mode.RING
    assert plan.mode_reason == "needs 256 slots on switch s1; 8192 of 8192 in use by 32 jobs"
    for session in (*jobs[7], *jobs[8]):  # one's room is for the first in the queue
        session.hear(Leave())
    await b.registry.drain()
    assert ready_of((await b.join("later", 2))[0]).mode is Mode.IN_NETWORK


async def test_a_job_that_must_run_in_the_network_ends_with_the_reason_if_it_cannot(b: Bench) -> None:
    b.registry.create_job(JobSpec(name="must", world_size=2, mode=Mode.IN_NETWORK))
    b.switch.fails = SwitchError("switch s1 refused 1 of 5 updates: the table is full")
    sessions = await b.join("must", 2)
    for session in sessions:
        assert "it must run in the network, but switch s1 refused" in ended_of(session).reason
    assert b.used() == {}


async def test_a_job_that_ended_while_it_waited_for_its_switch_is_over_after_a_restart(b: Bench) -> None:
    """Kill the controller when it has just written it down."""
    died = asyncio.Event()

    async def dies(entries: object) -> None:
        died.set()
        await asyncio.Event().wait()

    async with b.registry.switches["s1"].lock:
        b.qp += 2
        sessions = [b.registry.sessions.join("train", 2, b.member(rank, qp=b.qp)) for rank in range(2)]
        await asyncio.sleep(0)
        sessions[0].broken()
        b.switch.install = dies  # type: ignore[method-assign]
    await asyncio.wait_for(died.wait(), 5)
    del b.switch.install
    assert [known.phase for known in b.store.jobs()] == [Phase.ENDED]
    b.store.close()
    b.registry = b._start()
    await b.settled()
    assert not b.registry.job("train").job.live
    b.qp -= 2  # nobody has ever sent to these
    assert ready_of((await b.join("train", 2))[0]).mode is Mode.IN_NETWORK


async def test_a_switch_that_refuses_leaves_the_job_to_the_ring(b: Bench) -> None:
    b.switch.fails = SwitchError("switch s1 refused 1 of 5 updates: the table is full")
    plan = ready_of((await b.join("train", 2))[0])
    assert (plan.mode, plan.mode_reason) == (Mode.RING, "switch s1 refused 1 of 5 updates: the table is full")
    assert b.used() == {}


async def test_guards_outlive_a_dead_job_until_nobody_can_send_any_more(b: Bench) -> None:
    one, two, three = await b.run_job("train", 3)
    two.broken()
    await b.pass_time(6.0, one, three)
    for session in (one, three):
        ended = ended_of(session)
        assert ended.rank == 1
        assert "rank 1 (h2, 10.0.0.2) has been without a connection" in ended.reason
    assert b.tables() == {MEMBER_QP}
    for session in (one, three):
        session.took_end()
    await b.pass_time(PATIENCE_S)  # rank 1 may be alive and out of reach
    assert b.tables() == {MEMBER_QP}
    await b.pass_time(3.0)
    assert b.switch.of_jobs == {}
    assert b.used() == {}


async def test_guards_go_soon_when_all_workers_know(b: Bench) -> None:
    sessions = await b.run_job("train", 3)
    sessions[1].hear(Abort("the workers disagree"))
    await b.registry.drain()
    assert [ended_of(session) for session in sessions] == [
        Ended(reason="the workers disagree", cause=EndCause.WORKER_ABORTED, rank=1, host="h2")
    ] * 3
    for session in sessions[:2]:
        session.took_end()
    await b.pass_time(10.0)
    assert b.tables() == {MEMBER_QP}, "rank 2 was told, but has not said that it heard"
    sessions[2].took_end()
    await b.pass_time(3.0)
    assert b.switch.of_jobs == {}


async def test_a_worker_that_was_taken_in_when_the_controller_died_joins_again_and_hears_so(b: Bench) -> None:
    one, two = await b.join("train", 2)
    before = ready_of(two)
    await b.restart()  # before rank 1 had heard anything
    one = b.registry.sessions.resume("train", before.generation, 0, ready_of(one).resume_token)
    two = b.registry.sessions.join("train", 2, b.member(1, qp=b.qp))
    assert ready_of(two) == before
    for session in (one, two):
        session.hear(Up())
    assert [heard(session)[-1] for session in (one, two)] == [Start()] * 2
    with pytest.raises(ConflictError, match="rank 1 is taken"):
        b.registry.sessions.join("train", 2, b.member(1, qp=b.qp))


async def test_qps_may_be_used_again_when_who_sends_to_them_has_stopped(b: Bench) -> None:
    sessions = await b.run_job("train", 2)
    sessions[0].hear(Abort("again"))
    for session in sessions:
        assert ended_of(session).reason == "again"
        with pytest.raises(QueuePairTakenError, match=r"QP 0x102 of host h1 .* may still be sent to"):
            b.registry.sessions.join("next", 2, b.member(0, qp=b.qp))
        session.took_end()
    with pytest.raises(QueuePairTakenError):  # what it sent last may be under way
        b.registry.sessions.join("next", 2, b.member(0, qp=b.qp))
    b.now += 2.0
    b.qp -= 2
    plan = ready_of((await b.join("train", 2))[0])
    assert plan.mode is Mode.IN_NETWORK


@pytest.mark.parametrize("mode", list(Mode))
async def test_qps_that_a_lost_worker_sends_to_are_nobody_s_however_long_it_is_away(
    b: Bench, mode: Mode
) -> None:
    """Check both modes: by ring no guard drops what it sends, in the network guards do so for a time."""
    b.registry.create_job(JobSpec(name="train", world_size=3, mode=mode))
    one, two, three = await b.run_job("train", 3)
    two.broken()  # stopped, for an hour
    await b.pass_time(6.0, one, three)
    for session in (one, three):
        assert ended_of(session).rank == 1
        session.took_end()
    await b.pass_time(b.registry.renewer.guarding_s)
    b.now += 3600.0
    assert b.switch.of_jobs == {}
    # It sends data to rank 2, and acknowledges what rank 0 sends.
    taken = {(0, b.qp), (2, b.qp + 1)}
    for rank in range(3):
        for number in (b.qp, b.qp + 1):
            who = replace(b.member(rank), rank=0, qpn_out=number, qpn_in=0x999)
            if (rank, number) in taken:
                with pytest.raises(QueuePairTakenError, match="may still be sent to"):
                    b.registry.sessions.join("next", 2, who)
            else:
                b.registry.sessions.join("next", 2, who).closed()


async def test_a_restart_knows_the_qps_of_jobs_that_have_ended(b: Bench) -> None:
    sessions = await b.run_job("train", 2)
    sessions[0].hear(Abort("no more"))
    await b.registry.drain()
    await b.restart()
    with pytest.raises(QueuePairTakenError, match="may still be sent to"):
        b.registry.sessions.join("next", 2, b.member(0, qp=b.qp))


async def test_a_restart_knows_all_jobs_that_have_had_a_qp(b: Bench) -> None:
    """Use a QP in two jobs: its sender has stopped in the first, and not in the second."""
    for last in (False, True):
        sessions = await b.run_job("train", 2)
        if last:
            sessions[0].hear(Abort("no more"))
        else:
            for session in sessions:
                session.hear(Leave())
                b.qp -= 1
            await b.pass_time(b.registry.renewer.guarding_s)
        await b.registry.drain()
    await b.restart()
    await b.pass_time(2 * b.registry.renewer.guarding_s)
    with pytest.raises(QueuePairTakenError, match="may still be sent to"):
        b.registry.sessions.join("next", 2, b.member(0, qp=b.qp))


async def test_a_qp_belongs_to_one_job(b: Bench) -> None:
    await b.run_job("train", 2)
    with pytest.raises(ConflictError, match=r"QP 0x103 of host h1 .* belongs to rank 0 .* of job train"):
        b.registry.sessions.join("other", 2, b.member(0, qp=0x103))
    with pytest.raises(NotFoundError):
        b.registry.job("other")


async def test_other_jobs_do_not_notice_when_one_dies(b: Bench) -> None:
    well = await b.run_job("well", 3)
    ill = await b.run_job("ill", 3)
    before = b.registry.job("well").allocations.get("s1")
    ill[0].hear(Abort("no more"))
    await b.pass_time(PATIENCE_S + 3, *well)
    assert b.registry.job("well").allocations.get("s1") == before
    assert before is not None
    assert set(b.switch.of_jobs.values()) == set(before.entries)
    assert [heard(session)[-1] for session in well] == [Start()] * 3


async def test_running_jobs_carry_on_after_a_restart_of_the_controller(b: Bench) -> None:
    sessions = await b.run_job("train", 3)
    readies = [ready_of(session) for session in sessions]
    entries = dict(b.switch.of_jobs)
    await b.restart()
    assert b.switch.of_jobs == entries
    generation = readies[0].generation
    with pytest.raises(InvalidRequestError, match="token"):
        b.registry.sessions.resume("train", generation, 0, readies[1].resume_token)
    back = [
        b.registry.sessions.resume("train", generation, rank, readies[rank].resume_token) for rank in range(3)
    ]
    assert [heard(session) for session in back] == [[Resumed(), Moved(0, Mode.IN_NETWORK, "")]] * 3
    await b.pass_time(40.0, *back)
    other = await b.run_job("other", 2)
    assert ready_of(other[0]).mode is Mode.IN_NETWORK
    await b.leave(back)
    assert [heard(session) for session in back] == [[Left(), None]] * 3


async def test_a_worker_that_does_not_come_back_after_a_restart_ends_the_job(b: Bench) -> None:
    sessions = await b.run_job("train", 2)
    ready = ready_of(sessions[0])
    await b.restart()
    back = b.registry.sessions.resume("train", ready.generation, 0, ready.resume_token)
    await b.pass_time(RACK.resume_timeout_s + 1, back)
    assert ended_of(back).rank == 1
    await b.pass_time(PATIENCE_S + 3)
    assert b.switch.of_jobs == {}


async def test_what_a_dead_controller_left_half_done_is_cleaned_up(b: Bench) -> None:
    await b.join("train", 2)
    generation = b.registry.job("train").generation
    assert generation is not None
    b.store._db.execute("UPDATE jobs SET phase = 3")
    b.store._db.commit()
    await b.restart()
    await b.pass_time(PATIENCE_S + 3)
    assert b.switch.of_jobs == {}
    assert b.used() == {}


async def test_how_a_job_ended_is_known_after_a_restart(b: Bench) -> None:
    sessions = await b.run_job("train", 2)
    readies = [ready_of(session) for session in sessions]
    sessions[1].broken()
    sessions[0].hear(Abort("out of memory"))
    await b.registry.drain()
    await b.restart()
    assert b.tables() == {MEMBER_QP}
    late = b.registry.sessions.resume("train", readies[1].generation, 1, readies[1].resume_token)
    assert ended_of(late) == Ended(reason="out of memory", cause=EndCause.WORKER_ABORTED, rank=0, host="h1")


async def test_a_switch_that_restarted_interrupts_its_jobs_and_takes_new_ones(b: Bench) -> None:
    sessions = await b.run_job("train", 2)
    b.switch.connected = False
    b.registry.manager.on_switch_change("s1")
    await b.pass_time(3.0, *sessions)
    b.switch.restart()
    b.switch.connected = True
    b.registry.manager.on_switch_change("s1")
    await b.registry.drain()
    for session in sessions:
        (*_, renew) = heard(session)
        assert isinstance(renew, Renew)
        assert renew.reason == "switch s1 was restarted, and has forgotten the job's sums"
    assert FLOW not in b.tables()
    assert ready_of((await b.join("next", 2))[0]).mode is Mode.IN_NETWORK


async def test_a_connection_that_breaks_for_a_moment_ends_nothing(b: Bench) -> None:
    sessions = await b.run_job("train", 2)
    entries = dict(b.switch.of_jobs)
    for connected in (False, True):
        b.switch.connected = connected
        b.registry.manager.on_switch_change("s1")
        await b.pass_time(3.0, *sessions)
    assert b.switch.of_jobs == entries
    assert [heard(session)[-1] for session in sessions] == [Start()] * 2


async def test_jobs_that_were_created_may_run_more_than_once_and_have_their_own_sizes(b: Bench) -> None:
    b.registry.create_job(JobSpec(name="mine", world_size=2, window=2, message_packets=4, path_mtu=256))
    with pytest.raises(ConflictError, match="there is a job mine already"):
        b.registry.create_job(JobSpec(name="mine", world_size=2))
    await b.restart()
    for _ in range(2):
        sessions = await b.run_job("mine", 2)
        plan = ready_of(sessions[0])
        assert (plan.window, plan.message_packets, plan.path_mtu) == (2, 4, 256)
        assert b.used() == {"s1": 16}
        await b.leave(sessions)
    b.registry.delete_job("mine")
    await b.restart()
    with pytest.raises(NotFoundError):
        b.registry.job("mine")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (JobSpec(name="", world_size=2), "no job name"),
        (JobSpec(name="a", world_size=0), "world size of 0"),
        (JobSpec(name="a", world_size=257), "world size of 257"),
        (JobSpec(name="a", world_size=33, mode=Mode.IN_NETWORK), "2 to 32 workers"),
        (JobSpec(name="a", world_size=2, path_mtu=1000), "path MTU 1000 is none of"),
        (JobSpec(name="a", world_size=2, path_mtu=4096), "carries 2048 at most"),
        (JobSpec(name="a", world_size=2, window=16), "a window of 16 messages is not possible"),
        (JobSpec(name="a", world_size=2, message_packets=3), "3 packets a message are not possible"),
        (JobSpec(name="a", world_size=2, window=128, message_packets=64), "16384 slots .* a switch has 8192"),
    ],
)
async def test_what_can_never_run_is_refused_when_it_is_asked_for(b: Bench, spec: JobSpec, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        b.registry.create_job(spec)
    assert b.registry.jobs() == []


@pytest.mark.parametrize("b", [replace(RACK, auto_create=False)], indirect=True)
async def test_unknown_jobs_are_refused_where_jobs_have_to_be_created(b: Bench) -> None:
    with pytest.raises(NotFoundError, match="there is no job 'train': create it first"):
        b.registry.sessions.join("train", 2, b.member(0))


async def test_a_push_needs_force_while_jobs_run_and_interrupts_them(b: Bench) -> None:
    sessions = await b.run_job("train", 2)
    with pytest.raises(NotPossibleError, match="switch s1 serves train"):
        await b.registry.manager.push("", force=False)
    await b.registry.manager.push("s1", force=True)
    await b.registry.drain()
    (*_, renew) = heard(sessions[1])
    assert isinstance(renew, Renew)
    assert renew == Renew(renew.renewal, "switch s1 was loaded with its program anew")
    assert b.switch.pushes == 1
    await b.pass_time(PATIENCE_S + 3)  # nobody answers
    assert "sent no heartbeat" in ended_of(sessions[1]).reason
    assert (b.switch.of_jobs, b.used()) == ({}, {})
    with pytest.raises(NotFoundError, match="no switch 's9'"):
        await b.registry.manager.push("s9", force=True)


async def test_a_worker_that_dies_while_the_switch_is_written_ends_the_job_cleanly(b: Bench) -> None:
    one = b.registry.sessions.join("train", 2, b.member(0))
    b.registry.sessions.join("train", 2, b.member(1)).broken()
    await b.registry.drain()
    assert ended_of(one).rank == 1
    await b.pass_time(1.0)
    assert (b.switch.of_jobs, b.used()) == ({}, {})


async def test_who_joins_again_before_anybody_noticed_that_its_session_broke_is_taken_in(b: Bench) -> None:
    first = b.registry.sessions.join("train", 2, b.member(0))
    again = b.registry.sessions.join("train", 2, b.member(0))
    assert heard(first)[-1] is None
    with pytest.raises(ConflictError, match="rank 0 is taken by h1"):
        b.registry.sessions.join("train", 2, b.member(0, qp=0x200))  # another worker
    other = b.registry.sessions.join("train", 2, b.member(1))
    first.broken()  # it is noticed now, and means nothing any more
    await b.registry.drain()
    assert [ready_of(session).rank for session in (again, other)] == [0, 1]


async def test_everybody_who_withdraws_leaves_no_job_behind(b: Bench) -> None:
    session = b.registry.sessions.join("train", 2, b.member(0))
    session.closed()
    assert b.registry.jobs() == []
    assert heard(session) == [None]


# Never a route to a QP of a job without its guard


async def test_a_restarted_switch_has_the_guards_of_its_jobs_before_routes(b: Bench) -> None:
    await b.run_job("train", 3)
    (first, *_) = await b.run_job("dying", 2)
    wanted = b.guards("train") | b.guards("dying")
    first.hear(Abort("no more"))
    await b.registry.drain()
    since = len(b.switch.log)
    await b.restart_switch("s1")
    assert not b.switch.routed_without(wanted, since=since)
    assert set(b.switch.of_jobs.values()) == wanted


async def test_a_restarted_controller_knows_the_guards_before_it_sees_the_switch(b: Bench) -> None:
    await b.run_job("train", 3)
    wanted = b.guards("train")
    await b.restart()
    assert set(b.switch.guards()) == wanted


async def test_a_forced_push_keeps_guards_until_nobody_can_send_any_more(b: Bench) -> None:
    sessions = await b.run_job("train", 3)
    wanted = b.guards("train")
    since = len(b.switch.log)
    await b.registry.manager.push("s1", force=True)
    await b.pass_time(RACK.resume_timeout_s)
    assert not b.switch.routed_without(wanted, since=since)
    assert set(b.switch.of_jobs.values()) == wanted
    assert b.used() == {"s1": 256}
    await b.pass_time(PATIENCE_S - RACK.resume_timeout_s + 3)
    assert (b.switch.of_jobs, b.used()) == ({}, {})
    assert len(sessions) == 3


async def test_of_two_jobs_with_one_qp_the_live_one_has_the_guard(b: Bench) -> None:
    sessions = await b.run_job("old", 2)
    sessions[0].hear(Abort("again"))
    await b.registry.drain()
    for session in sessions:
        ended_of(session)
        session.took_end()
    b.now += 2.0  # and the guards have not been taken away yet
    old = b.registry.job("old").allocations["s1"]
    b.qp -= 2
    await b.join("new", 2)
    new = b.registry.job("new").allocations["s1"]
    assert set(guards_of([(new, True), (old, False)])) == b.guards("new")


# Failures of the database, and defects


class FailingStore(Store):
    """`fails`: the methods that raise, each once."""

    fails: set[str] = set()  # noqa: RUF012

    def _perhaps(self, method: str) -> None:
        if method in self.fails:
            self.fails.discard(method)
            raise sqlite3.OperationalError("disk I/O error")

    def save_job(self, *planes: StoredJob) -> None:
        self._perhaps(f"save {planes[0].phase.name}")
        super().save_job(*planes)

    def release(self, generation: int, *switches: str) -> None:
        self._perhaps("release")
        super().release(generation, *switches)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The operations of the database that fail next, each once."""
    fails: set[str] = set()
    monkeypatch.setattr(FailingStore, "fails", fails)
    monkeypatch.setattr(Bench, "STORE", FailingStore)
    return fails


@pytest.mark.parametrize("phase", ["INSTALLING", "READY"])
async def test_a_database_that_fails_during_set_up_leaves_nothing_behind(
    failing: set[str], b: Bench, phase: str
) -> None:
    failing.add(f"save {phase}")
    for session in await b.join("train", 2):
        ended = ended_of(session)
        assert ended.cause is EndCause.NOT_SET_UP
        reason = ended.reason
        assert "job train could not be set up: the controller's database" in reason
        assert f"{b.store.path} cannot be written: disk I/O error" in reason
    await b.pass_time(1.0)
    assert (b.switch.of_jobs, b.used()) == ({}, {})
    assert ready_of((await b.run_job("next", 2))[0]).mode is Mode.IN_NETWORK


async def test_what_the_database_could_not_release_is_released_later_and_given_to_nobody_before(
    failing: set[str], b: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    failing.add("release")
    await b.leave(await b.run_job("train", 2))
    assert b.used() == {"s1": 256}
    assert "job train is not off switch s1 yet: disk I/O error" in caplog.text
    others = [ready_of((await b.run_job(f"other{i}", 2))[0]).mode for i in range(2)]
    assert others == [Mode.IN_NETWORK] * 2
    await b.pass_time(1.0)
    assert b.used() == {"s1": 512}


async def test_a_failed_installation_that_the_database_cannot_forget_breaks_no_other_job(
    failing: set[str], b: Bench
) -> None:
    b.switch.fails = SwitchError("switch s1 refused 1 of 5 updates: the table is full")
    failing.add("release")
    assert "disk I/O error" in ended_of((await b.join("train", 2))[0]).reason
    assert ready_of((await b.run_job("next", 2))[0]).mode is Mode.IN_NETWORK


async def test_a_defect_during_set_up_ends_the_job(b: Bench) -> None:
    b.switch.fails = KeyError("what")
    for session in await b.join("train", 2):
        assert "a defect in the controller" in ended_of(session).reason
    assert (b.switch.of_jobs, b.used()) == ({}, {})
    assert ready_of((await b.run_job("train", 2))[0]).mode is Mode.IN_NETWORK


async def test_how_long_ago_a_job_ended_that_never_began(b: Bench) -> None:
    session = b.registry.sessions.join("train", 2, b.member(0))
    session.hear(Abort("rank 0 could not start: rank 1 has not joined"))
    await b.registry.drain()
    await b.pass_time(5.0)
    info = job_info(b.registry, b.registry.job("train"))
    assert (info.generation, info.ended_s_ago) == (0, 5.0)
    assert [worker.worker.rank for worker in info.workers] == [0]


async def test_selective_retransmission_with_an_rdma_device_ends_the_job_for_all(b: Bench) -> None:
    for session in await b.join("train", 2, selective=True, rnr_nak=True):
        ended = ended_of(session)
        assert ended.cause is EndCause.NOT_SET_UP
        assert (
            "job train could not be set up: selective retransmission was asked for, but rank 0"
            in ended.reason
        )
    assert not ready_of((await b.run_job("next", 2, rnr_nak=True))[0]).selective
    assert ready_of((await b.run_job("third", 2))[0]).selective
