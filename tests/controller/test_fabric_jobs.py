"""Jobs on several switches: all or none, over restarts, and on what is left when spines and links fail."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from controller.__main__ import patience
from controller.api.errors import NotPossibleError, UnreachableError
from controller.api.messages import (
    Abort,
    EndCause,
    JobSpec,
    Left,
    Mode,
    Moved,
    Renew,
    Resumed,
    Start,
    Up,
)
from controller.config import Spread
from controller.database.store import Store, StoredJob
from controller.entries import TableEntry
from controller.fabric.flows import removal_order
from controller.fabric.marks import MARK_GROUP
from controller.fabric.tables.forward import ECMP_MEMBER
from controller.fabric.tables.membership import FLOW
from controller.fabric.tables.tree import TREE_JOB
from controller.fabric.tables.up import UPLINK
from controller.orchestration.sessions import Session
from controller.service.views import job_info
from controller.slots.allocator import Region
from controller.switches.updates import SwitchError, UpdateKind
from p4src import MAX_JOBS
from tests.controller.bench import Bench, fabric, member
from tests.controller.told import ended_of, heard, ready_of

CONFIG = fabric((2, 2), spines=2, spread=Spread.MESSAGES)  # so that every job uses both
ACROSS = (0, 2, 1, 3)  # ranks 0 and 2 behind l1, 1 and 3 behind l2


# Set up and taken away


async def test_a_job_across_racks_from_join_to_left(b: Bench) -> None:
    sessions = await b.join("train", ACROSS)
    readies = [ready_of(session) for session in sessions]
    plan = readies[0]
    assert (plan.mode, plan.mode_reason, plan.ring) == (Mode.IN_NETWORK, "", (0, 2, 1, 3))
    assert [r.successor.rank for r in readies] == [2, 3, 1, 0]
    assert [r.predecessor.rank for r in readies] == [3, 2, 0, 1]
    assert b.used() == {"l1": 256, "l2": 256, "s1": 256, "s2": 256}
    assert UPLINK in b.tables("l1")
    assert TREE_JOB in b.tables("s2")
    assert b.is_as_wanted()
    for session in sessions:
        session.hear(Up())
    assert [heard(session) for session in sessions] == [[Start()]] * 4
    await b.leave(sessions)
    assert [heard(session) for session in sessions] == [[Left(), None]] * 4
    assert b.used() == {}
    assert [b.of_jobs(name) for name in b.switches] == [set()] * 4


async def test_a_job_in_one_rack_needs_no_spine(b: Bench) -> None:
    for name in ("s1", "s2"):
        await b.lose(name)
    plan = ready_of((await b.join("train", (2, 3)))[0])
    assert plan.mode is Mode.IN_NETWORK
    assert b.used() == {"l2": 256}


@pytest.mark.parametrize("b", [fabric((20, 20), spines=1)], indirect=True)
async def test_bigger_than_a_switch_adds_up_for_but_not_than_the_fabric(b: Bench) -> None:
    plan = ready_of((await b.join("train", range(40)))[0])
    assert (plan.mode, len(plan.ring)) == (Mode.IN_NETWORK, 40)


@pytest.mark.parametrize("refusing", ["l1", "l2", "s1", "s2"])
async def test_all_switches_or_none(b: Bench, refusing: str) -> None:
    b.switches[refusing].fails = SwitchError(f"switch {refusing} refused 1 of 5 updates: full")
    plan = ready_of((await b.join("train", ACROSS))[0])
    assert (plan.mode, plan.mode_reason) == (Mode.RING, f"switch {refusing} refused 1 of 5 updates: full")
    assert plan.ring == (0, 2, 1, 3), "by ring it crosses racks as little"
    assert b.used() == {}
    assert b.is_as_wanted()
    assert ready_of((await b.join("next", ACROSS))[0]).mode is Mode.IN_NETWORK


async def test_no_room_on_one_of_them_is_none_on_all(b: Bench) -> None:
    for i in range(MAX_JOBS):
        await b.run_job(f"job{i}", (2, 3))
    plan = ready_of((await b.join("train", ACROSS))[0])
    assert plan.mode is Mode.RING
    assert "l2" in plan.mode_reason
    assert "32 jobs" in plan.mode_reason
    assert set(b.used()) == {"l2"}


async def test_guards_of_both_ends_outlive_a_dead_job_on_leaves(b: Bench) -> None:
    sessions = await b.run_job("train", ACROSS)
    guards = {name: set(removal_order(list(b.of_jobs(name)))[1]) for name in ("l1", "l2")}
    assert len(guards["l1"]) == 2 * 3  # its own two flows, and the one that enters
    sessions[0].hear(Abort("no more"))
    await b.registry.drain()
    assert {name: b.of_jobs(name) for name in ("l1", "l2")} == guards
    assert b.used() == {"l1": 256, "l2": 256}, "spines have no guards, and nobody to guard"
    for session in sessions:
        session.took_end()
    await b.pass_time(3.0)
    assert b.used() == {}
    assert b.is_as_wanted()


@pytest.mark.parametrize("b", [fabric((2, 2, 2), spines=2)], indirect=True)
async def test_jobs_that_are_set_up_at_once_do_not_wait_for_each_other(b: Bench) -> None:
    """Let their switches overlap in every way."""
    hosts = [(0, 2, 4), (4, 2, 0), (2, 4), (4, 0), (0, 2), (5, 3, 1)]
    for i, places in enumerate(hosts):
        for rank, host in enumerate(places):
            b.registry.sessions.join(f"job{i}", len(places), member(b.config, rank, host, qp=0x200 + 2 * i))
    await asyncio.wait_for(b.registry.drain(), 5.0)
    plans = [running.job.plan for running in b.registry.jobs()]
    assert [plan.mode if plan else None for plan in plans] == [Mode.IN_NETWORK] * 6
    assert b.is_as_wanted()


# Restarts


async def test_a_job_across_racks_survives_a_restart_of_the_controller(b: Bench) -> None:
    readies = [ready_of(session) for session in await b.run_job("train", ACROSS)]
    before = {name: dict(switch.entries) for name, switch in b.switches.items()}
    logs = {name: len(switch.log) for name, switch in b.switches.items()}
    await b.restart()
    assert {name: switch.entries for name, switch in b.switches.items()} == before
    assert {name: len(switch.log) for name, switch in b.switches.items()} == logs, "nothing was touched"
    generation = readies[0].generation
    back = [
        b.registry.sessions.resume("train", generation, rank, readies[rank].resume_token) for rank in range(4)
    ]
    assert [heard(session) for session in back] == [[Resumed(), Moved(0, Mode.IN_NETWORK, "")]] * 4
    assert b.used() == {"l1": 256, "l2": 256, "s1": 256, "s2": 256}
    await b.leave(back)
    assert b.used() == {}
    assert b.is_as_wanted()


async def test_workers_that_want_to_resume_do_not_wait_for_a_switch_that_is_away(b: Bench) -> None:
    assert patience(b.registry)[0] == CONFIG.switch_timeout_s
    await b.run_job("train", ACROSS)
    await b.lose("s1")
    await b.restart()
    assert max(patience(b.registry)) < CONFIG.resume_timeout_s / 2


async def test_a_leaf_that_restarted_interrupts_its_jobs_everywhere(b: Bench) -> None:
    across = await b.run_job("across", ACROSS)
    other = await b.run_job("other", (2, 3))
    await b.lose("l1", forget=True)
    await b.find("l1")
    reason = "switch l1 was restarted, and has forgotten the job's sums"
    renewal = b.registry.job("across").job.renewal
    assert renewal is not None
    assert [heard(session)[-1] for session in across] == [Renew(renewal.number, reason)] * 4
    assert FLOW not in b.tables("l1")
    assert not b.of_jobs("s1")
    assert heard(other[0])[-1] == Start()


async def test_without_a_leaf_jobs_wait_and_say_so_and_without_a_spine_they_need_not(b: Bench) -> None:
    sessions = await b.run_job("train", ACROSS)
    await b.lose("s1")
    await b.pass_time(2 * CONFIG.switch_timeout_s, *sessions)
    assert heard(sessions[0])[-1] == Start()
    await b.lose("l1")
    await b.pass_time(CONFIG.switch_timeout_s + 1, *sessions)
    assert heard(sessions[0]) == []
    waits = "waits: switch l1 is away: unreachable: it was unplugged; not all of its workers have"
    assert waits in job_info(b.registry, b.registry.job("train")).renewal_reason
    await b.find("l1")
    await b.pass_time(1.0, *sessions)
    assert job_info(b.registry, b.registry.job("train")).renewal_reason == ""


async def test_a_leaf_that_was_away_while_trees_moved_has_lost_nothing(b: Bench) -> None:
    sessions = await b.run_job("train", ACROSS)
    await b.lose("l1")
    await b.lose("s1")
    await b.find("l1")
    assert [heard(session)[-1] for session in sessions] == [Start()] * 4
    assert b.uses("l1") == b.uses("l2") == {"s2"}
    assert b.is_as_wanted() or not b.switches["s1"].connected


# Spines that come and go


async def test_a_spine_that_dies_is_left_out_and_comes_back(
    b: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sessions = await b.run_job("train", ACROSS)
    assert (b.uses("l1"), b.routes_over("l1")) == ({"s1", "s2"}, {"s1", "s2"})
    for switch in b.switches.values():
        switch.batches.clear()
    await b.lose("s1", forget=True)
    for leaf in ("l1", "l2"):
        assert (b.uses(leaf), b.routes_over(leaf)) == ({"s2"}, {"s2"})
        (batch,) = b.switches[leaf].batches
        assert {update.kind for update in batch} == {UpdateKind.MODIFY}
        assert {getattr(u.entry, "table", "") for u in batch} == {UPLINK, ECMP_MEMBER}
    assert "spine s1 is away: unreachable" in caplog.text
    assert "job train: leaves' sums go to s2 now, they went to s1, s2" in caplog.text
    await b.find("s1")
    assert TREE_JOB in b.tables("s1"), "its entries are written again"
    for leaf in ("l1", "l2"):
        assert (b.uses(leaf), b.routes_over(leaf)) == ({"s1", "s2"}, {"s1", "s2"})
    assert b.is_as_wanted()
    assert [heard(session)[-1] for session in sessions] == [Start()] * 4


async def test_entries_of_a_spine_are_back_before_leaves_use_it(b: Bench) -> None:
    await b.run_job("train", ACROSS)
    await b.lose("s1", forget=True)
    seen: list[bool] = []
    for leaf in ("l1", "l2"):
        write = b.switches[leaf].write_batch

        async def watch(updates, write=write):  # type: ignore[no-untyped-def]
            seen.append(TREE_JOB in b.tables("s1"))
            return await write(updates)

        b.switches[leaf].write_batch = watch  # type: ignore[method-assign]
    await b.find("s1")
    assert seen == [True, True]


async def test_how_trees_have_moved_survives_a_restart(b: Bench) -> None:
    await b.run_job("train", ACROSS)
    await b.lose("s2")
    entries = {name: dict(switch.entries) for name, switch in b.switches.items()}
    await b.restart()
    assert (b.uses("l1"), b.routes_over("l1")) == ({"s1"}, {"s1"})
    await b.pass_time(5.0)
    assert {name: switch.entries for name, switch in b.switches.items()} == entries
    await b.find("s2")
    assert b.uses("l1") == {"s1", "s2"}


async def test_without_any_spine_jobs_wait_and_new_ones_run_by_ring_with_the_reason(
    b: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = await b.run_job("train", ACROSS)
    await b.lose("s1")
    await b.lose("s2")
    assert b.uses("l1") == {"s2"}, "as it was when the last one went"
    assert "job train waits: no spine joins l1, l2 (s1 is away; s2 is away)" in caplog.text
    plan = ready_of((await b.join("late", ACROSS))[0])
    assert (plan.mode, plan.mode_reason) == (Mode.RING, "no spine joins l1, l2 (s1 is away; s2 is away)")
    b.registry.create_job(JobSpec(name="must", world_size=4, mode=Mode.IN_NETWORK))
    refused = ended_of((await b.join("must", ACROSS))[0]).reason
    assert "it must run in the network, but no spine joins l1, l2" in refused
    await b.find("s1")
    assert (b.uses("l1"), b.uses("l2")) == ({"s1"}, {"s1"})
    assert [heard(session)[-1] for session in sessions] == [Start()] * 4
    assert ready_of((await b.join("later", ACROSS))[0]).mode is Mode.IN_NETWORK


async def test_a_spine_that_was_not_there_at_first_takes_its_part_when_it_is(b: Bench) -> None:
    await b.lose("s2")
    await b.run_job("train", ACROSS)
    assert set(b.used()) == {"l1", "l2", "s1"}
    await b.find("s2")
    assert set(b.used()) == {"l1", "l2", "s1", "s2"}
    assert b.uses("l1") == b.uses("l2") == {"s1", "s2"}
    assert b.is_as_wanted()
    await b.restart()
    assert b.used() == {"l1": 256, "l2": 256, "s1": 256, "s2": 256}
    assert b.is_as_wanted()


async def test_what_could_not_be_moved_is_tried_again(b: Bench, caplog: pytest.LogCaptureFixture) -> None:
    sessions = await b.run_job("train", ACROSS)
    l1 = b.switches["l1"]
    running = b.registry.job("train")
    l1.refuses = {e for e in l1.entries.values() if isinstance(e, TableEntry) and e.table == UPLINK}
    await b.lose("s2")
    assert b.uses("l1") == {"s1"}
    await b.find("s2")  # back to entries that l1 refuses now
    assert (b.uses("l1"), b.uses("l2")) == ({"s1"}, {"s1", "s2"})
    assert "switch l1: traffic is not moved yet: switch l1 refused 8 of" in caplog.text
    assert running.job.live
    l1.refuses = set()
    await b.pass_time(3.0, *sessions)
    assert b.uses("l1") == {"s1", "s2"}
    assert b.is_as_wanted()


async def test_a_push_to_a_spine_ends_no_job(b: Bench) -> None:
    sessions = await b.run_job("train", ACROSS)
    await b.registry.manager.push("s1", force=False)
    await b.registry.drain()
    assert heard(sessions[0])[-1] == Start()
    assert b.is_as_wanted()
    with pytest.raises(NotPossibleError, match="switch l1 serves train"):
        await b.registry.manager.push("l1", force=False)


# Links


class Cables:
    """Answers the probes that the leaves are given, but on links that are cut."""

    def __init__(self, b: Bench) -> None:
        self.b = b
        self.cut: set[str] = set()

    async def pass_time(self, seconds: float, *alive: Session) -> None:
        for _ in range(round(seconds / 0.25)):
            await self.b.pass_time(0.25, *alive)
            for link in self.b.registry.links.graph.links:
                leaf = self.b.switches[link.leaf]
                for port, frame in leaf.frames:
                    if port == link.leaf_port and link.name not in self.cut and leaf.on_echo is not None:
                        leaf.on_echo(struct.unpack(">I", frame[54:58])[0])
            for switch in self.b.switches.values():
                switch.frames.clear()


PROBED = fabric((2, 2, 1), spines=2, spread=Spread.MESSAGES, probe_interval_s=0.5)


@pytest.mark.parametrize("b", [PROBED], indirect=True)
async def test_an_uplink_that_is_cut_is_left_out_and_comes_back(
    b: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sessions = await b.run_job("train", ACROSS)
    cables = Cables(b)
    await cables.pass_time(5.0, *sessions)
    assert b.uses("l1") == {"s1", "s2"}
    cables.cut = {"l1:s2"}
    await cables.pass_time(1.5, *sessions)
    assert b.uses("l1") == {"s1", "s2"}, "not yet: one lost probe is no lost link"
    await cables.pass_time(1.5, *sessions)
    assert b.uses("l1") == b.uses("l2") == {"s1"}
    assert b.routes_over("l1") == {"s1"}
    assert b.routes_over("l3") == {"s1", "s2"}, "to l2 there are both"
    assert "link l1 port 102 to s2 port 1 is down: 4 probes without an answer" in caplog.text
    cables.cut = set()
    await cables.pass_time(3.0, *sessions)
    assert b.uses("l1") == b.uses("l2") == {"s1", "s2"}
    assert "link l1 port 102 to s2 port 1 is up again" in caplog.text
    assert b.is_as_wanted()
    assert heard(sessions[0])[-1] == Start()


@pytest.mark.parametrize("b", [PROBED], indirect=True)
async def test_links_that_share_no_spine_any_more_stop_a_job_until_one_is_back(b: Bench) -> None:
    sessions = await b.run_job("train", ACROSS)
    cables = Cables(b)
    cables.cut = {"l1:s1", "l2:s2"}
    await cables.pass_time(3.0, *sessions)
    assert b.uses("l1") == b.uses("l2")
    plan = ready_of((await b.join("late", ACROSS))[0])
    assert plan.mode_reason == "no spine joins l1, l2 (l1:s1: no answer; l2:s2: no answer)"
    cables.cut = {"l2:s2"}
    await cables.pass_time(3.0, *sessions)
    assert b.uses("l1") == b.uses("l2") == {"s1"}
    assert b.routes_over("l1") == {"s1", "s2"}, "to l3 by both"


@pytest.mark.parametrize("b", [PROBED], indirect=True)
async def test_a_link_that_was_down_is_so_for_the_next_controller_until_it_answers(b: Bench) -> None:
    await b.run_job("train", ACROSS)
    cables = Cables(b)
    cables.cut = {"l1:s1"}
    await cables.pass_time(3.0)
    entries = {name: dict(switch.entries) for name, switch in b.switches.items()}
    await b.restart()
    await cables.pass_time(2.0)
    assert {name: switch.entries for name, switch in b.switches.items()} == entries
    cables.cut = set()
    await cables.pass_time(3.0)
    assert b.uses("l1") == b.uses("l2") == {"s1", "s2"}


@pytest.mark.parametrize("b", [PROBED], indirect=True)
async def test_a_busy_controller_takes_no_link_away(b: Bench) -> None:
    cables = Cables(b)
    await cables.pass_time(2.0)
    for _ in range(5):
        b.now += 3.0  # nothing was done for so long
        await cables.pass_time(1.0)
        assert b.registry.links.state.down == frozenset()


# What an operator wants


async def test_what_is_drained_takes_no_new_traffic(b: Bench) -> None:
    await b.run_job("train", ACROSS)
    wanted = b.registry.manager.rerouting.wanted_entries("l1", drained=frozenset({"s1"}), extra=[])
    assert b.is_as_wanted(), "asking changes nothing"
    assert b.uses("l1") == {"s1", "s2"}
    b.registry.manager.set_configuration(drained=frozenset({"s1"}), extra={})
    await b.registry.drain()
    assert set(b.switches["l1"].entries.values()) == set(wanted)
    assert (b.uses("l2"), b.routes_over("l2")) == ({"s2"}, {"s2"})
    assert set(b.used()) == {"l1", "l2", "s1", "s2"}
    assert ready_of((await b.join("next", ACROSS))[0]).mode is Mode.IN_NETWORK
    assert "s1" not in b.registry.job("next").allocations
    b.registry.manager.set_configuration(drained=frozenset(), extra={})
    await b.registry.drain()
    assert b.uses("l1") == {"s1", "s2"}
    assert b.is_as_wanted()


# Between ring and switches


async def test_a_job_is_taken_off_while_it_holds(b: Bench) -> None:
    await b.run_job("train", ACROSS)
    running = b.registry.job("train")
    rooms: list[None] = []
    b.registry.manager.on_room.append(lambda: rooms.append(None))
    assert await b.registry.waitlist.take_off(running, "made room for others") == (
        Mode.RING,
        "made room for others",
    )
    assert rooms
    assert b.used() == {}
    assert [b.of_jobs(name) for name in b.switches] == [set()] * 4
    assert running.job.live
    await b.restart()
    plan = b.registry.job("train").job.plan
    assert plan is not None
    assert (plan.mode, plan.mode_reason, b.used()) == (Mode.RING, "made room for others", {})


async def test_a_job_is_not_half_taken_off(b: Bench) -> None:
    await b.run_job("train", ACROSS)
    running = b.registry.job("train")
    before = {name: set(switch.entries.values()) for name, switch in b.switches.items()}
    l2 = b.switches["l2"]
    remove = l2.remove

    async def refuse(entries: object) -> None:
        l2.remove = remove  # type: ignore[method-assign]
        raise SwitchError("switch l2 refuses")

    l2.remove = refuse  # type: ignore[method-assign]
    assert await b.registry.waitlist.take_off(running, "why not") == (Mode.IN_NETWORK, "switch l2 refuses")
    assert {name: set(switch.entries.values()) for name, switch in b.switches.items()} == before
    assert b.used() == {"l1": 256, "l2": 256, "s1": 256, "s2": 256}
    assert running.job.live
    await b.lose("l1")
    mode, reason = await b.registry.waitlist.take_off(running, "why not")
    assert mode is Mode.IN_NETWORK
    assert "switch l1 at unix:l1 cannot be used" in reason


@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_what_the_workers_of_a_job_that_moves_out_are_told_is_what_a_restart_finds(
    b: Bench, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Fill the disk after so many writes: workers may go on in the network, each at its own collective.

    A restart must not tell them, one by one, to go on by ring.
    """
    for session in await b.run_job("train", ACROSS):
        session.hear(Up())
    running = b.registry.job("train")
    save, left = b.store.save_job, [writes]

    def fill(*planes: StoredJob) -> None:
        if not left[0]:
            raise sqlite3.OperationalError("database or disk is full")
        left[0] -= 1
        save(*planes)

    monkeypatch.setattr(b.store, "save_job", fill)
    told = (await b.registry.waitlist.take_off(running, "why not"))[0]
    monkeypatch.undo()
    assert told is Mode.IN_NETWORK or writes
    generation, token = running.generation, running.job.workers[0].token
    assert generation is not None
    await b.restart()
    assert bool(b.used()) is (told is Mode.IN_NETWORK)
    back = b.registry.sessions.resume("train", generation, 0, token)
    events = [back.events.get_nowait() for _ in range(back.events.qsize())]
    assert [event.mode for event in events if isinstance(event, Moved)] == [told]


async def test_a_job_that_is_being_taken_off_gets_no_other_spine_meanwhile(b: Bench) -> None:
    await b.lose("s2")
    await b.run_job("train", ACROSS)
    running, places, switches = b.registry.job("train"), b.registry.allocations, b.registry.switches
    b.switches["s2"].connected = True
    await places.settle(switches["s2"])
    install = b.switches["s2"].install
    off = asyncio.Event()

    async def late(entries):  # type: ignore[no-untyped-def]
        await off.wait()
        await install(entries)

    b.switches["s2"].install = late  # type: ignore[method-assign]
    async with switches["l1"].lock, switches["s2"].lock:
        extending = asyncio.ensure_future(places.extend(running, "s2"))
        await asyncio.sleep(0)
        leaving = asyncio.ensure_future(b.registry.waitlist.take_off(running, "made room"))
        await asyncio.sleep(0)
    await asyncio.wait({leaving}, timeout=1.0)
    off.set()
    await extending
    assert await leaving == (Mode.RING, "made room")
    assert b.used() == {}
    assert b.of_jobs("s2") == set()


async def test_a_spine_that_comes_while_a_job_is_set_up_takes_its_part(b: Bench) -> None:
    b.registry.manager.set_configuration(drained=frozenset({"s2"}), extra={})
    install = b.switches["l1"].install

    async def meanwhile(entries):  # type: ignore[no-untyped-def]
        b.registry.links.drained = frozenset()
        b.registry.links.refresh()
        await asyncio.sleep(0)
        await install(entries)

    b.switches["l1"].install = meanwhile  # type: ignore[method-assign]
    await b.run_job("train", ACROSS)
    assert set(b.used()) == {"l1", "l2", "s1", "s2"}
    assert b.uses("l1") == {"s1", "s2"}
    assert b.is_as_wanted()


async def test_a_spine_without_room_takes_its_part_when_it_has_some(
    b: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for i in range(MAX_JOBS):
        b.registry.switches["s2"].allocator.take(Region(i, 8 * i, 8))
    await b.lose("s2")
    sessions = await b.run_job("train", ACROSS)
    await b.find("s2")
    assert set(b.used()) == {"l1", "l2", "s1", "s2"}
    assert b.uses("l1") == {"s1"}
    b.registry.manager.set_configuration(drained=frozenset({"s1"}), extra={})
    await b.registry.drain()
    assert b.uses("l1") == {"s1"}, "there is no other"
    assert "job train stays on s1: no place on s2" in caplog.text
    neighbour = await b.run_job("neighbour", (0, 1))
    b.registry.switches["s2"].allocator.release(Region(0, 0, 8))
    await b.leave(neighbour)
    assert b.uses("l1") == b.uses("l2") == {"s2"}
    assert caplog.text.count("job train does without spine s2") == 1
    assert b.is_as_wanted()
    assert heard(sessions[0])[-1] == Start()


async def test_a_spine_that_is_no_longer_in_the_configuration_is_done_without(
    b: Bench, tmp_path: Path
) -> None:
    """Change the configuration between two starts."""
    await b.run_job("train", ACROSS)
    b.registry.stop()
    await b.registry.drain()
    b.store.close()
    with Store(tmp_path / "c.db") as store:
        (job,) = store.jobs()
        assert [(allocation.switch, allocation.role) for allocation in job.allocations] == [
            ("l1", "leaf"),
            ("l2", "leaf"),
            ("s1", "spine"),
            ("s2", "spine"),
        ]
    b.config = fabric((2, 2), spines=1)
    del b.switches["s2"]
    b.registry = b._start()
    await b.settled()
    assert set(b.used()) == {"l1", "l2", "s1"}
    assert b.uses("l1") == b.uses("l2") == {"s1"}, "one spine less"


async def test_a_host_that_is_no_longer_in_the_configuration_ends_its_jobs(b: Bench) -> None:
    readies = [ready_of(session) for session in await b.run_job("train", ACROSS)]
    b.config = replace(CONFIG, hosts=CONFIG.hosts[:3])
    await b.restart()
    back = b.registry.sessions.resume("train", readies[0].generation, 0, readies[0].resume_token)
    ended = ended_of(back)
    assert ended.cause is EndCause.NOT_CONFIGURED
    assert "the host of rank 3 (h4, 10.0.2.2) is no longer in" in ended.reason
    job_info(b.registry, b.registry.job("train"))
    await b.pass_time(CONFIG.resume_timeout_s + 40.0)
    assert b.used() == {}


# Generations, where the database has lost count of them


@pytest.mark.parametrize("how", ["from a backup", "new, and the clock was set back"])
async def test_a_database_that_is_older_than_the_sums_on_switches_repeats_no_generation(
    b: Bench, tmp_path: Path, how: str
) -> None:
    older = sqlite3.connect(tmp_path / "older.db")
    if how == "from a backup":
        b.store.connection.backup(older)
    older.close()
    had = set()
    for name in ("one", "two", "three"):
        sessions = await b.run_job(name, ACROSS)
        had.add(b.registry.job(name).generation)
        await b.leave(sessions)
    b.registry.stop()
    await b.registry.drain()
    b.store.close()
    for path in tmp_path.glob("c.db*"):
        path.unlink()
    if how == "from a backup":
        (tmp_path / "older.db").rename(b.path)
    else:
        monkey = Store(b.path, wall_clock=lambda: 5.0)
        monkey.close()
    b.registry = b._start()
    await b.settled()
    await b.run_job("next", ACROSS)
    generation = b.registry.job("next").generation
    assert generation is not None
    assert generation > max(g for g in had if g is not None)
    assert b.is_as_wanted()
    await b.restart()  # and this one counts on
    assert b.store.newest_generation >= generation


async def test_a_generation_that_a_switch_may_have_had_is_not_used_there(b: Bench) -> None:
    """Give the number out while the switch that has had it is away."""
    for name in ("one", "two"):
        await b.leave(await b.run_job(name, ACROSS))
    for name in b.switches:
        await b.lose(name)
    b.registry.stop()
    await b.registry.drain()
    b.store.close()
    for path in b.path.parent.glob("c.db*"):
        path.unlink()
    Store(b.path, wall_clock=lambda: 5.0).close()
    del b.switches["l1"].entries["group", MARK_GROUP]  # l1 was restarted
    b.registry = b._start()
    await b.find("l1")
    generation = b.store.next_generation()
    assert generation < 1000
    for name in ("l2", "s1", "s2"):
        await b.find(name)
    await b.settled()
    require_new = b.registry.allocations.require_new
    require_new(generation, ["l1"])
    for name in ("l2", "s1"):
        with pytest.raises(UnreachableError, match=f"may have sums of an earlier generation {generation}"):
            require_new(generation, ["l1", name])
    require_new(b.store.next_generation(), ["l1", "l2", "s1"])
