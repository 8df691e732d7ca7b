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


HeaderRef = Union[Header, StackElement]  # noqa: UP007


@dataclass(frozen=True)
class Field:
    """A field of a header; `$valid$` is its validity."""

    header: HeaderRef
    field: str


@dataclass(frozen=True)
class LastField:
    """A field of the header that was extracted into a stack last."""

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
    """How many headers of a stack were extracted; `last` means the index of the last of them."""

    stack: str
    last: bool


@dataclass(frozen=True)
class Valid:
    """Whether a header is valid."""

    header: HeaderRef


@dataclass(frozen=True)
class HeadersEqual:
    """Whether two headers of one type are both valid and have equal fields."""

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
    """Whether an expression yields a truth value (and not a number)."""
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
    """The expressions that an expression is made of."""
    match expression:
        case Unary(_, operand):
            return (operand,)
        case Binary(_, left, right):
            return left, right
        case Mux(condition, left, right):
            return condition, left, right
        case Field(StackElement(_, index), _) | Valid(StackElement(_, index)):
            return (index,)
        case _:
            return ()


@dataclass(frozen=True)
class Stack:
    """A header stack as an operand."""

    name: str


@dataclass(frozen=True)
class Named:
    """An object a primitive works on: kind is register_array, counter_array, calculation or string."""

    kind: str
    name: str


Operand = Union[Expression, Header, StackElement, Stack, Named, tuple[Expression, ...]]  # noqa: UP007


@dataclass(frozen=True)
class Primitive:
    """One primitive call of an action."""

    op: str
    operands: tuple[Operand, ...]
    source: Source | None
