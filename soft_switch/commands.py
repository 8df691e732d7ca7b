"""Entries from a file, in the commands of BMv2's simple_switch_CLI that set a switch up.

    table_add TABLE ACTION KEY... => PARAMETER... [PRIORITY]
    table_set_default TABLE ACTION PARAMETER...
    mc_mgrp_create GROUP, mc_node_create RID PORT..., mc_node_associate GROUP NODE
    mirroring_add SESSION PORT
    register_write REGISTER INDEX VALUE

Keys: VALUE (exact), VALUE/LENGTH (lpm), VALUE&&&MASK (ternary), LOW->HIGH (range), VALUE or * (optional).
Values: numbers, MAC, IPv4 and IPv6 addresses. Names may leave out what is in front,
as far as they stay unique.
Priorities are BMv2's: the least wins. Lines that are empty or begin with # mean nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from soft_switch.dataplane import DataPlane
from soft_switch.description import Exact, KeyField, Lpm, Match, Optional_, Program, Range, Ternary
from soft_switch.entries import MAX_PRIORITY
from soft_switch.errors import TableError

MAC = re.compile(r"[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}")
WITH_PRIORITY = ("ternary", "range", "optional")


class CommandError(Exception):
    """A command that cannot be done: file, line and why."""


def run_commands(plane: DataPlane, path: Path) -> int:
    """Run a file's commands on a data plane with a program; return how many there were.

    Raises OSError if it cannot be read, CommandError at the first command that cannot be done.
    """
    program = plane.program
    if program is None:
        raise CommandError(f"{path}: there is no program yet that could have entries")
    session = _Session(plane, program)
    done = 0
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            session.run(words)
        except (TableError, ValueError) as error:
            raise CommandError(f"{path}:{number}: {error}") from error
        done += 1
    return done


@dataclass
class _Session:
    """One file's commands; multicast nodes are numbered as simple_switch_CLI does."""

    plane: DataPlane
    program: Program
    nodes: list[list[tuple[int, int]]] = field(default_factory=list)
    groups: dict[int, list[int]] = field(default_factory=dict)

    def run(self, words: Sequence[str]) -> None:
        commands: dict[str, Callable[[Sequence[str]], None]] = {
            "table_add": self.table_add,
            "table_set_default": self.table_set_default,
            "mc_mgrp_create": self.group_create,
            "mc_node_create": self.node_create,
            "mc_node_associate": self.node_associate,
            "mirroring_add": self.mirroring_add,
            "register_write": self.register_write,
        }
        command = commands.get(words[0])
        if command is None:
            raise ValueError(f"there is no command {words[0]}; there are {', '.join(commands)}")
        command(words[1:])

    def table_add(self, words: Sequence[str]) -> None:
        _at_least(words, 2, "table_add TABLE ACTION KEY... => PARAMETER... [PRIORITY]")
        table = self.program.tables[_named(words[0], self.program.tables, "table")]
        action = _named(words[1], table.actions, f"table {table.name}: action")
        rest = list(words[2:])
        if "=>" not in rest:
            raise ValueError("there is no => between key and parameters")
        keys, given = rest[: rest.index("=>")], rest[rest.index("=>") + 1 :]
        if len(keys) != len(table.keys):
            names = ", ".join(f"{key.name} ({key.kind})" for key in table.keys)
            raise ValueError(f"table {table.name} has the key {names}; {len(keys)} values were given")
        priority = 0
        if any(key.kind in WITH_PRIORITY for key in table.keys):
            if len(given) != len(self.parameters(action)) + 1:
                raise ValueError(f"table {table.name} needs a priority behind the action's parameters")
            priority = MAX_PRIORITY - number(given.pop())
        match = [_match(key, text) for key, text in zip(table.keys, keys, strict=True)]
        params = self.arguments(action, given)
        self.plane.insert(table.name, match, priority=priority, action=action, params=params)

    def table_set_default(self, words: Sequence[str]) -> None:
        _at_least(words, 2, "table_set_default TABLE ACTION PARAMETER...")
        table = self.program.tables[_named(words[0], self.program.tables, "table")]
        action = _named(words[1], table.actions, f"table {table.name}: action")
        self.plane.set_default(table.name, action, self.arguments(action, words[2:]))

    def group_create(self, words: Sequence[str]) -> None:
        _exactly(words, 1, "mc_mgrp_create GROUP")
        self.groups[number(words[0])] = []
        self.plane.multicast_set(number(words[0]), [])

    def node_create(self, words: Sequence[str]) -> None:
        _at_least(words, 1, "mc_node_create RID PORT...")
        rid = number(words[0])
        self.nodes.append([(number(port), rid) for port in words[1:]])

    def node_associate(self, words: Sequence[str]) -> None:
        _exactly(words, 2, "mc_node_associate GROUP NODE")
        group, node = number(words[0]), number(words[1])
        if group not in self.groups:
            raise ValueError(f"there is no multicast group {group} yet: mc_mgrp_create {group}")
        if node >= len(self.nodes):
            raise ValueError(f"there is no node {node}: {len(self.nodes)} were made, counted from 0")
        self.groups[group].append(node)
        self.plane.multicast_set(group, [copy for n in self.groups[group] for copy in self.nodes[n]])

    def mirroring_add(self, words: Sequence[str]) -> None:
        _exactly(words, 2, "mirroring_add SESSION PORT")
        self.plane.clone_set(number(words[0]), [(number(words[1]), 0)], 0)

    def register_write(self, words: Sequence[str]) -> None:
        _exactly(words, 3, "register_write REGISTER INDEX VALUE")
        name = _named(words[0], self.program.registers, "register")
        self.plane.register_write(name, number(words[1]), number(words[2]))

    def parameters(self, action: str) -> Sequence[object]:
        return next(known for known in self.program.actions if known.name == action).params

    def arguments(self, action: str, given: Sequence[str]) -> list[int]:
        wanted = self.parameters(action)
        if len(given) != len(wanted):
            raise ValueError(f"action {action} has {len(wanted)} parameters, {len(given)} were given")
        return [number(text) for text in given]


def _exactly(words: Sequence[str], count: int, usage: str) -> None:
    if len(words) != count:
        raise ValueError(f"it is {usage}")


def _at_least(words: Sequence[str], count: int, usage: str) -> None:
    if len(words) < count:
        raise ValueError(f"it is {usage}")


def _named(text: str, names: Iterable[str], what: str) -> str:
    """Return the name itself, or the only one that ends in it."""
    known = list(dict.fromkeys(names))
    if text in known:
        return text
    fitting = [name for name in known if name.endswith(f".{text}")]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ValueError(f"{what} {text} may be {' or '.join(fitting)}")
    raise ValueError(f"{what} {text} is not there; there are {', '.join(known) or 'none'}")


def number(text: str) -> int:
    """Parse a number, a MAC or an IP address."""
    if MAC.fullmatch(text):
        return int("".join(part.zfill(2) for part in text.split(":")), 16)
    try:
        value = int(text, 0) if not re.fullmatch(r"0\d+", text) else int(text)
    except ValueError:
        try:
            return int(ipaddress.ip_address(text))
        except ValueError:
            raise ValueError(f"{text!r} is no number, MAC or IP address") from None
    if value < 0:
        raise ValueError(f"{value} is negative")
    return value


def _match(key: KeyField, text: str) -> Match:
    match key.kind:
        case "lpm":
            value, slash, length = text.rpartition("/")
            if not slash:
                raise ValueError(f"{key.name} is an lpm field: {text!r} is not VALUE/LENGTH")
            return Lpm(number(value), number(length))
        case "ternary":
            value, separator, mask = text.partition("&&&")
            if not separator:
                raise ValueError(f"{key.name} is a ternary field: {text!r} is not VALUE&&&MASK")
            return Ternary(number(value), number(mask))
        case "range":
            low, separator, high = text.partition("->")
            if not separator:
                raise ValueError(f"{key.name} is a range field: {text!r} is not LOW->HIGH")
            return Range(number(low), number(high))
        case "optional":
            return Optional_(None if text == "*" else number(text))
        case _:
            return Exact(number(text))
