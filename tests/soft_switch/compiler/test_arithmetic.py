"""Operators of P4 on operands of every kind, against Python's integers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from soft_switch.dataplane import DataPlane
from tests.soft_switch.bits import pack, signed, size, unpack
from tests.soft_switch.programs import program

CHUNK = 2048
TOP = sum(0x80000000 << 32 * i for i in range(64))
IN = {
    "amount": 8,
    "narrow": 5,
    "flags": 3,
    "half": 16,
    "x": 32,
    "y": 32,
    "s": 32,
    "t": 16,
    "odd": 100,
    "pad": 4,
    "wx": CHUNK,
    "wy": CHUNK,
}
OUT = {
    **dict.fromkeys(["sum", "difference", "product", "left", "right", "arithmetic_right"], 32),
    **dict.fromkeys(["saturated_sum", "saturated_difference", "signed_saturated_sum"], 32),
    **dict.fromkeys(["signed_saturated_difference", "signed_product", "negated", "inverted"], 32),
    "extended": 64,
    "shortened": 8,
    "joined": 48,
    "slice": 16,
    "sliced_into": 32,
    "chosen": 32,
    **dict.fromkeys(["less", "signed_less", "equal", "wide_less", "both", "either", "odd_equal", "pad"], 1),
    "odd_sum": 100,
    "odd_right": 100,
    "odd_pad": 56,
    "wide_slice": 32,
    **dict.fromkeys(["wide_sum", "wide_difference", "wide_left", "wide_right", "wide_mask"], CHUNK),
    **dict.fromkeys(["lanes", "greatest"], CHUNK),
}


def cut(value: int, width: int = 32) -> int:
    return value & (1 << width) - 1


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def lanes(value: int) -> list[int]:
    return [value >> 32 * i & 0xFFFFFFFF for i in range(64)]


def unlanes(values: list[int]) -> int:
    return sum(cut(value) << 32 * i for i, value in enumerate(values))


def expected(v: dict[str, int]) -> dict[str, int]:
    """Compute what the program says, by definition of each operator (P4_16 1.2.4, section 8)."""
    x, y, amount, half, odd, wx, wy = (v[n] for n in ("x", "y", "amount", "half", "odd", "wx", "wy"))
    s, t = signed(v["s"], 32), signed(v["t"], 16)
    low, high = -(2**31), 2**31 - 1
    return {
        "sum": cut(x + y),
        "difference": cut(x - y),
        "product": cut(x * y),
        "left": cut(x << amount),
        "right": x >> amount,
        "arithmetic_right": cut(s >> amount),
        "saturated_sum": clamp(x + y, 0, 2**32 - 1),
        "saturated_difference": clamp(x - y, 0, 2**32 - 1),
        "signed_saturated_sum": cut(clamp(s + signed(y, 32), low, high)),
        "signed_saturated_difference": cut(clamp(s - t, low, high)),
        "signed_product": cut(s * t),
        "negated": cut(-x),
        "inverted": cut(~x),
        "extended": cut(t, 64),
        "shortened": cut(x, 8),
        "joined": half << 32 | y,
        "slice": x >> 8 & 0xFFFF,
        "sliced_into": y & ~0xFFFF0 | half << 4,
        "chosen": x if v["flags"] & 1 else cut(y + 1),
        "less": int(x < y),
        "signed_less": int(s < t),
        "equal": int(x == y),
        "wide_less": int(wx < wy),
        "both": int(v["narrow"] > 9 and half != 7),
        "either": int(v["narrow"] > 9 or half <= 700),
        "odd_equal": int(odd == x),
        "pad": 0,
        "odd_sum": cut(odd + 3 * y, 100),
        "odd_right": odd >> amount,
        "odd_pad": 0,
        "wide_slice": wx >> 969 & 0xFFFFFFFF,
        "wide_sum": cut(wx + wy, CHUNK),
        "wide_difference": cut(wx - wy, CHUNK),
        "wide_left": cut(wx << 77, CHUNK),
        "wide_right": wx >> amount,
        "wide_mask": wx & ~wy | wx ^ TOP,
        "lanes": unlanes([a + b for a, b in zip(lanes(wx), lanes(wy), strict=True)]),
        "greatest": unlanes(
            [int(signed(a, 32) >= signed(b, 32)) for a, b in zip(lanes(wx), lanes(wy), strict=True)]
        ),
    }


@pytest.fixture(scope="module", params=[True, False], ids=["optimised", "plain"])
def plane(request: pytest.FixtureRequest) -> Iterator[DataPlane]:
    made = DataPlane()
    made.load(program("arithmetic"), optimise=request.param)
    yield made
    made.close()


def operand(chance: random.Random, width: int) -> int:
    """Draw corners as often as anything else."""
    top = 1 << (width - 1)
    corners = [0, 1, top - 1, top, 2 * top - 1, chance.randrange(min(2 * top, 64))]
    return chance.choice([*corners, *(chance.getrandbits(width) for _ in range(4))])


@pytest.mark.parametrize("seed", range(10))
def test_results(plane: DataPlane, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        values = {name: operand(chance, width) for name, width in IN.items()}
        if chance.random() < 0.2:
            values["y"] = values["x"]
        if chance.random() < 0.3:  # equal lanes here and there
            values["wy"] = values["wx"] ^ chance.getrandbits(32) << 32 * chance.randrange(64)
        [(port, frame)] = plane.process(1, pack(IN, values) + b"payload")
        assert port == 2
        assert frame[size(OUT) :] == b"payload"
        assert unpack(OUT, frame) == expected(values), values


def test_too_short_for_its_header(plane: DataPlane) -> None:
    assert plane.process(1, bytes(size(IN) - 1)) == []
