"""Sending: credits, acknowledgement, go-back-N, timeouts. A message of 192 int32 lanes has 4 packets here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from host_agent.transport import EventType, FailureCode, Operation
from tests.host_agent.transport.peer import MS, Peer, passing, sum_of

# P = 4, path MTU 256: 192 lanes a message (768 bytes), 4 packets each.
LANES = 192
FIRST = 1000


def lanes(messages: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(LANES * messages, dtype=np.int32)


def result_frames(peer: Peer, message: int, of: int) -> list[bytes]:
    """Return the predecessor's result of message `message` of a tensor of `of` messages."""
    header = peer.header(message, LANES, tensor_elements=LANES * of)
    return peer.message(2000 + 4 * message, header, bytes(4 * LANES))


def give_result(peer: Peer, message: int, of: int) -> None:
    peer.give(*result_frames(peer, message, of))


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer.of()
    yield peer
    peer.endpoint.close()


def test_a_window_of_messages_goes_out_and_results_are_the_credit(peer: Peer) -> None:
    peer.endpoint.post(sum_of(lanes(5)), peer.now)
    assert peer.psns() == list(range(FIRST, FIRST + 8))  # W = 2
    peer.ack(FIRST + 7)
    assert peer.psns() == []  # an acknowledgement is no credit
    give_result(peer, 0, of=5)
    assert peer.psns() == [FIRST + 8, FIRST + 9, FIRST + 10, FIRST + 11]
    give_result(peer, 1, of=5)
    give_result(peer, 2, of=5)
    assert peer.psns() == list(range(FIRST + 12, FIRST + 20))


def test_acknowledgement_is_requested_for_each_message(peer: Peer) -> None:
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    assert [p.bth.psn for p in peer.poll() if p.bth.ack_req] == [FIRST + 3, FIRST + 7]


def test_a_passed_message_needs_what_came_in_and_its_own_acknowledgement(peer: Peer) -> None:
    data = np.zeros(768 * 4, np.uint8)
    peer.endpoint.post(passing(data, None, cut_elements=data.size), peer.now)
    assert peer.psns() == list(range(FIRST, FIRST + 8))
    header = peer.header(0, 0, op=0, element_type=0, reduction=0, packets=2, tensor_elements=0, flags=0)
    peer.give(*peer.message(2000, header, bytes(256)))
    assert peer.psns() == []
    peer.ack(FIRST + 3)
    assert peer.psns() == list(range(FIRST + 8, FIRST + 12))


def test_messages_that_came_before_ours_are_credit(peer: Peer) -> None:
    """Receive a message before posting: the predecessor may be ahead by a window."""
    header = peer.header(0, 0, op=0, element_type=0, reduction=0, packets=2, tensor_elements=0, flags=0)
    peer.give(*peer.message(2000, header, bytes(256)))
    peer.poll()
    peer.endpoint.post(passing(np.zeros(10, np.uint8), None), peer.now)
    assert peer.psns() == [FIRST, FIRST + 1]


@pytest.mark.parametrize("aggregated_first", [True, False])
def test_changing_the_kind_drains(peer: Peer, aggregated_first: bool) -> None:
    aggregated, passed = sum_of(lanes(1)), passing(np.zeros(768, np.uint8), None)
    operations: list[Operation] = [aggregated, passed]
    if not aggregated_first:
        operations.reverse()
    for operation in operations:
        peer.endpoint.post(operation, peer.now)
    assert peer.psns() == list(range(FIRST, FIRST + 4))
    if aggregated_first:
        give_result(peer, 0, of=1)
    else:
        header = peer.header(0, 0, op=0, element_type=0, reduction=0, packets=2, tensor_elements=0, flags=0)
        peer.give(*peer.message(2000, header, bytes(256)))
    assert peer.psns() == []
    peer.ack(FIRST + 3)
    assert peer.psns() == list(range(FIRST + 4, FIRST + 8))


def test_operations_follow_each_other_without_a_pause(peer: Peer) -> None:
    peer.endpoint.post(sum_of(lanes(1)), peer.now)
    peer.endpoint.post(sum_of(lanes(1), collective=2), peer.now)
    assert peer.psns() == list(range(FIRST, FIRST + 8))


def test_go_back_from_the_middle_of_an_older_message(peer: Peer) -> None:
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    sent = {p.bth.psn: p for p in peer.poll()}
    peer.nak(FIRST + 2)
    again = peer.poll()
    assert [p.bth.psn for p in again] == list(range(FIRST + 2, FIRST + 8))
    for packet in again:
        first_time = sent[packet.bth.psn]
        assert (packet.bth, packet.payload) == (first_time.bth, first_time.payload)
    assert peer.endpoint.progress().first_unacked_psn == FIRST + 2  # a NAK acknowledges what is before it


def test_a_repeated_nak_waits_for_what_is_under_way(peer: Peer) -> None:
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    peer.psns()
    peer.nak(FIRST + 2)
    assert peer.psns()
    peer.nak(FIRST + 2)
    assert peer.psns() == []
    peer.now += MS
    assert peer.endpoint.next_timeout_ns() == peer.now
    assert peer.psns() == list(range(FIRST + 2, FIRST + 8))
    peer.nak(FIRST + 2)
    peer.ack(FIRST + 7)
    peer.now += MS
    assert peer.psns() == []
    assert peer.endpoint.counters().go_backs == 2


def test_acknowledgements_of_the_past_and_the_future_are_ignored(peer: Peer) -> None:
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    peer.psns()
    peer.ack(FIRST + 3)
    before = peer.endpoint.progress()
    for psn in (FIRST + 3, FIRST - 1, FIRST + 8, FIRST + 2**23):
        peer.ack(psn)
        peer.nak((psn + 2) if psn > FIRST + 3 else FIRST + 1)
    assert peer.psns() == []
    assert peer.endpoint.progress() == before
    assert peer.endpoint.counters().stale_acks == 8


def test_a_straggler_is_retried_one_message_at_a_time_and_ever_more_rarely() -> None:
    peer = Peer.of(rto_low_s=0)
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    peer.psns()
    waits = []
    for _ in range(7):
        waits.append(peer.until_timer() // MS)
        assert peer.psns() == list(range(FIRST, FIRST + 4))
    assert waits == [50, 100, 200, 400, 800, 1000, 1000]
    peer.ack(FIRST + 3)
    timeout = peer.endpoint.next_timeout_ns()
    assert timeout is not None
    assert timeout - peer.now <= 1000 * MS


def test_late_acknowledgements_are_no_loss_while_something_arrives() -> None:
    """Delay acknowledgements behind a window of data, as on a slow link. A repeated packet proves nothing."""
    peer = Peer.of(rto_low_s=0)
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    assert peer.psns() == list(range(FIRST, FIRST + 8))
    for frame in result_frames(peer, 0, of=2):
        peer.now += 40 * MS
        peer.give(frame)
        assert peer.psns() == []
    peer.now += 40 * MS
    peer.give(result_frames(peer, 0, of=2)[3])
    peer.now += 9 * MS
    assert peer.psns() == []
    peer.now += 1 * MS
    assert peer.psns() == list(range(FIRST, FIRST + 4))


def test_after_a_timeout_progress_lets_more_be_resent() -> None:
    peer = Peer.of(window=8)
    peer.endpoint.post(sum_of(lanes(8)), peer.now)
    assert len(peer.psns()) == 32
    peer.now += 50 * MS
    assert peer.psns() == list(range(FIRST, FIRST + 4))
    peer.ack(FIRST + 3)
    assert peer.psns() == list(range(FIRST + 4, FIRST + 12))
    peer.ack(FIRST + 30)
    assert peer.psns() == [FIRST + 31]
    peer.ack(FIRST + 31)
    assert peer.psns() == []
    assert peer.endpoint.next_timeout_ns() is None


def test_the_retry_limit_ends_in_a_clear_failure() -> None:
    peer = Peer.of(retry_limit=3, rto_low_s=0)
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    peer.psns()
    peer.nak(FIRST + 1)
    peer.psns()
    for _ in range(4):
        peer.until_timer()
        peer.psns()
    failure = peer.failure()
    assert (failure.code, failure.message, failure.psn) == (FailureCode.RETRY_LIMIT, 0, FIRST + 1)
    assert "rank 0" in failure.text
    assert "10.1.0.2" in failure.text
    assert "message 0, PSN 1001 after 3 retransmissions" in failure.text
    assert peer.endpoint.next_timeout_ns() is None
    assert peer.poll() == []


def test_receiver_not_ready_waits_its_time_and_is_no_timeout() -> None:
    peer = Peer.of(retry_limit=1)
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    peer.psns()
    for _ in range(20):
        peer.rnr(FIRST, timer=14)  # 1.28 ms
        assert peer.psns() == []
        timeout = peer.endpoint.next_timeout_ns()
        assert timeout is not None
        assert 1.28 * MS <= timeout - peer.now <= 1000 * MS
        peer.now = timeout
        assert peer.psns() == list(range(FIRST, FIRST + 4))
    assert peer.endpoint.counters().timeouts == 0
    peer.ack(FIRST + 3)
    assert peer.psns() == list(range(FIRST + 4, FIRST + 8))


def test_an_acknowledgement_of_the_past_ends_the_wait(peer: Peer) -> None:
    """Acknowledge the past, by which our own responder says that there is room now."""
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    peer.psns()
    peer.rnr(FIRST + 4, timer=31)
    assert peer.psns() == []
    peer.ack(FIRST + 3)
    assert peer.psns() == list(range(FIRST + 4, FIRST + 8))


def test_a_result_acknowledges_what_the_successor_must_have(peer: Peer) -> None:
    """Check it for message m - W: the successor contributes to m after it has the result of m - W."""
    peer.endpoint.post(sum_of(lanes(6)), peer.now)
    peer.psns()
    for message in range(4):
        give_result(peer, message, of=6)
        peer.psns()
    assert peer.endpoint.progress().acked_messages == 2
    assert peer.endpoint.counters().implied_acks == 2


@pytest.mark.parametrize("code", [1, 2, 3])
def test_other_naks_are_fatal(peer: Peer, code: int) -> None:
    peer.endpoint.post(sum_of(lanes(1)), peer.now)
    peer.psns()
    peer.acknowledge(0x60 | code, FIRST)
    assert peer.failure().code is FailureCode.REMOTE_ERROR


def test_the_number_of_frames_is_bounded_and_nothing_is_lost(peer: Peer) -> None:
    peer.endpoint.post(sum_of(lanes(2)), peer.now)
    psns = []
    while packets := peer.poll(max_frames=3):
        assert len(packets) <= 3
        psns += [p.bth.psn for p in packets]
    assert psns == list(range(FIRST, FIRST + 8))


def test_completed_follows_received_when_all_is_acknowledged(peer: Peer) -> None:
    op_id = peer.endpoint.post(sum_of(lanes(1)), peer.now)
    peer.psns()
    give_result(peer, 0, of=1)
    assert [(e.type, e.op_id) for e in peer.endpoint.events()] == [(EventType.RECEIVED, op_id)]
    peer.ack(FIRST + 3)
    assert [(e.type, e.op_id) for e in peer.endpoint.events()] == [(EventType.COMPLETED, op_id)]


def test_an_array_that_is_sent_in_place_may_be_overwritten_by_its_result(peer: Peer) -> None:
    """Resend packets of an aggregated message: their header is right, and the switch ignores the rest."""
    values = lanes(1)
    peer.endpoint.post(sum_of(values), peer.now)
    header = peer.poll()[0].payload
    give_result(peer, 0, of=1)
    assert not values.any()
    peer.now += 60 * MS
    again = [p for p in peer.poll() if p.aeth is None]
    assert again[0].payload == header
    assert [p.bth.psn for p in again] == list(range(FIRST, FIRST + 4))
