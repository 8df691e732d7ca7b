"""Headers as bits, without any code of the switch: fields in order, most significant bit first."""

from __future__ import annotations

from collections.abc import Mapping

Header = Mapping[str, int]  # name -> width, in order


def size(header: Header) -> int:
    """Return how many bytes a header has."""
    bits = sum(header.values())
    assert bits % 8 == 0
    return bits // 8


def pack(header: Header, values: Mapping[str, int]) -> bytes:
    """Return a header with these values, 0 where there is none; negative values in two's complement."""
    assert values.keys() <= header.keys()
    number = 0
    for name, width in header.items():
        number = number << width | values.get(name, 0) & (1 << width) - 1
    return number.to_bytes(size(header), "big")


def unpack(header: Header, data: bytes) -> dict[str, int]:
    """Return the values of a header's fields, as unsigned numbers."""
    number, left = int.from_bytes(data[: size(header)], "big"), 8 * size(header)
    values = {}
    for name, width in header.items():
        left -= width
        values[name] = number >> left & (1 << width) - 1
    return values


def signed(value: int, width: int) -> int:
    """Return the low bits as a number in two's complement."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value
