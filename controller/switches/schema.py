"""Translation of entries into P4Runtime messages and back, by P4Info's names and widths.

It knows exact and longest-prefix matches and direct actions: the program needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finsy.proto import p4i, p4r
from google.protobuf import text_format

from controller.entries import Entry, Group, TableEntry


class SchemaError(Exception):
    """A name or value that P4Info has no room for: a defect in the controller or a stale P4Info."""


@dataclass(frozen=True)
class Field:
    """A match field, action parameter or packet metadata."""

    id: int
    name: str
    width: int
    lpm: bool = False


class Schema:
    """The names of one P4Info: `match` has the fields of each table, `params` those of each action."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.p4info = text_format.Parse(text, p4i.P4Info())
        self._tables = {t.preamble.name: t for t in self.p4info.tables}
        self._actions = {a.preamble.name: a for a in self.p4info.actions}
        self._table_names = {t.preamble.id: name for name, t in self._tables.items()}
        self._action_names = {a.preamble.id: name for name, a in self._actions.items()}
        self.match = {
            name: tuple(
                Field(f.id, f.name, f.bitwidth, f.match_type == p4i.MatchField.LPM) for f in t.match_fields
            )
            for name, t in self._tables.items()
        }
        self.params = {
            name: tuple(Field(p.id, p.name, p.bitwidth) for p in a.params)
            for name, a in self._actions.items()
        }
        self.counters = {c.preamble.name: c.preamble.id for c in self.p4info.counters}
        self._packet_metadata = {
            header.preamble.name: tuple(Field(m.id, m.name, m.bitwidth) for m in header.metadata)
            for header in self.p4info.controller_packet_metadata
        }

    @classmethod
    def read(cls, path: Path) -> Schema:
        """Read the schema of a P4Info text file."""
        return cls(path.read_text())

    def encode(self, entry: Entry) -> p4r.Entity:
        """Return the message for an entry."""
        if isinstance(entry, Group):
            return p4r.Entity(packet_replication_engine_entry=_group(entry))
        fields = _named(self.match, entry.table, "table")
        message = p4r.TableEntry(table_id=self._tables[entry.table].preamble.id)
        for given, field in _pair(entry.match, fields, entry):
            if field.lpm:
                value, prefix = given if isinstance(given, tuple) else (given, field.width)
                if prefix:  # a match on nothing is left out (P4Runtime specification, "Match Format")
                    match = message.match.add(field_id=field.id)
                    match.lpm.value = _bytes(value, field, entry)
                    match.lpm.prefix_len = prefix
            else:
                match = message.match.add(field_id=field.id)
                match.exact.value = _bytes(given, field, entry)
        action = message.action.action
        action.action_id = _named(self._actions, entry.action, "action").preamble.id
        for given, field in _pair(entry.params, self.params[entry.action], entry):
            action.params.add(param_id=field.id, value=_bytes(given, field, entry))
        return p4r.Entity(table_entry=message)

    def decode(self, entity: p4r.Entity) -> Entry:
        """Return the entry in a message that a switch sent."""
        if entity.HasField("packet_replication_engine_entry"):
            group = entity.packet_replication_engine_entry.multicast_group_entry
            return Group(group.multicast_group_id, tuple(sorted(_replica(r) for r in group.replicas)))
        message = entity.table_entry
        table = self._table_names[message.table_id]
        action = self._action_names[message.action.action.action_id]
        matches = {m.field_id: m for m in message.match}
        params = {p.param_id: p.value for p in message.action.action.params}
        return TableEntry(
            table,
            tuple((f.name, _match_value(matches.get(f.id), f)) for f in self.match[table]),
            action,
            tuple((f.name, int.from_bytes(params[f.id], "big")) for f in self.params[action]),
        )

    def packet_out(self, payload: bytes, **metadata: int) -> p4r.PacketOut:
        """Return a packet-out with every metadata field of the program."""
        message = p4r.PacketOut(payload=payload)
        for given, field in _pair(tuple(metadata.items()), self._packet_metadata["packet_out"], "packet_out"):
            message.metadata.add(metadata_id=field.id, value=_bytes(given, field, "packet_out"))
        return message

    def packet_in(self, message: p4r.PacketIn) -> dict[str, int]:
        """Return the metadata of a packet-in by name."""
        names = {field.id: field.name for field in self._packet_metadata["packet_in"]}
        return {
            names[m.metadata_id]: int.from_bytes(m.value, "big")
            for m in message.metadata
            if m.metadata_id in names
        }


def _pair(
    given: Iterable[tuple[str, Any]], fields: Sequence[Field], where: object
) -> Iterable[tuple[Any, Field]]:
    values = dict(given)
    if set(values) != {field.name for field in fields}:
        wanted = ", ".join(field.name for field in fields)
        raise SchemaError(f"{where}: the P4Info has the fields {wanted}; given were {', '.join(values)}")
    return [(values[field.name], field) for field in fields]


def _bytes(value: int, field: Field, where: object) -> bytes:
    """Return the shortest byte string (P4Runtime specification, "Bytestrings")."""
    if not 0 <= value < 1 << field.width:
        raise SchemaError(f"{where}: {field.name} has {field.width} bits, {value} does not fit")
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _named(mapping: dict[str, Any], name: str, what: str) -> Any:
    if name not in mapping:
        raise SchemaError(f"the P4Info has no {what} {name}: build/ and the controller do not fit together")
    return mapping[name]


def _match_value(match: p4r.FieldMatch | None, field: Field) -> int | tuple[int, int]:
    if field.lpm:
        if match is None:
            return (0, 0)
        return (int.from_bytes(match.lpm.value, "big"), match.lpm.prefix_len)
    return int.from_bytes(match.exact.value, "big") if match is not None else 0


def _group(entry: Group) -> p4r.PacketReplicationEngineEntry:
    """Make replicas with `egress_port`: simple_switch_grpc does not know the newer `port`."""
    message = p4r.PacketReplicationEngineEntry()
    message.multicast_group_entry.multicast_group_id = entry.group
    for port, instance in entry.replicas:
        message.multicast_group_entry.replicas.add(egress_port=port, instance=instance)
    return message


def _replica(replica: p4r.Replica) -> tuple[int, int]:
    if replica.WhichOneof("port_kind") == "port":
        return int.from_bytes(replica.port, "big"), replica.instance
    return replica.egress_port, replica.instance
