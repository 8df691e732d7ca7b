"""RoCE v2 frames and capture files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from scapy.layers.l2 import Ether

from host_agent.wire.headers import Bth, Ethernet, IPv4, RocePacket, Udp

ETHERNET, COOKED, RAW_IP, COOKED_V2 = 1, 113, 101, 276
MICROSECOND, NANOSECOND = 0xA1B2C3D4, 0xA1B23C4D

Timed = tuple[float, bytes]


def ether(**fields: Any) -> Any:
    """Return an Ethernet header between two hosts of no fabric of ours."""
    return Ether(src="02:11:11:11:11:11", dst="02:22:22:22:22:22", **fields)


def roce(
    source: str,
    destination: str,
    *,
    qp: int = 0x11,
    psn: int = 0,
    payload: bytes = bytes(256),
    opcode: int = 4,
    tos: int = 0,
) -> bytes:
    """Return a frame with a right ICRC."""
    packet = RocePacket(
        ethernet=Ethernet(dst=b"\x02" + b"\x22" * 5, src=b"\x02" + b"\x11" * 5),
        ip=IPv4(src=IPv4Address(source), dst=IPv4Address(destination), total_length=0, tos=tos),
        udp=Udp(src_port=50000 + qp % 1000, length=0),
        bth=Bth(opcode=opcode, dest_qp=qp, psn=psn, ack_req=True),
        payload=payload,
    )
    return packet.build()


def write_pcap(
    path: Path,
    frames: Sequence[Timed],
    *,
    link_type: int = ETHERNET,
    magic: int = MICROSECOND,
    snap: int = 65535,
    order: str = "<",
) -> Path:
    """Write a pcap file. Times in seconds."""
    unit = 1_000_000 if magic == MICROSECOND else 1_000_000_000
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap, link_type)]
    for at, frame in frames:
        seconds, rest = divmod(round(at * unit), unit)
        kept = frame[:snap]
        parts += [struct.pack(order + "IIII", seconds, rest, len(kept), len(frame)), kept]
    path.write_bytes(b"".join(parts))
    return path


def write_pcapng(path: Path, frames: Sequence[Timed], *, link_types: Sequence[int] = (ETHERNET,)) -> Path:
    """Write a pcapng file; frame i is from interface i modulo how many there are."""
    parts = [_block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    parts += [_block(1, struct.pack("<HHI", link_type, 0, 65535)) for link_type in link_types]
    for number, (at, frame) in enumerate(frames):
        ticks = round(at * 1e6)
        interface = number % len(link_types)
        head = struct.pack("<IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
        parts.append(_block(6, head + frame))
    path.write_bytes(b"".join(parts))
    return path


def _block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length
