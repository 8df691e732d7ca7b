"""A cluster on paper and what it answers, for the live view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.api import controller_pb2 as pb
from p4reduce.live.reading import Agent, Answer, Line, Reading, SlotUse
from tests.topologies.states import fabric_state
from topologies.state import ClusterState
from topologies.wires import Traffic


def fabric(name: str = "c1") -> ClusterState:
    """Return two leaves of two hosts, two spines; 100 Mbit/s, 50 between switches."""
    return fabric_state(name)


def job(name: str = "train", phase: Any = pb.RUNNING, **fields: Any) -> pb.JobInfo:
    """Return a job of two workers, on h1 and h3."""
    info = pb.JobInfo(
        spec=pb.JobSpec(name=name, world_size=2), phase=phase, mode=pb.IN_NETWORK, generation=7, **fields
    )
    for rank, host in enumerate(("h1", "h3")):
        info.workers.add(worker=pb.Worker(rank=rank), host=host, connected=True, heard_s_ago=0.5)
    for switch, role in (("l1", "leaf"), ("l2", "leaf"), ("s1", "spine")):
        info.places.add(switch=switch, role=role, slots=256)
    return info


def flow(
    switch: str, rank: int, *, job: str = "train", generation: int = 7, **packets: int
) -> pb.FlowCounters:
    """Return a flow's counters; packets have 1000 bytes."""
    found = pb.FlowCounters(job=job, generation=generation, rank=rank, switch=switch)
    for name, number in packets.items():
        found.counters[name].packets = number
        found.counters[name].bytes = 1000 * number
    return found


def status(**away: str) -> pb.Status:
    """Return a status with all switches connected, but for those `away`, which give the reason."""
    return pb.Status(
        switches=[
            pb.SwitchInfo(
                name=name,
                target="embedded",
                connected=name not in away,
                state=away.get(name, "connected"),
                slots=8192,
                slots_used=256,
                jobs=1,
            )
            for name in ("l1", "l2", "s1", "s2")
        ]
    )


def line(name: str, up: int = 0, down: int = 0, *, is_up: bool = True) -> Line:
    """Return a link, and the bytes that went over it."""
    uplink = name.startswith("l")
    return Line(
        name=name,
        is_up=is_up,
        up=Traffic(up // 1000, up),
        down=Traffic(down // 1000, down),
        rate_mbit=50.0 if uplink else 100.0,
        uplink=uplink,
    )


def lines(**changes: Line) -> Mapping[str, Line]:
    """Return links without traffic, but for those that are given (h1_l1=...)."""
    names = ("h1:l1", "h2:l1", "h3:l2", "h4:l2", "l1:s1", "l1:s2", "l2:s1", "l2:s2")
    return {name: changes.get(name.replace(":", "_"), line(name)) for name in names}


def reading(**changes: Any) -> Reading:
    """Return a job that runs: two answers to each question, two seconds apart."""
    fields: dict[str, Any] = {
        "at": 12.0,
        "cluster": fabric(),
        "jobs": [job()],
        "status": status(),
        "flows": Answer(
            12.0,
            [flow("l1", 0, aggregated=21_000), flow("l2", 1, aggregated=21_000), flow("s1", 0, aggregated=9)],
            Answer(10.0, [flow("l1", 0, aggregated=1_000), flow("l2", 1, aggregated=11_000)]),
        ),
        "lines": Answer(
            12.0,
            lines(h1_l1=line("h1:l1", up=25_000_000), l1_s1=line("l1:s1", down=12_500_000)),
            Answer(10.0, lines(h1_l1=line("h1:l1", up=0), l1_s1=line("l1:s1"))),
        ),
        "slots": Answer(11.0, {("train", "l1"): SlotUse(open=3, allocated=256)}),
        "agents": Answer(
            12.0,
            {("train", 0): Agent({"retransmitted_packets": 10.0, "collectives.in_network": 4.0})},
            Answer(10.0, {("train", 0): Agent({"retransmitted_packets": 4.0})}),
        ),
        "links": [pb.Link(a=a, b=b, up=True, state="up") for a in ("l1", "l2") for b in ("s1", "s2")],
    }
    return Reading(**{**fields, **changes})
