"""Packing of fields into bytes and back, with offsets known when the code is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from soft_switch.bmv2.program import FieldType, HeaderType
from soft_switch.compiler.code import Code, word
from soft_switch.compiler.layout import Layout, field_offsets

WORD_BITS = 64


@dataclass(frozen=True)
class Bits:
    """A value to write: C++ text of type uint64_t (width <= 64), Wide (cut to its width) or Varbit."""

    text: str
    width: int
    varbit: bool = False


def write_bytes(out: Code, base: str, items: Sequence[Bits]) -> int:
    """Write items one after the other; return the bytes that they take. Their widths sum to whole bytes."""
    offset, group = 0, list[Bits]()
    for item in items:
        if item.width == 0:
            continue
        group.append(item)
        size = sum(member.width for member in group)
        if size % 8 == 0:
            _write_group(out, base, offset // 8, group, size)
            offset += size
            group = []
    assert not group, "the widths do not sum to whole bytes"
    return offset // 8


def _write_group(out: Code, base: str, at: int, group: Sequence[Bits], size: int) -> None:
    place = f"{base} + {at}" if at else base
    if len(group) == 1 and size > WORD_BITS:
        out(f"store_be_wide<{size // 8}>({place}, {group[0].text});")
    elif size <= WORD_BITS:
        below, parts = size, []
        for item in group:
            below -= item.width
            parts.append(f"{item.text} << {below}" if below else item.text)
        out(f"store_be<{size // 8}>({place}, {' | '.join(parts)});")
    else:
        out(f"std::memset({place}, 0, {size // 8});")
        offset = 0
        for item in group:
            suffix = "_wide" if item.width > WORD_BITS else ""
            out(f"or_bits{suffix}<{item.width}>({place}, {offset}, {item.text});")
            offset += item.width


def constant_bits(value: int, width: int) -> Bits:
    """Return a constant as something to write."""
    value &= (1 << width) - 1
    if width <= WORD_BITS:
        return Bits(f"uint64_t({word(value)})", width)
    count = -(-width // WORD_BITS)
    parts = ", ".join(word(value >> (WORD_BITS * i) & (1 << WORD_BITS) - 1) for i in range(count))
    return Bits(f"Wide<{count}>{{{{{parts}}}}}", width)


def declare_codecs(out: Code, layout: Layout, header_type: HeaderType) -> None:
    """Write the functions that read a header from a packet and write it."""
    name = layout.type_name(header_type)
    offsets = field_offsets(header_type)
    if header_type.varbit is not None:
        _declare_varbit_codecs(out, name, offsets)
        return
    with out.block(f"static P4_INLINE void extract(const uint8_t* q, {name}& h)"):
        for index, (offset, field) in enumerate(offsets):
            at = f"q + {offset // 8}"
            if field.width > WORD_BITS:
                out(f"load_bits_wide<{offset % 8}, {field.width}>(h.f{index}, {at});")
            else:
                out(f"h.f{index} = load_bits<{offset % 8}, {field.width}>({at});")
        if not offsets:
            out("(void)q, (void)h;")
    items = [
        Bits(f"h.f{index}" if field.width > WORD_BITS else f"uint64_t(h.f{index})", field.width)
        for index, (_, field) in enumerate(offsets)
    ]
    with out.block(f"static P4_INLINE uint8_t* emit(uint8_t* q, const {name}& h)"):
        size = write_bytes(out, "q", items)
        out("(void)h;" if not items else "")
        out(f"return q + {size};")


def _declare_varbit_codecs(out: Code, name: str, offsets: Sequence[tuple[int, FieldType]]) -> None:
    """Write the same for a header with a varbit field: the fields behind it move by whole bytes."""
    with out.block(f"static P4_INLINE void extract(const uint8_t* q, {name}& h, uint32_t size)"):
        for index, (offset, field) in enumerate(offsets):
            at = f"q + {offset // 8}"
            if field.varbit:
                out(f"load_varbit<{offset % 8}>(h.f{index}, {at}, size);\nq += size;")
            elif field.width > WORD_BITS:
                out(f"load_bits_wide<{offset % 8}, {field.width}>(h.f{index}, {at});")
            else:
                out(f"h.f{index} = load_bits<{offset % 8}, {field.width}>({at});")
    total = sum(field.width for _, field in offsets if not field.varbit) // 8
    with out.block(f"static inline uint8_t* emit(uint8_t* q, const {name}& h)"):
        varbit = next(f"h.f{index}" for index, (_, field) in enumerate(offsets) if field.varbit)
        out(f"std::memset(q, 0, {total} + {varbit}.size);")
        for index, (offset, field) in enumerate(offsets):
            if field.varbit:
                out(f"or_varbit(q, {offset}, h.f{index});\nq += h.f{index}.size;")
            else:
                suffix = "_wide" if field.width > WORD_BITS else ""
                out(f"or_bits{suffix}<{field.width}>(q, {offset}, h.f{index});")
        out(f"return q + {total};")
