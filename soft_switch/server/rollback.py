"""Inverse updates, which ROLLBACK_ON_ERROR needs to take updates back.

Source: P4Runtime specification, section "Batch Atomicity". All that a controller can write is taken back.
An entry's idle time and a meter's buckets start anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from finsy.proto import p4r

_KEYS: dict[str, tuple[str, ...]] = {
    "counter_entry": ("counter_id", "index"),
    "register_entry": ("register_id", "index"),
    "meter_entry": ("meter_id", "index"),
    "value_set_entry": ("value_set_id",),
    "digest_entry": ("digest_id",),
    "action_profile_member": ("action_profile_id", "member_id"),
    "action_profile_group": ("action_profile_id", "group_id"),
}


def inverse(update: p4r.Update, entities: Iterable[p4r.Entity]) -> list[p4r.Update]:
    """Return the updates that restore `entities`, which `query` found before `update` changes them."""
    if update.type == p4r.Update.INSERT:
        return [p4r.Update(type=p4r.Update.DELETE, entity=update.entity)]
    operation = p4r.Update.MODIFY if update.type == p4r.Update.MODIFY else p4r.Update.INSERT
    return [p4r.Update(type=operation, entity=_writable(entity)) for entity in entities]


def _writable(entity: p4r.Entity) -> p4r.Entity:
    """Return an entity as it was read, without what only the switch may set."""
    if not entity.HasField("table_entry") or not entity.table_entry.is_const:
        return entity
    fixed = p4r.Entity()
    fixed.CopyFrom(entity)
    for name in ("is_const", "action", "metadata", "controller_metadata"):
        fixed.table_entry.ClearField(name)  # of a constant entry, direct resources alone can be modified
    return fixed


def query(entity: p4r.Entity) -> p4r.Entity:
    """Return a read of just this entity, with all that was or could have been written to it."""
    kind = entity.WhichOneof("entity")
    answer = p4r.Entity()
    if kind == "table_entry":
        answer.table_entry.CopyFrom(_table_query(entity.table_entry))
        answer.table_entry.counter_data.SetInParent()
        answer.table_entry.meter_config.SetInParent()
    elif kind == "direct_counter_entry":
        answer.direct_counter_entry.table_entry.CopyFrom(
            _table_query(entity.direct_counter_entry.table_entry)
        )
    elif kind == "direct_meter_entry":
        answer.direct_meter_entry.table_entry.CopyFrom(_table_query(entity.direct_meter_entry.table_entry))
    elif kind in _KEYS:
        given, asked = getattr(entity, kind), getattr(answer, kind)
        asked.SetInParent()
        for name in _KEYS[kind]:
            if name != "index":
                setattr(asked, name, getattr(given, name))
            elif given.HasField("index"):
                asked.index.CopyFrom(given.index)
    else:
        answer.CopyFrom(entity)  # a multicast group or clone session: only the id counts in a read
    return answer


def _table_query(entry: p4r.TableEntry) -> p4r.TableEntry:
    """Return a read of the entry with this key."""
    return p4r.TableEntry(
        table_id=entry.table_id,
        match=entry.match,
        priority=entry.priority,
        is_default_action=entry.is_default_action,
    )
