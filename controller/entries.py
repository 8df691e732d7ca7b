"""Entries of a switch as values: wanted, read or stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias


@dataclass(frozen=True)
class TableEntry:
    """A row of a table, by P4Info's names. An LPM match is (value, prefix length), others are a value."""

    table: str
    match: tuple[tuple[str, int | tuple[int, int]], ...]
    action: str
    params: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        match = ", ".join(f"{name}={_text(value)}" for name, value in self.match)
        params = ", ".join(f"{name}={value:#x}" for name, value in self.params)
        return f"{self.table}[{match}] -> {self.action}({params})"


@dataclass(frozen=True)
class Group:
    """A multicast group; replicas are (egress port, instance), sorted."""

    table: ClassVar = "group"
    group: int
    replicas: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"multicast group {self.group} -> {list(self.replicas)}"


Entry: TypeAlias = "TableEntry | Group"
Key: TypeAlias = tuple[Any, ...]


def key_of(entry: Entry) -> Key:
    """Return the entry's key: no two entries on one switch have the same."""
    return (entry.table, entry.group if isinstance(entry, Group) else entry.match)


def table_entry(
    table: str, match: dict[str, int | tuple[int, int]], action: str, **params: int
) -> TableEntry:
    """Make a TableEntry from keyword arguments, which are in P4Info's order."""
    return TableEntry(table, tuple(match.items()), action, tuple(params.items()))


def to_json(entry: Entry) -> list[Any]:
    """Return lists that `from_json` takes back."""
    if isinstance(entry, Group):
        return [Group.table, entry.group, entry.replicas]
    return ["entry", entry.table, entry.match, entry.action, entry.params]


def from_json(value: list[Any]) -> Entry:
    """Return an entry from `to_json`'s lists."""
    kind, *fields = _tuples(value)
    return Group(*fields) if kind == Group.table else TableEntry(*fields)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _text(value: int | tuple[int, int]) -> str:
    return f"{value[0]:#x}/{value[1]}" if isinstance(value, tuple) else f"{value:#x}"
