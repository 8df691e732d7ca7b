"""Parser value sets: the `ValueSetEntry` entity.

Source: P4Runtime specification, section "ValueSetEntry". A member's key has the form of a table's.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.description import Match
from soft_switch.server.errors import P4RuntimeError, already_exists, invalid
from soft_switch.server.keys import format_fields, parse_fields
from soft_switch.server.operation import Operation
from soft_switch.server.schema import Schema


class ValueSets:
    """Handler of `ValueSetEntry`."""

    def __init__(self, schema: Schema, plane: DataPlane) -> None:
        self._schema = schema
        self._plane = plane
        self._members: dict[int, list[tuple[Match, ...]]] = {number: [] for number in schema.value_sets}

    def write(self, operation: Operation, message: p4r.ValueSetEntry) -> None:
        """Replace all members of a value set. Only MODIFY exists; no members empties it."""
        values = self._schema.lookup("value set", self._schema.value_sets, message.value_set_id)
        what = f"value set {values.name}"
        if operation != Operation.MODIFY:
            raise invalid(f"{what} is always there, only MODIFY applies to it")
        members = [parse_fields(what, values.fields, member.match, new=True) for member in message.members]
        for number, member in enumerate(members):
            if member in members[:number]:
                raise already_exists(f"{what}: member {number} is given twice")
        if len(members) > values.size:
            raise P4RuntimeError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{what} holds {values.size} members, the request has {len(members)}",
            )
        self._plane.value_set_write(values.name, members)
        self._members[values.id] = members

    def read(self, request: p4r.ValueSetEntry) -> Iterator[p4r.Entity]:
        """Read one value set with its members, or all for id 0."""
        for values in self._schema.select("value set", self._schema.value_sets, request.value_set_id):
            entry = p4r.ValueSetEntry(value_set_id=values.id)
            for member in self._members[values.id]:
                entry.members.add(match=format_fields(values.fields, member))
            yield p4r.Entity(value_set_entry=entry)
