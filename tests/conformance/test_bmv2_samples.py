"""BMv2's own tests of simple_switch, of packets: its programs, with the same entries and packets.

They are JSON of before 2019, most of them of P4_14 with an instance intrinsic_metadata or queueing_metadata.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from soft_switch.dataplane import DataPlane, Exact, Match, Ternary

PROGRAMS = Path("targets", "simple_switch", "tests", "testdata")
SOURCES = os.environ.get("BMV2_SOURCES", "")
THERE = bool(SOURCES) and Path(SOURCES, PROGRAMS, "packet_redirect.json").is_file()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not THERE, reason="BMV2_SOURCES does not name a checkout of behavioral-model"),
]

PORT_IN, OUT, COPY, REPLICA = 1, 2, 3, 4
GROUP = SESSION = 1
ANY_INSTANCE = Ternary(0, 0)
FIRST_PASS = Ternary(0, 0xFFFFFFFF)  # of instance_type: neither a clone nor a packet that went round


def load(name: str) -> DataPlane:
    plane = DataPlane()
    plane.load(Path(SOURCES, PROGRAMS, f"{name}.json").read_bytes())
    return plane


# Each first byte is the packet of one test.
STRAIGHT, TO_GROUP, CLONED_IN, CLONED_OUT, RESUBMITTED, ROUND, EXIT = range(1, 8)
ENTRIES: list[tuple[str, list[Match], str, list[int]]] = [
    ("t_ingress_1", [Exact(STRAIGHT), Exact(0)], "_set_port", [OUT]),
    ("t_ingress_1", [Exact(TO_GROUP), Exact(0)], "_multicast", [GROUP]),
    ("t_ingress_1", [Exact(CLONED_IN), Exact(0)], "_set_port", [OUT]),
    ("t_ingress_2", [Exact(CLONED_IN), ANY_INSTANCE], "_clone_i2e", [SESSION]),
    ("t_ingress_1", [Exact(CLONED_OUT), Exact(0)], "_set_port", [OUT]),
    ("t_egress", [Exact(CLONED_OUT), FIRST_PASS, Ternary(0, 0xFF)], "_clone_e2e", [SESSION]),
    # metaA.f1 is kept, and leads to another port the second time.
    ("t_ingress_1", [Exact(RESUBMITTED), Exact(0)], "_set_port", [OUT]),
    ("t_ingress_1", [Exact(RESUBMITTED), Exact(1)], "_set_port", [COPY]),
    ("t_ingress_2", [Exact(RESUBMITTED), FIRST_PASS], "_resubmit", []),
    ("t_ingress_1", [Exact(ROUND), Exact(0)], "_set_port", [OUT]),
    ("t_ingress_1", [Exact(ROUND), Exact(1)], "_set_port", [COPY]),
    ("t_egress", [Exact(ROUND), FIRST_PASS, Ternary(0, 0xFF)], "_recirculate", []),
    ("t_ingress_1", [Exact(EXIT), Exact(0)], "_exit", []),
]


@pytest.fixture(scope="module")
def redirect() -> Iterator[DataPlane]:
    with load("packet_redirect") as plane:
        for table in ("t_ingress_1", "t_ingress_2", "t_egress"):
            plane.set_default(table, "_nop")
        plane.set_default("t_exit", "set_hdr")
        for table, match, action, params in ENTRIES:
            priority = int(any(isinstance(item, Ternary) for item in match))
            plane.insert(table, match, priority=priority, action=action, params=params)
        plane.multicast_set(GROUP, [(1, 1), (2, 2)])
        yield plane


def send(plane: DataPlane, first: int, length: int = 4) -> dict[int, int]:
    """Return what leaves: by port, the packet length that egress saw."""
    left = plane.process(PORT_IN, bytes([first]).ljust(length, b"\0"))
    assert len({port for port, _ in left}) == len(left)
    return {port: data[1] for port, data in left}


def test_straight_through(redirect: DataPlane) -> None:
    assert send(redirect, STRAIGHT) == {OUT: 2}


def test_multicast(redirect: DataPlane) -> None:
    assert send(redirect, TO_GROUP) == {1: 2, 2: 2}


@pytest.mark.parametrize("replicas", [[(COPY, 0)], [(COPY, 0), (REPLICA, 1)]])
def test_clones(redirect: DataPlane, replicas: list[tuple[int, int]]) -> None:
    """A clone of ingress has the length that came in, one of egress that which egress saw."""
    redirect.clone_set(SESSION, replicas)
    assert send(redirect, CLONED_IN) == {OUT: 2, **{port: 4 for port, _ in replicas}}
    assert send(redirect, CLONED_OUT) == {OUT: 2, **{port: 2 for port, _ in replicas}}
    redirect.clone_delete(SESSION)


def test_packets_that_go_round(redirect: DataPlane) -> None:
    assert send(redirect, RESUBMITTED) == {COPY: 2}
    assert send(redirect, ROUND, 6) == {COPY: 2}


def test_exit(redirect: DataPlane) -> None:
    """Check that a packet whose port was not set leaves at port 0."""
    assert list(send(redirect, EXIT)) == [0]


def test_a_header_that_is_added_and_parsed_again() -> None:
    with load("recirc") as plane:
        assert plane.process(PORT_IN, b"\0") == [(PORT_IN, b"\x01\xab")]


def test_parser_errors() -> None:
    with load("parser_error") as plane:
        for sent, left in (
            (bytes(4), bytes(4)),
            (bytes(2), b"\0\0\0\x01\0\0"),
            (b"\0\0\0\xab", b"\0\0\0\x02"),
        ):
            assert plane.process(PORT_IN, sent) == [(PORT_IN, left)]


def test_queueing() -> None:
    """Queues are always empty here; the time at which a packet enters its queue is not zero."""
    with load("queueing") as plane:
        plane.set_default("t_ingress", "set_port", [OUT])
        plane.set_default("t_egress", "copy_queueing_data")
        [(port, frame)] = plane.process(PORT_IN, bytes(256))
    enqueued, enq_depth, waited, deq_depth = frame[2:8], frame[8:11], frame[11:15], frame[15:18]
    assert (port, enq_depth, waited, deq_depth) == (OUT, bytes(3), bytes(4), bytes(3))
    assert any(enqueued)


def test_truncate() -> None:
    with load("truncate") as plane:
        plane.set_default("t_ingress", "_nop")
        plane.insert("t_ingress", [Exact(1)], priority=0, action="_truncate", params=[32, OUT])
        frame = b"\x01".ljust(128, b"\xab")
        assert plane.process(PORT_IN, frame) == [(OUT, frame[:32])]
