"""Conversion of JSON values to the types that dataclasses declare."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from ipaddress import IPv4Address
from typing import Any, Final

_hints: Final[Callable[[Any], dict[str, Any]]] = functools.cache(typing.get_type_hints)


def read(hint: Any, value: Any) -> Any:
    """Convert a value to that type; missing fields get defaults. Raise KeyError, TypeError or ValueError."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        if value is None:
            return None
    of, inner = typing.get_origin(hint), typing.get_args(hint)
    if of in (list, tuple):
        return of(read(inner[0], item) for item in value)
    if of is dict:
        return {inner[0](name): read(inner[1], item) for name, item in value.items()}
    if is_dataclass(hint):
        made: Any = hint
        return made(**{name: read(_hints(hint)[name], given) for name, given in value.items()})
    return hint(value) if issubclass(hint, Enum | IPv4Address) else value
