"""Racks: what they refuse to be, and what the controller is told about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.config import parse_config
from tests.topologies.states import cluster_state
from topologies import namespaces
from topologies.controlling import controller_config
from topologies.errors import TopologyError
from topologies.fabric import Fabric
from topologies.machines import machine
from topologies.rack import RackOptions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": 1}, "2 to 32 hosts, not 1"),
        ({"hosts": 33}, "2 to 32 hosts, not 33"),
        ({"path_mtu": 1500}, "1500 is none of RoCE's: 256, 512"),
        ({"loss": 1.0}, "loss of 1 is no probability"),
        ({"switch_loss": -0.1}, "switch loss of -0.1 is no probability"),
        ({"delay_ms": -1.0}, "delay of -1 ms is negative"),
        ({"pcap": Path("/proc/self/status")}, "/proc/self/status is no directory: name one for captures"),
        ({"host_kinds": ("roce",) * 3}, "3 kinds of host do not fit 4 hosts"),
        ({"host_kinds": ("emulated", "tofu") * 2}, "'tofu' is no kind of host, there are emulated, roce"),
    ],
)
def test_racks_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"name": "c1", "hosts": 4, **changes}
    with pytest.raises(TopologyError, match=message):
        RackOptions(**fields).validate()


def test_machines_need_their_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "require_programs", lambda: None)
    options = RackOptions(name="c1", hosts=2, host_kinds=("emulated", "roce"))
    with pytest.raises(TopologyError, match=r"has not been built .* run 'make roce-image'"):
        options.validate()
    options = RackOptions(name="c1", hosts=2, host_kinds=("emulated",) * 2)
    options.validate()
    assert options.kinds == RackOptions(name="c1", hosts=2).kinds


def test_a_directory_without_a_state_is_no_obstacle(
    state_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave what a removal that was killed half way left: ssh-keygen would ask whether to overwrite."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for change in ("create", "delete"):
        monkeypatch.setattr(namespaces, change, lambda name: None)
    left = state_directory / "c1"
    left.mkdir()
    (left / "ssh_key").write_text("old")
    rack = Fabric(RackOptions(name="c1", hosts=2))
    rack._claim()
    assert sorted(path.name for path in left.iterdir()) == ["cluster.json", "metrics"]
    rack.stop()
    assert list(state_directory.iterdir()) == []


def test_the_controller_takes_its_configuration() -> None:
    config = parse_config(controller_config(cluster_state("c1")))
    assert [(host.name, str(host.ip), host.port, host.switch) for host in config.hosts] == [
        ("h1", "10.0.0.1", 1, "s1"),
        ("h2", "10.0.0.2", 2, "s1"),
    ]
    assert config.path_mtu == 1024
    assert config.switches[0].address == "127.0.0.1:9559"
