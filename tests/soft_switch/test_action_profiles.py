"""Action profiles, selectors and the times of last hits in the data plane."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from soft_switch.dataplane import DataPlane, Exact, Group, Lpm, Match, Member, Range, Target, Ternary
from soft_switch.errors import DuplicateEntry, EntryInUse, TableError, TableFull, UnknownEntry
from tests.soft_switch.bits import pack, unpack
from tests.soft_switch.programs import program

KEY = {"which": 8, "a": 32, "b": 16, "wide": 128}
RESULT = {"action_number": 8, "value": 32, "wide": 128, "after": 8}
ONE, TWO = "TestIngress.one", "TestIngress.two"
PROFILE, CRC16, CRC32, IDENTITY = (
    f"TestIngress.{name}" for name in ("profile", "crc16", "crc32", "identity")
)
BY_MEMBER, BY_CRC16, BY_CRC32, ALSO_BY_CRC32, BY_IDENTITY, WIDE_RANGE, AGED = (
    f"TestIngress.{name}"
    for name in (
        "by_member",
        "by_crc16",
        "by_crc32",
        "also_by_crc32",
        "by_identity",
        "wide_range",
        "aged",
    )
)


@pytest.fixture(scope="module")
def loaded() -> Iterator[DataPlane]:
    made = DataPlane()
    made.load(program("profiles"))
    yield made
    made.close()


@pytest.fixture
def plane(loaded: DataPlane) -> DataPlane:
    """Return the same data plane with empty tables and profiles: loading a program starts it afresh."""
    loaded.load(program("profiles"))
    return loaded


def look_up(plane: DataPlane, which: int, **key: int) -> dict[str, int]:
    """Return what the program reports, or nothing when the packet is dropped."""
    leaving = plane.process(1, pack(KEY, {"which": which, **key}))
    return unpack(RESULT, leaving[0][1]) if leaving else {}


def point(plane: DataPlane, table: str, target: Target, match: Match | None = None, priority: int = 0) -> int:
    return plane.insert(table, [match or Exact(7)], priority=priority, target=target)


def crc16(data: bytes) -> int:
    """Compute CRC-16/ARC, bit by bit."""
    state = 0
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0xA001 if state & 1 else 0)
    return state


HASHES: list[tuple[int, str, str, Callable[[bytes, bytes], int]]] = [
    (1, BY_CRC16, CRC16, lambda b, wide: crc16(b + wide)),
    (2, BY_CRC32, CRC32, lambda b, wide: zlib.crc32(b + wide)),
    (4, BY_IDENTITY, IDENTITY, lambda b, wide: int.from_bytes(b, "big")),
]


def test_what_the_program_has(plane: DataPlane) -> None:
    assert plane.program is not None
    profiles = plane.program.action_profiles
    assert {name: (p.size, p.selector) for name, p in profiles.items()} == {
        PROFILE: (4, False),
        CRC16: (64, True),
        CRC32: (64, True),
        IDENTITY: (64, True),
    }
    assert plane.program.tables[BY_CRC16].profile == CRC16
    assert plane.program.tables[WIDE_RANGE].profile is None


def test_an_entry_does_what_its_member_does(plane: DataPlane) -> None:
    assert look_up(plane, 0, a=7)["after"] == 0
    first = plane.profile_member_insert(PROFILE, ONE, [11])
    second = plane.profile_member_insert(PROFILE, TWO, [22, 1 << 100])
    handle = point(plane, BY_MEMBER, Member(first))
    assert look_up(plane, 0, a=7) == {"action_number": 1, "value": 11, "wide": 0, "after": 1}
    assert look_up(plane, 0, a=8) == {"action_number": 0, "value": 0, "wide": 0, "after": 0}
    plane.modify(BY_MEMBER, handle, target=Member(second))
    assert look_up(plane, 0, a=7) == {"action_number": 2, "value": 22, "wide": 1 << 100, "after": 1}
    plane.profile_member_modify(PROFILE, second, ONE, [33])
    assert look_up(plane, 0, a=7)["value"] == 33


@pytest.mark.parametrize(("which", "table", "profile", "choose"), HASHES)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_hash_chooses_the_nth_member(
    plane: DataPlane,
    which: int,
    table: str,
    profile: str,
    choose: Callable[[bytes, bytes], int],
    size: int,
) -> None:
    chance = random.Random(size)
    members = [plane.profile_member_insert(profile, ONE, [1000 + i]) for i in range(size)]
    group = plane.profile_group_insert(profile, chance.sample(members, size))
    match: Match = Lpm(7, 32) if which == 2 else Exact(7)
    point(plane, table, Group(group), match)
    for _ in range(50):
        b, wide = chance.getrandbits(16), chance.getrandbits(128)
        nth = choose(b.to_bytes(2, "big"), wide.to_bytes(16, "big")) % size
        assert look_up(plane, which, a=7, b=b, wide=wide)["value"] == 1000 + nth


def test_the_lowest_handle_is_given_out_again(plane: DataPlane) -> None:
    """Check that it is, as BMv2 does it; the order of handles decides about a hash's choice."""
    members = [plane.profile_member_insert(IDENTITY, ONE, [i]) for i in range(5)]
    assert members == [0, 1, 2, 3, 4]
    for member in (3, 1):
        plane.profile_member_delete(IDENTITY, member)
    assert [plane.profile_member_insert(IDENTITY, ONE, [i]) for i in (5, 6, 7)] == [1, 3, 5]
    group = plane.profile_group_insert(IDENTITY, [5, 3, 1, 0])
    point(plane, BY_IDENTITY, Group(group))
    assert [look_up(plane, 4, a=7, b=b)["value"] for b in range(5)] == [0, 5, 6, 7, 0]


def test_a_group_changes(plane: DataPlane) -> None:
    members = [plane.profile_member_insert(IDENTITY, ONE, [i]) for i in range(4)]
    group = plane.profile_group_insert(IDENTITY, members[:2])
    point(plane, BY_IDENTITY, Group(group))
    assert {look_up(plane, 4, a=7, b=b)["value"] for b in range(8)} == {0, 1}
    plane.profile_group_modify(IDENTITY, group, members[1:])
    assert {look_up(plane, 4, a=7, b=b)["value"] for b in range(9)} == {1, 2, 3}
    plane.profile_group_modify(IDENTITY, group, [])
    assert look_up(plane, 4, a=7, b=1) == {"action_number": 0, "value": 0, "wide": 0, "after": 0}


def test_what_follows_is_the_tables_own_where_two_share_a_selector(plane: DataPlane) -> None:
    members = [
        plane.profile_member_insert(CRC32, ONE, [1]),
        plane.profile_member_insert(CRC32, TWO, [2, 3]),
    ]
    group = plane.profile_group_insert(CRC32, members)
    point(plane, BY_CRC32, Group(group), Lpm(0, 0))
    point(plane, ALSO_BY_CRC32, Group(group), Ternary(0, 0), priority=1)
    seen = set()
    for b in range(32):
        first, second = look_up(plane, 2, b=b), look_up(plane, 3, b=b)
        number = first["action_number"]
        assert (first["after"], second["after"]) == (20 + number, 30 + number)
        assert first["value"] == second["value"] == number
        seen.add(number)
    assert seen == {1, 2}


def test_what_is_in_use_stays(plane: DataPlane) -> None:
    used, grouped, free = (plane.profile_member_insert(CRC16, ONE, [i]) for i in range(3))
    group = plane.profile_group_insert(CRC16, [grouped])
    entries = [point(plane, BY_CRC16, Member(used)), point(plane, BY_CRC16, Group(group), Exact(8))]
    for member in (used, grouped):
        with pytest.raises(EntryInUse):
            plane.profile_member_delete(CRC16, member)
    with pytest.raises(EntryInUse):
        plane.profile_group_delete(CRC16, group)
    plane.profile_member_delete(CRC16, free)
    plane.modify(BY_CRC16, entries[0], target=Group(group))
    plane.profile_member_delete(CRC16, used)
    for entry in entries:
        plane.delete(BY_CRC16, entry)
    plane.profile_group_delete(CRC16, group)
    plane.profile_member_delete(CRC16, grouped)
    for call in (plane.profile_member_delete, plane.profile_group_delete):
        with pytest.raises(UnknownEntry):
            call(CRC16, 0)


def test_an_entry_that_is_refused_refers_to_nothing(plane: DataPlane) -> None:
    members = [plane.profile_member_insert(PROFILE, ONE, [i]) for i in range(2)]
    point(plane, BY_MEMBER, Member(members[0]))
    with pytest.raises(DuplicateEntry):
        point(plane, BY_MEMBER, Member(members[1]))
    for i in range(15):
        point(plane, BY_MEMBER, Member(members[0]), Exact(100 + i))
    with pytest.raises(TableFull):
        point(plane, BY_MEMBER, Member(members[1]), Exact(200))
    plane.profile_member_delete(PROFILE, members[1])


@pytest.mark.parametrize(
    "attempt",
    [
        lambda plane: plane.insert(BY_MEMBER, [Exact(1)], priority=0, action=ONE, params=[1]),
        lambda plane: plane.insert(BY_MEMBER, [Exact(1)], priority=0),
        lambda plane: plane.insert(BY_MEMBER, [Exact(1)], priority=0, target=Member(5)),
        lambda plane: plane.insert(BY_MEMBER, [Exact(1)], priority=0, target=Member(-1)),
        lambda plane: plane.insert(BY_MEMBER, [Exact(1)], priority=0, target=Group(0)),
        lambda plane: plane.insert(BY_CRC16, [Exact(1)], priority=0, target=Group(0)),
        lambda plane: plane.insert(AGED, [Exact(1)], priority=0, target=Member(0)),
        lambda plane: plane.set_default(BY_MEMBER, ONE, [1]),
        lambda plane: plane.profile_member_insert(PROFILE, "TestIngress.drop", []),
        lambda plane: plane.profile_member_insert(PROFILE, ONE, [1 << 32]),
        lambda plane: plane.profile_member_insert("TestIngress.nothing", ONE, [1]),
        lambda plane: plane.profile_member_modify(PROFILE, -1, ONE, [1]),
        lambda plane: plane.profile_member_modify(PROFILE, 1, ONE, [1]),
        lambda plane: plane.profile_group_insert(PROFILE, [0]),
        lambda plane: plane.profile_group_insert(CRC16, [0]),
        lambda plane: plane.profile_group_insert(CRC16, [-1]),
        lambda plane: plane.profile_group_modify(CRC16, -1, []),
        lambda plane: plane.idle_ns(BY_CRC16, 0),
        lambda plane: plane.direct_counter_read(AGED, 0),
    ],
)
def test_what_is_refused(plane: DataPlane, attempt: Callable[[DataPlane], object]) -> None:
    plane.profile_member_insert(PROFILE, ONE, [1])
    with pytest.raises(TableError):
        attempt(plane)


def test_idle_times(plane: DataPlane) -> None:
    handles = [plane.insert(AGED, [Exact(i)], priority=0, action=ONE, params=[i]) for i in range(3)]
    before = [plane.idle_ns(AGED, handle) for handle in handles]
    assert all(0 <= idle < 60e9 for idle in before)
    while min(plane.idle_ns(AGED, handle) for handle in handles) < 20_000_000:
        pass
    look_up(plane, 6, a=1)
    look_up(plane, 6, a=77)
    after = [plane.idle_ns(AGED, handle) for handle in handles]
    assert after[1] < min(after[0], after[2])
    plane.modify(AGED, handles[0], action=ONE, params=[9])
    assert plane.idle_ns(AGED, handles[0]) >= after[0]  # only packets count
    plane.delete(AGED, handles[2])
    with pytest.raises(UnknownEntry):
        plane.idle_ns(AGED, handles[2])
    # A table that has both.
    member = plane.profile_member_insert(IDENTITY, ONE, [5])
    assert plane.idle_ns(BY_IDENTITY, point(plane, BY_IDENTITY, Member(member))) >= 0


WIDE = (1 << 128) - 1


@pytest.mark.parametrize("seed", range(4))
def test_ranges_of_any_width(plane: DataPlane, seed: int) -> None:
    chance = random.Random(seed)
    corners = [0, 1, (1 << 64) - 1, 1 << 64, (1 << 64) + 1, 5 << 64, WIDE - 1, WIDE]

    def pair(values: Sequence[int]) -> tuple[int, int]:
        low, high = sorted(chance.choices(values, k=2))
        return low, high

    entries: dict[int, tuple[tuple[int, int], tuple[int, int], int]] = {}
    for number in range(40):
        wide, narrow, priority = pair(corners), pair([0, 5, 9, 65535]), chance.randrange(1, 5)
        try:
            plane.insert(
                WIDE_RANGE,
                [Range(*wide), Range(*narrow), Ternary(0, 0)],
                priority=priority,
                action=ONE,
                params=[number],
            )
        except DuplicateEntry:
            assert (wide, narrow, priority) in entries.values()
            continue
        entries[number] = (wide, narrow, priority)
    for _ in range(200):
        b, wide_value = (
            chance.choice([0, 4, 5, 9, 100, 65535]),
            chance.choice(corners) ^ chance.choice([0, 1]),
        )
        hits = [
            (priority, -number)  # among equals BMv2 takes the lower handle
            for number, (wide, narrow, priority) in entries.items()
            if wide[0] <= wide_value <= wide[1] and narrow[0] <= b <= narrow[1]
        ]
        result = look_up(plane, 5, b=b, wide=wide_value)
        assert result["action_number"] == bool(hits)
        assert result["value"] == (-max(hits)[1] if hits else 0)


def test_among_equal_priorities_the_lowest_handle_wins(plane: DataPlane) -> None:
    handles = [
        plane.insert(
            ALSO_BY_CRC32,
            [Ternary(0, 1 << i)],
            priority=5,
            target=Member(plane.profile_member_insert(CRC32, ONE, [i])),
        )
        for i in range(4)
    ]
    assert handles == [0, 1, 2, 3]
    assert look_up(plane, 3)["value"] == 0
    plane.delete(ALSO_BY_CRC32, 0)
    assert look_up(plane, 3)["value"] == 1
    member = plane.profile_member_insert(CRC32, ONE, [99])
    assert plane.insert(ALSO_BY_CRC32, [Ternary(0, 1 << 9)], priority=5, target=Member(member)) == 0
    assert look_up(plane, 3)["value"] == 99
