"""What a controller may wrap a program into.

Older clients send a `p4.tmp.P4DeviceConfig`, which simple_switch_grpc calls deprecated and takes:

    message P4DeviceConfig { bool reassign = 1; Extras extras = 2; bytes device_data = 3; }
"""

from __future__ import annotations

DEVICE_DATA = 3
VARINT, BYTES = 0, 2  # wire types


def unwrap(data: bytes) -> bytes:
    """The program in a `P4DeviceConfig`; anything else as it is."""
    if data.lstrip()[:1] == b"{":
        return data
    at, found = 0, None
    try:
        while at < len(data):
            key, at = _varint(data, at)
            number, at = _varint(data, at)
            if key & 7 == BYTES:
                if at + number > len(data):
                    return data
                if key >> 3 == DEVICE_DATA:
                    found = data[at : at + number]
                at += number
            elif key & 7 != VARINT:
                return data
    except IndexError:
        return data
    return data if found is None else found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where the next byte is; IndexError: cut off."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
