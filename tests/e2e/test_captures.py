"""RoCE v2 on the links: tshark decodes it, scapy agrees on each ICRC, PSNs follow each other."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from controller.config import Target
from host_agent.wire.headers import Opcode, RocePacket
from tests.e2e.captures import FIELDS, captured_in, decode, frames_of, is_quoted, require_roce_v2
from tests.e2e.conftest import TARGETS, all_reduce, joined, rack

pytestmark = pytest.mark.emulation


@pytest.fixture(scope="module")
def tshark() -> None:
    """Require tshark, as these tests are about what it says; `make test` installs it."""
    assert shutil.which("tshark"), "tshark is missing: apt-get install --no-install-recommends tshark"


@pytest.mark.usefixtures("tshark")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path_mtu", [256, 4096])
def test_every_packet_is_roce_v2(path_mtu: int, target: Target, captures: Path) -> None:
    with rack(3, target=target, path_mtu=path_mtu, pcap=captures) as running, joined(running, 3) as team:
        all_reduce(team, elements=9001, dtype="int32", seed=1)
        all_reduce(team, elements=3001, dtype="float32", op="avg", seed=2)
        all_reduce(team, elements=3001, dtype="int32", strategy="ring", seed=3)
    files = captured_in(captures)
    assert files, f"nothing was captured in {list(captures.iterdir())}"
    opcodes: set[int] = set()
    psns: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for path in files:
        rows, frames = decode(path), frames_of(path)
        require_roce_v2(path)
        for row, frame in zip(rows, frames, strict=True):
            if not row["frame.protocols"].startswith("eth:ethertype:ip") or is_quoted(row):
                continue  # an ARP or the like is nobody's RoCE
            assert "infiniband" in row["frame.protocols"], row
            opcode = int(row["infiniband.bth.opcode"], 0)
            opcodes.add(opcode)
            ours = RocePacket.parse(frame)
            assert (ours.bth.opcode, ours.bth.psn) == (opcode, int(row["infiniband.bth.psn"], 0))
            if opcode != Opcode.ACKNOWLEDGE:
                psns[path.name, row["ip.src"], row["infiniband.bth.destqp"]].append(ours.bth.psn)
    assert {Opcode.SEND_FIRST, Opcode.SEND_LAST, Opcode.ACKNOWLEDGE} <= opcodes
    assert opcodes <= {int(opcode) for opcode in Opcode}
    for flow, numbers in psns.items():
        distinct = list(dict.fromkeys(numbers))  # in order of first appearance: repeats may follow
        steps = {(b - a) % 2**24 for a, b in itertools.pairwise(distinct)}
        assert steps <= {1}, f"{flow} skips PSNs"


def test_tshark_agrees_on_the_fields_that_we_print() -> None:
    """A guard against a tshark that no longer knows these fields: they would all be empty."""
    fields = subprocess.run(["tshark", "-G", "fields"], capture_output=True, text=True, check=True).stdout
    known = {line.split("\t")[2] for line in fields.splitlines() if line.startswith("F")}
    assert set(FIELDS) - {"_ws.malformed"} <= known, json.dumps(sorted(set(FIELDS) - known))
