"""One worker a host: simulated times beside an emulated rack's, on links that are slow for any machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p4reduce.scale.fabric import Fabric, Framing
from p4reduce.scale.strategies import Sizes, simulate
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.names import FLAT_RING
from tests.p4reduce.clusters import must
from topologies.links import ETHERNET_OVERHEAD

BYTES = 8_000_000
STRATEGIES = {names.IN_NETWORK: names.IN_NETWORK, names.RING: FLAT_RING}


def simulated_s(strategy: str, *, hosts: int, rate: float) -> float:
    """tc counts a frame's own header alone, and there is next to no latency."""
    fabric = Fabric(
        hosts=hosts,
        leaf_hosts=hosts,
        rate=rate,
        intra_rate=rate,
        uplink_rate=rate,
        alpha_s=100e-6,
        framing=Framing(ethernet_bytes=ETHERNET_OVERHEAD),
    )
    return simulate(STRATEGIES[strategy], Sizes(size=BYTES), fabric).seconds


@pytest.mark.emulation
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("hosts", "rate_mbit"),
    [(4, 20), pytest.param(8, 20, marks=pytest.mark.slow), pytest.param(16, 10, marks=pytest.mark.slow)],
)
@pytest.mark.usefixtures("own_state")
def test_times_are_those_of_an_emulated_rack(hosts: int, rate_mbit: int, name: str, tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    must(
        *("compare", "rack", "--hosts", str(hosts), "--rate", f"{rate_mbit}mbit", "--bytes", str(BYTES)),
        *("--strategies", ",".join(STRATEGIES), "--rounds", "3", "--cluster", name, "--json", str(path)),
    )
    found = {row["strategy"]: row for row in json.loads(path.read_text())["results"]}
    assert set(found) == set(STRATEGIES)
    for strategy, row in found.items():
        # The fastest round: a busy machine makes none faster.
        expected = simulated_s(strategy, hosts=hosts, rate=rate_mbit * 1e6)
        assert row["min_s"] == pytest.approx(expected, rel=0.05), strategy
