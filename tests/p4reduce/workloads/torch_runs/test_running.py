"""Load of the links while a script runs, also where the controller ends and is started again."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from p4reduce.workloads import links
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.run_file import LinkBytes
from p4reduce.workloads.torch_runs import running
from tests.topologies.states import cluster_state
from topologies import state
from topologies.state import ClusterState

Look = dict[str, LinkBytes]


class Fabric:
    """Links that can be looked at, or not; a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 100.0
        self.carried = {"h1:s1": LinkBytes(up=0, down=0), "h2:s1": LinkBytes(up=0, down=0)}
        self.is_known = True
        self.made = 0
        monkeypatch.setattr(links, "link_look", self._link_look)
        monkeypatch.setattr(time, "monotonic", lambda: self.at)
        monkeypatch.setattr(state, "load", lambda name: cluster_state(name))

    def _link_look(self, cluster: ClusterState) -> Callable[[], Look]:
        self.made += 1
        born = self.made

        def look() -> Look:
            if not self.is_known or born < self.made:  # a controller that was started again is another one
                raise WorkloadError("the controller has ended")
            return dict(self.carried)

        return look

    def carry(self, seconds: float, **up: int) -> None:
        """Let time go by, and bytes go up the hosts' links."""
        self.at += seconds
        for host, count in up.items():
            before = self.carried[f"{host}:s1"]
            self.carried[f"{host}:s1"] = LinkBytes(up=before.up + count, down=before.down)


def test_the_busiest_link_in_the_last_second(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(monkeypatch)
    rates = running._Rates(cluster_state("c1"))
    assert rates.busiest() is None  # one look is none
    fabric.carry(0.5, h1=1_000_000, h2=500_000)
    assert rates.busiest() == ("h1:s1", 16.0)
    for _ in range(4):
        fabric.carry(0.5, h2=2_000_000)
        found = rates.busiest()
    assert found == ("h2:s1", 32.0)  # what h1 sent is long ago


def test_without_a_controller_nothing_is_known_and_with_a_new_one_it_is_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(monkeypatch)
    rates = running._Rates(cluster_state("c1"))
    before = dict(fabric.carried)
    rates.busiest()
    fabric.is_known = False
    fabric.carry(0.5, h1=1_000_000)
    assert rates.busiest() is None
    assert rates.since(before) == {}
    fabric.is_known = True
    assert rates.busiest() is None  # the first look of a new one
    fabric.carry(0.5, h1=1_000_000)
    assert rates.busiest() == ("h1:s1", 16.0)
    assert rates.since(before)["h1:s1"] == LinkBytes(up=2_000_000, down=0)
