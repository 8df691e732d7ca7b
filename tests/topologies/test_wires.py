"""Links between switches as the kernel shows them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.topologies.states import cluster_state, fabric_state
from topologies.errors import TopologyError
from topologies.wires import Traffic, decode, since, wires


def _interface(packets: int, *, up: bool = True, qdisc: str = "tbf") -> dict[str, Any]:
    flags = ["BROADCAST", "MULTICAST", *(["UP"] if up else [])]
    return {"flags": flags, "qdisc": qdisc, "stats64": {"tx": {"packets": packets, "bytes": 100 * packets}}}


def test_what_each_end_has_sent() -> None:
    cluster = fabric_state("c1", spines=1)
    interfaces = {
        "l1-eth101": _interface(7),
        "s1-eth1": _interface(9),
        "l2-eth101": _interface(3),
        "s1-eth2": _interface(4, up=False),
    }
    first, second = decode(cluster, interfaces)
    assert (first.link.name, first.is_up) == ("l1:s1", True)
    assert (first.upward, first.downward) == (Traffic(7, 700), Traffic(9, 900))
    assert (second.link.name, second.is_up) == ("l2:s1", False)  # one end is down
    interfaces["l1-eth101"] = _interface(10)
    grown, same = since(decode(cluster, interfaces), [first, second])
    assert (grown.upward, grown.downward) == (Traffic(3, 300), Traffic(0, 0))
    assert (same.upward, same.is_up) == (Traffic(0, 0), False)
    interfaces["l1-eth101"] = _interface(10, qdisc="blackhole")  # as a link of BMv2's is taken down
    assert not decode(cluster, interfaces)[0].is_up


def test_a_rack_has_none() -> None:
    assert wires(cluster_state("c1")) == []


def test_links_by_name() -> None:
    cluster = fabric_state("c1")
    assert cluster.link("l2:s1").a_interface == "l2-eth101"
    assert cluster.link("s2:l1") == cluster.link("l1:s2")
    with pytest.raises(TopologyError, match=r"no link 'l1:s9', it has l1:s1, l1:s2, l2:s1, l2:s2"):
        cluster.link("l1:s9")
    with pytest.raises(TopologyError, match="has no links between switches: it is a rack"):
        cluster_state("c1").link("l1:s1")
