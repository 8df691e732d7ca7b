"""Ethernet, IPv4, UDP, BTH and AETH as values, `pack()` and `unpack()`; and a whole RoCE v2 packet.

Field names follow the InfiniBand spec vol. 1, 9.2 (BTH), 9.3.5 (AETH) and annex A17 (RoCE v2).
"""

from __future__ import annotations

import struct
from dataclasses import field
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Final

from host_agent.wire.icrc import ICRC_SIZE, icrc
from host_agent.wire.values import value_class

ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_ARP: Final = 0x0806
PROTOCOL_UDP: Final = 17
ROCE_V2_PORT: Final = 4791
DEFAULT_PKEY: Final = 0xFFFF
DEFAULT_UDP_SOURCE_PORT: Final = 0xC000
DONT_FRAGMENT: Final = 0x2


class MalformedPacket(ValueError):
    """The bytes are cut short, or a length or a version in them is wrong."""


class Opcode(IntEnum):
    """BTH opcodes of the reliable connection service that we use."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_ONLY = 0x04
    ACKNOWLEDGE = 0x11


# AETH syndromes (9.7.5.2): 0b000xxxxx ACK with credits, 0b001xxxxx RNR NAK with a timer, 0b011xxxxx NAK with
# a code.
ACK_SYNDROME: Final = 0x1F  # credits "invalid": we use none
RNR_NAK_SYNDROME: Final = 0x20
NAK_SEQUENCE_ERROR: Final = 0x60


def parse_mac(text: str) -> bytes:
    """Return the six bytes of "02:00:0a:4d:00:01"."""
    parts = text.split(":")
    if len(parts) != 6:
        raise ValueError(f"{text!r} is not a MAC address such as 02:00:00:00:00:01")
    try:
        return bytes(int(part, 16) for part in parts)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a MAC address such as 02:00:00:00:00:01") from error


def _cut_short(data: bytes, size: int, what: str) -> MalformedPacket:
    return MalformedPacket(f"{what} needs {size} bytes, but only {len(data)} are left")


@value_class(frozen=True)
class Ethernet:
    """Ethernet II, no VLAN tag."""

    dst: bytes
    src: bytes
    ether_type: int = ETHERTYPE_IPV4

    SIZE = 14

    def pack(self) -> bytes:
        """Return 14 bytes."""
        return self.dst + self.src + self.ether_type.to_bytes(2, "big")

    @classmethod
    def unpack(cls, data: bytes) -> Ethernet:
        """Read from the start of a frame."""
        if len(data) < cls.SIZE:
            raise _cut_short(data, cls.SIZE, "an Ethernet header")
        return cls(dst=bytes(data[0:6]), src=bytes(data[6:12]), ether_type=int.from_bytes(data[12:14], "big"))


def ipv4_checksum(header: bytes) -> int:
    """Return the internet checksum (RFC 1071) over a header of whole words whose checksum field is zero.

    The sum of 16-bit words, with the carries added again, is the header modulo 0xFFFF, taken as one number.
    If that is 0, the sum is 0xFFFF, or 0 for a header of zeros only.
    """
    number = int.from_bytes(header, "big")
    return ~(number % 0xFFFF or (number and 0xFFFF)) & 0xFFFF


_address: Final = lru_cache(maxsize=4096)(IPv4Address)  # of the few hosts there are, a packet's are made once


@value_class(frozen=True)
class IPv4:
    """IPv4 without options. `total_length` counts from this header on; the checksum is made by `pack()`."""

    src: IPv4Address
    dst: IPv4Address
    total_length: int
    identification: int = 0
    ttl: int = 64
    tos: int = 0
    protocol: int = PROTOCOL_UDP
    flags: int = DONT_FRAGMENT
    fragment_offset: int = 0

    SIZE = 20
    _LAYOUT = struct.Struct(">BBHHHBBH4s4s")

    def pack(self, total_length: int | None = None) -> bytes:
        """Return 20 bytes with the right checksum; `total_length` in place of the packet's own."""
        fields = (
            0x45,
            self.tos,
            self.total_length if total_length is None else total_length,
            self.identification,
            self.flags << 13 | self.fragment_offset,
        )
        addresses = (self.src.packed, self.dst.packed)
        blank = self._LAYOUT.pack(*fields, self.ttl, self.protocol, 0, *addresses)
        return blank[:10] + ipv4_checksum(blank).to_bytes(2, "big") + blank[12:]

    @classmethod
    def unpack(cls, data: bytes) -> IPv4:
        """Read from the start of an IP packet; options are malformed here (RoCE v2 has none)."""
        if len(data) < cls.SIZE:
            raise _cut_short(data, cls.SIZE, "an IPv4 header")
        version_ihl, tos, total_length, identification, fragment, ttl, protocol, _, src, dst = (
            cls._LAYOUT.unpack_from(data)
        )
        if version_ihl != 0x45:
            raise MalformedPacket(f"IP version and header length are 0x{version_ihl:02x}, not 0x45")
        return cls(
            src=_address(src),
            dst=_address(dst),
            total_length=total_length,
            identification=identification,
            ttl=ttl,
            tos=tos,
            protocol=protocol,
            flags=fragment >> 13,
            fragment_offset=fragment & 0x1FFF,
        )


@value_class(frozen=True)
class Udp:
    """UDP; `length` counts from this header on. RoCE v2 sends checksum 0."""

    length: int
    src_port: int = DEFAULT_UDP_SOURCE_PORT
    dst_port: int = ROCE_V2_PORT
    checksum: int = 0

    SIZE = 8
    _LAYOUT = struct.Struct(">HHHH")

    def pack(self, length: int | None = None) -> bytes:
        """Return 8 bytes; `length` in place of the datagram's own."""
        length = self.length if length is None else length
        return self._LAYOUT.pack(self.src_port, self.dst_port, length, self.checksum)

    @classmethod
    def unpack(cls, data: bytes) -> Udp:
        """Read from the start of a datagram."""
        if len(data) < cls.SIZE:
            raise _cut_short(data, cls.SIZE, "a UDP header")
        src_port, dst_port, length, checksum = cls._LAYOUT.unpack_from(data)
        return cls(length=length, src_port=src_port, dst_port=dst_port, checksum=checksum)


@value_class(frozen=True)
class Bth:
    """Base transport header. `opcode` is a plain int where the code is none of `Opcode`."""

    opcode: int
    dest_qp: int
    psn: int
    ack_req: bool = False
    solicited: bool = False
    mig_req: bool = False
    pad_count: int = 0
    transport_version: int = 0
    pkey: int = DEFAULT_PKEY
    resv8a: int = 0
    reserved: int = 0

    SIZE = 12
    _LAYOUT = struct.Struct(">BBHB3sB3s")

    def pack(self) -> bytes:
        """Return 12 bytes."""
        return self._LAYOUT.pack(
            self.opcode,
            self.solicited << 7 | self.mig_req << 6 | self.pad_count << 4 | self.transport_version,
            self.pkey,
            self.resv8a,
            self.dest_qp.to_bytes(3, "big"),
            self.ack_req << 7 | self.reserved,
            self.psn.to_bytes(3, "big"),
        )

    @classmethod
    def unpack(cls, data: bytes) -> Bth:
        """Read from the start of a UDP payload."""
        if len(data) < cls.SIZE:
            raise _cut_short(data, cls.SIZE, "a BTH")
        opcode, bits, pkey, resv8a, dest_qp, more_bits, psn = cls._LAYOUT.unpack_from(data)
        return cls(
            opcode=opcode,
            dest_qp=int.from_bytes(dest_qp, "big"),
            psn=int.from_bytes(psn, "big"),
            ack_req=more_bits > 0x7F,
            solicited=bits > 0x7F,
            mig_req=bits & 0x40 != 0,
            pad_count=bits >> 4 & 0x3,
            transport_version=bits & 0xF,
            pkey=pkey,
            resv8a=resv8a,
            reserved=more_bits & 0x7F,
        )


# What a RoCE v2 packet adds to its payload, counted as a link's MTU counts: from the IP header on.
ROCE_OVERHEAD: Final = IPv4.SIZE + Udp.SIZE + Bth.SIZE + ICRC_SIZE


@value_class(frozen=True)
class Aeth:
    """ACK extended transport header: syndrome and message sequence number (24 bits)."""

    syndrome: int
    msn: int

    SIZE = 4

    def pack(self) -> bytes:
        """Return 4 bytes."""
        return bytes((self.syndrome,)) + self.msn.to_bytes(3, "big")

    @classmethod
    def unpack(cls, data: bytes) -> Aeth:
        """Read what follows the BTH of an ACKNOWLEDGE."""
        if len(data) < cls.SIZE:
            raise _cut_short(data, cls.SIZE, "an AETH")
        return cls(syndrome=data[0], msn=int.from_bytes(data[1:4], "big"))


@value_class(frozen=True)
class RocePacket:
    """One RoCE v2 frame. `payload` is what lies between BTH (or AETH) and ICRC.

    `build()` fills in lengths and checksums and recomputes the ICRC; `icrc` is what `parse()` found.
    """

    ethernet: Ethernet
    ip: IPv4
    udp: Udp
    bth: Bth
    payload: bytes = b""
    aeth: Aeth | None = None
    icrc: bytes = field(default=b"", compare=False)

    def build(self) -> bytes:
        """Return the frame, with right lengths, IP checksum and ICRC."""
        packet = self._ip_packet()
        return self.ethernet.pack() + packet + icrc(packet)

    def _ip_packet(self) -> bytes:
        transport = self.bth.pack() + (self.aeth.pack() if self.aeth else b"") + self.payload
        length = Udp.SIZE + len(transport) + ICRC_SIZE
        return self.ip.pack(IPv4.SIZE + length) + self.udp.pack(length) + transport

    @classmethod
    def parse(cls, frame: bytes) -> RocePacket:
        """Read a frame; MalformedPacket where it is no RoCE v2 packet or its lengths disagree.

        Padding behind the IP packet (short Ethernet frames) is dropped.
        """
        ethernet = Ethernet.unpack(frame)
        if ethernet.ether_type != ETHERTYPE_IPV4:
            raise MalformedPacket(f"EtherType 0x{ethernet.ether_type:04x} is not IPv4")
        ip = IPv4.unpack(frame[14:34])
        if ip.protocol != PROTOCOL_UDP or ip.flags & 0x1 or ip.fragment_offset:
            raise MalformedPacket(f"IP protocol {ip.protocol} (or a fragment) is not UDP")
        udp = Udp.unpack(frame[34:42])
        if udp.dst_port != ROCE_V2_PORT:
            raise MalformedPacket(f"UDP port {udp.dst_port} is not RoCE v2's {ROCE_V2_PORT}")
        held, end = len(frame) - Ethernet.SIZE, Ethernet.SIZE + ip.total_length
        if ip.total_length != IPv4.SIZE + udp.length or ip.total_length > held:
            raise MalformedPacket(
                f"IP says {ip.total_length} bytes, UDP {udp.length}, and the frame holds {held}"
            )
        if ip.total_length < ROCE_OVERHEAD:
            raise _cut_short(frame[14:end], ROCE_OVERHEAD, "a RoCE v2 packet")
        bth = Bth.unpack(frame[42:54])
        body, found = frame[54 : end - ICRC_SIZE], bytes(frame[end - ICRC_SIZE : end])
        aeth = None
        if bth.opcode == Opcode.ACKNOWLEDGE:
            aeth, body = Aeth.unpack(body), body[Aeth.SIZE :]
        return cls(ethernet=ethernet, ip=ip, udp=udp, bth=bth, payload=bytes(body), aeth=aeth, icrc=found)

    def icrc_ok(self) -> bool:
        """Tell whether the ICRC that came with the packet is right."""
        return icrc(self._ip_packet()) == self.icrc
