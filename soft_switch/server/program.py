"""What P4Info leaves out: the entries and default actions a program gives its tables, held against P4Info.

The BMv2 JSON is read by `soft_switch.bmv2`; here its names become P4Runtime's ids.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.description import KeyField, Match, Optional_, Program, TableInfo, Ternary
from soft_switch.errors import ProgramError
from soft_switch.server.errors import invalid
from soft_switch.server.schema import MatchField, MatchKind, Schema, Table
from soft_switch.translation import describe

LOG = logging.getLogger(__name__)

COMPILER_MADE = ("tbl_", "switch_")  # what the names of p4c's own tables begin with
MISMATCH = "they are not of one program"
DEFAULT_PORT_WIDTH = 9  # bits of standard_metadata.egress_port in v1model.p4


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action with its arguments, by the id P4Info gives it."""

    action_id: int
    params: tuple[int, ...]


@dataclass(frozen=True)
class InitialEntry:
    """An entry the program itself puts into a table; priority as in P4Runtime (greater wins, 0 for none)."""

    match: tuple[Match, ...]
    priority: int
    call: ActionCall


@dataclass(frozen=True)
class ProgramTables:
    """Initial entries, default actions (a table with neither is absent) and sizes by table id.

    The size is the data plane's, or P4Info's where a table has initial entries: p4c's JSON counts these.
    """

    entries: Mapping[int, Sequence[InitialEntry]]
    defaults: Mapping[int, ActionCall]
    sizes: Mapping[int, int]
    port_width: int


def read_program(device_config: bytes, schema: Schema) -> tuple[ProgramTables, Schema]:
    """Read a BMv2 JSON and hold it against its P4Info; INVALID_ARGUMENT where they are wrong.

    With it comes the schema of what the program really has.
    """
    try:
        bmv2 = describe(device_config)
    except ProgramError as error:
        raise invalid(f"the program cannot be realized by this switch: {error}") from error
    program = bmv2.description
    schema = fit_program(schema, program)
    for counter in schema.counters.values():
        info = program.counters.get(counter.name)
        _check_array(
            "counter", counter.name, counter.size, info.size if info and info.table is None else None
        )
    for register in schema.registers.values():
        cells = program.registers.get(register.name)
        _check_array("register", register.name, register.size, cells.size if cells else None)
    for meter in schema.meters.values():
        cells_ = program.meters.get(meter.name)
        _check_array(
            "meter", meter.name, meter.size, cells_.size if cells_ and cells_.table is None else None
        )
    for digest in schema.digests.values():
        learned = program.digests.get(digest.name)
        widths = tuple(width for _, width in learned.fields) if learned is not None else None
        if widths != tuple(number.width for number in digest.scalars):
            raise invalid(
                f"P4Info has a digest {digest.name} that the BMv2 JSON has not in this form: {MISMATCH}"
            )
    for values in schema.value_sets.values():
        known = program.value_sets.get(values.name)
        _check_array("value set", values.name, values.size, known.size if known is not None else None)
    entries: dict[int, list[InitialEntry]] = {}
    defaults: dict[int, ActionCall] = {}
    sizes: dict[int, int] = {}
    for table in schema.tables.values():
        json_table = program.tables[table.name]
        _check_key(table, json_table)
        sizes[table.id] = (json_table.entries and table.size) or json_table.size
        ids = {schema.actions[number].name: number for number in table.actions}
        default = json_table.default
        if default is not None and default.action in ids:  # p4c may add a NoAction that P4Info does not list
            defaults[table.id] = ActionCall(ids[default.action], default.params)
        for entry in json_table.entries:
            if entry.call.action not in ids:
                name = entry.call.action
                raise invalid(f"P4Info: table {table.name} lacks action {name}, which an initial entry uses")
            entries.setdefault(table.id, []).append(
                InitialEntry(
                    match=tuple(map(_as_declared, table.fields, entry.match)),
                    priority=entry.priority if table.needs_priority else 0,
                    call=ActionCall(ids[entry.call.action], entry.call.params),
                )
            )
    return ProgramTables(entries, defaults, sizes, _port_width(bmv2)), schema


def fit_program(schema: Schema, program: Program) -> Schema:
    """The schema without tables that p4c left out of the program, and with widths it left out of P4Info.

    If the program in turn has a table that P4Info lacks, they are not of one program.
    """
    known = {table.name for table in schema.tables.values()}
    dropped = {table.id: table.name for table in schema.tables.values() if table.name not in program.tables}
    foreign = [name for name in program.tables if name not in known and not name.startswith(COMPILER_MADE)]
    if dropped and foreign:
        name = next(iter(dropped.values()))
        raise invalid(f"P4Info has a table {name} that the BMv2 JSON lacks: {MISMATCH}")
    for name in dropped.values():
        LOG.warning("table %s of P4Info is not in the BMv2 JSON: it takes no entries", name)
    tables = {
        number: replace(table, fields=_with_widths(table.fields, program.tables[table.name].keys))
        for number, table in schema.tables.items()
        if number not in dropped
    }
    return replace(schema, tables=tables, dropped=dropped)


def _with_widths(fields: tuple[MatchField, ...], keys: Sequence[KeyField]) -> tuple[MatchField, ...]:
    if len(fields) != len(keys) or all(field.width for field in fields):
        return fields
    return tuple(
        field if field.width else replace(field, width=key.width)
        for field, key in zip(fields, keys, strict=True)
    )


def _check_array(kind: str, name: str, size: int, json_size: int | None) -> None:
    if size != json_size:
        raise invalid(f"P4Info has a {kind} {name} of size {size} that the BMv2 JSON lacks: {MISMATCH}")


def _check_key(table: Table, json_table: TableInfo) -> None:
    key = [(_json_kind(field.kind.value), field.width) for field in table.fields]
    if key != [(_json_kind(field.kind), field.width) for field in json_table.keys]:
        raise invalid(
            f"table {table.name} has the key ({_describe(table.fields)}) in P4Info and "
            f"({_describe(json_table.keys)}) in the BMv2 JSON: {MISMATCH}"
        )


def _json_kind(kind: str) -> str:
    """A match kind as BMv2 knows it: p4c writes an optional field as ternary with no or all mask bits."""
    return "ternary" if kind == "optional" else kind


def _describe(fields: Sequence[MatchField | KeyField]) -> str:
    kinds = (field.kind.value if isinstance(field, MatchField) else field.kind for field in fields)
    return ", ".join(f"{kind} bit<{field.width}>" for kind, field in zip(kinds, fields, strict=True))


def _as_declared(field: MatchField, match: Match) -> Match:
    """A key component of an initial entry, optional again where P4Info says so."""
    if field.kind is MatchKind.OPTIONAL and isinstance(match, Ternary):
        return Optional_(match.value if match.mask else None)
    return match


def _port_width(program: Bmv2Program) -> int:
    metadata = program.header_instances.get("standard_metadata")
    for field in metadata.type.fields if metadata is not None else ():
        if field.name == "egress_port":
            return field.width
    return DEFAULT_PORT_WIDTH
