"""Frames with which a non-member host may disturb a job, knowing each frame that ever was on a wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from random import Random

from host_agent.wire.aggregation import AggregationHeader, Flags
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from p4reduce.oracle.tree_packets import TREE_PORT, TREE_VERSION, Kind, TreePacket

VLAN_TAGS = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")
ROCE_V1, IPV6, SNAP = b"\x89\x15", b"\x86\xdd", b"\x00\x64"
CNP = 0x81
SUMMED = 0x40
IP, UDP = 14, 34  # where they begin


@dataclass
class Attacker:
    """A host, its address, and what it has seen. `draw` gives one frame of any kind."""

    ip: IPv4Address
    chance: Random
    seen: list[bytes] = field(default_factory=list)  # hosts' packets of the jobs
    tree: list[bytes] = field(default_factory=list)  # packets between switches

    def see(self, frame: bytes) -> None:
        """Note a frame that was on a wire."""
        if TreePacket.parse(frame) is not None:
            self.tree.append(frame)
        elif is_roce(frame):
            self.seen.append(frame)

    def draw(self) -> bytes:
        """Draw one frame."""
        chance = self.chance
        frame = chance.choice(self.seen[-40:] if chance.random() < 0.6 else self.seen)
        kind = chance.choice(KINDS)
        if kind == "replay":
            return frame
        if kind == "tree":
            return self._tree(frame)
        if kind == "query":
            return chance.randrange(3).to_bytes(1, "big") + bytes(2) + chance.randrange(64).to_bytes(4, "big")
        packet = RocePacket.parse(frame)
        forged = self._answer(packet) if kind == "answer" else self._other(packet)
        if chance.random() < 0.3:
            forged = replace(forged, ip=replace(forged.ip, src=self.ip))
        built = forged.build()
        return chance.choice(list(disguises(built, chance))) if kind == "disguise" else built

    def _answer(self, packet: RocePacket) -> RocePacket:
        """Return an acknowledgement, a NAK or a CNP to a member, as from its peer."""
        chance = self.chance
        # By a data packet, its sender's own QP is not known; by the acknowledgements it is.
        acks = [frame for frame in self.seen[-60:] if frame[42] == Opcode.ACKNOWLEDGE]
        if acks and chance.random() < 0.7:
            packet = RocePacket.parse(chance.choice(acks))
        psn = (packet.bth.psn + chance.choice([-40, -2, -1, 0, 1, 2, 8, 64, 1 << 22, 1 << 23])) % 2**24
        if chance.random() < 0.2:
            return replace(packet, bth=replace(packet.bth, opcode=CNP), aeth=None, payload=bytes(16))
        syndrome = chance.choice([0x1F, 0x00, 0x60, 0x2C, 0x3F, 0x61, 0x62, 0x63, 0x64])
        bth = replace(packet.bth, opcode=Opcode.ACKNOWLEDGE, psn=psn)
        return replace(packet, bth=bth, aeth=Aeth(syndrome, chance.randrange(100)), payload=b"")

    def _other(self, packet: RocePacket) -> RocePacket:
        """Return the packet with other values in some fields, and a right ICRC."""
        for _ in range(self.chance.randint(1, 3)):
            packet = self._one_other(packet)
        return packet

    def _one_other(self, packet: RocePacket) -> RocePacket:
        chance, bth, ip = self.chance, packet.bth, packet.ip
        step = chance.choice([-1 << 23, -300, -16, -1, 1, 2, 16, 300, 1 << 20, (1 << 23) - 1])
        kind = chance.choice(
            ["psn", "psn", "qp", "opcode", "summed", "from", "to", "payload", "head", "head", "mac"]
        )
        if kind == "psn":
            return replace(packet, bth=replace(bth, psn=(bth.psn + step) % 2**24))
        if kind == "qp":
            return replace(
                packet, bth=replace(bth, dest_qp=RocePacket.parse(chance.choice(self.seen)).bth.dest_qp)
            )
        if kind == "summed":
            return replace(packet, bth=replace(bth, reserved=SUMMED))
        if kind in ("from", "to"):
            other = RocePacket.parse(chance.choice(self.seen)).ip
            address = chance.choice(
                [other.src, other.dst, IPv4Address("169.254.0.1"), IPv4Address("255.255.255.255")]
            )
            return replace(
                packet, ip=replace(ip, src=address) if kind == "from" else replace(ip, dst=address)
            )
        if kind == "mac":
            ethernet = Ethernet(dst=packet.ethernet.src, src=packet.ethernet.dst)
            return replace(packet, ethernet=ethernet)
        if packet.aeth is not None:
            return packet
        if kind == "opcode":  # also with immediate, RDMA WRITE and READ, of other services
            opcode = chance.choice([*range(0x18), 0x24, 0x64, 0x81, 0xFF])
            return (
                packet if opcode == Opcode.ACKNOWLEDGE else replace(packet, bth=replace(bth, opcode=opcode))
            )
        if kind == "payload":
            size = chance.choice([0, 1, 255, 256, 257, 4096, 4097, 8192])
            return replace(packet, payload=chance.randbytes(size))
        return replace(packet, payload=other_head(chance, packet.payload))

    def _tree(self, frame: bytes) -> bytes:
        """Return a partial, a result, a question or an echo, as from a switch."""
        chance = self.chance
        known = TreePacket.parse(chance.choice(self.tree)) if self.tree else None
        packet = known or TreePacket(
            ethernet=RocePacket.parse(frame).ethernet,
            udp=Udp(length=0, src_port=TREE_PORT, dst_port=TREE_PORT),
            ip=IPv4(src=IPv4Address("169.254.0.1"), dst=IPv4Address("169.254.0.101"), total_length=0),
            kind=Kind.PARTIAL,
            generation=1,
            message=0,
            payload=chance.randbytes(256),
        )
        ip = packet.ip
        if chance.random() < 0.5:
            ip = replace(ip, src=self.ip)
        if chance.random() < 0.3:
            ip = replace(ip, dst=RocePacket.parse(frame).ip.dst)
        return replace(
            packet,
            ip=ip,
            kind=chance.choice([*Kind, 0, 9]),
            version=chance.choice([TREE_VERSION, TREE_VERSION, TREE_VERSION + 1]),
            index=chance.choice([packet.index, 0, 1, 255]),
            message=(packet.message + chance.choice([0, 0, 1, 2, 8, 1 << 31])) % 2**32,
            payload=chance.choice([packet.payload, chance.randbytes(256), packet.payload * 2])[:4096],
        ).build()


KINDS: Sequence[str] = (
    "replay",
    "fields",
    "fields",
    "fields",
    "answer",
    "answer",
    "disguise",
    "tree",
    "query",
)


def other_head(chance: Random, payload: bytes) -> bytes:
    """Return the payload with another aggregation header, if it has one."""
    try:
        head = AggregationHeader.unpack(payload)
    except ValueError:
        return payload
    changed = chance.choice(
        [
            {"flags": chance.choice([Flags.RESULT, Flags.RESULT | Flags.MISMATCH, Flags.MISMATCH])},
            {"generation": (head.generation + chance.choice([-1, 1, 7])) % 2**32},
            {"message": (head.message + chance.choice([-1, 1, 2, 8, 16, 1 << 31])) % 2**32},
            {"rank": chance.randrange(256)},
            {"packets": chance.choice([0, 1, 64, 255])},
            {"elements": chance.choice([0, 2**32 - 1])},
            {"tensor_elements": 2**32 - 1},
            {"collective": (head.collective + 1) % 2**32},
            {"job": head.job ^ 1},
        ]
    )
    return replace(head, **changed).pack() + payload[256:]  # type: ignore[arg-type]


def disguises(frame: bytes, chance: Random) -> Iterator[bytes]:
    """Yield the packet in forms that a host may read, and a switch perhaps not."""
    ethernet, rest = frame[:12], frame[12:]
    for tag in VLAN_TAGS:
        for number in (0, 1, 5, 4095):
            yield ethernet + tag + number.to_bytes(2, "big") + rest
    yield ethernet + VLAN_TAGS[1] + b"\x00\x05" + VLAN_TAGS[0] + b"\x00\x06" + rest
    for words in (1, 4, 10):
        yield with_options(frame, words)
    yield fragment(frame, flags=1, offset=0)
    yield fragment(frame, flags=1, offset=0)[: UDP + 8 + 16]
    yield fragment(frame, flags=0, offset=3)
    yield ethernet + ROCE_V1 + rest[2:]
    yield ethernet + IPV6 + b"\x60" + rest[3:]
    yield ethernet + SNAP + b"\xaa\xaa\x03\x00\x00\x00" + rest
    yield frame[: chance.randrange(14, len(frame))]
    yield frame + bytes(chance.randrange(1, 64))
    yield frame[:14] + b"\x65" + frame[15:]
    inner = IPv4(
        src=IPv4Address("10.0.1.1"), dst=IPv4Address("10.0.1.2"), total_length=len(rest) + 18, protocol=4
    )
    yield frame[:14] + inner.pack() + frame[14:]


def with_options(frame: bytes, words: int) -> bytes:
    """Return the frame with so many words of no-operation options behind the IP header; lengths fit."""
    head = bytearray(frame[IP:UDP])
    head[0] = 0x45 + words
    head[2:4] = (int.from_bytes(head[2:4], "big") + 4 * words).to_bytes(2, "big")
    return frame[:IP] + bytes(head) + b"\x01" * (4 * words) + frame[UDP:]


def fragment(frame: bytes, *, flags: int, offset: int) -> bytes:
    """Return the frame as a fragment; `flags` 1: more are to come."""
    changed = bytearray(frame)
    changed[IP + 6 : IP + 8] = (flags << 13 | offset).to_bytes(2, "big")
    return bytes(changed)


def is_roce(frame: bytes) -> bool:
    """Tell whether a frame is a whole RoCE packet."""
    try:
        RocePacket.parse(frame)
    except ValueError:
        return False
    return True


def as_a_host_reads(frame: bytes) -> tuple[IPv4Address, IPv4Address, int] | None:
    """Return source, destination and QP of what any stack may take for RoCE v2: tags off, options skipped."""
    kind, rest = frame[12:14], frame[14:]
    while kind in VLAN_TAGS:
        kind, rest = rest[2:4], rest[4:]
    if kind != b"\x08\x00" or len(rest) < 40 or rest[9] != 17 or int.from_bytes(rest[6:8], "big") & 0x1FFF:
        return None
    udp = rest[4 * (rest[0] & 0xF) :]
    if udp[2:4] != (4791).to_bytes(2, "big") or len(udp) < 20:
        return None
    return IPv4Address(rest[12:16]), IPv4Address(rest[16:20]), int.from_bytes(udp[13:16], "big")


def cnp(packet: RocePacket) -> bytes:
    """Return a congestion notification for the QP that a packet is for."""
    return RocePacket(
        ethernet=packet.ethernet,
        ip=packet.ip,
        udp=Udp(length=0),
        bth=Bth(opcode=CNP, dest_qp=packet.bth.dest_qp, psn=0),
        payload=bytes(16),
    ).build()
