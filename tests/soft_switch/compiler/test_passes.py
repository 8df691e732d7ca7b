"""Clones, resubmitted and recirculated packets, replicas, digests, and what of their metadata they keep.

`flow.p4` writes into a packet what parser, ingress and egress see of it; `test_against_bmv2` plays it too.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from soft_switch.dataplane import DataPlane
from soft_switch.errors import TableError, UnknownEntry
from tests.soft_switch.bits import size, unpack
from tests.soft_switch.conftest import PlaneFactory
from tests.soft_switch.layouts import FLOW_COMMAND as COMMAND
from tests.soft_switch.layouts import SEEN, flow_frame
from tests.soft_switch.programs import program

pytestmark = pytest.mark.slow

LENGTH = size(COMMAND) + size(SEEN)
# Ingress asks with one set of bits, egress with another.
CLONE, CLONE_KEEP, RESUBMIT, DIGEST, MULTICAST, DROP, TRUNCATE, EXIT = (1 << bit for bit in range(8))
RECIRCULATE, DROP_E, TRUNCATE_E, ADD, DIGEST_TWICE, PRIORITY = (1 << bit for bit in range(2, 8))
# standard_metadata.instance_type.
INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATION, RESUBMITTED = 1, 2, 4, 5, 6
VALUE, SOURCE = 1000, 7
PLAIN = {
    "parser_port": SOURCE,
    "port": SOURCE,
    "packet_length": LENGTH,
    "egress_port": 4,
    "egress_length": LENGTH,
    "egress_kept": VALUE,
    "egress_kept_too": VALUE & 0x1FF,
}

Left = list[tuple[int, dict[str, int], bytes]]


@pytest.fixture(scope="module", params=[True, False], ids=["optimised", "plain"])
def plane(request: pytest.FixtureRequest) -> Iterator[DataPlane]:
    made = DataPlane()
    made.load(program("flow"), optimise=request.param)
    made.clone_set(5, [(2, 20), (3, 30)])
    made.multicast_set(1, [(1, 11), (2, 22)])
    yield made
    made.close()


def send(plane: DataPlane, rest: bytes = b"", **command: int) -> Left:
    """Return what leaves: the port, what was seen (but for zeros), what is behind the headers."""
    left: Left = []
    for port, frame in plane.process(SOURCE, flow_frame(**{"port": 4, "value": VALUE, **command}) + rest):
        seen = unpack(SEEN, frame[size(COMMAND) :])
        left.append((port, {name: value for name, value in seen.items() if value}, frame[LENGTH:]))
    return left


def test_straight_through(plane: DataPlane) -> None:
    assert send(plane, b"rest") == [
        (4, {**PLAIN, "packet_length": LENGTH + 4, "egress_length": LENGTH + 4}, b"rest")
    ]


def test_a_clone_in_ingress_is_the_packet_as_it_came_in(plane: DataPlane) -> None:
    clone = {"egress_instance": INGRESS_CLONE, "egress_length": LENGTH}
    assert send(plane, ingress_op=CLONE, session=5) == [
        (2, {**clone, "egress_port": 2, "rid": 20}, b""),
        (3, {**clone, "egress_port": 3, "rid": 30}, b""),
        (4, PLAIN, b""),
    ]
    assert [
        (port, seen.get("egress_kept")) for port, seen, _ in send(plane, ingress_op=CLONE_KEEP, session=5)
    ] == [
        (2, VALUE),
        (3, VALUE),
        (4, VALUE),
    ]


def test_a_clone_in_egress_is_the_packet_as_egress_left_it(plane: DataPlane) -> None:
    after = {**PLAIN, "egress_instance": EGRESS_CLONE, "egress_kept": 0, "egress_kept_too": 0}
    for op, kept in ((CLONE, {"egress_kept": 0, "egress_kept_too": 0}), (CLONE_KEEP, {})):
        clone = {**PLAIN, **after, **{k: PLAIN[k] for k in ("egress_kept", "egress_kept_too")}, **kept}
        wanted = [(4, PLAIN, b"")]
        for port, instance in ((2, 20), (3, 30)):
            seen = {**clone, "egress_port": port, "rid": instance}
            wanted.append((port, {name: value for name, value in seen.items() if value}, b""))
        assert send(plane, egress_op=op, session=5) == wanted


def test_a_dropped_packet_is_cloned(plane: DataPlane) -> None:
    for command in ({"ingress_op": CLONE | DROP}, {"egress_op": CLONE | DROP_E}):
        ports = [port for port, _, _ in send(plane, session=5, **command)]  # type: ignore[arg-type]
        # The clone of an ingress clone would be one too many: it asks for the same in egress and is dropped.
        assert ports == ([2, 3] if "ingress_op" in command else [])


def test_sessions(plane: DataPlane) -> None:
    for session in (0, 9, 0x7FFF):
        assert [port for port, _, _ in send(plane, ingress_op=CLONE, session=session)] == [4]
        plane.clone_set(session, [(1, 1)])
        assert [port for port, _, _ in send(plane, ingress_op=CLONE, session=session)] == [1, 4]
        assert [port for port, _, _ in send(plane, ingress_op=CLONE, session=session | 0x8000)] == [1, 4]
        plane.clone_delete(session)
        assert [port for port, _, _ in send(plane, ingress_op=CLONE, session=session)] == [4]
        with pytest.raises(UnknownEntry, match=str(session)):
            plane.clone_delete(session)
    with pytest.raises(TableError, match="32768"):
        plane.clone_set(0x8000, [])
    with pytest.raises(UnknownEntry):
        plane.clone_delete(-1)


def test_clones_of_a_session_can_be_cut(plane: DataPlane) -> None:
    plane.clone_set(8, [(1, 1)], LENGTH + 3)
    for command in ({"ingress_op": CLONE}, {"egress_op": CLONE}):
        for rest in (b"", b"abcdef"):
            cut = {port: rest for port, _, rest in send(plane, rest, session=8, **command)}
            assert cut == {1: rest[:3], 4: rest}
    plane.clone_delete(8)


def test_resubmitted_packets_start_again_with_what_they_keep(plane: DataPlane) -> None:
    again = {
        "parser_instance": RESUBMITTED,
        "instance": RESUBMITTED,
        "packet_length": LENGTH,
        "kept": 2 * VALUE,
        "egress_port": 4,
        "egress_length": LENGTH,
        "egress_kept": 3 * VALUE,
        "egress_kept_too": VALUE & 0x1FF,
    }
    assert send(plane, ingress_op=RESUBMIT) == [(4, again, b"")]
    # Before a drop and before replication.
    for other in (DROP, MULTICAST):
        ports = [port for port, _, _ in send(plane, ingress_op=RESUBMIT | other, group=1)]
        assert ports == ([] if other == DROP else [1, 2])


def test_recirculated_packets_start_again_as_they_left(plane: DataPlane) -> None:
    [(port, seen, rest)] = send(plane, b"tail", egress_op=RECIRCULATE | ADD, rounds=3)
    added = size(SEEN)
    assert (port, len(rest)) == (4, 4 * added + 4)
    assert rest.endswith(b"tail")
    assert (seen["instance"], seen["kept"], seen["kept_too"]) == (
        RECIRCULATED,
        3 * (VALUE + 7),
        VALUE & 0x1FF,
    )
    assert seen["packet_length"] == LENGTH + 4 + 3 * added
    assert "port" not in seen
    assert "egress_instance" not in seen
    assert send(plane, egress_op=RECIRCULATE | DROP_E, rounds=3) == []


def test_replicas_are_cut_only_by_themselves(plane: DataPlane) -> None:
    def lengths(**command: int) -> list[int]:
        frame = flow_frame(port=4, group=1, length=70, **command) + bytes(100)
        return [len(left) for _, left in plane.process(SOURCE, frame)]

    assert lengths(ingress_op=TRUNCATE) == [70]
    assert lengths(ingress_op=TRUNCATE | MULTICAST) == [LENGTH + 100] * 2
    assert lengths(egress_op=TRUNCATE_E, ingress_op=MULTICAST) == [71] * 2
    assert lengths(egress_op=TRUNCATE_E | RECIRCULATE, rounds=1) == [72]
    assert lengths(ingress_op=TRUNCATE, egress_op=TRUNCATE_E) == [70]


def test_every_way_at_once(plane: DataPlane) -> None:
    left = send(plane, ingress_op=CLONE | MULTICAST, egress_op=CLONE, session=5, group=1)
    instances = sorted((seen["egress_instance"], port) for port, seen, _ in left)
    assert instances == sorted([
        (INGRESS_CLONE, 2),
        (INGRESS_CLONE, 3),
        (REPLICATION, 1),
        (REPLICATION, 2),
        *[(EGRESS_CLONE, port) for port in (2, 3)] * 4,
    ])  # fmt: skip


def test_priorities(plane: DataPlane) -> None:
    assert send(plane, egress_op=PRIORITY) == []  # as BMv2, which has one queue unless told otherwise
    other = DataPlane(priority_queues=2)
    other.load(program("flow"))
    assert send(other, egress_op=PRIORITY) == [(4, {**PLAIN, "priority": 1}, b"")]
    other.close()


def test_digests_tell_the_last_asked_for(plane_with: PlaneFactory) -> None:
    plane = plane_with("flow")
    digests: queue.Queue[tuple[str, tuple[int, ...]]] = queue.Queue()
    plane.on_digest(lambda name, values: digests.put((name, values)))
    send(plane, ingress_op=DIGEST | DROP)
    assert digests.get(timeout=10) == ("learn_t", (VALUE, SOURCE, 1))
    send(plane, ingress_op=DIGEST, egress_op=DIGEST_TWICE)
    assert digests.get(timeout=10) == ("other_t", (VALUE << 250, DIGEST))
    send(plane, ingress_op=DIGEST | RESUBMIT, value=2)
    assert [digests.get(timeout=10)[1] for _ in range(3)] == [(2, SOURCE, 1), (2, 0, 1), (2, 0, 1)]
    assert plane.program is not None
    assert plane.program.digests == {"learn_t": (32, 9, 1), "other_t": (300, 8)}


def test_a_digest_callback_that_fails(plane_with: PlaneFactory) -> None:
    plane = plane_with("flow")
    digests: queue.Queue[Any] = queue.Queue()

    def take(name: str, values: tuple[int, ...]) -> None:
        digests.put(values)
        raise ValueError(name)

    plane.on_digest(take)
    for _ in range(2):
        send(plane, ingress_op=DIGEST)
    assert [digests.get(timeout=10)[0] for _ in range(2)] == [VALUE, VALUE]


@pytest.mark.parametrize("op", [1, 2, 3])
def test_a_packet_that_never_ends_does_not_stop_the_others(op: int, plane_with: PlaneFactory) -> None:
    plane = plane_with("forever")
    plane.clone_set(1, [(2, 1), (3, 2)])
    endless = bytes([op]) + bytes(125)
    assert plane.process(1, endless) == []
    assert plane.stats().passes_dropped >= 1
    plane.start()
    for _ in range(3):
        plane.packet_out(endless)
        assert plane.process(1, bytes(130)) == [(1, bytes(130))]
    plane.stop()


def test_packets_that_wait_end_with_their_program(plane_with: PlaneFactory) -> None:
    plane = plane_with("forever")
    plane.clone_set(1, [(2, 1), (3, 2)])
    for op in (1, 2, 3):
        plane.packet_out(bytes([op]) + bytes(125))
    plane.load(program("flow"))
    assert send(plane) == [(4, PLAIN, b"")]
    plane.start()
    plane.load(program("forever"))
    assert plane.process(1, bytes(130)) == [(1, bytes(130))]


def test_packets_that_wait_are_not_mixed_with_one_that_is_processed(plane_with: PlaneFactory) -> None:
    plane = plane_with("flow")
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    plane.on_packet_in(arrived.put)
    plane.packet_out(flow_frame(egress_op=RECIRCULATE, rounds=200, port=255))  # more than are done at once
    assert [port for port, _ in plane.process(SOURCE, flow_frame(port=4))] == [4]
    assert unpack(COMMAND, arrived.get(timeout=10))["port"] == 255
