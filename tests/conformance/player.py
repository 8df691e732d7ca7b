"""Plays an STF script against a switch, as backends/bmv2/bmv2stf.py of p4c does, and stricter.

Stricter: what a command gives back counts (bmv2stf.py does not look at it), `check_counter` and `remove all`
are done (bmv2stf.py leaves them out).
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from soft_switch.description import (
    ActionInfo,
    Exact,
    KeyField,
    Lpm,
    Match,
    Optional_,
    Program,
    Range,
    TableInfo,
    Ternary,
)
from tests.conformance.control import Control
from tests.conformance.stf import (
    Add,
    Call,
    CheckCounter,
    Command,
    Expect,
    NoPacket,
    Packet,
    RemoveAll,
    SetDefault,
    Statement,
    Wait,
    number,
)

COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
BITS_PER_DIGIT = {"0x": 4, "0b": 1}
FCS_BYTES = 4  # scripts count the frame check sequence, which packets in scripts and in BMv2 do not have
Frames = dict[int, list[bytes]]
Send = Callable[[int, bytes], Sequence[tuple[int, bytes]]]


class Mismatch(Exception):
    """The switch does something else than the script says."""


class Player:
    """A switch and what it has sent so far: `send` sends a packet and gives what leaves then."""

    def __init__(self, program: Program, control: Control, send: Send) -> None:
        self.program, self.control, self.send = program, control, send
        self.left: Frames = defaultdict(list)
        self.entries: dict[str, tuple[str, int]] = {}
        self.groups: dict[int, list[int]] = {}
        self.nodes: list[tuple[int, list[int]]] = []  # (instance, ports), handles count from 0
        self.sessions: dict[int, tuple[str, int]] = {}

    def play(self, statements: Sequence[Statement]) -> None:
        """Play a script. Raises Mismatch, or what the switch raised where it refused something."""
        for statement in statements:
            self.execute(statement)
        compare(self.left, statements)

    def execute(self, statement: Statement) -> None:
        """Do what a statement says; what is expected is compared at the end."""
        match statement:
            case Packet():
                for port, frame in self.send(statement.port, statement.data):
                    self.left[port].append(frame)
            case Add():
                self._add(statement)
            case SetDefault():
                table = self._table(statement.table)
                action = self._action(table, statement.call.action)
                self.control.set_default(table.name, action.name, arguments(action, statement.call))
            case RemoveAll():
                self.control.remove_all()
            case CheckCounter():
                self._check_counter(statement)
            case Command():
                self._command(statement)
            case Expect() | NoPacket() | Wait():  # compared at the end; packets are through when sent
                pass

    def _table(self, name: str) -> TableInfo:
        return only(self.program.tables.values(), name, "table")

    def _action(self, table: TableInfo, name: str) -> ActionInfo:
        actions = {a.name: a for a in self.program.actions if a.name in table.actions}
        return only(actions.values(), name, f"action of table {table.name}")

    def _add(self, add: Add) -> None:
        table = self._table(add.table)
        action = self._action(table, add.call.action)
        values: list[str | None] = [None] * len(table.keys)
        for field, value in add.match:
            values[key_index(table, field)] = value
        match = [key_match(key, value) for key, value in zip(table.keys, values, strict=True)]
        handle = self.control.insert(
            table.name, match, add.priority or 0, action.name, arguments(action, add.call)
        )
        if add.name is not None:
            self.entries[add.name] = (table.name, handle)

    def _check_counter(self, check: CheckCounter) -> None:
        info = only(self.program.counters.values(), check.counter, "counter")
        if isinstance(check.index, int):
            packets, bytes_ = self.control.counter_read(info.name, check.index)
        else:
            table, handle = self.entries[check.index.removeprefix("$")]
            packets, bytes_ = self.control.direct_counter_read(table, handle)
        value = packets if check.unit == "packets" else bytes_ + FCS_BYTES * packets
        if not COMPARE[check.operator](value, check.value):
            raise Mismatch(
                f"line {check.line}: counter {info.name} has {value} {check.unit}, "
                f"not {check.operator} {check.value}"
            )

    def _command(self, command: Command) -> None:
        control, numbers = self.control, command.numbers
        match command.name:
            case "mc_mgrp_create":
                self.groups[numbers[0]] = []
                self._replicate(numbers[0])
            case "mc_node_create":
                self.nodes.append((numbers[0], list(numbers[1:])))
            case "mc_node_update":
                self.nodes[numbers[0]] = (self.nodes[numbers[0]][0], list(numbers[1:]))
                for group, nodes in self.groups.items():
                    if numbers[0] in nodes:
                        self._replicate(group)
            case "mc_node_associate":
                self.groups[numbers[0]].append(numbers[1])
                self._replicate(numbers[0])
            case "mirroring_add":
                self.sessions[numbers[0]] = ("port", numbers[1])
                control.clone_set(numbers[0], [(numbers[1], 0)])
            case "mirroring_add_mc":
                self.sessions[numbers[0]] = ("group", numbers[1])
                control.clone_set(numbers[0], self._replicas(numbers[1]))
            case "mirroring_delete":
                del self.sessions[numbers[0]]
                control.clone_delete(numbers[0])
            case "mirroring_get":
                if numbers[0] not in self.sessions:
                    raise Mismatch(f"line {command.line}: there is no mirroring session {numbers[0]}")
            case "register_read" | "register_write" | "register_reset":
                self._register(command)
            case "counter_read" | "counter_write":
                info = only(self.program.counters.values(), command.target, "counter")
                if command.name == "counter_read":
                    control.counter_read(info.name, numbers[0])
                else:
                    control.counter_write(info.name, numbers[0], numbers[1], numbers[2])
            case _:
                self._meter(command)

    def _replicas(self, group: int) -> list[tuple[int, int]]:
        nodes = [self.nodes[handle] for handle in self.groups.get(group, [])]
        return [(port, instance) for instance, ports in nodes for port in ports]

    def _replicate(self, group: int) -> None:
        """Set a group that changed, and the sessions that copy to it."""
        self.control.multicast_set(group, self._replicas(group))
        for session, target in self.sessions.items():
            if target == ("group", group):
                self.control.clone_set(session, self._replicas(group))

    def _register(self, command: Command) -> None:
        info = only(self.program.registers.values(), command.target, "register")
        if command.name == "register_read":
            self.control.register_read(info.name, command.numbers[0])
        elif command.name == "register_write":
            self.control.register_write(info.name, *command.numbers)
        else:
            for index in range(info.size):
                self.control.register_write(info.name, index, 0)

    def _meter(self, command: Command) -> None:
        info = only(self.program.meters.values(), command.target, "meter")
        if command.name == "meter_get_rates":
            self.control.meter_read(info.name, command.numbers[0])
            return
        indices = command.numbers if command.name == "meter_set_rates" else range(info.size)
        for index in indices:
            self.control.meter_write(info.name, index, command.rates)


def compare(left: Frames, statements: Iterable[Statement]) -> None:
    """Compare all that left with what was expected; ports that the script does not name are not looked at."""
    statements = list(statements)
    if any(isinstance(s, NoPacket) for s in statements):
        for port, frames in left.items():
            if frames:
                raise Mismatch(f"no packet was expected, {len(frames)} left port {port}: {frames[0].hex()}")
    ports = {s.port for s in statements if isinstance(s, (Packet, Expect))}
    for port in sorted(ports):
        wanted = [s for s in statements if isinstance(s, Expect) and s.port == port]
        if any(expect.pattern is None for expect in wanted):
            continue
        frames = left.get(port, [])
        for expect, frame in zip(wanted, frames, strict=False):
            _compare_frame(expect, frame)
        if len(wanted) != len(frames):
            which = (
                f"the first that is missing is that of line {wanted[len(frames)].line}"
                if len(frames) < len(wanted)
                else f"the first that is too much is {frames[len(wanted)].hex()}"
            )
            raise Mismatch(f"port {port}: {len(wanted)} packets expected, {len(frames)} left; {which}")


def _compare_frame(expect: Expect, frame: bytes) -> None:
    assert expect.pattern is not None
    found, wanted = frame.hex(), expect.pattern.lower()
    good = len(found) >= len(wanted) and all(w in ("*", f) for w, f in zip(wanted, found, strict=False))
    if not good or (expect.exact and len(found) > len(wanted)):
        end = "$" if expect.exact else ""
        raise Mismatch(f"line {expect.line}, port {expect.port}: expected {wanted}{end}, {found} left")


class Named(Protocol):
    """Something with a name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


def only(items: Collection[T], name: str, kind: str) -> T:
    """Return the item of this name, or the only one whose name ends so."""
    found = [item for item in items if item.name == name] or [i for i in items if i.name.endswith(name)]
    if len(found) != 1:
        raise Mismatch(f"{'no' if not found else 'more than one'} {kind} is called {name}")
    return found[0]


def arguments(action: ActionInfo, call: Call) -> list[int]:
    """Return arguments in the order of the action's parameters."""
    given = dict(call.arguments)
    names = [param.name for param in action.params]
    if sorted(names) != sorted(given):
        raise Mismatch(f"action {action.name} takes {', '.join(names) or 'nothing'}, given {sorted(given)}")
    return [given[name] for name in names]


def key_index(table: TableInfo, field: str) -> int:
    """Return the index of the key field that a script means, as `TableKeyInstance.set` does in bmv2stf.py."""
    field = re.sub(r"(.*)\$([0-9]+)(.*)", r"\1[\2]\3", field)
    names = [key.name for key in table.keys]
    for wanted in (field, f"{field}$", f"{field}.$valid$"):
        if wanted in names:
            return names.index(wanted)
    if field.endswith(".valid") and field[:-5] + "$valid$" in names:
        return names.index(field[:-5] + "$valid$")
    found = None
    for index, name in enumerate(names):  # the last one counts, as there
        if name.endswith((f".{field}", f".{field}$")) or (field == "valid" and name.endswith("$valid$")):
            found = index
    if found is None:
        raise Mismatch(f"table {table.name} has no key field {field}, but {', '.join(names)}")
    return found


def key_match(key: KeyField, text: str | None) -> Match:
    """Return what a script gives for a key field; for None, what bmv2stf.py puts in if nothing is given."""
    full = (1 << key.width) - 1
    if key.kind in ("ternary", "optional"):
        if text is None:
            return Optional_(None) if key.kind == "optional" else Ternary(0, 0)
        value, mask = masked(text, full)
        if key.kind == "optional":
            return Optional_(value)
        return Ternary(value, mask & full)
    if key.kind == "lpm":
        if text is None:
            return Lpm(0, 0)
        if "/" in text:
            base, _, length = text.partition("/")
            return Lpm(number(base), int(length, 0))
        value, _ = masked(text, full)
        digits = len(text) - 2 - text.count("*")
        length_bits = (
            digits * BITS_PER_DIGIT[text[:2].lower()] if text[:2].lower() in BITS_PER_DIGIT else key.width
        )
        return Lpm(value, min(length_bits, key.width))
    value = 0 if text is None else number(text)
    return Range(value, value) if key.kind == "range" else Exact(value)


def masked(text: str, full: int) -> tuple[int, int]:
    """Return value and mask of a number: the mask has ones for the digits that are written."""
    base = text[:2].lower()
    if base not in BITS_PER_DIGIT:
        return number(text), full
    bits, value, mask = BITS_PER_DIGIT[base], 0, 0
    for digit in text[2:]:
        value = value << bits | (0 if digit == "*" else int(digit, 16))
        mask = mask << bits | (0 if digit == "*" else (1 << bits) - 1)
    return value, mask
