"""Reading captures of a switch's ports: what tshark makes of each packet, and whether each ICRC is right."""

from __future__ import annotations

import itertools
import subprocess
from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader

from host_agent.wire import psn
from host_agent.wire.headers import RNR_NAK_SYNDROME, ROCE_V2_PORT, MalformedPacket, RocePacket
from p4reduce.oracle.placement import is_whole

FIELDS = (
    "frame.protocols",
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "infiniband.bth.destqp",
    "ip.src",
    "udp.dstport",
    "_ws.malformed",
)


def decode(path: Path) -> list[dict[str, str]]:
    """Return tshark's reading of a capture, a row a packet."""
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]
    run = subprocess.run(
        [*command, *itertools.chain.from_iterable(("-e", field) for field in FIELDS)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [dict(zip(FIELDS, line.split("|"), strict=True)) for line in run.stdout.splitlines()]


def frames_of(path: Path) -> list[bytes]:
    """Return the frames of a capture."""
    with RawPcapReader(str(path)) as reader:
        return [bytes(frame) for frame, _ in reader]


def captured_in(directory: Path) -> list[Path]:
    """Return the captures in a directory that hold a packet (a pcap file's header has 24 bytes)."""
    return sorted(path for path in directory.iterdir() if path.stat().st_size > 24)


def require_roce_v2(path: Path, *, scapy_every: int = 1) -> Counter[int]:
    """Assert that each packet for UDP port 4791 decodes and has the right ICRC; how many there are by opcode.

    scapy computes the ICRC of every `scapy_every`th packet as well; it takes a millisecond for each.
    """
    rows, frames = decode(path), frames_of(path)
    assert len(rows) == len(frames)
    opcodes: Counter[int] = Counter()
    for number, (row, frame) in enumerate(zip(rows, frames, strict=True)):
        if row["udp.dstport"] != str(ROCE_V2_PORT) or is_quoted(row):
            continue
        where = f"{path.name}, packet {number + 1}: {row}"
        assert "infiniband" in row["frame.protocols"], where
        assert not row["_ws.malformed"], where
        assert is_whole(frame), where
        if number % scapy_every == 0:
            assert scapys_icrc(frame) == frame[-4:], where
        opcodes[int(row["infiniband.bth.opcode"], 0)] += 1
    return opcodes


def is_quoted(row: dict[str, str]) -> bool:
    """Tell whether a packet is only quoted, by the host that it came to after its worker had gone (ICMP)."""
    return ":icmp:" in row["frame.protocols"]


def scapys_icrc(frame: bytes) -> bytes:
    """Return the ICRC that scapy's RoCE layer computes for a frame."""
    packet: Any = Ether(frame)
    assert packet.haslayer(BTH), packet.summary()
    del packet[BTH].icrc
    assert packet[IP].proto == 17
    assert packet[UDP].dport == ROCE_V2_PORT
    return bytes(Ether(bytes(packet)))[-4:]


@dataclass(frozen=True)
class GoBack:
    """A requester went back to a packet with this opcode; `told`: a NAK had come since it last went back."""

    opcode: int
    told: bool


def go_backs(path: Path, sender: IPv4Address) -> list[GoBack]:
    """Find where one host's requesters went back, in the capture of the port that the host is on.

    One end of each connection sends data and the other NAKs, so that a pair of addresses is a connection.
    """
    found: list[GoBack] = []
    previous: dict[tuple[IPv4Address, int], int] = {}
    told: set[IPv4Address] = set()
    for frame in frames_of(path):
        try:
            packet = RocePacket.parse(frame)
        except MalformedPacket:
            continue  # not RoCE v2, or not of our opcodes
        bth, peer = packet.bth, packet.ip.dst
        if packet.aeth is not None:
            if peer == sender and packet.aeth.syndrome >= RNR_NAK_SYNDROME:
                told.add(packet.ip.src)
        elif packet.ip.src == sender:
            flow = (peer, bth.dest_qp)
            if psn.compare(bth.psn, previous.get(flow, bth.psn - 1)) <= 0:
                found.append(GoBack(bth.opcode, peer in told))
                told.discard(peer)
            previous[flow] = bth.psn
    return found
