"""Description of a program for those who control it, and of how entries match.

Objects go by the names that P4Info and the BMv2 JSON give them. The JSON's reader makes them. So does
`server.schema` from P4Info, which gives them ids and has the facts that P4Info alone states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Union


class Exact(NamedTuple):
    """The field has this value."""

    value: int


class Lpm(NamedTuple):
    """The first `prefix_len` bits of the field are those of `value`."""

    value: int
    prefix_len: int


class Ternary(NamedTuple):
    """The field and `value` agree where `mask` has ones."""

    value: int
    mask: int


class Range(NamedTuple):
    """The field is within `low` and `high`, both included."""

    low: int
    high: int


class Optional_(NamedTuple):
    """The field has this value, or any value for None."""

    value: int | None


Match = Union[Exact, Lpm, Ternary, Range, Optional_]  # noqa: UP007  (evaluated at run time, Python 3.10 has no alias syntax)


@dataclass(frozen=True)
class Member:
    """The target of an entry of an indirect table: a member of the table's action profile, by handle."""

    handle: int


@dataclass(frozen=True)
class Group:
    """The target of an entry of a table with an action selector: a group of members, by handle."""

    handle: int


Target = Union[Member, Group]  # noqa: UP007  (evaluated at run time, as above)


class Translation(Protocol):
    """A type whose values controllers see as numbers of another width or as strings (`server.sdn_types`).

    `sdn_width` is that of the numbers that controllers see, 0 for strings, and `width` that in the data
    plane, None before it is known.
    """

    name: str
    sdn_width: int
    width: int | None

    def fit(self, width: int) -> None:
        """Take a width that the type has in the data plane."""

    def decode(self, data: bytes, width: int, what: str, *, new: bool = True) -> int:
        """Return the data plane's number, of `width` bits, for a controller's value.

        A string without a number gets one if it may be `new`; `what` names the value in errors.
        """

    def encode(self, number: int) -> bytes:
        """Return the controller's value for a number."""


@dataclass(frozen=True)
class KeyField:
    """One component of a key; `kind` is exact, lpm, ternary, range or optional, `width` in bits.

    `id` is P4Info's, here as in what follows, and so is the `sdn` type of values that are translated.
    """

    name: str
    kind: str
    width: int
    id: int = 0
    sdn: Translation | None = None


@dataclass(frozen=True)
class Param:
    """A parameter that table entries give an action, or a field of a controller header; `width` in bits.

    A packet-out may leave out `padding`.
    """

    name: str
    width: int
    id: int = 0
    sdn: Translation | None = None
    padding: bool = False


@dataclass(frozen=True)
class ActionInfo:
    """An action; its `id` is P4Info's, or the JSON's, where names of compiler-made actions repeat."""

    name: str
    id: int
    params: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action with arguments."""

    action: str
    params: tuple[int, ...]


@dataclass(frozen=True)
class InitialEntry:
    """An entry the program itself puts into a table; its handle is its index. Greater priority wins."""

    match: tuple[Match, ...]
    priority: int
    call: ActionCall


@dataclass(frozen=True)
class TableInfo:
    """A table; `default` is the program's own default action (None: a miss does nothing).

    `profile` is the action profile its entries take their actions from, None where they have their own.
    """

    name: str
    keys: tuple[KeyField, ...]
    size: int
    actions: tuple[str, ...]
    entries: tuple[InitialEntry, ...]
    default: ActionCall | None
    default_is_const: bool
    has_direct_counter: bool
    profile: str | None = None
    has_idle_timeout: bool = False


@dataclass(frozen=True)
class CounterInfo:
    """An indexed counter, or (with `table`) one per entry of a table."""

    name: str
    size: int
    table: str | None = None
    id: int = 0


@dataclass(frozen=True)
class RegisterInfo:
    """A register array of `size` cells, each `width` bits."""

    name: str
    size: int
    width: int


@dataclass(frozen=True)
class MeterInfo:
    """A two-rate three-color meter of `size` cells, or (with `table`) one per entry of a table.

    `unit` is "packets" or "bytes".
    """

    name: str
    size: int
    unit: str
    table: str | None


@dataclass(frozen=True)
class MeterConfig:
    """Committed and peak rate in units per second, and their bursts in units."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True)
class ValueSetInfo:
    """A parser value set of at most `size` members; each matches the components of a select key."""

    name: str
    size: int
    fields: tuple[KeyField, ...]
    id: int = 0


@dataclass(frozen=True)
class ActionProfileInfo:
    """An action profile of `size` members; with a `selector` they can form groups."""

    name: str
    size: int
    selector: bool


@dataclass(frozen=True)
class Program:
    """A program as its BMv2 JSON describes it; of digests, the width in bits of each value of a sample."""

    name: str
    tables: Mapping[str, TableInfo]
    actions: tuple[ActionInfo, ...]
    counters: Mapping[str, CounterInfo]
    registers: Mapping[str, RegisterInfo]
    meters: Mapping[str, MeterInfo] = field(default_factory=dict)
    digests: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    value_sets: Mapping[str, ValueSetInfo] = field(default_factory=dict)
    action_profiles: Mapping[str, ActionProfileInfo] = field(default_factory=dict)
