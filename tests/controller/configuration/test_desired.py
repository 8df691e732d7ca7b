"""Documents: what they mean, and what is said about those that are wrong."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from controller.config import HostConfig, SwitchConfig
from controller.configuration.desired import Desired, parse
from controller.configuration.marked import DocumentError
from controller.configuration.vocabulary import Vocabulary
from controller.entries import Entry, Group, TableEntry, key_of, table_entry
from controller.fabric.flows import JOB_TABLES
from controller.fabric.graph import Graph
from controller.fabric.routes import rack_entries
from controller.fabric.tables.forward import ROUTE
from controller.slots.allocator import FLOOD_GROUP
from controller.switches.pipeline import shipped_program
from p4src import MAX_JOBS
from tests.controller.bench import fabric

SCHEMA = shipped_program().schema
VOCABULARY = Vocabulary(SCHEMA)
FABRIC = Graph.of(fabric((1, 1), spines=2))
BASE = {
    "l1": rack_entries(
        SwitchConfig(name="l1", device_id=1, address="127.0.0.1:1"),
        [HostConfig(name="h1", ip=IPv4Address("10.0.1.1"), mac="02:00:00:00:00:01", switch="l1", port=1)],
    )
}
HOP = {"port": 4, "src_mac": "02:70:00:01:00:04", "dst_mac": "02:00:00:00:00:04"}


def desired(text: str, graph: Graph = FABRIC) -> Desired:
    return parse(textwrap.dedent(text), graph, VOCABULARY, BASE)


def mistakes(text: str, graph: Graph = FABRIC) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        desired(text, graph)
    return str(caught.value).splitlines()


def entry_of(dst_ip: str = "10.9.0.0/16", **other: object) -> str:
    """Return a JSON document with one entry, all but the match right; `other` replaces parts of it."""
    entry = {"table": "route", "match": {"dst_ip": dst_ip}, "action": "next_hop", "params": HOP, **other}
    return json.dumps({"entries": {"l1": [entry]}})


def only_entry(text: str) -> Entry:
    (entry,) = desired(text).on("l1")
    return entry


def only_mistake(text: str, graph: Graph = FABRIC) -> str:
    (mistake,) = mistakes(text, graph)
    return mistake


class TestMeaning:
    def test_of_the_whole_document(self) -> None:
        found = desired(
            """
            # what is behind port 4 has no agent
            drain: [s2]
            quotas:
              job_slots: 2048
              tenants:
                vision: {weight: 2, slots: ~, hosts: [h1, h2]}
                other: {hosts: ~}
              preemption: true
            groups:
              l1:
                5000: [2, 1, {port: 3, instance: 7}]
            entries:
              l1:
                - table: SwitchIngress.forward.route
                  match: {dst_ip: 10.9.0.0/16}
                  action: SwitchIngress.forward.next_hop
                  params: {port: 4, src_mac: 02:70:00:01:00:04, dst_mac: 0x20000000004}
                - {table: mac, match: {dst_mac: 12:34:56:10:10:10}, action: flood, params: {group: 5000}}
            """
        )
        assert found.drain == {"s2"}
        assert found.quotas == {
            "job_slots": 2048,
            "tenants": {
                "vision": {"weight": 2.0, "slots": None, "hosts": ["h1", "h2"]},
                "other": {"hosts": None},
            },
            "preemption": True,
        }
        assert set(found.on("l1")) == {
            Group(5000, ((1, 1), (2, 1), (3, 7))),
            table_entry(
                ROUTE,
                {"dst_ip": (0x0A090000, 16)},
                "SwitchIngress.forward.next_hop",
                port=4,
                src_mac=0x027000010004,
                dst_mac=0x020000000004,
            ),
            # YAML 1.1 would make a number to the base of 60 of this MAC.
            table_entry(
                "SwitchIngress.forward.mac",
                {"dst_mac": 0x123456101010},
                "SwitchIngress.forward.flood",
                group=5000,
            ),
        }
        assert found.on("l2") == ()

    def test_of_the_documentations_example(self) -> None:
        page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
        (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        found = desired(example, Graph.of(fabric((1, 1), spines=3)))
        assert found.drain == {"s2", "l1:s3"}
        assert found.quotas is not None
        assert len(found.on("l1")) == 4

    @pytest.mark.parametrize(
        "text", ["", "# nothing yet\n", "{}", "drain:\nentries: ~\ngroups: {}\nquotas:\n"]
    )
    def test_nothing(self, text: str) -> None:
        assert desired(text).means(Desired())

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ("10.9.0.0/16", (0x0A090000, 16)),
            ("10.9.0.1", (0x0A090001, 32)),
            ("0x0a090001/32", (0x0A090001, 32)),
            ("0.0.0.0/0", (0, 0)),
        ],
    )
    def test_prefixes(self, text: str, match: tuple[int, int]) -> None:
        entry = only_entry(entry_of(text))
        assert isinstance(entry, TableEntry)
        assert entry.match == (("dst_ip", match),)

    def test_an_entry_is_what_a_switch_reads_back(self) -> None:
        for text in (entry_of(), entry_of("0.0.0.0/0"), '{"groups": {"l1": {"6000": [4, 2]}}}'):
            entry = only_entry(text)
            assert SCHEMA.decode(SCHEMA.encode(entry)) == entry

    def test_a_default_route_matches_on_nothing(self) -> None:
        """Check that there is no match then, as P4Runtime wants, rather than one of length 0."""
        assert not SCHEMA.encode(only_entry(entry_of("0.0.0.0/0"))).table_entry.match

    def test_json_with_tabs(self) -> None:
        assert desired(json.dumps(json.loads(entry_of()), indent="\t")).means(desired(entry_of()))

    def test_order_and_comments_mean_nothing(self) -> None:
        a = desired("drain: [s2, l2:s2]\ngroups: {l1: {6000: [1, 2], 6001: [1]}}")
        b = desired("groups: {l1: {6001: [1], 6000: [2, 1]}}\ndrain: [l2:s2, s2]  # for maintenance")
        assert a.means(b)
        assert not a.means(desired("drain: [s2]"))


class TestMistakes:
    def test_have_line_and_key_and_come_all_at_once(self) -> None:
        found = mistakes(
            """\
            drain: [s9]
            quotas:
              job_slots: many
              tenants: {a: {weight: 0}}
            entries:
              l1:
                - table: rout
                  match: {dst_ip: 10.9.0.0/16}
                  action: drop
                - table: route
                  match: {dst_ip: 10.9.0.300}
                  action: drop
              l7: []
            groups:
              l1:
                6000: [1, 511]
            groupz: 1
            """
        )
        places = [line.partition(": ")[0] for line in found]
        assert places == [
            "line 1, drain[0]",
            "line 3, quotas.job_slots",
            "line 4, quotas.tenants.a.weight",
            "line 7, entries.l1[0].table",
            "line 11, entries.l1[1].match.dst_ip",
            "line 13, entries.l7",
            "line 16, groups.l1.6000[1]",
            "line 17, groupz",
        ]

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("drain: [s1", "line 1"),
            ("entries: {l1: [}", "not YAML"),
            ("a: 1\n---\nb: 2", "line 2: not YAML"),
            ("drian: [s2]", "'drian' is not known here; known are drain, quotas, entries, groups"),
            ("- s2", "must be a mapping"),
            ("drain: s2", "line 1, drain: must be a list, not 's2'"),
            ("entries: [1]", "must be a mapping"),
            ("drain: [s2]\ndrain: [s1]", "line 2: 'drain' is given twice"),
            ("\x00", "not YAML"),
        ],
    )
    def test_of_form(self, text: str, says: str) -> None:
        assert says in only_mistake(text)

    def test_an_alias_of_itself_is_no_endless_loop(self) -> None:
        assert "alias *a is part of what it stands for" in only_mistake("entries: &a {l1: [*a]}\n")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (entry_of(table="by_chunks"), "there is no table 'by_chunks'; known are SwitchIngress."),
            (entry_of(table="nowhere"), "there is no table 'nowhere'"),
            (entry_of(action="to_port"), "there is no action of table SwitchIngress.forward.route 'to_port'"),
            (
                entry_of(match={"dst": "10.9.0.0/16"}),
                "there is no 'dst' here: table SwitchIngress.forward.route",
            ),
            (entry_of(match={}), "dst_ip is missing"),
            (entry_of(params={**HOP, "vlan": 1}), "there is no 'vlan' here"),
            (
                entry_of(params={"port": 4}),
                "src_mac, dst_mac are missing: action SwitchIngress.forward.next_hop",
            ),
            (entry_of(params={**HOP, "port": 512}), "512 does not fit: port has 9 bits, 0..511"),
            (entry_of(params={**HOP, "port": "10.0.0.1"}), "is an IPv4 address, port has 9 bits"),
            (entry_of(params={**HOP, "src_mac": "02:70:00:01:00"}), "is no MAC or number"),
            (entry_of("10.9.0.1/16"), "has bits set behind its prefix: that would be 10.9.0.0/16"),
            (entry_of("10.9.0.0/33"), "needs a prefix length from 0 to 32"),
            (entry_of("02:00:00:00:00:01"), "is a MAC, dst_ip has 32 bits"),
            (entry_of("h3"), "is no number or IPv4 address"),
            (entry_of(priority=3), "'priority' is not known here"),
            ('{"entries": {"l1": [{"table": "route"}]}}', "'match', 'action' are missing"),
            ('{"entries": {"l1": [7]}}', "must be a mapping (key: value), not '7'"),
        ],
    )
    def test_of_entries(self, text: str, says: str) -> None:
        assert says in only_mistake(text)

    def test_the_same_entry_twice(self) -> None:
        entry = "{table: route, match: {dst_ip: 10.9.0.0/16}, action: drop}"
        says = only_mistake(f"entries:\n  l1:\n    - {entry}\n    - {entry}\n")
        assert says.startswith("line 4, entries.l1[1]: ")
        assert says.endswith("is given on line 3 already")

    def test_all_of_one_entry(self) -> None:
        """Check that a wrong key, field or value hides no other."""
        found = mistakes(
            """
entries:
  l1:
    - table: route
      priority: 7
      match: {dst_ip: 10.9.0.0/40}
      action: next_hop
      params: {port: 600, src_mac: "02:70", dst_mac: "02:00:00:00:00:04", vlan: 3}
    - table: route
      match: {dst: 10.9.0.0/16}
      action: nowhere
    - {match: {}, aktion: next_hop}
groups:
  l1:
    10: [600, {port: 700, instance: -1}, {prot: 3}]
    none: [601]
quotas: {tenants: {red: {weight: -1, slots: x, color: 1}}, pre: true}
"""
        )
        expected = (
            "'priority' is not known here",
            "prefix length from 0 to 32",
            "600 does not fit",
            "'02:70' is no MAC",
            "there is no 'vlan' here",
            "there is no 'dst' here",
            "'nowhere'",
            "'aktion' is not known here",
            "'table', 'action' are missing",
            "groups 2..33 belong to the jobs",
            "600 is not within",
            "700 is not within",
            "-1 is not within",
            "'prot' is not known here",
            "'port' is missing",
            "'none' is no group",
            "601 is not within",
            "-1 is not above 0",
            "'x' is no whole number",
            "'color' is not known here",
            "'pre' is not known here",
        )
        for mistake in expected:
            assert sum(mistake in line for line in found) == 1, mistake
        assert [line for line in found if not any(mistake in line for mistake in expected)] == []

    @pytest.mark.slow
    def test_a_full_table(self) -> None:
        size = VOCABULARY.tables[ROUTE].size
        room = size - sum(key_of(entry)[0] == ROUTE for entry in BASE["l1"])
        lines = [
            f"    - {{table: route, match: {{dst_ip: {IPv4Address(0x0B000000 + n)}}}, action: drop}}"
            for n in range(room + 1)
        ]
        says = only_mistake("entries:\n  l1:\n" + "\n".join(lines))
        assert (
            says
            == f"line {room + 3}, entries.l1[{room}]: {ROUTE} on l1 is full: it has room for {size} entries"
        )

    def test_a_very_wrong_document_is_not_told_in_full(self) -> None:
        found = mistakes("entries: {l1: [" + ", ".join("7" for _ in range(1000)) + "]}")
        assert len("\n".join(found)) < 4000
        assert found[-1].startswith("... and ")


class TestWhatBelongsToOthers:
    def test_entries_of_the_fabric(self) -> None:
        says = only_mistake(entry_of("10.0.1.1/32"))
        assert "route[dst_ip=10.0.1.1/32] is the fabric's own on l1" in says
        desired(entry_of("10.0.1.0/24"))  # but hosts that are not there are the document's

    @pytest.mark.parametrize("table", [name for name in JOB_TABLES if name in VOCABULARY.tables])
    def test_tables_of_jobs(self, table: str) -> None:
        assert f"{table} belongs to the jobs" in only_mistake(entry_of(table=table))

    @pytest.mark.parametrize(
        ("group", "says"),
        [
            (FLOOD_GROUP, "is the fabric's own"),
            (FLOOD_GROUP + 1, "belong to the jobs"),
            (FLOOD_GROUP + MAX_JOBS, "belong to the jobs"),
            (FLOOD_GROUP + MAX_JOBS + 1, "says which generations the switch has had"),
            (64, "the fabric's own, for repeated partials"),
            (64 + 4 * 511 + 3, "the fabric's own, for repeated partials"),
            (0, "is not within 1..65535"),
            (65536, "is not within 1..65535"),
        ],
    )
    def test_groups(self, group: int, says: str) -> None:
        assert says in only_mistake(f"groups: {{l1: {{{group}: [1]}}}}")

    @pytest.mark.parametrize("group", [FLOOD_GROUP + MAX_JOBS + 2, 63, 64 + 4 * 512, 65535])
    def test_groups_that_are_free(self, group: int) -> None:
        assert desired(f"groups: {{l1: {{{group}: [1]}}}}").on("l1") == (Group(group, ((1, 1),)),)


class TestGroups:
    @pytest.mark.parametrize(
        ("replicas", "says"),
        [
            ("[]", "a group needs at least one port"),
            ("1", "must be a list, not '1'"),
            ("[1, 1]", "port 1 with instance 1 is given twice"),
            ("[255]", "port 255 is the CPU port"),
            ("[512]", "512 is not within 0..511"),
            ("[{instance: 3}]", "'port' is missing"),
            ("[{port: 1, instance: 65536}]", "65536 is not within 0..65535"),
            ("[one]", "'one' is no whole number"),
        ],
    )
    def test_wrong_replicas(self, replicas: str, says: str) -> None:
        assert says in only_mistake(f"groups: {{l1: {{6000: {replicas}}}}}")

    def test_a_name_is_no_group(self) -> None:
        assert "groups have numbers" in only_mistake("groups: {l1: {all: [1]}}")

    def test_an_entry_may_flood_to_what_there_is(self) -> None:
        flood = "{table: mac, match: {dst_mac: 01:00:5e:00:00:01}, action: flood, params: {group: %d}}"
        desired(f"entries: {{l1: [{flood % FLOOD_GROUP}]}}")
        says = only_mistake(f"entries: {{l1: [{flood % 6000}]}}\ngroups: {{l2: {{6000: [1]}}}}")
        assert "l1 has no group 6000: say under groups.l1" in says

    def test_one_mistake_is_told_once(self) -> None:
        flood = "{table: mac, match: {dst_mac: 01:00:5e:00:00:01}, action: flood, params: {group: 6000}}"
        only_mistake(f"entries: {{l1: [{flood}]}}\ngroups: {{l1: {{6000: []}}}}")


class TestDrain:
    @pytest.mark.parametrize(
        ("drain", "says"),
        [
            ("[l1]", "l1 is a leaf, its hosts have no other: spines and links can be drained, s1, s2, l1:s1"),
            ("[s3]", "'s3' is neither a spine nor a link; known are s1, s2, l1:s1, l1:s2, l2:s1, l2:s2"),
            ("[s2:l1]", "is neither a spine nor a link"),
            ("[s2, s2]", "s2 is given twice"),
            ("[s1, s2]", "leaves no way between l1 and l2"),
            ("[l1:s1, l2:s2]", "leaves no way between l1 and l2"),
            ("[s2, l2:s1]", "leaves no way between l1 and l2"),
        ],
    )
    def test_what_cannot_be(self, drain: str, says: str) -> None:
        assert says in only_mistake(f"drain: {drain}")

    @pytest.mark.parametrize("drain", [(), ("s1",), ("l1:s2",), ("s2", "l1:s2"), ("l1:s2", "l2:s2")])
    def test_what_can(self, drain: tuple[str, ...]) -> None:
        assert desired(f"drain: [{', '.join(drain)}]").drain == frozenset(drain)

    def test_racks_that_nothing_joins_are_not_parted(self) -> None:
        """Use l1 and l3 without a spine in common, whatever is drained."""
        whole = Graph.of(fabric((1, 1, 1), spines=2))
        links = tuple(link for link in whole.links if link.name not in ("l1:s2", "l3:s1"))
        chain = replace(whole, links=links)
        assert desired("drain: []", chain).drain == frozenset()
        assert "leaves no way between l2 and l3" in only_mistake("drain: [s2]", chain)

    def test_a_rack_has_nothing_to_drain(self) -> None:
        assert "this fabric has no spines" in only_mistake("drain: [s1]", Graph(("s1",), (), ()))


class TestQuotas:
    @pytest.mark.parametrize(
        ("quotas", "says"),
        [
            ("{job_slots: -1}", "-1 is not within"),
            ("{slots: 1}", "'slots' is not known here"),
            ("{tenants: {a: {weight: nan}}}", "nan is not above 0"),
            ("{tenants: {a: {weight: heavy}}}", "'heavy' is no number"),
            ("{tenants: {a: {share: 1}}}", "'share' is not known here"),
            ("{tenants: {'': {weight: 1}}}", "line 1, quotas: "),
            ("{tenants: {a: {hosts: h1}}}", "line 1, quotas.tenants.a.hosts: must be a list"),
            ("{tenants: {a: {hosts: []}}}", "quotas.tenants.a.hosts is [], not a list of names of hosts"),
            ("{preemption: yes}", "'yes' is neither true nor false"),
            ("7", "must be a mapping"),
        ],
    )
    def test_wrong_ones(self, quotas: str, says: str) -> None:
        assert says in only_mistake(f"quotas: {quotas}")

    def test_none_are_the_configurations(self) -> None:
        assert desired("quotas: ~").quotas is None
        assert desired("quotas: {}").quotas == {}
