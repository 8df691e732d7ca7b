"""The ring through the racks, and a job's entries on leaves and spines, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.messages import JobSpec, Mode
from controller.config import Config, Spread
from controller.entries import Entry, Group, TableEntry, key_of, table_entry
from controller.fabric.graph import ALL_UP, LinkState
from controller.fabric.tables.emit import EMIT, source_port
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.fabric.tables.tree import TREE_JOB, generation_of
from controller.fabric.tables.up import UPLINK
from controller.fabric.trees import Tree, chosen, entries_on, moved, spines_in_use
from controller.jobs.specs import Plan
from controller.orchestration.planning import check_spec, why_ring
from controller.slots.allocator import Region
from controller.switches.difference import writing_stages
from controller.switches.schema import Schema
from p4src import P4INFO_PATH
from tests.controller.bench import fabric, member
from tests.controller.running_switch import job as rack_job

PLAN = Plan(job_id=9, generation=9, window=2, message_packets=4, path_mtu=1024, mode=Mode.IN_NETWORK)
SCHEMA = Schema.read(P4INFO_PATH)
LEAF, SPINE = Region(1, 16, 16), Region(0, 0, 16)


def tree(config: Config, hosts: Sequence[int]) -> Tree:
    return Tree.of(config, [member(config, rank, host) for rank, host in enumerate(hosts)])


def params(entries: Sequence[Entry], table: str, action: str = "") -> list[dict[str, int]]:
    return [
        {**{k: v for k, v in e.match if isinstance(v, int)}, **dict(e.params)}
        for e in entries
        if isinstance(e, TableEntry) and e.table == table and e.action.endswith(action)
    ]


# Three hosts a leaf: h1 h2 h3 behind l1, h4 h5 h6 behind l2, h7 h8 h9 behind l3.
BIG = fabric((3, 3, 3), spines=2, spread=Spread.MESSAGES)


@pytest.mark.parametrize(
    ("hosts", "ring", "leaves"),
    [
        ((0, 1, 2), (0, 1, 2), ("l1",)),
        ((0, 3, 1, 4), (0, 2, 1, 3), ("l1", "l2")),
        ((6, 0, 7, 3, 1), (0, 2, 1, 4, 3), ("l3", "l1", "l2")),
        ((8, 4, 0), (0, 1, 2), ("l3", "l2", "l1")),
    ],
)
def test_the_ring_goes_through_one_rack_after_the_other(
    hosts: tuple[int, ...], ring: tuple[int, ...], leaves: tuple[str, ...]
) -> None:
    made = tree(BIG, hosts)
    assert (made.ring, made.leaves) == (ring, leaves)
    assert made.spines(ALL_UP) == (() if len(leaves) == 1 else ("s1", "s2"))


@settings(deadline=None)
@given(st.permutations(range(9)), st.integers(1, 9))
def test_as_few_flows_as_possible_leave_racks(order: list[int], size: int) -> None:
    hosts = order[:size]
    made = tree(BIG, hosts)
    assert sorted(made.ring) == list(range(size))
    racks = [hosts[rank] // 3 for rank in made.ring]
    crossing = sum(racks[i] != racks[i - 1] for i in range(size))
    assert crossing == (0 if len(set(racks)) == 1 else len(set(racks)))


def test_a_leafs_entries() -> None:
    """Put ranks 0 and 2 behind l1, 1 behind l2: flow 0 -> 2 stays, 2 -> 1 leaves, 1 -> 0 enters."""
    config = fabric((2, 2), spines=2, spread=Spread.MESSAGES)
    made = tree(config, (0, 2, 1))
    zero, one, two = (member(config, rank, host) for rank, host in enumerate((0, 2, 1)))
    entries = entries_on(config, made, "l1", PLAN, LEAF, ["s1", "s2"])
    group = LEAF.group
    assert [entry for entry in entries if isinstance(entry, Group)] == [Group(group, ((1, 2), (2, 1)))]
    assert params(entries, EMIT) == [
        {  # rank 0's, to rank 2
            "group": group,
            "rid": 1,
            "rank": 0,
            "psn_shift": 0,
            "src_mac": 0x027000010002,
            "dst_mac": 0x02000A000102,
            "src_ip": int(zero.ip),
            "dst_ip": int(two.ip),
            "udp_src_port": source_port(zero.qpn_out),
            "dest_qp": two.qpn_in,
        },
        {  # rank 1's enters, in the place of rank 2's, which leaves
            "group": group,
            "rid": 2,
            "rank": 1,
            "psn_shift": 8,
            "src_mac": 0x027000010001,
            "dst_mac": 0x02000A000101,
            "src_ip": int(one.ip),
            "dst_ip": int(zero.ip),
            "udp_src_port": source_port(one.qpn_out),
            "dest_qp": zero.qpn_in,
        },
    ]
    common = {"all_ranks": 3, "region": 16, "window_mask": 3, "packets_shift": 2, "group": group}
    assert params(entries, TREE_JOB) == [
        {"ingress_port": port, "generation": 9, "flow": 33, "psn_shift": 8, **common} for port in (101, 102)
    ]
    assert [(p["bucket"], p["port"], p["index"]) for p in params(entries, UPLINK)] == [
        (bucket, 101 + bucket % 2, bucket % 2) for bucket in range(16)
    ]
    data = params(entries, FLOW, "data_flow")
    assert [(p["ingress_port"], p["src_ip"], p["dst_ip"], p["dest_qp"]) for p in data] == [
        (1, int(zero.ip), int(two.ip), two.qpn_in),
        (2, int(two.ip), int(one.ip), one.qpn_in),
    ]
    keys = ("flow", "rank", "rank_bit", "psn_shift", "first_psn", "two_level", "exit_psn_shift")
    assert [tuple(p[key] for key in keys) for p in data] == [
        (32, 0, 1, 0, 0, 1, 8),
        (33, 2, 2, 8, 2000, 1, 8),
    ]
    assert all(p.items() >= common.items() for p in data)
    assert [
        (p["ingress_port"], p["src_ip"], p["dst_ip"], p["dest_qp"], p["flow"], p["first_psn"])
        for p in params(entries, FLOW, "ack_flow")
    ] == [
        (2, int(two.ip), int(zero.ip), zero.qpn_out, 32, 0),
        (101, int(one.ip), int(two.ip), two.qpn_out, 33, 2000),
        (102, int(one.ip), int(two.ip), two.qpn_out, 33, 2000),
    ]
    assert [tuple(p.values()) for p in params(entries, FLOW, "pass_on")] == [
        (101, int(one.ip), int(zero.ip), zero.qpn_in),
        (102, int(one.ip), int(zero.ip), zero.qpn_in),
        (1, int(zero.ip), int(one.ip), one.qpn_out),
    ]
    assert [tuple(p.values()) for p in params(entries, MEMBER_QP)] == [
        (int(two.ip), two.qpn_in, 32),
        (int(zero.ip), zero.qpn_out, 32),
        (int(one.ip), one.qpn_in, 33),
        (int(two.ip), two.qpn_out, 33),
        (int(zero.ip), zero.qpn_in, 33),
        (int(one.ip), one.qpn_out, 33),
    ]


def test_a_spines_entries() -> None:
    """Check racks in the order of the ring: l3, l1, l2."""
    made = tree(BIG, (6, 0, 3))
    entries = entries_on(BIG, made, "s2", PLAN, SPINE, [])
    assert entries[0] == Group(2, ((1, 2), (2, 3), (3, 1)))
    assert [tuple(p.values()) for p in params(entries, EMIT)] == [
        (2, 1, 1, 4, 16),
        (2, 2, 2, 1, 0),
        (2, 3, 4, 2, 8),
    ]
    assert entries[4:] == [
        table_entry(
            TREE_JOB,
            {"ingress_port": port, "generation": 9},
            "SwitchIngress.tree.from_leaf",
            flow=k,
            rank=k,
            rank_bit=1 << k,
            all_ranks=7,
            region=0,
            window_mask=3,
            packets_shift=2,
            psn_shift=8 * k,
            group=2,
        )
        for k, port in enumerate((3, 1, 2))
    ]


def test_a_rack_of_one_worker_has_the_flow_that_enters_in_the_place_of_its_own() -> None:
    config = fabric((1, 1), spines=1)
    entries = entries_on(config, tree(config, (0, 1)), "l2", PLAN, LEAF, ["s1"])
    assert entries[16] == Group(LEAF.group, ((1, 1),))
    (emit,) = params(entries, EMIT)
    assert (emit["rid"], emit["rank"], emit["psn_shift"]) == (1, 0, 0)
    (data,) = params(entries, FLOW, "data_flow")
    assert (data["all_ranks"], data["rank"], data["rank_bit"], data["exit_psn_shift"]) == (1, 1, 1, 0)


def test_a_single_rack_is_as_it_was() -> None:
    """Check a fabric without uplinks, and a leaf that has some."""
    for config in (fabric((4,), spines=0), fabric((4, 1), spines=2)):
        entries = entries_on(config, tree(config, (0, 1, 2)), "l1", PLAN, SPINE, [])
        tables = [entry.table if isinstance(entry, TableEntry) else "group" for entry in entries]
        assert tables == ["group", *[EMIT] * 3, *[FLOW] * 6, *[MEMBER_QP] * 6]
        assert entries[0] == Group(2, ((1, 3), (2, 1), (3, 2)))
        for p in params(entries, FLOW, "data_flow"):
            assert (p["two_level"], p["exit_psn_shift"], p["all_ranks"]) == (0, 0, 7)
    assert [type(entry) for entry in rack_job()] == [type(entry) for entry in entries]


@settings(deadline=None, max_examples=40)
@given(st.permutations(range(9)), st.integers(2, 9), st.integers(1, 2))
def test_no_two_entries_of_a_switch_have_the_same_key(order: list[int], size: int, spines: int) -> None:
    config = fabric((3, 3, 3), spines=spines)
    made = tree(config, order[:size])
    names = made.spines(ALL_UP)
    for name in (*made.leaves, *names):
        entries = entries_on(config, made, name, PLAN, LEAF, names)
        assert len({key_of(entry) for entry in entries}) == len(entries)
        assert len(writing_stages(entries)) <= 4
        for entry in entries:
            assert SCHEMA.decode(SCHEMA.encode(entry)) == entry


def test_another_spine_changes_the_choice_and_nothing_else() -> None:
    made = tree(BIG, (0, 3))
    entries = entries_on(BIG, made, "l1", PLAN, LEAF, ["s1", "s2"])
    after = moved(made.graph, "l1", LEAF, entries, ["s2"])
    changed = set(after) - set(entries)
    assert {key_of(entry) for entry in after} == {key_of(entry) for entry in entries}
    assert [(p["bucket"], p["port"], p["index"]) for p in params(sorted(changed, key=str), UPLINK)] != []
    assert {p["bucket"] for p in params(list(changed), UPLINK)} == set(range(0, 16, 2))
    assert spines_in_use(made.graph, "l1", entries) == ("s1", "s2")
    assert spines_in_use(made.graph, "l1", after) == ("s2",)
    assert moved(made.graph, "l1", LEAF, after, []) == after
    assert set(moved(made.graph, "l1", LEAF, after, ["s1", "s2"])) == set(entries)


def test_jobs_take_turns_and_keep_to_one_spine() -> None:
    config = fabric((2, 2), spines=3)
    made, names = tree(config, (0, 2)), ("s1", "s2", "s3")
    using = {}
    for generation in range(9, 12):
        plan = replace(PLAN, generation=generation)
        entries = entries_on(config, made, "l1", plan, LEAF, names)
        (using[generation],) = spines_in_use(made.graph, "l1", entries)
        assert entries_on(config, made, "l2", plan, LEAF, names) != entries
        assert generation_of(entries) == generation
    assert sorted(using.values()) == ["s1", "s2", "s3"]
    for generation, spine in using.items():
        others = [name for name in names if name != spine]
        (instead,) = chosen(Spread.JOBS, made.graph, others, generation)
        assert instead in others
        assert chosen(Spread.JOBS, made.graph, names, generation) == (spine,)
        assert chosen(Spread.MESSAGES, made.graph, others, generation) == tuple(others)
        assert chosen(Spread.JOBS, made.graph, (), generation) == ()


def test_what_a_fabric_cannot_add_up() -> None:
    wide = fabric((32, 32), spines=1)
    members = [member(wide, rank, rank) for rank in range(64)]
    assert why_ring(wide, JobSpec(name="j", world_size=64), members) == ""
    crowded = [member(wide, rank, 0, qp=4 * rank) for rank in range(33)] + [member(wide, 33, 40)]
    assert "32 workers at most, the job has 33 behind l1" in why_ring(
        wide, JobSpec(name="j", world_size=34), crowded
    )
    check_spec(wide, JobSpec(name="j", world_size=64, mode=Mode.IN_NETWORK))
    with pytest.raises(Exception, match="a fabric of this size adds up for 2 to 64 workers, not 65"):
        check_spec(wide, JobSpec(name="j", world_size=65, mode=Mode.IN_NETWORK))
    assert tree(wide, (0, 32)).spines(LinkState(drained=frozenset({"s1"}))) == ()
