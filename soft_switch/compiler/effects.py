"""Reads and writes of statements, as far as they matter for metadata.

A variable is a field of a metadata instance: p4c puts every local variable of a P4 program there. Only
writes that happen whenever the statement is reached count as writes.

`register.read` and `meter.execute_meter` beyond the end and `random` without a range leave their target
alone. If nothing can have written it before, it stays zero, which counts as a write: the generated code
sets it to zero.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from soft_switch.bmv2 import syntax as p4
from soft_switch.bmv2.program import Action, Bmv2Program, Calculation, Table
from soft_switch.compiler.flow import JUMPS, Variable, first_writes
from soft_switch.compiler.names import STANDARD, named_fields

# Primitives that can end the pipeline.
ENDING = frozenset({"exit", "assert", "assume"})
# Primitives whose first operand is a field they write.
FIELD_WRITERS = frozenset(
    {
        "assign",
        "assign_VL",
        "set",
        "modify_field",
        "register_read",
        "modify_field_with_hash_based_offset",
        "modify_field_rng_uniform",
        "execute_meter",
    }
)
HEADER_WRITERS = frozenset({"assign_header", "copy_header"})
# Primitives that can leave their first operand as it is.
UNCERTAIN_WRITERS = frozenset({"register_read", "modify_field_rng_uniform", "execute_meter"})
DROPS = frozenset({"mark_to_drop", "drop"})


@dataclass(frozen=True)
class Effects:
    """The variables that a piece of code reads before it writes them, and those it certainly writes."""

    reads: frozenset[Variable]
    writes: frozenset[Variable]


def sequence(parts: Iterable[Effects]) -> Effects:
    """Return the effects of pieces of code, one after the other."""
    reads: set[Variable] = set()
    writes: set[Variable] = set()
    for part in parts:
        reads |= part.reads - writes
        writes |= part.writes
    return Effects(frozenset(reads), frozenset(writes))


def marks_to_drop(call: p4.Primitive, program: Bmv2Program) -> Mapping[str, Variable]:
    """Return the fields that a `mark_to_drop` or `drop` writes, under the keys egress_spec and mcast_grp.

    `mark_to_drop` takes those of the header it is given, a copy of standard_metadata in a control that was
    inlined; without egress_spec it does nothing. `drop`, and a `mark_to_drop` of before 2019, are given
    no header and find them by name.
    """
    target = call.operands[0] if call.operands else None
    if not isinstance(target, p4.Header):
        named = named_fields(program)
        return {name: named[name] for name in ("egress_spec", "mcast_grp") if name in named}
    fields = program.header_instances[target.name].type.numbers
    if "egress_spec" not in fields:
        return {}
    return {name: (target.name, name) for name in ("egress_spec", "mcast_grp") if name in fields}


class EffectsFinder:
    """Finder of the effects of expressions, primitives and actions of one program."""

    def __init__(self, program: Bmv2Program) -> None:
        self._program = program
        self._metadata = {name for name, item in program.header_instances.items() if item.metadata}
        self._cache: dict[int, tuple[p4.Expression, frozenset[Variable]]] = {}  # by identity, kept alive
        self.standard = frozenset(named_fields(program).values()) | {
            (name, field.name)
            for name, item in program.header_instances.items()
            if name == STANDARD
            for field in item.type.fields
        }

    @functools.cached_property
    def first_writes(self) -> frozenset[int]:
        """Calls (by id) before which nothing can have written their target."""
        return first_writes(self._program, self.targets)

    def targets(self, call: p4.Primitive) -> frozenset[Variable]:
        """Return the variables that a primitive call can write."""
        target = call.operands[0] if call.operands else None
        if call.op in DROPS:
            marked = marks_to_drop(call, self._program)
            return frozenset(variable for variable in marked.values() if variable[0] in self._metadata)
        if call.op in FIELD_WRITERS and isinstance(target, p4.Field) and isinstance(target.header, p4.Header):
            written = target.header.name in self._metadata
            return frozenset({(target.header.name, target.field)}) if written else frozenset()
        if call.op in HEADER_WRITERS and isinstance(target, p4.Header):
            return frozenset(self._fields(target.name))
        return frozenset()

    def variables(self, expression: p4.Expression) -> frozenset[Variable]:
        """Return the variables that an expression reads."""
        key = id(expression)
        if key not in self._cache:
            self._cache[key] = expression, frozenset(self._variables(expression))
        return self._cache[key][1]

    def _variables(self, expression: p4.Expression) -> Iterator[Variable]:
        for part in p4.operands(expression):
            yield from self.variables(part)
        match expression:
            case p4.Field(p4.Header(name), field) if name in self._metadata:
                yield name, field
            case p4.HeadersEqual(first, second):
                yield from self._header(first)
                yield from self._header(second)

    def _reference(self, header: p4.HeaderRef) -> Iterator[Variable]:
        for part in p4.header_operands(header):
            yield from self.variables(part)

    def _header(self, header: p4.HeaderRef) -> Iterator[Variable]:
        """Yield the variables that are read for all fields of a header."""
        yield from self._reference(header)
        if isinstance(header, p4.HeaderMux):
            yield from self._header(header.left)
            yield from self._header(header.right)
        elif isinstance(header, p4.Header):
            yield from self._fields(header.name)

    def operand(self, operand: p4.Operand) -> frozenset[Variable]:
        """Return the variables that reading an operand reads."""
        match operand:
            case p4.Header() | p4.StackElement() | p4.HeaderMux():
                return frozenset(self._header(operand))
            case p4.Named("calculation", name):
                return self.calculation(self._program.calculations[name])
            case p4.Named() | p4.Stack() | p4.HeaderUnion() | p4.UnionStack():
                return frozenset()
            case tuple():
                return frozenset().union(*(self.variables(item) for item in operand))
            case _:
                return self.variables(operand)

    def _fields(self, header: str) -> Iterator[Variable]:
        if header in self._metadata:
            for field in self._program.header_instances[header].type.fields:
                yield header, field.name

    def calculation(self, calculation: Calculation) -> frozenset[Variable]:
        """Return the variables that a hash or checksum reads."""
        found: set[Variable] = set()
        for part in calculation.inputs:
            if isinstance(part.value, p4.Field):
                found |= self.variables(part.value)
            elif isinstance(part.value, p4.Header):
                found.update(self._fields(part.value.name))
        return frozenset(found)

    def table(self, table: Table) -> frozenset[Variable]:
        """Return the variables that a table reads: in its key, and in its action selector's hash."""
        selector = self._program.selectors.get(table.info.profile or "")
        chosen = frozenset() if selector is None else self.calculation(self._program.calculations[selector])
        return chosen.union(*(self.variables(key.value) for key in table.keys))

    def at_end(self) -> frozenset[Variable]:
        """Return the variables read at a pipeline's end: by digests, and for what copies of a packet keep."""
        found: set[Variable] = set()
        for fields in self._program.field_lists.values():
            found = found.union(*(self.variables(item) for item in fields))
        for item in self._program.learn_lists.values():
            found = found.union(*(self.variables(value) for value, _ in item.values))
        return frozenset(found)

    def primitive(self, call: p4.Primitive) -> Effects:
        """Return the effects of one primitive call."""
        if call.op in DROPS:
            return Effects(frozenset(), self.targets(call))
        reads: set[Variable] = set()
        writes = self.targets(call)
        if call.op in UNCERTAIN_WRITERS:
            writes = (writes if id(call) in self.first_writes else frozenset()) - self.standard
        target, rest = (call.operands[0], call.operands[1:]) if call.operands else (None, ())
        for operand in rest:
            reads |= self.operand(operand)
        if call.op in FIELD_WRITERS and isinstance(target, (p4.Field, p4.LastField)):
            if isinstance(target, p4.Field):
                reads.update(self._reference(target.header))
        elif target is not None and not (call.op in HEADER_WRITERS and isinstance(target, p4.Header)):
            reads |= self.operand(target)
        return Effects(frozenset(reads), writes)

    def action(self, action: Action) -> Effects:
        """Return the effects of an action; behind a jump nothing is certain."""
        parts: list[Effects] = []
        jumped = False
        for call in action.primitives:
            if call.op in JUMPS:
                jumped = True
                condition = call.operands[0]
                if not isinstance(condition, p4.Const):
                    parts.append(Effects(self.operand(condition), frozenset()))
                continue
            effects = self.primitive(call)
            parts.append(Effects(effects.reads, frozenset()) if jumped else effects)
        return sequence(parts)
