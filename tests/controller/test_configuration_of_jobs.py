"""Documents planned and applied while jobs come, run and go on a fabric of switches in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from controller.api.messages import Abort, Leave, Up
from controller.config import Spread, SwitchConfig
from controller.configuration.configuration import Configuration, Report
from controller.database.revisions import Revisions
from controller.entries import Entry, TableEntry, table_entry
from controller.fabric.tables.forward import ECMP_MEMBER, ROUTE
from controller.fabric.tables.membership import MEMBER_QP
from controller.fabric.tables.up import UPLINK
from controller.orchestration.registry import Registry
from controller.orchestration.sessions import Session
from controller.switches.difference import Change
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.updates import Failure, Update
from tests.controller.bench import Bench, fabric
from tests.controller.fake_switch import FakeSwitch

CONFIG = fabric((2, 2), spines=2, spread=Spread.MESSAGES)  # so that every job uses both
ACROSS = (0, 2, 1, 3)
DROP = "SwitchIngress.forward.drop"
BLACKHOLE = table_entry(ROUTE, {"dst_ip": (0x0A090000, 16)}, DROP)
DOCUMENT = "entries: {l1: [{table: route, match: {dst_ip: 10.9.0.0/16}, action: drop}]}\n"


class SlowSwitch(FakeSwitch):
    """One where others get a turn before, in the middle of and after everything that it does."""

    turns = random.Random(0)

    def __init__(self, config: SwitchConfig, base: Sequence[Entry] = ()) -> None:
        super().__init__(config, base)
        self.slow = False

    async def _turn(self) -> None:
        for _ in range(self.turns.randrange(4) if self.slow else 0):
            await asyncio.sleep(0)

    async def install(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            await self._turn()
            await super().install([entry])
        await self._turn()

    async def remove(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            await self._turn()
            await super().remove([entry])
        await self._turn()

    async def read_entries(self) -> set[Entry]:
        await self._turn()
        found = await super().read_entries()
        await self._turn()
        return found

    async def write_batch(self, updates: Sequence[Update]) -> list[Failure]:
        await self._turn()
        failures = await super().write_batch(updates)
        await self._turn()
        return failures


class DeclaredBench(Bench):
    """A fabric whose controller has a configuration."""

    SWITCH = SlowSwitch

    def _start(self) -> Registry:
        registry = super()._start()
        self.configuration = Configuration(registry, Revisions(self.store.connection))
        self.configuration.load()
        return registry

    def batches(self) -> dict[str, int]:
        """Return the number of batches that each switch got since the last call."""
        found = {name: len(switch.batches) for name, switch in self.switches.items() if switch.batches}
        for switch in self.switches.values():
            switch.batches.clear()
        return found


@pytest.fixture
def bench(tmp_path: Path) -> DeclaredBench:
    return DeclaredBench(tmp_path / "c.db", CONFIG)


def changes(report: Report) -> list[Change]:
    return [change for switch in report.switches for change in switch.found.changes]


def tables(found: Iterable[Change]) -> set[str]:
    return {change.entry.table for change in found if isinstance(change.entry, TableEntry)}


async def test_a_drain_moves_a_running_job_with_one_batch_a_leaf(bench: DeclaredBench) -> None:
    await bench.run_job("train", ACROSS)
    assert bench.uses("l1") == bench.routes_over("l1") == {"s1", "s2"}
    bench.batches()
    report = await bench.configuration.plan("drain: [s2]")
    assert tables(changes(report)) == {UPLINK, ECMP_MEMBER}
    assert not any(change.drift for change in changes(report))
    assert bench.batches() == {}
    assert (await bench.configuration.apply("drain: [s2]")).applied
    await bench.registry.drain()
    assert bench.batches() == {"l1": 1, "l2": 1}  # and nobody writes it once more
    for leaf in ("l1", "l2"):
        assert bench.uses(leaf) == bench.routes_over(leaf) == {"s1"}
    assert bench.is_as_wanted()
    assert changes(await bench.configuration.plan("")) == []
    await bench.restart()
    assert bench.uses("l1") == {"s1"}
    assert changes(await bench.configuration.plan("")) == []
    await bench.configuration.rollback(0)
    await bench.registry.drain()
    assert bench.uses("l1") == bench.routes_over("l2") == {"s1", "s2"}
    assert bench.is_as_wanted()


async def test_a_job_that_comes_later_avoids_what_is_drained(bench: DeclaredBench) -> None:
    await bench.configuration.apply("drain: [l1:s1]")
    await bench.run_job("train", ACROSS)
    assert bench.uses("l1") == {"s2"}
    assert changes(await bench.configuration.plan("")) == []


async def test_a_spine_that_is_filled_after_an_apply_is_nothing_to_apply(bench: DeclaredBench) -> None:
    await bench.configuration.apply("drain: [s1]")
    await bench.run_job("train", ACROSS)
    assert "s1" not in bench.used()
    install, written = bench.switches["s1"].install, asyncio.Event()

    async def late(entries: Sequence[Entry]) -> None:
        written.set()
        for _ in range(20):
            await asyncio.sleep(0)
        await install(entries)

    bench.switches["s1"].install = late  # type: ignore[method-assign]
    await bench.configuration.apply("drain: []")
    await written.wait()
    assert changes(await bench.configuration.plan("")) == []
    assert bench.uses("l1") == {"s1", "s2"}
    assert changes(await bench.configuration.apply("drain: []")) == []


async def test_a_drain_that_half_failed_is_undone_by_rollback(bench: DeclaredBench) -> None:
    await bench.run_job("train", ACROSS)
    before = {name: dict(switch.entries) for name, switch in bench.switches.items()}
    (route, *_) = changes(await bench.configuration.plan("drain: [s2]"))[-1:]
    bench.switches["l2"].refuses = {route.entry}
    report = await bench.configuration.apply("drain: [s2]")
    assert not report.applied
    assert bench.registry.links.drained == frozenset()
    bench.switches["l2"].refuses = set()
    assert (await bench.configuration.rollback(None)).applied
    await bench.registry.drain()
    assert {name: switch.entries for name, switch in bench.switches.items()} == before


async def test_entries_survive_a_switch_that_forgets(bench: DeclaredBench) -> None:
    await bench.configuration.apply(DOCUMENT)
    await bench.lose("l1", forget=True)
    report = await bench.configuration.plan("")
    assert [switch.connected for switch in report.switches] == [False, True, True, True]
    await bench.find("l1")
    assert BLACKHOLE in bench.switches["l1"].entries.values()
    assert changes(await bench.configuration.plan("")) == []


async def test_what_is_left_of_a_job_that_ended_is_no_drift(bench: DeclaredBench) -> None:
    first, *others = await bench.run_job("train", ACROSS)
    assert changes(await bench.configuration.plan("")) == []
    first.hear(Abort("enough"))
    assert changes(await bench.configuration.plan("")) == []  # while it is taken off
    await bench.registry.drain()
    guards = {e for e in bench.of_jobs("l1") if isinstance(e, TableEntry) and e.table == MEMBER_QP}
    assert guards == bench.of_jobs("l1") != set()  # workers that do not know yet may still send
    assert changes(await bench.configuration.apply("drain: [s2]")) != []
    assert bench.of_jobs("l1") == guards
    await bench.pass_time(80.0, step=1.0)
    assert bench.of_jobs("l1") == set()
    assert changes(await bench.configuration.plan("")) == []
    assert len(others) == 3


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_of_jobs_is_ever_drift(bench: DeclaredBench, seed: int) -> None:
    """Let jobs come and go, drain spines and use them again, with slow switches, and all at once."""
    choose = random.Random(seed)
    SlowSwitch.turns = random.Random(seed)
    documents = ["{}", "drain: [s1]", "drain: [s2]", "drain: [l1:s1]", DOCUMENT, DOCUMENT + "drain: [s2]"]

    async def job(bench: DeclaredBench, number: int) -> None:
        hosts = choose.choice([ACROSS, (0, 1), (2, 3), (1, 2)])
        sessions: list[Session] = await bench.join(f"job{number}", hosts)
        for _ in range(choose.randrange(20)):
            await asyncio.sleep(0)
        for session in sessions:
            session.hear(Up())
        for _ in range(choose.randrange(20)):
            await asyncio.sleep(0)
        if choose.random() < 0.7:
            for session in sessions:
                session.hear(Leave())
        else:
            sessions[0].hear(Abort("enough"))

    async def operator(bench: DeclaredBench) -> None:
        for _ in range(12):
            for _ in range(choose.randrange(10)):
                await asyncio.sleep(0)
            report = await bench.configuration.apply(choose.choice(documents))
            assert report.applied
            assert not any(change.drift for change in changes(report))
            assert changes(await bench.configuration.plan("")) == []

    for switch in bench.switches.values():
        assert isinstance(switch, SlowSwitch)
        switch.slow = True
    await asyncio.gather(operator(bench), *(job(bench, number) for number in range(8)))
    await bench.pass_time(120.0, step=1.0)
    assert bench.used() == {}
    assert bench.is_as_wanted()
    assert all(not bench.of_jobs(name) for name in bench.switches)


async def test_the_switches_are_written_by_one_at_a_time(bench: DeclaredBench) -> None:
    """Check that the plan waits for the switch's lock, and so sees no half-written job."""
    switch: ManagedSwitch = bench.registry.switches["l1"]
    async with switch.lock:
        plan = asyncio.ensure_future(bench.configuration.plan(""))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not plan.done()
    assert changes(await plan) == []
