"""Entries for any program: random ones of few values, the same as in packets, so that they meet."""

from __future__ import annotations

import contextlib
import random

from soft_switch.dataplane import (
    DataPlane,
    Exact,
    Lpm,
    Match,
    MeterConfig,
    Optional_,
    Range,
    TableError,
    Ternary,
)
from soft_switch.description import KeyField, TableInfo

ENTRIES = 12
PORTS = range(1, 9)
GROUPS = range(1, 5)
SESSIONS = range(6)


def fill(plane: DataPlane, chance: random.Random) -> None:
    """Entries in every table, default actions, multicast groups, clone sessions, meters."""
    program = plane.program
    assert program is not None
    for group in GROUPS:
        plane.multicast_set(group, [(chance.choice(PORTS), n) for n in range(chance.randrange(5))])
    for session in SESSIONS:
        replicas = [(chance.choice(PORTS), n) for n in range(chance.randrange(4))]
        plane.clone_set(session, replicas, chance.choice([0, 20, 200]))
    for meter in program.meters.values():
        if meter.table is None:
            for index in range(0, min(meter.size, 8), 2):
                plane.meter_write(
                    meter.name, index, MeterConfig(*chance.choice([(1, 2, 3, 4), (0, 90, 9, 900)]))
                )
    for table in program.tables.values():
        if not table.keys:
            continue
        for _ in range(ENTRIES):
            with contextlib.suppress(TableError):  # the same match again, an action only for defaults, full
                _insert(plane, table, chance)
        if not table.default_is_const:
            with contextlib.suppress(TableError):
                name, params = _call(plane, table, chance)
                plane.set_default(table.name, name, params)


def _insert(plane: DataPlane, table: TableInfo, chance: random.Random) -> None:
    name, params = _call(plane, table, chance)
    match = [_match(key, chance) for key in table.keys]
    plane.insert(table.name, match, priority=chance.randrange(1, 100), action=name, params=params)


def _call(plane: DataPlane, table: TableInfo, chance: random.Random) -> tuple[str, list[int]]:
    program = plane.program
    assert program is not None
    name = chance.choice(table.actions)
    action = next(action for action in program.actions if action.name == name)
    return name, [few_values(param.width, chance) for param in action.params]


def few_values(width: int, chance: random.Random) -> int:
    """A value that others of this width are likely to have too; sometimes any."""
    full = (1 << width) - 1
    if chance.random() < 0.1:
        return chance.getrandbits(width)
    return chance.choice([0, 1, 2, 3, 4, 5, full, 0x0A0000010A0000010A000001 & full])


def _match(key: KeyField, chance: random.Random) -> Match:
    value, full = few_values(key.width, chance), (1 << key.width) - 1
    if key.kind == "lpm":
        return Lpm(value, chance.choice([0, key.width, chance.randrange(key.width + 1)]))
    if key.kind == "ternary":
        return Ternary(value, chance.choice([0, full, chance.getrandbits(key.width)]))
    if key.kind == "range":
        other = few_values(key.width, chance)
        return Range(min(value, other), max(value, other))
    if key.kind == "optional":
        return Optional_(chance.choice([None, value]))
    return Exact(value)
