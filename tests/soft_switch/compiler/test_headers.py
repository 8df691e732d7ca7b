"""Header unions, stacks of them and varbit fields: what BMv2 makes of the same frames."""

from __future__ import annotations

import pytest

from soft_switch.bmv2.reader import read_program
from soft_switch.compiler import compile_program
from soft_switch.dataplane import DataPlane
from soft_switch.errors import UnsupportedConstruct
from tests.soft_switch.bits import pack
from tests.soft_switch.bmv2_json import assign, call, const, field, operation, program
from tests.soft_switch.conftest import PlaneFactory

# Frame, and what simple_switch sends for it (programs/headers.p4): a report of 8 bytes (error, flags, sum,
# packet length), then the headers.
FRAMES = [
    # A union: one member, the other in its place, none.
    ("", "0100000000000008"),
    ("01", "010000000000000901"),
    ("0100", "010000000000000a0100"),
    ("010000", "000300000000000b010000"),
    ("010007aa", "000300000000000e01001234aa"),
    ("010008", "000300000000000a0100"),
    ("010009bb", "000300000000000c010009bb"),
    ("020001", "010000000000000b020001"),
    ("02001234ff", "000500000000000d02001234ff"),
    ("0200beef", "000500000000000d020055beef"),
    # A stack of unions.
    ("030000", "000000000000000b030000"),
    ("0300010502", "000800000000000d0300010502"),
    ("03000105021234010600", "000800000000001203000105021234010600"),
    ("0300010502123401060204", "00080000000000130300010502123401060204"),
    ("0300010501060107010800ff", "00080000000000140300010501060107010800ff"),
    # A varbit field four bits into its header: empty, short, as long as it may be, and what is wrong.
    ("04000f", "0000ecff0000000b04000f"),
    ("040800ab", "0000fb4c0000000c040800ab"),
    ("04080123ee", "0000fad40000000d04080123ee"),
    ("042012345678abcdef", "0000e83200000011042012345678abcdef"),
    ("0440123456789abcdef011", "00000866000000130440123456789abcdef011"),
    ("044812345678", "010000000000000e044812345678"),
    ("044812345678901234567890", "0400000000000014044812345678901234567890"),
    ("0407ffff", "060000000000000c0407ffff"),
    # Copied with its header, and into a header without one.
    ("05100123456789", "0020b4cc0000000f0510012345f123456789"),
    ("050012", "0020e8ff0000000b050012e2"),
    ("0608000012", "00c0f9f70000000e06080000000012"),
    ("060812", "010000000000000b060812"),
    ("0600aa", "00404fff0000000c0600aa00"),
    ("0610aabbcc", "000083330000000e0610aabbcc0abbc0"),
]


def test_frames(plane_with: PlaneFactory) -> None:
    plane = plane_with("headers")
    for frame, wanted in FRAMES:
        assert plane.process(0, bytes.fromhex(frame)) == [(1, bytes.fromhex(wanted))], frame


def test_frames_leave_nothing_behind(plane_with: PlaneFactory) -> None:
    """Send each frame after each other one: a longer option or another member must not show."""
    plane = plane_with("headers")
    for first, _ in FRAMES[4::5]:
        for frame, wanted in FRAMES:
            plane.process(0, bytes.fromhex(first))
            assert plane.process(0, bytes.fromhex(frame)) == [(1, bytes.fromhex(wanted))], (first, frame)


def test_a_varbit_field_is_no_number() -> None:
    text = program(
        header={"a": 8},
        metadata={"v": 8},
        actions=[[assign(field("m", "v"), operation("+", field("o", "data"), field("o", "data")))]],
    )
    text = text.replace(
        b'"header_types": [',
        b'"header_types": [{"name": "o_t", "id": 9, "fields": [["data", "*"]], "max_length": 4},',
    ).replace(
        b'"headers": [', b'"headers": [{"name": "o", "id": 9, "header_type": "o_t", "metadata": false},'
    )
    with pytest.raises(UnsupportedConstruct, match="varbit field data in a computation"):
        compile_program(read_program(text))


def test_saturating_fields() -> None:
    header = {"a": 8, "b": 8, "sum": 8, "difference": 8}
    add = assign(field("m", "s"), operation("+", field("h", "a"), field("h", "b")))
    subtract = assign(field("m", "d"), operation("-", field("h", "a"), field("h", "b")))
    out = [assign(field("h", "sum"), field("m", "s")), assign(field("h", "difference"), field("m", "d"))]
    text = program(header=header, metadata={"s": 8, "d": (8, True)}, actions=[[add, subtract, *out]])
    text = text.replace(b'["s", 8, false]', b'["s", 8, false, true]')
    text = text.replace(b'["d", 8, true]', b'["d", 8, true, true]')
    with DataPlane() as plane:
        plane.load(text)
        for a, b in [(200, 100), (3, 4), (0, 255), (255, 0), (255, 255)]:
            values = {"a": a, "b": b, "sum": min(a + b, 255), "difference": max(-128, min(a - b, 127))}
            assert plane.process(0, pack(header, {"a": a, "b": b})) == [(0, pack(header, values))]


def test_the_last_index_of_an_empty_stack() -> None:
    """BMv2 counts in 64 bits without a sign."""
    last = operation("last_stack_index", None, {"type": "header_stack", "value": "s"})
    header = {"r": 32, "greater": 8}
    statements = [
        assign(field("h", "r"), last),
        assign(
            field("h", "greater"),
            operation("b2d", None, operation(">", last, {"type": "hexstr", "value": "0x5"})),
        ),
    ]
    text = program(
        header=header,
        metadata={"v": 8},
        actions=[statements],
        header_stacks=[{"name": "s", "id": 0, "header_type": "h_t", "size": 1, "header_ids": [7]}],
    ).replace(
        b'"headers": [', b'"headers": [{"name": "s[0]", "id": 7, "header_type": "h_t", "metadata": false},'
    )
    with DataPlane() as plane:
        plane.load(text)
        wanted = pack(header, {"r": 0xFFFFFFFF, "greater": 1})
        assert plane.process(0, bytes(5)) == [(0, wanted)]


def test_unknown_parts_of_unions() -> None:
    text = program(
        header={"a": 8},
        metadata={"v": 8},
        actions=[[call("pop", {"type": "header_union_stack", "value": "u"}, field("h", "a"))]],
    )
    with pytest.raises(UnsupportedConstruct, match="stack of header unions u"):
        compile_program(read_program(text))


@pytest.mark.parametrize("size", [8, 80])
def test_fields_of_no_bits_hold_nothing(size: int) -> None:
    """bit<0>, also behind the last byte of a packet: it is 0 whatever it is assigned, and takes no room."""
    none, m, value = field("h", "none"), field("m", "none"), field("h", "value")
    text = program(
        header={"none": 0, "op": 8, "value": size, "last": 0},
        metadata={"none": 0, "x": 8},
        actions=[
            [assign(none, const(5)), assign(m, none), assign(field("h", "last"), operation("+", m, value))],
            [assign(value, operation("+", value, operation("+", m, field("h", "last"))))],
            [assign(field("standard_metadata", "egress_spec"), const(2))],
        ],
    )
    frame = bytes([1, *range(3, 3 + size // 8)])
    with DataPlane() as plane:
        plane.load(text)
        assert plane.process(1, frame) == [(2, frame)]
        assert plane.process(1, frame[:-1]) == [(2, frame[:-1])]  # too short for the header
