"""Errors of programs and tables, one class each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A place in the P4 source, as p4c noted it in the JSON."""

    filename: str
    line: int
    fragment: str = ""

    def __str__(self) -> str:
        text = f"{self.filename}:{self.line}"
        return f"{text}: {self.fragment}" if self.fragment else text


class ProgramError(Exception):
    """The program cannot be read or built: not BMv2 JSON, inconsistent, or no compiler on this machine."""


class UnsupportedConstruct(ProgramError):
    """The program uses something this switch does not do; names it and its place in the P4 source."""

    def __init__(self, construct: str, source: Source | None = None) -> None:
        where = f" ({source})" if source is not None else ""
        super().__init__(f"{construct} is not supported by this switch{where}")
        self.construct = construct
        self.source = source


class TableError(Exception):
    """A table, counter, register or group operation that cannot be done."""


class TableFull(TableError):
    """The table holds as many entries as its size allows."""


class DuplicateEntry(TableError):
    """The table has an entry with the same match (and priority) already."""


class UnknownEntry(TableError):
    """The program or data plane has no such entry, table, action, counter, register or index."""


class EntryInUse(TableError):
    """A member that a group or an entry refers to, or a group that an entry refers to, cannot be deleted."""


class FaultError(Exception):
    """A fault on purpose that is not valid, with the reason; or no fault has that number."""
