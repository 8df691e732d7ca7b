"""JSON to dataclasses: each field has the type that it is annotated with, within what `Annotated` adds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_LONGEST = 40  # characters of a value in a message
_WORDS = {str: "a string", bool: "true or false", int: "a whole number", float: "a number", dict: "an object"}


class FieldError(ValueError):
    """A value is not what it has to be; the message has the field, its value and what would do."""

    def __init__(self, where: str, value: object, wanted: str) -> None:
        super().__init__(f"{where or 'the schedule'} is {_shown(value)}, and has to be {wanted}")


class Rule(Protocol):
    """What `Annotated` adds to a type."""

    @property
    def wanted(self) -> str:
        """What would do, for people."""

    def holds(self, value: Any) -> bool:
        """Whether a value of that type will do."""


@dataclass(frozen=True)
class Within:
    """A number that is not below `least`, and not above `most`."""

    least: float
    most: float

    @property
    def wanted(self) -> str:
        """For the message."""
        return str(self.least) if self.least == self.most else f"a number from {self.least} to {self.most}"

    def holds(self, value: float) -> bool:
        """False for NaN, too."""
        return self.least <= value <= self.most


@dataclass(frozen=True)
class OneOf:
    """One of these."""

    known: Collection[Any]

    @property
    def wanted(self) -> str:
        """For the message."""
        return f"one of {', '.join(json.dumps(name) for name in self.known)}"

    def holds(self, value: object) -> bool:
        """Whether it is among them."""
        return value in self.known


@dataclass(frozen=True)
class Length:
    """Of a list."""

    least: int
    most: int

    @property
    def wanted(self) -> str:
        """For the message."""
        few = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
        return f"a list of {few}"

    def holds(self, value: Collection[Any]) -> bool:
        """Whether it is as long."""
        return self.least <= len(value) <= self.most


def require(rule: Rule, value: object, where: str) -> None:
    """FieldError unless the rule holds."""
    if not rule.holds(value):
        raise FieldError(where, value, rule.wanted)


def built(kind: type[T], value: object, where: str = "") -> T:
    """`value`, which JSON held, as a `kind`: a dataclass with fields of such kinds, a list or an object of
    them, a plain type, one that may be null, each of these with rules. FieldError.
    """
    return cast(T, _built(kind, value, where))


def _built(kind: Any, value: Any, where: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = _built(parts[0], value, where)
        for rule in parts[1:]:
            require(rule, value, where)
        return value
    if origin in (Union, UnionType):
        return None if value is None else _built(parts[0], value, where)
    if origin is list:
        if not isinstance(value, list):
            raise FieldError(where, value, "a list")
        return [_built(parts[0], item, f"{where}[{n}]") for n, item in enumerate(value)]
    if origin is dict:
        return {
            key: _built(parts[1], item, _inside(where, key)) for key, item in _object(value, where).items()
        }
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, _object(value, where), where)
    # JSON's true is no number here, and 1 a float.
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise FieldError(where, value, _WORDS[kind])
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(where, value, "an object")
    return value


def _dataclass(kind: Any, values: dict[str, Any], where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            raise FieldError(_inside(where, name), values[name], f"left out: known are {', '.join(fields)}")
    for name, field in fields.items():
        needed = field.default is field.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise FieldError(_inside(where, name), dataclasses.MISSING, "there")
    kinds = _kinds(kind)
    return kind(**{name: _built(kinds[name], value, _inside(where, name)) for name, value in values.items()})


@cache
def _kinds(kind: type) -> dict[str, Any]:
    """Of a dataclass's fields; looking them up takes longer than reading an object."""
    return get_type_hints(kind, include_extras=True)


def _inside(where: str, name: str) -> str:
    key = name if name.isidentifier() and name.isascii() else _shown(name)
    return f"{where}.{key}" if where else key


def _shown(value: object) -> str:
    """As the file has it, unless that is long."""
    if value is dataclasses.MISSING:
        return "missing"
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
