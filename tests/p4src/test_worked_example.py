"""The worked example of docs/protocol.md is what the compiled program does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from host_agent.wire.headers import RocePacket
from tests.p4src.rack import CompiledRack
from tests.p4src.test_against_model import LANES, Pair

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
CONTRIBUTIONS = ([7, -1, 100], [5, -2, 23])


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
    rack = CompiledRack()
    try:
        pair = Pair(rack, world_size=2, window=2, check_icrc=True, generation=1)
        seen = []
        for index in (0, 1):
            for rank, values in enumerate(CONTRIBUTIONS):
                packet = pair.packet(rank, 3, index, 1, 1)
                if index:
                    lanes = np.zeros(LANES, ">i4")
                    lanes[: len(values)] = values
                    packet = replace(packet, payload=lanes.tobytes())
                seen += [RocePacket.parse(frame) for _, frame in pair.both(rank + 1, packet.build())]
    finally:
        rack.plane.close()
    example = section("Worked example")
    assert len(seen) == 4  # two results of each of two packets
    for packet in seen:
        (line,) = [line for line in example.splitlines() if packet.build()[-4:].hex() in line]
        assert line.startswith("out ")
        assert f"{packet.ip.src} → {packet.ip.dst}" in line
        assert f"PSN {packet.bth.psn:#x}" in line
    assert list(np.frombuffer(seen[-1].payload, ">i4")[:3]) == [12, -3, 123]
