"""A controller on a database from a backup: jobs were set up, renewed and ended that it does not know of."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.errors import ConflictError, UnreachableError
from controller.api.messages import Abort, Gang, Join, Leave, Mode, Renew, Resume, Resumed
from controller.database.store import Store
from controller.entries import key_of
from controller.fabric.marks import mark_of
from controller.fabric.routes import base_entries
from controller.orchestration.adoption import Account
from controller.orchestration.registry import Registry
from controller.slots.allocator import Region
from controller.switches.managed_switch import ManagedSwitch
from tests.controller.bench import ACROSS, ONE_RACK, PATIENCE_S, RACK, RACKS, Bench, Worker, member
from tests.controller.fake_switch import FakeSwitch
from tests.controller.told import heard, ready_of


@pytest.fixture
def racks(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "c.db", RACKS)


async def a_job_that_ended(b: Bench, name: str = "first") -> None:
    await b.leave(await b.run_job(name, 2))


@pytest.mark.parametrize("same_qps", [False, True])
@pytest.mark.parametrize("same_number", [False, True])
@pytest.mark.parametrize("ended", [False, True])
async def test_a_job_in_the_slots_of_one_that_the_backup_has_keeps_them(
    b: Bench, tmp_path: Path, same_number: bool, same_qps: bool, ended: bool
) -> None:
    """End the first job after the backup; the other one may have its number on the switch and its QPNs."""
    first = await b.run_job("first", 2)
    if ended:
        first[0].hear(Abort("no more"))
        await b.registry.drain()
    before = Region(0, 0, 256)
    backup = b.back_up()
    for session in first:
        session.took_end() if ended else session.hear(Leave())
    await b.pass_time(5.0)
    assert b.switch.of_jobs == {}
    if same_number:
        await b.restart()
    if same_qps:
        b.now += 1000.0
        await b.pass_time(1.0)
        b.registry.book.retired._known.clear()
        b.qp -= 2
    known = await b.run_known(3)
    region = b.registry.job("train").allocations["s1"].region
    assert (region.base, region.number == before.number) == (before.base, same_number)
    entries = dict(b.switch.of_jobs)
    await b.restore(backup)
    assert b.switch.of_jobs == entries
    back = b.all_tell(known)
    if same_qps:  # the backup has these numbers as the first job's: others are asked for
        assert all(any(isinstance(event, Renew) for event in heard(session)) for session in back)
        return
    assert [heard(session)[0] for session in back] == [Resumed()] * 3
    await b.pass_time(100.0, *back)  # the first job's workers do not come back
    assert not b.registry.job("first").job.live
    assert b.switch.of_jobs == entries
    await b.all_leave(back)


async def test_a_job_of_the_backup_whose_slots_are_anothers_by_now_is_renewed_elsewhere(
    b: Bench, tmp_path: Path
) -> None:
    """Resume the backup's job, which runs by ring since, when another job has its slots."""
    first = [ready_of(session) for session in await b.run_job("first", 2)]
    backup = b.back_up()
    b.registry.delete_job("first")
    await b.pass_time(100.0)
    known = await b.run_known(3)
    entries = dict(b.switch.of_jobs)
    await b.restore(backup)
    back = [
        b.registry.sessions.resume("first", ready.generation, rank, ready.resume_token)
        for rank, ready in enumerate(first)
    ]
    for session in back:
        (renew,) = (event for event in heard(session) if isinstance(event, Renew))
        assert renew.renewal > known[0].plan.generation
        assert "switch s1 has another job in its slots" in renew.reason
    b.all_tell(known)
    assert entries.items() <= b.switch.of_jobs.items()


async def test_a_job_has_the_slots_of_one_plane_of_the_backup_and_the_number_of_another(b: Bench) -> None:
    """Check that both planes give up their places, and that what the job has on the switch stays."""
    planes = [
        await b.join(f"gang/{plane}", ONE_RACK, gang=Gang(name="gang", plane=plane, planes=2))
        for plane in range(2)
    ]
    await b.settled()
    first, second = (b.registry.job(f"gang/{plane}").allocations["s1"].region for plane in range(2))
    backup = b.back_up()
    for sessions in planes:
        await b.leave(sessions)
    await b.restart()
    await a_job_that_ended(b)
    await b.run_known(3)
    region = b.registry.job("train").allocations["s1"].region
    assert (region.base, region.number) == (first.base, second.number)
    entries = dict(b.switch.of_jobs)
    await b.restore(backup)
    assert entries.items() <= b.switch.of_jobs.items()
    assert [b.registry.job(f"gang/{plane}").allocations for plane in range(2)] == [{}, {}]


async def test_a_job_that_the_backup_has_as_being_set_up_keeps_its_guards(b: Bench, tmp_path: Path) -> None:
    """Check that guards drop what its workers may send that have heard of it since."""
    backups: list[Path] = []
    save = b.store.save_job

    def saved(*what: Any, **how: Any) -> None:
        save(*what, **how)
        if not backups:
            backups.append(b.back_up())

    b.store.save_job = saved  # type: ignore[method-assign]
    await b.run_job("train", 2)
    wanted = b.guards("train")
    (backup,) = backups
    await b.restore(backup)
    known = b.registry.job("train")
    assert not known.job.live
    assert wanted <= set(b.switch.of_jobs.values())
    await b.pass_time(PATIENCE_S / 2)
    assert wanted <= set(b.switch.of_jobs.values())
    await b.pass_time(100.0)
    assert (b.switch.of_jobs, b.used()) == ({}, {})


def told(b: Bench, worker: Worker, hosts: Sequence[int]) -> Account:
    """Return the account in the message of a worker that resumes now."""
    assert worker.ready is not None
    who = member(b.config, worker.rank, hosts[worker.rank], qp=worker.qp)
    ready = worker.ready
    known = Account.of(
        b.config,
        Resume(
            job="train",
            generation=ready.generation,
            rank=worker.rank,
            token=worker.ready.resume_token,
            joined=Join(job="train", world_size=len(hosts), worker=who.worker(), path_mtu_max=1024),
            ready=ready,
        ),
    )
    assert known is not None
    return known


@pytest.mark.parametrize("hosts", [ONE_RACK, ACROSS])
@pytest.mark.parametrize("renewals", [1, 2])
async def test_a_job_that_was_renewed_since_the_backup_leaves_nothing_behind(
    racks: Bench, tmp_path: Path, hosts: Sequence[int], renewals: int
) -> None:
    """Renew it once, or twice, which puts it in the slots again that the backup has of it."""
    workers = await racks.start(hosts=hosts)
    backup = racks.back_up()
    for _ in range(renewals):
        await racks.restart_switch()
        await racks.go(workers, 3.0)
    entries = {name: dict(switch.entries) for name, switch in racks.switches.items()}
    generation, *_ = workers[0].plan
    await racks.restore(backup)
    there = {name: racks.registry.allocations.orphan(name, generation) for name in racks.switches}
    for name, orphan in there.items():
        for entry in () if orphan is None else orphan.allocation.entries:
            assert entry in entries[name].values()
            assert entry in racks.switches[name].entries.values()
    assert there["l1"] is not None
    assert not there["l1"].lost
    for worker in workers:
        assert worker.ready is not None
        worker.session = racks.registry.sessions.resume(
            "train",
            worker.ready.generation,
            worker.rank,
            worker.ready.resume_token,
            told(racks, worker, hosts),
        )
    await racks.go(workers, 3.0)
    (plan,) = {worker.plan for worker in workers}
    assert (plan[0] > generation, plan[1:]) == (True, (Mode.IN_NETWORK, len(hosts)))
    assert not any(racks.registry.allocations.orphans.values())
    used = racks.used()
    assert used["l1"] == 256
    assert racks.is_as_wanted()
    for worker in workers:
        worker.session.hear(Leave())
    await racks.go(workers)
    assert not any(racks.used().values())
    assert not any(racks.of_jobs(name) for name in racks.switches)


async def test_what_one_worker_says_of_a_later_generation_takes_nothing_from_others(
    racks: Bench, tmp_path: Path
) -> None:
    """Let a worker say that it was in another job's generation, with queue pairs on its own host."""
    workers = await racks.start()
    backup = racks.back_up()
    await racks.start("other")
    generation = racks.registry.job("other").generation
    assert generation is not None
    entries = set(racks.registry.job("other").allocations["l1"].entries)
    qp = racks.qp
    await racks.restore(backup)
    for worker in workers:
        assert worker.ready is not None
        says = worker.ready.generation
        if worker.rank == 0:
            says, worker.qp = generation, qp
        worker.session = racks.registry.sessions.resume(
            "train", says, worker.rank, worker.ready.resume_token, told(racks, worker, ONE_RACK)
        )
    await racks.go(workers, 3.0)
    assert workers[0].plan[0] > generation, "it was renewed"
    orphan = racks.registry.allocations.orphan("l1", generation)
    assert orphan is not None
    assert not orphan.lost
    assert entries <= set(racks.of_jobs("l1"))


async def test_what_a_backup_left_out_is_not_taken_for_its_own_when_more_is_given_out(
    b: Bench, tmp_path: Path
) -> None:
    await a_job_that_ended(b)
    backup = b.back_up()
    known = await b.run_known(3)
    await b.restore(backup)
    for one in known[:2]:
        with pytest.raises(UnreachableError, match="to tell of it"):
            b.tell(one)
    await b.run_job("other", 2)
    assert [heard(b.tell(known[2]))[0]] == [Resumed()]


async def test_a_switch_that_is_looked_over_after_more_was_given_out_keeps_its_jobs(
    b: Bench, tmp_path: Path
) -> None:
    await a_job_that_ended(b)
    backup = b.back_up()
    known = await b.run_known(3)
    entries = dict(b.switch.of_jobs)
    b.switch.connected = False
    await b.restore(backup)
    plan = ready_of((await b.run_job("other", 2))[0])
    assert plan.mode is Mode.RING
    assert plan.generation > known[0].plan.generation
    b.switch.connected = True
    b.switch.connect()
    b.registry.manager.on_switch_change("s1")
    await b.settled()
    assert entries.items() <= b.switch.of_jobs.items()
    b.all_tell(known)


@pytest.mark.parametrize("restarted", [False, True])
async def test_no_guard_of_an_unknown_job_stops_what_a_worker_is_sent_by_ring(
    b: Bench, tmp_path: Path, restarted: bool
) -> None:
    """Set up a job of the same queue pairs by another controller, on a copy of the database.

    Its guards go when the switch is there or when the workers have come back, whichever is later.
    """
    before = await b.start("before", ONE_RACK)
    guards = b.guards("before")
    await b.leave([worker.session for worker in before])
    await b.pass_time(1000.0)
    await b.lose("s1")
    b.qp = before[0].qp - 2
    workers = await b.start("train", ONE_RACK)
    assert workers[0].plan[1] is Mode.RING
    assert {worker.qp for worker in workers} == {worker.qp for worker in before}
    b.switch.entries.update({key_of(guard): guard for guard in guards})
    if restarted:
        await b.restart(settle=False)
    await b.find("s1")
    await b.settled()
    if restarted:
        assert guards <= set(b.switch.of_jobs.values())
        await b.resume(*workers)
        await b.settled()
    assert not guards & set(b.switch.of_jobs.values())


async def test_a_job_is_not_over_because_another_has_its_number_by_now(b: Bench, tmp_path: Path) -> None:
    """Check that a job by ring, whose number no switch tells as given out, goes on by itself for now."""
    await a_job_that_ended(b)
    backup = b.back_up()
    while b.store.newest_generation < 1_000_257:
        b.store.next_generation()
    known = await b.run_known(33)
    await b.restore(backup)
    await b.run_job("other", 33)
    assert b.registry.job("other").generation == known[0].plan.generation
    for one in known[:-1]:
        with pytest.raises(UnreachableError):
            b.tell(one)
    with pytest.raises(ConflictError, match="another job has its generation"):
        b.tell(known[-1])


MOST = 1 << 20  # generations that are left out because workers say that they were given out


async def a_worker_uses_up_what_may_be_left_out(b: Bench) -> None:
    """Let a worker that knows its token use it up by lying about the newest generation."""
    liar = (await b.start("liar", (30, 31)))[0]
    assert liar.ready is not None
    says, token = b.store.newest_generation + MOST, liar.ready.resume_token
    b.registry.sessions.resume("liar", says, 0, token)
    with pytest.raises(ConflictError, match="no controller can have given out"):
        b.registry.sessions.resume("liar", says + 1000, 0, token)


async def test_one_worker_that_uses_up_what_may_be_left_out_takes_nothing_from_others(b: Bench) -> None:
    workers = await b.start("train")
    backup = b.back_up()
    for _ in range(3):
        await b.restart_switch("s1")
        await b.go(workers)
    later = workers[0].plan[0]
    await b.restore(backup)
    assert b.store.newest_generation < later + MOST
    await a_worker_uses_up_what_may_be_left_out(b)
    await b.resume(*workers)
    await b.go(workers, 3.0)
    assert {worker.plan[0] > later for worker in workers} == {True}
    assert [worker.end for worker in workers] == [None] * 3
    assert ready_of((await b.run_job("new", 2))[0]).mode is Mode.IN_NETWORK


async def test_what_a_switch_knows_counts_for_no_worker(b: Bench) -> None:
    """Begin far behind, as after the clock was set back, and bring a switch back after the liar."""
    workers = await b.start("train", (0, 1, 2))
    await b.lose("s1")
    await a_worker_uses_up_what_may_be_left_out(b)
    newest = b.store.newest_generation + 2 * MOST
    b.switch.entries[key_of(mark_of(newest))] = mark_of(newest)
    b.switch.connected = True
    b.switch.connect()
    b.registry.manager.on_switch_change("s1")
    await b.settled()
    assert b.store.newest_generation == newest
    assert workers[0].ready is not None
    session = b.registry.sessions.resume("train", newest + 5, 0, workers[0].ready.resume_token)
    assert session.is_current
    assert b.store.newest_generation >= newest + 5


def is_counted(lies: Sequence[int], given_out: Sequence[int], honest: int) -> bool:
    """Tell whether a controller counts on behind an honest worker's generation after lies of another."""
    with Store(":memory:", wall_clock=lambda: 1e6) as store:
        switch = FakeSwitch(RACK.switches[0], base_entries(RACK, RACK.switches[0]))
        adoption = Registry(RACK, store, [ManagedSwitch(switch)]).adoption
        first = store.newest_generation
        for lie, numbers in itertools.zip_longest(lies, given_out, fillvalue=0):
            with contextlib.suppress(ConflictError):
                adoption.count_behind("liar", first + lie)
            for _ in range(numbers):
                store.next_generation()
        try:
            adoption.count_behind("train", first + honest)
        except ConflictError:
            return False
        return True


@given(
    lies=st.lists(st.integers(1, MOST + 100), max_size=6),
    given_out=st.lists(st.integers(0, 20), min_size=6, max_size=6),
    honest=st.integers(1, MOST) | st.integers(MOST - 100, MOST + 200),
)
def test_what_others_say_does_not_decide_whether_a_worker_is_believed(
    lies: list[int], given_out: list[int], honest: int
) -> None:
    assert is_counted(lies, given_out, honest) == is_counted([], given_out, honest)


@pytest.mark.parametrize("database", ["new", "from a backup"])
async def test_guards_that_nobody_knows_stay_until_somebody_takes_them_away(
    b: Bench, tmp_path: Path, database: str
) -> None:
    """Check that a restart keeps them: no generation that the controller has given out by then was theirs."""
    await a_job_that_ended(b)
    backup = b.back_up()
    (first, *_) = await b.run_job("train", 3)
    wanted = b.guards("train")
    first.hear(Abort("no more"))
    await b.registry.drain()
    assert set(b.switch.of_jobs.values()) == wanted
    if database == "new":
        await b.restart_on_a_new_database()
    else:
        await b.restore(backup)
    for _ in range(3):
        await a_job_that_ended(b, "next")
        assert set(b.switch.of_jobs.values()) == wanted
        await b.restart()
    assert set(b.switch.of_jobs.values()) == wanted
    await b.registry.manager.push("s1", force=True)
    assert (b.switch.of_jobs, b.used()) == ({}, {})
