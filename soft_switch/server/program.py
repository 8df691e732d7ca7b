"""Facts that P4Info leaves out: a program's entries and default actions, checked against P4Info.

The BMv2 JSON is read by `soft_switch.bmv2`; here its facts join those of `schema`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.description import (
    ActionInfo,
    InitialEntry,
    KeyField,
    Match,
    Optional_,
    Param,
    Program,
    TableInfo,
    Ternary,
    Translation,
)
from soft_switch.errors import ProgramError
from soft_switch.server.errors import invalid
from soft_switch.server.p4data import Scalar
from soft_switch.server.schema import DEFAULT_PORT_WIDTH, Digest, Register, Schema, Table
from soft_switch.translation import describe

LOG = logging.getLogger(__name__)

COMPILER_MADE = ("tbl_", "switch_")  # what the names of p4c's own tables begin with
MISMATCH = "they are not of one program"


def add_program(schema: Schema, device_config: bytes) -> Schema:
    """Read a BMv2 JSON and check it against its P4Info; INVALID_ARGUMENT if they do not fit.

    Returns the schema of what the program really has: without tables that p4c left out of it, and with widths
    that p4c left out of P4Info.
    """
    try:
        bmv2 = describe(device_config)
    except ProgramError as error:
        raise invalid(f"the program cannot be realized by this switch: {error}") from error
    program = bmv2.description
    dropped = _dropped(schema, program)
    actions = _add_widths(schema, program)
    tables = {
        number: _add_to_table(schema, table, program.tables[table.name])
        for number, table in schema.tables.items()
        if number not in dropped
    }
    for kind, objects, known in (
        ("counter", schema.counters, program.counters),
        ("register", schema.registers, program.registers),
        ("meter", schema.meters, program.meters),
        ("value set", schema.value_sets, program.value_sets),
    ):
        for item in objects.values():
            found = known.get(item.name)
            if found is None or found.size != item.size or getattr(found, "table", None) is not None:
                what = f"a {kind} {item.name} of size {item.size}"
                raise invalid(f"P4Info has {what} that the BMv2 JSON lacks: {MISMATCH}")
    for digest in schema.digests.values():
        _check_digest(digest, program)
    port_width = _port_width(bmv2)
    if schema.port_type is not None and schema.port_type.width is None:
        schema.port_type.fit(port_width)
    registers = {number: _add_to_register(register, program) for number, register in schema.registers.items()}
    return replace(
        schema,
        tables=tables,
        actions=actions,
        registers=registers,
        value_sets={
            number: replace(values, fields=_fit_fields(values.fields, program.value_sets[values.name].fields))
            for number, values in schema.value_sets.items()
        },
        packet_in=_fit_header(schema.packet_in, bmv2, "packet_in"),
        packet_out=_fit_header(schema.packet_out, bmv2, "packet_out"),
        dropped=dropped,
        port_width=port_width,
    )


def _add_widths(schema: Schema, program: Program) -> dict[int, ActionInfo]:
    """Give actions the widths of parameters that P4Info leaves out."""
    known = {action.name: action for action in program.actions}
    actions = dict(schema.actions)
    for number, action in actions.items():
        found = known.get(action.name)
        if found is None:
            continue  # p4c leaves out actions that no table can do
        if len(found.params) != len(action.params):
            ours, theirs = (", ".join(param.name for param in item.params) for item in (action, found))
            raise invalid(
                f"action {action.name} has the parameters ({ours}) in P4Info and ({theirs}) in the BMv2 "
                f"JSON: {MISMATCH}"
            )
        params = []
        for param, other in zip(action.params, found.params, strict=True):
            if param.width not in (0, other.width):
                raise invalid(
                    f"parameter {param.name} of action {action.name} is bit<{param.width}> in P4Info and "
                    f"bit<{other.width}> in the BMv2 JSON: {MISMATCH}"
                )
            params.append(replace(param, width=_fit(param.sdn, other.width)))
        actions[number] = replace(action, params=tuple(params))
    return actions


def _fit(sdn: Translation | None, width: int) -> int:
    """Tell a translated type its width in the data plane, and return that."""
    if sdn is not None:
        sdn.fit(width)
    return width


def _fit_fields(fields: Sequence[KeyField], known: Sequence[KeyField]) -> tuple[KeyField, ...]:
    """Give fields the widths of the BMv2 JSON where P4Info has none."""
    if len(fields) != len(known):
        return tuple(fields)
    return tuple(
        replace(field, width=field.width or _fit(field.sdn, other.width))
        for field, other in zip(fields, known, strict=True)
    )


def _fit_header(fields: tuple[Param, ...], bmv2: Bmv2Program, name: str) -> tuple[Param, ...]:
    """Give the translated fields of a controller header their widths.

    The BMv2 JSON does not tell which header is the controller's: it is the one with these fields. Where no
    header has them, the program emits none, and packet-ins are all payload; the widths of packet-outs are
    those that the types have in keys and arguments.
    """
    if all(field.sdn is None for field in fields):
        return fields
    layouts = set()
    for instance in bmv2.header_instances.values():
        others = instance.type.fields
        alike = len(others) == len(fields) and all(
            field.name == other.name and field.width in ((0,) if field.sdn else (other.width,))
            for field, other in zip(fields, others, strict=True)
        )
        if alike and not instance.metadata:
            layouts.add(tuple(other.width for other in others))
    if len(layouts) == 1:
        (widths,) = layouts
        pairs = zip(fields, widths, strict=True)
        return tuple(replace(field, width=_fit(field.sdn, width)) for field, width in pairs)
    LOG.warning("the BMv2 JSON has %d layouts of a header with the fields of %s", len(layouts), name)
    if not layouts and name == "packet_in":
        return tuple(replace(field, width=0) for field in fields)
    return tuple(replace(field, width=field.width or _known_width(field.sdn)) for field in fields)


def _known_width(sdn: Translation | None) -> int:
    """Take a translated type's width from elsewhere, or else the controller's, as simple_switch_grpc does."""
    if sdn is None:
        return 0
    return sdn.sdn_width if sdn.width is None else sdn.width


def _check_digest(digest: Digest, program: Program) -> None:
    widths = program.digests.get(digest.name, ())
    fits = len(widths) == len(digest.scalars) and all(
        number.sdn is not None or number.width == width
        for number, width in zip(digest.scalars, widths, strict=True)
    )
    if not fits or digest.name not in program.digests:
        raise invalid(
            f"P4Info has a digest {digest.name} that the BMv2 JSON has not in this form: {MISMATCH}"
        )
    for number, width in zip(digest.scalars, widths, strict=True):
        _fit(number.sdn, width)


def _add_to_register(register: Register, program: Program) -> Register:
    """Give a register the width of elements whose type is translated."""
    kind = register.type
    if not isinstance(kind, Scalar) or kind.sdn is None:
        return register
    return replace(register, type=replace(kind, width=_fit(kind.sdn, program.registers[register.name].width)))


def _dropped(schema: Schema, program: Program) -> dict[int, str]:
    """Return the tables that p4c left out. If the program in turn has others, raise INVALID_ARGUMENT."""
    known = {table.name for table in schema.tables.values()}
    dropped = {table.id: table.name for table in schema.tables.values() if table.name not in program.tables}
    foreign = [name for name in program.tables if name not in known and not name.startswith(COMPILER_MADE)]
    if dropped and foreign:
        name = next(iter(dropped.values()))
        raise invalid(f"P4Info has a table {name} that the BMv2 JSON lacks: {MISMATCH}")
    for name in dropped.values():
        LOG.warning("table %s of P4Info is not in the BMv2 JSON: it takes no entries", name)
    return dropped


def _add_to_table(schema: Schema, table: Table, info: TableInfo) -> Table:
    table = replace(table, fields=_fit_fields(table.fields, info.keys))
    _check_key(table, info)
    actions = {schema.actions[number].name for number in table.actions}
    for entry in info.entries:
        if (name := entry.call.action) not in actions:
            raise invalid(f"P4Info: table {table.name} lacks action {name}, which an initial entry uses")
    return replace(
        table,
        size=(info.entries and table.size) or info.size,
        entries=tuple(
            InitialEntry(
                tuple(map(_as_declared, table.fields, entry.match)),
                entry.priority if table.needs_priority else 0,
                entry.call,
            )
            for entry in info.entries
        ),
        # p4c may add a NoAction that P4Info does not list.
        default=info.default if info.default is not None and info.default.action in actions else None,
    )


def _check_key(table: Table, info: TableInfo) -> None:
    key = [(_json_kind(field.kind), field.width) for field in table.fields]
    if key != [(_json_kind(field.kind), field.width) for field in info.keys]:
        raise invalid(
            f"table {table.name} has the key ({_describe(table.fields)}) in P4Info and "
            f"({_describe(info.keys)}) in the BMv2 JSON: {MISMATCH}"
        )


def _json_kind(kind: str) -> str:
    """Return a match kind as BMv2 knows it: p4c writes optional as ternary with no or all mask bits."""
    return "ternary" if kind == "optional" else kind


def _describe(fields: Sequence[KeyField]) -> str:
    return ", ".join(f"{field.kind} bit<{field.width}>" for field in fields)


def _as_declared(field: KeyField, match: Match) -> Match:
    """Return a key component of an initial entry, optional again if P4Info says so."""
    if field.kind == "optional" and isinstance(match, Ternary):
        return Optional_(match.value if match.mask else None)
    return match


def _port_width(program: Bmv2Program) -> int:
    found = program.by_name("standard_metadata.egress_port")
    if found is None:
        return DEFAULT_PORT_WIDTH
    return program.header_instances[found[0]].type.field(found[1]).width
