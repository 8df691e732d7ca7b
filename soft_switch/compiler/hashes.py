"""Hashes and checksums: their inputs as bytes, then the algorithm (native/hash.h)."""

from __future__ import annotations

from collections.abc import Sequence

from soft_switch.bmv2.program import Calculation
from soft_switch.bmv2.syntax import VALID, Const, Field, Header
from soft_switch.compiler.code import Code, comment
from soft_switch.compiler.layout import HeaderPlace, Layout
from soft_switch.compiler.packing import Bits, constant_bits, write_bytes
from soft_switch.errors import UnsupportedConstruct

# BMv2's algorithms and the bits of their results; the _custom ones have these parameters until changed.
ALGORITHMS = {
    "crc32": ("Crc32", 32),
    "crc32_custom": ("Crc32", 32),
    "crc16": ("Crc16", 16),
    "crc16_custom": ("Crc16", 16),
    "crcCCITT": ("CrcCcitt", 16),
    "csum16": ("Csum16", 16),
    "cksum16": ("Csum16", 16),
    "xor16": ("Xor16", 16),
    "identity": ("Identity", 64),
}


class Calculations:
    """The calculations of a program as functions `calcN(p, c)` that return uint64_t."""

    def __init__(self, layout: Layout, calculations: Sequence[Calculation]) -> None:
        self._layout = layout
        self._numbers = {item.name: number for number, item in enumerate(calculations)}
        self._items = list(calculations)
        for item in self._items:
            if item.algorithm not in ALGORITHMS:
                raise UnsupportedConstruct(f"hash algorithm {item.algorithm}", item.source)

    def call(self, name: str) -> str:
        """Return C++ that computes a calculation."""
        return f"calc{self._numbers[name]}(p, c)"

    def bits(self, name: str) -> int:
        """Return the bits of a calculation's result."""
        return ALGORITHMS[self._items[self._numbers[name]].algorithm][1]

    def declare(self, out: Code) -> None:
        """Write the functions."""
        for number, item in enumerate(self._items):
            out(comment(f"{item.name}: {item.algorithm}"))
            with out.block(f"static uint64_t calc{number}(const Phv& p, const Context& c)"):
                self._body(out, item)

    def _body(self, out: Code, item: Calculation) -> None:
        runs = self._runs(item)
        total = sum(bits.width for _, run in runs for bits in run)
        out(f"{ALGORITHMS[item.algorithm][0]} state;\nuint8_t buffer[{max(1, -(-total // 8))}];")
        if all(sum(bits.width for bits in run) % 8 == 0 for _, whole in runs for run in _split(whole)):
            self._whole_bytes(out, runs)
        else:
            self._bit_by_bit(out, runs)
        if any(part.kind == "payload" for part in item.inputs):
            out("state.add(c.payload, c.payload_length);")
        out("(void)p, (void)c;\nreturn state.value();")

    def _whole_bytes(self, out: Code, runs: Sequence[tuple[str | None, list[Bits]]]) -> None:
        out("uint8_t* q = buffer;")
        for valid, run in runs:
            with out.block("" if valid is None else f"if ({valid})"):
                for part in _split(run):
                    if part[0].varbit:
                        text = part[0].text
                        out(f"std::memcpy(q, {text}.bytes, {text}.size);\nq += {text}.size;")
                    else:
                        out(f"q += {write_bytes(out, 'q', part)};")
        out("state.add(buffer, size_t(q - buffer));")

    def _bit_by_bit(self, out: Code, runs: Sequence[tuple[str | None, list[Bits]]]) -> None:
        """Write inputs bit by bit: a header that is not valid shifts what follows by less than a byte."""
        out("unsigned offset = 0;\nstd::memset(buffer, 0, sizeof buffer);")
        for valid, run in runs:
            with out.block("" if valid is None else f"if ({valid})"):
                for bits in run:
                    if bits.varbit:
                        out(f"or_varbit(buffer, offset, {bits.text});\noffset += 8 * {bits.text}.size;")
                        continue
                    suffix = "_wide" if bits.width > 64 else ""
                    out(f"or_bits{suffix}<{bits.width}>(buffer, offset, {bits.text});")
                    out(f"offset += {bits.width};")
        out("state.add(buffer, (offset + 7) / 8);")

    def _runs(self, item: Calculation) -> list[tuple[str | None, list[Bits]]]:
        """Return runs of inputs that follow each other and are there under the same condition."""
        runs: list[tuple[str | None, list[Bits]]] = []

        def add(valid: str | None, bits: Sequence[Bits]) -> None:
            if runs and runs[-1][0] == valid:
                runs[-1][1].extend(bits)
            else:
                runs.append((valid, list(bits)))

        for part in item.inputs:
            if isinstance(part.value, Const):
                add(None, [constant_bits(part.value.value, part.width)])
            elif isinstance(part.value, Header):
                header = self._layout.headers[part.value.name]
                add(header.valid, [self._bits(header, field.name) for field in header.type.fields])
            elif isinstance(part.value, Field):
                if not isinstance(part.value.header, Header):
                    raise UnsupportedConstruct("a hash over a stack element at a computed index", item.source)
                header = self._layout.headers[part.value.header.name]
                add(
                    None if part.value.field == VALID else header.valid,
                    [self._bits(header, part.value.field)],
                )
        return runs

    def _bits(self, header: HeaderPlace, name: str) -> Bits:
        place = self._layout.field(header, name)
        if place.varbit:
            return Bits(place.text, place.width, True)
        return Bits(place.text if place.width > 64 else f"uint64_t({place.text})", place.width)


def _split(run: Sequence[Bits]) -> list[list[Bits]]:
    """Split a run: each varbit field by itself, the fields between them together."""
    parts: list[list[Bits]] = []
    for bits in run:
        if parts and not bits.varbit and not parts[-1][-1].varbit:
            parts[-1].append(bits)
        else:
            parts.append([bits])
    return parts
