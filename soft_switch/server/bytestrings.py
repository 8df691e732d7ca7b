"""Integers as P4Runtime byte strings: big endian, shortest form sent, any leading zeros taken.

Source: P4Runtime specification, section "Bytestrings".
"""

from __future__ import annotations

from soft_switch.server.errors import out_of_range


def encode(value: int) -> bytes:
    """Return the canonical (shortest) byte string of an unsigned value; zero is one zero byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str) -> int:
    """Return the value of a `bit<width>` byte string; `what` names it in the OUT_OF_RANGE error.

    A `bit<0>` may have no bytes, as in simple_switch_grpc.
    """
    value = int.from_bytes(data, "big")
    if (data or not width) and value >> width == 0:
        return value
    if not data:
        raise out_of_range(f"{what} is an empty byte string: give at least one byte")
    raise out_of_range(f"{what} is {value:#x}, which does not fit within {width} bits")


def encode_signed(raw: int, width: int) -> bytes:
    """Return the canonical two's-complement byte string of an `int<width>`, given as its `width` raw bits."""
    value = raw - (1 << width) if raw >> (width - 1) else raw
    magnitude = ~value if value < 0 else value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def decode_signed(data: bytes, width: int, what: str) -> int:
    """Return the `width` raw bits of an `int<width>` byte string; `what` names it in OUT_OF_RANGE errors."""
    if not data:
        raise out_of_range(f"{what} is an empty byte string: give at least one byte")
    value = int.from_bytes(data, "big", signed=True)
    limit = 1 << (width - 1)
    if not -limit <= value < limit:
        raise out_of_range(f"{what} is {value}, which does not fit within int<{width}>")
    return value & ((1 << width) - 1)
