"""Jobs that wait for slots and are moved in and out, on a switch in memory and a clock that tests turn."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from controller.api.errors import InvalidRequestError
from controller.api.messages import (
    Abort,
    Heartbeat,
    Held,
    HoldAt,
    JobSpec,
    Leave,
    Mode,
    Moved,
    Pause,
    Paused,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Resumed,
    Up,
)
from controller.entries import TableEntry
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.jobs.specs import Phase
from controller.orchestration.sessions import Session
from controller.service import views
from controller.slots.admission import Quotas, TenantQuota
from controller.switches.updates import SwitchError
from tests.controller.bench import PATIENCE_S, RACK, Bench, fabric, say
from tests.controller.told import ended_of, heard, plan_of

FRESH_QPNS = itertools.count(0x4000, 2)
FULL: dict[str, Any] = {"window": 8, "message_packets": 64}  # 1024 slots: eight of them fill a switch


class Agents:
    """The workers of one job: they answer as agents do, once they are asked to."""

    def __init__(self, sessions: list[Session], plan: Any) -> None:
        self.sessions = sessions
        self.plan = plan
        self.next = 5  # the collective that all are about to start
        self.psn = 0x100
        self.mode: Mode = plan.mode
        self.reason = ""
        self.heard: list[Any] = []
        self.silent: set[int] = set()
        self.answers: dict[int, Renewing] = {}  # until they hear what became of it

    def answer(self) -> bool:
        """Answer what the workers have heard, and tell whether there was anything."""
        anything = False
        for rank, session in enumerate(self.sessions):
            for event in heard(session):
                anything = True
                self.heard.append(event)
                if rank in self.silent:
                    continue
                if isinstance(event, Pause):
                    session.hear(Paused(event.move, self.next + rank % 2))
                elif isinstance(event, HoldAt):
                    assert event.collective == self.next + (len(self.sessions) > 1)
                    session.hear(Held(event.move))
                elif isinstance(event, Moved):
                    self.mode, self.reason = event.mode, event.mode_reason
                elif isinstance(event, Resumed) and rank in self.answers:
                    session.hear(self.answers[rank])
                elif isinstance(event, Renew):
                    qpn = next(FRESH_QPNS)
                    psn = self.psn + rank
                    self.answers[rank] = Renewing(
                        renewal=event.renewal, qpn_out=qpn, psn_out=psn, qpn_in=qpn + 1, collective=self.next
                    )
                    session.hear(self.answers[rank])
                elif isinstance(event, Renewed):
                    del self.answers[rank]
                    plan = event.ready
                    self.mode, self.reason = plan.mode, plan.mode_reason
                    session.hear(Up())
        return anything

    def leave(self) -> None:
        for session in self.sessions:
            session.hear(Leave())


async def start(b: Bench, name: str, size: int = 2, *, tenant: str = "", **spec: Any) -> Agents:
    """Return the agents of a job that runs."""
    if spec:
        b.registry.create_job(JobSpec(name=name, world_size=size, tenant=tenant, **spec))
    agents = await run(b, name, size, tenant=tenant)
    agents.answer()
    return agents


async def run(b: Bench, name: str, hosts: int | Sequence[int], *, tenant: str = "") -> Agents:
    sessions = await b.join(name, hosts, tenant=tenant, psn=0)
    (plan,) = {plan_of(e) for session in sessions for e in heard(session) if isinstance(e, Ready)}
    say(sessions, Up())
    return Agents(sessions, plan)


async def go(b: Bench, *jobs: Agents) -> None:
    """Let everything happen that will, without time."""
    for _ in range(100):
        await asyncio.sleep(0)
        await b.registry.drain()
        if not any([job.answer() for job in jobs]):  # noqa: C419  all of them
            await asyncio.sleep(0)
            await b.registry.drain()
            if not any([job.answer() for job in jobs]):  # noqa: C419
                return
    raise AssertionError("they talk for ever")


def switched(job: Agents) -> bool:
    return job.mode is Mode.IN_NETWORK


def waitlisted(b: Bench, name: str) -> pb.Waitlisted | None:
    info = views.job_info(b.registry, b.registry.job(name))
    return info.waitlisted if info.HasField("waitlisted") else None


def first_psns(b: Bench) -> list[int]:
    entries = [e for e in b.switch.of_jobs.values() if isinstance(e, TableEntry) and e.table == FLOW]
    return [dict(e.params)["first_psn"] for e in entries if e.action.endswith("data_flow")]


async def test_a_job_without_room_waits_on_the_ring_and_moves_in_when_another_leaves(b: Bench) -> None:
    jobs = [await start(b, f"job{i}", **FULL) for i in range(8)]
    late = await start(b, "late", **FULL)
    last = await start(b, "last", **FULL)
    await go(b, *jobs, late, last)
    assert (late.plan.mode, late.mode) == (Mode.RING, Mode.RING)
    why = "needs 1024 slots on switch s1; 8192 of 8192 in use by 8 jobs"
    assert late.plan.mode_reason == why
    b.now += 3
    waiting = waitlisted(b, "late")
    assert waiting == pb.Waitlisted(position=1, reason=why, waiting_s=3.0)
    behind = waitlisted(b, "last")
    assert behind is not None
    assert (behind.position, behind.reason) == (2, "waits behind job late for slots on s1")
    assert waitlisted(b, "job0") is None
    jobs[3].leave()
    await go(b, *jobs, late, last)
    assert (late.mode, late.reason) == (Mode.IN_NETWORK, "")
    assert waitlisted(b, "late") is None
    assert sorted(psn for psn in first_psns(b) if psn >= 0x100) == [0x100, 0x101]
    info = views.job_info(b.registry, b.registry.job("late"))
    assert (info.mode, info.mode_reason, len(info.places)) == (pb.IN_NETWORK, "", 1)
    assert not switched(last)
    late.leave()
    await go(b, *jobs, late, last)
    assert switched(last)


async def test_sixteen_jobs_that_wait_get_in_as_soon_as_there_is_room_for_each(b: Bench) -> None:
    """Check that each job is moved once, and none is asked to pause without being moved."""
    holding = [await start(b, f"job{i}", **FULL) for i in range(8)]
    waiting = [await start(b, f"wait{i:02}", window=4, message_packets=64) for i in range(16)]
    everybody = [*holding, *waiting]
    await go(b, *everybody)
    assert [job.mode for job in waiting] == [Mode.RING] * 16
    for place, job in enumerate(holding, 1):
        job.leave()
        await go(b, *everybody)
        assert [w.mode for w in waiting].count(Mode.IN_NETWORK) == 2 * place
        assert all(w.mode is Mode.IN_NETWORK for w in waiting[: 2 * place])
    for job in waiting:
        assert sum(isinstance(event, Pause) for event in job.heard) == 2  # one a worker
    assert b.used() == {"s1": 8192}


async def test_a_job_over_its_quota_gets_a_smaller_window_and_one_that_asked_for_more_stays_on_the_ring(
    b: Bench,
) -> None:
    b.registry.waitlist.set_quotas(Quotas(job_slots=100, tenants={"blue": TenantQuota(slots=16)}))
    usual = await start(b, "usual")
    assert (usual.plan.mode, usual.plan.window, usual.plan.message_packets) == (Mode.IN_NETWORK, 4, 8)
    small = await start(b, "small", tenant="blue")
    assert (small.plan.mode, small.plan.slots) == (Mode.IN_NETWORK, 16)
    large = await start(b, "large", **FULL)
    assert large.plan.mode is Mode.RING
    assert large.plan.mode_reason.startswith("it needs 1024 slots, over the quota of 100 a job: it stays on")
    assert waitlisted(b, "large") is None
    await start(b, "more", tenant="blue")
    waiting = waitlisted(b, "more")
    assert waiting is not None
    assert waiting.reason == "tenant blue has 16 of its 16 slots"
    b.registry.waitlist.set_quotas(None)
    await go(b, usual, large)
    assert large.mode is Mode.IN_NETWORK


async def test_a_job_that_must_run_in_the_network_is_refused_as_ever(b: Bench) -> None:
    b.registry.waitlist.set_quotas(Quotas(job_slots=100))
    b.registry.create_job(
        JobSpec(name="must", world_size=2, mode=Mode.IN_NETWORK, window=8, message_packets=16)
    )
    sessions = [b.registry.sessions.join("must", 2, b.member(rank)) for rank in range(2)]
    await b.registry.drain()
    assert "it must run in the network, but it needs 256 slots" in ended_of(sessions[0]).reason


async def test_workers_of_one_job_name_one_tenant(b: Bench) -> None:
    b.registry.sessions.join("train", 2, b.member(0), "blue")
    with pytest.raises(InvalidRequestError, match=r"is of tenant blue, but .* says red"):
        b.registry.sessions.join("train", 2, b.member(1), "red")
    with pytest.raises(InvalidRequestError, match="is no tenant's name"):
        b.registry.sessions.join("other", 2, b.member(1, qp=0x900), "a b")
    b.registry.sessions.join("train", 2, b.member(1), "blue")
    assert views.job_info(b.registry, b.registry.job("train")).spec.tenant == "blue"
    b.registry.sessions.join("usual", 2, b.member(0, qp=0x500), "default")
    b.registry.sessions.join("usual", 2, b.member(1, qp=0x500))


async def test_a_switch_that_refuses_is_tried_again_and_the_job_goes_on_meanwhile(b: Bench) -> None:
    jobs = [await start(b, f"job{i}", **FULL) for i in range(8)]
    late = await start(b, "late", **FULL)
    b.switch.fails = SwitchError("switch s1: table full")
    jobs[0].leave()
    await go(b, late)
    assert (late.mode, late.reason) == (Mode.RING, "switch s1: table full")
    waiting = waitlisted(b, "late")
    assert waiting is not None
    assert waiting.reason == "switch s1: table full; tried again in 1 s"
    assert b.used() == {"s1": 7 * 1024}
    for _ in range(4):
        b.now += 0.5
        for job in (*jobs[1:], late):
            for session in job.sessions:
                session.hear(Heartbeat())
        b.registry.tick()
        await go(b, *jobs, late)
    assert late.mode is Mode.IN_NETWORK


async def test_a_defect_while_the_switch_is_written_keeps_nobody_held(
    b: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [await start(b, f"job{i}", **FULL) for i in range(8)]
    late = await start(b, "late", **FULL)
    b.switch.fails = RuntimeError("nobody thought of this")
    jobs[0].leave()
    await go(b, late)
    assert b.registry.job("late").job.move is None
    assert late.mode is Mode.RING
    assert "a defect in the controller" in late.reason
    assert "nobody thought of this" in caplog.text
    assert b.used() == {"s1": 7 * 1024}


async def test_a_job_that_dies_while_it_is_moved_leaves_nothing_and_the_next_gets_in(b: Bench) -> None:
    jobs = [await start(b, f"job{i}", **FULL) for i in range(8)]
    late, last = await start(b, "late", **FULL), await start(b, "last", **FULL)
    late.silent = {1}
    jobs[0].leave()
    await go(b, late, last)
    assert b.registry.job("late").job.move is not None
    assert not switched(last)
    waiting = waitlisted(b, "late")
    assert waiting is not None
    assert waiting.reason == "is being moved in"
    late.sessions[1].hear(Abort("no more"))
    await go(b, late, last)
    assert switched(last)
    assert not b.registry.job("late").allocations
    assert b.used() == {"s1": 8192}


async def test_a_job_that_ends_while_the_switch_is_written_for_it_leaves_nothing(b: Bench) -> None:
    jobs = [await start(b, f"job{i}", **FULL) for i in range(8)]
    late = await start(b, "late", **FULL)
    jobs[0].leave()
    await b.registry.drain()
    await asyncio.sleep(0)
    late.answer()
    late.answer()  # all hold: the switch is about to be written
    assert b.registry.job("late").job.phase is Phase.RUNNING
    late.sessions[0].hear(Abort("no more"))
    await b.registry.drain()
    for session in late.sessions:
        session.took_end()
    await b.pass_time(4.0, *(session for job in jobs[1:] for session in job.sessions))
    assert b.used() == {"s1": 7 * 1024}
    assert not b.registry.job("late").allocations


async def test_a_worker_that_does_not_answer_keeps_nobody_else_out_for_long(b: Bench) -> None:
    jobs = [await start(b, f"job{i}", **FULL) for i in range(8)]
    late, last = await start(b, "late", **FULL), await start(b, "last", **FULL)
    late.silent = {0}
    jobs[0].leave()
    everybody = [*jobs[1:], late, last]
    for _ in range(13):
        b.now += 0.5
        for job in everybody:
            for session in job.sessions:
                session.hear(Heartbeat())
        b.registry.tick()
        await go(b, *everybody)
    assert switched(last)
    assert late.mode is Mode.RING
    assert any(isinstance(event, Moved) for event in late.heard)


PREEMPTING = replace(RACK, quotas={"preemption": True})


@pytest.mark.parametrize("b", [PREEMPTING], indirect=True)
async def test_with_preemption_the_newest_job_of_the_greediest_gives_way(b: Bench) -> None:
    red = [await start(b, f"red{i}", tenant="red", **FULL) for i in range(8)]
    blue = await start(b, "blue", tenant="blue", **FULL)
    await go(b, *red, blue)
    assert blue.mode is Mode.IN_NETWORK
    assert [job.mode for job in red] == [Mode.IN_NETWORK] * 7 + [Mode.RING]
    reason = "moved out for job blue of tenant blue, which is below its share"
    assert red[7].reason == reason
    assert views.job_info(b.registry, b.registry.job("red7")).mode_reason == reason
    assert waitlisted(b, "red7") is not None
    before = [len(job.heard) for job in red]
    for _ in range(40):
        b.now += 0.5
        for job in (*red, blue):
            for session in job.sessions:
                session.hear(Heartbeat())
        b.registry.tick()
        await go(b, *red, blue)
    assert [len(job.heard) for job in red] == before, "nobody is moved any more"
    blue.leave()
    await go(b, *red, blue)
    assert red[7].mode is Mode.IN_NETWORK


@pytest.mark.parametrize("b", [PREEMPTING], indirect=True)
async def test_a_job_that_dies_on_its_way_out_is_out(b: Bench) -> None:
    red = [await start(b, f"red{i}", tenant="red", **FULL) for i in range(8)]
    red[7].silent = {0, 1}
    blue = [await start(b, f"blue{i}", tenant="blue", **FULL) for i in range(2)]
    await go(b, *red, *blue)
    assert b.registry.job("red7").job.move is not None
    for session in red[7].sessions:
        session.hear(Abort("no more"))
        session.took_end()
    for _ in range(8):
        b.now += 0.5
        for job in (*red[:7], *blue):
            for session in job.sessions:
                session.hear(Heartbeat())
        b.registry.tick()
        await go(b, *red[:7], *blue)
    assert [switched(job) for job in blue] == [True, True]  # the second moves another one out
    assert [switched(job) for job in red[:7]] == [True] * 6 + [False]


async def test_without_it_nobody_does(b: Bench) -> None:
    red = [await start(b, f"red{i}", tenant="red", **FULL) for i in range(8)]
    blue = await start(b, "blue", tenant="blue", **FULL)
    await go(b, *red, blue)
    assert blue.mode is Mode.RING


@pytest.mark.parametrize("b", [fabric((2, 2), spines=2, window=8, message_packets=64)], indirect=True)
async def test_across_racks_a_job_waits_for_all_the_switches_that_it_needs(b: Bench) -> None:
    local = [await run(b, f"local{i}", (0, 1)) for i in range(8)]
    across = await run(b, "across", (0, 2))
    behind = await run(b, "behind", (1, 0))
    elsewhere = await run(b, "elsewhere", (2, 3))
    await go(b, *local, across, behind, elsewhere)
    assert not switched(across)
    assert across.plan.mode_reason == "needs 1024 slots on leaf l1; 8192 of 8192 in use by 8 jobs"
    assert switched(elsewhere)
    local[0].leave()
    await go(b, *local, across, behind)
    assert switched(across)
    assert not switched(behind)
    assert b.used() == {"l1": 8192, "l2": 2048, "s1": 1024, "s2": 1024}
    b.now += 1
    b.registry.waitlist.move_out(b.registry.job("across"), "drained")
    await go(b, *local, across, behind)
    assert (across.mode, across.reason) == (Mode.RING, "drained")
    assert switched(behind)
    for job in (*local[1:], across, behind, elsewhere):
        job.leave()
    await b.registry.drain()
    assert b.used() == {}
    assert b.is_as_wanted()


async def resumed(b: Bench, name: str, agents: Agents) -> None:
    """Resume all workers of a job after a restart of the controller."""
    running = b.registry.job(name)
    generation = running.generation
    assert generation is not None
    tokens = {rank: worker.token for rank, worker in running.job.workers.items()}
    agents.sessions = [b.registry.sessions.resume(name, generation, rank, tokens[rank]) for rank in tokens]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_after_a_restart_in_the_middle_of_a_move_workers_hear_the_mode_that_is_true(
    b: Bench, steps: int
) -> None:
    jobs = [await start(b, f"job{i}", **FULL) for i in range(8)]
    late = await start(b, "late", **FULL)
    jobs[0].leave()
    await b.registry.drain()
    await asyncio.sleep(0)
    for _ in range(steps):  # Pause, HoldAt, Moved
        late.answer()
        await b.registry.drain()
    await b.restart()
    for place, job in enumerate(jobs[1:], 1):
        await resumed(b, f"job{place}", job)
    late.heard.clear()
    await resumed(b, "late", late)
    late.answer()
    told = [event for event in late.heard if isinstance(event, Moved)]
    assert len(told) == 2
    running = b.registry.job("late")
    assert running.job.plan is not None
    assert {event.mode for event in told} == {running.job.plan.mode}
    if running.job.renewal is None:
        assert bool(running.allocations) == (running.job.plan.mode is Mode.IN_NETWORK)
    for _ in range(10):  # a generation of which nobody knows whether it was used keeps its slots for a while
        b.now += 0.5
        for job in (*jobs[1:], late):
            for session in job.sessions:
                session.hear(Heartbeat())
        b.registry.tick()
        await go(b, late)
    assert late.mode is Mode.IN_NETWORK
    assert b.used() == {"s1": 8192}


async def test_a_queue_of_different_switches_and_sizes_is_served_in_order(b: Bench) -> None:
    blue = [await start(b, f"blue{i}", tenant="blue", **FULL) for i in range(8)]
    waiting = {
        "blue8": await start(b, "blue8", tenant="blue", **FULL),
        "red0": await start(b, "red0", tenant="red", **FULL),
        "red1": await start(b, "red1", tenant="red", **FULL),
    }
    everybody = [*blue, *waiting.values()]
    await go(b, *everybody)
    positions = {name: waitlisted(b, name) for name in waiting}
    assert {name: w.position for name, w in positions.items() if w} == {"red0": 1, "red1": 2, "blue8": 3}
    for leaving, moved in zip(blue, ("red0", "red1", "blue8"), strict=False):
        leaving.leave()
        await go(b, *everybody)
        assert waiting.pop(moved).mode is Mode.IN_NETWORK
        assert all(job.mode is Mode.RING for job in waiting.values())


@pytest.mark.parametrize(
    ("way", "written", "then"),
    [
        ("in", False, "it is renewed once more"),
        ("in", True, "it is renewed once more"),
        ("out", False, "it runs in the network"),
        ("out", True, "it is renewed"),  # its sums are gone
    ],
)
async def test_a_controller_that_dies_while_it_moves_a_job_finds_it_as_the_switch_has_it(
    b: Bench, way: str, written: bool, then: str
) -> None:
    job = await start(b, "train", **FULL)
    await go(b, job)
    if way == "in":
        b.registry.waitlist.move_out(b.registry.job("train"), "for now")
        b.registry.waitlist.set_quotas(Quotas(job_slots=4))
        await go(b, job)
        b.registry.waitlist.set_quotas(None)
    else:
        b.registry.waitlist.move_out(b.registry.job("train"), "for now")
    name = "install" if way == "in" else "remove"
    write, dead = getattr(b.switch, name), asyncio.Event()

    async def dies(entries: Any) -> None:
        if written:
            await write(entries)
        dead.set()
        await asyncio.Event().wait()

    setattr(b.switch, name, dies)
    while not dead.is_set():
        await asyncio.sleep(0)
        job.answer()
    b.registry.stop()
    b.store.close()
    late, b.registry = b.registry, b._start()
    setattr(b.switch, name, write)
    await b.settled()
    if way == "out":
        assert b.used() == {"s1": 1024}
        assert b.switch.of_jobs
    else:  # what was written of a generation that nobody heard of
        assert b.tables() <= {MEMBER_QP}
    job.heard.clear()
    await resumed(b, "train", job)
    job.answer()
    if then == "it is renewed":
        assert {type(event) for event in job.heard} == {Resumed, Renew}
        assert b.registry.job("train").allocations == {}
    elif then == "it runs in the network":
        assert {type(event) for event in job.heard} == {Resumed, Moved}
        assert switched(job)
    else:
        await go(b, job)
        assert any(isinstance(event, Renewed) for event in job.heard)
        assert switched(job)
        await b.pass_time(PATIENCE_S + 3.0, *job.sessions)
        assert b.used() == {"s1": 1024}
    for task in late.engine._tasks:
        task.cancel()
