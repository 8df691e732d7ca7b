"""What a rack refuses to be, and what the controller is told about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.config import parse_config
from tests.topologies.states import cluster_state
from topologies.errors import TopologyError
from topologies.rack import RackOptions, controller_config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": 1}, "2 to 32 hosts, not 1"),
        ({"hosts": 33}, "2 to 32 hosts, not 33"),
        ({"path_mtu": 1500}, "1500 is none of RoCE's: 256, 512"),
        ({"loss": 1.0}, "loss of 1 is no probability"),
        ({"switch_loss": -0.1}, "switch loss of -0.1 is no probability"),
        ({"delay_ms": -1.0}, "delay of -1 ms is negative"),
        ({"pcap": Path("/nowhere/at/all")}, "no directory /nowhere/at/all for captures"),
    ],
)
def test_racks_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"name": "c1", "hosts": 4, **changes}
    with pytest.raises(TopologyError, match=message):
        RackOptions(**fields).validate()


def test_the_controller_takes_its_configuration() -> None:
    config = parse_config(controller_config(cluster_state("c1")))
    assert [(host.name, str(host.ip), host.port, host.switch) for host in config.hosts] == [
        ("h1", "10.0.0.1", 1, "s1"),
        ("h2", "10.0.0.2", 2, "s1"),
    ]
    assert config.path_mtu == 1024
    assert config.switches[0].address == "127.0.0.1:9559"
