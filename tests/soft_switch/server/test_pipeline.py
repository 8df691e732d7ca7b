"""SetForwardingPipelineConfig, GetForwardingPipelineConfig and Capabilities."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from finsy.proto import p4i, p4r, p4t

from soft_switch.description import Exact
from soft_switch.server.service import API_VERSION
from tests.p4c import P4C, WITHOUT_P4C, assert_is_made_of_its_source

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane, Switch

    MakeConfig = Callable[..., p4r.ForwardingPipelineConfig]

HERE = Path(__file__).parent
VLANS = 0x02000002
ALL_TABLES = p4r.Entity(table_entry=p4r.TableEntry())


@pytest.fixture
def primary(switch: Switch) -> Controller:
    """Return the primary of a switch without a pipeline."""
    controller = switch.connect()
    controller.become_primary()
    return controller


def vlan(number: int) -> p4r.TableEntry:
    """Return an entry of ingress.vlans."""
    return p4r.TableEntry(
        table_id=VLANS,
        match=[
            p4r.FieldMatch(field_id=2, exact=p4r.FieldMatch.Exact(value=bytes([number]))),
            p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=b"\1")),
        ],
        action=p4r.TableAction(action=p4r.Action(action_id=0x01445B37)),
    )


def vlans(controller: Controller) -> list[int]:
    """Return the VLANs that have an entry, as read back."""
    entries = controller.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=VLANS)))
    return [entity.table_entry.match[0].exact.value[0] for entity in entries]


def test_capabilities(switch: Switch) -> None:
    stub = switch.connect().stub
    assert stub.Capabilities(p4r.CapabilitiesRequest()).p4runtime_api_version == API_VERSION
    assert stub.Capabilities(p4r.CapabilitiesRequest(device_id=1)).p4runtime_api_version == API_VERSION


def test_capabilities_of_another_device(switch: Switch) -> None:
    client = switch.connect()
    refusal = client.refused(client.call, "Capabilities", p4r.CapabilitiesRequest(device_id=2))
    assert str(refusal) == "NOT_FOUND: there is no device 2 here, this is device 1"


def test_without_a_pipeline_there_is_no_config(switch: Switch) -> None:
    assert not switch.connect().get_config().HasField("config")


def test_without_a_pipeline_nothing_can_be_read_or_written(primary: Controller) -> None:
    text = "FAILED_PRECONDITION: No forwarding pipeline config set for this device"
    assert str(primary.refused(primary.write)).startswith(text)
    assert str(primary.refused(primary.read, ALL_TABLES)).startswith(text)


def test_checks_come_in_the_order_of_the_specification(switch: Switch) -> None:
    client = switch.connect()
    client.device_id = 9
    assert client.refused(client.write).code == "NOT_FOUND"
    assert client.refused(client.set_config).code == "NOT_FOUND"
    assert client.refused(client.read).code == "NOT_FOUND"
    assert client.refused(client.get_config).code == "NOT_FOUND"
    client.device_id = 1
    assert client.refused(client.write).code == "PERMISSION_DENIED"
    assert client.refused(client.set_config).code == "PERMISSION_DENIED"


def test_commit_and_get(primary: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig) -> None:
    primary.set_config("VERIFY_AND_COMMIT", config)
    assert plane.loads == 1
    assert primary.get_config("ALL").config == config
    cookie = p4r.ForwardingPipelineConfig(cookie=config.cookie)
    assert primary.get_config("COOKIE_ONLY").config == cookie
    cookie.p4info.CopyFrom(config.p4info)
    assert primary.get_config("P4INFO_AND_COOKIE").config == cookie
    cookie.ClearField("p4info")
    cookie.p4_device_config = config.p4_device_config
    assert primary.get_config("DEVICE_CONFIG_AND_COOKIE").config == cookie


def test_no_cookie_is_not_a_cookie_of_zero(primary: Controller, config: p4r.ForwardingPipelineConfig) -> None:
    config.ClearField("cookie")
    primary.set_config("VERIFY_AND_COMMIT", config)
    answer = primary.get_config("COOKIE_ONLY")
    assert answer.HasField("config")
    assert not answer.config.HasField("cookie")


def test_commit_clears_the_forwarding_state(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    controller.insert(table_entry=vlan(5))
    group = p4r.MulticastGroupEntry(multicast_group_id=3, replicas=[p4r.Replica(port=b"\1")])
    pre = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
    controller.insert(packet_replication_engine_entry=pre)
    assert plane.groups == {3: ((1, 0),)}
    controller.set_config("VERIFY_AND_COMMIT", config)
    assert vlans(controller) == []
    assert plane.groups == {}


def test_verify_changes_nothing(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    controller.insert(table_entry=vlan(5))
    config.cookie.cookie = 78
    controller.set_config("VERIFY", config)
    assert ([spare.loads for spare in plane.spares], plane.loads) == ([1], 1)
    assert plane.spares[0].closed
    assert vlans(controller) == [5]
    assert controller.get_config("COOKIE_ONLY").config.cookie.cookie == 77


def test_save_takes_writes_and_commit_replays_them(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    controller.insert(table_entry=vlan(5))
    config.cookie.cookie = 78
    controller.set_config("VERIFY_AND_SAVE", config)
    assert controller.get_config("COOKIE_ONLY").config.cookie.cookie == 78
    assert vlans(controller) == []
    for number in (6, 7, 8):
        controller.insert(table_entry=vlan(number))
    controller.delete(table_entry=vlan(7))
    assert controller.refused(controller.insert, table_entry=vlan(8)).codes == ["ALREADY_EXISTS"]
    assert vlans(controller) == [6, 8]
    assert [match[0] for match, *_ in plane.entries["ingress.vlans"].values()] == [Exact(5)]
    controller.set_config("COMMIT")
    assert plane.loads == 2
    assert [match[0] for match, *_ in plane.entries["ingress.vlans"].values()] == [Exact(6), Exact(8)]
    assert vlans(controller) == [6, 8]
    controller.delete(table_entry=vlan(6))
    assert vlans(controller) == [8]


def test_a_saved_pipeline_has_all_entities(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    """Check that what is written to it can be read back, and is in the data plane after COMMIT."""
    controller.set_config("VERIFY_AND_SAVE", config)
    lpm = p4r.FieldMatch(field_id=1, lpm=p4r.FieldMatch.LPM(value=b"\x0a\0\0\0", prefix_len=8))
    drop = p4r.TableAction(action=p4r.Action(action_id=0x01000002))
    data = p4r.CounterData(packet_count=1, byte_count=2)
    route = p4r.TableEntry(table_id=0x02000001, match=[lpm], action=drop, counter_data=data)
    counter = p4r.CounterEntry(counter_id=0x12000001, index=p4r.Index(index=3), data=data)
    register = p4r.RegisterEntry(register_id=0x16000001, index=p4r.Index(index=2))
    register.data.bitstring = b"\x0f"
    group = p4r.MulticastGroupEntry(multicast_group_id=4, replicas=[p4r.Replica(port=b"\1", instance=2)])
    pre = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
    default = p4r.TableEntry(table_id=0x02000001, is_default_action=True, action=drop)
    controller.insert(table_entry=route)
    controller.modify(table_entry=default)
    controller.modify(counter_entry=counter)
    controller.modify(register_entry=register)
    controller.insert(packet_replication_engine_entry=pre)
    requests = [
        p4r.Entity(table_entry=p4r.TableEntry(table_id=0x02000001, counter_data=p4r.CounterData())),
        p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12000001, index=p4r.Index(index=3))),
        p4r.Entity(register_entry=p4r.RegisterEntry(register_id=0x16000001, index=p4r.Index(index=2))),
        p4r.Entity(
            packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                multicast_group_entry=p4r.MulticastGroupEntry()
            )
        ),
    ]
    expected = [
        p4r.Entity(table_entry=route),
        p4r.Entity(counter_entry=counter),
        p4r.Entity(register_entry=register),
        p4r.Entity(packet_replication_engine_entry=pre),
    ]
    assert controller.read(*requests) == expected
    assert not plane.groups
    controller.set_config("COMMIT")
    assert controller.read(*requests) == expected
    assert plane.groups == {4: ((1, 2),)}
    assert plane.registers["ingress.seen"] == [0, 0, 15, 0]
    assert plane.counters["ingress.per_port"].tolist()[3] == [1, 2]
    assert plane.defaults["ingress.ipv4_lpm"] == ("ingress.drop", ())


def test_a_saved_pipeline_that_is_replaced_is_forgotten(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    controller.set_config("VERIFY_AND_SAVE", config)
    controller.set_config("VERIFY_AND_SAVE", config)
    assert [spare.closed for spare in plane.spares] == [True, False]
    controller.set_config("VERIFY_AND_COMMIT", config)
    assert [spare.closed for spare in plane.spares] == [True, True]
    assert str(controller.refused(controller.set_config, "COMMIT")) == (
        "NOT_FOUND: there is no saved config: VERIFY_AND_SAVE one first"
    )


def test_commit_takes_no_config(controller: Controller, config: p4r.ForwardingPipelineConfig) -> None:
    refusal = controller.refused(controller.set_config, "COMMIT", config)
    assert str(refusal) == "INVALID_ARGUMENT: COMMIT takes the saved config: leave the config out"


def test_a_saved_table_is_no_larger_than_the_real_one(
    controller: Controller, config: p4r.ForwardingPipelineConfig
) -> None:
    controller.set_config("VERIFY_AND_SAVE", config)
    drop = p4r.TableAction(action=p4r.Action(action_id=0x01000002))
    for number in range(5):
        lpm = p4r.FieldMatch(
            field_id=1, lpm=p4r.FieldMatch.LPM(value=bytes([number + 1, 0, 0, 0]), prefix_len=8)
        )
        entry = p4r.TableEntry(table_id=0x02000001, match=[lpm], action=drop)
        if number < 4:
            controller.insert(table_entry=entry)
    refusal = controller.refused(controller.insert, table_entry=entry)
    assert refusal.codes == ["RESOURCE_EXHAUSTED"]


def test_reconcile_keeps_the_state_for_the_same_program(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    controller.insert(table_entry=vlan(5))
    config.cookie.cookie = 79
    controller.set_config("RECONCILE_AND_COMMIT", config)
    assert plane.loads == 1
    assert vlans(controller) == [5]
    assert controller.get_config("COOKIE_ONLY").config.cookie.cookie == 79


def test_reconcile_commits_the_first_program(
    primary: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    primary.set_config("RECONCILE_AND_COMMIT", config)
    assert plane.loads == 1


@pytest.mark.parametrize("action", ["VERIFY", "VERIFY_AND_SAVE", "VERIFY_AND_COMMIT", "RECONCILE_AND_COMMIT"])
def test_a_missing_config(primary: Controller, action: str) -> None:
    refusal = primary.refused(primary.set_config, action)
    assert str(refusal) == f"INVALID_ARGUMENT: {action} needs a config"


def test_a_missing_action(primary: Controller, config: p4r.ForwardingPipelineConfig) -> None:
    refusal = primary.refused(primary.set_config, "UNSPECIFIED", config)
    assert str(refusal) == "INVALID_ARGUMENT: the action is not set"


@pytest.mark.parametrize("action", ["VERIFY", "VERIFY_AND_SAVE", "VERIFY_AND_COMMIT"])
@pytest.mark.parametrize("kind", ["unsupported", "broken"])
def test_a_program_the_data_plane_refuses(
    controller: Controller, with_extra: MakeConfig, action: str, kind: str
) -> None:
    controller.insert(table_entry=vlan(5))
    config = with_extra(**{kind: "varbit header options, main.p4 line 12"})
    refusal = controller.refused(controller.set_config, action, config)
    assert str(refusal).startswith(
        "INVALID_ARGUMENT: the program cannot be realized by this switch: "
        "varbit header options, main.p4 line 12"
    )
    assert vlans(controller) == [5]
    assert controller.get_config("COOKIE_ONLY").config.cookie.cookie == 77


def test_a_large_program_arrives(primary: Controller, with_extra: MakeConfig) -> None:
    config = with_extra(comment="x" * (6 << 20))
    config.cookie.cookie = 99
    primary.set_config("VERIFY_AND_COMMIT", config)
    assert primary.get_config("COOKIE_ONLY").config.cookie.cookie == 99


@pytest.mark.parametrize(
    ("device_config", "text"),
    [
        (b"", "the forwarding pipeline config has no p4_device_config: it is p4c's BMv2 JSON"),
        (b"\x7fELF", "the program cannot be realized by this switch: the program is not JSON: "),
        (
            b"{}",
            "the program cannot be realized by this switch: "
            "the program is JSON but not of BMv2: it has no 'pipelines'",
        ),
        (
            b'{"pipelines": []}',
            "the program cannot be realized by this switch: the program is not the BMv2 JSON that p4c writes",
        ),
    ],
)
def test_a_device_config_that_is_no_program(
    primary: Controller, config: p4r.ForwardingPipelineConfig, device_config: bytes, text: str
) -> None:
    config.p4_device_config = device_config
    refusal = primary.refused(primary.set_config, "VERIFY_AND_COMMIT", config)
    assert str(refusal).startswith(f"INVALID_ARGUMENT: {text}")


def test_a_config_without_p4info(primary: Controller, config: p4r.ForwardingPipelineConfig) -> None:
    config.ClearField("p4info")
    refusal = primary.refused(primary.set_config, "VERIFY", config)
    assert str(refusal) == "INVALID_ARGUMENT: the forwarding pipeline config has no p4info"


def _rename_table(p4info: p4i.P4Info) -> None:
    p4info.tables[0].preamble.name = "ingress.other"


def _change_width(p4info: p4i.P4Info) -> None:
    p4info.tables[1].match_fields[0].bitwidth = 13


def _change_match_kind(p4info: p4i.P4Info) -> None:
    p4info.tables[0].match_fields[0].match_type = p4i.MatchField.EXACT


def _own_match_kind(p4info: p4i.P4Info) -> None:
    p4info.tables[0].match_fields[0].other_match_type = "fuzzy"


def _resize_counter(p4info: p4i.P4Info) -> None:
    p4info.counters[0].size = 9


def _resize_register(p4info: p4i.P4Info) -> None:
    p4info.registers[0].size = 9


def _same_id(p4info: p4i.P4Info) -> None:
    p4info.actions[2].preamble.id = p4info.actions[1].preamble.id


def _no_id(p4info: p4i.P4Info) -> None:
    p4info.tables[0].preamble.id = 0


def _same_field_id(p4info: p4i.P4Info) -> None:
    p4info.tables[1].match_fields[0].id = 1


def _unknown_action(p4info: p4i.P4Info) -> None:
    p4info.tables[0].action_refs[0].id = 0x01FFFFFF


def _translate(p4info: p4i.P4Info) -> None:
    translation = p4t.P4NewTypeTranslation(uri="p4.org/psa/v1/PortId_t", sdn_bitwidth=-1)
    p4info.type_info.new_types["port_t"].translated_type.CopyFrom(translation)
    p4info.actions[1].params[0].type_name.name = "port_t"


def _negative_width(p4info: p4i.P4Info) -> None:
    p4info.actions[1].params[0].bitwidth = -1


def _wide_parameter(p4info: p4i.P4Info) -> None:
    p4info.actions[1].params[0].bitwidth = 10


def _no_parameter(p4info: p4i.P4Info) -> None:
    del p4info.actions[1].params[1]


def _odd_header(p4info: p4i.P4Info) -> None:
    p4info.controller_packet_metadata[0].preamble.name = "packet_sideways"


def _initial_action_missing(p4info: p4i.P4Info) -> None:
    del p4info.tables[3].action_refs[1]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_rename_table, "P4Info has a table ingress.other that the BMv2 JSON lacks: they are not of one pr"),
        (_change_match_kind, "table ingress.ipv4_lpm has the key (exact bit<32>) in P4Info and (lpm bit<32>"),
        (_change_width, "table ingress.vlans has the key (exact bit<13>, exact bit<9>) in P4Info and (exac"),
        (_own_match_kind, "P4Info: match field hdr.ipv4.dst of table ingress.ipv4_lpm has match kind 'fuzz"),
        (_resize_counter, "P4Info has a counter ingress.per_port of size 9 that the BMv2 JSON lacks"),
        (_resize_register, "P4Info has a register ingress.seen of size 9 that the BMv2 JSON lacks"),
        (_same_id, "P4Info: id 0x01000001 is action ingress.forward and action ingress.drop"),
        (_no_id, "P4Info: table ingress.ipv4_lpm has no id"),
        (_same_field_id, "P4Info: the match fields of table ingress.vlans have id 1 twice or zero"),
        (_unknown_action, "P4Info: table ingress.ipv4_lpm refers to action 0x01ffffff, which is not there"),
        (_translate, "P4Info: type port_t is translated to bit<-1>"),
        (_negative_width, "P4Info: parameter port of action ingress.forward has a width of -1 bits"),
        (_wide_parameter, "parameter port of action ingress.forward is bit<10> in P4Info and bit<9> in the "),
        (_no_parameter, "action ingress.forward has the parameters (port) in P4Info and (port, "),
        (_odd_header, "P4Info has a controller header 'packet_sideways': only packet_in and packet_out exi"),
        (_initial_action_missing, "P4Info: table ingress.classes lacks action ingress.set_class"),
    ],
)  # fmt: skip
def test_a_p4info_that_does_not_fit(
    primary: Controller,
    config: p4r.ForwardingPipelineConfig,
    spoil: Callable[[p4i.P4Info], None],
    text: str,
) -> None:
    spoil(config.p4info)
    refusal = primary.refused(primary.set_config, "VERIFY_AND_COMMIT", config)
    assert str(refusal).startswith(f"INVALID_ARGUMENT: {text}")


@pytest.mark.p4c
@pytest.mark.skipif(P4C is None, reason=WITHOUT_P4C)
@pytest.mark.parametrize("program", ["program", "translated"])
def test_the_test_program_is_what_p4c_makes_of_its_source(tmp_path: Path, program: str) -> None:
    files = [
        "-o",
        str(tmp_path / f"{program}.json"),
        "--p4runtime-files",
        str(tmp_path / f"{program}.p4info.txtpb"),
    ]
    subprocess.run([str(P4C), *files, f"{program}.p4"], cwd=HERE, check=True, capture_output=True)
    for name in (f"{program}.json", f"{program}.p4info.txtpb"):
        made, kept = (tmp_path / name).read_text(), (HERE / name).read_text()
        lines = [line for line in made.splitlines() if not line.startswith("#")]
        assert_is_made_of_its_source(
            name, [line for line in lines if line], [line for line in kept.splitlines() if line]
        )


def test_a_program_wrapped_as_older_clients_send_it(
    primary: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    """Check one in a p4.tmp.P4DeviceConfig with `reassign`; it is read back as it was given."""
    size, length = len(config.p4_device_config), bytearray()
    while size:
        length.append(size & 0x7F | (0x80 if size >> 7 else 0))
        size >>= 7
    config.p4_device_config = b"\x08\x01\x1a" + bytes(length) + config.p4_device_config
    primary.set_config(config=config)
    assert plane.entries
    assert primary.get_config().config == config


@pytest.mark.parametrize("data", [b"\x08", b"\x1a\x05{}", b"\x08\x01", b"\x0d\x01\x02\x03\x04", b"\xff" * 20])
def test_a_device_config_that_is_wrapped_wrongly(
    primary: Controller, config: p4r.ForwardingPipelineConfig, data: bytes
) -> None:
    config.p4_device_config = data
    assert primary.refused(primary.set_config, config=config).code == "INVALID_ARGUMENT"


def test_a_table_that_p4c_left_out_of_the_program_takes_no_entries(
    primary: Controller, config: p4r.ForwardingPipelineConfig
) -> None:
    extra = config.p4info.tables.add()
    extra.CopyFrom(config.p4info.tables[0])
    extra.preamble.id, extra.preamble.name = 0x02ABCDEF, "ingress.never_applied"
    primary.set_config(config=config)
    entry = p4r.TableEntry(table_id=0x02ABCDEF)
    refusal = primary.refused(primary.insert, table_entry=entry)
    assert "table ingress.never_applied is in P4Info, but not in the program" in str(refusal)
    assert primary.get_config().config == config


def test_a_key_without_width_in_p4info_has_the_width_of_the_program(
    primary: Controller, config: p4r.ForwardingPipelineConfig
) -> None:
    """p4c writes none for fields of type `error`."""
    table = next(table for table in config.p4info.tables if table.preamble.name == "ingress.ipv4_lpm")
    field = table.match_fields[0]
    width, field.bitwidth = field.bitwidth, 0
    primary.set_config(config=config)
    match = p4r.FieldMatch(field_id=field.id)
    match.lpm.value, match.lpm.prefix_len = bytes([10]) + bytes(width // 8 - 1), 8
    action = p4r.TableAction(action=p4r.Action(action_id=table.action_refs[1].id))
    primary.insert(table_entry=p4r.TableEntry(table_id=table.preamble.id, match=[match], action=action))
    found = primary.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=table.preamble.id)))
    assert [
        list(entity.table_entry.match) for entity in found if not entity.table_entry.is_default_action
    ] == [[match]]
