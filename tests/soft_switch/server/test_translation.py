"""Types with `@p4runtime_translation`: what a controller writes, what the data plane gets, what is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import p4d, p4r, rpc_code
from google.protobuf import text_format

from soft_switch.dataplane import DataPlane
from soft_switch.description import Exact, Lpm, Optional_, Range, Ternary
from soft_switch.server import P4RuntimeServer
from tests.conformance.bmv2 import BMV2, running_bmv2
from tests.conformance.ways import served
from tests.soft_switch.server.features import why
from tests.soft_switch.server.translated import (
    BALANCE,
    BALANCED,
    FIXED,
    LAST,
    MASKS,
    NOP,
    PAINT,
    PER_PORT,
    PORTS,
    PREFIXES,
    ROUTES,
    SEND,
    SEND_TO,
    SET_TINY,
    SET_VRF,
    TINY,
    WHOLE,
    between,
    call,
    does,
    entry,
    exact,
    in_sixteen_bits,
    optional,
    prefix,
    route,
    ternary,
    translated,
    whole,
)

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane, Switch


@pytest.fixture
def controller(switch: Switch) -> Controller:
    """Return the primary of a switch that runs the program with translated types."""
    controller = switch.connect()
    controller.become_primary()
    controller.set_config(config=translated())
    return controller


def read(controller: Controller, request: p4r.TableEntry) -> list[p4r.TableEntry]:
    return [entity.table_entry for entity in controller.read(p4r.Entity(table_entry=request))]


def written(plane: FakePlane, table: str) -> list[object]:
    """Return the keys in the data plane's table, with their actions' arguments."""
    return [(match, params) for match, _, _, params in plane.entries[table].values()]


# Numbers of another width


def test_numbers_keep_their_value_in_the_data_planes_width(controller: Controller, plane: FakePlane) -> None:
    """A key of 32 bits for the controller is one of 9 bits for packets; leading zeros are dropped."""
    message = entry(PORTS, exact(1, b"\0\0\x01\x2c"), action=does(NOP))
    controller.insert(table_entry=message)
    assert written(plane, "In.ports") == [((Exact(300),), ())]
    canonical = entry(PORTS, exact(1, b"\x01\x2c"), action=does(NOP))
    assert read(controller, p4r.TableEntry(table_id=PORTS)) == [canonical]
    assert read(controller, entry(PORTS, exact(1, b"\0\x01\x2c"))) == [canonical]
    controller.delete(table_entry=canonical)
    assert not written(plane, "In.ports")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (entry(PORTS, exact(1, b"\x02\0"), action=does(NOP)),
         "INVALID_ARGUMENT: table In.ports, match field port is 0x200, which does not fit within the 9 bits "
         "that port_t has in the data plane"),
        (entry(PORTS, exact(1, b"\1\0\0\0\0"), action=does(NOP)),
         "INVALID_ARGUMENT: table In.ports, match field port is 0x100000000, which does not fit within 32 b"),
        (entry(PORTS, exact(1, b""), action=does(NOP)),
         "INVALID_ARGUMENT: table In.ports, match field port is an empty byte string"),
        (route(b"blue", does(SEND, b"\x02\0")),
         "INVALID_ARGUMENT: action In.send, parameter port is 0x200, which does not fit within the 9 bits "),
        (entry(MASKS, between(2, b"\5", b"\xff\xff\xff\xff"), action=does(NOP), priority=1),
         "INVALID_ARGUMENT: table In.masks, match field range, high is 0xffffffff, which does not fit withi"),
        (entry(MASKS, between(2, b"\0", b"\x01\xff"), action=does(NOP), priority=1),
         "INVALID_ARGUMENT: table In.masks, match field range: the range is everything, leave the field out"),
        (entry(MASKS, ternary(1, b"\1", b"\x01\xff"), action=does(NOP), priority=1),
         "INVALID_ARGUMENT: table In.masks, match field port: mask 0x1ff: port_t has 9 bits in the data plan"
         "e, so the bits beyond have to be as the highest of these: 0xffffffff would do"),
        (entry(MASKS, ternary(1, b"\1", b"\x02"), action=does(NOP), priority=1),
         "INVALID_ARGUMENT: table In.masks, match field port: value 0x1 has bits set outside its mask 0x2"),
        (entry(PREFIXES, prefix(1, b"\0", 23), action=does(NOP)),
         "INVALID_ARGUMENT: table In.prefixes, match field port: prefix length 23 is not within 24 to 32"),
        (entry(PREFIXES, prefix(1, b"\1", 31), action=does(NOP)),
         "INVALID_ARGUMENT: table In.prefixes, match field port: value 0x1 has bits set behind its prefix"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit(controller: Controller, message: p4r.TableEntry, text: str) -> None:
    assert why(controller, "insert", table_entry=message).startswith(text)


@pytest.mark.parametrize(
    ("match", "key"),
    [
        ([ternary(1, b"\x01\x2c", b"\xff\xff\xff\xff")], (Ternary(300, 0x1FF), Range(0, 0x1FF))),
        ([ternary(1, b"\x2c", b"\xff")], (Ternary(0x2C, 0xFF), Range(0, 0x1FF))),
        ([ternary(1, b"\x01\0", b"\xff\xff\xff\0")], (Ternary(0x100, 0x100), Range(0, 0x1FF))),
        ([between(2, b"\5", b"\x01\xfe")], (Ternary(0, 0), Range(5, 0x1FE))),
    ],
)
def test_masks_and_ranges_are_read_as_written(
    controller: Controller, plane: FakePlane, match: list[p4r.FieldMatch], key: tuple[object, ...]
) -> None:
    """A mask's bits beyond the data plane's are as the highest of these: all ones stay all ones."""
    message = entry(MASKS, *match, action=does(NOP), priority=1)
    controller.insert(table_entry=message)
    assert written(plane, "In.masks") == [(key, ())]
    assert read(controller, entry(MASKS, *match)) == [message]


@pytest.mark.parametrize(("length", "bits"), [(32, 9), (24, 1)])
def test_a_prefix_counts_the_controllers_bits(
    controller: Controller, plane: FakePlane, length: int, bits: int
) -> None:
    message = entry(PREFIXES, prefix(1, b"\x01\0", length), action=does(NOP))
    controller.insert(table_entry=message)
    assert written(plane, "In.prefixes") == [((Lpm(0x100, bits),), ())]
    assert read(controller, p4r.TableEntry(table_id=PREFIXES)) == [message]


def test_a_type_that_is_wider_in_the_data_plane(switch: Switch) -> None:
    """Check 8 bits for the controller and 9 for packets: masks and prefixes have the ninth in front."""
    config = translated()
    config.p4info.type_info.new_types["port_t"].translated_type.sdn_bitwidth = 8
    controller = switch.connect()
    controller.become_primary()
    controller.set_config(config=config)
    masked = entry(MASKS, ternary(1, b"\1", b"\xff"), action=does(NOP), priority=1)
    routed = entry(PREFIXES, prefix(1, b"\x80", 1), action=does(NOP))
    for message in (masked, routed):
        controller.insert(table_entry=message)
        assert read(controller, p4r.TableEntry(table_id=message.table_id)) == [message]
    assert written(switch.plane, "In.masks") == [((Ternary(1, 0x1FF), Range(0, 0x1FF)), ())]
    assert written(switch.plane, "In.prefixes") == [((Lpm(0x80, 2),), ())]


def test_entries_of_the_program_are_read_as_the_controller_sees_them(controller: Controller) -> None:
    (message,) = read(controller, p4r.TableEntry(table_id=FIXED))
    assert message == entry(FIXED, exact(1, b"\x01\x2c"), action=does(NOP), is_const=True)


# Strings


def test_strings_are_read_as_written(controller: Controller, plane: FakePlane) -> None:
    """Check that a string is one number wherever a type has it; the program's mapping gives some."""
    messages = [
        route(b"blue", does(SEND_TO, b"Ethernet0")),
        entry(ROUTES, exact(1, b""), optional(2, b"Ethernet0"), action=does(SEND_TO, b"17"), priority=2),
        entry(PORTS, exact(1, b"\5"), action=does(SET_VRF, b"red")),
    ]
    for message in messages:
        controller.insert(table_entry=message)
    assert written(plane, "In.routes") == [
        ((Exact(7), Optional_(None)), (256,)),
        ((Exact(0), Optional_(256)), (17,)),
    ]
    assert written(plane, "In.ports") == [((Exact(5),), (512,))]
    assert read(controller, p4r.TableEntry()) == [
        messages[2],
        entry(FIXED, exact(1, b"\x01\x2c"), action=does(NOP), is_const=True),
        *messages[:2],
    ]
    assert read(controller, route(b"blue")) == [messages[0]]


def test_a_string_of_digits_is_its_number(controller: Controller, plane: FakePlane) -> None:
    """Check that it is where it fits and no other string has the number; "05" is not how 5 is written."""
    for vrf in (b"5", b"05", b"512", b"1024"):
        controller.insert(table_entry=route(vrf, does(NOP)))
    keys = [match[0] for match, *_ in plane.entries["In.routes"].values()]
    assert keys == [Exact(5), Exact(512), Exact(513), Exact(514)]
    assert [e.match[0].exact.value for e in read(controller, p4r.TableEntry(table_id=ROUTES))] == [
        b"5", b"05", b"512", b"1024",
    ]  # fmt: skip


def test_unknown_strings_name_no_entry(controller: Controller) -> None:
    """Check that only an INSERT introduces strings of keys, so that questions use up no numbers."""
    controller.insert(table_entry=route(b"red", does(NOP)))
    assert read(controller, route(b"green")) == []
    text = (
        'NOT_FOUND: table In.routes, match field vrf is "green", which no entry has given to a value of '
        "vrf_t since the pipeline was pushed"
    )
    assert why(controller, "delete", table_entry=route(b"green")) == text
    assert why(controller, "modify", table_entry=route(b"green", does(NOP))) == text
    assert read(controller, route(b"5")) == []
    assert why(controller, "delete", table_entry=route(b"5")).startswith("NOT_FOUND: table In.routes has no")


def test_strings_are_remembered_when_their_entry_is_gone(controller: Controller, plane: FakePlane) -> None:
    """Check that they are for as long as the pipeline is there, and no longer."""
    for name in (b"red", b"green"):
        controller.insert(table_entry=route(name, does(NOP)))
        controller.delete(table_entry=route(name))
    controller.insert(table_entry=route(b"green", does(NOP)))
    assert written(plane, "In.routes") == [((Exact(513), Optional_(None)), ())]
    controller.set_config(config=translated())
    assert why(controller, "delete", table_entry=route(b"green")).startswith("NOT_FOUND: table In.routes, m")
    controller.insert(table_entry=route(b"green", does(NOP)))
    assert written(plane, "In.routes") == [((Exact(512), Optional_(None)), ())]


def test_types_of_one_uri_share_their_names(controller: Controller, plane: FakePlane) -> None:
    """The narrowest of them says how many there can be."""
    for name in (b"a", b"b", b"c"):
        controller.insert(table_entry=entry(TINY, exact(1, name), action=does(NOP)))
    message = entry(PORTS, exact(1, b"\1"), action=does(SET_TINY, b"c", b"d"))
    controller.insert(table_entry=message)
    assert written(plane, "In.ports") == [((Exact(1),), (1, 0))]
    assert read(controller, p4r.TableEntry(table_id=PORTS)) == [message]
    assert why(controller, "insert", table_entry=entry(TINY, exact(1, b"e"), action=does(NOP))) == (
        "RESOURCE_EXHAUSTED: table In.tiny, match field tiny: all 4 numbers of this type have names already: "
        "another pipeline (VERIFY_AND_COMMIT) forgets those of entries that are gone"
    )


def test_strings_match_as_a_whole(controller: Controller, plane: FakePlane) -> None:
    message = whole(b"blue", b"3", b"2", action=does(NOP))
    controller.insert(table_entry=message)
    assert written(plane, "In.whole") == [((Lpm(7, 10), Ternary(3, 0x1FF), Range(2, 2)), ())]
    assert read(controller, whole(b"blue", b"3", b"2")) == [message]


@pytest.mark.parametrize(
    ("match", "text"),
    [
        (prefix(1, b"blue", 4), "vrf: vrf_t is a string, which has no prefixes: give a prefix length of 10"),
        (ternary(2, b"3", b"\1"), "name: port_id_t is a string, which has no masks: give a mask of 0x1ff"),
        (between(3, b"1", b"2"), "tiny: tiny_t is a string, which has no ranges: give the same low and high"),
    ],
)
def test_parts_of_strings_do_not_match(controller: Controller, match: p4r.FieldMatch, text: str) -> None:
    message = entry(WHOLE, match, action=does(NOP), priority=1)
    assert why(controller, "insert", table_entry=message) == (
        f"INVALID_ARGUMENT: table In.whole, match field {text}"
    )


def test_a_default_action_takes_strings(controller: Controller, plane: FakePlane) -> None:
    message = p4r.TableEntry(table_id=ROUTES, is_default_action=True, action=does(SEND_TO, b"17"))
    controller.modify(table_entry=message)
    assert plane.defaults["In.routes"] == ("In.send_to", (17,))
    assert read(controller, p4r.TableEntry(table_id=ROUTES, is_default_action=True)) == [message]


def test_values_without_a_string_are_their_number(switch: Switch) -> None:
    """An entry of the program, which knows numbers only; "#7" is 7 where "7" is something else."""
    config = translated()
    program = json.loads(config.p4_device_config)
    (table,) = (t for pipe in program["pipelines"] for t in pipe["tables"] if t["name"] == "In.fixed")
    (json_entry,) = table["entries"]
    json_entry["match_key"][0]["key"] = "0x7"
    config.p4_device_config = json.dumps(program).encode()
    (info,) = (table for table in config.p4info.tables if table.preamble.name == "In.fixed")
    info.match_fields[0].type_name.name = "port_id_t"
    types = config.p4info.type_info.new_types
    controller = switch.connect()
    controller.become_primary()
    controller.set_config(config=config)
    (message,) = read(controller, p4r.TableEntry(table_id=FIXED))
    assert message.match == [exact(1, b"7")]
    types["port_id_t"].annotations.append('@p4runtime_translation_mappings({ { "7" , 9 } })')
    controller.set_config(config=config)
    (message,) = read(controller, p4r.TableEntry(table_id=FIXED))
    assert message.match == [exact(1, b"#7")]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ('({ { "a" , 512 } })', 'type port_id_t: "a" is mapped to 512, which does not fit 9 bits'),
        ('({ { "a" , 1 } , { "b" , 1 } })', 'type port_id_t: "b" and 1 are mapped to something else already'),
        ("({ { a , 1 } })", "type port_id_t: @p4runtime_translation_mappings({ { a , 1 } }) cannot be read"),
    ],
)
def test_mappings_that_cannot_be(switch: Switch, annotation: str, text: str) -> None:
    config = translated()
    types = config.p4info.type_info.new_types
    types["port_id_t"].annotations.append("@p4runtime_translation_mappings" + annotation)
    controller = switch.connect()
    controller.become_primary()
    refusal = controller.refused(controller.set_config, config=config)
    assert str(refusal).startswith(f"INVALID_ARGUMENT: P4Info: {text}")


# Registers and parameters of no bits


def test_registers_hold_strings(controller: Controller, plane: FakePlane) -> None:
    message = p4r.RegisterEntry(register_id=LAST, index=p4r.Index(index=2), data=p4d.P4Data(bitstring=b"red"))
    controller.modify(register_entry=message)
    assert plane.registers["In.last"] == [0, 0, 512, 0]
    assert [e.register_entry.data.bitstring for e in controller.read(
        p4r.Entity(register_entry=p4r.RegisterEntry(register_id=LAST))
    )] == [b"", b"", b"red", b""]  # fmt: skip


@pytest.mark.parametrize("nothing", [b"", b"\0"])
def test_a_parameter_of_no_bits(controller: Controller, plane: FakePlane, nothing: bytes) -> None:
    """Check that its value is zero, given with or without a byte, and read with one."""
    controller.insert(table_entry=entry(PORTS, exact(1, b"\1"), action=does(PAINT, nothing, b"\7")))
    assert written(plane, "In.ports") == [((Exact(1),), (0, 7))]
    (message,) = read(controller, p4r.TableEntry(table_id=PORTS))
    assert message.action.action == call(PAINT, b"\0", b"\7")
    wrong = entry(PORTS, exact(1, b"\2"), action=does(PAINT, b"\1", b"\7"))
    assert why(controller, "insert", table_entry=wrong) == (
        "INVALID_ARGUMENT: action In.paint, parameter nothing is 0x1, which does not fit within 0 bits"
    )


# Action profiles and ports


def port(name: bytes, **fields: Any) -> p4r.ActionProfileMember:
    return p4r.ActionProfileMember(
        action_profile_id=BALANCE, action=call(SEND_TO, name), **{"member_id": 1, **fields}
    )


def test_members_and_groups(controller: Controller, plane: FakePlane) -> None:
    """A member's arguments are translated, and a watch port is one of the program's port_id_t."""
    controller.insert(action_profile_member=port(b"Ethernet4"))
    assert list(plane.members.values()) == [("In.send_to", (256,))]
    controller.modify(action_profile_member=port(b"4"))
    assert list(plane.members.values()) == [("In.send_to", (4,))]
    wildcard = p4r.Entity(action_profile_member=p4r.ActionProfileMember())
    assert controller.read(wildcard) == [p4r.Entity(action_profile_member=port(b"4"))]
    group = p4r.ActionProfileGroup(action_profile_id=BALANCE, group_id=1)
    group.members.add(member_id=1, weight=1, watch_port=b"4")
    controller.insert(action_profile_group=group)
    assert controller.read(p4r.Entity(action_profile_group=p4r.ActionProfileGroup())) == [
        p4r.Entity(action_profile_group=group)
    ]
    group.members[0].watch_port = b"\4"
    assert why(controller, "modify", action_profile_group=group) == (
        'INVALID_ARGUMENT: a watch port is "\x04", which no entry has given to a value of port_id_t since '
        "the pipeline was pushed"
    )


def test_one_shots(controller: Controller, plane: FakePlane) -> None:
    message = entry(BALANCED, exact(1, b"\1"), action=p4r.TableAction())
    one_shot = message.action.action_profile_action_set
    for name in (b"Ethernet0", b"12"):
        one_shot.action_profile_actions.add(action=call(SEND_TO, name), weight=1, watch_port=name)
    controller.insert(table_entry=message)
    assert list(plane.members.values()) == [("In.send_to", (256,)), ("In.send_to", (12,))]
    assert read(controller, p4r.TableEntry(table_id=BALANCED)) == [message]


def test_replicas_leave_at_ports_with_names(controller: Controller, plane: FakePlane) -> None:
    """A port's name has to be known from an entry, or a number: a group introduces none."""
    engine = p4r.PacketReplicationEngineEntry()
    engine.multicast_group_entry.multicast_group_id = 1
    replica = engine.multicast_group_entry.replicas.add(port=b"4", instance=1)
    replica.backup_replicas.add(port=b"Ethernet0", instance=1)
    assert why(controller, "insert", packet_replication_engine_entry=engine).startswith(
        'INVALID_ARGUMENT: multicast group 1, backup port is "Ethernet0", which no entry has given to a val'
    )
    controller.insert(table_entry=route(b"blue", does(SEND_TO, b"Ethernet0")))
    controller.insert(packet_replication_engine_entry=engine)
    assert plane.groups == {1: ((4, 1),)}
    (answer,) = controller.read(p4r.Entity(packet_replication_engine_entry=engine))
    assert answer.packet_replication_engine_entry == engine


def test_ports_are_numbers_where_no_type_of_strings_is_of_ports(switch: Switch) -> None:
    """Types are looked at by their name and the end of their URI."""
    for name, uri, port_name, number in (
        ("port_t", "p4.org/psa/v1/PortId_t", b"4", 4),
        ("port_t", "p4.org/other", b"4", 0x34),
    ):
        config = translated()
        config.p4_device_config += b" "
        types = config.p4info.type_info.new_types
        types["port_id_t"].translated_type.sdn_bitwidth = 9
        types[name].translated_type.uri = uri
        types[name].translated_type.sdn_string.SetInParent()
        controller = switch.connect()
        controller.become_primary(number)
        controller.set_config(config=config)
        engine = p4r.PacketReplicationEngineEntry()
        engine.clone_session_entry.session_id = 1
        engine.clone_session_entry.replicas.add(port=port_name)
        controller.insert(packet_replication_engine_entry=engine)
        assert switch.plane.sessions == {1: (((number, 0),), 0)}


# Packets and digests


def packet_out(egress: bytes, ingress: bytes) -> p4r.PacketOut:
    """Return a packet-out without its padding, which `@padding` marks."""
    return p4r.PacketOut(
        payload=b"payload",
        metadata=[
            p4r.PacketMetadata(metadata_id=1, value=egress),
            p4r.PacketMetadata(metadata_id=2, value=ingress),
        ],
    )


def test_packet_out_has_the_data_planes_widths(controller: Controller, plane: FakePlane) -> None:
    controller.insert(table_entry=route(b"blue", does(SEND_TO, b"Ethernet0")))
    for egress, ingress, number in (
        (b"Ethernet0", b"\0\0\0\1", 256 << 15 | 1 << 6),
        (b"7", b"\1\2", 7 << 15 | 0x102 << 6),
    ):
        controller.send(packet=packet_out(egress, ingress))
        assert plane.packets.get(timeout=10) == number.to_bytes(3, "big") + b"payload"


@pytest.mark.parametrize(
    ("egress", "ingress", "text"),
    [
        (
            b"Ethernet0",
            b"\1",
            'packet-out, metadata field egress_port is "Ethernet0", which no entry has giv',
        ),
        (b"512", b"\1", 'packet-out, metadata field egress_port is "512", which no entry has given to a val'),
        (
            b"1",
            b"\2\0",
            "packet-out, metadata field ingress_port is 0x200, which does not fit within the 9 b",
        ),
    ],
)
def test_packet_out_with_values_that_nothing_has(
    controller: Controller, plane: FakePlane, egress: bytes, ingress: bytes, text: str
) -> None:
    controller.send(packet=packet_out(egress, ingress))
    error = controller.receive().error
    assert (error.canonical_code, error.message[: len(text)]) == (rpc_code.INVALID_ARGUMENT, text)
    assert plane.packets.empty()


def test_packet_in_has_names(controller: Controller, plane: FakePlane) -> None:
    """Check that ports that an entry has named have their names; others are their numbers."""
    controller.insert(table_entry=route(b"blue", does(SEND_TO, b"Ethernet0")))
    for name, number in ((b"Ethernet0", 256), (b"9", 9)):
        plane.send_up((number << 15 | 300 << 6).to_bytes(3, "big") + b"payload")
        packet = controller.receive().packet
        assert {item.metadata_id: item.value for item in packet.metadata} == {
            1: name,
            2: b"\x01\x2c",
            3: b"\0",
        }
        assert packet.payload == b"payload"


def test_controller_headers_that_the_program_does_not_have(switch: Switch) -> None:
    """Check a program without them, as SONiC's have none for packet-in: all is payload then.

    The widths of a packet-out's fields are those that their types have in keys and arguments.
    """
    config = translated()
    for header in config.p4info.controller_packet_metadata:
        header.metadata[0].name = "other"
    controller = switch.connect()
    controller.become_primary()
    controller.set_config(config=config)
    switch.plane.send_up(b"payload")
    packet = controller.receive().packet
    assert [item.value for item in packet.metadata] == [b"0", b"\0", b"\0"]
    assert packet.payload == b"payload"
    controller.send(packet=packet_out(b"7", b"\1\2"))
    data = (7 << 15 | 0x102 << 6).to_bytes(3, "big") + b"payload"
    assert switch.plane.packets.get(timeout=10) == data


def test_digests_have_names(controller: Controller, plane: FakePlane) -> None:
    (digest,) = translated().p4info.digests
    controller.insert(digest_entry=p4r.DigestEntry(digest_id=digest.preamble.id))
    plane.learn("seen_t", (7, 300, 1))
    (sample,) = controller.receive().digest.data
    assert [member.bitstring for member in sample.struct.members] == [b"blue", b"\x01\x2c", b"\1"]


# Pipelines


def test_reconciling_keeps_the_names(controller: Controller, plane: FakePlane) -> None:
    """Check also strings whose entries are gone, which groups and packets may still have."""
    controller.insert(table_entry=route(b"green", does(NOP)))
    controller.delete(table_entry=route(b"green"))
    messages = [route(b"red", does(SEND_TO, b"Ethernet0")), entry(PORTS, exact(1, b"\1"), action=does(NOP))]
    for message in messages:
        controller.insert(table_entry=message)
    config = translated()
    config.p4_device_config += b" "
    controller.set_config("RECONCILE_AND_COMMIT", config)
    assert written(plane, "In.routes") == [((Exact(513), Optional_(None)), (256,))]
    assert read(controller, route(b"red")) == messages[:1]
    controller.insert(table_entry=route(b"green", does(NOP)))
    assert written(plane, "In.routes")[1] == ((Exact(512), Optional_(None)), ())


def test_a_saved_pipeline_takes_strings(controller: Controller, plane: FakePlane) -> None:
    controller.set_config("VERIFY_AND_SAVE", translated())
    message = route(b"red", does(SEND_TO, b"Ethernet0"))
    controller.insert(table_entry=message)
    controller.set_config("COMMIT")
    assert written(plane, "In.routes") == [((Exact(512), Optional_(None)), (256,))]
    assert read(controller, route(b"red")) == [message]


def test_a_batch_that_is_rolled_back(controller: Controller, plane: FakePlane) -> None:
    """Check that what is taken back has its strings, too."""
    before = route(b"red", does(SEND_TO, b"1"))
    controller.insert(table_entry=before)
    updates = [
        p4r.Update(type=kind, entity=p4r.Entity(table_entry=message))
        for kind, message in (
            (p4r.Update.MODIFY, route(b"red", does(SEND_TO, b"Ethernet0"))),
            (p4r.Update.DELETE, route(b"green")),
        )
    ]
    refusal = controller.refused(controller.write, *updates, atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR)
    assert refusal.codes == ["ABORTED", "NOT_FOUND"]
    assert read(controller, p4r.TableEntry(table_id=ROUTES)) == [before]


# Packets on the real data plane

CPU_PORT = 255


@pytest.fixture
def real(connect: Callable[[str], Controller]) -> Iterator[tuple[DataPlane, Controller]]:
    """Yield a data plane without ports, but for the controller's, and its primary."""
    plane = DataPlane(cpu_port=CPU_PORT)
    server = P4RuntimeServer(plane, device_id=1, address="127.0.0.1:0")
    plane.start()
    server.start()
    controller = connect(server.address)
    controller.become_primary()
    controller.set_config(config=translated())
    yield plane, controller
    controller.close()
    server.stop(grace_s=0)
    plane.close()


@pytest.mark.slow
def test_packets_meet_translated_entries(real: tuple[DataPlane, Controller]) -> None:
    plane, controller = real
    controller.insert(table_entry=entry(PORTS, exact(1, b"\3"), action=does(SET_VRF, b"red")))
    controller.insert(table_entry=entry(PORTS, exact(1, b"\4"), action=does(PAINT, b"", b"\x2a")))
    controller.insert(table_entry=route(b"red", does(SEND_TO, b"9")))
    controller.insert(
        table_entry=entry(ROUTES, exact(1, b""), optional(2, b"4"), action=does(SEND, b"\5"), priority=1)
    )
    (digest,) = translated().p4info.digests
    controller.insert(digest_entry=p4r.DigestEntry(digest_id=digest.preamble.id))
    frame = bytes([0x77, 0]) + bytes(58)
    assert plane.process(3, frame) == [(9, frame)]
    assert plane.process(4, frame) == [(5, bytes([0x77, 0x2A]) + bytes(58))]
    (sample,) = controller.receive().digest.data
    assert [member.bitstring for member in sample.struct.members] == [b"red", b"\3", b"\x77"]
    (register,) = controller.read(
        p4r.Entity(register_entry=p4r.RegisterEntry(register_id=LAST, index=p4r.Index(index=0)))
    )
    assert register.register_entry.data.bitstring == b"red"
    (counter,) = controller.read(
        p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=PER_PORT, index=p4r.Index(index=5)))
    )
    assert counter.counter_entry.data.packet_count == 1
    controller.modify(
        table_entry=p4r.TableEntry(
            table_id=ROUTES, is_default_action=True, action=does(SEND_TO, b"%d" % CPU_PORT)
        )
    )
    controller.send(packet=packet_out(b"0", b"\x11"))
    packet = controller.receive().packet
    assert [item.value for item in packet.metadata] == [b"17", b"\x11", b"\0"]
    assert packet.payload[:2] == b"p\0"


@pytest.mark.slow
@pytest.mark.bmv2
@pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH")
def test_packets_meet_the_same_entries_as_in_bmv2() -> None:
    """Numbers whose bytes BMv2 takes as they are, and an argument of no bits."""
    config = in_sixteen_bits()
    frames = [
        (number, bytes([kind]) + bytes(59)) for number in (1, 3, 44, 256, 300, 301) for kind in range(2)
    ]
    with running_bmv2() as theirs, DataPlane() as plane, served(plane) as ours:
        for controller in (ours, theirs.controller):
            controller.push(config.p4_device_config, text_format.MessageToString(config.p4info))
            insert = partial(controller.insert, action="In.paint")
            insert("In.ports", [Exact(300)], priority=0, params=[0, 1])
            insert("In.masks", [Ternary(44, 0xFF), Range(0, 0xFFFF)], priority=2, params=[0, 2])
            insert("In.masks", [Ternary(0, 0), Range(2, 5)], priority=1, params=[0, 3])
        outputs = [plane.process(port, data) for port, data in frames]
        assert theirs.process(frames) == outputs
    colors = {port: data[1] for (port, _), ((_, data),) in zip(frames, outputs, strict=True)}
    assert colors == {1: 0, 3: 3, 44: 2, 256: 0, 300: 2, 301: 0}
