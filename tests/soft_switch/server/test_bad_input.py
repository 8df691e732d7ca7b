"""Requests of any kind, well formed or not, on every entity: an answer, and never a defect of the server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from finsy.proto import p4d, p4i, p4r
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soft_switch.dataplane import DataPlane
from soft_switch.server.arbitration import Arbiter
from soft_switch.server.device import _write_or_roll_back
from soft_switch.server.errors import P4RuntimeError
from soft_switch.server.reconcile import carry_over
from soft_switch.server.state import ForwardingState, PipelineConfig, parse_config

HERE = Path(__file__).parent
PROGRAMS = {
    "program": HERE / "program",
    "features": HERE / "features",
    "profiles": HERE.parent / "programs" / "profiles",
}
QUICKEST_FIRST = [
    "features",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("program", "profiles")),
]
MAX_DEPTH = 7
DEFECTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@functools.cache
def pipeline(program: str) -> PipelineConfig:
    """Return a test program."""
    path = PROGRAMS[program]
    p4info = text_format.Parse(path.with_suffix(".p4info.txtpb").read_text(), p4i.P4Info())
    device = path.with_suffix(".json").read_bytes()
    return parse_config(p4r.ForwardingPipelineConfig(p4info=p4info, p4_device_config=device))


@functools.cache
def object_ids(program: str) -> list[int]:
    """Return all ids of the program's P4Info."""
    p4info = pipeline(program).message.p4info
    groups = (value for field, value in p4info.ListFields() if field.name not in ("pkg_info", "type_info"))
    return [item.preamble.id for group in groups for item in group]


NUMBERS = st.sampled_from([0, 1, 1, 1, 2, 3, 4, 9, 16, 255, 1000, 32768, 65536, -1, -5, 2**31 - 1])
OCTETS = st.sampled_from([b"\1", b"\1", b"\2", b"\0", b"\0\1", b"\xff", b"\xff\xff", b"", bytes(300)])


def scalar(field: FieldDescriptor, program: str) -> st.SearchStrategy[Any]:
    if field.type == field.TYPE_BYTES:
        return OCTETS
    if field.type == field.TYPE_BOOL:
        return st.booleans()
    if field.type == field.TYPE_STRING:
        return st.sampled_from(["", "r"])
    if field.type == field.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return st.floats(width=32)
    if field.name.endswith("_id") and field.name not in ("field_id", "param_id"):
        return st.sampled_from(object_ids(program)) | NUMBERS.filter(lambda number: number >= 0)
    unsigned = (field.TYPE_UINT32, field.TYPE_UINT64)
    return NUMBERS.map(abs) if field.type in unsigned else NUMBERS


@functools.cache
def fields_of(descriptor: Descriptor) -> list[FieldDescriptor]:
    """Return the fields worth setting: no messages with another's meaning (Any), nor unions of them."""
    return [
        field
        for field in descriptor.fields
        if field.message_type is None or not field.message_type.full_name.startswith("google.")
    ]


def fill(draw: Any, message: Message, program: str, depth: int, keep: float) -> None:
    """Set some of a message's fields, at random."""
    for field in fields_of(message.DESCRIPTOR):
        if draw(st.integers(0, 9)) >= keep:
            continue
        if field.message_type is not None and depth >= MAX_DEPTH:
            continue
        if field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                if field.message_type is not None:
                    fill(draw, getattr(message, field.name).add(), program, depth + 1, keep)
                else:
                    getattr(message, field.name).append(draw(scalar(field, program)))
        elif field.message_type is not None:
            child = getattr(message, field.name)
            child.SetInParent()
            fill(draw, child, program, depth + 1, keep)
        else:
            setattr(message, field.name, draw(scalar(field, program)))


ENTITIES = [field.name for field in p4r.Entity.DESCRIPTOR.fields]


@st.composite
def entities(draw: Any, program: str) -> p4r.Entity:
    """Draw an entity of any kind with any of its fields."""
    entity = p4r.Entity()
    name = draw(st.sampled_from(ENTITIES))
    child = getattr(entity, name)
    child.SetInParent()
    fill(draw, child, program, 1, draw(st.sampled_from([3, 6, 8])))
    return entity


@st.composite
def sound_entries(draw: Any, program: str) -> p4r.TableEntry:
    """Draw an entry that is well formed, or nearly: of an indirect table, the member may not be there."""
    schema = pipeline(program).schema
    table = draw(st.sampled_from(list(schema.tables.values())))
    entry = p4r.TableEntry(table_id=table.id, metadata=draw(OCTETS))
    digit = st.sampled_from([b"\1", b"\2", b"\3"])
    for field in table.fields:
        match = entry.match.add(field_id=field.id)
        value = draw(digit)
        if field.kind == "lpm":
            match.lpm.value, match.lpm.prefix_len = value, field.width
        elif field.kind == "ternary":
            match.ternary.value, match.ternary.mask = value, value
        elif field.kind == "range":
            match.range.low, match.range.high = value, b"\3"
        else:
            getattr(match, field.kind).value = value
    if table.needs_priority:
        entry.priority = draw(st.integers(1, 3))
    if table.indirect:
        entry.action.action_profile_member_id = draw(st.integers(1, 3))
    else:
        action = schema.actions[draw(st.sampled_from(list(table.actions)))]
        entry.action.action.action_id = action.id
        for param in action.params:
            entry.action.action.params.add(param_id=param.id, value=b"\1")
    if table.direct_counter and draw(st.booleans()):
        entry.counter_data.packet_count = 3
    if table.direct_meter and draw(st.booleans()):
        entry.meter_config.CopyFrom(p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4))
    return entry


@st.composite
def sound_entities(draw: Any, program: str) -> p4r.Entity:
    """Draw an entity that is well formed more often than not."""
    schema = pipeline(program).schema
    if draw(st.booleans()):
        return p4r.Entity(table_entry=draw(sound_entries(program)))
    number = draw(st.integers(1, 3))
    replicas = [p4r.Replica(port=bytes([port])) for port in range(1, draw(st.integers(1, 3)))]
    pre = p4r.PacketReplicationEngineEntry
    group = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=replicas)
    session = p4r.CloneSessionEntry(session_id=number, replicas=replicas)
    choices = [
        p4r.Entity(packet_replication_engine_entry=pre(multicast_group_entry=group)),
        p4r.Entity(packet_replication_engine_entry=pre(clone_session_entry=session)),
    ]
    choices += [
        p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=digest, config={"max_list_size": number}))
        for digest in schema.digests
    ]
    cell = p4r.Index(index=number - 1)
    counts = p4r.CounterData(packet_count=number)
    choices += [
        p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=counter, index=cell, data=counts))
        for counter in schema.counters
    ]
    value = p4d.P4Data(bitstring=bytes([number]))
    choices += [
        p4r.Entity(register_entry=p4r.RegisterEntry(register_id=register, index=cell, data=value))
        for register in schema.registers
    ]
    for profile in schema.action_profiles.values():
        action = schema.actions[draw(st.sampled_from(list(profile.actions)))]
        call = p4r.Action(action_id=action.id)
        for param in action.params:
            call.params.add(param_id=param.id, value=b"\1")
        member = p4r.ActionProfileMember(action_profile_id=profile.id, member_id=number, action=call)
        group_entry = p4r.ActionProfileGroup(action_profile_id=profile.id, group_id=number, max_size=2)
        for member_id in draw(st.sets(st.integers(1, 3), max_size=2)):
            group_entry.members.add(member_id=member_id, weight=1)
        choices += [p4r.Entity(action_profile_member=member), p4r.Entity(action_profile_group=group_entry)]
    return draw(st.sampled_from(choices))


@st.composite
def updates(draw: Any, program: str) -> p4r.Update:
    """Draw an update of any kind."""
    sound = draw(st.integers(0, 3)) > 0
    entity = draw(sound_entities(program) if sound else entities(program))
    return p4r.Update(type=draw(st.sampled_from([0, 1, 1, 1, 2, 2, 3])), entity=entity)


def refusal(request: Callable[[], object]) -> grpc.StatusCode | None:
    """Return the code that a request is refused with, None if it is not."""
    try:
        request()
    except P4RuntimeError as error:
        return error.code
    return None


class Plane(DataPlane):
    """One on which all ports are there."""

    def port_is_up(self, port: int) -> bool | None:
        return True


@contextmanager
def fresh(program: str) -> Iterator[ForwardingState]:
    config = pipeline(program)
    with Plane() as plane:
        plane.load(config.device_config)
        yield ForwardingState(config, plane)


def everything(state: ForwardingState) -> list[str]:
    """Return all that can be read."""
    wildcards = [p4r.Entity() for _ in ENTITIES]
    for wildcard, name in zip(wildcards, ENTITIES, strict=True):
        getattr(wildcard, name).SetInParent()
    pre = p4r.PacketReplicationEngineEntry
    replication = [pre(multicast_group_entry={}), pre(clone_session_entry={})]
    wildcards = [one for one in wildcards if not one.HasField("packet_replication_engine_entry")]
    wildcards += [p4r.Entity(packet_replication_engine_entry=entry) for entry in replication]
    return [str(entity) for wildcard in wildcards for entity in state.read(wildcard)]


@pytest.mark.parametrize("program", QUICKEST_FIRST)
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_any_batch(program: str, data: st.DataObject) -> None:
    """Check that a refusal is the request's fault and changes nothing, and that a refused batch is undone."""
    with fresh(program) as state:
        for update in data.draw(st.lists(updates(program), min_size=6, max_size=20)):
            before = everything(state)
            code = refusal(lambda: state.write(update))  # noqa: B023  (called at once)
            assert code not in DEFECTS
            assert code is None or everything(state) == before
        for _ in range(3):
            before = everything(state)
            batch = data.draw(st.lists(updates(program), min_size=1, max_size=6))
            results = _write_or_roll_back(state, batch, None)
            for error in results:
                assert error is None or error.code not in DEFECTS
            if any(results):
                assert sorted(everything(state)) == sorted(before)
        request = data.draw(entities(program))
        assert refusal(lambda: state.read(request)) not in DEFECTS


@pytest.mark.parametrize("program", QUICKEST_FIRST)
@settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_any_state_is_carried_over(program: str, data: st.DataObject) -> None:
    """RECONCILE_AND_COMMIT: what a state consists of makes the same state of a fresh one."""
    with fresh(program) as state, fresh(program) as other:
        for update in data.draw(st.lists(updates(program), max_size=12)):
            refusal(lambda: state.write(update))  # noqa: B023  (called at once)
        for update in carry_over(state, pipeline(program)):
            other.write(update)
        assert sorted(everything(other)) == sorted(everything(state))


@pytest.mark.slow
@settings(max_examples=50, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_any_arbitration(data: st.DataObject) -> None:
    arbiter = Arbiter(1)
    for _ in range(8):
        message = p4r.MasterArbitrationUpdate()
        fill(data.draw, message, "program", 1, 8)
        session = data.draw(st.integers(1, 3))
        code = refusal(lambda: arbiter.update(session, message))  # noqa: B023  (called at once)
        assert code not in DEFECTS
        if code is not None:
            arbiter.leave(session)
