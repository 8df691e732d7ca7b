"""Reading of JSON values as the expressions and primitives of `soft_switch.bmv2.syntax`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from soft_switch.bmv2 import syntax as p4
from soft_switch.bmv2.program import HeaderInstance, HeaderStack
from soft_switch.errors import ProgramError, Source, UnsupportedConstruct

Json = Mapping[str, Any]

BINARY = frozenset(
    {"+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "two_comp_mod", "sat_cast", "usat_cast"}
    | {"<", "<=", ">", ">=", "and", "or"}
)
UNARY = frozenset({"~", "not", "d2b", "b2d"})
HEADERS = (p4.Header, p4.StackElement, p4.HeaderMux)
# Primitives of P4_14 that store what an operator yields; its left operand is the target of those in place.
ARITHMETIC = {
    "add_to_field": "+", "subtract_from_field": "-", "add": "+", "subtract": "-",
    "bit_xor": "^", "bit_or": "|", "bit_and": "&", "shift_left": "<<", "shift_right": ">>",
}  # fmt: skip
IN_PLACE = frozenset({"add_to_field", "subtract_from_field"})
NAMED = frozenset({"register_array", "counter_array", "meter_array", "calculation", "string"})


def read_source(value: Json) -> Source | None:
    """Read the place in the P4 source that an object of the JSON carries, if it carries one."""
    info = value.get("source_info")
    if not info or "line" not in info:
        return None
    fragment = str(info.get("source_fragment", ""))
    return Source(str(info.get("filename", "")), int(info["line"]), fragment)


class SyntaxReader:
    """Reader of expressions. UnsupportedConstruct, with the enclosing source place, if it cannot read one.

    Names refer to headers, stacks, unions (the headers of each) and stacks of unions (the stack that stands
    for each member, by name).
    """

    def __init__(
        self,
        headers: Mapping[str, HeaderInstance],
        stacks: Mapping[str, HeaderStack],
        unions: Mapping[str, tuple[str, ...]],
        union_stacks: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._headers = headers
        self._stacks = stacks
        self._unions = unions
        self._union_stacks = union_stacks

    def expression(self, value: Json, source: Source | None) -> p4.Expression:
        """Read an expression that yields a number or a truth value."""
        operand = self.operand(value, source)
        if isinstance(operand, p4.NOT_VALUES):
            raise UnsupportedConstruct(f"{value['type']} used as a value", source)
        return operand

    def header(self, value: Json, source: Source | None) -> p4.HeaderRef:
        """Read a reference to a header instance."""
        operand = self.operand(value, source)
        if not isinstance(operand, (p4.Header, p4.StackElement, p4.HeaderMux)):
            raise UnsupportedConstruct(f"{value['type']} used as a header", source)
        return operand

    def field(self, value: Sequence[Any], source: Source | None) -> p4.Field:
        """Read a field given as [header, field]."""
        header, name = value[0], value[1]
        reference: p4.HeaderRef
        if not isinstance(header, str):
            wrapped = {"type": "expression", "value": header} if "op" in header else header
            reference = self.header(wrapped, source)
        else:
            reference = p4.Header(header)
            known = self._headers.get(header)
            if known is None:
                raise UnsupportedConstruct(f"a field of {header}, which is no header instance,", source)
            if name != p4.VALID and name not in known.type.numbers:
                raise ProgramError(f"header {header} has no field {name}")
        return p4.Field(reference, name)

    def operand(self, value: Json, source: Source | None) -> p4.Operand:
        """Read any operand that a primitive can take."""
        kind, inner = value["type"], value["value"]
        if kind == "expression":
            return self._operation(inner, source) if "op" in inner else self.operand(inner, source)
        if kind == "field":
            return self.field(inner, source)
        if kind == "hexstr":
            return p4.Const(int(inner, 16))
        if kind == "bool":
            return p4.Bool(bool(inner))
        if kind in ("runtime_data", "local"):
            return p4.Param(int(inner))
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
            return p4.UnionStack(inner, tuple(self._columns(inner, source).values()))
        if kind == "lookahead":
            return p4.Lookahead(int(inner[0]), int(inner[1]))
        if kind == "parameters_vector":
            items = inner or ()
            return tuple(self.expression(item, source) for item in items)
        if kind in NAMED:
            return p4.Named(kind, str(inner))
        raise UnsupportedConstruct(f"operand type {kind}", source)

    def primitive(self, value: Json, fallback: Source | None = None) -> p4.Primitive:
        """Read one primitive call; `fallback` is the place to name if the call itself has none."""
        source = read_source(value) or fallback
        if value["op"] in ARITHMETIC:
            return self._arithmetic(str(value["op"]), value["parameters"], source)
        operands = tuple(self.operand(item, source) for item in value["parameters"])
        if value["op"] == "execute_meter":  # the field that gets the color comes last: first, as elsewhere
            operands = operands[2:] + operands[:2]
        return p4.Primitive(str(value["op"]), operands, source)

    def _arithmetic(self, op: str, operands: Sequence[Json], source: Source | None) -> p4.Primitive:
        target, *values = (self.expression(item, source) for item in operands)
        if op in IN_PLACE:
            values = [target, *values]
        if len(values) != 2:
            raise ProgramError(f"primitive {op} has operands that do not fit it ({source})")
        return p4.Primitive("assign", (target, p4.Binary(ARITHMETIC[op], *values)), source)

    def _header_name(self, name: Any, source: Source | None) -> p4.Header:
        if not isinstance(name, str) or name not in self._headers:
            raise UnsupportedConstruct(f"header reference {name}", source)
        return p4.Header(name)

    def _stack(self, name: Any, source: Source | None) -> p4.Stack:
        if not isinstance(name, str) or name not in self._stacks:
            raise UnsupportedConstruct(f"header stack reference {name}", source)
        return p4.Stack(name)

    def _last(self, stack: p4.Stack, field: str) -> p4.Operand:
        if field == "last" and field not in self._stacks[stack.name].type.numbers:
            return p4.StackElement(stack.name, p4.StackCount(stack.name, True))
        return p4.LastField(stack.name, field)

    def _columns(self, name: Any, source: Source | None) -> Mapping[str, str]:
        if not isinstance(name, str) or name not in self._union_stacks:
            raise UnsupportedConstruct(f"reference to a stack of header unions {name}", source)
        return self._union_stacks[name]

    def column(self, name: str, member: str, source: Source | None) -> p4.Stack:
        """Return the stack that stands for a member of a stack of unions."""
        columns = self._columns(name, source)
        if member not in columns:
            raise ProgramError(f"the header unions of {name} have no member {member}")
        return p4.Stack(columns[member])

    def _union(self, name: Any, source: Source | None) -> p4.HeaderUnion:
        if not isinstance(name, str) or name not in self._unions:
            raise UnsupportedConstruct(f"header union reference {name}", source)
        return p4.HeaderUnion(name, self._unions[name])

    def _operation(self, value: Json, source: Source | None) -> p4.Operand:
        op, left, right = value["op"], value.get("left"), value["right"]
        if op == "?":
            return self._mux(self.expression(value["cond"], source), left, right, source)  # type: ignore[arg-type]
        if op in ("==", "!="):
            return self._equality(op, left, right, source)  # type: ignore[arg-type]
        if op == "valid":
            return p4.Valid(self.header(right, source))
        if op == "valid_union":
            return _any([p4.Valid(p4.Header(name)) for name in self._as_union(right, source).headers])
        if op == "access_field":
            return self._access_field(self.header(left, source), int(right), source)  # type: ignore[arg-type]
        if op in ("dereference_header_stack", "dereference_stack"):
            stack = self._stack(left["value"], source)  # type: ignore[index]
            return p4.StackElement(stack.name, self.expression(right, source))
        if op in ("last_stack_index", "size_stack"):
            return p4.StackCount(self._stack(right["value"], source).name, op == "last_stack_index")
        if op in UNARY:
            return p4.Unary(op, self.expression(right, source))
        if op in BINARY:
            if left is None:
                if op not in "+-":
                    raise UnsupportedConstruct(f"operator {op} with one operand", source)
                return p4.Binary(op, p4.Const(0), self.expression(right, source))
            return p4.Binary(op, self.expression(left, source), self.expression(right, source))
        raise UnsupportedConstruct(f"operator {op}", source)

    def _mux(self, condition: p4.Expression, left: Json, right: Json, source: Source | None) -> p4.Operand:
        first, second = self.operand(left, source), self.operand(right, source)
        if isinstance(first, HEADERS) and isinstance(second, HEADERS):
            return p4.HeaderMux(condition, first, second)
        return p4.Mux(condition, self.expression(left, source), self.expression(right, source))

    def _as_union(self, value: Json, source: Source | None) -> p4.HeaderUnion:
        operand = self.operand(value, source)
        if not isinstance(operand, p4.HeaderUnion):
            raise UnsupportedConstruct(f"{value['type']} used as a header union", source)
        return operand

    def _equality(self, op: str, left: Json, right: Json, source: Source | None) -> p4.Expression:
        first, second = self.operand(left, source), self.operand(right, source)
        equal: p4.Expression | None = None
        if isinstance(first, HEADERS) and isinstance(second, HEADERS):
            equal = p4.HeadersEqual(first, second)
        elif isinstance(first, p4.HeaderUnion) and isinstance(second, p4.HeaderUnion):
            # One header at most is valid in each, and headers that are not are unequal.
            pairs = zip(first.headers, second.headers, strict=True)
            equal = _any([p4.HeadersEqual(p4.Header(a), p4.Header(b)) for a, b in pairs])
        if equal is not None:
            return equal if op == "==" else p4.Unary("not", equal)
        a, b = self.expression(left, source), self.expression(right, source)
        if p4.is_bool(a) != p4.is_bool(b):
            raise ProgramError(f"operator {op} compares a number with a truth value ({source})")
        return p4.Binary(op, a, b)

    def _access_field(self, header: p4.HeaderRef, offset: int, source: Source | None) -> p4.Field:
        first = header
        while isinstance(first, p4.HeaderMux):  # both sides are of one type
            first = first.left
        if isinstance(first, p4.StackElement):
            fields = self._stacks[first.stack].type.fields
        else:
            fields = self._headers[first.name].type.fields
        if offset == len(fields):  # hidden fields follow the declared ones
            return p4.Field(header, p4.VALID)
        if not 0 <= offset < len(fields):
            raise UnsupportedConstruct(f"access to field number {offset}", source)
        return p4.Field(header, fields[offset].name)


def _any(tests: Sequence[p4.Expression]) -> p4.Expression:
    """Return the expression that is true if one of the tests is."""
    result: p4.Expression = p4.Bool(False)
    for test in tests:
        result = p4.Binary("or", result, test)
    return result
