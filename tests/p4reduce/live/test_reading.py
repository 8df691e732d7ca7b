"""Links as the kernel has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p4reduce.live import reading
from tests.topologies.states import GONE, cluster_state
from topologies.starting import Start
from topologies.state import WiresState
from topologies.wires import HOLE

WIRES = WiresState(
    process=GONE,
    start=Start.of(["wires"], directory=Path("/nowhere"), log=Path("/nowhere/wires.log")),
    links={"h1": 0, "h2": 2},
)
DOWN: dict[str, Any] = {"flags": ["BROADCAST"]}
NO_CARRIER: dict[str, Any] = {"flags": ["UP", "NO-CARRIER"]}
DROPS: dict[str, Any] = {"qdisc": HOLE}


def interfaces(**changed: dict[str, Any]) -> dict[str, Any]:
    """Return interfaces that are all up, but for those given (`s1_eth1=...`)."""
    none = {"packets": 0, "bytes": 0}
    up = {"flags": ["UP", "LOWER_UP"], "stats64": {"rx": none, "tx": none}}
    names = ("s1-eth1", "s1-eth2", "w-s1-eth1", "w-s1-eth2", "w-h1-eth0", "w-h2-eth0")
    return {name: {**up, **changed.get(name.replace("-", "_"), {})} for name in names}


@pytest.mark.parametrize(
    ("wires", "changed", "down"),
    [
        pytest.param(None, {}, [], id="all-up"),
        pytest.param(None, {"s1_eth1": NO_CARRIER}, ["h1:s1"], id="hosts-end-down"),
        pytest.param(None, {"s1_eth2": DROPS}, ["h2:s1"], id="bmv2-drops"),
        pytest.param(WIRES, {}, [], id="wires-all-up"),
        pytest.param(WIRES, {"w_h1_eth0": DOWN}, ["h1:s1"], id="wires-end-down"),
        pytest.param(WIRES, {"w_h1_eth0": NO_CARRIER}, ["h1:s1"], id="hosts-end-down-at-a-wire"),
        pytest.param(WIRES, {"s1_eth2": NO_CARRIER}, ["h2:s1"], id="switchs-end-down-at-a-wire"),
    ],
)
def test_links_that_are_down(
    wires: WiresState | None, changed: dict[str, dict[str, Any]], down: list[str]
) -> None:
    found = reading.lines(cluster_state("c1", wires=wires), interfaces(**changed))
    assert list(found) == ["h1:s1", "h2:s1"]
    assert [name for name, line in found.items() if not line.is_up] == down


def test_a_wire_that_has_gone_carries_nothing() -> None:
    left = interfaces()
    del left["w-h2-eth0"]
    found = reading.lines(cluster_state("c1", wires=WIRES), left)
    assert [name for name, line in found.items() if not line.is_up] == ["h2:s1"]
