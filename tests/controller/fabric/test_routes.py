"""A switch's own entries: those of a rack as ever, those of a leaf and a spine exactly."""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import chain, combinations

import pytest

from controller.config import Config
from controller.entries import Entry, Group, TableEntry, key_of, table_entry
from controller.fabric.graph import ALL_UP, LinkState
from controller.fabric.routes import base_entries
from controller.fabric.tables.edges import EDGE_PORT
from controller.fabric.tables.forward import ECMP_MEMBER, MAC, ROUTE
from controller.switches.difference import difference
from controller.switches.schema import Schema
from controller.switches.updates import UpdateKind
from p4src import P4INFO_PATH
from tests.controller.bench import fabric

SMALL = fabric((2, 1), spines=2)


def of(config: Config, name: str, state: LinkState = ALL_UP) -> list[Entry]:
    return base_entries(config, config.switch(name), state)


def route(address: str, action: str, **params: int) -> TableEntry:
    return table_entry(
        ROUTE, {"dst_ip": (int(IPv4Address(address)), 32)}, f"SwitchIngress.forward.{action}", **params
    )


def mac(address: int, action: str, **params: int) -> TableEntry:
    return table_entry(MAC, {"dst_mac": address}, f"SwitchIngress.forward.{action}", **params)


def behind(port: int, ip: int) -> TableEntry:
    return table_entry(EDGE_PORT, {"ingress_port": port}, "SwitchIngress.edges.host_port", ip=ip)


def rack_of_l1() -> list[Entry]:
    return [
        Group(1, ((1, 1), (2, 1))),
        route("10.0.1.1", "next_hop", port=1, src_mac=0x027000010001, dst_mac=0x02000A000101),
        mac(0x02000A000101, "to_port", port=1),
        behind(1, 0x0A000101),
        route("10.0.1.2", "next_hop", port=2, src_mac=0x027000010002, dst_mac=0x02000A000102),
        mac(0x02000A000102, "to_port", port=2),
        behind(2, 0x0A000102),
        mac(0xFFFFFFFFFFFF, "flood", group=1),
    ]


def test_a_rack_has_routes_and_addresses_and_nothing_else() -> None:
    assert of(fabric((2,), spines=0), "l1") == rack_of_l1()


def test_a_leaf() -> None:
    entries = of(SMALL, "l1")
    assert entries[:8] == rack_of_l1()
    edge, over = "SwitchIngress.edges.port", "SwitchEgress.tree_out.link"
    addresses = {"src_ip": 0xA9FE0001}
    assert set(entries[8:]) == {
        table_entry(edge, {"ingress_port": 101}, "SwitchIngress.edges.fabric_port"),
        table_entry(edge, {"ingress_port": 102}, "SwitchIngress.edges.fabric_port"),
        table_entry(
            over,
            {"egress_port": 101},
            "SwitchEgress.tree_out.over",
            src_mac=0x027000010065,
            dst_mac=0x027000650001,
            **addresses,
            dst_ip=0xA9FE0065,
        ),
        table_entry(
            over,
            {"egress_port": 102},
            "SwitchEgress.tree_out.over",
            src_mac=0x027000010066,
            dst_mac=0x027000660001,
            **addresses,
            dst_ip=0xA9FE0066,
        ),
        Group(68, ((1, 101), (101, 100))),
        Group(69, ((1, 101), (102, 100))),
        Group(72, ((2, 101), (101, 100))),
        Group(73, ((2, 101), (102, 100))),
        member(0, 101, 0x027000010065, 0x027000650001),
        member(1, 102, 0x027000010066, 0x027000660001),
        route("10.0.2.1", "ecmp", group=2, size=2),
    }
    assert len(entries) == 8 + 11


def member(index: int, port: int, src_mac: int, dst_mac: int) -> TableEntry:
    return table_entry(
        ECMP_MEMBER,
        {"group": 2, "index": index},
        "SwitchIngress.forward.next_hop",
        port=port,
        src_mac=src_mac,
        dst_mac=dst_mac,
    )


def test_a_spine_has_one_way_to_each_host() -> None:
    entries = of(SMALL, "s2")
    routes = [entry for entry in entries if isinstance(entry, TableEntry) and entry.table == ROUTE]
    assert routes == [
        route("10.0.1.1", "next_hop", port=1, src_mac=0x027000660001, dst_mac=0x027000010066),
        route("10.0.1.2", "next_hop", port=1, src_mac=0x027000660001, dst_mac=0x027000010066),
        route("10.0.2.1", "next_hop", port=2, src_mac=0x027000660002, dst_mac=0x027000020066),
    ]
    assert len(entries) == 3 + 2 * 2  # what the port is, and what leaves by it
    assert not any(isinstance(entry, Group) for entry in entries), "nothing is flooded between racks"


def over(config: Config, name: str, state: LinkState) -> dict[int, list[int]]:
    """Return the ports of each group's members."""
    ports: dict[int, list[int]] = {}
    for entry in of(config, name, state):
        if isinstance(entry, TableEntry) and entry.table == ECMP_MEMBER:
            ports.setdefault(int(dict(entry.match)["group"]), []).append(dict(entry.params)["port"])  # type: ignore[arg-type]
    return ports


@pytest.mark.parametrize(
    ("state", "ports"),
    [
        (ALL_UP, {2: {101, 102}, 3: {101, 102}}),
        (LinkState(down=frozenset({"l1:s1"})), {2: {102}, 3: {102}}),
        (LinkState(down=frozenset({"l3:s1"})), {2: {101, 102}, 3: {102}}),
        (LinkState(lost=frozenset({"s2"})), {2: {101}, 3: {101}}),
        (LinkState(drained=frozenset({"s2"})), {2: {101}, 3: {101}}),
        (LinkState(drained=frozenset({"l2:s2"})), {2: {101}, 3: {101, 102}}),
        (LinkState(down=frozenset({"l1:s1", "l1:s2"})), {2: {101, 102}, 3: {101, 102}}),
        (LinkState(down=frozenset({"l1:s1"}), drained=frozenset({"s2"})), {2: {101}, 3: {101}}),
        (LinkState(drained=frozenset({"s1", "s2"})), {2: {101, 102}, 3: {101, 102}}),
    ],
)
def test_routes_go_over_what_both_leaves_can_use(state: LinkState, ports: dict[int, set[int]]) -> None:
    config = fabric((1, 1, 1), spines=2)
    assert {group: set(its) for group, its in over(config, "l1", state).items()} == ports


@pytest.mark.parametrize("spines", [1, 2, 3, 4])
def test_a_failure_modifies_members_and_nothing_else(spines: int) -> None:
    config = fabric((2, 1, 1), spines=spines)
    before = of(config, "l1")
    names = config.spines
    for lost in chain.from_iterable(combinations(names, n) for n in range(spines)):
        state = LinkState(lost=frozenset(lost))
        changed = difference(before, of(config, "l1", state)).changes
        assert {(change.kind, change.entry.table) for change in changed} <= {(UpdateKind.MODIFY, ECMP_MEMBER)}
        for ports in over(config, "l1", state).values():
            loads = [ports.count(port) for port in set(ports)]
            assert len(loads) == spines - len(lost)
            assert len(set(loads)) == 1, "each way takes the same part"


@pytest.mark.parametrize("config", [fabric((3,), spines=0), SMALL, fabric((8,) * 8, spines=4)])
def test_all_of_it_is_what_the_program_takes(config: Config) -> None:
    schema = Schema.read(P4INFO_PATH)
    for switch in config.switches:
        entries = of(config, switch.name)
        assert len({key_of(entry) for entry in entries}) == len(entries)
        for entry in entries:
            assert schema.decode(schema.encode(entry)) == entry
