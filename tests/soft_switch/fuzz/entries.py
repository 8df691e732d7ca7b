"""Entries for any program: random ones of few values, the same as in packets, so that they meet."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping

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
from soft_switch.description import Group, KeyField, Member, TableInfo, Target

ENTRIES = 12
PORTS = range(1, 9)
GROUPS = range(1, 5)
SESSIONS = range(6)


def fill(plane: DataPlane, chance: random.Random) -> None:
    """Fill every table, default actions, action profiles, value sets, groups, sessions, meters."""
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
    for values in program.value_sets.values():
        members = [[any_match(key, chance) for key in values.fields] for _ in range(min(values.size, 4))]
        plane.value_set_write(values.name, members)
    targets = {name: _targets(plane, name, chance) for name in program.action_profiles}
    for table in program.tables.values():
        if not table.keys:
            continue
        for _ in range(ENTRIES):
            with contextlib.suppress(TableError):  # the same match again, an action only for defaults, full
                _insert(plane, table, targets, chance)
        if not table.default_is_const:
            with contextlib.suppress(TableError):
                name, params = _call(plane, table, chance)
                plane.set_default(table.name, name, params)


def _targets(plane: DataPlane, profile: str, chance: random.Random) -> list[Target]:
    """Return members, and groups of them where the profile has a selector."""
    program = plane.program
    assert program is not None
    table = next(table for table in program.tables.values() if table.profile == profile)
    members = [plane.profile_member_insert(profile, *_call(plane, table, chance)) for _ in range(6)]
    result: list[Target] = [Member(handle) for handle in members]
    if program.action_profiles[profile].selector:
        for size in (0, 1, 3, 5):  # one without members
            handle = plane.profile_group_insert(profile, chance.sample(members, size))
            result.append(Group(handle))
    return result


def _insert(
    plane: DataPlane, table: TableInfo, targets: Mapping[str, list[Target]], chance: random.Random
) -> None:
    match = [any_match(key, chance) for key in table.keys]
    priority = chance.randrange(1, 100)
    if table.profile is not None:
        plane.insert(table.name, match, priority=priority, target=chance.choice(targets[table.profile]))
        return
    name, params = _call(plane, table, chance)
    plane.insert(table.name, match, priority=priority, action=name, params=params)


def _call(plane: DataPlane, table: TableInfo, chance: random.Random) -> tuple[str, list[int]]:
    program = plane.program
    assert program is not None
    name = chance.choice(table.actions)
    action = next(action for action in program.actions if action.name == name)
    return name, [few_values(param.width, chance) for param in action.params]


def few_values(width: int, chance: random.Random) -> int:
    """Draw a value that others of this width are likely to have too; sometimes any."""
    full = (1 << width) - 1
    if chance.random() < 0.1:
        return chance.getrandbits(width)
    return chance.choice([0, 1, 2, 3, 4, 5, full, 0x0A0000010A0000010A000001 & full])


def any_match(key: KeyField, chance: random.Random) -> Match:
    """Draw a match of a key field, without bits that do not matter."""
    value, full = few_values(key.width, chance), (1 << key.width) - 1
    if key.kind == "lpm":
        length = chance.choice([0, key.width, chance.randrange(key.width + 1)])
        return Lpm(value & ~(full >> length), length)
    if key.kind == "ternary":
        mask = chance.choice([0, full, chance.getrandbits(key.width)])
        return Ternary(value & mask, mask)
    if key.kind == "range":
        other = few_values(key.width, chance)
        return Range(min(value, other), max(value, other))
    if key.kind == "optional":
        return Optional_(chance.choice([None, value]))
    return Exact(value)
