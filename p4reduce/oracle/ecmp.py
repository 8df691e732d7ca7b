"""The choice of one next hop among several: a CRC-16 (ARC) over addresses, protocol and ports."""

from __future__ import annotations

from functools import lru_cache

PORT_HEADERS = {6: 4, 17: 8}  # bytes that the program reads of the header that has ports
PLAIN = 0x45  # IPv4 without options


def choice(frame: bytes, ways: int) -> int:
    """Return 0..ways-1, the same for all packets of a connection."""
    protocol = frame[23]
    fragment = (frame[20] & 0x3F) | frame[21]
    header = PORT_HEADERS.get(protocol, 0) if not fragment and frame[14] == PLAIN else 0
    ports = frame[34:38] if header and len(frame) >= 34 + header else b""
    return crc16(frame[26:34] + bytes([protocol]) + ports.ljust(4, b"\0")) % ways


@lru_cache(1 << 12)
def crc16(data: bytes) -> int:
    """Return the CRC-16 with polynomial 0x8005, reflected, no initial or final inversion."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
