"""P4 programs with random expressions over fields of many widths, signed and unsigned."""

from __future__ import annotations

import random
from typing import NamedTuple

WIDTHS = (1, 3, 7, 8, 13, 16, 31, 32, 33, 48, 63, 64, 65, 100, 128, 129, 300)
SIGNED_WIDTHS = (2, 4, 8, 16, 31, 32, 64, 65, 128)
AMOUNTS = (0, 1, 3, 7, 8, 31, 32, 63, 64, 65, 130)
RESULTS = 14
DEPTH = 4
PROGRAM = """\
#include <core.p4>
#include <v1model.p4>

header operands_t { %(operands)s }
header results_t { %(results)s }
struct headers_t { operands_t operands; results_t results; }
struct metadata_t { %(metadata)s }

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.operands);
        %(load)s
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 1;
        hdr.results.setValid();
        %(statements)s
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.operands);
        packet.emit(hdr.results);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
"""


class Leaf(NamedTuple):
    """A field that expressions can read."""

    text: str
    width: int
    signed: bool


class RandomProgram:
    """One program, made from a seed, and frames for it."""

    def __init__(self, seed: int) -> None:
        self._chance = chance = random.Random(seed)
        plain = {f"a{i}": width for i, width in enumerate(chance.choices(WIDTHS, k=9))}
        signed = {f"s{i}": chance.choice(SIGNED_WIDTHS) for i in range(4)}
        self._leaves = [Leaf(f"hdr.operands.{name}", width, False) for name, width in plain.items()]
        self._leaves += [Leaf(f"meta.{name}", width, True) for name, width in signed.items()]
        self._operands = _padded({**plain, **signed})
        results: dict[str, int] = {}
        statements: list[str] = []
        for number in range(RESULTS):
            results[f"r{number}"] = chance.choice(WIDTHS)
            statements += self._statements(f"r{number}", results[f"r{number}"])
        self.source = PROGRAM % {
            "operands": _declared(self._operands, "bit"),
            "results": _declared(_padded(results), "bit"),
            "metadata": _declared(signed, "int"),
            "load": " ".join(f"meta.{name} = (int<{w}>)hdr.operands.{name};" for name, w in signed.items()),
            "statements": "\n        ".join(statements),
        }

    def frames(self, count: int) -> list[bytes]:
        """Return packets whose fields are often at the ends of their ranges."""
        result = []
        for _ in range(count):
            value = 0
            for width in self._operands.values():
                top = 1 << width - 1
                some = [self._chance.getrandbits(width) for _ in range(3)]
                value = value << width | self._chance.choice([0, 1, 2 * top - 1, top, top - 1, *some]) % (
                    2 * top
                )
            result.append(value.to_bytes(sum(self._operands.values()) // 8, "big"))
        return result

    def _statements(self, name: str, width: int) -> list[str]:
        chance = self._chance
        signed = width > 1 and chance.random() < 0.3
        value, lines = self._number(width, signed, DEPTH), list[str]()
        if chance.random() < 0.3:
            lines.append(f"{_type(width, signed)} {name} = {value};")
            value = name
            lines.append(f"if ({self._truth(2)}) {{ {name} = {self._number(width, signed, 2)}; }}")
        lines.append(f"hdr.results.{name} = {_cast(value, width, signed, width, False)};")
        if width > 4 and chance.random() < 0.2:
            low = chance.randrange(width - 2)
            high = chance.randrange(low, width)
            part = self._number(high - low + 1, False, 2)
            lines.append(f"hdr.results.{name}[{high}:{low}] = {part};")
        return lines

    def _constant(self, width: int, signed: bool) -> str:
        value = self._chance.choice(
            [0, 1, 2, (1 << width) - 1, 1 << width - 1, self._chance.getrandbits(width)]
        )
        value %= 1 << (width - 1 if signed else width)
        if signed and self._chance.random() < 0.5:
            return f"(-{width}s{value})"
        return f"{width}{'s' if signed else 'w'}{value}"

    def _leaf(self, width: int, signed: bool) -> str:
        if self._chance.random() < 0.2:
            return self._constant(width, signed)
        leaf = self._chance.choice(self._leaves)
        return _cast(leaf.text, leaf.width, leaf.signed, width, signed)

    def _truth(self, depth: int) -> str:
        chance = self._chance
        if depth <= 0 or chance.random() < 0.5:
            width = chance.choice(WIDTHS)
            signed = width > 1 and chance.random() < 0.4
            left, right = (self._number(width, signed, depth - 1) for _ in range(2))
            return f"({left} {chance.choice(['==', '!=', '<', '<=', '>', '>='])} {right})"
        one, other = self._truth(depth - 1), self._truth(depth - 1)
        return chance.choice([f"({one} && {other})", f"({one} || {other})", f"(!{one})"])

    def _number(self, width: int, signed: bool, depth: int) -> str:
        chance = self._chance
        if depth <= 0 or chance.random() < 0.12:
            return self._leaf(width, signed)

        def inner() -> str:
            return self._number(width, signed, depth - 1)

        kind = chance.randrange(10)
        if kind < 4:
            return f"({inner()} {chance.choice(['+', '-', '&', '|', '^', '|+|', '|-|'])} {inner()})"
        if kind == 4:
            return f"({inner()} {'*' if width <= 128 else '+'} {inner()})"
        if kind == 5:
            return f"({chance.choice('~-')}{inner()})"
        if kind == 6:
            short = self._number(chance.choice([1, 3, 4]), False, depth - 1)
            amount = chance.choice([f"8w{chance.choice(AMOUNTS)}", short])
            return f"({inner()} {chance.choice(['<<', '>>'])} {amount})"
        if kind == 7:
            return f"({self._truth(depth - 1)} ? {inner()} : {inner()})"
        if kind == 8:
            other = chance.choice(WIDTHS)
            other_signed = other > 1 and chance.random() < 0.3
            return _cast(self._number(other, other_signed, depth - 1), other, other_signed, width, signed)
        return self._bits(width, depth) if not signed else self._leaf(width, signed)

    def _bits(self, width: int, depth: int) -> str:
        """Return a concatenation or a slice."""
        chance = self._chance
        wide = [leaf for leaf in self._leaves if not leaf.signed and leaf.width >= width]
        if wide and chance.random() < 0.5:
            leaf = chance.choice(wide)
            low = chance.randrange(leaf.width - width + 1)
            return f"{leaf.text}[{low + width - 1}:{low}]"
        if width < 2:
            return self._leaf(width, False)
        upper = chance.randrange(1, width)
        return f"({self._number(upper, False, depth - 1)} ++ {self._number(width - upper, False, depth - 1)})"


def _type(width: int, signed: bool) -> str:
    return f"{'int' if signed else 'bit'}<{width}>"


def _cast(text: str, width: int, signed: bool, to_width: int, to_signed: bool) -> str:
    """Return a cast: P4 changes width or sign, not both at once."""
    if signed and not to_signed:
        text, signed = f"(({_type(width, False)}){text})", False
    if width != to_width:
        text = f"(({_type(to_width, signed)}){text})"
    return text if signed == to_signed else f"(({_type(to_width, to_signed)}){text})"


def _padded(fields: dict[str, int]) -> dict[str, int]:
    rest = sum(fields.values()) % 8
    return {**fields, "padding": 8 - rest} if rest else fields


def _declared(fields: dict[str, int], kind: str) -> str:
    return " ".join(f"{kind}<{width}> {name};" for name, width in fields.items())
