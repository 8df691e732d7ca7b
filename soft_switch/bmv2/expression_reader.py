"""From JSON values to the expressions and primitives of `soft_switch.bmv2.syntax`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from soft_switch.bmv2.syntax import (
    NOT_VALUES,
    VALID,
    Binary,
    Bool,
    Const,
    Expression,
    Field,
    Header,
    HeaderMux,
    HeaderRef,
    HeadersEqual,
    HeaderUnion,
    LastField,
    Lookahead,
    Mux,
    Named,
    Operand,
    Param,
    Primitive,
    Stack,
    StackCount,
    StackElement,
    Unary,
    UnionStack,
    Valid,
    is_bool,
    operands,
)
from soft_switch.errors import ProgramError, Source, UnsupportedConstruct

Json = Mapping[str, Any]

BINARY = frozenset(
    {"+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "two_comp_mod", "sat_cast", "usat_cast"}
    | {"<", "<=", ">", ">=", "and", "or"}
)
UNARY = frozenset({"~", "not", "d2b", "b2d"})
HEADERS = (Header, StackElement, HeaderMux)
NAMED = frozenset({"register_array", "counter_array", "meter_array", "calculation", "string"})


def read_source(value: Json) -> Source | None:
    """The place in the P4 source that an object of the JSON carries, if it carries one."""
    info = value.get("source_info")
    if not info or "line" not in info:
        return None
    fragment = str(info.get("source_fragment", ""))
    return Source(str(info.get("filename", "")), int(info["line"]), fragment)


@dataclass(frozen=True)
class Names:
    """What names in expressions can refer to: the field names of header instances and of stacks.

    `unions` has the headers of each union, `union_stacks` the stack that stands for each member, by name.
    """

    header_fields: Mapping[str, Sequence[str]]
    stack_fields: Mapping[str, Sequence[str]]
    unions: Mapping[str, tuple[str, ...]]
    union_stacks: Mapping[str, Mapping[str, str]]


class SyntaxReader:
    """Reads expressions; what it cannot read raises UnsupportedConstruct with the enclosing source place."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._unique: dict[object, Operand] = {}

    def expression(self, value: Json, source: Source | None) -> Expression:
        """An expression that yields a number or a truth value."""
        operand = self.operand(value, source)
        if isinstance(operand, NOT_VALUES):
            raise UnsupportedConstruct(f"{value['type']} used as a value", source)
        return operand

    def header(self, value: Json, source: Source | None) -> HeaderRef:
        """A reference to a header instance."""
        operand = self.operand(value, source)
        if not isinstance(operand, (Header, StackElement, HeaderMux)):
            raise UnsupportedConstruct(f"{value['type']} used as a header", source)
        return operand

    def field(self, value: Sequence[Any], source: Source | None) -> Field:
        """A field given as [header, field]."""
        header, name = value[0], value[1]
        reference: HeaderRef
        if not isinstance(header, str):
            wrapped = {"type": "expression", "value": header} if "op" in header else header
            reference = self.header(wrapped, source)
        else:
            reference = Header(header)
            known = self._names.header_fields.get(header)
            if known is None:
                raise UnsupportedConstruct(f"a field of {header}, which is no header instance,", source)
            if name != VALID and name not in known:
                raise ProgramError(f"header {header} has no field {name}")
        return Field(reference, name)

    def operand(self, value: Json, source: Source | None) -> Operand:
        """Whatever a primitive can take. Equal expressions are one object."""
        operand = self._operand(value, source)
        key: object = operand
        if isinstance(operand, (Unary, Binary, Mux)):
            parts = tuple(id(part) for part in operands(operand))
            key = (type(operand), getattr(operand, "op", None), parts)
        return self._unique.setdefault(key, operand)

    def _operand(self, value: Json, source: Source | None) -> Operand:
        kind, inner = value["type"], value["value"]
        if kind == "expression":
            return self._operation(inner, source) if "op" in inner else self.operand(inner, source)
        if kind == "field":
            return self.field(inner, source)
        if kind == "hexstr":
            return Const(int(inner, 16))
        if kind == "bool":
            return Bool(bool(inner))
        if kind in ("runtime_data", "local"):
            return Param(int(inner))
        if kind == "header":
            return self._header_name(inner, source)
        if kind == "header_stack":
            return self._stack(inner, source)
        if kind == "stack_field":
            return self._last(self._stack(inner[0], source), inner[1])
        if kind == "union_stack_field":
            return self._last(self.column(inner[0], inner[1], source), inner[2])
        if kind == "header_union":
            return self._union(inner, source)
        if kind == "header_union_stack":
            return UnionStack(inner, tuple(self._columns(inner, source).values()))
        if kind == "lookahead":
            return Lookahead(int(inner[0]), int(inner[1]))
        if kind == "parameters_vector":
            items = inner or ()
            return tuple(self.expression(item, source) for item in items)
        if kind in NAMED:
            return Named(kind, str(inner))
        raise UnsupportedConstruct(f"operand type {kind}", source)

    def primitive(self, value: Json, fallback: Source | None = None) -> Primitive:
        """One primitive call; `fallback` is the place to name where the call itself has none."""
        source = read_source(value) or fallback
        operands = tuple(self.operand(item, source) for item in value["parameters"])
        if value["op"] == "execute_meter":  # the field that gets the color comes last: first, as elsewhere
            operands = operands[2:] + operands[:2]
        return Primitive(str(value["op"]), operands, source)

    def _header_name(self, name: Any, source: Source | None) -> Header:
        if not isinstance(name, str) or name not in self._names.header_fields:
            raise UnsupportedConstruct(f"header reference {name}", source)
        return Header(name)

    def _stack(self, name: Any, source: Source | None) -> Stack:
        if not isinstance(name, str) or name not in self._names.stack_fields:
            raise UnsupportedConstruct(f"header stack reference {name}", source)
        return Stack(name)

    def _last(self, stack: Stack, field: str) -> Operand:
        if field == "last" and field not in self._names.stack_fields[stack.name]:
            return StackElement(stack.name, StackCount(stack.name, True))
        return LastField(stack.name, field)

    def _columns(self, name: Any, source: Source | None) -> Mapping[str, str]:
        if not isinstance(name, str) or name not in self._names.union_stacks:
            raise UnsupportedConstruct(f"reference to a stack of header unions {name}", source)
        return self._names.union_stacks[name]

    def column(self, name: str, member: str, source: Source | None) -> Stack:
        """The stack that stands for a member of a stack of unions."""
        columns = self._columns(name, source)
        if member not in columns:
            raise ProgramError(f"the header unions of {name} have no member {member}")
        return Stack(columns[member])

    def _union(self, name: Any, source: Source | None) -> HeaderUnion:
        if not isinstance(name, str) or name not in self._names.unions:
            raise UnsupportedConstruct(f"header union reference {name}", source)
        return HeaderUnion(name, self._names.unions[name])

    def _operation(self, value: Json, source: Source | None) -> Operand:
        op, left, right = value["op"], value.get("left"), value["right"]
        if op == "?":
            return self._mux(self.expression(value["cond"], source), left, right, source)  # type: ignore[arg-type]
        if op in ("==", "!="):
            return self._equality(op, left, right, source)  # type: ignore[arg-type]
        if op == "valid":
            return Valid(self.header(right, source))
        if op == "valid_union":
            return _any([Valid(Header(name)) for name in self._as_union(right, source).headers])
        if op == "access_field":
            return self._access_field(self.header(left, source), int(right), source)  # type: ignore[arg-type]
        if op in ("dereference_header_stack", "dereference_stack"):
            stack = self._stack(left["value"], source)  # type: ignore[index]
            return StackElement(stack.name, self.expression(right, source))
        if op in ("last_stack_index", "size_stack"):
            return StackCount(self._stack(right["value"], source).name, op == "last_stack_index")
        if op in UNARY:
            return Unary(op, self.expression(right, source))
        if op in BINARY:
            if left is None:
                if op not in "+-":
                    raise UnsupportedConstruct(f"operator {op} with one operand", source)
                return Binary(op, Const(0), self.expression(right, source))
            return Binary(op, self.expression(left, source), self.expression(right, source))
        raise UnsupportedConstruct(f"operator {op}", source)

    def _mux(self, condition: Expression, left: Json, right: Json, source: Source | None) -> Operand:
        first, second = self.operand(left, source), self.operand(right, source)
        if isinstance(first, HEADERS) and isinstance(second, HEADERS):
            return HeaderMux(condition, first, second)
        return Mux(condition, self.expression(left, source), self.expression(right, source))

    def _as_union(self, value: Json, source: Source | None) -> HeaderUnion:
        operand = self.operand(value, source)
        if not isinstance(operand, HeaderUnion):
            raise UnsupportedConstruct(f"{value['type']} used as a header union", source)
        return operand

    def _equality(self, op: str, left: Json, right: Json, source: Source | None) -> Expression:
        first, second = self.operand(left, source), self.operand(right, source)
        equal: Expression | None = None
        if isinstance(first, HEADERS) and isinstance(second, HEADERS):
            equal = HeadersEqual(first, second)
        elif isinstance(first, HeaderUnion) and isinstance(second, HeaderUnion):
            # One header at most is valid in each, and headers that are not are unequal.
            pairs = zip(first.headers, second.headers, strict=True)
            equal = _any([HeadersEqual(Header(a), Header(b)) for a, b in pairs])
        if equal is not None:
            return equal if op == "==" else Unary("not", equal)
        a, b = self.expression(left, source), self.expression(right, source)
        if is_bool(a) != is_bool(b):
            raise ProgramError(f"operator {op} compares a number with a truth value ({source})")
        return Binary(op, a, b)

    def _access_field(self, header: HeaderRef, offset: int, source: Source | None) -> Field:
        first = header
        while isinstance(first, HeaderMux):  # both sides are of one type
            first = first.left
        if isinstance(first, StackElement):
            fields = self._names.stack_fields[first.stack]
        else:
            fields = self._names.header_fields[first.name]
        if offset == len(fields):  # hidden fields follow the declared ones
            return Field(header, VALID)
        if not 0 <= offset < len(fields):
            raise UnsupportedConstruct(f"access to field number {offset}", source)
        return Field(header, fields[offset])


def _any(tests: Sequence[Expression]) -> Expression:
    """Whether one of several things is so."""
    result: Expression = Bool(False)
    for test in tests:
        result = Binary("or", result, test)
    return result
