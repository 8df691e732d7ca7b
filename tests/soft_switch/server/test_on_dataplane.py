"""The server on the real data plane: what a controller writes is what packets meet. No interfaces needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import p4d, p4r

from soft_switch.dataplane import DataPlane
from soft_switch.server import P4RuntimeServer

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller

    Connect = Callable[[str], Controller]

ROUTES, VLANS, ACL, CLASSES, ALWAYS, PRESET = range(0x02000001, 0x02000007)
FORWARD, DROP = 0x01000001, 0x01000002
CPU_PORT = 255


@pytest.fixture
def plane() -> Iterator[DataPlane]:
    """Yield a data plane without ports, but for the controller's."""
    plane = DataPlane(cpu_port=CPU_PORT)
    yield plane
    plane.close()


@pytest.fixture
def controller(
    plane: DataPlane, connect: Connect, config: p4r.ForwardingPipelineConfig
) -> Iterator[Controller]:
    """Yield the primary of a switch that runs the test program."""
    server = P4RuntimeServer(plane, device_id=1, address="127.0.0.1:0")
    plane.start()
    server.start()
    controller = connect(server.address)
    controller.become_primary()
    controller.set_config("VERIFY", config)
    controller.set_config("VERIFY_AND_COMMIT", config)
    yield controller
    controller.close()
    server.stop(grace_s=0)


def action(action_id: int, *values: bytes) -> p4r.TableAction:
    params = [p4r.Action.Param(param_id=index, value=value) for index, value in enumerate(values, 1)]
    return p4r.TableAction(action=p4r.Action(action_id=action_id, params=params))


def forward(port: int) -> p4r.TableAction:
    return action(FORWARD, bytes([port]), b"\1")


def default(table_id: int, call: p4r.TableAction | None = None) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=table_id, is_default_action=True, action=call)


def everything(**fields: Any) -> p4r.TableEntry:
    """Return the entry of ingress.ipv4_lpm that matches every packet."""
    return p4r.TableEntry(table_id=ROUTES, action=action(DROP), **fields)


def send(controller: Controller, payload: bytes) -> None:
    metadata = [
        p4r.PacketMetadata(metadata_id=1, value=b"\1"),
        p4r.PacketMetadata(metadata_id=3, value=b"\2"),
    ]
    controller.send(packet=p4r.PacketOut(payload=payload, metadata=metadata))


def read(controller: Controller, **entity: Any) -> list[p4r.Entity]:
    return controller.read(p4r.Entity(**entity))


def test_a_packet_goes_out_and_comes_in(controller: Controller) -> None:
    """The program forwards everything to one port; when that is the CPU's, a packet-out comes back whole."""
    controller.modify(table_entry=default(ALWAYS, forward(CPU_PORT)))
    send(controller, b"payload" * 10)
    packet = controller.receive().packet
    raw = bytes([0x00, 0x80, 0x02]) + b"payload" * 10  # bit<9> 1, bit<7> 0, bit<8> 2: nothing takes them off
    metadata = {item.metadata_id: int.from_bytes(item.value, "big") for item in packet.metadata}
    assert metadata == {1: 1, 2: 0, 3: 0x0200 | ord("p")}
    assert packet.payload == raw[4:]


def test_entries_meet_packets_and_count_them(controller: Controller) -> None:
    controller.modify(table_entry=default(ALWAYS, forward(CPU_PORT)))
    controller.insert(table_entry=everything(counter_data=p4r.CounterData(packet_count=10, byte_count=1000)))
    for _ in range(3):
        send(controller, bytes(61))
        controller.receive()
    (answer,) = read(controller, table_entry=p4r.TableEntry(table_id=ROUTES, counter_data=p4r.CounterData()))
    data = p4r.CounterData(packet_count=13, byte_count=1000 + 3 * 64)
    assert answer.table_entry == everything(counter_data=data)
    zero = p4r.CounterData()
    controller.modify(direct_counter_entry=p4r.DirectCounterEntry(table_entry=everything(), data=zero))
    (direct,) = read(
        controller, direct_counter_entry=p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=ROUTES))
    )
    assert direct.direct_counter_entry.data == zero


def test_a_default_action_is_set_and_reset(controller: Controller, plane: DataPlane) -> None:
    assert [port for port, _ in plane.process(3, bytes(64))] == [1]
    controller.modify(table_entry=default(ALWAYS, forward(9)))
    assert [port for port, _ in plane.process(3, bytes(64))] == [9]
    controller.modify(table_entry=default(ALWAYS, action(DROP)))
    assert plane.process(3, bytes(64)) == []
    controller.modify(table_entry=default(ALWAYS))
    assert [port for port, _ in plane.process(3, bytes(64))] == [1]


def test_every_kind_of_key(controller: Controller) -> None:
    rules = [
        p4r.TableEntry(
            table_id=ACL,
            match=[
                p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=b"\1\xff")),
                p4r.FieldMatch(
                    field_id=2, ternary=p4r.FieldMatch.Ternary(value=b"\x0a\0\0\0", mask=b"\xff\0\0\0")
                ),
                p4r.FieldMatch(field_id=3, optional=p4r.FieldMatch.Optional(value=b"\x11")),
                p4r.FieldMatch(field_id=4, range=p4r.FieldMatch.Range(low=b"\0", high=b"\x12\xb7")),
            ],
            priority=2**31 - 1,
            action=forward(7),
        ),
        p4r.TableEntry(
            table_id=ACL,
            match=[p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=b"\0"))],
            priority=1,
            action=action(DROP),
        ),
    ]
    for rule in rules:
        controller.insert(table_entry=rule)
    answers = read(controller, table_entry=p4r.TableEntry(table_id=ACL))
    assert [answer.table_entry for answer in answers] == rules
    refusal = controller.refused(controller.insert, table_entry=rules[0])
    assert refusal.codes == ["ALREADY_EXISTS"]
    for rule in rules:
        rule.action.CopyFrom(forward(8))
        controller.modify(table_entry=rule)
        controller.delete(table_entry=rule)
    assert read(controller, table_entry=p4r.TableEntry(table_id=ACL)) == []


def test_entries_of_the_program(controller: Controller) -> None:
    """Check that they have the handles the server takes them to have."""
    initial = read(controller, table_entry=p4r.TableEntry(table_id=PRESET))
    for entity in initial:
        entity.table_entry.action.CopyFrom(action(DROP))
        controller.modify(table_entry=entity.table_entry)
        controller.delete(table_entry=entity.table_entry)
        controller.insert(table_entry=entity.table_entry)
    assert read(controller, table_entry=p4r.TableEntry(table_id=PRESET)) == initial
    data = p4r.CounterData(packet_count=5)
    (first, _) = read(controller, table_entry=p4r.TableEntry(table_id=CLASSES))
    counter = p4r.DirectCounterEntry(table_entry=first.table_entry, data=data)
    controller.modify(direct_counter_entry=counter)
    answers = read(
        controller, direct_counter_entry=p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=CLASSES))
    )
    assert [answer.direct_counter_entry.data.packet_count for answer in answers] == [5, 0]


def test_a_full_table(controller: Controller) -> None:
    for number in range(4):
        lpm = p4r.FieldMatch.LPM(value=bytes([number + 1, 0, 0, 0]), prefix_len=8)
        entry = p4r.TableEntry(
            table_id=ROUTES, match=[p4r.FieldMatch(field_id=1, lpm=lpm)], action=action(DROP)
        )
        controller.insert(table_entry=entry)
    assert controller.refused(controller.insert, table_entry=everything()).codes == ["RESOURCE_EXHAUSTED"]
    controller.delete(table_entry=entry)
    controller.insert(table_entry=everything())


def test_counters_and_registers(controller: Controller) -> None:
    data = p4r.CounterData(packet_count=4, byte_count=2**62)
    counter = p4r.CounterEntry(counter_id=0x12000001, index=p4r.Index(index=7), data=data)
    controller.modify(counter_entry=counter)
    answers = read(controller, counter_entry=p4r.CounterEntry(counter_id=0x12000001))
    assert len(answers) == 8
    assert answers[7].counter_entry == counter
    cells = [
        p4r.RegisterEntry(
            register_id=0x16000001, index=p4r.Index(index=3), data=p4d.P4Data(bitstring=b"\x0f\xff")
        ),
        p4r.RegisterEntry(
            register_id=0x16000002, index=p4r.Index(index=1), data=p4d.P4Data(bitstring=b"\xfd\x1d")
        ),
        p4r.RegisterEntry(
            register_id=0x16000003,
            index=p4r.Index(index=1),
            data=p4d.P4Data(bitstring=bytes(range(1, 256)) + b"\0"),
        ),
    ]
    for cell in cells:
        controller.modify(register_entry=cell)
        request = p4r.RegisterEntry(register_id=cell.register_id, index=cell.index)
        assert read(controller, register_entry=request) == [p4r.Entity(register_entry=cell)]


def test_multicast_groups(controller: Controller, config: p4r.ForwardingPipelineConfig) -> None:
    group = p4r.MulticastGroupEntry(multicast_group_id=5, replicas=[p4r.Replica(port=b"\1", instance=7)])
    entry = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
    controller.insert(packet_replication_engine_entry=entry)
    group.replicas.add(port=b"\2", instance=8)
    entry = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
    controller.modify(packet_replication_engine_entry=entry)
    controller.set_config("VERIFY_AND_COMMIT", config)
    controller.insert(packet_replication_engine_entry=entry)
    controller.delete(packet_replication_engine_entry=entry)


def test_a_saved_pipeline_is_replayed(
    controller: Controller, plane: DataPlane, config: p4r.ForwardingPipelineConfig
) -> None:
    controller.set_config("VERIFY_AND_SAVE", config)
    controller.modify(table_entry=default(ALWAYS, forward(9)))
    assert [port for port, _ in plane.process(3, bytes(64))] == [1]
    controller.set_config("COMMIT")
    assert [port for port, _ in plane.process(3, bytes(64))] == [9]


def test_what_the_data_plane_cannot_do_is_refused(controller: Controller, with_extra: Any) -> None:
    """Check also that the program that runs goes on."""
    controller.modify(table_entry=default(ALWAYS, forward(CPU_PORT)))
    externs = [{"name": "ingress.cache", "id": 0, "type": "cache_t"}]
    for kind in ("VERIFY", "VERIFY_AND_SAVE", "VERIFY_AND_COMMIT"):
        refusal = controller.refused(controller.set_config, kind, with_extra(extern_instances=externs))
        assert refusal.code == "INVALID_ARGUMENT"
        assert "extern instance ingress.cache is not supported by this switch" in refusal.message
    send(controller, bytes(60))
    assert len(controller.receive().packet.payload) == 59


def test_a_table_with_initial_entries_takes_more(controller: Controller) -> None:
    """P4Info says how many; p4c writes no room for any into the JSON."""
    added = [p4r.TableEntry(table_id=PRESET, priority=9 + n, action=action(DROP)) for n in range(1022)]
    entries = [p4r.Entity(table_entry=entry) for entry in added]
    controller.write(*(p4r.Update(type=p4r.Update.INSERT, entity=entity) for entity in entries))
    assert len(read(controller, table_entry=p4r.TableEntry(table_id=PRESET))) == 1024
    one_more = p4r.TableEntry(table_id=PRESET, priority=5000, action=action(DROP))
    assert controller.refused(controller.insert, table_entry=one_more).codes == ["RESOURCE_EXHAUSTED"]
