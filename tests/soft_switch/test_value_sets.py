"""Parser value sets, and selects over wide and signed fields."""

from __future__ import annotations

import random

import pytest

from soft_switch.dataplane import (
    DataPlane,
    Exact,
    Lpm,
    Match,
    Range,
    TableError,
    TableFull,
    Ternary,
    UnknownEntry,
)
from soft_switch.description import KeyField, ValueSetInfo
from soft_switch.value_sets import pack_member
from tests.soft_switch.conftest import PlaneFactory

KINDS, PAIRS, ADDRESSES = "TestParser.kinds", "TestParser.pairs", "TestParser.addresses"
(OTHER, IN_KINDS, FIXED, IN_PAIRS, IN_ADDRESSES, FIXED_ADDRESS, MASKED, MINUS_ONE, LEAST, MOST) = range(10)
FAILED = 255
ADDRESS = 0x123456789ABCDEF012345678


def branch(plane: DataPlane, kind: int, low: int = 0, address: int | None = None) -> int:
    """Return the way that the parser goes with a packet."""
    frame = kind.to_bytes(2, "big") + bytes([low << 3])
    if address is not None:
        frame += (address << 28).to_bytes(16, "big")
    [(_, out)] = plane.process(0, frame)
    assert out[1:] == frame
    return out[0]


def test_description(plane_with: PlaneFactory) -> None:
    program = plane_with("selects").program
    assert program is not None
    assert {
        name: (item.size, [f.width for f in item.fields]) for name, item in program.value_sets.items()
    } == {
        KINDS: (4, [16]),
        PAIRS: (4, [16, 5]),
        ADDRESSES: (2, [100]),
    }


def test_members_are_replaced(plane_with: PlaneFactory) -> None:
    plane = plane_with("selects")
    assert branch(plane, 0x0800) == OTHER
    plane.value_set_write(KINDS, [[Exact(0x0800)], [Exact(0x86DD)]])
    assert [branch(plane, kind) for kind in (0x0800, 0x86DD, 0x0806)] == [IN_KINDS, IN_KINDS, OTHER]
    plane.value_set_write(KINDS, [[Exact(0x0806)]])
    assert [branch(plane, kind) for kind in (0x0800, 0x86DD, 0x0806)] == [OTHER, OTHER, IN_KINDS]
    plane.value_set_write(KINDS, [])
    assert branch(plane, 0x0806) == OTHER


def test_transitions_are_tried_in_order(plane_with: PlaneFactory) -> None:
    plane = plane_with("selects")
    plane.value_set_write(PAIRS, [[Exact(0xAAAA), Exact(3)], [Exact(0xAAAA), Exact(4)]])
    assert [branch(plane, 0xAAAA, low) for low in (3, 4)] == [FIXED, IN_PAIRS]
    assert branch(plane, 0xAAAA, 5) == FAILED  # tried as an address, for which the packet is too short


def test_kinds_of_matches(plane_with: PlaneFactory) -> None:
    plane = plane_with("selects")
    plane.value_set_write(PAIRS, [[Ternary(0x1200, 0xFF00), Range(3, 17)], [Lpm(0x8000, 3), Exact(9)]])
    for low in range(32):
        assert branch(plane, 0x12AB, low) == (IN_PAIRS if 3 <= low <= 17 else OTHER)
        assert branch(plane, 0x9FFE, low) == (IN_PAIRS if low == 9 else OTHER)
        assert branch(plane, 0x1100, low) == OTHER


def test_wide_fields(plane_with: PlaneFactory) -> None:
    plane = plane_with("selects")
    plane.value_set_write(ADDRESSES, [[Exact(ADDRESS)], [Exact(1 << 99)]])
    assert branch(plane, 0xAA00, 0, ADDRESS) == IN_ADDRESSES
    assert branch(plane, 0xAA00, 0, ADDRESS ^ 1) == OTHER
    assert branch(plane, 0xAA00, 0, 1 << 99) == IN_ADDRESSES
    assert branch(plane, 0xAA00, 0, (5 << 96) + 1) == FIXED_ADDRESS
    assert branch(plane, 0xAA00, 0, (15 << 96) + 77) == MASKED


def test_signed_selects(plane_with: PlaneFactory) -> None:
    plane = plane_with("selects")
    assert [branch(plane, kind) for kind in (0x1FFF, 0x1000, 0x0FFF, 0x1FFE)] == [
        MINUS_ONE,
        LEAST,
        MOST,
        OTHER,
    ]


def test_what_does_not_fit(plane_with: PlaneFactory) -> None:
    plane = plane_with("selects")
    with pytest.raises(UnknownEntry, match="no value set nothing"):
        plane.value_set_write("nothing", [])
    with pytest.raises(TableFull, match="holds 4 members, 5 were given"):
        plane.value_set_write(KINDS, [[Exact(n)] for n in range(5)])
    wrong: list[tuple[list[Match], str]] = [
        ([Exact(1), Exact(1)], "compares 1 fields, the member has 2"),
        ([Exact(1 << 16)], "does not fit the 16 bits"),
        ([Range(5, 4)], "is empty"),
        ([Lpm(0, 17)], "prefix length is 17"),
    ]
    for member, message in wrong:
        with pytest.raises(TableError, match=message):
            plane.value_set_write(KINDS, [member])


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_ranges(seed: int) -> None:
    chance = random.Random(seed)
    width = chance.randint(1, 9)
    low, high = sorted(chance.randrange(1 << width) for _ in range(2))
    info = ValueSetInfo("set", 1, (KeyField("field0", "exact", width),))
    rows = list(pack_member(info, [Range(low, high)]))
    for value in range(1 << width):
        assert any(value & mask == wanted for wanted, mask in rows) == (low <= value <= high)
