"""The typed form of a BMv2 JSON: expressions and statements (behavioral-model, docs/JSON_format.md).

Data values are integers of unlimited size, as in BMv2; a value is cut to a width only where it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from soft_switch.errors import Source

VALID = "$valid$"


@dataclass(frozen=True)
class Const:
    """An integer."""

    value: int


@dataclass(frozen=True)
class Bool:
    """A truth value."""

    value: bool


@dataclass(frozen=True)
class Header:
    """A header or metadata instance, by name."""

    name: str


@dataclass(frozen=True)
class StackElement:
    """The header at an index that is computed when the packet is processed."""

    stack: str
    index: Expression


@dataclass(frozen=True)
class HeaderMux:
    """One of two headers of the same type, by a condition."""

    condition: Expression
    left: HeaderRef
    right: HeaderRef


HeaderRef = Union[Header, StackElement, HeaderMux]  # noqa: UP007


@dataclass(frozen=True)
class Field:
    """A field of a header; `$valid$` is its validity."""

    header: HeaderRef
    field: str


@dataclass(frozen=True)
class LastField:
    """A field of the header that was extracted into a stack (or a column of a stack of unions) last."""

    stack: str
    field: str


@dataclass(frozen=True)
class Param:
    """A parameter of the action."""

    index: int


@dataclass(frozen=True)
class Lookahead:
    """Bits of the packet ahead of the parser."""

    offset: int
    width: int


@dataclass(frozen=True)
class StackCount:
    """The number of headers of a stack that were extracted; with `last`, the index of the last of them."""

    stack: str
    last: bool


@dataclass(frozen=True)
class Valid:
    """The validity of a header."""

    header: HeaderRef


@dataclass(frozen=True)
class HeadersEqual:
    """The equality of two headers of one type: both are valid and have equal fields."""

    left: HeaderRef
    right: HeaderRef


@dataclass(frozen=True)
class Unary:
    """`~` and the conversions `b2d` (truth value to 0 or 1), `d2b` and `not`."""

    op: str
    operand: Expression


@dataclass(frozen=True)
class Binary:
    """Arithmetic, bit operations, comparisons, `and`, `or`, `two_comp_mod`, `sat_cast`, `usat_cast`."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Mux:
    """One of two values, by a condition."""

    condition: Expression
    left: Expression
    right: Expression


Expression = Union[  # noqa: UP007
    Const, Bool, Field, LastField, Param, Lookahead, StackCount, Valid, HeadersEqual, Unary, Binary, Mux
]
LValue = Union[Field, LastField]  # noqa: UP007

BOOL_BINARY = frozenset({"==", "!=", "<", "<=", ">", ">=", "and", "or"})


def is_bool(expression: Expression) -> bool:
    """Tell whether an expression yields a truth value (and not a number)."""
    match expression:
        case Bool() | Valid() | HeadersEqual():
            return True
        case Unary(op, _):
            return op in ("not", "d2b")
        case Binary(op, _, _):
            return op in BOOL_BINARY
        case Mux(_, left, _):
            return is_bool(left)
        case _:
            return False


def operands(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions that an expression is made of."""
    match expression:
        case Unary(_, operand):
            return (operand,)
        case Binary(_, left, right):
            return left, right
        case Mux(condition, left, right):
            return condition, left, right
        case Field(header, _) | Valid(header):
            return header_operands(header)
        case HeadersEqual(left, right):
            return header_operands(left) + header_operands(right)
        case _:
            return ()


def header_operands(header: HeaderRef) -> tuple[Expression, ...]:
    """Return the expressions that decide which header is meant."""
    match header:
        case StackElement(_, index):
            return (index,)
        case HeaderMux(condition, left, right):
            return condition, *header_operands(left), *header_operands(right)
        case _:
            return ()


@dataclass(frozen=True)
class Stack:
    """A header stack as an operand."""

    name: str


@dataclass(frozen=True)
class HeaderUnion:
    """A header union as an operand: the headers it consists of, of which one at most is valid."""

    name: str
    headers: tuple[str, ...]


@dataclass(frozen=True)
class UnionStack:
    """A stack of header unions as an operand: the stacks of the first members, of the second, and so on."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Named:
    """An object a primitive works on: a register_array, counter_array, meter_array, calculation or string."""

    kind: str
    name: str


NOT_VALUES = (Header, StackElement, HeaderMux, Stack, HeaderUnion, UnionStack, Named, tuple)
Operand = Union[  # noqa: UP007
    Expression,
    Header,
    StackElement,
    HeaderMux,
    Stack,
    HeaderUnion,
    UnionStack,
    Named,
    tuple[Expression, ...],
]


@dataclass(frozen=True)
class Primitive:
    """One primitive call of an action."""

    op: str
    operands: tuple[Operand, ...]
    source: Source | None
