"""Spine-leaf fabrics: what they refuse to be, and real ones without their controller."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controller.config import Target
from tests.e2e.conftest import TARGETS
from topologies import namespaces, state, wires
from topologies.errors import TopologyError
from topologies.fabric import Fabric
from topologies.namespaces import run, run_inside
from topologies.processes import wait_until
from topologies.spine_leaf import SpineLeafOptions
from topologies.switches import BMV2


def _options(**changes: Any) -> SpineLeafOptions:
    return SpineLeafOptions(**{"name": "c1", "spines": 2, "leaves": 2, "hosts": 5, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spines": 5}, "1 to 4 spines, not 5"),
        ({"leaves": 9}, "1 to 8 leaves, not 9"),
        ({"hosts": 65}, "2 to 64 hosts, not 65"),
        ({"hosts": (3, 2, 1)}, "3 numbers of hosts do not fit 2 leaves"),
        ({"path_mtu": 1500}, "1500 is none of RoCE's"),
        ({"host_kinds": ("emulated",) * 4}, "4 kinds of host do not fit 5 hosts"),
    ],
)
def test_fabrics_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        _options(**changes).validate()


def test_uplinks_are_as_fast_as_hosts_unless_said_otherwise() -> None:
    assert _options(rate_mbit=100.0).uplink_shape.rate_mbit == 100.0
    assert _options(rate_mbit=100.0, uplink_rate_mbit=40.0).uplink_shape.rate_mbit == 40.0
    assert _options(rate_mbit=100.0, uplink_rate_mbit=None).uplink_shape.rate_mbit is None


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fabrics without a controller, in a state directory of their own (short, as a socket's path is)."""
    directory = tempfile.mkdtemp(prefix="p4r-")
    monkeypatch.setenv("P4REDUCE_STATE_DIR", directory)
    monkeypatch.setattr(Fabric, "_start_controller", lambda self: None)
    yield
    assert os.listdir(directory) == []
    shutil.rmtree(directory)


def _name() -> str:
    return f"f{os.getpid()}"


@pytest.mark.emulation
@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("target", TARGETS)
def test_up_links_switches_and_down(target: Target) -> None:
    options = _options(name=_name(), switch=target, rate_mbit=100.0, uplink_rate_mbit=40.0, path_mtu=4096)
    with Fabric(options) as fabric:
        cluster = fabric.state
        assert state.load(cluster.name) == cluster
        assert [switch.name for switch in cluster.switches] == ["l1", "l2", "s1", "s2"]
        assert [host.switch for host in cluster.hosts] == ["l1", "l1", "l1", "l2", "l2"]
        processes = [switch.process for switch in cluster.switches]
        assert all(process.alive() for process in processes)
        for link in cluster.links:
            for end in (link.a_interface, link.b_interface):
                assert "rate 40Mbit" in run("tc", "qdisc", "show", "dev", end)
                assert "mtu 4224" in run("ip", "link", "show", "dev", end)
        assert "rate 100Mbit" in run("tc", "qdisc", "show", "dev", "l1-eth1")
        first = cluster.hosts[0].process.pid
        assert len(run_inside(first, "ip", "neigh", "show", "nud", "permanent").splitlines()) == 4

        fabric.faults.set_link("l1:s2", up=False)
        up = {wire.link.name: wire.is_up for wire in wires.wires(cluster)}
        assert up == {"l1:s1": True, "l1:s2": False, "l2:s1": True, "l2:s2": True}
        fabric.faults.set_link("l1:s2", up=False)
        assert not wires.wires(cluster)[1].is_up
        for _ in range(2):
            fabric.faults.set_link("s2:l1", up=True)
        assert all(wire.is_up for wire in wires.wires(cluster))
        assert "rate 40Mbit" in run("tc", "qdisc", "show", "dev", "l1-eth102")

        fabric.faults.kill_switch("s1")
        assert not cluster.switch("s1").process.alive()
        fabric.check()  # it was asked for
        fabric.faults.restart_switch("s1")
        again = fabric.state.switch("s1")
        assert again.process.alive()
        assert replace(again, process=cluster.switch("s1").process) == cluster.switch("s1")
        with pytest.raises(TopologyError, match="has no switch 's9', it has l1, l2, s1, s2"):
            fabric.faults.kill_switch("s9")
    assert not any(process.alive() for process in [*processes, again.process])
    assert not namespaces.exists(cluster.namespace)


@pytest.mark.emulation
@pytest.mark.usefixtures("_alone")
def test_a_switch_that_dies_by_itself_is_named() -> None:
    with Fabric(_options(name=_name(), spines=1, hosts=2)) as fabric:
        switch = fabric.state.switch("l2").process
        switch.signal(signal.SIGKILL)
        assert wait_until(lambda: not switch.alive(), timeout_s=10)
        with pytest.raises(TopologyError, match="switch l2 has ended"):
            fabric.check()


@pytest.mark.emulation
@pytest.mark.usefixtures("_alone")
def test_a_switch_that_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ["sh", "-c", "echo no such card; exit 3"]
    monkeypatch.setattr("topologies.switches.EmbeddedSwitch.program", lambda self: broken)
    with (
        pytest.raises(TopologyError, match=r"switch l[12] \(embedded\) does not start: no such card"),
        Fabric(_options(name=_name(), spines=1, hosts=2)),
    ):
        pytest.fail("it has started")


@pytest.mark.bmv2
@pytest.mark.skipif(shutil.which(BMV2) is None, reason=f"{BMV2} is not on the PATH")
@pytest.mark.emulation
@pytest.mark.usefixtures("_alone")
def test_two_bmv2_fabrics_at_once() -> None:
    one = _options(name=f"{_name()}a", spines=1, hosts=2, switch=Target.BMV2)
    with Fabric(one) as first:
        with first.outside(), Fabric(replace(one, name=f"{_name()}b")) as second:
            second.check()
        first.check()
        listening = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
        assert all(f"127.0.0.1:{port}" in listening for port in (9559, 9560, 9561))
