"""P4Info as the server uses it: every object by its id, widths and match kinds checked once, at load.

`program` adds from the BMv2 JSON what P4Info leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from finsy.proto import p4i, p4t

from soft_switch.description import (
    ActionCall,
    ActionInfo,
    CounterInfo,
    InitialEntry,
    KeyField,
    Param,
    ValueSetInfo,
)
from soft_switch.server.errors import invalid
from soft_switch.server.p4data import Scalar, Type, parse_type, scalars
from soft_switch.server.sdn_types import SdnString, SdnTypes, parse_sdn_types, port_type

# A table with one of these has entries that can overlap, and so needs priorities.
PRIORITY_KINDS = frozenset({"ternary", "range", "optional"})


T = TypeVar("T")

DEFAULT_PORT_WIDTH = 9  # bits of standard_metadata.egress_port in v1model.p4


_MATCH_KINDS = {
    p4i.MatchField.EXACT: "exact",
    p4i.MatchField.LPM: "lpm",
    p4i.MatchField.TERNARY: "ternary",
    p4i.MatchField.RANGE: "range",
    p4i.MatchField.OPTIONAL: "optional",
}


@dataclass(frozen=True)
class Table:
    """A match-action table: its key, what its entries may do, and what hangs on them.

    From the JSON come the initial entries (with P4Runtime's priorities), the default action and the size, but
    for tables with initial entries: p4c's JSON counts these.
    """

    id: int
    name: str
    fields: tuple[KeyField, ...]
    actions: Mapping[int, int]  # with the scope of each, as p4i.ActionRef has it
    is_const: bool
    const_default: bool
    idle_timeout: bool
    direct_counter: bool
    direct_meter: Meter | None
    profile_id: int = 0  # of the action profile of an indirect table
    size: int = 0
    entries: tuple[InitialEntry, ...] = ()
    default: ActionCall | None = None

    @property
    def indirect(self) -> bool:
        """True if its entries have no actions of their own."""
        return self.profile_id != 0

    @cached_property
    def needs_priority(self) -> bool:
        """True if every entry must have a priority (greater wins); otherwise none may."""
        return any(field.kind in PRIORITY_KINDS for field in self.fields)


@dataclass(frozen=True)
class ActionProfile:
    """An action profile of `size` members (0: no bound); a `selector` makes groups of them.

    A group's size is its sum of weights, or with `sum_of_members` how many members it has; sizes of 0 are no
    bound.
    """

    id: int
    name: str
    selector: bool
    size: int
    max_group_size: int
    actions: Mapping[int, int]  # with the scope of each, as p4i.ActionRef has it
    sum_of_members: bool = False
    max_member_weight: int = 0
    weights_disallowed: bool = False


@dataclass(frozen=True)
class Register:
    """A register array of elements of one type."""

    id: int
    name: str
    size: int
    type: Type


@dataclass(frozen=True)
class Meter:
    """An indexed meter array, or (with size 0) the meters of a table's entries."""

    id: int
    name: str
    size: int
    type: int  # as p4i.MeterSpec has it


@dataclass(frozen=True)
class Digest:
    """A digest; its samples have one number for each of `scalars`."""

    id: int
    name: str
    type: Type
    scalars: tuple[Scalar, ...]


@dataclass(frozen=True)
class Schema:
    """All objects of one P4Info, by id; controller headers as their fields in wire order."""

    tables: dict[int, Table] = field(default_factory=dict)
    actions: dict[int, ActionInfo] = field(default_factory=dict)
    counters: dict[int, CounterInfo] = field(default_factory=dict)
    registers: dict[int, Register] = field(default_factory=dict)
    meters: dict[int, Meter] = field(default_factory=dict)
    digests: dict[int, Digest] = field(default_factory=dict)
    value_sets: dict[int, ValueSetInfo] = field(default_factory=dict)
    action_profiles: dict[int, ActionProfile] = field(default_factory=dict)
    translated: SdnTypes = field(default_factory=dict)
    packet_in: tuple[Param, ...] = ()
    packet_out: tuple[Param, ...] = ()
    port_width: int = DEFAULT_PORT_WIDTH
    names: dict[int, str] = field(default_factory=dict)  # kind and name of every object of P4Info
    # Tables that the program lacks: p4c leaves those that no packet reaches out of the BMv2 JSON only.
    dropped: dict[int, str] = field(default_factory=dict)

    @cached_property
    def port_type(self) -> SdnString | None:
        """The type of ports' names, where controllers name ports by strings."""
        return port_type(self.translated)

    @cached_property
    def actions_by_name(self) -> dict[str, ActionInfo]:
        """The actions again."""
        return {action.name: action for action in self.actions.values()}

    def select(self, kind: str, objects: Mapping[int, T], number: int) -> list[T]:
        """Return the objects of a read: the one with that id, or all for id 0."""
        return [self.lookup(kind, objects, number)] if number else list(objects.values())

    def lookup(self, kind: str, objects: Mapping[int, T], number: int) -> T:
        """Return the object of a `kind` under its id; INVALID_ARGUMENT if this P4Info has none."""
        found = objects.get(number)
        if found is not None:
            return found
        if number == 0:
            raise invalid(f"the {kind} id is missing (0)")
        if number in self.dropped:
            raise invalid(
                f"table {self.dropped[number]} is in P4Info, but not in the program: p4c leaves out what no "
                "packet reaches, or P4Info and BMv2 JSON are not of one program"
            )
        if number in self.names:
            raise invalid(f"id {number:#010x} is not a {kind}, it is {self.names[number]}")
        raise invalid(f"there is no {kind} with id {number:#010x} in the P4Info of the running pipeline")


def parse_p4info(p4info: p4i.P4Info) -> Schema:
    """Return the schema of a P4Info; INVALID_ARGUMENT names the object that is wrong or cannot be served."""
    names = _names(p4info)
    translated = parse_sdn_types(p4info.type_info)
    actions = {action.preamble.id: _action(action, translated) for action in p4info.actions}
    direct_counters = {counter.direct_table_id for counter in p4info.direct_counters}
    direct_meters = {
        meter.direct_table_id: _meter(meter.preamble, meter.spec, 0) for meter in p4info.direct_meters
    }
    tables = {}
    for table in p4info.tables:
        tables[table.preamble.id] = _table(table, actions, direct_counters, direct_meters, translated)
    headers = {
        header.preamble.name: _packet_header(header, translated)
        for header in p4info.controller_packet_metadata
    }
    unknown = headers.keys() - {"packet_in", "packet_out"}
    if unknown:
        raise invalid(f"P4Info has a controller header {min(unknown)!r}: only packet_in and packet_out exist")
    return Schema(
        tables=tables,
        actions=actions,
        counters={
            counter.preamble.id: CounterInfo(counter.preamble.name, counter.size, id=counter.preamble.id)
            for counter in p4info.counters
        },
        registers={
            register.preamble.id: Register(
                register.preamble.id,
                register.preamble.name,
                register.size,
                parse_type(register.type_spec, p4info.type_info, translated),
            )
            for register in p4info.registers
        },
        meters={meter.preamble.id: _meter(meter.preamble, meter.spec, meter.size) for meter in p4info.meters},
        digests={
            digest.preamble.id: _digest(digest, p4info.type_info, translated) for digest in p4info.digests
        },
        value_sets={values.preamble.id: _value_set(values, translated) for values in p4info.value_sets},
        action_profiles=_action_profiles(p4info, tables),
        translated=translated,
        packet_in=headers.get("packet_in", ()),
        packet_out=headers.get("packet_out", ()),
        names=names,
    )


def _table(
    table: p4i.Table,
    actions: Mapping[int, ActionInfo],
    direct_counters: set[int],
    direct_meters: Mapping[int, Meter],
    translated: SdnTypes,
) -> Table:
    name = table.preamble.name
    for reference in table.action_refs:
        if reference.id not in actions:
            raise invalid(f"P4Info: table {name} refers to action {reference.id:#010x}, which is not there")
    fields = [_match_field(match, f"table {name}", translated) for match in table.match_fields]
    _check_unique((field.id for field in fields), f"match fields of table {name}")
    return Table(
        id=table.preamble.id,
        name=name,
        fields=tuple(fields),
        actions={reference.id: reference.scope for reference in table.action_refs},
        is_const=table.is_const_table,
        const_default=table.const_default_action_id != 0,
        idle_timeout=table.idle_timeout_behavior != p4i.Table.NO_TIMEOUT,
        direct_counter=table.preamble.id in direct_counters,
        direct_meter=direct_meters.get(table.preamble.id),
        profile_id=table.implementation_id,
        size=table.size,
    )


def _action_profiles(p4info: p4i.P4Info, tables: Mapping[int, Table]) -> dict[int, ActionProfile]:
    profiles = {}
    for item in p4info.action_profiles:
        preamble = item.preamble
        users = [table for table in tables.values() if table.profile_id == preamble.id]
        actions = {number: scope for table in users for number, scope in table.actions.items()}
        if any(table.actions.keys() != actions.keys() for table in users):
            raise invalid(f"P4Info: the tables of action profile {preamble.name} have different actions")
        profiles[preamble.id] = ActionProfile(
            id=preamble.id,
            name=preamble.name,
            selector=item.with_selector,
            size=item.size,
            max_group_size=item.max_group_size,
            actions=actions,
            sum_of_members=item.HasField("sum_of_members"),
            max_member_weight=item.sum_of_members.max_member_weight,
            weights_disallowed=item.weights_disallowed,
        )
    for table in tables.values():
        if table.indirect and table.profile_id not in profiles:
            raise invalid(
                f"P4Info: table {table.name} refers to action profile {table.profile_id:#010x}, "
                "which is not there"
            )
    return profiles


def _match_field(match: p4i.MatchField, owner: str, translated: SdnTypes) -> KeyField:
    what = f"match field {match.name or match.id} of {owner}"
    kind = _MATCH_KINDS.get(match.match_type) if match.WhichOneof("match") == "match_type" else None
    if kind is None:
        raise invalid(f"P4Info: {what} has match kind {match.other_match_type or 'none'!r}, not supported")
    _check_width(match.bitwidth, what)
    sdn = translated.get(match.type_name.name)
    return KeyField(match.name, kind, 0 if sdn else match.bitwidth, match.id, sdn)


def _action(action: p4i.Action, translated: SdnTypes) -> ActionInfo:
    name = action.preamble.name
    params = []
    for param in action.params:
        _check_width(param.bitwidth, f"parameter {param.name} of action {name}")
        sdn = translated.get(param.type_name.name)
        params.append(Param(param.name, 0 if sdn else param.bitwidth, param.id, sdn))
    _check_unique((param.id for param in params), f"parameters of action {name}")
    return ActionInfo(name, action.preamble.id, tuple(params))


def _packet_header(header: p4i.ControllerPacketMetadata, translated: SdnTypes) -> tuple[Param, ...]:
    name = header.preamble.name
    fields = []
    for member in header.metadata:
        _check_width(member.bitwidth, f"field {member.name} of {name}")
        sdn = translated.get(member.type_name.name)
        padding = member.name.startswith(("_", "pad")) or "@padding" in member.annotations
        fields.append(Param(member.name, 0 if sdn else member.bitwidth, member.id, sdn, padding))
    _check_unique((field.id for field in fields), f"fields of {name}")
    return tuple(fields)


def _meter(preamble: p4i.Preamble, spec: p4i.MeterSpec, size: int) -> Meter:
    return Meter(preamble.id, preamble.name, size, spec.type)


def _digest(digest: p4i.Digest, types: p4t.P4TypeInfo, translated: SdnTypes) -> Digest:
    name = digest.preamble.name
    kind = parse_type(digest.type_spec, types, translated)
    numbers = scalars(kind)
    if numbers is None:
        raise invalid(
            f"P4Info: digest {name} has a field that is not a bit<W>, int<W>, bool or serializable enum: "
            "this switch carries no others"
        )
    return Digest(digest.preamble.id, name, kind, numbers)


def _value_set(values: p4i.ValueSet, translated: SdnTypes) -> ValueSetInfo:
    name = values.preamble.name
    fields = tuple(_match_field(match, f"value set {name}", translated) for match in values.match)
    _check_unique((field.id for field in fields), f"match fields of value set {name}")
    return ValueSetInfo(name, values.size, fields, values.preamble.id)


def _check_width(width: int, what: str) -> None:
    """Refuse negative widths; 0 is bit<0>, or no width: `add_program` takes the program's."""
    if width < 0:
        raise invalid(f"P4Info: {what} has a width of {width} bits")


def _check_unique(ids: Iterable[int], what: str) -> None:
    seen: set[int] = set()
    for number in ids:
        if number == 0 or number in seen:
            raise invalid(f"P4Info: the {what} have id {number} twice or zero")
        seen.add(number)


def _names(p4info: p4i.P4Info) -> dict[int, str]:
    names: dict[int, str] = {}
    for preamble, kind in _preambles(p4info):
        if preamble.id == 0:
            raise invalid(f"P4Info: {kind} {preamble.name} has no id")
        if preamble.id in names:
            raise invalid(
                f"P4Info: id {preamble.id:#010x} is {names[preamble.id]} and {kind} {preamble.name}"
            )
        names[preamble.id] = f"{kind} {preamble.name}"
    return names


def _preambles(p4info: p4i.P4Info) -> Iterable[tuple[p4i.Preamble, str]]:
    groups: dict[str, Iterable[Any]] = {
        "table": p4info.tables,
        "action": p4info.actions,
        "counter": p4info.counters,
        "register": p4info.registers,
        "controller header": p4info.controller_packet_metadata,
        "direct counter": p4info.direct_counters,
        "direct meter": p4info.direct_meters,
        "meter": p4info.meters,
        "action profile": p4info.action_profiles,
        "digest": p4info.digests,
        "value set": p4info.value_sets,
    }
    for kind, objects in groups.items():
        for item in objects:
            yield item.preamble, kind
