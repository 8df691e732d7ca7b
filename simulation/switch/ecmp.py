"""Which of several ways a packet takes: a CRC-16 (ARC) over its addresses, protocol and ports."""

from __future__ import annotations

PROTOCOLS_WITH_PORTS = (6, 17)
PLAIN = 0x45  # IPv4 without options


def choice(frame: bytes, ways: int) -> int:
    """0..ways-1, the same for all packets of a connection."""
    protocol = frame[23]
    fragment = (frame[20] & 0x3F) | frame[21]
    ports = frame[34:38] if protocol in PROTOCOLS_WITH_PORTS and not fragment and frame[14] == PLAIN else b""
    return crc16(frame[26:34] + bytes([protocol]) + ports.ljust(4, b"\0")) % ways


def crc16(data: bytes) -> int:
    """Polynomial 0x8005, reflected, no initial or final inversion."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
