"""Names and values of P4Info as people write them (`route`, `10.9.0.0/16`, `02:00:00:00:00:01`), and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from finsy.proto import p4i

from controller.entries import Entry, Group, Key
from controller.switches.schema import Field, Schema

_MAC = re.compile(r"[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}")
_IPV4 = re.compile(r"\d+(\.\d+){3}")
_IN_HEX = re.compile(r"qp|bit$|mask$|all_ranks")


class WordError(ValueError):
    """A name or value that the program does not know or cannot hold; the message says what it can."""


@dataclass(frozen=True)
class Table:
    """A table that a controller can write: its keys, its actions' parameters, how many entries it takes."""

    name: str
    fields: tuple[Field, ...]
    actions: Mapping[str, tuple[Field, ...]]
    size: int


class Vocabulary:
    """The names of one P4Info. The end of a name, from a dot on, will do where it is unique."""

    def __init__(self, schema: Schema) -> None:
        actions = {a.preamble.id: a.preamble.name for a in schema.p4info.actions}
        self.tables: dict[str, Table] = {}
        for table in schema.p4info.tables:
            if table.is_const_table:
                continue
            name = table.preamble.name
            self.tables[name] = Table(
                name,
                schema.match[name],
                {
                    actions[ref.id]: schema.params[actions[ref.id]]
                    for ref in table.action_refs
                    if ref.scope != p4i.ActionRef.DEFAULT_ONLY
                },
                int(table.size),
            )
        self._position = {name: i for i, name in enumerate(self.tables)}

    def table(self, name: str) -> Table:
        """Return the table of that name. Raise WordError."""
        return self.tables[_resolve(name, self.tables, "table")]

    def action(self, table: Table, name: str) -> str:
        """Return the full name of a table's action. Raise WordError."""
        return _resolve(name, table.actions, f"action of table {table.name}")

    # Entries in words. Names that P4Info does not have (an older program's) are shown as they are.

    def key_words(self, entry: Entry) -> str:
        """Name an entry in words: its table and match, or its group."""
        if isinstance(entry, Group):
            return f"multicast group {entry.group}"
        table = self.tables.get(entry.table)
        fields = {f.name: f for f in table.fields} if table is not None else {}
        match = ", ".join(f"{name}={_shown(fields.get(name), name, value)}" for name, value in entry.match)
        return f"{entry.table}[{match}]"

    def value_words(self, entry: Entry) -> str:
        """Describe an entry's effect: its action, or the group's replicas."""
        if isinstance(entry, Group):
            return ", ".join(f"port {port} instance {instance}" for port, instance in entry.replicas)
        table = self.tables.get(entry.table)
        fields = {f.name: f for f in table.actions.get(entry.action, ())} if table is not None else {}
        params = ", ".join(f"{name}={_shown(fields.get(name), name, value)}" for name, value in entry.params)
        return f"{entry.action.rpartition('.')[2]}({params})"

    def order(self, key: Key) -> tuple[int, int, Key]:
        """Return a sort key: tables in P4Info's order, which is that of the pipeline, then groups."""
        if key[0] == "group":
            return (1, 0, key)
        return (0, self._position.get(key[0], len(self._position)), key)

    # Values.

    def param(self, field: Field, text: str) -> int:
        """Parse an action's parameter. Raise WordError."""
        return _parse(field, text)

    def match(self, field: Field, text: str) -> int | tuple[int, int]:
        """Parse a match: a number, or (value, prefix length) for a longest-prefix match. Raise WordError."""
        if not field.lpm:
            return _parse(field, text)
        base, slash, length = text.partition("/")
        value = _parse(field, base)
        if not slash:
            return value, field.width
        if not (length.isascii() and length.isdigit() and int(length) <= field.width):
            raise WordError(f"{text!r} needs a prefix length from 0 to {field.width} behind the slash")
        prefix = int(length)
        masked = value >> (field.width - prefix) << (field.width - prefix)
        if masked != value:
            right = f"{_shown_number(field, field.name, masked)}/{prefix}"
            raise WordError(f"{text!r} has bits set behind its prefix: that would be {right}")
        return value, prefix


def _parse(field: Field, text: str) -> int:
    """Parse a number, decimal or 0x..., an IPv4 address for 32 bits, or a MAC for 48. Raise WordError."""
    if _MAC.fullmatch(text):
        if field.width != 48:
            raise WordError(f"{text!r} is a MAC, {field.name} has {field.width} bits")
        return int("".join(part.zfill(2) for part in text.split(":")), 16)
    if _IPV4.fullmatch(text):
        if field.width != 32:
            raise WordError(f"{text!r} is an IPv4 address, {field.name} has {field.width} bits")
        try:
            return int(IPv4Address(text))
        except ValueError:
            raise WordError(f"{text!r} is no IPv4 address") from None
    if field.width == 1 and text in ("true", "false"):
        return int(text == "true")
    try:
        value = int(text, 0)
    except ValueError:
        raise WordError(f"{text!r} is no {_expected(field)}") from None
    if not 0 <= value < 1 << field.width:
        raise WordError(
            f"{text} does not fit: {field.name} has {field.width} bits, 0..{(1 << field.width) - 1}"
        )
    return value


def _expected(field: Field) -> str:
    kinds = {1: "number or true or false", 32: "number or IPv4 address", 48: "MAC or number"}
    return kinds.get(field.width, "number")


def _resolve(name: str, known: Iterable[str], what: str) -> str:
    known = list(known)
    found = [full for full in known if full == name] or [
        full for full in known if full.endswith(f".{name}") and name
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise WordError(f"{name!r} may be {' or '.join(found)}: say which")
    raise WordError(f"there is no {what} {name!r}; known are {', '.join(known)}")


def _shown(field: Field | None, name: str, value: int | tuple[int, int]) -> str:
    if isinstance(value, tuple):
        return f"{_shown_number(field, name, value[0])}/{value[1]}"
    return _shown_number(field, name, value)


def _shown_number(field: Field | None, name: str, value: int) -> str:
    width = field.width if field is not None else 0
    if width == 48:
        return value.to_bytes(6, "big").hex(":")
    if width == 32 and name.endswith("ip"):
        return str(IPv4Address(value))
    return hex(value) if _IN_HEX.search(name) else str(value)
