"""Random expressions, whose parts occur several times, against integers of any size as BMv2 computes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from soft_switch.dataplane import DataPlane
from tests.soft_switch.bits import pack, signed, unpack
from tests.soft_switch.bmv2_json import Json, assign, const, field, operation, program

pytestmark = pytest.mark.slow

WIDTHS = {"a": 8, "b": 32, "c": 64, "d": 31, "e": 17, "f": 100, "g": 192, "i": 4}
SIGNED = {"j": 32, "k": 64, "l": 130}  # in metadata, which can be signed
RESULTS = 24
RESULT_WIDTHS = [1, 7, 8, 32, 33, 64, 65, 128, 300]

Values = dict[str, int]
Number = tuple[Json, Callable[[Values], int]]  # as JSON, and what it means


def compute(op: str, left: int, right: int) -> int:
    """Compute BMv2's operators on integers (src/bm_sim/expressions.cpp)."""
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "&":
            return left & right
        case "|":
            return left | right
        case "^":
            return left ^ right
        case "two_comp_mod":
            return signed(left, right)
        case "usat_cast":
            return max(0, min(left, (1 << right) - 1))
        case "sat_cast":
            return max(-(1 << right - 1), min(left, (1 << right - 1) - 1))
        case "<<":
            return left << right
        case ">>":
            return left >> right
    raise AssertionError(op)


class Grower:
    """Makes expressions over earlier ones, so that they share parts."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.numbers: list[Number] = [self.leaf("h", name) for name in WIDTHS]
        self.numbers += [self.leaf("m", name) for name in SIGNED]

    @staticmethod
    def leaf(header: str, name: str) -> Number:
        return field(header, name), lambda values: values[name]

    def pick(self) -> Number:
        if self.chance.random() < 0.15:
            value = self.chance.choice([0, 1, 255, 2**32 - 1, 2**64 - 1, 2**64, self.chance.getrandbits(120)])
            return const(value), lambda values: value
        return self.chance.choice(self.numbers)

    def condition(self) -> tuple[Json, Callable[[Values], bool]]:
        (a, x), (b, y) = self.pick(), self.pick()
        op = self.chance.choice(["==", "!=", "<", "<=", ">", ">="])
        tests: dict[str, Callable[[int, int], bool]] = {
            "==": int.__eq__,
            "!=": int.__ne__,
            "<": int.__lt__,
            "<=": int.__le__,
            ">": int.__gt__,
            ">=": int.__ge__,
        }
        return operation(op, a, b), lambda values: tests[op](x(values), y(values))

    def grow(self) -> None:
        (a, x), (b, y) = self.pick(), self.pick()
        kind = self.chance.random()
        if kind < 0.55:
            op = self.chance.choice(["+", "-", "+", "-", "&", "|", "^"])
            self.numbers.append((operation(op, a, b), lambda v: compute(op, x(v), y(v))))
        elif kind < 0.6:
            mask = const((1 << 70) - 1)
            low = operation("&", a, mask)
            meaning = (1 << 70) - 1
            self.numbers.append((operation("*", low, b), lambda v: (x(v) & meaning) * y(v)))
        elif kind < 0.7:
            op, amount = self.chance.choice(["<<", ">>"]), self.chance.choice([0, 1, 13, 63, 64, 65, 90])
            self.numbers.append((operation(op, a, const(amount)), lambda v: compute(op, x(v), amount)))
        elif kind < 0.75:
            op, amounts = self.chance.choice(["<<", ">>"]), self.leaf("h", "i")
            self.numbers.append((operation(op, a, amounts[0]), lambda v: compute(op, x(v), amounts[1](v))))
        elif kind < 0.85:
            op, width = (
                self.chance.choice(["two_comp_mod", "usat_cast", "sat_cast"]),
                self.chance.choice([8, 32, 63, 64, 65, 100]),
            )
            self.numbers.append((operation(op, a, const(width)), lambda v: compute(op, x(v), width)))
        elif kind < 0.9:
            self.numbers.append((operation("~", None, a), lambda v: ~x(v)))
        else:
            test, truth = self.condition()
            self.numbers.append((operation("?", a, b, cond=test), lambda v: x(v) if truth(v) else y(v)))


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 12))]
)
def test_expressions(seed: int) -> None:
    chance = random.Random(seed)
    grower = Grower(chance)
    header = {**WIDTHS, **{f"in_{name}": width for name, width in SIGNED.items()}}
    results = {f"r{n}": chance.choice(RESULT_WIDTHS) for n in range(RESULTS)}
    header |= results
    header["pad"] = 8 - sum(header.values()) % 8
    load = [
        assign(field("m", n), operation("two_comp_mod", field("h", f"in_{n}"), const(w)))
        for n, w in SIGNED.items()
    ]
    wanted, statements = list[Callable[[Values], int]](), list[Json]()
    for name in results:
        for _ in range(2):
            grower.grow()
        # Deep expressions over many widths grow fast: keep their parts to some hundred bits.
        value, meaning = grower.numbers[-1]
        if chance.random() < 0.4:
            mask = chance.choice([(1 << 64) - 1, (1 << 128) - 1, 0xFFFF0000FFFF])
            grower.numbers[-1] = operation("&", value, const(mask)), lambda v, f=meaning, m=mask: f(v) & m  # type: ignore[misc]
        value, meaning = grower.numbers[-1]
        statements.append(assign(field("h", name), value))
        wanted.append(meaning)
    plane = DataPlane()
    plane.load(
        program(header=header, metadata={n: (w, True) for n, w in SIGNED.items()}, actions=[load, statements])
    )
    for _ in range(60):
        values = {name: corner(chance, width) for name, width in WIDTHS.items()}
        raw = {f"in_{name}": corner(chance, width) for name, width in SIGNED.items()}
        [(_, frame)] = plane.process(1, pack(header, {**values, **raw}))
        values |= {name: signed(raw[f"in_{name}"], width) for name, width in SIGNED.items()}
        got = unpack(header, frame)
        for (name, width), meaning in zip(results.items(), wanted, strict=True):
            assert got[name] == meaning(values) & (1 << width) - 1, (name, values)
    plane.close()


def corner(chance: random.Random, width: int) -> int:
    top = 1 << width - 1
    return chance.choice([0, 1, top - 1, top, 2 * top - 1, *(chance.getrandbits(width) for _ in range(5))])
