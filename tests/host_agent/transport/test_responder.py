"""Receiving: order, acknowledgements, early messages, and everything that must never be taken for a sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from host_agent.transport import EventType, FailureCode
from host_agent.wire.aggregation import AggregationHeader, Flags
from host_agent.wire.headers import Opcode
from tests.host_agent.transport.peer import MS, Peer, passing, sum_of

LANES = 192  # 4 packets of path MTU 256
FIRST = 2000  # the predecessor's
ACK, NAK = 0x1F, 0x60


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer.of()
    yield peer
    peer.endpoint.close()


def expect_sum(peer: Peer, messages: int = 1) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Post a SUM, let the contribution go; where its result will be."""
    result = np.full(LANES * messages, -1, np.int32)
    peer.endpoint.post(sum_of(np.zeros(LANES * messages, np.int32), result), peer.now)
    peer.poll()
    return result


def result_of(peer: Peer, message: int = 0, of: int = 1) -> list[bytes]:
    values = (np.arange(LANES) + 1000 * message).astype(">i4")
    header = peer.header(message, LANES, tensor_elements=LANES * of)
    return peer.message(FIRST + 4 * message, header, values.tobytes())


def passed(peer: Peer, message: int, data: bytes) -> list[bytes]:
    header = peer.header(
        message, len(data), op=0, element_type=0, reduction=0, tensor_elements=0, flags=0,
        packets=1 + max(1, -(-len(data) // 256)),
    )  # fmt: skip
    return peer.message(FIRST + 4 * message, header, data or bytes(256))


def test_a_result_lands_in_place_and_is_acknowledged_once(peer: Peer) -> None:
    result = expect_sum(peer)
    peer.give(*result_of(peer))
    assert peer.answers() == [(ACK, FIRST + 3)]
    assert np.array_equal(result, np.arange(LANES))
    assert [e.type for e in peer.endpoint.events()] == [EventType.RECEIVED]


def test_acknowledgements_of_a_batch_are_merged(peer: Peer) -> None:
    expect_sum(peer, messages=2)
    for message in range(2):
        peer.give(*result_of(peer, message, of=2))
    assert peer.answers() == [(ACK, FIRST + 7)]


def test_one_nak_for_a_gap_until_it_is_filled(peer: Peer) -> None:
    result = expect_sum(peer)
    frames = result_of(peer)
    peer.give(frames[0], frames[2])
    assert peer.answers() == [(NAK, FIRST + 1)]
    peer.give(frames[3], frames[2])
    assert peer.answers() == []
    peer.give(*frames[1:])
    assert peer.answers() == [(ACK, FIRST + 3)]
    assert np.array_equal(result, np.arange(LANES))


def test_a_gap_that_closes_within_a_batch_needs_no_nak(peer: Peer) -> None:
    expect_sum(peer)
    frames = result_of(peer)
    peer.give(frames[1], frames[0], frames[1])
    assert peer.answers() == [(ACK, FIRST + 1)]


def test_a_nak_that_does_not_help_is_repeated_ever_more_rarely(peer: Peer) -> None:
    """Check its intervals. The resent packet can be lost as well, and a requester by the book would notice
    only at its timeout.
    """
    expect_sum(peer)
    peer.ack(1003)
    frames = result_of(peer)
    peer.give(frames[2])
    assert peer.answers() == [(NAK, FIRST)]
    waits = []
    for _ in range(4):
        waits.append(peer.until_timer() // MS)
        assert peer.answers() == [(NAK, FIRST)]
    assert waits == [10, 20, 40, 80]
    peer.give(frames[0], frames[1], frames[2])
    peer.answers()
    peer.now += 10_000 * MS
    assert peer.answers() == []  # nothing is known to be missing any more


def test_duplicates_are_acknowledged_once_a_batch(peer: Peer) -> None:
    result = expect_sum(peer)
    frames = result_of(peer)
    peer.give(*frames)
    peer.answers()
    result[:] = 7
    peer.give(*frames)
    assert peer.answers() == [(ACK, FIRST + 3)]
    assert (result == 7).all()
    assert peer.endpoint.counters().duplicates_received == 4


def test_what_is_too_far_ahead_is_not_asked_for(peer: Peer) -> None:
    """Check the limit: the predecessor has at most 2W messages unacknowledged."""
    expect_sum(peer)
    peer.give(peer.data(FIRST + 2 * 2 * 4 + 1, bytes(256)))
    assert peer.answers() == []
    peer.give(peer.data(FIRST + 2 * 2 * 4, bytes(256)))
    assert peer.answers() == [(NAK, FIRST)]


def test_passed_messages_may_come_before_they_are_posted(peer: Peer) -> None:
    for message in range(2):
        peer.give(*passed(peer, message, bytes([message + 1]) * 768))
    assert peer.answers() == [(ACK, FIRST + 7)]
    assert peer.endpoint.counters().early_messages == 2
    for message in range(2):
        data = np.zeros(768, np.uint8)
        peer.endpoint.post(passing(np.zeros(768, np.uint8), data), peer.now)
        assert (data == message + 1).all()
    assert [e.type for e in peer.endpoint.events()] == [EventType.RECEIVED] * 2


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_a_post_in_the_middle_of_an_early_message(peer: Peer, before: int) -> None:
    frames = passed(peer, 0, bytes(range(256)) * 3)
    peer.give(*frames[:before])
    data = np.zeros(768, np.uint8)
    peer.endpoint.post(passing(np.zeros(768, np.uint8), data), peer.now)
    peer.give(*frames[before:])
    assert data.tobytes() == bytes(range(256)) * 3


def test_beyond_a_window_of_early_messages_the_receiver_is_not_ready(peer: Peer) -> None:
    frames = [passed(peer, message, b"x" * 768) for message in range(3)]
    peer.give(*frames[0], *frames[1])
    assert peer.answers() == [(ACK, FIRST + 7)]
    peer.give(*frames[2])
    ((syndrome, psn),) = peer.answers()
    assert (syndrome & 0xE0, psn) == (0x20, FIRST + 8)
    peer.endpoint.post(passing(np.zeros(768, np.uint8), np.zeros(768, np.uint8)), peer.now)
    assert peer.answers() == [(ACK, FIRST + 7)]  # it may come now
    peer.give(*frames[2])
    assert peer.answers() == [(ACK, FIRST + 11)]


def test_receiving_without_a_buffer_discards(peer: Peer) -> None:
    data = np.zeros(10, np.uint8)
    operation = replace(passing(data, None), receive_elements=5)
    op_id = peer.endpoint.post(operation, peer.now)
    peer.give(*passed(peer, 0, b"12345"))
    assert [(e.type, e.op_id) for e in peer.endpoint.events()] == [(EventType.RECEIVED, op_id)]


WRONG_HEADERS: list[tuple[dict[str, object], FailureCode, str]] = [
    ({"flags": Flags.NONE}, FailureCode.NOT_A_RESULT, "no switch on the path aggregated it"),
    ({"flags": Flags.RESULT | Flags.MISMATCH}, FailureCode.MISMATCH, "do not agree on message 0"),
    ({"job": 8}, FailureCode.FOREIGN, "of job 8"),
    ({"generation": 2}, FailureCode.FOREIGN, "generation 2"),
    ({"rank": 0}, FailureCode.FOREIGN, "rank 0; expected"),
    ({"message": 1}, FailureCode.WRONG_MESSAGE, "message 1 arrived where message 0 was expected"),
    ({"op": 0, "flags": Flags.NONE}, FailureCode.WRONG_SHAPE, "operation 0"),
    ({"op": 2}, FailureCode.WRONG_SHAPE, "operation 2 where this worker expects 1"),
    ({"element_type": 2}, FailureCode.WRONG_SHAPE, "element type 2"),
    ({"reduction": 2}, FailureCode.WRONG_SHAPE, "reduction 2"),
    ({"kind": 3}, FailureCode.WRONG_SHAPE, "kind of collective 3 where this worker expects 0"),
    ({"root": 255}, FailureCode.WRONG_SHAPE, "root 255 where this worker expects 0"),
    ({"stage": 3}, FailureCode.WRONG_SHAPE, "stage 3 where this worker expects 0"),
    ({"collective": 9}, FailureCode.WRONG_SHAPE, "collective number 9"),
    ({"tensor_elements": 9}, FailureCode.WRONG_SHAPE, "tensor size 9"),
    ({"elements": 9}, FailureCode.WRONG_SHAPE, "element count 9"),
    ({"packets": 3}, FailureCode.WRONG_SHAPE, "packet count 3"),
]


@pytest.mark.parametrize(("changes", "code", "text"), WRONG_HEADERS)
def test_a_wrong_header_is_fatal_and_leaves_the_buffer(
    peer: Peer, changes: dict[str, object], code: FailureCode, text: str
) -> None:
    result = expect_sum(peer)
    header = replace(peer.header(0, LANES), **changes)  # type: ignore[arg-type]
    peer.give(*peer.message(FIRST, header, bytes(4 * LANES)))
    failure = peer.failure()
    assert (failure.code, failure.message, failure.psn) == (code, 0, FIRST)
    assert text in failure.text
    assert AggregationHeader.unpack(failure.header) == header
    assert (result == -1).all()
    assert peer.poll() == []
    assert peer.endpoint.progress().failed


def test_something_without_a_header_is_fatal(peer: Peer) -> None:
    expect_sum(peer)
    peer.give(peer.data(FIRST, bytes(256), opcode=Opcode.SEND_FIRST))
    assert peer.failure().code is FailureCode.BAD_HEADER


def test_a_result_that_nobody_here_contributed_to_is_fatal(peer: Peer) -> None:
    peer.give(*result_of(peer))
    assert peer.failure().code is FailureCode.WRONG_MESSAGE


def test_early_messages_of_another_shape_are_fatal_when_posted(peer: Peer) -> None:
    peer.give(*passed(peer, 0, b"1234"))
    peer.endpoint.post(passing(np.zeros(5, np.uint8), np.zeros(5, np.uint8)), peer.now)
    assert peer.failure().code is FailureCode.WRONG_SHAPE


@pytest.mark.parametrize(
    ("sequence", "payload_bytes"),
    [
        ([Opcode.SEND_MIDDLE], [256]),
        ([Opcode.SEND_LAST], [256]),
        ([Opcode.SEND_FIRST, Opcode.SEND_FIRST], [256, 256]),
        ([Opcode.SEND_FIRST, Opcode.SEND_ONLY], [256, 256]),
        ([Opcode.SEND_FIRST, Opcode.SEND_LAST], [256, 256]),  # too early: 4 packets were announced
        ([Opcode.SEND_FIRST, Opcode.SEND_MIDDLE], [256, 0]),
        ([Opcode.SEND_FIRST, Opcode.SEND_MIDDLE], [256, 128]),
        ([Opcode.SEND_FIRST, Opcode.SEND_MIDDLE], [256, 512]),
        ([Opcode.SEND_FIRST, *[Opcode.SEND_MIDDLE] * 3], [256] * 4),
        ([Opcode.SEND_FIRST], [200]),
        ([Opcode.SEND_ONLY], [256]),
    ],
)
def test_packets_that_do_not_make_the_message_are_fatal(
    peer: Peer, sequence: list[Opcode], payload_bytes: list[int]
) -> None:
    expect_sum(peer)
    payload = peer.header(0, LANES).pack()
    for index, (opcode, size) in enumerate(zip(sequence, payload_bytes, strict=True)):
        body = payload[:size] if opcode in (Opcode.SEND_FIRST, Opcode.SEND_ONLY) else bytes(size)
        peer.give(peer.data(FIRST + index, body, opcode=opcode))
    assert peer.failure().code is FailureCode.BAD_SEQUENCE


def test_frames_for_others_are_counted(peer: Peer) -> None:
    expect_sum(peer)
    frame = result_of(peer)[0]
    for offset in (29, 33, 49):  # source address, destination address, QP
        other = bytearray(frame)
        other[offset] ^= 1
        peer.give(bytes(other))
    assert peer.endpoint.counters().icrc_errors == 3
    unchecked = Peer(type(peer.endpoint)(replace(peer.config, check_icrc=False)))
    for offset in (29, 33, 49):
        other = bytearray(frame)
        other[offset] ^= 1
        unchecked.give(bytes(other))
    assert unchecked.endpoint.counters().foreign == 3
    assert unchecked.endpoint.counters().data_packets_received == 0


def test_after_halt_a_result_is_ignored(peer: Peer) -> None:
    """Check that arrays stay untouched, as their owner has them back."""
    result = expect_sum(peer)
    frames = result_of(peer)
    peer.give(frames[0], frames[1])
    result[:] = 7
    peer.endpoint.halt()
    peer.give(*frames[2:])
    peer.now += 10_000 * MS
    assert (result == 7).all()
    assert peer.poll() == []
    assert peer.endpoint.next_timeout_ns() is None
    assert peer.endpoint.events() == []


def test_after_halt_what_came_early_is_not_delivered(peer: Peer) -> None:
    peer.give(*passed(peer, 0, b"x" * 300))
    peer.endpoint.halt()
    target = np.full(300, 7, np.uint8)
    peer.endpoint.post(passing(np.zeros(300, np.uint8), target), peer.now)
    assert (target == 7).all()
    assert peer.poll() == []
