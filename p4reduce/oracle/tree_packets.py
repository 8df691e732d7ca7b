"""Packets between leaf and spine: Ethernet / IPv4 / UDP 53300 / tree header / 0..16 chunks / ICRC.

    | 0 version | 1 kind | 2 opcode | 3 op | 4 index | 5 flags | 6 reserved (2) |
    | 8 generation (4) | 12 message (4) | 16 reserved (1) | 17 psn (3) |

The ICRC is RoCE v2's, with the first eight bytes of this header in place of the eight 0xff and the other
twelve in place of the BTH.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import field
from enum import IntEnum, IntFlag
from ipaddress import IPv4Network
from operator import attrgetter
from typing import Final

from host_agent.wire.aggregation import CHUNK_BYTES, MAX_CHUNKS
from host_agent.wire.headers import PROTOCOL_UDP, Bth, Ethernet, IPv4, MalformedPacket, RocePacket, Udp
from host_agent.wire.icrc import ICRC_SIZE
from host_agent.wire.values import value_class

TREE_PORT: Final = 53300
TREE_VERSION: Final = 1
LINK_LOCAL: Final = IPv4Network("169.254.0.0/16")

_LINK_LOCAL: Final = LINK_LOCAL.network_address.packed[: LINK_LOCAL.prefixlen // 8]
_PORT: Final = TREE_PORT.to_bytes(2, "big")
_FIELDS = ("version", "kind", "opcode", "op", "index", "flags", "reserved", "generation", "message")
_fields_of = attrgetter(*_FIELDS)
_HEADER = struct.Struct(">BBBBBBHIII")  # these, and at the end reserved 8, PSN 24
_MASKED: Final = (1, 8, 10, 11, 26, 27)  # of IP and UDP: TOS, TTL, both checksums
_NETWORK: Final = IPv4.SIZE + Udp.SIZE
_START: Final = Ethernet.SIZE + _NETWORK
_ONES: Final = int.from_bytes(bytes(0xFF * (offset in _MASKED) for offset in range(_NETWORK)), "big")


class Kind(IntEnum):
    """The kind of a tree packet."""

    PARTIAL = 1
    RESULT = 2
    ASK = 3
    ECHO_REQUEST = 4
    ECHO_REPLY = 5


class TreeFlags(IntFlag):
    """The flags of a tree packet."""

    NONE = 0
    MISMATCH = 2
    PSN_VALID = 4


@value_class(frozen=True, kw_only=True)
class TreePacket:
    """One frame between leaf and spine. `message` of an echo: its nonce. `build()` makes lengths and ICRC."""

    ethernet: Ethernet
    ip: IPv4
    udp: Udp
    version: int = TREE_VERSION
    kind: int
    opcode: int = 0
    op: int = 0
    index: int = 0
    flags: int = 0
    reserved: int = 0
    generation: int = 0
    message: int = 0
    reserved_too: int = 0
    psn: int = 0
    payload: bytes = b""
    is_cut: bool = False
    icrc: bytes = field(default=b"", compare=False)

    def header(self) -> bytes:
        """Return the 20 bytes of the tree header."""
        return _HEADER.pack(*_fields_of(self), self.reserved_too << 24 | self.psn)

    def _network(self) -> bytes:
        length = Udp.SIZE + _HEADER.size + len(self.payload) + ICRC_SIZE
        return self.ip.pack(IPv4.SIZE + length) + self.udp.pack(length)

    def build(self) -> bytes:
        """Return the frame."""
        network, header = self._network(), self.header()
        check = tree_icrc(network, header, self.payload)
        return self.ethernet.pack() + network + header + self.payload + check

    def icrc_ok(self) -> bool:
        """Return whether the ICRC that came with the packet is right."""
        return not self.is_cut and tree_icrc(self._network(), self.header(), self.payload) == self.icrc

    def as_host_packet(self) -> RocePacket:
        """Return the host's packet that this one stands for.

        Its addresses are those of this link; its QP and PSN are 0.
        """
        udp, bth = Udp(length=0, src_port=self.udp.src_port), Bth(opcode=self.opcode, dest_qp=0, psn=0)
        return RocePacket(self.ethernet, self.ip, udp, bth, self.payload)

    @classmethod
    def parse(cls, frame: bytes) -> TreePacket | None:
        """Parse a frame; return None if it is no tree packet.

        A frame whose end is missing is parsed, with `is_cut` and a wrong ICRC.
        """
        if frame[36:38] != _PORT or frame[12:14] != b"\x08\0" or frame[30:32] != _LINK_LOCAL:  # most frames
            return None
        try:
            ethernet, ip, udp = Ethernet.unpack(frame), IPv4.unpack(frame[14:34]), Udp.unpack(frame[34:42])
        except MalformedPacket:
            return None
        chunks, rest = divmod(udp.length - Udp.SIZE - _HEADER.size - ICRC_SIZE, CHUNK_BYTES)
        if ip.protocol != PROTOCOL_UDP or ip.flags & 0x1 or ip.fragment_offset:
            return None
        if rest or not 0 <= chunks <= MAX_CHUNKS or ip.total_length != IPv4.SIZE + udp.length:
            return None
        start, end = _START + _HEADER.size, Ethernet.SIZE + ip.total_length
        if len(frame) < start:
            return None
        *fields, last = _HEADER.unpack_from(frame, _START)
        return cls(
            ethernet=ethernet,
            ip=ip,
            udp=udp,
            reserved_too=last >> 24,
            psn=last & 0xFFFFFF,
            payload=bytes(frame[start:end][:-ICRC_SIZE]),
            is_cut=len(frame) < end,
            icrc=bytes(frame[_START:end][-ICRC_SIZE:]),
            **dict(zip(_FIELDS, fields, strict=True)),
        )


def tree_icrc(network: bytes, header: bytes, payload: bytes) -> bytes:
    """Return the four ICRC bytes, in wire order; `network`: IPv4 and UDP header."""
    masked = (int.from_bytes(network, "big") | _ONES).to_bytes(_NETWORK, "big")
    crc = zlib.crc32(payload, zlib.crc32(header[:8] + masked + header[8:]))
    return crc.to_bytes(ICRC_SIZE, "little")
