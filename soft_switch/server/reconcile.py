"""Transfer of the forwarding state of one pipeline to another: RECONCILE_AND_COMMIT.

Source: P4Runtime specification, section "SetForwardingPipelineConfig RPC". The state is read as a
controller would read it and becomes writes for the new pipeline. Counters and registers come along where the
new program has them, and are dropped where it has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finsy.proto import p4r

from soft_switch.server.errors import invalid
from soft_switch.server.schema import Schema
from soft_switch.server.state import ForwardingState, PipelineConfig
from soft_switch.server.tables import TableState, named


def carry_over(old: ForwardingState, new: PipelineConfig) -> list[p4r.Update]:
    """Return the updates that bring `old`'s state into a fresh `new`; INVALID_ARGUMENT if that fails."""
    _check_names(old.config.schema, new.schema)
    return [
        *_inserts(old, action_profile_member=p4r.ActionProfileMember()),
        *_inserts(old, action_profile_group=p4r.ActionProfileGroup()),
        *_table_updates(old, new),
        *_inserts(old, digest_entry=p4r.DigestEntry()),
        *_inserts(old, packet_replication_engine_entry=_engine(multicast_group_entry={})),
        *_inserts(old, packet_replication_engine_entry=_engine(clone_session_entry={})),
        *_array_updates(old, new),
    ]


def _engine(**form: Any) -> p4r.PacketReplicationEngineEntry:
    return p4r.PacketReplicationEngineEntry(**form)


def _inserts(old: ForwardingState, **wildcard: Any) -> Iterator[p4r.Update]:
    for entity in old.read(p4r.Entity(**wildcard)):
        yield p4r.Update(type=p4r.Update.INSERT, entity=entity)


def _modify(**entity: Any) -> p4r.Update:
    return p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(**entity))


def _table_updates(old: ForwardingState, new: PipelineConfig) -> Iterator[p4r.Update]:
    for table in old.config.schema.tables.values():
        state = old.tables.state(table.id)
        changed = not table.const_default and state.default.call != table.default
        if table.id not in new.schema.tables:
            if changed or (state.entries and not table.is_const):
                raise invalid(f"the state cannot be kept: the new program has no table {table.name}")
            continue
        if changed:
            request = p4r.TableEntry(table_id=table.id, is_default_action=True)
            for entity in old.read(p4r.Entity(table_entry=request)):
                yield _modify(table_entry=entity.table_entry)
        yield from _entry_updates(old, new, state)


def _entry_updates(old: ForwardingState, new: PipelineConfig, state: TableState) -> Iterator[p4r.Update]:
    """Yield the updates of one table's entries. Those of the new program itself are there already."""
    table = state.table
    if table.is_const:
        return
    fresh = {(entry.match, entry.priority) for entry in new.schema.tables[table.id].entries}
    before = {(entry.match, entry.priority) for entry in table.entries}
    request = p4r.TableEntry(
        table_id=table.id, counter_data=p4r.CounterData(), meter_config=p4r.MeterConfig()
    )
    entities = old.read(p4r.Entity(table_entry=request))
    for key, entity in zip(state.entries, entities, strict=True):
        kind = p4r.Update.MODIFY if key in fresh else p4r.Update.INSERT
        yield p4r.Update(type=kind, entity=entity)
    for key in fresh & before - state.entries.keys():  # a controller has deleted it
        yield p4r.Update(type=p4r.Update.DELETE, entity=p4r.Entity(table_entry=named(table, key)))


def _array_updates(old: ForwardingState, new: PipelineConfig) -> Iterator[p4r.Update]:
    """Yield the updates of cells that are not as in a fresh program."""
    schema = new.schema
    for entity in old.read(p4r.Entity(meter_entry=p4r.MeterEntry())):
        if entity.meter_entry.HasField("config"):
            yield _modify(meter_entry=entity.meter_entry)
    for entity in old.read(p4r.Entity(value_set_entry=p4r.ValueSetEntry())):
        if entity.value_set_entry.members:
            yield _modify(value_set_entry=entity.value_set_entry)
    for entity in old.read(p4r.Entity(counter_entry=p4r.CounterEntry())):
        counter = entity.counter_entry
        data = counter.data
        if counter.counter_id in schema.counters and (data.packet_count or data.byte_count):
            yield _modify(counter_entry=counter)
    for entity in old.read(p4r.Entity(register_entry=p4r.RegisterEntry())):
        register = entity.register_entry
        if register.register_id in schema.registers and _is_set(register):
            yield _modify(register_entry=register)


def _is_set(register: p4r.RegisterEntry) -> bool:
    data = register.data
    return data.bool or any(data.bitstring) or any(data.enum_value)


def _check_names(old: Schema, new: Schema) -> None:
    """Refuse an id that means another object in the new pipeline: state would go to the wrong place."""
    for number, name in old.names.items():
        now = new.names.get(number, name)
        stateless = name.startswith(("direct ", "controller "))
        if now != name and not stateless:
            what = f"id {number:#010x} is {name} in the running pipeline, {now} in the new one"
            raise invalid(f"the state cannot be kept: {what}")
