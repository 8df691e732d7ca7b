"""A third opinion: ns-3's packets, where it is installed (extra `ns3`). It takes half a minute to begin."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from p4reduce.scale.fabric import Fabric
from p4reduce.scale.strategies import Sizes, simulate
from p4reduce.workloads.strategies.names import FLAT_RING

SCRIPT = Path(__file__).with_name("ns3_ring.py")
RANKS, RATE, MESSAGES = 4, 1e8, 10  # messages of 16 packets that a part has
ALPHAS_S = (0.0, 1e-4, 1e-3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    importlib.util.find_spec("ns") is None, reason="no ns-3 here: pip install 'p4reduce[ns3]' (CPython 3.11)"
)
def test_a_ring_of_four_hosts() -> None:
    """Check a ring whose steps wait for packets, behind a router that stores each whole and forwards it."""
    fabrics = [Fabric(hosts=RANKS, rate=RATE, intra_rate=RATE, uplink_rate=RATE, alpha_s=a) for a in ALPHAS_S]
    framing = fabrics[0].framing
    cases = [
        f"{RANKS}:{RATE}:{alpha_s}:{MESSAGES * framing.packets}:{framing.packet_bytes}"
        for alpha_s in ALPHAS_S
    ]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *cases], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [float(line) for line in done.stdout.split()]
    size = RANKS * MESSAGES * framing.payload_bytes
    ours = [simulate(FLAT_RING, Sizes(size=size), fabric).seconds for fabric in fabrics]
    assert found == pytest.approx(ours, rel=1e-3)
