"""Simulated times beside emulated racks', on links that are slow for any machine."""

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

TIMEOUT_S = 600.0  # of what takes a minute where nothing else runs
ONE_GPU = {names.IN_NETWORK: names.IN_NETWORK, names.RING: FLAT_RING}
SEVERAL_GPUS = (names.HIERARCHICAL_PHASES, names.HIERARCHICAL, names.HIERARCHICAL_RING, FLAT_RING)


def simulated_s(strategy: str, size: int, *, hosts: int, rate: float, gpus: int = 1, k: float = 1.0) -> float:
    """Simulate it: tc counts a frame's own header alone, and there is next to no latency."""
    fabric = Fabric(
        hosts=hosts,
        gpus_per_host=gpus,
        leaf_hosts=hosts,
        rate=rate,
        intra_rate=k * rate,
        uplink_rate=rate,
        alpha_s=100e-6,
        framing=Framing(ethernet_bytes=ETHERNET_OVERHEAD),
    )
    return simulate(strategy, Sizes(size=size), fabric).seconds


def emulated_s(
    *words: object, size: int, strategies: tuple[str, ...], name: str, path: Path
) -> dict[str, float]:
    """Measure each strategy's fastest round, in seconds: a busy machine makes none faster."""
    must(
        *("compare", "rack", *map(str, words), "--bytes", str(size), "--strategies", ",".join(strategies)),
        *("--rounds", "3", "--cluster", name, "--json", str(path)),
        timeout_s=TIMEOUT_S,
    )
    found = {row["strategy"]: row["min_s"] for row in json.loads(path.read_text())["results"]}
    assert set(found) == set(strategies)
    return found


@pytest.mark.emulation
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("hosts", "rate_mbit"),
    [(4, 20), pytest.param(8, 20, marks=pytest.mark.long), pytest.param(16, 10, marks=pytest.mark.long)],
)
@pytest.mark.usefixtures("own_state")
def test_times_are_those_of_an_emulated_rack(hosts: int, rate_mbit: int, name: str, tmp_path: Path) -> None:
    size, words = 8_000_000, ("--hosts", hosts, "--rate", f"{rate_mbit}mbit")
    found = emulated_s(
        *words, size=size, strategies=tuple(ONE_GPU), name=name, path=tmp_path / "compare.json"
    )
    for strategy, seconds in found.items():
        expected = simulated_s(ONE_GPU[strategy], size, hosts=hosts, rate=rate_mbit * 1e6)
        assert seconds == pytest.approx(expected, rel=0.05), strategy


@pytest.mark.emulation
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.usefixtures("own_state")
def test_and_of_hosts_with_two_gpus(hosts: int, name: str, tmp_path: Path) -> None:
    size, rates = 12_000_000, ("--rate", "40mbit", "--intra-rate", "80mbit")
    words = ("--hosts", hosts, "--gpus-per-host", 2, *rates)
    found = emulated_s(*words, size=size, strategies=SEVERAL_GPUS, name=name, path=tmp_path / "compare.json")
    for strategy, seconds in found.items():
        expected = simulated_s(strategy, size, hosts=hosts, rate=40e6, gpus=2, k=2.0)
        assert seconds == pytest.approx(expected, rel=0.05), strategy
