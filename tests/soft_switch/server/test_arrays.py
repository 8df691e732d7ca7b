"""Counters, registers, multicast groups, and the entities that are refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import p4d, p4r
from hypothesis import given
from hypothesis import strategies as st

from soft_switch.server.bytestrings import decode, decode_signed, encode, encode_signed

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane

PER_PORT, DROPS = 0x12000001, 0x12000002
SEEN, OFFSET, CHUNK = range(0x16000001, 0x16000004)


def why(controller: Controller, kind: str, **entity: Any) -> str:
    refusal = controller.refused(getattr(controller, kind), **entity)
    assert refusal.code == "UNKNOWN"
    return f"{refusal.codes[0]}: {refusal.details[0].message}"


def counter(counter_id: int, index: int | None = None, **data: int) -> p4r.CounterEntry:
    entry = p4r.CounterEntry(counter_id=counter_id)
    if index is not None:
        entry.index.index = index
    if data:
        entry.data.CopyFrom(p4r.CounterData(**data))
    return entry


def register(register_id: int, index: int | None = None, **data: Any) -> p4r.RegisterEntry:
    entry = p4r.RegisterEntry(register_id=register_id)
    if index is not None:
        entry.index.index = index
    if data:
        entry.data.CopyFrom(p4d.P4Data(**data))
    return entry


def read_counters(controller: Controller, request: p4r.CounterEntry) -> list[tuple[int, int, int, int]]:
    entries = [entity.counter_entry for entity in controller.read(p4r.Entity(counter_entry=request))]
    return [(e.counter_id, e.index.index, e.data.packet_count, e.data.byte_count) for e in entries]


def test_one_counter_cell(controller: Controller, plane: FakePlane) -> None:
    plane.counter_write("ingress.per_port", 3, 10, 1000)
    assert read_counters(controller, counter(PER_PORT, 3)) == [(PER_PORT, 3, 10, 1000)]
    assert read_counters(controller, counter(PER_PORT, 0)) == [(PER_PORT, 0, 0, 0)]


def test_all_cells_of_a_counter(controller: Controller, plane: FakePlane) -> None:
    plane.counter_write("ingress.per_port", 3, 10, 1000)
    cells = read_counters(controller, counter(PER_PORT))
    assert cells == [(PER_PORT, index, 0, 0) if index != 3 else (PER_PORT, 3, 10, 1000) for index in range(8)]


def test_all_counters(controller: Controller) -> None:
    cells = read_counters(controller, counter(0))
    assert [cell[:2] for cell in cells] == [(PER_PORT, i) for i in range(8)] + [(DROPS, 0), (DROPS, 1)]


def test_write_a_counter(controller: Controller, plane: FakePlane) -> None:
    controller.modify(counter_entry=counter(DROPS, 1, packet_count=4, byte_count=2**62))
    assert read_counters(controller, counter(DROPS)) == [(DROPS, 0, 0, 0), (DROPS, 1, 4, 2**62)]
    controller.modify(counter_entry=counter(DROPS, 1))  # no data: no change
    assert plane.counter_read("egress.drops", 1) == (4, 2**62)
    controller.modify(counter_entry=counter(DROPS, packet_count=9))  # no index: every cell
    assert plane.counter_read_all("egress.drops").tolist() == [[9, 0], [9, 0]]


def test_a_count_beyond_63_bits_can_be_read(controller: Controller, plane: FakePlane) -> None:
    plane.counter_write("egress.drops", 0, 2**63 + 5, 1)
    assert read_counters(controller, counter(DROPS, 0)) == [(DROPS, 0, 5, 1)]


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("insert", counter(DROPS, 0), "INVALID_ARGUMENT: counter egress.drops: cells are always there"),
        ("delete", counter(DROPS, 0), "INVALID_ARGUMENT: counter egress.drops: cells are always there"),
        ("modify", counter(0, 0), "INVALID_ARGUMENT: the counter id is missing (0)"),
        (
            "modify",
            counter(SEEN, 0),
            "INVALID_ARGUMENT: id 0x16000001 is not a counter, it is register ingress.seen",
        ),
        (
            "modify",
            counter(0x13000001, 0),
            "INVALID_ARGUMENT: id 0x13000001 is not a counter, it is direct counter",
        ),
        ("modify", counter(DROPS, -1), "INVALID_ARGUMENT: counter egress.drops: index -1 is negative"),
        (
            "modify",
            counter(DROPS, 2),
            "OUT_OF_RANGE: counter egress.drops has 2 cells, index 2 is beyond the last",
        ),
        ("modify", counter(DROPS, 0, byte_count=-1), "INVALID_ARGUMENT: a counter cannot be negative"),
    ],
)
def test_a_bad_counter_write(controller: Controller, kind: str, entry: p4r.CounterEntry, text: str) -> None:
    assert why(controller, kind, counter_entry=entry).startswith(text)


@pytest.mark.parametrize(
    ("entity", "code"),
    [
        (p4r.Entity(counter_entry=counter(DROPS, 2)), "OUT_OF_RANGE"),
        (p4r.Entity(counter_entry=counter(DROPS, -1)), "INVALID_ARGUMENT"),
        (p4r.Entity(counter_entry=counter(0x1200FFFF)), "INVALID_ARGUMENT"),
        (p4r.Entity(counter_entry=counter(0x13000001)), "INVALID_ARGUMENT"),
        (p4r.Entity(register_entry=register(SEEN, 4)), "OUT_OF_RANGE"),
        (p4r.Entity(register_entry=register(SEEN, -1)), "INVALID_ARGUMENT"),
        (p4r.Entity(register_entry=register(PER_PORT)), "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_array_read(controller: Controller, entity: p4r.Entity, code: str) -> None:
    assert controller.refused(controller.read, entity).codes == [code]


def test_registers(controller: Controller, plane: FakePlane) -> None:
    written = register(SEEN, 2, bitstring=b"\x0f\xff")
    controller.modify(register_entry=written)
    assert plane.registers["ingress.seen"] == [0, 0, 0xFFF, 0]
    assert controller.read(p4r.Entity(register_entry=register(SEEN, 2))) == [
        p4r.Entity(register_entry=written)
    ]
    controller.modify(register_entry=register(SEEN, bitstring=b"\0\1"))
    assert plane.registers["ingress.seen"] == [1] * 4
    entries = controller.read(p4r.Entity(register_entry=register(SEEN)))
    assert entries == [p4r.Entity(register_entry=register(SEEN, i, bitstring=b"\1")) for i in range(4)]


def test_a_signed_register(controller: Controller, plane: FakePlane) -> None:
    """int<12>, with the specification's own example of -739."""
    written = register(OFFSET, 0, bitstring=b"\xfd\x1d")
    controller.modify(register_entry=written)
    assert plane.registers["ingress.offset"][0] == 0xD1D
    assert controller.read(p4r.Entity(register_entry=register(OFFSET, 0))) == [
        p4r.Entity(register_entry=written)
    ]


def test_a_wide_register(controller: Controller, plane: FakePlane) -> None:
    value = bytes(range(1, 256)) + b"\0"
    controller.modify(register_entry=register(CHUNK, 1, bitstring=value))
    assert plane.registers["ingress.chunk"][1] == int.from_bytes(value, "big")
    (entity,) = controller.read(p4r.Entity(register_entry=register(CHUNK, 1)))
    assert entity.register_entry.data.bitstring == value


def test_a_bool_register(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    config.p4info.registers[0].type_spec.bool.SetInParent()
    controller.set_config(config=config)
    controller.modify(register_entry=register(SEEN, 0, bool=True))
    assert plane.registers["ingress.seen"] == [1, 0, 0, 0]
    (entity,) = controller.read(p4r.Entity(register_entry=register(SEEN, 0)))
    assert entity.register_entry.data.bool is True


def test_a_register_of_serializable_enums(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    enum = config.p4info.type_info.serializable_enums["state_t"]
    enum.underlying_type.bitwidth = 12
    config.p4info.registers[0].type_spec.serializable_enum.name = "state_t"
    controller.set_config(config=config)
    controller.modify(register_entry=register(SEEN, 1, enum_value=b"\0\7"))
    assert plane.registers["ingress.seen"] == [0, 7, 0, 0]
    (entity,) = controller.read(p4r.Entity(register_entry=register(SEEN, 1)))
    assert entity.register_entry.data.enum_value == b"\7"


def test_a_register_of_structs(controller: Controller, config: p4r.ForwardingPipelineConfig) -> None:
    config.p4info.registers[0].type_spec.struct.name = "pair_t"
    controller.set_config(config=config)
    refusal = controller.refused(controller.read, p4r.Entity(register_entry=register(SEEN, 0)))
    assert refusal.codes == ["UNIMPLEMENTED"]
    assert refusal.details[0].message.startswith("register ingress.seen has elements of type struct")
    assert why(controller, "modify", register_entry=register(SEEN, 0, bitstring=b"\1")).startswith(
        "UNIMPLEMENTED"
    )


def test_all_registers(controller: Controller) -> None:
    entities = controller.read(p4r.Entity(register_entry=register(0)))
    assert [entity.register_entry.register_id for entity in entities] == (
        [SEEN] * 4 + [OFFSET] * 2 + [CHUNK] * 2
    )


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("insert", register(SEEN, 0, bitstring=b"\1"), "INVALID_ARGUMENT: register ingress.seen: cells are"),
        ("delete", register(SEEN, 0), "INVALID_ARGUMENT: register ingress.seen: cells are always there"),
        ("modify", register(SEEN, 0), "INVALID_ARGUMENT: register ingress.seen: the data to write is missi"),
        ("modify", register(0x1600FFFF, 0), "INVALID_ARGUMENT: there is no register with id 0x1600ffff"),
        ("modify", register(SEEN, 4, bitstring=b"\1"), "OUT_OF_RANGE: register ingress.seen has 4 cells"),
        ("modify", register(SEEN, 0, bitstring=b"\x10\0"), "OUT_OF_RANGE: register ingress.seen, data is "
                                                           "0x1000, which does not fit within 12 bits"),
        ("modify", register(SEEN, 0, bitstring=b""), "OUT_OF_RANGE: register ingress.seen, data is an empt"),
        ("modify", register(OFFSET, 0, bitstring=b"\x8d\x1d"), "OUT_OF_RANGE: register ingress.offset, data "
                                                               "is -29411, which does not fit within int<1"),
        ("modify", register(SEEN, 0, bool=True), "INVALID_ARGUMENT: register ingress.seen, data must be a "
                                                 "bitstring, the request gives bool"),
    ],
)  # fmt: skip
def test_a_bad_register_write(controller: Controller, kind: str, entry: p4r.RegisterEntry, text: str) -> None:
    assert why(controller, kind, register_entry=entry).startswith(text)


# The tables of valid and invalid byte strings in the specification, section "Bytestrings"


@pytest.mark.parametrize(
    ("width", "value", "text"),
    [(8, 99, "63"), (16, 99, "0063"), (16, 99, "63"), (16, 12388, "3064"), (16, 12388, "003064"),
     (12, 99, "0063"), (12, 99, "63"), (12, 99, "000063")],
)  # fmt: skip
def test_valid_unsigned(width: int, value: int, text: str) -> None:
    assert decode(bytes.fromhex(text), width, "x") == value


@pytest.mark.parametrize(
    ("width", "value", "text"),
    [(8, 99, "63"), (8, -99, "9d"), (8, -99, "ff9d"), (12, -739, "fd1d"), (16, 0, "0000"), (16, 0, "00")],
)
def test_valid_signed(width: int, value: int, text: str) -> None:
    assert decode_signed(bytes.fromhex(text), width, "x") == value % (1 << width)


@pytest.mark.parametrize(
    ("width", "text"), [(8, "0163"), (8, ""), (16, "010063"), (12, "1063"), (12, "010063"), (12, "004063")]
)
def test_invalid_unsigned(width: int, text: str) -> None:
    with pytest.raises(Exception, match=r"x is .*(does not fit within|an empty byte string)") as caught:
        decode(bytes.fromhex(text), width, "x")
    assert caught.value.code.name == "OUT_OF_RANGE"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "text"), [(8, "009d"), (12, "8d1d"), (16, "")])
def test_invalid_signed(width: int, text: str) -> None:
    with pytest.raises(Exception, match=r"x is .*(does not fit within|an empty byte string)"):
        decode_signed(bytes.fromhex(text), width, "x")


@given(st.integers(1, 2048).flatmap(lambda width: st.tuples(st.just(width), st.integers(0, 2**width - 1))))
def test_bytestrings_are_shortest_and_come_back(case: tuple[int, int]) -> None:
    width, value = case
    data = encode(value)
    assert decode(data, width, "x") == value
    assert len(data) == 1 or data[0] != 0
    signed = encode_signed(value, width)
    assert decode_signed(signed, width, "x") == value
    if len(signed) > 1:  # one byte less would be another number
        assert int.from_bytes(signed[1:], "big", signed=True) != int.from_bytes(signed, "big", signed=True)


# Multicast groups


def group(number: int, *replicas: p4r.Replica, **fields: Any) -> p4r.PacketReplicationEngineEntry:
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=replicas, **fields)
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)


def read_groups(controller: Controller, number: int = 0) -> list[p4r.PacketReplicationEngineEntry]:
    entities = controller.read(p4r.Entity(packet_replication_engine_entry=group(number)))
    return [entity.packet_replication_engine_entry for entity in entities]


def test_multicast_groups(controller: Controller, plane: FakePlane) -> None:
    first = group(
        1, p4r.Replica(port=b"\1", instance=5), p4r.Replica(port=b"\1\xff", instance=0), metadata=b"m"
    )
    second = group(65535, p4r.Replica(egress_port=2, instance=65535), p4r.Replica(egress_port=2, instance=1))
    controller.insert(packet_replication_engine_entry=first)
    controller.insert(packet_replication_engine_entry=second)
    assert plane.groups == {1: ((1, 5), (511, 0)), 65535: ((2, 65535), (2, 1))}
    assert read_groups(controller) == [first, second]
    assert read_groups(controller, 65535) == [second]
    changed = group(1, p4r.Replica(port=b"\3"))
    controller.modify(packet_replication_engine_entry=changed)
    assert plane.groups[1] == ((3, 0),)
    assert read_groups(controller, 1) == [changed]
    controller.delete(packet_replication_engine_entry=group(1))
    assert read_groups(controller) == [second]
    assert list(plane.groups) == [65535]


def test_an_empty_multicast_group(controller: Controller, plane: FakePlane) -> None:
    controller.insert(packet_replication_engine_entry=group(9))
    assert plane.groups == {9: ()}


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("insert", group(0), "INVALID_ARGUMENT: multicast group 0 means no replication: groups count from 1"),
        ("insert", group(65536), "OUT_OF_RANGE: multicast group 65536 does not fit within 16 bits"),
        ("insert", group(7), "ALREADY_EXISTS: multicast group 7 is there already"),
        ("modify", group(8), "NOT_FOUND: there is no multicast group 8"),
        ("delete", group(8), "NOT_FOUND: there is no multicast group 8"),
        ("insert", group(8, p4r.Replica(instance=1)), "INVALID_ARGUMENT: multicast group 8: a replica has"),
        ("insert", group(8, p4r.Replica(port=b"\2\0")), "OUT_OF_RANGE: multicast group 8, port is 0x200"),
        ("insert", group(8, p4r.Replica(port=b"")), "OUT_OF_RANGE: multicast group 8, port is an empty byt"),
        ("insert", group(8, p4r.Replica(egress_port=512)), "OUT_OF_RANGE: multicast group 8: port 512 does"),
        ("insert", group(8, p4r.Replica(port=b"\1", instance=65536)), "INVALID_ARGUMENT: multicast group 8: "
                                                                      "instance 65536 does not fit within"),
        ("insert", group(8, p4r.Replica(port=b"\1"), p4r.Replica(egress_port=1)),
         "INVALID_ARGUMENT: multicast group 8 has port 1 with instance 0 twice"),
        ("insert", group(8, p4r.Replica(port=b"\1", backup_replicas=[{"port": b"\1", "instance": 1}])),
         "INVALID_ARGUMENT: multicast group 8: port 1 is its own backup"),
        ("insert", group(8, p4r.Replica(port=b"\1", backup_replicas=[{"port": b"\2"}, {"port": b"\2"}])),
         "INVALID_ARGUMENT: multicast group 8 has port 2 with instance 0 twice"),
        ("insert", group(8, p4r.Replica(port=b"\1", backup_replicas=[{"port": b"\2\0"}])),
         "OUT_OF_RANGE: multicast group 8, backup port is 0x200"),
        ("insert", p4r.PacketReplicationEngineEntry(), "INVALID_ARGUMENT: the packet replication engine en"),
    ],
)  # fmt: skip
def test_a_bad_multicast_write(
    controller: Controller, plane: FakePlane, kind: str, entry: p4r.PacketReplicationEngineEntry, text: str
) -> None:
    controller.insert(packet_replication_engine_entry=group(7))
    assert why(controller, kind, packet_replication_engine_entry=entry).startswith(text)
    assert plane.groups == {7: ()}


def test_a_multicast_group_that_is_not_there(controller: Controller) -> None:
    refusal = controller.refused(controller.read, p4r.Entity(packet_replication_engine_entry=group(3)))
    assert refusal.codes == ["NOT_FOUND"]
    empty = p4r.PacketReplicationEngineEntry()
    refusal = controller.refused(controller.read, p4r.Entity(packet_replication_engine_entry=empty))
    assert refusal.codes == ["INVALID_ARGUMENT"]


def clone(number: int, *replicas: p4r.Replica, **fields: Any) -> p4r.PacketReplicationEngineEntry:
    entry = p4r.CloneSessionEntry(session_id=number, replicas=replicas, **fields)
    return p4r.PacketReplicationEngineEntry(clone_session_entry=entry)


def test_clone_sessions(controller: Controller, plane: FakePlane) -> None:
    first = clone(5, p4r.Replica(port=b"\1", instance=2), p4r.Replica(egress_port=3), packet_length_bytes=64)
    controller.insert(packet_replication_engine_entry=first)
    controller.insert(packet_replication_engine_entry=clone(32767))
    assert plane.sessions == {5: (((1, 2), (3, 0)), 64), 32767: ((), 0)}
    answers = controller.read(p4r.Entity(packet_replication_engine_entry=clone(0)))
    assert [answer.packet_replication_engine_entry for answer in answers] == [first, clone(32767)]
    second = clone(5, p4r.Replica(port=b"\1"))
    controller.modify(packet_replication_engine_entry=second)
    assert plane.sessions[5] == (((1, 0),), 0)
    (answer,) = controller.read(p4r.Entity(packet_replication_engine_entry=clone(5)))
    assert answer.packet_replication_engine_entry == second
    controller.delete(packet_replication_engine_entry=clone(5, class_of_service=3))  # the id alone counts
    assert plane.sessions == {32767: ((), 0)}


def test_groups_and_sessions_are_apart_and_end_with_their_pipeline(
    controller: Controller, plane: FakePlane, config: p4r.ForwardingPipelineConfig
) -> None:
    controller.insert(packet_replication_engine_entry=clone(1))
    controller.insert(packet_replication_engine_entry=group(1))
    assert (plane.groups, plane.sessions) == ({1: ()}, {1: ((), 0)})
    controller.set_config(config=config)
    assert (plane.groups, plane.sessions) == ({}, {})
    for wildcard in (clone(0), group(0)):
        assert controller.read(p4r.Entity(packet_replication_engine_entry=wildcard)) == []


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("insert", clone(0), "INVALID_ARGUMENT: clone session 0 is not within 1 to 32767"),
        ("insert", clone(32768), "INVALID_ARGUMENT: clone session 32768 is not within 1 to 32767"),
        ("insert", clone(7), "ALREADY_EXISTS: clone session 7 is there already"),
        ("modify", clone(8), "NOT_FOUND: there is no clone session 8"),
        ("delete", clone(8), "NOT_FOUND: there is no clone session 8"),
        ("insert", clone(8, p4r.Replica()), "INVALID_ARGUMENT: clone session 8: a replica has no port"),
        ("insert", clone(8, p4r.Replica(port=b"\2\0")), "OUT_OF_RANGE: clone session 8, port is 0x200"),
        ("insert", clone(8, p4r.Replica(port=b"\1"), p4r.Replica(port=b"\1")),
         "INVALID_ARGUMENT: clone session 8 has port 1 with instance 0 twice"),
        ("insert", clone(8, packet_length_bytes=-1), "INVALID_ARGUMENT: clone session 8: packet length -1"),
        ("insert", clone(8, class_of_service=1), "UNIMPLEMENTED: clone session 8: this switch has no class"),
    ],
)  # fmt: skip
def test_a_bad_clone_write(
    controller: Controller, plane: FakePlane, kind: str, entry: p4r.PacketReplicationEngineEntry, text: str
) -> None:
    controller.insert(packet_replication_engine_entry=clone(7))
    assert why(controller, kind, packet_replication_engine_entry=entry).startswith(text)
    assert plane.sessions == {7: ((), 0)}
    refusal = controller.refused(controller.read, p4r.Entity(packet_replication_engine_entry=clone(9)))
    assert refusal.codes == ["NOT_FOUND"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["group", "session"])
def test_backup_replicas(controller: Controller, plane: FakePlane, form: str) -> None:
    """The first port that is up; the replica's own when none is."""
    make = group if form == "group" else clone
    down: set[int] = set()
    looked = threading.Event()

    def port_is_up(port: int) -> bool:
        looked.set()
        return port not in down

    plane.port_is_up = port_is_up  # type: ignore[method-assign]
    backups = [p4r.BackupReplica(port=b"\2", instance=5), p4r.BackupReplica(port=b"\3", instance=6)]
    entry = make(1, p4r.Replica(port=b"\1", backup_replicas=backups), p4r.Replica(port=b"\7"))
    controller.insert(packet_replication_engine_entry=entry)

    def chosen() -> tuple[int, int]:
        replicas = plane.groups[1] if form == "group" else plane.sessions[1][0]
        assert replicas[1] == (7, 0)
        return replicas[0]

    assert chosen() == (1, 0)
    for ports, expected in [
        ({1}, (2, 5)),
        ({1, 2}, (3, 6)),
        ({1, 2, 3}, (1, 0)),
        ({1}, (2, 5)),
        (set(), (1, 0)),
    ]:
        down.clear()
        down |= ports
        for _ in range(3):  # one look may have begun before the ports changed
            looked.clear()
            assert looked.wait(10)
        controller.read(p4r.Entity(packet_replication_engine_entry=entry))  # waits for the look to end
        assert chosen() == expected
    (answer,) = controller.read(p4r.Entity(packet_replication_engine_entry=entry))
    assert answer.packet_replication_engine_entry == entry
    controller.modify(packet_replication_engine_entry=make(1, p4r.Replica(port=b"\1")))
    looked.clear()
    assert not looked.wait(0.25)


# What is refused

REFUSED = [
    (p4r.Entity(extern_entry=p4r.ExternEntry(extern_type_id=1)), "externs"),
]


@pytest.mark.parametrize(("entity", "name"), REFUSED, ids=[name for _, name in REFUSED])
def test_refused_entities(controller: Controller, entity: p4r.Entity, name: str) -> None:
    text = f"{name} are not supported by this switch yet"
    refusal = controller.refused(controller.write, p4r.Update(type=p4r.Update.INSERT, entity=entity))
    assert (refusal.codes, refusal.details[0].message) == (["UNIMPLEMENTED"], text)
    refusal = controller.refused(controller.read, entity)
    assert (refusal.codes, refusal.details[0].message) == (["UNIMPLEMENTED"], text)


@pytest.mark.parametrize(("entity", "name"), REFUSED, ids=[name for _, name in REFUSED])
def test_a_wildcard_read_of_a_refused_entity_finds_nothing(
    controller: Controller, entity: p4r.Entity, name: str
) -> None:
    kind = entity.WhichOneof("entity")
    assert kind is not None
    wildcard = p4r.Entity()
    getattr(wildcard, kind).SetInParent()
    assert controller.read(wildcard) == []
