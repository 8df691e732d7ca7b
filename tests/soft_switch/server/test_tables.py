"""Writes and reads of table entries: keys, priorities, actions, defaults, constant tables, batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import p4r
from hypothesis import given
from hypothesis import strategies as st

from soft_switch.description import Exact, KeyField, Lpm, Optional_, Range, Ternary

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane

ROUTES, VLANS, ACL, CLASSES, ALWAYS, PRESET = range(0x02000001, 0x02000007)
FORWARD, DROP, _, COUNT, SET_CLASS = range(0x01000001, 0x01000006)
NO_ACTION = 0x01445B37  # p4c's own choice


def action(action_id: int, *values: bytes) -> p4r.TableAction:
    params = [p4r.Action.Param(param_id=index, value=value) for index, value in enumerate(values, 1)]
    return p4r.TableAction(action=p4r.Action(action_id=action_id, params=params))


def exact(field_id: int, value: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, exact=p4r.FieldMatch.Exact(value=value))


def lpm(field_id: int, value: bytes, prefix_len: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=prefix_len))


def ternary(field_id: int, value: bytes, mask: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, ternary=p4r.FieldMatch.Ternary(value=value, mask=mask))


def optional(field_id: int, value: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, optional=p4r.FieldMatch.Optional(value=value))


def range_(field_id: int, low: bytes, high: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, range=p4r.FieldMatch.Range(low=low, high=high))


TEN = b"\x0a\0\0\0"
MAC = b"\x02\0\0\0\0\1"
FORWARD_3 = action(FORWARD, b"\3", MAC)


def route(value: bytes = TEN, prefix_len: int = 8, **fields: Any) -> p4r.TableEntry:
    fields = {"action": FORWARD_3, **fields}
    return p4r.TableEntry(table_id=ROUTES, match=[lpm(1, value, prefix_len)], **fields)


def rule(*match: p4r.FieldMatch, priority: int = 1, **fields: Any) -> p4r.TableEntry:
    fields = {"action": action(DROP), **fields}
    return p4r.TableEntry(table_id=ACL, match=[exact(1, b"\1"), *match], priority=priority, **fields)


def read_table(controller: Controller, table_id: int, **fields: Any) -> list[p4r.TableEntry]:
    request = p4r.Entity(table_entry=p4r.TableEntry(table_id=table_id, **fields))
    return [entity.table_entry for entity in controller.read(request)]


def why(controller: Controller, kind: str, entry: p4r.TableEntry) -> str:
    """Return code and message of the one update a write is refused for."""
    refusal = controller.refused(getattr(controller, kind), table_entry=entry)
    assert refusal.code == "UNKNOWN"
    assert refusal.message.startswith("Write failure: 1 of 1 failed")
    (detail,) = refusal.details
    assert detail.space == "soft_switch"
    return f"{refusal.codes[0]}: {detail.message}"


# What is written reaches the data plane and reads back as it was


def test_lpm(controller: Controller, plane: FakePlane) -> None:
    controller.insert(table_entry=route())
    expected = ((Lpm(0x0A000000, 8),), 0, "ingress.forward", (3, 0x020000000001))
    assert list(plane.entries["ingress.ipv4_lpm"].values()) == [expected]
    assert read_table(controller, ROUTES) == [route()]


def test_exact_in_any_order(controller: Controller, plane: FakePlane) -> None:
    entry = p4r.TableEntry(
        table_id=VLANS, match=[exact(1, b"\1"), exact(2, b"\x0f\xff")], action=action(NO_ACTION)
    )
    controller.insert(table_entry=entry)
    assert next(iter(plane.entries["ingress.vlans"].values()))[0] == (Exact(0xFFF), Exact(1))
    (answer,) = read_table(controller, VLANS)
    assert {match.field_id: match.exact.value for match in answer.match} == {1: b"\1", 2: b"\x0f\xff"}


def test_ternary_optional_range_and_priority(controller: Controller, plane: FakePlane) -> None:
    entry = rule(
        ternary(2, TEN, b"\xff\0\0\0"), optional(3, b"\x11"), range_(4, b"\x12\xb7", b"\x12\xb8"), priority=70
    )
    controller.insert(table_entry=entry)
    key = (Exact(1), Ternary(0x0A000000, 0xFF000000), Optional_(17), Range(4791, 4792))
    assert next(iter(plane.entries["ingress.acl"].values()))[:2] == (key, 70)
    assert read_table(controller, ACL) == [entry]


def test_dont_care_is_left_out_both_ways(controller: Controller, plane: FakePlane) -> None:
    controller.insert(table_entry=rule())
    key = (Exact(1), Ternary(0, 0), Optional_(None), Range(0, 0xFFFF))
    assert next(iter(plane.entries["ingress.acl"].values()))[0] == key
    assert read_table(controller, ACL) == [rule()]
    everything = p4r.TableEntry(table_id=ROUTES, action=FORWARD_3)
    controller.insert(table_entry=everything)
    assert next(iter(plane.entries["ingress.ipv4_lpm"].values()))[0] == (Lpm(0, 0),)
    assert read_table(controller, ROUTES) == [everything]


def test_leading_zeros_are_taken_and_answered_canonically(controller: Controller) -> None:
    padded = action(FORWARD, b"\0\0\3", b"\0\0" + MAC)
    controller.insert(table_entry=route(b"\0\0" + TEN, action=padded))
    assert read_table(controller, ROUTES) == [route()]
    assert why(controller, "insert", route()).startswith("ALREADY_EXISTS")


def test_zero_is_one_zero_byte(controller: Controller) -> None:
    controller.insert(table_entry=route(b"\0", 8, action=action(FORWARD, b"\0\0", b"\0")))
    (answer,) = read_table(controller, ROUTES)
    assert answer.match[0].lpm.value == b"\0"
    assert [param.value for param in answer.action.action.params] == [b"\0", b"\0"]


@given(
    value=st.integers(0, 2**32 - 1), mask=st.integers(1, 2**32 - 1), low=st.integers(0, 2**16 - 1),
    high=st.integers(0, 2**16 - 1), protocol=st.none() | st.integers(0, 255),
)  # fmt: skip
def test_every_key_reads_back_as_it_was_written(
    value: int, mask: int, low: int, high: int, protocol: int | None
) -> None:
    """Read-write symmetry, without the network."""
    from soft_switch.server.bytestrings import encode
    from soft_switch.server.keys import format_key, parse_key
    from soft_switch.server.schema import Table

    fields = (
        KeyField("t", "ternary", 32, 1),
        KeyField("r", "range", 16, 2),
        KeyField("o", "optional", 8, 3),
    )
    table = Table(1, "t", fields, {}, False, False, False, False, False)
    low, high = min(low, high), max(low, high)
    messages = [ternary(1, encode(value & mask), encode(mask))]
    if (low, high) != (0, 0xFFFF):
        messages.append(range_(2, encode(low), encode(high)))
    if protocol is not None:
        messages.append(optional(3, encode(protocol)))
    key = parse_key(table, messages)
    assert key == (Ternary(value & mask, mask), Range(low, high), Optional_(protocol))
    assert format_key(table, key) == messages


# Updates


def test_modify_changes_the_action_and_keeps_the_entry(controller: Controller, plane: FakePlane) -> None:
    controller.insert(table_entry=route())
    handle = next(iter(plane.entries["ingress.ipv4_lpm"]))
    controller.modify(table_entry=route(action=action(DROP)))
    assert plane.entries["ingress.ipv4_lpm"] == {handle: ((Lpm(0x0A000000, 8),), 0, "ingress.drop", ())}
    assert read_table(controller, ROUTES) == [route(action=action(DROP))]


def test_modify_without_an_action_keeps_it(controller: Controller) -> None:
    controller.insert(table_entry=route(metadata=b"old"))
    entry = route(metadata=b"new")
    entry.ClearField("action")
    controller.modify(table_entry=entry)
    assert read_table(controller, ROUTES) == [route(metadata=b"new")]


def test_delete_looks_at_the_key_only(controller: Controller, plane: FakePlane) -> None:
    controller.insert(table_entry=route())
    controller.delete(table_entry=route(action=action(0x01FFFFFF, b""), idle_timeout_ns=-1))
    assert plane.entries["ingress.ipv4_lpm"] == {}
    assert read_table(controller, ROUTES) == []
    assert why(controller, "delete", route()) == (
        "NOT_FOUND: table ingress.ipv4_lpm has no entry with this match key and priority"
    )
    assert why(controller, "modify", route()).startswith("NOT_FOUND")


def test_entries_with_one_key_and_two_priorities_are_two(controller: Controller) -> None:
    controller.insert(table_entry=rule(priority=1))
    controller.insert(table_entry=rule(priority=2))
    controller.delete(table_entry=rule(priority=1))
    assert read_table(controller, ACL) == [rule(priority=2)]
    assert why(controller, "delete", rule(priority=3)).startswith("NOT_FOUND")


def test_cookies_are_kept(controller: Controller) -> None:
    entry = route(metadata=b"\0anything", controller_metadata=2**64 - 1)
    controller.insert(table_entry=entry)
    assert read_table(controller, ROUTES) == [entry]


def test_a_full_table(controller: Controller) -> None:
    for number in range(4):
        controller.insert(table_entry=route(bytes([number + 1, 0, 0, 0])))
    assert why(controller, "insert", route(b"\x09\0\0\0")) == (
        "RESOURCE_EXHAUSTED: table ingress.ipv4_lpm is full: it holds 4 entries"
    )
    controller.delete(table_entry=route(b"\1\0\0\0"))
    controller.insert(table_entry=route(b"\x09\0\0\0"))


def test_a_defect_of_the_data_plane_is_internal(controller: Controller) -> None:
    text = why(controller, "insert", route(action=action(COUNT)))
    assert text == "INTERNAL: the data plane failed: RuntimeError('a defect in the data plane')"
    assert read_table(controller, ROUTES) == []


BAD_INSERTS = [
    (p4r.TableEntry(), "INVALID_ARGUMENT: the table id is missing (0)"),
    (p4r.TableEntry(table_id=0x0200FFFF), "INVALID_ARGUMENT: there is no table with id 0x0200ffff in the P"),
    (p4r.TableEntry(table_id=DROP), "INVALID_ARGUMENT: id 0x01000002 is not a table, it is action ingress."),
    (route(TEN, 0), "INVALID_ARGUMENT: table ingress.ipv4_lpm, match field hdr.ipv4.dst: prefix length 0 m"),
    (route(TEN, 33), "INVALID_ARGUMENT: table ingress.ipv4_lpm, match field hdr.ipv4.dst: prefix length 33"),
    (route(TEN, -1), "INVALID_ARGUMENT: table ingress.ipv4_lpm, match field hdr.ipv4.dst: prefix length -1"),
    (route(b"\x0a\0\0\1", 8), "INVALID_ARGUMENT: table ingress.ipv4_lpm, match field hdr.ipv4.dst: value "
                              "0xa000001 has bits set behind its prefix of 8 bits"),
    (route(b"\1" + TEN, 8), "INVALID_ARGUMENT: table ingress.ipv4_lpm, match field hdr.ipv4.dst is "
                            "0x10a000000, which does not fit within 32 bits"),
    (route(b"", 8), "INVALID_ARGUMENT: table ingress.ipv4_lpm, match field hdr.ipv4.dst is an empty byte s"),
    (route(priority=1), "INVALID_ARGUMENT: table ingress.ipv4_lpm: priority 1, but its key has no ternary"),
    (rule(priority=0), "INVALID_ARGUMENT: table ingress.acl: zero priority, but its key has a ternary"),
    (rule(priority=-1), "INVALID_ARGUMENT: table ingress.acl: priority -1 is negative"),
    (rule(ternary(2, b"\0", b"\0")), "INVALID_ARGUMENT: table ingress.acl, match field hdr.ipv4.src: mask"),
    (rule(ternary(2, b"\3", b"\1")), "INVALID_ARGUMENT: table ingress.acl, match field hdr.ipv4.src: value "
                                     "0x3 has bits set outside its mask 0x1"),
    (rule(ternary(2, b"\1", b"")), "INVALID_ARGUMENT: table ingress.acl, match field hdr.ipv4.src, mask is"),
    (rule(range_(4, b"\2", b"\1")), "INVALID_ARGUMENT: table ingress.acl, match field hdr.udp.dst_port: low "
                                    "0x2 is greater than high 0x1"),
    (rule(range_(4, b"\0", b"\xff\xff")), "INVALID_ARGUMENT: table ingress.acl, match field "
                                          "hdr.udp.dst_port: the range is everything"),
    (rule(range_(4, b"\0", b"\1\0\0")), "INVALID_ARGUMENT: table ingress.acl, match field hdr.udp.dst_port, "
                                        "high is 0x10000, which does not fit within 16 bits"),
    (rule(optional(3, b"\1\0")), "INVALID_ARGUMENT: table ingress.acl, match field hdr.ipv4.protocol is 0x"),
    (rule(exact(3, b"\1")), "INVALID_ARGUMENT: table ingress.acl, match field hdr.ipv4.protocol is optional, "
                            "but the request gives exact"),
    (rule(p4r.FieldMatch(field_id=3)), "INVALID_ARGUMENT: table ingress.acl, match field hdr.ipv4.protocol "
                                       "is optional, but the request gives no match"),
    (rule(exact(1, b"\1")), "INVALID_ARGUMENT: table ingress.acl: match field 1 is given twice"),
    (rule(exact(9, b"\1")), "INVALID_ARGUMENT: table ingress.acl has no match field 9; its fields are 1 (s"),
    (p4r.TableEntry(table_id=VLANS, match=[exact(1, b"\1")], action=action(NO_ACTION)),
     "INVALID_ARGUMENT: table ingress.vlans: exact match field meta.vlan (2) is missing"),
    (p4r.TableEntry(table_id=ROUTES, match=[lpm(1, TEN, 8)]),
     "INVALID_ARGUMENT: table ingress.ipv4_lpm: an INSERT needs an action"),
    (route(action=p4r.TableAction()), "INVALID_ARGUMENT: table ingress.ipv4_lpm takes a direct action, the "
                                      "request gives none"),
    (route(action=p4r.TableAction(action_profile_member_id=1)),
     "INVALID_ARGUMENT: table ingress.ipv4_lpm takes a direct action, the request gives action_profile_mem"),
    (route(action=action(0)), "INVALID_ARGUMENT: the action id is missing (0)"),
    (route(action=action(0x0100FFFF)), "INVALID_ARGUMENT: there is no action with id 0x0100ffff"),
    (route(action=action(SET_CLASS, b"\1")), "INVALID_ARGUMENT: action ingress.set_class is not one of table "
                                             "ingress.ipv4_lpm's actions"),
    (route(action=action(NO_ACTION)), "PERMISSION_DENIED: table ingress.ipv4_lpm: action NoAction is @defa"),
    (route(action=action(FORWARD, b"\1")), "INVALID_ARGUMENT: action ingress.forward: parameter mac (2) is"),
    (route(action=action(FORWARD, b"\1", MAC, b"\1")), "INVALID_ARGUMENT: action ingress.forward has no pa"),
    (route(action=action(FORWARD, b"\2\0", MAC)), "INVALID_ARGUMENT: action ingress.forward, parameter port "
                                                  "is 0x200, which does not fit within 9 bits"),
    (route(action=action(FORWARD, b"", MAC)), "INVALID_ARGUMENT: action ingress.forward, parameter port is"),
    (route(is_const=True), "INVALID_ARGUMENT: table ingress.ipv4_lpm: is_const is the switch's to set"),
    (route(idle_timeout_ns=1), "INVALID_ARGUMENT: table ingress.ipv4_lpm: idle_timeout_ns: the program dec"),
    (route(time_since_last_hit=p4r.TableEntry.IdleTimeout()),
     "INVALID_ARGUMENT: table ingress.ipv4_lpm: time_since_last_hit is the switch's to set"),
    (route(meter_config=p4r.MeterConfig()), "INVALID_ARGUMENT: table ingress.ipv4_lpm has no direct meter"),
    (rule(counter_data=p4r.CounterData()), "INVALID_ARGUMENT: table ingress.acl has no direct counter"),
    (route(counter_data=p4r.CounterData(packet_count=-1)),
     "INVALID_ARGUMENT: a counter cannot be negative: -1 packets, 0 bytes"),
    (p4r.TableEntry(table_id=ALWAYS, action=action(DROP)),
     "INVALID_ARGUMENT: table ingress.always has no key, so it has a default entry only"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "text"), BAD_INSERTS, ids=[text[:100] for _, text in BAD_INSERTS])
def test_a_bad_insert(controller: Controller, plane: FakePlane, entry: p4r.TableEntry, text: str) -> None:
    assert why(controller, "insert", entry).startswith(text)
    assert not any(plane.entries.values())


def test_an_action_parameter_given_twice(controller: Controller) -> None:
    twice = action(FORWARD, b"\1", MAC)
    twice.action.params.add(param_id=1, value=b"\2")
    assert why(controller, "insert", route(action=twice)) == (
        "INVALID_ARGUMENT: action ingress.forward: a parameter is given twice"
    )


# Default entries


def test_the_default_entry_is_the_programs(controller: Controller) -> None:
    (default,) = read_table(controller, ALWAYS, is_default_action=True)
    assert default == p4r.TableEntry(
        table_id=ALWAYS, is_default_action=True, action=action(FORWARD, b"\1", b"\x02\0\0\0\0\1")
    )
    (default,) = read_table(controller, CLASSES, is_default_action=True)
    assert default == p4r.TableEntry(
        table_id=CLASSES, is_default_action=True, action=action(DROP), is_const=True
    )
    (default,) = read_table(controller, PRESET, is_default_action=True)
    assert default == p4r.TableEntry(table_id=PRESET, is_default_action=True, action=action(DROP))


def test_set_and_reset_the_default_entry(controller: Controller, plane: FakePlane) -> None:
    default = p4r.TableEntry(
        table_id=ROUTES, is_default_action=True, action=FORWARD_3, metadata=b"m", controller_metadata=5
    )
    controller.modify(table_entry=default)
    assert plane.defaults["ingress.ipv4_lpm"] == ("ingress.forward", (3, 0x020000000001))
    assert read_table(controller, ROUTES, is_default_action=True) == [default]
    assert read_table(controller, ROUTES) == []
    controller.modify(table_entry=p4r.TableEntry(table_id=ROUTES, is_default_action=True))
    assert plane.defaults["ingress.ipv4_lpm"] is None
    assert read_table(controller, ROUTES, is_default_action=True) == [
        p4r.TableEntry(table_id=ROUTES, is_default_action=True, action=action(NO_ACTION))
    ]


BAD_DEFAULTS = [
    ("insert", {}, "INVALID_ARGUMENT: table ingress.ipv4_lpm: the default entry is always there"),
    ("delete", {}, "INVALID_ARGUMENT: table ingress.ipv4_lpm: the default entry is always there"),
    ("modify", {"match": [lpm(1, TEN, 8)]}, "INVALID_ARGUMENT: table ingress.ipv4_lpm: the default entry h"),
    ("modify", {"priority": 1}, "INVALID_ARGUMENT: table ingress.ipv4_lpm: the default entry has no priori"),
    ("modify", {"action": action(COUNT)}, "PERMISSION_DENIED: table ingress.ipv4_lpm: action ingress.count "
                                          "is @tableonly, it cannot be the default action"),
    ("modify", {"table_id": CLASSES}, "PERMISSION_DENIED: table ingress.classes has a constant default act"),
    ("modify", {"counter_data": p4r.CounterData()}, "UNIMPLEMENTED: table ingress.ipv4_lpm: direct resourc"),
    ("modify", {"idle_timeout_ns": 1}, "INVALID_ARGUMENT: table ingress.ipv4_lpm: idle_timeout_ns"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "text"), BAD_DEFAULTS)
def test_a_bad_default(controller: Controller, kind: str, fields: dict[str, Any], text: str) -> None:
    entry = p4r.TableEntry(
        **{"table_id": ROUTES, "is_default_action": True, "action": action(DROP), **fields}
    )
    assert why(controller, kind, entry).startswith(text)


# Entries of the program


def class_entry(value: bytes, mask: bytes, priority: int, class_: bytes, **fields: Any) -> p4r.TableEntry:
    return p4r.TableEntry(
        table_id=CLASSES,
        match=[ternary(1, value, mask)],
        priority=priority,
        action=action(SET_CLASS, class_),
        **fields,
    )


def test_entries_of_a_constant_table_can_be_read(controller: Controller) -> None:
    first = class_entry(b"\x2e", b"\x3f", 2, b"\7", is_const=True)
    second = class_entry(b"\x08", b"\x38", 1, b"\1", is_const=True)
    assert read_table(controller, CLASSES) == [first, second]
    assert read_table(controller, CLASSES, priority=1) == [second]


def test_a_constant_table_refuses_writes(controller: Controller) -> None:
    entry = class_entry(b"\x2e", b"\x3f", 2, b"\7")
    text = "PERMISSION_DENIED: table ingress.classes is constant: its entries are part of the program"
    assert why(controller, "insert", class_entry(b"\1", b"\1", 9, b"\7")) == text
    assert why(controller, "delete", entry) == text
    assert why(controller, "modify", entry) == (
        "PERMISSION_DENIED: table ingress.classes is constant: "
        "only direct resources of its entries can be modified"
    )


def test_direct_counters_of_a_constant_table_can_be_written(controller: Controller, plane: FakePlane) -> None:
    entry = class_entry(b"\x2e", b"\x3f", 2, b"\7", counter_data=p4r.CounterData(packet_count=3))
    entry.ClearField("action")
    controller.modify(table_entry=entry)
    assert plane.direct == {("ingress.classes", 0): (3, 0)}


def test_initial_entries_that_are_not_constant(controller: Controller, plane: FakePlane) -> None:
    first = p4r.TableEntry(
        table_id=PRESET,
        match=[lpm(1, TEN, 8), optional(2, b"\x11"), range_(3, b"\x12\xb7", b"\x12\xb8")],
        priority=2,
        action=action(SET_CLASS, b"\3"),
    )
    second = p4r.TableEntry(table_id=PRESET, priority=1, action=action(DROP))
    assert read_table(controller, PRESET) == [first, second]
    assert why(controller, "insert", second).startswith("ALREADY_EXISTS")
    first.action.CopyFrom(action(DROP))
    controller.modify(table_entry=first)
    controller.delete(table_entry=second)
    assert read_table(controller, PRESET) == [first]
    assert ("ingress.preset", 1) not in plane.program_handles


# Reads


@pytest.fixture
def filled(controller: Controller) -> Controller:
    """Return a controller that has written a few entries."""
    controller.insert(table_entry=route(b"\1\0\0\0", metadata=b"a"))
    controller.insert(table_entry=route(b"\2\0\0\0", action=action(DROP), controller_metadata=4))
    controller.insert(table_entry=rule(priority=1))
    controller.insert(table_entry=rule(priority=2))
    controller.insert(table_entry=rule(optional(3, b"\6"), priority=2))
    return controller


def test_all_entries_of_all_tables(filled: Controller) -> None:
    entries = read_table(filled, 0)
    assert [entry.table_id for entry in entries] == [ROUTES] * 2 + [ACL] * 3 + [CLASSES] * 2 + [PRESET] * 2
    assert not any(entry.is_default_action for entry in entries)


def test_all_default_entries(filled: Controller) -> None:
    entries = read_table(filled, 0, is_default_action=True)
    assert [entry.table_id for entry in entries] == [ROUTES, VLANS, ACL, CLASSES, ALWAYS, PRESET]
    assert all(entry.is_default_action for entry in entries)


def test_filters(filled: Controller) -> None:
    assert read_table(filled, ACL, priority=2) == [rule(priority=2), rule(optional(3, b"\6"), priority=2)]
    assert read_table(filled, ROUTES, action=action(DROP)) == [
        route(b"\2\0\0\0", action=action(DROP), controller_metadata=4)
    ]
    assert read_table(filled, ROUTES, metadata=b"a") == [route(b"\1\0\0\0", metadata=b"a")]
    assert len(read_table(filled, ROUTES, controller_metadata=4)) == 1
    assert read_table(filled, ROUTES, match=[lpm(1, b"\1\0\0\0", 8)]) == [route(b"\1\0\0\0", metadata=b"a")]
    assert read_table(filled, ROUTES, match=[lpm(1, b"\1\0\0\0", 9)]) == []
    assert read_table(filled, ACL, match=[exact(1, b"\1"), optional(3, b"\6")]) == [
        rule(optional(3, b"\6"), priority=2)
    ]
    assert read_table(filled, ACL, match=[exact(1, b"\1")], priority=1) == [rule(priority=1)]
    assert read_table(filled, ACL, match=[exact(1, b"\1")], priority=9) == []


BAD_READS = [
    ({"table_id": 0x0200FFFF}, "INVALID_ARGUMENT: there is no table with id 0x0200ffff"),
    ({"match": [lpm(1, TEN, 8)]}, "INVALID_ARGUMENT: a read with match fields needs a table id"),
    ({"table_id": ROUTES, "match": [lpm(1, TEN, 0)]}, "INVALID_ARGUMENT: table ingress.ipv4_lpm, match fie"),
    ({"table_id": ROUTES, "time_since_last_hit": p4r.TableEntry.IdleTimeout()},
     "INVALID_ARGUMENT: table ingress.ipv4_lpm: time_since_last_hit: the program declares no idle timeout"),
    ({"table_id": ROUTES, "is_default_action": True, "priority": 1},
     "INVALID_ARGUMENT: table ingress.ipv4_lpm: the default entry has no priority"),
    ({"table_id": ROUTES, "action": p4r.TableAction(action_profile_member_id=1)},
     "INVALID_ARGUMENT: table ingress.ipv4_lpm: a read can select entries by action id only"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "text"), BAD_READS)
def test_a_bad_read(filled: Controller, fields: dict[str, Any], text: str) -> None:
    refusal = filled.refused(filled.read, p4r.Entity(table_entry=p4r.TableEntry(**fields)))
    assert refusal.code == "UNKNOWN"
    assert refusal.message.startswith(f"Read failure: 1 of 1 failed, first number 0: {text}")
    assert f"{refusal.codes[0]}: {refusal.details[0].message}".startswith(text)


def test_a_read_answers_what_it_can(filled: Controller) -> None:
    """The entities of the good requests come before the status that lists the bad ones."""
    request = p4r.ReadRequest(
        device_id=1,
        entities=[
            p4r.Entity(table_entry=p4r.TableEntry(table_id=ROUTES)),
            p4r.Entity(),
            p4r.Entity(table_entry=p4r.TableEntry(table_id=ACL)),
        ],
    )
    stream = iter(filled.stub.Read(request))
    assert len(next(stream).entities) == 5
    refusal = filled.refused(filled.read, *request.entities)
    assert refusal.codes == ["OK", "INVALID_ARGUMENT", "OK"]
    assert refusal.details[1].message == "the entity is not set"


def test_an_empty_read_is_one_empty_response(controller: Controller) -> None:
    assert controller.read_responses() == [p4r.ReadResponse()]
    request = p4r.Entity(table_entry=p4r.TableEntry(table_id=ROUTES))
    assert controller.read_responses(request) == [p4r.ReadResponse()]


def test_a_large_read_comes_in_pieces(controller: Controller) -> None:
    cookie = bytes(60_000)
    for number in range(100):
        match = [exact(1, b"\1"), exact(2, bytes([number + 1]))]
        entry = p4r.TableEntry(table_id=VLANS, match=match, action=action(NO_ACTION), metadata=cookie)
        controller.insert(table_entry=entry)
    responses = controller.read_responses(p4r.Entity(table_entry=p4r.TableEntry(table_id=VLANS)))
    assert sum(len(response.entities) for response in responses) == 100
    assert len(responses) >= 6
    assert all(response.ByteSize() < 1 << 21 for response in responses)


# Direct counters


def test_counter_data_is_set_with_the_entry_and_read_on_request(
    controller: Controller, plane: FakePlane
) -> None:
    data = p4r.CounterData(packet_count=5, byte_count=600)
    controller.insert(table_entry=route(counter_data=data))
    assert read_table(controller, ROUTES) == [route()]
    wanted = p4r.CounterData()
    assert read_table(controller, ROUTES, counter_data=wanted) == [route(counter_data=data)]
    controller.modify(table_entry=route(action=action(DROP)))
    (handle,) = plane.entries["ingress.ipv4_lpm"]
    assert plane.direct["ingress.ipv4_lpm", handle] == (5, 600)
    data.packet_count = 6
    controller.modify(table_entry=route(counter_data=data))
    assert plane.direct["ingress.ipv4_lpm", handle] == (6, 600)
    assert len(read_table(controller, 0, counter_data=wanted)) == 5  # tables without counters too


def test_direct_counter_entries(controller: Controller, plane: FakePlane) -> None:
    first, second = route(b"\1\0\0\0"), route(b"\2\0\0\0")
    controller.insert(table_entry=first)
    controller.insert(table_entry=second)
    data = p4r.CounterData(packet_count=7, byte_count=2**63 - 1)
    controller.modify(direct_counter_entry=p4r.DirectCounterEntry(table_entry=second, data=data))
    key = p4r.TableEntry(table_id=ROUTES, match=second.match)
    expected = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=key, data=data))
    request = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=key))
    assert controller.read(request) == [expected]
    controller.modify(direct_counter_entry=p4r.DirectCounterEntry(table_entry=second))  # no data: no change
    assert controller.read(request) == [expected]
    whole = p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=ROUTES))
    answers = controller.read(p4r.Entity(direct_counter_entry=whole))
    assert [answer.direct_counter_entry.data.packet_count for answer in answers] == [0, 7]
    answers = controller.read(p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry()))
    assert [answer.direct_counter_entry.table_entry.table_id for answer in answers] == (
        [ROUTES] * 2 + [CLASSES] * 2
    )


BAD_DIRECT = [
    ("insert", p4r.DirectCounterEntry(table_entry=route()), "INVALID_ARGUMENT: a direct counter lives and"),
    ("delete", p4r.DirectCounterEntry(table_entry=route()), "INVALID_ARGUMENT: a direct counter lives and"),
    ("modify", p4r.DirectCounterEntry(), "INVALID_ARGUMENT: a direct counter is named by its table entry"),
    ("modify", p4r.DirectCounterEntry(table_entry=rule()), "INVALID_ARGUMENT: table ingress.acl has no dir"),
    ("modify", p4r.DirectCounterEntry(table_entry=route()), "NOT_FOUND: table ingress.ipv4_lpm has no entry"),
    ("modify", p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=ROUTES, is_default_action=True)),
     "UNIMPLEMENTED: table ingress.ipv4_lpm: direct counters count entries"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "entry", "text"), BAD_DIRECT)
def test_a_bad_direct_counter_write(
    controller: Controller, kind: str, entry: p4r.DirectCounterEntry, text: str
) -> None:
    refusal = controller.refused(getattr(controller, kind), direct_counter_entry=entry)
    assert f"{refusal.codes[0]}: {refusal.details[0].message}".startswith(text)


def test_a_direct_counter_that_is_not_there(controller: Controller) -> None:
    request = p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=ROUTES, match=[lpm(1, TEN, 8)]))
    refusal = controller.refused(controller.read, p4r.Entity(direct_counter_entry=request))
    assert refusal.codes == ["NOT_FOUND"]


# Batches


def test_a_batch_goes_on_after_errors(controller: Controller) -> None:
    updates = [
        p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=route(b"\1\0\0\0"))),
        p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=route(b"\1\0\0\0"))),
        p4r.Update(type=p4r.Update.UNSPECIFIED, entity=p4r.Entity(table_entry=route())),
        p4r.Update(type=p4r.Update.INSERT),
        p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=route(b"\2\0\0\0"))),
        p4r.Update(type=p4r.Update.DELETE, entity=p4r.Entity(table_entry=route(b"\3\0\0\0"))),
    ]
    refusal = controller.refused(controller.write, *updates)
    assert refusal.code == "UNKNOWN"
    assert refusal.message == (
        "Write failure: 4 of 6 failed, first number 1: ALREADY_EXISTS: "
        "table ingress.ipv4_lpm has this entry already: use MODIFY to change it"
    )
    assert refusal.codes == [
        "OK", "ALREADY_EXISTS", "INVALID_ARGUMENT", "INVALID_ARGUMENT", "OK", "NOT_FOUND"
    ]  # fmt: skip
    assert [detail.message for detail in refusal.details[:1]] == [""]
    assert refusal.details[2].message == "the update type is not set: it is INSERT, MODIFY or DELETE"
    assert refusal.details[3].message == "the entity is not set"
    assert len(read_table(controller, ROUTES)) == 2


def test_an_empty_batch_changes_nothing(controller: Controller) -> None:
    controller.insert(table_entry=route())
    before = read_table(controller, ROUTES)
    controller.write()
    assert len(before) == 1
    assert read_table(controller, ROUTES) == before


def test_a_batch_with_very_many_errors_keeps_its_codes(controller: Controller) -> None:
    updates = [p4r.Update(type=p4r.Update.DELETE, entity=p4r.Entity(table_entry=route()))] * 500
    refusal = controller.refused(controller.write, *updates)
    assert refusal.codes == ["NOT_FOUND"] * 500
    assert refusal.details[0].message
    assert not refusal.details[-1].message
