"""Frames to aim faults at, made by hand from docs/protocol.md and the InfiniBand specification."""

from __future__ import annotations

import struct

FIRST, MIDDLE, LAST, ONLY, ACKNOWLEDGE = 0x00, 0x01, 0x02, 0x04, 0x11
ACK, RNR, NAK = 0x1F, 0x2C, 0x60
PARTIAL, TREE_RESULT, ASK, ECHO = 1, 2, 3, 4
ETHERNET = bytes(12) + b"\x08\x00"


def ipv4(payload: bytes, *, protocol: int, source: int, destination: int, options: bytes = b"") -> bytes:
    length = 20 + len(options)
    head = struct.pack(
        ">BBHHHBBHII",
        *(0x40 | length // 4, 0, length + len(payload), 0, 0x4000, 64, protocol, 0, source, destination),
    )
    return ETHERNET + head + options + payload


def udp(payload: bytes, *, port: int, source_port: int = 0xC001) -> bytes:
    return struct.pack(">HHHH", source_port, port, 8 + len(payload), 0) + payload


def header(message: int, *, packets: int) -> bytes:
    """Return the part of an aggregation header that says which message it is."""
    return struct.pack(">IBBHIIBBBB", 0x50345244, 1, 0, 7, 1, message, 0, 1, 1, packets) + bytes(236)


def roce(
    opcode: int,
    psn: int,
    body: bytes = b"",
    *,
    qpn: int = 0x200,
    source: int = 1,
    destination: int = 2,
    source_port: int = 0xC001,
    summed: bool = False,
    options: bytes = b"",
) -> bytes:
    bth = bytes([opcode, 0, 0xFF, 0xFF, 0]) + qpn.to_bytes(3, "big")
    bth += bytes([0x40 if summed else 0]) + (psn & 0xFFFFFF).to_bytes(3, "big")
    packet = udp(bth + body + bytes(4), port=4791, source_port=source_port)
    return ipv4(packet, protocol=17, source=source, destination=destination, options=options)


def message(
    number: int,
    psn: int,
    *,
    packets: int,
    source: int = 1,
    destination: int = 2,
    source_port: int = 0xC001,
) -> list[bytes]:
    """Return the packets of a message, whose first PSN is `psn`."""

    def send(opcode: int, index: int, body: bytes) -> bytes:
        place = psn + index
        return roce(opcode, place, body, source=source, destination=destination, source_port=source_port)

    if packets == 1:
        return [send(ONLY, 0, header(number, packets=1))]
    middles = [send(MIDDLE, i, bytes(256)) for i in range(1, packets - 1)]
    return [send(FIRST, 0, header(number, packets=packets)), *middles, send(LAST, packets - 1, bytes(256))]


def acknowledge(syndrome: int, psn: int, *, source: int = 2, destination: int = 1, qpn: int = 0x100) -> bytes:
    aeth = bytes([syndrome]) + bytes(3)
    return roce(ACKNOWLEDGE, psn, aeth, qpn=qpn, source=source, destination=destination)


def tree(kind: int, message: int) -> bytes:
    """Return a packet between leaf and spine."""
    head = bytes([1, kind, 0x01, 1, 0, 0, 0, 0]) + struct.pack(">II", 1, message) + bytes(4)
    return ipv4(udp(head + bytes(4), port=53300), protocol=17, source=3, destination=4)


def tcp() -> bytes:
    return ipv4(bytes(20), protocol=6, source=1, destination=2)
