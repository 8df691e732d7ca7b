"""The difference from a switch as found to the switch as wanted, and the order of its updates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.api.messages import Mode
from controller.entries import Entry, Group, TableEntry, key_of, table_entry
from controller.fabric.routes import base_entries
from controller.fabric.tables.edges import EDGE_PORT
from controller.fabric.tables.emit import EMIT
from controller.fabric.tables.forward import ECMP_MEMBER, MAC, ROUTE
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.fabric.tables.tree import TREE_JOB
from controller.fabric.tables.tree_out import TREE_LINK
from controller.fabric.tables.up import UPLINK
from controller.fabric.trees import Tree, entries_on
from controller.jobs.specs import Plan
from controller.slots.allocator import Region
from controller.switches.difference import (
    Change,
    Stage,
    batch,
    deleting_stages,
    difference,
    flatten,
    writing_stages,
)
from controller.switches.updates import Update, UpdateKind
from tests.controller.bench import fabric, member
from tests.controller.running_switch import job

INSERT, MODIFY, DELETE = UpdateKind
KINDS = [EMIT, UPLINK, FLOW, TREE_JOB, MEMBER_QP, ECMP_MEMBER, ROUTE, MAC]


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Draw entries with keys of their own; keys and values are few, so that two lists have some in common."""
    keys = draw(st.sets(st.tuples(st.sampled_from([*KINDS, "group"]), st.integers(0, 3))))
    drawn: list[Entry] = []
    for kind, key in sorted(keys):
        value = draw(st.integers(0, 1))
        if kind == "group":
            drawn.append(Group(key, ((value, 1),)))
        else:
            drawn.append(table_entry(kind, {"key": key}, "action", value=value))
    return draw(st.permutations(drawn))


def made(found: list[Entry], updates: list[Update]) -> set[Entry]:
    """Return what a switch that held `found` holds after the updates."""
    switch = {key_of(entry): entry for entry in found}
    for update in updates:
        key = key_of(update.entry)
        assert (key in switch) == (update.kind is not INSERT)
        if update.kind is DELETE:
            assert switch.pop(key) == update.entry
        else:
            assert switch.get(key) != update.entry
            switch[key] = update.entry
    return set(switch.values())


def tables(stages: tuple[Stage, ...]) -> list[set[str]]:
    return [{entry.table for entry in stage} for stage in stages]


def route(number: int, port: int = 1) -> TableEntry:
    return table_entry(ROUTE, {"dst_ip": (number, 32)}, "next_hop", port=port)


@given(found=entries(), wanted=entries(), written=entries())
def test_the_difference_makes_the_switch_as_wanted(
    found: list[Entry], wanted: list[Entry], written: list[Entry]
) -> None:
    result = difference(found, wanted, {key_of(entry): entry for entry in written})
    by_kind = [Update(kind, e) for kind in (DELETE, MODIFY, INSERT) for e in flatten(result.stages(kind))]
    for updates in (batch(result.changes), by_kind):
        assert made(found, updates) == set(wanted)
        assert len(updates) == len(result.changes)
    assert result.unchanged == len(set(wanted) & set(found))
    assert not difference(wanted, wanted).changes


@given(found=entries(), wanted=entries())
def test_drift_is_what_nobody_wrote(found: list[Entry], wanted: list[Entry]) -> None:
    assert not any(change.drift for change in difference(found, wanted).changes)
    by_hand = difference(found, wanted, {key_of(entry): entry for entry in wanted})
    assert all(change.drift for change in by_hand.changes)


@given(found=entries(), wanted=entries())
def test_the_order_of_a_batch_is_safe(found: list[Entry], wanted: list[Entry]) -> None:
    updates = batch(difference(found, wanted).changes)
    written = [update.entry for update in updates if update.kind is not DELETE]
    deleted = [update.entry for update in updates if update.kind is DELETE]
    assert [update.entry for update in updates] == [*written, *deleted]  # new before old
    assert tuple(written) == flatten(writing_stages(written))
    assert tuple(deleted) == flatten(deleting_stages(deleted))


def test_each_kind() -> None:
    written = {key_of(entry): entry for entry in (route(1), route(2))}
    result = difference([route(1), route(2, port=9), route(4)], [route(1), route(2), route(3)], written)
    assert result.unchanged == 1
    assert set(result.changes) == {
        Change(route(2, port=9), route(2), drift=True),  # changed by hand
        Change(None, route(3), drift=False),  # new in the document
        Change(route(4), None, drift=True),  # added by hand
    }
    assert {change.kind for change in result.changes} == set(UpdateKind)


def test_deleted_by_hand() -> None:
    (change,) = difference([], [route(1)], {key_of(route(1)): route(1)}).changes
    assert change == Change(None, route(1), drift=True)


@given(entries())
def test_stages_hold_every_entry_once_in_the_order_given(given_entries: list[Entry]) -> None:
    for stages in (writing_stages(given_entries), deleting_stages(given_entries)):
        assert sorted(map(str, flatten(stages))) == sorted(map(str, given_entries))
        for stage in stages:
            assert list(stage) == [entry for entry in given_entries if entry in stage]


def test_a_job_is_written_from_its_group_to_its_guards_and_deleted_from_its_flows_to_its_guards() -> None:
    assert tables(writing_stages(reversed(job()))) == [{"group"}, {EMIT}, {FLOW}, {MEMBER_QP}]
    assert tables(deleting_stages(job())) == [{FLOW}, {EMIT}, {"group"}, {MEMBER_QP}]


def test_what_looks_up_is_written_last_and_deleted_first_on_leaves_too() -> None:
    config = fabric((2, 2), spines=2)
    tree = Tree.of(config, [member(config, rank, rank) for rank in range(3)])
    plan = Plan(job_id=1, generation=1, window=1, message_packets=2, path_mtu=256, mode=Mode.IN_NETWORK)
    entries = entries_on(config, tree, "l1", plan, Region(0, 0, 4), ["s1"])
    assert tables(writing_stages(entries)) == [{"group"}, {EMIT, UPLINK}, {FLOW, TREE_JOB}, {MEMBER_QP}]
    assert tables(deleting_stages(entries)) == [{FLOW, TREE_JOB}, {EMIT, UPLINK}, {"group"}, {MEMBER_QP}]


def test_routes_come_after_the_ways_that_they_choose_from() -> None:
    config = fabric((1, 1), spines=2)
    base = base_entries(config, config.switches[0])
    written = tables(writing_stages(base))
    assert written[-3:] == [{EDGE_PORT}, {ECMP_MEMBER}, {ROUTE, MAC, TREE_LINK}]
    deleted = tables(deleting_stages(base))
    assert deleted[0] == {ROUTE, MAC, TREE_LINK}
    assert deleted[-1] == {EDGE_PORT}, "no packet is forwarded that nobody knows where it came from"


def test_the_flood_group_outlives_the_entry_that_names_it() -> None:
    flood = table_entry(MAC, {"dst_mac": 0xFFFFFFFFFFFF}, "flood", group=1)
    group = Group(1, ((1, 1),))
    assert writing_stages([flood, group]) == ((group,), (flood,))
    assert deleting_stages([group, flood]) == ((flood,), (group,))
