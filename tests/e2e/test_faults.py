"""Faults aimed at single packets of a running job: whatever is struck, every sum stays exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.api.admin import AdminClient
from p4reduce.workloads.team import Team
from soft_switch.faults import FaultKind, Packets
from tests.e2e.conftest import all_reduce, joined, rack, unique
from topologies.fabric import Fabric
from topologies.faults import ClusterFaults, PacketFault
from topologies.processes import wait_until
from topologies.spine_leaf import SpineLeafOptions

pytestmark = [pytest.mark.emulation, pytest.mark.timeout(120)]

PATIENCE_S = 30.0
ELEMENTS = 250_000  # a megabyte of int32: 62 messages of 16 packets
PSN_COUNT = 1 << 24


@pytest.fixture(scope="module")
def four() -> Iterator[Fabric]:
    with rack(4) as running:
        yield running


@pytest.fixture(scope="module")
def team(four: Fabric) -> Iterator[Team]:
    """Join one job for all tests, as workers take their time to start."""
    with joined(four, 4, job="aimed") as made:
        yield made


def strike(running: Fabric, team: Team, *faults: PacketFault, **request: Any) -> list[int]:
    """Reduce while there are faults, whose messages count from the job's next; how many each has struck."""
    injected = ClusterFaults(running.state)
    gone = team.do("statistics")[0]["counters"]["messages_received"]
    numbers = [
        injected.add(fault if fault.message is None else replace(fault, message=gone + fault.message))
        for fault in faults
    ]
    try:
        all_reduce(team, **{"elements": ELEMENTS, "dtype": "int32", "seed": 1, **request})
        struck = {number: count for number, _, count in injected.faults()}
    finally:
        injected.clear()
    return [struck[number] for number in numbers]


def counted(running: Fabric, name: str) -> int:
    """Return how many packets of the running job the switch has counted under that name."""
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        return sum(flow.counters[name].packets for flow in admin.counters("aimed"))


AIMED = {
    "first-of-a-message": [{"link": "h2", "direction": "to-switch", "packets": "first", "message": 20}],
    "last-of-a-message": [{"link": "h2", "direction": "to-switch", "packets": "last", "message": 20}],
    "first-of-all-ranks": [
        {"link": f"h{i}", "direction": "to-switch", "packets": "first", "message": 20} for i in range(1, 5)
    ],
    "an-ack": [{"link": "h3", "direction": "to-switch", "packets": "ack"}],
    "an-ack-behind-the-switch": [{"link": "h3", "direction": "to-host", "packets": "ack"}],
    "a-nak": [
        {"link": "h1", "direction": "to-host", "packets": "result", "message": 20, "skip": 5},
        {"link": "h1", "direction": "to-switch", "packets": "nak"},
    ],
    "a-result-to-one-worker": [
        {"link": "h4", "direction": "to-host", "packets": "result", "message": 20, "skip": 7}
    ],
    "the-last-result-to-all-but-one": [
        {"link": f"h{i}", "direction": "to-host", "packets": "last", "message": 30} for i in range(1, 4)
    ],
    "the-same-packet-twice": [
        {"link": f"h{i}", "direction": way, "kind": "duplicate", "packets": "middle", "message": 20}
        for i in (1, 3)
        for way in ("to-switch", "to-host")
    ],
    "a-damaged-packet": [
        {"link": "h2", "direction": way, "kind": "corrupt", "packets": "middle", "message": 20, "seed": seed}
        for seed in range(4)
        for way in ("to-switch", "to-host")
    ],
    "overtaken": [
        {"link": "h2", "direction": way, "kind": "reorder", "packets": packets, "message": 20}
        for packets in ("first", "last")
        for way in ("to-switch", "to-host")
    ],
    "held-up": [
        {"link": "h2", "kind": "delay", "direction": "to-switch", "packets": "middle", "delay_ms": 30}
    ],
}


@pytest.mark.parametrize("aimed", AIMED.values(), ids=list(AIMED))
def test_a_single_packet(four: Fabric, team: Team, aimed: Sequence[dict[str, Any]]) -> None:
    faults = [PacketFault(**{"kind": "loss", "count": 1, **fields}) for fields in aimed]
    assert strike(four, team, *faults) == [1] * len(faults)
    all_reduce(team, elements=5_003, dtype="float32", seed=2)


def test_stale_duplicates_after_a_slot_was_reused(four: Fabric, team: Team) -> None:
    """Repeat a message's packets hundreds of messages later, when its slots have other messages' sums."""
    elements, before = 2_000_000, counted(four, "stale")
    for _ in range(5):
        [took_s] = all_reduce(team, elements=elements, dtype="int32", seed=1)[0]["seconds"]
        faults = [
            PacketFault(
                link=link,
                direction=way,
                kind=FaultKind.DUPLICATE,
                packets=Packets.SEND,
                message=20,
                count=16,
                delay_ms=took_s * 1000 / 3,
            )
            for link, way in (("h2", "to-switch"), ("h3", "to-host"))
        ]
        assert strike(four, team, *faults, elements=elements, repeat=2) == [16, 16]
        # On a busy machine a sum may take several times as long as the one before: then they came too early.
        if wait_until(lambda: counted(four, "stale") > before, timeout_s=5.0):
            break
    assert counted(four, "stale") > before
    all_reduce(team, elements=100_003, dtype="float32", seed=2)


def test_the_psn_wraps_in_the_middle_of_a_message(four: Fabric) -> None:
    """The barrier takes one packet; 39 PSNs later, inside of the third message of 16, is PSN 0."""
    with joined(four, 2, job="wrap", first_psn=PSN_COUNT - 40) as team:
        faults = [
            PacketFault(
                link=link, direction=way, kind=FaultKind.LOSS, packets=Packets.MIDDLE, psn=psn, count=1
            )
            for link, way in (("h1", "to-switch"), ("h2", "to-host"))
            for psn in (PSN_COUNT - 1, 0)
        ]
        assert strike(four, team, *faults) == [1] * 4


def test_packets_between_switches() -> None:
    options = SpineLeafOptions(name=f"e2e-{unique()}", spines=1, leaves=2, hosts=4, path_mtu=1024)
    with Fabric(options) as running, joined(running, 4, job="tree") as team:
        faults = [
            PacketFault(
                link="l1:s1",
                direction="a-to-b",
                kind=FaultKind.LOSS,
                packets=Packets.PARTIAL,
                message=20,
                count=2,
            ),
            PacketFault(
                link="s1:l2",
                direction="a-to-b",
                kind=FaultKind.LOSS,
                packets=Packets.TREE_RESULT,
                count=2,
                skip=99,
            ),
            PacketFault(
                link="l2:s1", kind=FaultKind.DUPLICATE, packets=Packets.TREE, message=30, count=3, delay_ms=5
            ),
        ]
        assert strike(running, team, *faults) == [2, 2, 6]
