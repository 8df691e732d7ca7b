"""Copies that need not be made.

p4c assigns every argument of an extern to a variable first: for a hash over a packet's payload that is a
copy of the payload. Inside an action without jumps, a variable that is written once, with a field or a
constant that does not change until the end, and read by hashes alone, is replaced by what it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from soft_switch.bmv2.program import Action, Bmv2Program, CalcInput, Calculation
from soft_switch.bmv2.syntax import (
    Const,
    Field,
    Header,
    HeaderMux,
    HeaderUnion,
    Named,
    Operand,
    Primitive,
    Stack,
    StackElement,
    UnionStack,
)
from soft_switch.compiler.effects import FIELD_WRITERS, EffectsFinder
from soft_switch.compiler.flow import JUMPS, Variable
from soft_switch.compiler.liveness import checksum_reads, parser_effects

# Operands that stand for headers which only the packet tells, or for several.
WHOLE = (StackElement, HeaderMux, Stack, HeaderUnion, UnionStack)
Substitution = Mapping[Variable, Field | Const]


def propagate_copies(program: Bmv2Program) -> Bmv2Program:
    """The program without these copies."""
    finder = EffectsFinder(program)
    readers = _readers(program, finder)
    uses = Counter(checksum.calculation for checksum in program.checksums)
    blocks = [action.primitives for action in program.actions.values()]
    for calls in [*blocks, program.deparser_primitives]:
        uses.update(name for call in calls for name in _hashes(call))
    actions, calculations = dict(program.actions), dict(program.calculations)
    for number, action in program.actions.items():
        hashes = [name for call in action.primitives for name in _hashes(call)]
        if any(uses[name] > 1 for name in hashes) or any(call.op in JUMPS for call in action.primitives):
            continue  # a calculation that others use too cannot be changed for this action
        copies = dict(_copies(program, finder, action, readers)) if hashes else {}
        held = dict(copies.values())
        kept = tuple(call for index, call in enumerate(action.primitives) if index not in copies)
        actions[number] = replace(action, primitives=kept)
        for name in hashes:
            inputs = tuple(_inputs(program.calculations[name], held))
            calculations[name] = replace(program.calculations[name], inputs=inputs)
    return replace(program, actions=actions, calculations=calculations)


def all_reads(program: Bmv2Program) -> frozenset[Variable]:
    """Metadata that some part of the program reads."""
    return frozenset(_readers(program, EffectsFinder(program)))


def _readers(program: Bmv2Program, finder: EffectsFinder) -> Mapping[Variable, set[int | None]]:
    """Who reads each variable: the numbers of actions, None for everything else."""
    elsewhere = [finder.at_end(), *(checksum_reads(program, finder, which) for which in ("verify", "update"))]
    for state in program.parser_states.values():
        elsewhere += [effects.reads for effects in parser_effects(finder, state)]
    for pipeline in program.pipelines.values():
        elsewhere += [finder.variables(conditional.condition) for conditional in pipeline.conditionals]
        elsewhere += [finder.table(table) for table in pipeline.tables]
    elsewhere += [finder.primitive(call).reads for call in program.deparser_primitives]
    parts: list[tuple[int | None, frozenset[Variable]]] = [(None, reads) for reads in elsewhere]
    for number, action in program.actions.items():
        for call in action.primitives:
            parts.append((number, finder.primitive(call).reads))
            if call.op in JUMPS and not isinstance(call.operands[0], Const):
                parts.append((number, finder.operand(call.operands[0])))
    readers: dict[Variable, set[int | None]] = {}
    for who, variables in parts:
        for variable in variables:
            readers.setdefault(variable, set()).add(who)
    return readers


def _hashes(call: Primitive) -> list[str]:
    """The calculations that a call makes."""
    return [item.name for item in call.operands if isinstance(item, Named) and item.kind == "calculation"]


def _copies(
    program: Bmv2Program, finder: EffectsFinder, action: Action, readers: Mapping[Variable, set[int | None]]
) -> Iterator[tuple[int, tuple[Variable, Field | Const]]]:
    """Where an action has needless copies; each with its variable and what that holds."""
    calls = action.primitives
    written = Counter(variable for call in calls for variable in finder.targets(call))
    others = set[Variable]()  # read by something else than as an input of a hash
    hashed: dict[Variable, int] = {}  # the first call whose hash reads it
    for index, call in enumerate(calls):
        rest = tuple(operand for operand in call.operands if not isinstance(operand, Named))
        others |= finder.primitive(replace(call, operands=rest)).reads
        for part in (part for name in _hashes(call) for part in program.calculations[name].inputs):
            if isinstance(part.value, Field) and isinstance(part.value.header, Header):
                hashed.setdefault((part.value.header.name, part.value.field), index)
            elif part.value is not None:
                others |= finder.operand(part.value)
    for index, call in enumerate(calls):
        copy = _copy(program, finder, call)
        if copy is None:
            continue
        variable, value = copy
        alone = written[variable] == 1 and readers.get(variable) == {action.info.id}
        if not alone or variable in others or variable in finder.standard or hashed[variable] < index:
            continue
        if isinstance(value, Const) or not _changes(finder, value, calls[index + 1 :]):
            yield index, copy


def _copy(
    program: Bmv2Program, finder: EffectsFinder, call: Primitive
) -> tuple[Variable, Field | Const] | None:
    """The variable and what it holds, if the call assigns a field or a constant to a variable of its type."""
    if call.op != "assign" or not isinstance(call.operands[0], Field):
        return None
    target, value = call.operands
    variables = finder.targets(call)
    if len(variables) != 1 or not isinstance(value, (Field, Const)):
        return None
    width, signed = _type(program, target)
    if isinstance(value, Const):
        fits = 0 <= value.value < 1 << width and not signed
    else:
        fits = isinstance(value.header, Header) and _type(program, value) == (width, signed)
    return (next(iter(variables)), value) if fits else None


def _type(program: Bmv2Program, field: Operand) -> tuple[int, bool]:
    assert isinstance(field, Field)
    if not isinstance(field.header, Header) or field.field == "$valid$":
        return 0, False
    declared = program.header_instances[field.header.name].type.field(field.field)
    return declared.width, declared.signed


def _changes(finder: EffectsFinder, field: Field, later: Sequence[Primitive]) -> bool:
    """Whether any of the calls can write the field."""
    assert isinstance(field.header, Header)
    for call in later:
        target = call.operands[0] if call.operands else None
        if (field.header.name, field.field) in finder.targets(call):
            return True
        if isinstance(target, Field) and isinstance(target.header, Header):
            if call.op in FIELD_WRITERS and target == field:
                return True
        elif isinstance(target, Header):
            if target.name == field.header.name:
                return True
        elif call.op in FIELD_WRITERS or isinstance(target, WHOLE):
            return True  # maybe
    return False


def _inputs(calculation: Calculation, held: Substitution) -> Iterator[CalcInput]:
    for part in calculation.inputs:
        if isinstance(part.value, Field) and isinstance(part.value.header, Header):
            value = held.get((part.value.header.name, part.value.field))
            if value is not None:
                # The variable was there whether or not the field's header is valid.
                yield CalcInput("hexstr" if isinstance(value, Const) else "variable", value, part.width)
                continue
        yield part
