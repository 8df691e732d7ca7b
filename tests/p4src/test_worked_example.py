"""The worked example of docs/protocol.md is what the compiled program does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from controller.api.messages import Mode
from controller.fabric.routes import base_entries
from controller.fabric.trees import Tree, entries_on
from controller.jobs.specs import Plan
from controller.slots.allocator import Region
from host_agent.wire.aggregation import CHUNK_BYTES, HEADER_BYTES, AggregationHeader, Op
from host_agent.wire.headers import Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from p4reduce.oracle.tree_packets import TreePacket
from tests.controller.bench import fabric, member
from tests.p4src.entry_pair import EntryPair
from tests.p4src.pair import LANES, Pair
from tests.p4src.rack import CompiledRack

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
CONTRIBUTIONS = ([7, -1, 100], [5, -2, 23])
HALVES = ([1.5, -0.25, 1.0, 2.0**-10, 0, 0], [1.25, 0.125, 1 + 2.0**-10, 2.0**-24, 0, 0])
ANNOUNCED = [bytes([0x7F, 0]), bytes([0x7C, 0x81])]


def section(title: str) -> str:
    return PROTOCOL.read_text().split(f"## {title}", 1)[1].split("\n## ", 1)[0]


def test_the_rnr_nak_is_true() -> None:
    rack = CompiledRack()
    try:
        pair = Pair(rack, world_size=2, window=2, check_icrc=True, generation=1, rnr_ranks=0b01)
        packet = pair.packet(0, 3, 0, 0, 1).build()
        assert pair.both(1, packet) == []
        pair.acknowledge(0, 0xFFFFF7)
        ((port, frame),) = pair.both(1, packet)
    finally:
        rack.plane.close()
    nak = RocePacket.parse(frame)
    assert nak.aeth is not None
    assert nak.icrc_ok()
    line = (
        f"out  {nak.ip.src} → {nak.ip.dst}  Acknowledge  QPN {nak.bth.dest_qp:#x}  PSN {nak.bth.psn:#x}  "
        f"AETH {nak.aeth.syndrome:02x} {nak.aeth.msn:06x}  ICRC {nak.icrc.hex()}   to rank 0, port {port}"
    )
    assert line in section("Ordinary NICs").splitlines()


def test_every_number_of_the_example_is_true() -> None:
    whole = [np.array(values).astype(">i4").tobytes() for values in CONTRIBUTIONS]
    halves = [np.array(values).astype(">f2").tobytes() for values in HALVES]
    sent: list[tuple[int, Op, list[bytes], list[bytes]]] = [
        (3, Op.SUM, [b"", b""], whole),
        (8, Op.SUM_HALF, ANNOUNCED, halves),
    ]
    example = section("Worked example")
    lines = [line for line in example.splitlines() if line[:4] in ("in  ", "out ", "10.1")]
    rack = CompiledRack()
    try:
        pair = Pair(rack, world_size=2, window=2, check_icrc=True, generation=1)
        for message, op, announced, numbers in sent:
            for index in (0, 1):
                for rank in (0, 1):
                    packet = pair.packet(rank, message, index, 1, 1, {"op": op})
                    fields = packet.payload[:HEADER_BYTES] if index == 0 else b""
                    payload = fields + (numbers if index else announced)[rank]
                    frame = replace(packet, payload=payload.ljust(CHUNK_BYTES, b"\0")).build()
                    said(lines, RocePacket.parse(frame), "in  ", index)
                    for _, result in pair.both(rank + 1, frame):
                        said(lines, RocePacket.parse(result), "out ", index)
    finally:
        rack.plane.close()
    assert lines == []


def said(lines: list[str], packet: RocePacket, way: str, index: int) -> None:
    """Check that one of the lines is about this packet and right, and remove it."""
    about = [
        line
        for line in lines
        if f"{packet.ip.src} → {packet.ip.dst}" in line
        and f"PSN {packet.bth.psn:#x}" in line
        and line.startswith((way, "10.1") if way == "in  " else way)
    ]
    assert about, packet
    line = about[0]
    lines.remove(line)
    if "ICRC" in line:
        assert packet.icrc.hex() in line
    if index:
        assert packet.payload[:12].hex(" ", 4) in line
    elif "exponents" in line:
        assert f"exponents {packet.payload[HEADER_BYTES:][:2].hex(' ')} …" in line
    if index == 0 and "flags" in line:
        assert f"flags {packet.payload[5]:02x} rank {packet.payload[16]:02x}" in line


def test_the_tree_packet_is_true() -> None:
    """Slot 13 of the example, with rank 0 alone in its rack; the entries are the controller's."""
    config = fabric((1, 1), spines=1)
    members = [member(config, 0, 0, qp=0x100, psn=0xFFFFF8), member(config, 1, 1, qp=0x200, psn=0xFFFFFD)]
    plan = Plan(
        job_id=3, generation=1, window=2, message_packets=4, path_mtu=256, mode=Mode.IN_NETWORK, ring=(0, 1)
    )
    entries = entries_on(config, Tree.of(config, members), "l1", plan, Region(0, 0, 16), ["s1"])
    pair = EntryPair()
    try:
        pair.write([*base_entries(config, config.switch("l1")), *entries])
        sent = []
        for index, opcode in enumerate((Opcode.SEND_FIRST, Opcode.SEND_LAST)):
            header = AggregationHeader(job=3, generation=1, message=3, rank=0, op=Op.SUM, packets=2)
            lanes = np.zeros(LANES, ">i4")
            lanes[: len(CONTRIBUTIONS[0])] = CONTRIBUTIONS[0]
            packet = RocePacket(
                ethernet=Ethernet(dst=bytes(6), src=bytes(6)),
                ip=IPv4(src=members[0].ip, dst=members[1].ip, total_length=0),
                udp=Udp(length=0),
                bth=Bth(opcode=opcode, dest_qp=members[1].qpn_in, psn=0xFFFFF8 + index),
                payload=lanes.tobytes() if index else header.pack(),
            )
            sent += pair.process(config.hosts[0].port, packet.build())
    finally:
        pair.plane.close()
    (_, _), (port, frame) = sent
    tree = TreePacket.parse(frame)
    assert (port, tree is not None and tree.icrc_ok()) == (101, True)
    assert tree is not None
    h = tree.header()
    fields = [h[i : i + 1].hex() for i in range(6)]
    rest = [h[6:8].hex(), h[8:12].hex(), h[12:16].hex(), h[16:17].hex(), h[17:20].hex()]
    payload = [tree.payload[i : i + 4].hex() for i in (0, 4, 8)]
    line = (
        f"out  {tree.ip.src} → {tree.ip.dst}  PARTIAL  {' '.join([*fields, *rest])}   {' '.join(payload)} …"
    )
    assert line in section("Several racks").splitlines()
