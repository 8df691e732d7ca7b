"""Match kinds, priorities, defaults and what follows a table, against a search through all entries."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from soft_switch.dataplane import DataPlane, Exact, Lpm, Match, Optional_, Range, Ternary
from soft_switch.errors import DuplicateEntry, TableError, TableFull, UnknownEntry
from tests.soft_switch.bits import pack, unpack
from tests.soft_switch.programs import program

KEY = {"which": 8, "a": 32, "b": 16, "wide": 128}
RESULT = {"action_number": 8, "value": 32, "wide": 128, "after": 8}
WIDTH = {name: width for name, width in KEY.items() if name != "which"}
ONE, TWO, MISS = ("TestIngress.one", "TestIngress.two", "TestIngress.miss")


@dataclass(frozen=True)
class Case:
    """A table: its number in the key's field `which`, its keys, and a maker of random matches of each."""

    which: int
    name: str
    keys: Sequence[str]
    makers: Sequence[Callable[[random.Random, int], Match]]


def exact(chance: random.Random, width: int) -> Match:
    return Exact(value_of(chance, width))


def lpm(chance: random.Random, width: int) -> Match:
    length = chance.choice([0, 1, width // 3, width - 1, width])
    return Lpm(value_of(chance, width) >> width - length << width - length, length)


def ternary(chance: random.Random, width: int) -> Match:
    mask = chance.choice([0, (1 << width) - 1, 3, 0xF0, 1 << width - 1, chance.getrandbits(width)])
    return Ternary(value_of(chance, width) & mask, mask)


def range_(chance: random.Random, width: int) -> Match:
    low, high = sorted([value_of(chance, width), value_of(chance, width)])
    return Range(low, high)


def optional(chance: random.Random, width: int) -> Match:
    return Optional_(chance.choice([None, value_of(chance, width)]))


CASES = [
    Case(0, "exact_match", ["a", "b"], [exact, exact]),
    Case(1, "longest_prefix", ["a"], [lpm]),
    Case(2, "prefix_and_exact", ["b", "wide"], [exact, lpm]),
    Case(3, "ternary_match", ["a", "wide"], [ternary, ternary]),
    Case(4, "range_match", ["b", "a"], [range_, ternary]),
    Case(5, "optional_match", ["a", "b"], [optional, optional]),
]


def value_of(chance: random.Random, width: int) -> int:
    """Draw from few values, so that entries overlap and packets hit them."""
    return chance.choice([0, 1, 2, 3, 1 << width - 1, (1 << width) - 1, 0xF1, 0xF2])


def matches(match: Match, value: int, width: int) -> bool:
    match match:
        case Exact(wanted):
            return value == wanted
        case Lpm(wanted, length):
            return value >> width - length == wanted >> width - length
        case Ternary(wanted, mask):
            return value & mask == wanted
        case Range(low, high):
            return low <= value <= high
        case Optional_(wanted):
            return wanted is None or value == wanted


@pytest.fixture(scope="module")
def loaded() -> Iterator[DataPlane]:
    made = DataPlane()
    made.load(program("tables"))
    yield made
    made.close()


@pytest.fixture
def plane(loaded: DataPlane) -> DataPlane:
    """Return the same data plane with empty tables: loading a program starts it afresh."""
    loaded.load(program("tables"))
    return loaded


def look_up(plane: DataPlane, **key: int) -> dict[str, int]:
    """Return what the program reports, or nothing when the packet is dropped."""
    leaving = plane.process(1, pack(KEY, key))
    assert all(port == 3 for port, _ in leaving)
    return unpack(RESULT, leaving[0][1]) if leaving else {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", range(4))
def test_the_best_entry_wins(plane: DataPlane, case: Case, seed: int) -> None:
    chance = random.Random(seed)
    table, entries = f"TestIngress.{case.name}", dict[int, tuple[list[Match], int, int]]()
    uses_priority = case.which >= 3
    for step in range(150):
        if entries and chance.random() < 0.3:
            handle = chance.choice(sorted(entries))
            plane.delete(table, handle)
            del entries[handle]
        elif len(entries) < 14:
            match = [maker(chance, WIDTH[key]) for key, maker in zip(case.keys, case.makers, strict=True)]
            priority = chance.randrange(1, 2**31) if uses_priority else 0
            same = any(m == match and p == priority for m, p, _ in entries.values())
            if same:
                with pytest.raises(DuplicateEntry):
                    plane.insert(table, match, priority=priority, action=ONE, params=[step])
            else:
                handle = plane.insert(table, match, priority=priority, action=ONE, params=[step + 1000])
                assert handle not in entries
                entries[handle] = (match, priority, step + 1000)
        key = {name: value_of(chance, width) for name, width in WIDTH.items()}
        hits = [
            (priority, sum(m.prefix_len for m in match if isinstance(m, Lpm)), value)
            for match, priority, value in entries.values()
            if all(matches(m, key[k], WIDTH[k]) for m, k in zip(match, case.keys, strict=True))
        ]
        result = look_up(plane, which=case.which, **key)
        if hits:
            assert (result["action_number"], result["value"]) == (1, max(hits)[2])
        else:
            assert result["action_number"] == (3 if case.which < 2 else 0)


def test_defaults_and_what_follows(plane: DataPlane) -> None:
    assert look_up(plane, which=0)["after"] == 2
    assert look_up(plane, which=0)["value"] == 99
    assert look_up(plane, which=1) == {"action_number": 3, "value": 98, "wide": 0, "after": 12}
    assert look_up(plane, which=3)["after"] == 14
    plane.insert(
        "TestIngress.exact_match", [Exact(5), Exact(6)], priority=0, action=TWO, params=[1, 1 << 127]
    )
    assert look_up(plane, which=0, a=5, b=6) == {"action_number": 2, "value": 1, "wide": 1 << 127, "after": 1}
    plane.insert("TestIngress.longest_prefix", [Lpm(0, 0)], priority=0, action=ONE, params=[4])
    assert look_up(plane, which=1, a=77) == {"action_number": 1, "value": 4, "wide": 0, "after": 11}
    plane.insert(
        "TestIngress.ternary_match", [Ternary(0, 0), Ternary(3, 3)], priority=9, action=TWO, params=[6, 7]
    )
    assert look_up(plane, which=3, wide=7) == {"action_number": 2, "value": 6, "wide": 7, "after": 13}


def test_another_default_and_the_programs_own_again(plane: DataPlane) -> None:
    plane.set_default("TestIngress.longest_prefix", ONE, [2**32 - 1])
    assert look_up(plane, which=1)["value"] == 2**32 - 1
    plane.set_default("TestIngress.longest_prefix", None)
    assert look_up(plane, which=1)["value"] == 98


def test_a_dropped_packet(plane: DataPlane) -> None:
    match: list[Match] = [Range(7, 9), Ternary(0, 0)]
    plane.insert("TestIngress.range_match", match, priority=1, action="TestIngress.drop", params=[])
    assert look_up(plane, which=4, b=6) != {}
    assert look_up(plane, which=4, b=7) == {}
    assert look_up(plane, which=4, b=9) == {}
    assert look_up(plane, which=4, b=10) != {}


@pytest.mark.parametrize(
    ("a", "b", "value"),
    [(0x105, 5, 100), (0x125, 10, 100), (0x125, 11, 200), (0x325, 3, 300), (0x125, 3, 200), (0, 4, 7)],
)
def test_entries_of_the_program(plane: DataPlane, a: int, b: int, value: int) -> None:
    assert look_up(plane, which=6, a=a, b=b)["value"] == value
    assert look_up(plane, which=6, a=a, b=b)["wide"] == (1 << 100 if value == 200 else 0)


def test_modify_and_direct_counter(plane: DataPlane) -> None:
    table = "TestIngress.exact_match"
    handle = plane.insert(table, [Exact(1), Exact(2)], priority=0, action=ONE, params=[3])
    frame = pack(KEY, {"which": 0, "a": 1, "b": 2}) + bytes(10)
    plane.process(1, frame)
    plane.modify(table, handle, action=MISS, params=[44])
    [(_, left)] = plane.process(1, frame)
    assert unpack(RESULT, left)["value"] == 44
    assert plane.direct_counter_read(table, handle) == (2, 2 * len(frame))
    plane.direct_counter_write(table, handle, 100, 2**40)
    plane.process(1, frame)
    assert plane.direct_counter_read(table, handle) == (101, 2**40 + len(frame))
    plane.delete(table, handle)
    for call in (plane.delete, plane.direct_counter_read):
        with pytest.raises(UnknownEntry):
            call(table, handle)


def test_a_full_table_takes_no_more(plane: DataPlane) -> None:
    table = "TestIngress.exact_match"
    handles = [
        plane.insert(table, [Exact(i), Exact(0)], priority=0, action=ONE, params=[i]) for i in range(16)
    ]
    with pytest.raises(TableFull, match="16"):
        plane.insert(table, [Exact(99), Exact(0)], priority=0, action=ONE, params=[0])
    plane.delete(table, handles[3])
    plane.insert(table, [Exact(99), Exact(0)], priority=0, action=ONE, params=[5])
    assert look_up(plane, which=0, a=99)["value"] == 5
    assert look_up(plane, which=0, a=3)["value"] == 99
    assert look_up(plane, which=0, a=15)["value"] == 15


@pytest.mark.parametrize(
    ("table", "match", "priority", "action", "params", "error"),
    [
        ("TestIngress.nothing", [], 0, ONE, [1], UnknownEntry),
        ("TestIngress.longest_prefix", [Lpm(0, 8)], 0, TWO, [1, 1], UnknownEntry),
        ("TestIngress.longest_prefix", [Lpm(0, 33)], 0, ONE, [1], TableError),
        ("TestIngress.longest_prefix", [Lpm(2**32, 8)], 0, ONE, [1], TableError),
        ("TestIngress.longest_prefix", [Exact(0)], 0, ONE, [1], TableError),
        ("TestIngress.longest_prefix", [Lpm(0, 8), Lpm(0, 8)], 0, ONE, [1], TableError),
        ("TestIngress.longest_prefix", [Lpm(0, 8)], 0, ONE, [], TableError),
        ("TestIngress.longest_prefix", [Lpm(0, 8)], 0, ONE, [2**32], TableError),
        ("TestIngress.range_match", [Range(5, 4), Ternary(0, 0)], 1, ONE, [1], TableError),
        ("TestIngress.range_match", [Exact(5), Ternary(0, 0)], 1, ONE, [1], TableError),
        ("TestIngress.ternary_match", [Ternary(0, 2**32), Ternary(0, 0)], 1, ONE, [1], TableError),
        ("TestIngress.ternary_match", [Ternary(0, 0), Ternary(0, 0)], -1, ONE, [1], TableError),
        ("TestIngress.ternary_match", [Ternary(0, 0), Ternary(0, 0)], 2**31, ONE, [1], TableError),
    ],
)
def test_wrong_entries(
    plane: DataPlane,
    table: str,
    match: list[Match],
    priority: int,
    action: str,
    params: list[int],
    error: type[TableError],
) -> None:
    with pytest.raises(error):
        plane.insert(table, match, priority=priority, action=action, params=params)


@pytest.mark.slow
def test_memory_is_bounded_by_the_table(plane: DataPlane) -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    chance, table = random.Random(5), "TestIngress.ternary_match"
    before = 0
    for round_ in range(60_000):
        match: list[Match] = [Ternary(round_ % 97, chance.getrandbits(32) | 0x7F), Ternary(0, 0)]
        plane.delete(table, plane.insert(table, match, priority=1, action=ONE, params=[1]))
        if round_ == 10_000:
            before = resident()
    assert resident() - before < 4 << 20
