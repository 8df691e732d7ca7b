"""The invariant CRC of RoCE v2 (InfiniBand spec vol. 1, annex A17.3.3): the reference, through zlib.

CRC-32 over 64 one-bits and the packet from the IP header to the end of the payload, with every field that a
router may change as ones: TOS, TTL, the checksums of IP and UDP, and the first reserved byte of the BTH.
It is sent least significant byte first.
"""

from __future__ import annotations

import zlib
from typing import Final

ICRC_SIZE: Final = 4

_OF_LINK_LAYER: Final = zlib.crc32(b"\xff" * 8)
# Offsets from the start of a 20-byte IPv4 header: TOS, TTL, IP checksum, UDP checksum, BTH resv8a.
_MASKED: Final = (1, 8, 10, 11, 26, 27, 32)
_MASKED_END: Final = 33
_ONES: Final = int.from_bytes(bytes(0xFF * (offset in _MASKED) for offset in range(_MASKED_END)), "big")


def icrc(ip_packet: bytes) -> bytes:
    """Return the four ICRC bytes, in wire order, of an IPv4 packet that ends before its ICRC."""
    head = int.from_bytes(ip_packet[:_MASKED_END], "big") | _ONES
    crc = zlib.crc32(head.to_bytes(_MASKED_END, "big"), _OF_LINK_LAYER)
    return zlib.crc32(ip_packet[_MASKED_END:], crc).to_bytes(ICRC_SIZE, "little")
