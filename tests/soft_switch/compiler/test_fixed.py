"""Entries that come with a program are compiled as comparisons, and looked up once somebody changes them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from soft_switch.bmv2.reader import read_program
from soft_switch.compiler import compile_program
from soft_switch.compiler.fixed import MOST
from soft_switch.dataplane import DataPlane, Ternary
from tests.soft_switch.bits import pack, unpack
from tests.soft_switch.bmv2_json import Json, assign, const, field, program

HEADER = {"a": 8, "b": 16, "wide": 96, "value": 32, "by": 8, "after": 8}
KEY = {"a": 8, "b": 16, "wide": 96}
MISS = 99
COMPARED = "is_as_made("


@dataclass(frozen=True)
class Row:
    """Value and mask of each key, and what the action gets; the first row that matches wins."""

    key: tuple[tuple[int, int], ...]
    value: int

    def matches(self, packet: dict[str, int]) -> bool:
        return all(packet[name] & mask == value for name, (value, mask) in zip(KEY, self.key, strict=True))


def ternary(chance: random.Random, width: int) -> tuple[int, int]:
    mask = chance.choice([0, 1, 3, 1 << width - 1, (1 << width) - 1])
    return chance.choice([0, 1, 2, 1 << width - 1]) & mask, mask


def rows_of(chance: random.Random, count: int) -> list[Row]:
    made = [Row(tuple(ternary(chance, width) for width in KEY.values()), n + 1) for n in range(count)]
    return list({row.key: row for row in made}.values())


def made(rows: list[Row], *, counted: bool = False) -> bytes:
    """Return a program.

    Its actions `one` and `two` set the value and say which they are, `none` says that no row was found.
    """
    param: Json = {"type": "runtime_data", "value": 0}
    steps = [[assign(field("h", "value"), param), assign(field("h", "by"), const(n))] for n in (1, 2)]
    steps.append([assign(field("h", "value"), const(MISS))])
    marks = [[assign(field("h", "after"), const(n))] for n in (1, 2)]
    leave = [assign(field("standard_metadata", "egress_spec"), const(3))]
    table: Json = {
        "name": "fixed",
        "id": 0,
        "key": [{"match_type": "ternary", "name": name, "target": ["h", name], "mask": None} for name in KEY],
        "match_type": "ternary",
        "type": "simple",
        "max_size": 256,
        "with_counters": counted,
        "support_timeout": False,
        "actions": ["action0", "action1", "action2"],
        "action_ids": [0, 1, 2],
        "base_default_next": "left",
        "next_tables": {"action0": "first", "action1": "second", "action2": "left"},
        "default_entry": {
            "action_id": 2,
            "action_const": False,
            "action_data": [],
            "action_entry_const": False,
        },
        "entries": [
            {
                "match_key": [
                    {"match_type": "ternary", "key": hex(value), "mask": hex(mask)} for value, mask in row.key
                ],
                "action_entry": {"action_id": row.value % 2, "action_data": [hex(row.value)]},
                "priority": number,
            }
            for number, row in enumerate(rows, 1)
        ],
    }
    calls = [("first", 3, "left"), ("second", 4, "left"), ("left", 5, None)]
    ingress = {
        "init_table": "fixed",
        "tables": [table],
        "action_calls": [{"name": name, "action_id": n, "next_node": after} for name, n, after in calls],
    }
    text = program(header=HEADER, metadata={"unused": 8}, actions=[*steps, *marks, leave], ingress=ingress)
    root = json.loads(text)
    for action in root["actions"][:2]:
        action["runtime_data"] = [{"name": "value", "bitwidth": 32}]
    return json.dumps(root).encode()


def result(plane: DataPlane, packet: dict[str, int]) -> tuple[int, int, int]:
    """Return the value, which action set it, and which way led on."""
    [(_, frame)] = plane.process(1, pack(HEADER, packet))
    found = unpack(HEADER, frame)
    return found["value"], found["by"], found["after"]


def expected(rows: list[Row], packet: dict[str, int]) -> tuple[int, int, int]:
    value = next((row.value for row in rows if row.matches(packet)), None)
    return (MISS, 0, 0) if value is None else (value, value % 2 + 1, value % 2 + 1)


def packets(chance: random.Random) -> Iterator[dict[str, int]]:
    for _ in range(300):
        values = {
            n: chance.choice([0, 1, 2, 3, 1 << w - 1, (1 << w) - 1, 1 << w - 2]) for n, w in KEY.items()
        }
        yield {**dict.fromkeys(HEADER, 0), **values}


@pytest.mark.parametrize("count", [1, 5, 30])
def test_the_first_row_that_matches_wins(count: int) -> None:
    chance = random.Random(count)
    rows = rows_of(chance, count)
    text = made(rows)
    assert COMPARED in compile_program(read_program(text)).source
    with DataPlane() as plane:
        plane.load(text)
        found = [(result(plane, packet), expected(rows, packet)) for packet in packets(chance)]
    assert [got for got, _ in found] == [wanted for _, wanted in found]
    assert len({got for got, _ in found}) > min(count, 4)


def test_changed_rows_are_looked_up() -> None:
    """Modify one, remove one, insert one; a new load brings all back as they were."""
    rows = [Row(((n, 0xFF), (0, 0), (0, 0)), n + 1) for n in range(6)]

    def look(a: int) -> tuple[int, int, int]:
        return result(plane, {**dict.fromkeys(HEADER, 0), "a": a})

    with DataPlane() as plane:
        plane.load(made(rows))
        assert look(3) == (4, 1, 1)
        plane.modify("fixed", 3, action="action1", params=[44])
        assert look(3) == (44, 2, 2)
        plane.delete("fixed", 2)
        assert look(2) == (MISS, 0, 0)
        match = [Ternary(7, 7), Ternary(0, 0), Ternary(0, 0)]
        plane.insert("fixed", match, priority=1, action="action0", params=[70])
        assert look(15) == (70, 1, 1)
        assert look(4) == (5, 2, 2)
        plane.set_default("fixed", "action1", [5])
        assert look(2) == (5, 2, 2)
        plane.load(made(rows))
        assert [look(a) for a in (2, 3, 15)] == [(3, 2, 2), (4, 1, 1), (MISS, 0, 0)]


def test_another_default_holds_beside_rows_that_nobody_changed() -> None:
    with DataPlane() as plane:
        plane.load(made([Row(((1, 1), (0, 0), (0, 0)), 8)]))
        plane.set_default("fixed", "action0", [6])
        packet = dict.fromkeys(HEADER, 0)
        assert result(plane, packet) == (6, 1, 1)
        assert result(plane, {**packet, "a": 1}) == (8, 1, 1)


def test_what_is_kept_for_each_entry_needs_the_lookup() -> None:
    """Direct counters, and more rows than are worth it."""
    chance = random.Random(1)
    few, many = rows_of(chance, 5), [Row(((n, 255), (0, 0), (0, 0)), n) for n in range(MOST + 1)]
    for text in (made(few, counted=True), made(many)):
        assert COMPARED not in compile_program(read_program(text)).source
    assert COMPARED in compile_program(read_program(made(many[1:]))).source


def test_the_longest_prefix_wins_wherever_it_stands() -> None:
    root = json.loads(made([]))
    [table] = root["pipelines"][0]["tables"]
    table |= {
        "key": [{"match_type": "lpm", "name": "b", "target": ["h", "b"], "mask": None}],
        "match_type": "lpm",
    }
    table["entries"] = [
        {
            "match_key": [{"match_type": "lpm", "key": hex(key), "prefix_length": length}],
            "action_entry": {"action_id": 0, "action_data": [hex(length)]},
            "priority": 1,
        }
        for key, length in ((0x1000, 4), (0x1234, 16), (0x1200, 8))
    ]
    text = json.dumps(root).encode()
    assert COMPARED in compile_program(read_program(text)).source
    with DataPlane() as plane:
        plane.load(text)
        found = [
            result(plane, {**dict.fromkeys(HEADER, 0), "b": b})[0] for b in (0x1234, 0x1235, 0x1300, 0x2234)
        ]
    assert found == [16, 8, 4, MISS]
