"""What holds for any sequence of requests: of arbitration, and of updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import U128, p4d, p4r, rpc_code
from hypothesis import given, settings
from hypothesis import strategies as st

from soft_switch.dataplane import DataPlane
from soft_switch.server.arbitration import Arbiter
from soft_switch.server.errors import P4RuntimeError
from soft_switch.server.state import ForwardingState, parse_config

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

# Arbitration

bids = st.tuples(st.integers(1, 5), st.sampled_from(["", "r"]), st.none() | st.integers(0, 6))
leaves = st.integers(1, 5)


@given(st.lists(bids | leaves, max_size=40), st.booleans())
def test_what_a_controller_heard_last_is_true(
    events: list[tuple[int, str, int | None] | int], promote: bool
) -> None:
    """At most one primary a role, the right one, and every controller knows whether it is."""
    arbiter = Arbiter(1, promote=promote)
    live: dict[str, dict[int, int | None]] = {"": {}, "r": {}}
    highest: dict[str, int | None] = {"": None, "r": None}
    heard: dict[int, p4r.MasterArbitrationUpdate] = {}
    for event in events:
        session = event if isinstance(event, int) else event[0]
        try:
            if isinstance(event, int):
                raise EOFError
            _, name, election_id = event
            message = p4r.MasterArbitrationUpdate(device_id=1, role=p4r.Role(name=name))
            if election_id is not None:
                message.election_id.CopyFrom(U128.encode(election_id))
            notices = arbiter.update(session, message)
        except (P4RuntimeError, EOFError):  # a refused update ends the stream
            notices = arbiter.leave(session)
            for members in live.values():
                members.pop(session, None)
            heard.pop(session, None)
        else:
            live[name][session] = election_id
            if election_id is not None:
                highest[name] = max(election_id, highest[name] or 0)
        for receiver, notice in notices:
            heard[receiver] = notice
        primaries = []
        for name, members in live.items():
            ids = {election_id: member for member, election_id in members.items() if election_id is not None}
            assert len(ids) == sum(election_id is not None for election_id in members.values())
            top = max(ids, default=None)
            primary = ids[top] if top is not None and (promote or top == highest[name]) else None
            if primary is not None:
                primaries.append(primary)
            for member in members:
                code = heard[member].status.code
                assert arbiter.is_primary(member) == (member == primary)
                if primary is None:
                    assert code == rpc_code.NOT_FOUND
                else:
                    assert code == (rpc_code.OK if member == primary else rpc_code.ALREADY_EXISTS)
                    assert U128.decode(heard[member].election_id) == top
        assert sorted(arbiter.primaries()) == sorted(primaries)


# Updates

small = st.integers(-1, 5)
octets = st.binary(max_size=3)
table_ids = st.integers(0x02000001, 0x02000006) | st.sampled_from([0, 0x01000001, 0x02FFFFFF])
action_ids = st.integers(0x01000001, 0x01000005) | st.sampled_from([0, 0x01FFFFFF])


def build(message: type, **fields: SearchStrategy[object]) -> SearchStrategy[object]:
    """Messages with each of the fields set or not."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: message(**given))


forms = {
    "exact": build(p4r.FieldMatch.Exact, value=octets),
    "lpm": build(p4r.FieldMatch.LPM, value=octets, prefix_len=small | st.integers(8, 32)),
    "ternary": build(p4r.FieldMatch.Ternary, value=octets, mask=octets),
    "range": build(p4r.FieldMatch.Range, low=octets, high=octets),
    "optional": build(p4r.FieldMatch.Optional, value=octets),
}
matches = st.one_of(
    [build(p4r.FieldMatch, field_id=st.integers(0, 5), **{name: form}) for name, form in forms.items()]
)
actions = build(
    p4r.Action,
    action_id=action_ids,
    params=st.lists(build(p4r.Action.Param, param_id=st.integers(0, 3), value=octets), max_size=3),
)
counts = st.builds(p4r.CounterData, packet_count=st.integers(-1, 9), byte_count=st.integers(0, 9))
rest = {
    "action": build(p4r.TableAction, action=actions),
    "priority": small,
    "counter_data": counts,
    "metadata": octets,
}
anything = build(
    p4r.TableEntry,
    table_id=table_ids,
    match=st.lists(matches, max_size=4),
    is_default_action=st.booleans(),
    **rest,
)


def sound(
    table_id: int, *actions: p4r.Action, match: SearchStrategy[object], **fields: Any
) -> SearchStrategy[object]:
    """Entries that a table takes as they are."""
    action = st.sampled_from([p4r.TableAction(action=action) for action in actions])
    return st.builds(
        lambda **given: p4r.TableEntry(table_id=table_id, **fields, **given),
        match=match,
        action=action,
        metadata=octets,
    )


drop = p4r.Action(action_id=0x01000002)
forward = p4r.Action(
    action_id=0x01000001,
    params=[p4r.Action.Param(param_id=1, value=b"\3"), p4r.Action.Param(param_id=2, value=b"\2\0\0\0\0\1")],
)
digits = st.integers(1, 4).map(lambda number: bytes([number]))
prefixes = digits.map(lambda octet: [{"field_id": 1, "lpm": {"value": octet + bytes(3), "prefix_len": 8}}])
keys = st.tuples(digits, st.none() | digits).map(
    lambda pair: (
        [{"field_id": 1, "exact": {"value": pair[0]}}]
        + ([{"field_id": 2, "ternary": {"value": pair[1], "mask": b"\x07"}}] if pair[1] else [])
    )
)
preset = st.just(
    [
        {"field_id": 1, "lpm": {"value": bytes([10, 0, 0, 0]), "prefix_len": 8}},
        {"field_id": 2, "optional": {"value": b"\x11"}},
        {"field_id": 3, "range": {"low": b"\x12\xb7", "high": b"\x12\xb8"}},
    ]
)
entries = st.one_of(
    sound(0x02000001, drop, forward, match=prefixes),
    sound(0x02000003, drop, forward, match=keys, priority=1),
    sound(0x02000006, drop, match=preset, priority=2),
    sound(0x02000001, drop, match=st.just([]), is_default_action=True),
)
indices = st.integers(0, 3).map(lambda index: p4r.Index(index=index))
replicas = digits.map(lambda port: [p4r.Replica(port=port, instance=7)])
groups = st.builds(p4r.MulticastGroupEntry, multicast_group_id=st.integers(1, 3), replicas=replicas)
good = st.one_of(
    st.builds(p4r.Entity, table_entry=entries),
    st.builds(
        p4r.Entity, direct_counter_entry=st.builds(p4r.DirectCounterEntry, table_entry=entries, data=counts)
    ),
    st.builds(
        p4r.Entity,
        counter_entry=st.builds(p4r.CounterEntry, counter_id=st.just(0x12000001), index=indices, data=counts),
    ),
    st.builds(
        p4r.Entity,
        register_entry=st.builds(
            p4r.RegisterEntry,
            register_id=st.just(0x16000001),
            index=indices,
            data=digits.map(lambda octet: p4d.P4Data(bitstring=octet)),
        ),
    ),
    st.builds(
        p4r.Entity,
        packet_replication_engine_entry=st.builds(
            p4r.PacketReplicationEngineEntry, multicast_group_entry=groups
        ),
    ),
)
bad = st.one_of(
    build(p4r.Entity),
    build(p4r.Entity, table_entry=anything),
    build(p4r.Entity, direct_counter_entry=build(p4r.DirectCounterEntry, table_entry=anything, data=counts)),
    build(
        p4r.Entity,
        counter_entry=build(p4r.CounterEntry, counter_id=table_ids, index=build(p4r.Index, index=small)),
    ),
    build(
        p4r.Entity,
        register_entry=build(
            p4r.RegisterEntry,
            register_id=st.integers(0x16000001, 0x16000004),
            index=build(p4r.Index, index=small),
            data=build(p4d.P4Data, bitstring=octets),
        ),
    ),
    build(
        p4r.Entity,
        packet_replication_engine_entry=build(
            p4r.PacketReplicationEngineEntry,
            multicast_group_entry=build(
                p4r.MulticastGroupEntry,
                multicast_group_id=st.sampled_from([0, 1, 70_000]),
                replicas=st.lists(
                    build(p4r.Replica, port=octets, instance=st.sampled_from([0, 70_000])), max_size=2
                ),
            ),
        ),
    ),
)
types = st.sampled_from([1, 1, 1, 2, 2, 2, 3, 0])
updates = st.lists(st.builds(p4r.Update, type=types, entity=good | bad), min_size=3, max_size=20)
good_updates = st.lists(st.builds(p4r.Update, type=types, entity=good), min_size=3, max_size=20)


@contextmanager
def fresh(message: p4r.ForwardingPipelineConfig) -> Iterator[ForwardingState]:
    """The test program."""
    config = parse_config(message)
    with DataPlane() as plane:
        plane.load(config.device_config)
        yield ForwardingState(config, plane)


def everything(state: ForwardingState) -> list[p4r.Entity]:
    """All that wildcard reads answer."""
    group = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
    requests = [
        p4r.Entity(table_entry=p4r.TableEntry(counter_data=p4r.CounterData())),
        p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True)),
        p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry()),
        p4r.Entity(counter_entry=p4r.CounterEntry()),
        p4r.Entity(register_entry=p4r.RegisterEntry()),
        p4r.Entity(packet_replication_engine_entry=group),
    ]
    return [entity for request in requests for entity in state.read(request)]


def test_any_updates(config: p4r.ForwardingPipelineConfig) -> None:
    """Nonsense is refused with a code that blames the request, and what is refused changes nothing."""

    @settings(deadline=None, max_examples=100)
    @given(updates)
    def check(batch: list[p4r.Update]) -> None:
        with fresh(config) as state:
            for update in batch:
                before = everything(state)
                try:
                    state.write(update)
                except P4RuntimeError as refused:
                    error = refused
                else:
                    continue
                assert error.number not in (rpc_code.OK, rpc_code.INTERNAL, rpc_code.UNKNOWN)
                assert len(error.message) > 10
                assert everything(state) == before

    check()


def test_what_is_read_can_be_written_back(config: p4r.ForwardingPipelineConfig) -> None:
    """Read-write symmetry: what one switch answers, written to another, is what that one answers too."""

    @settings(deadline=None, max_examples=100)
    @given(good_updates)
    def check(batch: list[p4r.Update]) -> None:
        with fresh(config) as state, fresh(config) as copy:
            for update in batch:
                try:
                    state.write(update)
                except P4RuntimeError:
                    continue
            initial = {entity.SerializeToString() for entity in everything(copy)}
            for entity in everything(state):
                kind = entity.WhichOneof("entity")
                if entity.SerializeToString() in initial or entity.table_entry.is_const:
                    continue
                insert = kind in ("table_entry", "packet_replication_engine_entry")
                insert = insert and not entity.table_entry.is_default_action
                operation = p4r.Update.INSERT if insert else p4r.Update.MODIFY
                try:
                    copy.write(p4r.Update(type=operation, entity=entity))
                except P4RuntimeError as error:  # an initial entry of the program that was modified
                    assert error.number == rpc_code.ALREADY_EXISTS  # noqa: PT017
                    copy.write(p4r.Update(type=p4r.Update.MODIFY, entity=entity))
            kept = [entity.SerializeToString() for entity in everything(state)]
            answers = [entity.SerializeToString() for entity in everything(copy)]
            deleted = initial - set(kept)  # initial entries deleted in the original are still in the copy
            assert sorted(kept) == sorted(answer for answer in answers if answer not in deleted)

    check()
