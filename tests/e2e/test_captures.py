"""What is on the links is RoCE v2: tshark decodes it, scapy agrees on each ICRC, PSNs follow each other."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import PcapReader

from host_agent.wire.headers import Opcode, RocePacket
from tests.e2e.conftest import TARGETS, all_reduce, joined, rack
from topologies.switches import SwitchTarget

pytestmark = pytest.mark.emulation

_FIELDS = (
    "frame.protocols",
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "infiniband.bth.destqp",
    "ip.src",
    "_ws.malformed",
    "_ws.expert.severity",
)


def decode(path: Path) -> list[dict[str, str]]:
    """tshark's reading of a capture, a row a packet."""
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "separator=|"]
    run = subprocess.run(
        [*command, *itertools.chain.from_iterable(("-e", field) for field in _FIELDS)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [dict(zip(_FIELDS, line.split("|"), strict=True)) for line in run.stdout.splitlines()]


def frames_of(path: Path) -> list[bytes]:
    with PcapReader(str(path)) as reader:
        return [bytes(packet) for packet in reader]


@pytest.fixture(scope="module")
def tshark() -> None:
    """These tests are about what tshark says; `make test` installs it."""
    assert shutil.which("tshark"), "tshark is missing: apt-get install --no-install-recommends tshark"


@pytest.mark.usefixtures("tshark")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path_mtu", [256, 1024, 4096])
def test_every_packet_is_roce_v2(path_mtu: int, target: SwitchTarget, captures: Path) -> None:
    with rack(3, target=target, path_mtu=path_mtu, pcap=captures) as running, joined(running, 3) as team:
        all_reduce(team, elements=9001, dtype="int32", seed=1)
        all_reduce(team, elements=3001, dtype="float32", op="avg", seed=2)
        all_reduce(team, elements=3001, dtype="int32", strategy="ring", seed=3)
    files = sorted(path for path in captures.iterdir() if path.stat().st_size > 24)
    assert files, f"nothing was captured in {list(captures.iterdir())}"
    opcodes: set[int] = set()
    psns: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for path in files:
        rows, frames = decode(path), frames_of(path)
        assert len(rows) == len(frames)
        for row, frame in zip(rows, frames, strict=True):
            if not row["frame.protocols"].startswith("eth:ethertype:ip"):
                continue  # an ARP or the like is nobody's RoCE
            assert "infiniband" in row["frame.protocols"], row
            assert not row["_ws.malformed"], row
            opcode = int(row["infiniband.bth.opcode"], 0)
            opcodes.add(opcode)
            ours = RocePacket.parse(frame)
            assert (ours.bth.opcode, ours.bth.psn) == (opcode, int(row["infiniband.bth.psn"], 0))
            assert ours.icrc_ok(), f"{path.name}: {row}"
            assert scapys_icrc(frame) == frame[-4:], f"{path.name}: {row}"
            if opcode != Opcode.ACKNOWLEDGE:
                psns[path.name, row["ip.src"], row["infiniband.bth.destqp"]].append(ours.bth.psn)
    assert {Opcode.SEND_FIRST, Opcode.SEND_LAST, Opcode.ACKNOWLEDGE} <= opcodes
    assert opcodes <= {int(opcode) for opcode in Opcode}
    for flow, numbers in psns.items():
        distinct = list(dict.fromkeys(numbers))  # in order of first appearance: repeats may follow
        steps = {(b - a) % 2**24 for a, b in itertools.pairwise(distinct)}
        assert steps <= {1}, f"{flow} skips PSNs"


def scapys_icrc(frame: bytes) -> bytes:
    """The ICRC that scapy's RoCE layer computes for a frame."""
    packet: Any = Ether(frame)
    assert packet.haslayer(BTH), packet.summary()
    del packet[BTH].icrc
    assert packet[IP].proto == 17
    assert packet[UDP].dport == 4791
    return bytes(Ether(bytes(packet)))[-4:]


def test_tshark_agrees_on_the_fields_that_we_print() -> None:
    """A guard against a tshark that no longer knows these fields: they would all be empty."""
    fields = subprocess.run(["tshark", "-G", "fields"], capture_output=True, text=True, check=True).stdout
    known = {line.split("\t")[2] for line in fields.splitlines() if line.startswith("F")}
    assert set(_FIELDS) - {"_ws.malformed"} <= known, json.dumps(sorted(set(_FIELDS) - known))
