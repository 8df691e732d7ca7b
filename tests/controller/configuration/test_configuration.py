"""Planning, applying and rolling back, on switches in memory and with jobs that are only lists of entries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.api import controller_pb2 as pb
from controller.api.errors import NotFoundError, NotPossibleError
from controller.config import Config, SwitchConfig
from controller.configuration.configuration import Configuration, Report, Setting, SwitchReport
from controller.configuration.marked import DocumentError
from controller.database.revisions import SCHEMA, Revisions
from controller.entries import Entry, Group, Key, TableEntry, key_of, table_entry
from controller.fabric.graph import ALL_UP, Graph, LinkState
from controller.fabric.routes import base_entries
from controller.fabric.tables.forward import ECMP_MEMBER, ROUTE
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.service.views import report_message, revision_messages
from controller.slots.admission import Quotas, TenantQuota
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.updates import Failure, SwitchUnreachableError, Update, UpdateKind
from tests.controller.bench import fabric
from tests.controller.fake_switch import FakeSwitch

CONFIG = fabric()
DROP = "SwitchIngress.forward.drop"
BLACKHOLE = table_entry(ROUTE, {"dst_ip": (0x0A090000, 16)}, DROP)
OTHER = table_entry(ROUTE, {"dst_ip": (0x0A080000, 16)}, DROP)
JOB: tuple[Entry, ...] = (
    Group(2, ((1, 1), (2, 2))),
    table_entry(FLOW, {"ingress_port": 1, "src_ip": 1, "dst_ip": 2, "dest_qp": 3}, "NoAction"),
    table_entry(
        MEMBER_QP, {"dst_ip": 2, "dest_qp": 3}, "SwitchIngress.membership.not_from_its_peer", of_flow=0
    ),
)


def document(*networks: str, switch: str = "l1", **other: object) -> str:
    """Return a document that drops packets to some networks on a switch."""
    entries = [{"table": "route", "match": {"dst_ip": n}, "action": "drop"} for n in networks]
    return json.dumps({**({"entries": {switch: entries}} if entries else {}), **other})


class MemorySwitch(FakeSwitch):
    """One that others write to as well: `ours` is what it was given by the controller."""

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__(config)
        self.ours: dict[Key, Entry] = {}
        self.replaced = False
        self.breaks = False
        self.going_on: asyncio.Event | None = None

    @property
    def written(self) -> dict[Key, Entry]:
        return self.ours

    def holds(self, *entries: Entry) -> bool:
        return all(self.entries.get(key_of(entry)) == entry for entry in entries)

    def by_hand(self, *entries: Entry, delete: bool = False) -> None:
        for entry in entries:
            if delete:
                del self.entries[key_of(entry)]
            else:
                self.entries[key_of(entry)] = entry

    async def adopt(self, wanted: Sequence[Entry]) -> None:
        await super().adopt(wanted)
        self.ours = dict(self.entries)
        self.replaced = False

    async def runs_our_program(self) -> bool:
        self._check()
        return not self.replaced

    async def _came(self) -> None:
        if self.going_on is not None:
            await self.going_on.wait()
        if self.breaks:
            raise SwitchUnreachableError(f"switch {self.config.name} broke")

    async def write_batch(self, updates: Sequence[Update]) -> list[Failure]:
        failures = await super().write_batch(updates)
        refused = {failure.update for failure in failures}
        for update in updates:
            if update not in refused:
                self.ours.pop(key_of(update.entry), None)
                if update.kind is not UpdateKind.DELETE:
                    self.ours[key_of(update.entry)] = update.entry
        return failures


class JobsOfNobody:
    """The registry, as the configuration sees it; `jobs` are entries by switch."""

    def __init__(self, switches: Mapping[str, MemorySwitch], config: Config = CONFIG) -> None:
        self.config = config
        self.manager = self.rerouting = self.waitlist = self
        self.jobs: dict[str, tuple[Entry, ...]] = {}
        self.drained: frozenset[str] = frozenset()
        self.extra: dict[str, tuple[Entry, ...]] = {}
        self.quotas: Quotas | None = None
        self.pushed: list[str] = []
        self.links = SimpleNamespace(graph=Graph.of(config), state=ALL_UP)
        self.memory = switches
        self.switches = {switch.name: ManagedSwitch(switches[switch.name]) for switch in config.switches}

    def wanted_entries(
        self, name: str, *, drained: frozenset[str] | None = None, extra: Sequence[Entry] | None = None
    ) -> list[Entry]:
        state = LinkState(drained=self.drained if drained is None else drained)
        base = base_entries(self.config, self.config.switch(name), state)
        more = self.extra.get(name, ()) if extra is None else extra
        return [*base, *more, *self.jobs.get(name, ())]

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for switch in self.switches.values():
                await stack.enter_async_context(switch.lock)
            yield

    def set_configuration(self, *, drained: frozenset[str], extra: Mapping[str, Sequence[Entry]]) -> None:
        self.drained = drained
        self.links.state = self.links.state.draining(drained)
        self.extra = {name: tuple(entries) for name, entries in extra.items()}

    def set_quotas(self, quotas: Quotas | None) -> None:
        self.quotas = quotas

    async def quiet(self, timeout_s: float) -> None:
        """Return at once: nothing moves here."""

    async def settle(self, *names: str) -> None:
        """Settle switches that have come, as the registry does."""
        for name in names or self.switches:
            switch = self.memory[name]
            if switch.connected:
                await switch.adopt(self.wanted_entries(name))
                cast(Any, self.switches[name])._ready.set()

    async def push(self, name: str, *, force: bool) -> None:
        assert force
        self.pushed.append(name)
        await self.settle(name)


class Bench:
    """A controller that can be restarted, also with another configuration; switches and database stay."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.executescript(SCHEMA)
        self.switches = {switch.name: MemorySwitch(switch) for switch in CONFIG.switches}

    async def start(self, config: Config = CONFIG) -> None:
        self.registry = JobsOfNobody(self.switches, config)
        self.revisions = Revisions(self.db, wall_clock=lambda: 1e9)
        self.configuration = Configuration(cast(Any, self.registry), self.revisions)
        self.configuration.load()
        await self.registry.manager.settle()

    async def __aenter__(self) -> Bench:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.db.close()

    def forget_batches(self) -> None:
        for switch in self.switches.values():
            switch.batches.clear()

    def written(self) -> dict[str, list[int]]:
        """Return the number of updates in each batch, by switch."""
        return {
            name: [len(batch) for batch in switch.batches]
            for name, switch in self.switches.items()
            if switch.batches
        }


@pytest.fixture(name="bench")
def a_bench() -> Bench:
    return Bench()


def changes(report: Report) -> list[tuple[str, UpdateKind, Key, bool]]:
    """Return (switch, kind, key, drift) of each change."""
    return [
        (switch.name, change.kind, key_of(change.entry), change.drift)
        for switch in report.switches
        for change in switch.found.changes
    ]


def on(report: Report, name: str) -> SwitchReport:
    return next(switch for switch in report.switches if switch.name == name)


ADD, CHANGE, DELETE = UpdateKind


async def test_nothing_is_to_be_done_at_first(bench: Bench) -> None:
    report = await bench.configuration.plan("")
    assert changes(report) == []
    assert report.revision == 0
    assert [switch.name for switch in report.switches] == list(bench.switches)
    assert all(switch.connected and switch.found.unchanged > 5 for switch in report.switches)


async def test_a_plan_writes_nothing_and_apply_one_batch_a_switch(bench: Bench) -> None:
    text = document("10.9.0.0/16", "10.8.0.0/16", groups={"s1": {"5000": [1, 2]}})
    report = await bench.configuration.plan(text)
    assert changes(report) == [
        ("l1", ADD, key_of(OTHER), False),
        ("l1", ADD, key_of(BLACKHOLE), False),
        ("s1", ADD, ("group", 5000), False),
    ]
    assert bench.written() == {}
    report = await bench.configuration.apply(text)
    assert (report.applied, report.revision) == (True, 1)
    assert bench.written() == {"l1": [2], "s1": [1]}
    assert bench.switches["l1"].holds(BLACKHOLE, OTHER)
    assert changes(await bench.configuration.plan(text)) == []
    assert changes(await bench.configuration.plan("")) == []


async def test_apply_again_is_a_no_op(bench: Bench) -> None:
    await bench.configuration.apply(document("10.9.0.0/16"))
    bench.forget_batches()
    for text in (document("10.9.0.0/16"), "", document("10.9.0.0/16") + "  # the same"):
        report = await bench.configuration.apply(text)
        assert (report.applied, report.revision, changes(report)) == (True, 1, [])
    assert bench.written() == {}
    assert len(bench.configuration.revisions()) == 1


async def test_what_a_new_document_leaves_out_goes(bench: Bench) -> None:
    await bench.configuration.apply(document("10.9.0.0/16"))
    report = await bench.configuration.apply(document("10.8.0.0/16"))
    assert report.revision == 2
    assert set(changes(report)) == {
        ("l1", ADD, key_of(OTHER), False),
        ("l1", DELETE, key_of(BLACKHOLE), False),
    }
    first, second = bench.switches["l1"].batches[-1]
    assert (first.kind, second.kind) == (UpdateKind.INSERT, UpdateKind.DELETE)


async def test_changes_by_hand_are_drift_and_gone_after_rollback(bench: Bench) -> None:
    await bench.configuration.apply(document("10.9.0.0/16"))
    switch = bench.switches["l1"]
    before = dict(switch.entries)
    routed = next(e for e in before.values() if isinstance(e, TableEntry) and e.table == ROUTE)
    switch.by_hand(OTHER, replace(routed, action=DROP, params=()))
    switch.by_hand(BLACKHOLE, delete=True)
    for text in ("", document("10.9.0.0/16")):
        assert set(changes(await bench.configuration.plan(text))) == {
            ("l1", ADD, key_of(BLACKHOLE), True),
            ("l1", CHANGE, key_of(routed), True),
            ("l1", DELETE, key_of(OTHER), True),
        }
    report = await bench.configuration.rollback(None)
    assert (report.applied, report.revision, len(changes(report))) == (True, 1, 3)
    assert switch.entries == before
    assert changes(await bench.configuration.plan("")) == []
    assert len(bench.configuration.revisions()) == 1


async def test_a_new_document_is_told_from_what_was_done_by_hand(bench: Bench) -> None:
    bench.switches["l2"].by_hand(OTHER)
    assert set(changes(await bench.configuration.plan(document("10.9.0.0/16")))) == {
        ("l1", ADD, key_of(BLACKHOLE), False),
        ("l2", DELETE, key_of(OTHER), True),
    }


async def test_entries_of_jobs_are_no_drift_unless_changed_by_hand(bench: Bench) -> None:
    bench.registry.jobs["l1"] = JOB
    await bench.registry.manager.settle()
    report = await bench.configuration.apply(document("10.9.0.0/16"))
    assert changes(report) == [("l1", ADD, key_of(BLACKHOLE), False)]
    bench.switches["l1"].by_hand(JOB[2], delete=True)
    (change,) = changes(await bench.configuration.plan(""))
    assert change == ("l1", ADD, key_of(JOB[2]), True)
    await bench.configuration.apply("")
    assert bench.switches["l1"].holds(*JOB, BLACKHOLE)


async def test_a_job_that_is_being_written_is_waited_for(bench: Bench) -> None:
    switch = bench.switches["l1"]
    async with bench.registry.switches["l1"].lock:  # as whoever sets a job up holds it
        switch.by_hand(JOB[0])
        plan = asyncio.ensure_future(bench.configuration.plan(""))
        await asyncio.sleep(0.01)
        bench.registry.jobs["l1"] = JOB
        await bench.registry.manager.settle("l1")
    assert changes(await plan) == []


class TestRefused:
    TEXT = document("10.9.0.0/16", "10.8.0.0/16", groups={"l2": {"5000": [1]}})

    async def test_is_told_and_rolled_back(self, bench: Bench) -> None:
        await bench.configuration.apply(document("10.7.0.0/16"))
        before = {name: dict(switch.entries) for name, switch in bench.switches.items()}
        bench.switches["l1"].refuses = {OTHER}
        report = await bench.configuration.apply(self.TEXT)
        assert (report.applied, report.revision) == (False, 1)
        refused = on(report, "l1")
        assert refused.error == "switch l1 refused 1 of 3 updates"
        assert list(refused.refused.values()) == ["RESOURCE_EXHAUSTED: the table is full"]
        assert [change.after for change in refused.refused] == [OTHER]
        assert {change.after for change in refused.done} == {BLACKHOLE, None}
        assert not on(report, "l2").done
        assert bench.switches["l2"].batches == []
        assert bench.registry.extra["l1"] != ()
        assert ("l1", DELETE, key_of(BLACKHOLE), False) in changes(await bench.configuration.plan(""))
        report = await bench.configuration.rollback(None)
        assert (report.applied, report.revision) == (True, 1)
        assert {name: switch.entries for name, switch in bench.switches.items()} == before

    async def test_a_switch_that_breaks_meanwhile(self, bench: Bench) -> None:
        bench.switches["l1"].breaks = True
        report = await bench.configuration.apply(self.TEXT)
        assert (report.applied, report.revision) == (False, 0)
        assert on(report, "l1").error == "switch l1 broke"
        assert on(report, "l1").done == set()
        bench.switches["l1"].breaks = False
        assert (await bench.configuration.apply(self.TEXT)).applied

    async def test_as_messages(self, bench: Bench) -> None:
        bench.switches["l1"].refuses = {OTHER}
        report = await bench.configuration.apply(self.TEXT)
        message = report_message(report, bench.configuration.vocabulary)
        assert not message.applied
        told = {change.key: (change.applied, change.error) for change in message.switches[0].changes}
        assert told == {
            f"{ROUTE}[dst_ip=10.8.0.0/16]": (False, "RESOURCE_EXHAUSTED: the table is full"),
            f"{ROUTE}[dst_ip=10.9.0.0/16]": (True, ""),
        }
        (group,) = message.switches[1].changes
        assert (group.what, group.key, group.after) == ("group", "multicast group 5000", "port 1 instance 1")
        assert not group.applied


class TestAway:
    async def test_a_switch_gets_its_part_when_it_is_back(self, bench: Bench) -> None:
        bench.switches["l1"].connected = False
        text = document("10.9.0.0/16", groups={"l2": {"5000": [1]}})
        for report in (await bench.configuration.plan(text), await bench.configuration.apply(text)):
            assert not on(report, "l1").connected
            assert on(report, "l1").state == "unreachable: it was unplugged"
            assert changes(report) == [("l2", ADD, ("group", 5000), False)]
        assert report.applied
        bench.switches["l1"].connected = True
        await bench.registry.manager.settle("l1")
        assert bench.switches["l1"].holds(BLACKHOLE)
        assert changes(await bench.configuration.plan("")) == []

    async def test_a_dead_spine_can_be_drained(self, bench: Bench) -> None:
        bench.switches["s2"].connected = False
        report = await bench.configuration.apply("drain: [s2]")
        assert report.applied
        assert {switch for switch, *_ in changes(report)} == {"l1", "l2"}
        assert bench.registry.drained == {"s2"}

    async def test_but_not_the_one_that_is_left(self, bench: Bench) -> None:
        bench.registry.links.state = LinkState(lost=frozenset({"s2"}))
        for call in (bench.configuration.plan, bench.configuration.apply):
            with pytest.raises(NotPossibleError, match=r"drain: then no spine joins l1, l2 .*s2 is away"):
                await call("drain: [s1]")
        assert bench.configuration.revisions() == []
        bench.registry.links.state = LinkState(lost=frozenset({"s1", "s2"}))  # that is no worse
        assert (await bench.configuration.apply("drain: [s1]")).applied


async def test_drain_moves_routes_and_comes_back(bench: Bench) -> None:
    before = {name: dict(switch.entries) for name, switch in bench.switches.items()}
    report = await bench.configuration.apply("drain: [s2]")
    assert report.settings == (Setting("drain", "s2", "", "drained"),)
    assert {(name, kind, key[0], drift) for name, kind, key, drift in changes(report)} == {
        ("l1", CHANGE, ECMP_MEMBER, False),
        ("l2", CHANGE, ECMP_MEMBER, False),
    }
    assert changes(await bench.configuration.plan("")) == []
    report = await bench.configuration.plan("{}")
    assert report.settings == (Setting("drain", "s2", "drained", ""),)
    await bench.configuration.rollback(0)
    assert {name: switch.entries for name, switch in bench.switches.items()} == before
    assert [revision.document for revision in bench.configuration.revisions()] == ["drain: [s2]", ""]


async def test_quotas_are_settings(bench: Bench) -> None:
    text = "quotas: {job_slots: 64, tenants: {a: {weight: 2}}}"
    configured = Setting("quota", "all", "as in the controller's configuration", "")
    weight, slots = (Setting("quota", "tenants.a.weight", "", "2.0"), Setting("quota", "job_slots", "", "64"))
    assert set((await bench.configuration.plan(text)).settings) == {configured, weight, slots}
    assert (await bench.configuration.apply(text)).revision == 1
    assert bench.registry.quotas == Quotas(job_slots=64, tenants={"a": TenantQuota(weight=2.0)})
    assert (await bench.configuration.plan(text)).settings == ()
    report = await bench.configuration.plan("quotas: {job_slots: ~, tenants: {a: {weight: 2}}}")
    assert report.settings == (Setting("quota", "job_slots", "64", "no limit"),)
    hosts = await bench.configuration.plan(
        "quotas: {job_slots: 64, tenants: {a: {weight: 2, hosts: [x, y]}}}"
    )
    assert hosts.settings == (Setting("quota", "tenants.a.hosts", "", "x, y"),)
    assert (await bench.configuration.apply("quotas: {job_slots: 65}")).revision == 2
    await bench.start()
    assert bench.registry.quotas == Quotas(job_slots=65)
    await bench.configuration.apply("{}")
    assert bench.registry.quotas is None


class TestRevisions:
    async def test_rollback_to_one_makes_a_new_one(self, bench: Bench) -> None:
        texts = [document("10.9.0.0/16"), document("10.8.0.0/16")]
        for text in texts:
            await bench.configuration.apply(text)
        report = await bench.configuration.rollback(1)
        assert (report.applied, report.revision) == (True, 3)
        assert bench.switches["l1"].holds(BLACKHOLE)
        revisions = bench.configuration.revisions()
        assert [revision.document for revision in revisions] == [*texts, texts[0]]
        messages = revision_messages(revisions).revisions
        assert [(m.number, m.current) for m in messages] == [(1, False), (2, False), (3, True)]
        report = await bench.configuration.rollback(1)  # what is in force is no news
        assert (report.applied, report.revision, changes(report)) == (True, 3, [])

    async def test_one_that_is_not_there(self, bench: Bench) -> None:
        with pytest.raises(NotFoundError, match="no revision 7"):
            await bench.configuration.rollback(7)

    async def test_a_wrong_document_makes_none(self, bench: Bench) -> None:
        with pytest.raises(DocumentError, match="line 1, drain"):
            await bench.configuration.apply("drain: [s7]")
        assert bench.configuration.revisions() == []
        assert bench.written() == {}

    async def test_the_database_fails(self, bench: Bench) -> None:
        bench.db.execute("ALTER TABLE revisions RENAME TO lost")
        with pytest.raises(sqlite3.Error):
            await bench.configuration.apply(document("10.9.0.0/16"))


class TestRestarts:
    async def test_the_document_stays_in_force(self, bench: Bench) -> None:
        await bench.configuration.apply(document("10.9.0.0/16", drain=["s2"]))
        await bench.start()
        assert bench.registry.drained == {"s2"}
        assert bench.switches["l1"].holds(BLACKHOLE)
        report = await bench.configuration.plan("")
        assert (changes(report), report.settings, report.revision) == ([], (), 1)

    async def test_a_fabric_that_it_does_not_fit(
        self, caplog: pytest.LogCaptureFixture, bench: Bench
    ) -> None:
        await bench.configuration.apply("drain: [s2]")
        smaller = replace(CONFIG, links=CONFIG.links[::2], switches=CONFIG.switches[:3])
        await bench.start(smaller)
        assert "revision 1 does not fit this fabric any more: line 1, drain" in caplog.text
        assert bench.registry.drained == frozenset()
        with pytest.raises(DocumentError, match="revision 1 does not fit"):
            await bench.configuration.plan("")
        report = await bench.configuration.apply("{}")
        assert (report.applied, report.revision) == (True, 2)
        assert changes(await bench.configuration.plan("")) == []

    async def test_another_program_is_replaced(self, bench: Bench) -> None:
        await bench.configuration.apply(document("10.9.0.0/16"))
        before = dict(bench.switches["l1"].entries)
        bench.switches["l1"].replaced = True
        report = await bench.configuration.plan("")
        assert on(report, "l1").replaced
        assert {change.drift for change in on(report, "l1").found.changes} == {True}
        assert len(on(report, "l1").found.changes) == len(before)
        report = await bench.configuration.apply("")
        assert bench.registry.pushed == ["l1"]
        assert report.applied
        assert bench.switches["l1"].entries == before
        message = report_message(report, bench.configuration.vocabulary).switches[0].changes[0]
        assert (message.kind, message.what, message.drift, message.applied) == (
            pb.Change.CHANGE,
            "pipeline",
            True,
            True,
        )


async def test_who_goes_away_while_it_is_applied_leaves_nothing_half_done(bench: Bench) -> None:
    bench.switches["l1"].going_on = asyncio.Event()
    text = document("10.9.0.0/16", groups={"l2": {"5000": [1]}})
    caller = asyncio.ensure_future(bench.configuration.apply(text))
    while not bench.switches["l1"].batches:
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    bench.switches["l1"].going_on.set()
    report = await bench.configuration.plan("")  # waits for its turn
    assert (report.revision, changes(report)) == (1, [])
    assert bench.switches["l2"].holds(Group(5000, ((1, 1),)))
