"""A BMv2 program as typed objects (behavioral-model, docs/JSON_format.md)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from soft_switch.bmv2.syntax import Const, Expression, Field, Header, Operand, Primitive, Valid
from soft_switch.description import ActionInfo, Program, TableInfo
from soft_switch.errors import ProgramError, Source

CORE_ERRORS = (  # of core.p4
    *("NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort"),
    *("ParserTimeout", "ParserInvalidArgument"),
)


@dataclass(frozen=True)
class FieldType:
    """A field of a header type, width in bits.

    A varbit field takes up what the parser found, `width` at most. A saturating one keeps the nearest value
    that fits.
    """

    name: str
    width: int
    signed: bool
    varbit: bool = False
    saturating: bool = False


@dataclass(frozen=True)
class HeaderType:
    """A header type; headers that are no metadata are whole bytes wide."""

    name: str
    fields: tuple[FieldType, ...]

    @property
    def width(self) -> int:
        """Bits of all fields, a varbit field counted as empty."""
        return sum(field.width for field in self.fields if not field.varbit)

    @property
    def varbit(self) -> FieldType | None:
        """The varbit field, if there is one."""
        return next((field for field in self.fields if field.varbit), None)

    def field(self, name: str) -> FieldType:
        """Return the field of that name."""
        found = self.numbers.get(name)
        if found is None:
            raise ProgramError(f"header type {self.name} has no field {name}")
        return self.fields[found]

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The place of each name in `fields`."""
        return {field.name: number for number, field in enumerate(self.fields)}


@dataclass(frozen=True)
class HeaderInstance:
    """A header or a metadata instance."""

    name: str
    type: HeaderType
    metadata: bool


@dataclass(frozen=True)
class HeaderStack:
    """A header stack and the instances that make it up.

    A stack of unions is one of these for each member, a column: they share one count, which `counter` names.
    """

    name: str
    type: HeaderType
    headers: tuple[str, ...]
    counter: str


@dataclass(frozen=True)
class ParserOp:
    """An operation of a parser state: extract, set, verify, advance or a primitive.

    The value of an extract is the length in bits of the header's varbit field.
    """

    op: str
    target: Operand | None
    value: Expression | None
    primitive: Primitive | None = None


@dataclass(frozen=True)
class Transition:
    """A next state, taken if key & mask == value, or if the value set has the key; neither is the default."""

    value: int | None
    mask: int | None
    next_state: str | None
    value_set: str | None = None

    @property
    def is_default(self) -> bool:
        """True if the transition has no condition."""
        return self.value is None and self.value_set is None


@dataclass(frozen=True)
class ParserState:
    """A parser state. `key` is read before the transitions are tried in order."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[Expression, ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True)
class Action:
    """An action and what it does."""

    info: ActionInfo
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True)
class KeySource:
    """The source of a key component: a field or a header's validity, with a fixed mask."""

    value: Field | Valid
    mask: int | None


@dataclass(frozen=True)
class DirectMeter:
    """The meter of a table's entries, and the field that gets the color when an entry matches."""

    name: str
    target: Field


@dataclass(frozen=True)
class Table:
    """A table in the control flow."""

    info: TableInfo
    keys: tuple[KeySource, ...]
    action_ids: tuple[int, ...]
    default_action_id: int | None
    entry_action_ids: tuple[int, ...]
    next_by_action: Mapping[str, str | None]
    next_hit: str | None
    next_miss: str | None
    by_hit: bool
    base_next: str | None
    source: Source | None
    direct_meter: DirectMeter | None = None


@dataclass(frozen=True)
class Conditional:
    """A condition in the control flow."""

    name: str
    condition: Expression
    true_next: str | None
    false_next: str | None
    source: Source | None


@dataclass(frozen=True)
class ActionCallNode:
    """An action called directly from the control flow."""

    name: str
    action_id: int
    next_node: str | None


@dataclass(frozen=True)
class Pipeline:
    """Ingress or egress: nodes that name their successors."""

    name: str
    first: str | None
    tables: tuple[Table, ...]
    conditionals: tuple[Conditional, ...]
    action_calls: tuple[ActionCallNode, ...]


@dataclass(frozen=True)
class CalcInput:
    """One piece of what a hash or checksum is made of: a field, a constant, a header or the payload."""

    kind: str
    value: Field | Const | Header | None
    width: int


@dataclass(frozen=True)
class Calculation:
    """A hash or checksum algorithm over inputs."""

    name: str
    algorithm: str
    inputs: tuple[CalcInput, ...]
    source: Source | None


@dataclass(frozen=True)
class Checksum:
    """A checksum to verify after parsing or to update before deparsing."""

    name: str
    target: Field
    calculation: str
    verify: bool
    update: bool
    condition: Expression | None


@dataclass(frozen=True)
class LearnList:
    """The contents of a digest: fields and constants, each with its width in bits."""

    name: str
    values: tuple[tuple[Field | Const, int], ...]


@dataclass(frozen=True)
class Bmv2Program:
    """A whole program."""

    name: str
    header_instances: Mapping[str, HeaderInstance]
    stacks: Mapping[str, HeaderStack]
    unions: tuple[tuple[str, ...], ...]
    errors: Mapping[str, int]
    parser_start: str | None
    parser_states: Mapping[str, ParserState]
    deparser_order: tuple[str, ...]
    deparser_primitives: tuple[Primitive, ...]
    actions: Mapping[int, Action]
    pipelines: Mapping[str, Pipeline]
    calculations: Mapping[str, Calculation]
    checksums: tuple[Checksum, ...]
    aliases: Mapping[str, tuple[str, str]]  # to fields that are there, never to another alias
    description: Program
    selectors: Mapping[str, str]  # action selectors and the calculations that choose their members
    # By number: what clones, resubmitted and recirculated packets keep of their metadata; what digests say.
    field_lists: Mapping[int, tuple[Field, ...]] = dataclasses.field(default_factory=dict)
    learn_lists: Mapping[int, LearnList] = dataclasses.field(default_factory=dict)

    def by_name(self, name: str) -> tuple[str, str] | None:
        """Return the instance and field that BMv2 finds by a name, "instance.field"; None if it finds none.

        An alias goes before a field that has that name itself (PHV::add_field_alias).
        """
        if name in self.aliases:
            return self.aliases[name]
        instance, _, field = name.partition(".")
        found = self.header_instances.get(instance)
        return (instance, field) if found is not None and field in found.type.numbers else None
