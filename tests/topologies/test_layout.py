"""Fabrics on paper: the numbers and addresses that the controller and the switches rely on."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.config import parse_config
from topologies import layout
from topologies.controlling import config_on_paper
from topologies.errors import TopologyError
from topologies.layout import Role


@pytest.mark.parametrize(
    ("hosts", "leaves", "shares"),
    [(10, 4, (3, 3, 2, 2)), (8, 2, (4, 4)), (64, 8, (8,) * 8), (7, 1, (7,)), (3, 2, (2, 1))],
)
def test_hosts_are_spread_evenly(hosts: int, leaves: int, shares: tuple[int, ...]) -> None:
    assert layout.spread(hosts, leaves) == shares


def test_a_rack() -> None:
    rack = layout.rack(3)
    assert [(switch.name, switch.device_id, switch.role) for switch in rack.switches] == [
        ("s1", 1, Role.LEAF)
    ]
    assert [(h.name, str(h.ip), h.mac, h.switch, h.port, str(h.management_ip)) for h in rack.hosts] == [
        ("h1", "10.0.0.1", "02:00:00:00:00:01", "s1", 1, "172.31.0.1"),
        ("h2", "10.0.0.2", "02:00:00:00:00:02", "s1", 2, "172.31.0.2"),
        ("h3", "10.0.0.3", "02:00:00:00:00:03", "s1", 3, "172.31.0.3"),
    ]
    assert rack.links == ()


def test_a_spine_leaf_fabric() -> None:
    fabric = layout.spine_leaf(spines=2, hosts=(2, 1))
    assert [(switch.name, switch.device_id, switch.role.value) for switch in fabric.switches] == [
        ("l1", 1, "leaf"),
        ("l2", 2, "leaf"),
        ("s1", 101, "spine"),
        ("s2", 102, "spine"),
    ]
    assert [(host.name, str(host.ip), host.switch, host.port) for host in fabric.hosts] == [
        ("h1", "10.0.1.1", "l1", 1),
        ("h2", "10.0.1.2", "l1", 2),
        ("h3", "10.0.2.1", "l2", 1),
    ]
    assert [(link.a, link.a_port, link.b, link.b_port) for link in fabric.links] == [
        ("l1", 101, "s1", 1),
        ("l1", 102, "s2", 1),
        ("l2", 101, "s1", 2),
        ("l2", 102, "s2", 2),
    ]
    assert [fabric.address(switch) for switch in fabric.switches] == [
        f"127.0.0.1:{port}" for port in (9559, 9560, 9561, 9562)
    ]


@given(st.integers(1, 4), st.integers(1, 8), st.data())
def test_the_controller_takes_every_fabric(spines: int, leaves: int, data: st.DataObject) -> None:
    hosts = data.draw(
        st.lists(st.integers(1, 8), min_size=leaves, max_size=leaves).filter(lambda h: sum(h) > 1)
    )
    fabric = layout.spine_leaf(spines=spines, hosts=hosts)
    config = parse_config(config_on_paper(fabric, target="embedded", path_mtu=1024))
    assert [len(config.hosts_of(f"l{leaf}")) for leaf in range(1, leaves + 1)] == hosts
    assert config.spines == tuple(f"s{spine}" for spine in range(1, spines + 1))
    macs = {host.mac for host in fabric.hosts}
    assert len(macs) == sum(hosts)
    assert all(host.ip in fabric.network for host in fabric.hosts)
    assert all(host.index == place for place, host in enumerate(fabric.hosts, start=1))


@pytest.mark.parametrize(
    ("spines", "hosts", "message"),
    [
        (0, (2, 2), "1 to 4 spines, not 0"),
        (5, (2, 2), "1 to 4 spines, not 5"),
        (1, (), "1 to 8 leaves, not 0"),
        (1, (1,) * 9, "1 to 8 leaves, not 9"),
        (1, (1,), "2 to 64 hosts, not 1"),
        (1, (32, 32, 1), "2 to 64 hosts, not 65"),
        (1, (33, 1), "leaf l1 has 1 to 32 hosts, not 33"),
        (1, (4, 0), "leaf l2 has 1 to 32 hosts, not 0"),
    ],
)
def test_fabrics_that_cannot_be(spines: int, hosts: tuple[int, ...], message: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(message)):
        layout.spine_leaf(spines=spines, hosts=hosts)
