"""Faults on links: where each takes place, and which ones cannot be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from soft_switch.faults import FaultKind, Packets
from tests.topologies.states import GONE, cluster_state, fabric_state
from topologies.errors import TopologyError, UnsupportedError
from topologies.packet_faults import DIRECTIONS, PacketFault, Place, places
from topologies.starting import Start
from topologies.state import ClusterState, WiresState

RACK, FABRIC = cluster_state("c1"), fabric_state("c1")
BEGIN = Start(command=[], directory="/", log="/nowhere")


def loss(link: str, direction: str = "both") -> PacketFault:
    return PacketFault(link=link, direction=direction, kind=FaultKind.LOSS)


@pytest.mark.parametrize(
    ("link", "direction", "expected"),
    [
        ("h2", "both", [("h2", "to-switch", "l1", 2, "in"), ("h2", "to-host", "l1", 2, "out")]),
        ("h3", "to-host", [("h3", "to-host", "l2", 1, "out")]),
        ("h3:l2", "to-host", [("h3", "to-host", "l2", 1, "out")]),  # as doctor and top call it
        ("l2:h3", "to-switch", [("h3", "to-switch", "l2", 1, "in")]),
        ("l1:s2", "a-to-b", [("l1:s2", "a-to-b", "l1", 102, "out")]),
        ("l1:s2", "b-to-a", [("l1:s2", "b-to-a", "l1", 102, "in")]),
        ("s2:l1", "a-to-b", [("l1:s2", "a-to-b", "l1", 102, "in")]),
    ],
)
def test_each_link_has_one_place(link: str, direction: str, expected: list[tuple[object, ...]]) -> None:
    assert [tuple(place) for place in places(FABRIC, loss(link, direction))] == expected


def test_all_links() -> None:
    everywhere = places(FABRIC, loss("*"))
    assert len(everywhere) == len(set(everywhere)) == 2 * (len(FABRIC.hosts) + len(FABRIC.links))
    assert {place.link for place in places(FABRIC, loss("*", "to-host"))} == {"h1", "h2", "h3", "h4"}
    assert {place.link for place in places(FABRIC, loss("*", "a-to-b"))} == {
        link.name for link in FABRIC.links
    }


def test_only_places_that_such_packets_pass() -> None:
    results = PacketFault(link="*", kind=FaultKind.LOSS, packets=Packets.RESULT)
    assert {(place.link, place.way) for place in places(FABRIC, results)} == {
        (host.name, "to-host") for host in FABRIC.hosts
    }
    partial = PacketFault(link="*", kind=FaultKind.LOSS, packets=Packets.PARTIAL)
    assert {place.link for place in places(FABRIC, partial)} == {link.name for link in FABRIC.links}


def test_wires_have_the_faults_of_any_switch() -> None:
    links = {"h1": 0, "h2": 2, "h3": 4, "h4": 6, "l1:s1": 8, "l1:s2": 10, "l2:s1": 12, "l2:s2": 14}
    wired = bmv2(dataclasses.replace(FABRIC, wires=WiresState(process=GONE, start=BEGIN, links=links)))
    assert places(wired, loss("h2", "to-switch")) == [Place("h2", "to-switch", "wires", 2, "in")]
    assert places(wired, loss("l1:s2", "a-to-b")) == [Place("l1:s2", "a-to-b", "wires", 10, "in")]
    assert places(wired, loss("s2:l1", "a-to-b")) == [Place("l1:s2", "a-to-b", "wires", 10, "out")]


def bmv2(cluster: ClusterState) -> ClusterState:
    switches = [dataclasses.replace(switch, target="bmv2") for switch in cluster.switches]
    return dataclasses.replace(cluster, target="bmv2", switches=switches)


@pytest.mark.parametrize(
    ("attempt", "complaint"),
    [
        (lambda: places(RACK, loss("h9")), "no link 'h9': it has h1, h2, and \\* for all"),
        (lambda: places(RACK, loss("l1:s1")), "it is a rack"),
        (lambda: places(FABRIC, loss("h3:l1")), "no link 'h3:l1', it has l1:s1"),
        (lambda: places(FABRIC, loss("l1:s9")), "no link 'l1:s9', it has l1:s1, l1:s2, l2:s1, l2:s2"),
        (lambda: places(RACK, loss("h1", "a-to-b")), "no link 'h1' has a direction a-to-b"),
        (
            lambda: places(FABRIC, PacketFault(link="h1", kind=FaultKind.LOSS, packets=Packets.TREE)),
            "tree packets are never on link h1, both: they are between switches \\(LINK l1:s1",
        ),
        (
            lambda: places(RACK, PacketFault(link="*", kind=FaultKind.LOSS, packets=Packets.ASK)),
            "ask packets are never on link \\*, both: they are between switches .*, in a spine-leaf fabric",
        ),
        (
            lambda: places(
                RACK,
                PacketFault(link="h1", direction="to-switch", kind=FaultKind.LOSS, packets=Packets.RESULT),
            ),
            "result packets are never on link h1, to-switch: .* \\(LINK h1 --direction to-host\\)",
        ),
        (lambda: PacketFault(link="h1", kind=FaultKind.LOSS, copies=3), "copies 3 means nothing to loss"),
        (lambda: loss("h1", "inward"), "'inward' is no direction, there are both, to-switch"),
        (lambda: PacketFault(link="h1", kind=FaultKind.LOSS, seed=-1), "seed -1 is not within 0"),
        (
            lambda: PacketFault.decode({"link": "h1", "kind": "loss", "packets": "some"}),
            "'some' is no kind of packet",
        ),
    ],
)
def test_what_cannot_be(attempt: Callable[[], object], complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        attempt()


def test_bmv2_needs_wires() -> None:
    with pytest.raises(UnsupportedError, match=r"s1 is BMv2, .* bring the cluster up with --fault-wires"):
        places(bmv2(RACK), loss("h1"))


def test_chance_differs_between_places_and_is_the_same_again() -> None:
    fault = PacketFault(link="*", kind=FaultKind.LOSS, probability=0.5, seed=3)
    rules = [fault.at(place) for place in places(FABRIC, fault)]
    assert len({rule.seed for rule in rules}) == len(rules)
    one = PacketFault(link="h1", kind=FaultKind.LOSS, probability=0.5, seed=3)
    assert one.at(places(FABRIC, one)[0]).seed == rules[0].seed
    assert fault.seed == 3


def test_in_words() -> None:
    assert str(PacketFault(link="*", kind=FaultKind.LOSS, probability=0.01)) == (
        "loss on all links, both directions: any packets (1%)"
    )
    stale = PacketFault(
        link="h1",
        direction="to-switch",
        kind=FaultKind.DUPLICATE,
        packets=Packets.SEND,
        message=7,
        skip=1,
        count=2,
        delay_ms=50,
    )
    assert str(stale) == (
        "duplicate on link h1, to-switch: send packets, message 7, after 1, at most 2 (50 ms)"
    )


def test_it_is_written_down_in_the_words_of_the_cli() -> None:
    fault = PacketFault(link="h1", kind=FaultKind.DELAY, packets=Packets.TREE_RESULT, delay_ms=1)
    written = json.loads(json.dumps(fault.encode()))
    assert (written["kind"], written["packets"]) == ("delay", "tree-result")
    assert PacketFault.decode(written) == fault
    assert set(DIRECTIONS) == {"both", "to-switch", "to-host", "a-to-b", "b-to-a"}
