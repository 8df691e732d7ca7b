"""Bytes over links, as the kernel has them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.links import decode, link_look, settled_link_bytes
from p4reduce.workloads.run_file import LinkBytes
from tests.topologies.states import cluster_state, fabric_state, myself

DEV = """\
Inter-|   Receive                                           |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 5973455  516    0    0    0     0          0         0 5973455     516    0    0    0     0       0        0
s1-eth1:1234567890123 9 0    0    0     0          0         0      77       1    0    0    0     0       0        0
"""  # noqa: E501


def test_proc_net_dev() -> None:
    assert decode(DEV) == {"lo": (5973455, 5973455), "s1-eth1": (1234567890123, 77)}


def test_this_machine_has_a_proc_net_dev_of_that_kind() -> None:
    assert "lo" in decode(Path(f"/proc/{os.getpid()}/net/dev").read_text())


def test_links_are_counted_at_the_switches_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {"s1-eth1": (1, 2), "s1-eth2": (3, 4)}
    (uplink,) = fabric_state("c2", spines=1, hosts=(2,)).links
    uplink = replace(uplink, a_interface="leaf", b_interface="spine")
    cluster = cluster_state("c1", links=[uplink], controller_process=myself())
    counted["leaf"], counted["spine"] = (10, 20), (30, 40)
    monkeypatch.setattr("p4reduce.workloads.links.decode", lambda text: counted)
    found = link_look(cluster)()
    assert found["h1:s1"] == LinkBytes(up=1, down=2)
    assert found[uplink.name] == LinkBytes(up=20, down=40)  # what leaf and spine send
    assert len(found) == len(cluster.hosts) + len(cluster.links)


def test_a_cluster_without_a_controller() -> None:
    with pytest.raises(WorkloadError, match="cluster c1 has no controller"):
        link_look(replace(cluster_state("c1"), controller_process=None))


@pytest.mark.parametrize("carries", [0, 2, 1000])
def test_what_is_still_in_a_queue_is_waited_for(carries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check also that a link that never stops is not waited for."""
    cluster = cluster_state("c1", controller_process=myself())
    looks: list[int] = []

    def counted(text: str) -> dict[str, tuple[int, int]]:
        looks.append(min(len(looks), carries))
        return {"s1-eth1": (looks[-1], 0), "s1-eth2": (0, 0)}

    monkeypatch.setattr("p4reduce.workloads.links.decode", counted)
    monkeypatch.setattr("p4reduce.workloads.links._SETTLED_S", 0.0)
    found = settled_link_bytes(cluster)
    assert found["h1:s1"].up == min(carries, 20)
    assert len(looks) == min(carries + 2, 21)
