from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.allocator import Region
from controller.api.messages import Mode
from controller.entries import Entry, Group, TableEntry, key_of, table_entry
from controller.flows import EMIT, FLOW, MEMBER_QP, TREE_JOB, UPLINK
from controller.recovery import Stage, compare, deleting_stages, flatten, writing_stages
from controller.routes import ECMP_MEMBER, EDGE_PORT, MAC, ROUTE, TREE_LINK, base_entries
from controller.specs import Plan
from controller.trees import Tree, entries_on
from tests.controller.running_switch import job
from tests.controller.spine_leaf import fabric, member

KINDS = [ROUTE, MAC, EMIT, FLOW, MEMBER_QP, TREE_JOB, UPLINK, ECMP_MEMBER]


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Entries with keys of their own; keys and values are few, so that two lists have some in common."""
    keys = draw(st.sets(st.tuples(st.sampled_from([*KINDS, "group"]), st.integers(0, 3))))
    drawn: list[Entry] = []
    for kind, key in sorted(keys):
        value = draw(st.integers(0, 1))
        if kind == "group":
            drawn.append(Group(key, ((value, 1),)))
        else:
            drawn.append(table_entry(kind, {"key": key}, "action", value=value))
    return draw(st.permutations(drawn))


def tables(stages: tuple[Stage, ...]) -> list[set[str]]:
    return [{e.table if isinstance(e, TableEntry) else "group" for e in stage} for stage in stages]


@given(entries(), entries())
def test_the_difference_makes_the_switch_as_wanted(found: list[Entry], wanted: list[Entry]) -> None:
    difference = compare(found, wanted)
    switch = {key_of(entry): entry for entry in found}
    for entry in flatten(difference.delete):
        del switch[key_of(entry)]
    for entry in flatten(difference.modify):
        assert switch[key_of(entry)] != entry
        switch[key_of(entry)] = entry
    for entry in flatten(difference.insert):
        assert key_of(entry) not in switch
        switch[key_of(entry)] = entry
    assert set(switch.values()) == set(wanted)
    if set(found) == set(wanted):
        assert (difference.delete, difference.modify, difference.insert) == ((), (), ())


@given(entries())
def test_stages_hold_every_entry_once_in_the_order_given(given_entries: list[Entry]) -> None:
    for stages in (writing_stages(given_entries), deleting_stages(given_entries)):
        assert sorted(map(str, flatten(stages))) == sorted(map(str, given_entries))
        for stage in stages:
            assert list(stage) == [entry for entry in given_entries if entry in stage]


def test_a_job_is_written_from_its_group_to_its_guards() -> None:
    assert tables(writing_stages(reversed(job()))) == [{"group"}, {EMIT}, {FLOW}, {MEMBER_QP}]


def test_a_job_is_deleted_from_its_flows_to_its_guards() -> None:
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
