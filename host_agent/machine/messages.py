"""The messages by which the workers of one machine meet, and tell each other who left or failed.

Each is a JSON object of one key, its name, in one packet of a Unix socket: {"left": {"local_rank": 1, ...}}.
Nothing that is read is believed before its fields have the types, and the ranges, that are declared here.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

from controller.api.messages import shortened

MESSAGE_BYTES: Final = 16 << 10  # a reason, every letter of it escaped, and a frame around it
_LARGEST: Final = (1 << 63) - 1


class BadMessageError(ValueError):
    """A message that no worker of this version sends."""


@dataclass(frozen=True, kw_only=True)
class Who:
    """A worker: its place in the machine and in the job, and what all of the machine have to agree on."""

    local_rank: int
    local_size: int
    rank: int
    world_size: int
    settings: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank}, local rank {self.local_rank} of {self.local_size}"


@dataclass(frozen=True)
class Hello:
    """A worker has come. With it comes its memory, as a file descriptor."""

    local_rank: int
    local_size: int
    world_size: int
    machine: int
    settings: str

    @classmethod
    def of(cls, who: Who) -> Hello:
        """Return the Hello of a worker."""
        return cls(who.local_rank, who.local_size, who.world_size, who.rank // who.local_size, who.settings)


@dataclass(frozen=True)
class Welcome:
    """The news that all have come. With it comes everybody's memory, by local rank."""


@dataclass(frozen=True)
class Refused:
    """The workers cannot work together."""

    why: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", shortened(self.why))


@dataclass(frozen=True)
class Left:
    """A worker has left its job after so many collectives."""

    local_rank: int
    collectives: int


@dataclass(frozen=True)
class Failed:
    """A worker cannot go on. `kind`: its error's class; `rank`: whom that is about, among all workers."""

    reason: str
    kind: str
    rank: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shortened(self.reason))


@dataclass(frozen=True)
class Parts:
    """A worker closes its connection, and is not missed."""


Message = Hello | Welcome | Refused | Left | Failed | Parts
_NAMES: Final[dict[str, type[Message]]] = {kind.__name__.lower(): kind for kind in typing.get_args(Message)}
_hints: Final[Callable[[Any], dict[str, Any]]] = cache(typing.get_type_hints)


def encoded(message: Message) -> bytes:
    """Return the packet of a message. ValueError if it is too long."""
    packet = json.dumps({type(message).__name__.lower(): asdict(message)}).encode()
    if len(packet) > MESSAGE_BYTES:
        raise ValueError(f"{message} has more than {MESSAGE_BYTES} bytes")
    return packet


def decoded(packet: bytes) -> Message:
    """Read a packet. BadMessageError."""
    if len(packet) > MESSAGE_BYTES:
        raise BadMessageError(f"a message of more than {MESSAGE_BYTES} bytes")
    try:
        said = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise BadMessageError(f"{packet[:40]!r}, which is not JSON") from error
    if not isinstance(said, dict) or len(said) != 1:
        raise BadMessageError(f"{packet[:40]!r}, which is not an object with one key")
    ((name, values),) = said.items()
    kind = _NAMES.get(name)
    if kind is None:
        raise BadMessageError(f"{shortened(name, 40)!r}, which is not known here")
    hints = _hints(kind)
    if not isinstance(values, dict) or values.keys() != hints.keys():
        raise BadMessageError(f"{name!r} with other fields than {', '.join(hints) or 'none'}")
    for field, hint in hints.items():
        if not _is_one(hint, values[field]):
            raise BadMessageError(f"{name!r} whose {field} is {shortened(repr(values[field]), 40)}")
    return kind(**values)


def _is_one(hint: Any, value: Any) -> bool:
    """Tell whether a value is of that type; numbers are counts from 0."""
    if isinstance(hint, types.UnionType):
        return any(_is_one(part, value) for part in typing.get_args(hint))
    if hint is int:
        return type(value) is int and 0 <= value <= _LARGEST
    return type(value) is hint
