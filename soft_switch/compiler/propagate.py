"""Copies that need not be made.

p4c assigns every argument of an extern to a variable first: for a hash over a packet's payload that is a
copy of the payload. Inside an action without jumps, a variable that is written once, with a field or a
constant that does not change until the end, and read nowhere else, is replaced by what it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from soft_switch.bmv2.program import Action, Bmv2Program, CalcInput, Calculation
from soft_switch.bmv2.syntax import (
    Binary,
    Const,
    Expression,
    Field,
    Header,
    HeaderMux,
    HeaderRef,
    HeadersEqual,
    HeaderUnion,
    Mux,
    Named,
    Operand,
    Primitive,
    Stack,
    StackElement,
    Unary,
    UnionStack,
    Valid,
    operands,
)
from soft_switch.compiler.effects import FIELD_WRITERS, EffectsFinder
from soft_switch.compiler.flow import JUMPS, Variable

Substitution = dict[Variable, Field | Const]


def propagate_copies(program: Bmv2Program) -> Bmv2Program:
    """The program without these copies."""
    finder = EffectsFinder(program)
    readers = _readers(program, finder)
    calls = Counter(checksum.calculation for checksum in program.checksums)
    everywhere = [action.primitives for action in program.actions.values()]
    calls.update(
        operand.name
        for primitives in [*everywhere, program.deparser_primitives]
        for call in primitives
        for operand in call.operands
        if isinstance(operand, Named) and operand.kind == "calculation"
    )
    actions, calculations = dict(program.actions), dict(program.calculations)
    for number, action in program.actions.items():
        worker = _Propagation(program, finder, action, readers, calls)
        actions[number] = worker.run()
        calculations.update(worker.calculations)
    return replace(program, actions=actions, calculations=calculations)


def all_reads(program: Bmv2Program) -> frozenset[Variable]:
    """Metadata that some part of the program reads."""
    finder = EffectsFinder(program)
    return frozenset(_readers(program, finder))


class ActionLocals:
    """Which metadata an action writes for itself alone."""

    def __init__(self, program: Bmv2Program) -> None:
        self._finder = EffectsFinder(program)
        self._readers = _readers(program, self._finder)

    def ends(self, action: Action, index: int, field: Field) -> bool:
        """Whether nothing reads what a field has before that call of an action.

        Nobody else reads it, no later call does, and the action writes it before it reads it.
        """
        variables = self._finder.variables(field)
        if not variables or variables & self._finder.standard:
            return False
        calls = action.primitives
        if any(call.op in JUMPS for call in calls) or variables & self._finder.action(action).reads:
            return False
        if any(self._readers.get(variable, set()) - {action.info.id} for variable in variables):
            return False
        return not any(variables & self._finder.primitive(call).reads for call in calls[index:])


def _readers(program: Bmv2Program, finder: EffectsFinder) -> Mapping[Variable, set[object]]:
    """Who reads each variable: the numbers of actions, and a word for everything else."""
    readers: dict[Variable, set[object]] = {}

    def note(variables: frozenset[Variable], who: object) -> None:
        for variable in variables:
            readers.setdefault(variable, set()).add(who)

    for state in program.parser_states.values():
        for op in state.ops:
            if op.primitive is not None:
                for operand in op.primitive.operands:
                    note(finder.operand(operand), "parser")
            if op.value is not None:
                note(finder.variables(op.value), "parser")
            if op.target is not None:
                note(finder.operand(op.target), "parser")
        for part in state.key:
            note(finder.variables(part), "parser")
    for number, action in program.actions.items():
        for call in action.primitives:
            reads = set(finder.primitive(call).reads)
            if call.op in JUMPS and not isinstance(call.operands[0], Const):
                reads |= finder.operand(call.operands[0])
            note(frozenset(reads), number)
    for pipeline in program.pipelines.values():
        for conditional in pipeline.conditionals:
            note(finder.variables(conditional.condition), "condition")
        for table in pipeline.tables:
            note(finder.table(table), "key")
    note(finder.at_end(), "end")
    for call in program.deparser_primitives:
        note(finder.primitive(call).reads, "deparser")
    for checksum in program.checksums:
        note(finder.calculation(program.calculations[checksum.calculation]), "checksum")
        note(finder.variables(checksum.target), "checksum")
        if checksum.condition is not None:
            note(finder.variables(checksum.condition), "checksum")
    return readers


class _Propagation:
    """The work on one action."""

    def __init__(
        self,
        program: Bmv2Program,
        finder: EffectsFinder,
        action: Action,
        readers: Mapping[Variable, set[object]],
        calls: Counter[str],
    ) -> None:
        self._program = program
        self._finder = finder
        self._action = action
        self._readers = readers
        self._calls = calls
        self.calculations: dict[str, Calculation] = {}

    def run(self) -> Action:
        """The action without copies."""
        calls = self._action.primitives
        if any(call.op in JUMPS for call in calls) or not self._straight(calls):
            return self._action
        written = Counter(variable for call in calls for variable in self._finder.targets(call))
        known: Substitution = {}
        result: list[Primitive] = []
        read: set[Variable] = set()
        whole = set(self._whole_headers(calls))
        for index, original in enumerate(calls):
            call = self._substitute(original, known)
            held = self._copy(call, written, calls[index + 1 :])
            read |= self._finder.primitive(original).reads
            if held is None or held[0] in read or held[0][0] in whole:
                result.append(call)
            else:
                known[held[0]] = held[1]
        return replace(self._action, primitives=tuple(result))

    def _whole_headers(self, calls: tuple[Primitive, ...]) -> Iterator[str]:
        """Instances that something reads or writes as a whole: their fields cannot be replaced one by one."""
        pending: list[object] = [operand for call in calls for operand in call.operands]
        while pending:
            item = pending.pop()
            match item:
                case Header(name):
                    yield name
                case Named("calculation", name):
                    pending += [part.value for part in self._program.calculations[name].inputs]
                case HeadersEqual(left, right) | HeaderMux(_, left, right):
                    pending += [left, right]
                case tuple():
                    pending += item
                case Unary() | Binary() | Mux() | Field() | Valid():
                    pending += operands(item)

    def _straight(self, calls: tuple[Primitive, ...]) -> bool:
        """A calculation that others use too cannot be changed for this action."""
        return all(
            self._calls[operand.name] == 1
            for call in calls
            for operand in call.operands
            if isinstance(operand, Named) and operand.kind == "calculation"
        )

    def _copy(
        self, call: Primitive, written: Counter[Variable], later: tuple[Primitive, ...]
    ) -> tuple[Variable, Field | Const] | None:
        """The variable and what it holds, if the call is such a copy."""
        if call.op != "assign" or not isinstance(call.operands[0], Field):
            return None
        target, value = call.operands
        variables = self._finder.primitive(call).writes
        if len(variables) != 1 or not isinstance(value, (Field, Const)):
            return None
        (variable,) = variables
        here = {self._action.info.id}
        if written[variable] != 1 or variable in self._finder.standard:
            return None
        if not self._readers.get(variable, set()) <= here:
            return None
        width, signed = self._type(target)
        if isinstance(value, Const):
            return (variable, value) if 0 <= value.value < 1 << width and not signed else None
        if not isinstance(value.header, Header) or self._type(value) != (width, signed):
            return None
        return None if self._changes(value, later) else (variable, value)

    def _type(self, field: Operand) -> tuple[int, bool]:
        assert isinstance(field, Field)
        if not isinstance(field.header, Header) or field.field == "$valid$":
            return 0, False
        declared = self._program.header_instances[field.header.name].type.field(field.field)
        return declared.width, declared.signed

    def _changes(self, field: Field, later: tuple[Primitive, ...]) -> bool:
        """Whether any of the calls can write the field."""
        assert isinstance(field.header, Header)
        stacks = {s.name for s in self._program.stacks.values() if field.header.name in s.headers}
        for call in later:
            if (field.header.name, field.field) in self._finder.targets(call):
                return True
            if not call.operands:
                continue
            target = call.operands[0]
            if call.op in FIELD_WRITERS:
                if target == field or not isinstance(target, Field) or isinstance(target.header, HeaderMux):
                    return True
                if isinstance(target.header, StackElement) and target.header.stack in stacks:
                    return True
            elif isinstance(target, Header) and target.name == field.header.name:
                return True
            elif isinstance(target, (Stack, StackElement)):
                name = target.name if isinstance(target, Stack) else target.stack
                if name in stacks:
                    return True
            elif isinstance(target, (HeaderMux, HeaderUnion, UnionStack)):
                return True
        return False

    # Substitution

    def _substitute(self, call: Primitive, known: Substitution) -> Primitive:
        if not known:
            return call
        first = 1 if call.op in FIELD_WRITERS else 0
        changed = [*call.operands[:first], *(self._operand(item, known) for item in call.operands[first:])]
        if first and isinstance(changed[0], Field):
            changed[0] = self._target(changed[0], known)
        return replace(call, operands=tuple(changed))

    def _target(self, field: Field, known: Substitution) -> Field:
        return replace(field, header=self._reference(field.header, known))

    def _reference(self, header: HeaderRef, known: Substitution) -> HeaderRef:
        match header:
            case StackElement(_, index):
                return replace(header, index=self._expression(index, known))
            case HeaderMux(condition, left, right):
                sides = (self._reference(side, known) for side in (left, right))
                return HeaderMux(self._expression(condition, known), *sides)
            case _:
                return header

    def _operand(self, operand: Operand, known: Substitution) -> Operand:
        match operand:
            case Named("calculation", name):
                self.calculations[name] = self._calculation(self._program.calculations[name], known)
                return operand
            case Stack() | HeaderUnion() | UnionStack() | Named():
                return operand
            case Header() | StackElement() | HeaderMux():
                return self._reference(operand, known)
            case tuple():
                return tuple(self._expression(item, known) for item in operand)
            case _:
                return self._expression(operand, known)

    def _expression(self, expression: Expression, known: Substitution) -> Expression:
        if not self._finder.variables(expression) & known.keys():
            return expression
        match expression:
            case Field(Header(name), field):
                return known.get((name, field), expression)
            case Field():
                return self._target(expression, known)
            case Unary(op, operand):
                return Unary(op, self._expression(operand, known))
            case Binary(op, left, right):
                return Binary(op, self._expression(left, known), self._expression(right, known))
            case Mux(condition, left, right):
                parts = (self._expression(part, known) for part in (condition, left, right))
                return Mux(*parts)
            case Valid(header):
                return Valid(self._reference(header, known))
            case HeadersEqual(left, right):
                return HeadersEqual(self._reference(left, known), self._reference(right, known))
            case _:
                return expression

    def _calculation(self, calculation: Calculation, known: Substitution) -> Calculation:
        return replace(calculation, inputs=tuple(self._inputs(calculation, known)))

    @staticmethod
    def _inputs(calculation: Calculation, known: Substitution) -> Iterator[CalcInput]:
        for part in calculation.inputs:
            if isinstance(part.value, Field) and isinstance(part.value.header, Header):
                held = known.get((part.value.header.name, part.value.field))
                if held is not None:
                    # The variable was there whether or not the field's header is valid.
                    yield CalcInput("hexstr" if isinstance(held, Const) else "variable", held, part.width)
                    continue
            yield part
