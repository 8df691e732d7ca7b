"""Selective retransmission: NAKs that name what arrived, packets kept behind a gap, what is sent again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.transport import EventType, FailureCode
from host_agent.wire.headers import Opcode, RocePacket
from tests.host_agent.transport.peer import MS, Peer, passing, sum_of

# P = 4, path MTU 256: 192 lanes a message (768 bytes), 4 packets each; W = 2.
LANES = 192
OURS, THEIRS = 1000, 2000  # first PSNs
ACK, NAK = 0x1F, 0x60


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer.of(selective=True, rto_low_s=0)
    yield peer
    peer.endpoint.close()


def expect_sum(peer: Peer, messages: int = 2) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Post a SUM, let the contribution go; where its result will be."""
    result = np.full(LANES * messages, -1, np.int32)
    peer.endpoint.post(sum_of(np.zeros(LANES * messages, np.int32), result), peer.now)
    peer.poll()
    return result


def result_frames(peer: Peer, messages: int = 2) -> list[bytes]:
    frames = []
    for message in range(messages):
        header = peer.header(message, LANES, tensor_elements=LANES * messages)
        values = (np.arange(LANES) + LANES * message).astype(">i4")
        frames += peer.message((THEIRS + 4 * message) % 2**24, header, values.tobytes())
    return frames


def told(peer: Peer) -> list[tuple[int, int, int, int]]:
    """Return (syndrome, PSN, MSN, run) of each acknowledgement that the peer sends now."""
    return [
        (packet.aeth.syndrome, packet.bth.psn, packet.aeth.msn, packet.bth.reserved)
        for packet in peer.poll()
        if packet.aeth is not None
    ]


class TestReceiving:
    def test_a_nak_names_what_arrived_behind_the_gap(self, peer: Peer) -> None:
        result = expect_sum(peer)
        frames = result_frames(peer)
        peer.give(frames[0], frames[2])
        assert told(peer) == [(NAK, THEIRS + 1, THEIRS + 2, 0)]
        peer.give(*frames[3:6])
        assert told(peer) == [(NAK, THEIRS + 1, THEIRS + 5, 3)]  # one for those that came in a row
        peer.give(frames[1])
        assert told(peer) == [(ACK, THEIRS + 5, 1, 0)]
        peer.give(*frames[6:])
        assert told(peer) == [(ACK, THEIRS + 7, 2, 0)]
        assert np.array_equal(result, np.arange(2 * LANES))
        assert peer.endpoint.counters().kept_packets == 4

    def test_the_bytes_of_a_nak(self, peer: Peer) -> None:
        """Check a RoCE v2 acknowledgement; its MSN is a PSN, and six of BTH's reserved bits count."""
        expect_sum(peer)
        frames = result_frames(peer)
        peer.give(frames[2], frames[3], frames[4])
        (frame,) = peer.endpoint.poll(peer.now, 8)
        packet = RocePacket.parse(frame)
        assert packet.icrc_ok()
        config = peer.config
        assert (packet.ip.dst, packet.bth.dest_qp) == (config.predecessor.ip, config.predecessor.qpn_out)
        assert frame[42:58].hex() == "1100ffff00000101020007d0600007d4"

    def test_each_gap_has_its_nak(self, peer: Peer) -> None:
        expect_sum(peer)
        frames = result_frames(peer)
        peer.give(frames[1], frames[3], frames[4], frames[6])
        assert told(peer) == [
            (NAK, THEIRS, THEIRS + 1, 0),
            (NAK, THEIRS, THEIRS + 4, 1),
            (NAK, THEIRS, THEIRS + 6, 0),
        ]

    def test_a_filled_gap_before_another_is_acknowledged(self, peer: Peer) -> None:
        expect_sum(peer)
        frames = result_frames(peer)
        peer.give(frames[1], frames[3])
        told(peer)
        peer.give(frames[0])
        assert told(peer) == [(ACK, THEIRS + 1, 0, 0)]

    def test_what_has_been_taken_meanwhile_is_not_told_of(self, peer: Peer) -> None:
        """Check that a NAK names a packet behind the missing one, in whatever order they came."""
        expect_sum(peer)
        frames = result_frames(peer)
        peer.give(frames[3], frames[1], frames[0])
        assert told(peer) == [(NAK, THEIRS + 2, THEIRS + 3, 0)]

    def test_naks_are_repeated_for_all_that_is_there(self, peer: Peer) -> None:
        expect_sum(peer)
        frames = result_frames(peer)
        peer.give(frames[1], frames[2], frames[5])
        told(peer)
        peer.until_timer()
        assert told(peer) == [(NAK, THEIRS, THEIRS + 2, 1), (NAK, THEIRS, THEIRS + 5, 0)]

    def test_what_is_there_already_is_told_once_more_and_not_taken_again(self, peer: Peer) -> None:
        result = expect_sum(peer)
        frames = result_frames(peer)
        peer.give(frames[2])
        told(peer)
        peer.give(peer.data(THEIRS + 2, bytes(256), opcode=Opcode.SEND_MIDDLE))  # with other bytes
        assert told(peer) == [(NAK, THEIRS, THEIRS + 2, 0)]
        peer.give(*frames)
        assert np.array_equal(result, np.arange(2 * LANES))

    def test_no_more_than_a_window_is_kept(self, peer: Peer) -> None:
        expect_sum(peer)
        peer.give(peer.data(THEIRS + 8, bytes(256), opcode=Opcode.SEND_MIDDLE))
        peer.give(peer.data((THEIRS + 2**23 - 1) % 2**24, bytes(256), opcode=Opcode.SEND_MIDDLE))
        assert told(peer) == []
        peer.give(peer.data(THEIRS + 7, bytes(256), opcode=Opcode.SEND_MIDDLE))
        assert told(peer) == [(NAK, THEIRS, THEIRS + 7, 0)]
        assert peer.endpoint.counters().kept_packets == 1

    def test_longer_than_the_path_mtu_is_not_kept(self, peer: Peer) -> None:
        expect_sum(peer)
        peer.give(peer.data(THEIRS + 2, bytes(512), opcode=Opcode.SEND_MIDDLE))
        assert told(peer) == []
        assert peer.endpoint.counters().malformed == 1

    def test_nothing_that_was_kept_is_a_sum_without_the_switch_s_word(self, peer: Peer) -> None:
        """Check that a kept packet is examined when its turn comes, as one that comes in order is."""
        result = expect_sum(peer)
        frames = result_frames(peer)
        peer.give(peer.data(THEIRS + 1, bytes(256), opcode=Opcode.SEND_MIDDLE, summed=False))
        peer.give(frames[0])
        failure = peer.failure()
        assert (failure.code, failure.psn) == (FailureCode.NOT_A_RESULT, THEIRS + 1)
        assert (result == -1).all()

    def test_a_kept_packet_of_a_lap_ago_is_not_taken(self) -> None:
        """Wrap the PSN after 2^24 packets: what was kept goes when its turn is over, however it came."""
        peer = Peer.of(selective=True, rto_low_s=0)
        expect_sum(peer)
        frames = result_frames(peer)
        peer.give(frames[1], frames[0], frames[2], frames[3])
        assert told(peer) == [(ACK, THEIRS + 3, 1, 0)]
        peer.give(frames[4])
        assert peer.endpoint.progress().expected_psn == THEIRS + 5

    def test_passed_messages_that_found_no_room_are_kept(self, peer: Peer) -> None:
        frames = []
        for message in range(3):
            header = peer.header(
                message, 768, op=0, element_type=0, reduction=0, tensor_elements=0, flags=0, packets=4
            )
            frames += peer.message(THEIRS + 4 * message, header, bytes([message]) * 768)
        peer.give(*frames)
        assert [(syndrome & 0xE0, psn) for syndrome, psn, _, _ in told(peer)] == [(0x20, THEIRS + 8)]
        for message in range(3):
            data = np.zeros(768, np.uint8)
            peer.endpoint.post(passing(np.zeros(768, np.uint8), data), peer.now)
            assert (data == message).all()
        assert told(peer) == [(ACK, THEIRS + 11, 3, 0)]


class TestSending:
    def start(self, peer: Peer, messages: int = 2) -> dict[int, RocePacket]:
        peer.endpoint.post(sum_of(np.arange(LANES * messages, dtype=np.int32)), peer.now)
        return {packet.bth.psn: packet for packet in peer.poll()}

    def test_lost_packets_alone_are_sent_again(self, peer: Peer) -> None:
        sent = self.start(peer)
        peer.selective_nak(OURS + 1, OURS + 2)
        peer.selective_nak(OURS + 1, OURS + 5, run=1)
        again = peer.poll()
        assert [packet.bth.psn for packet in again] == [OURS + 1, OURS + 3]
        for packet in again:
            assert (packet.bth, packet.payload) == (sent[packet.bth.psn].bth, sent[packet.bth.psn].payload)
        assert peer.endpoint.progress().first_unacked_psn == OURS + 1
        peer.ack(OURS + 7)
        assert peer.psns() == []

    def test_a_lost_first_takes_its_message_along(self, peer: Peer) -> None:
        """Check that all of it comes again in order, as the switch could not place the rest."""
        self.start(peer)
        peer.selective_nak(OURS, OURS + 4)
        assert peer.psns() == [OURS, OURS + 1, OURS + 2, OURS + 3]

    def test_once_an_interval_and_more_rarely_after_the_third_time(self, peer: Peer) -> None:
        self.start(peer)
        peer.selective_nak(OURS, OURS + 1)
        assert peer.psns() == [OURS]
        waits = []
        for _ in range(6):
            peer.selective_nak(OURS, OURS + 1)
            assert peer.psns() == []  # it may be under way
            waits.append(peer.until_timer() / MS)
            assert peer.psns() == [OURS]
        assert waits == [0.5, 0.5, 0.5, 1, 2, 4]

    def test_what_has_arrived_is_not_sent_again_at_a_timeout(self, peer: Peer) -> None:
        self.start(peer)
        peer.selective_nak(OURS, OURS + 3, run=1)
        assert peer.psns() == [OURS, OURS + 1]
        peer.ack(OURS)
        peer.now += 60 * MS
        assert OURS + 2 not in peer.psns()

    def test_two_timeouts_in_a_row_trust_nobody(self, peer: Peer) -> None:
        """Check that a NAK that named what never arrived costs time, and not the message."""
        self.start(peer)
        peer.selective_nak(OURS, OURS + 7, run=6)
        seen = set()
        for _ in range(60):
            peer.until_timer()
            seen |= set(peer.psns())
        assert seen >= set(range(OURS, OURS + 4))

    def test_naks_that_say_the_impossible_are_counted_and_nothing_else(self, peer: Peer) -> None:
        self.start(peer)
        before = peer.endpoint.progress()
        impossible = [
            (OURS - 1, OURS + 2),  # acknowledged long ago
            (OURS + 8, OURS + 9),  # never sent
            (OURS + 1, OURS + 8),
            (OURS + 1, OURS + 2**23),
            (OURS + 1, OURS + 1),  # nothing behind a gap
            (OURS + 3, OURS + 1),
        ]
        for psn, arrived in impossible:
            peer.selective_nak(psn, arrived % 2**24)
        assert peer.psns() == []
        assert peer.endpoint.progress() == before
        assert peer.endpoint.counters().stale_acks == len(impossible)

    def test_a_run_ends_behind_the_gap(self, peer: Peer) -> None:
        self.start(peer)
        peer.selective_nak(OURS + 2, OURS + 4, run=63)
        assert peer.psns() == [OURS + 2]

    def test_psns_wrap(self) -> None:
        peer = Peer.of(selective=True, rto_low_s=0, first_psns=[2**24 - 2, THEIRS])
        self.start(peer)
        peer.selective_nak(2**24 - 1, 3, run=1)
        assert peer.psns() == [2**24 - 1, 0, 1]

    def test_an_acknowledgement_behind_a_refused_message_ends_the_wait(self, peer: Peer) -> None:
        peer.endpoint.post(passing(np.zeros(768 * 3, np.uint8), None, cut_elements=768 * 3), peer.now)
        peer.psns()
        peer.rnr(OURS, timer=31)
        assert peer.psns() == []
        peer.ack(OURS + 3)
        assert peer.psns()


class TestInVain:
    """Retransmissions of both kinds that were repeated twice, and did not help."""

    def test_a_passed_message_begins_at_its_first_packet_in_the_end(self) -> None:
        """Check it, as a switch that was restarted drops what it has not seen the beginning of."""
        for selective in (False, True):
            peer = Peer.of(rto_low_s=0, selective=selective)
            peer.endpoint.post(passing(np.zeros(768, np.uint8), None), peer.now)
            assert peer.psns() == list(range(OURS, OURS + 4))
            peer.ack(OURS + 1)
            peer.now += 50 * MS
            assert peer.psns() == [OURS + 2, OURS + 3]
            peer.now += 100 * MS
            assert peer.psns() == list(range(OURS, OURS + 4))

    def test_a_message_that_naks_do_not_help_begins_at_its_first_packet(self) -> None:
        peer = Peer.of(rto_low_s=0)
        peer.endpoint.post(passing(np.zeros(768, np.uint8), None), peer.now)
        peer.psns()
        starts = []
        for _ in range(4):
            peer.nak(OURS + 2)
            starts.append(peer.psns()[0])
            peer.now += 2 * MS
        assert starts == [OURS + 2, OURS + 2, OURS, OURS]

    def test_a_summed_message_never_does(self) -> None:
        """Check it: nobody could sum again what the switch forgot, as results may replace their sources."""
        peer = Peer.of(rto_low_s=0)
        peer.endpoint.post(sum_of(np.zeros(LANES, np.int32)), peer.now)
        peer.psns()
        peer.ack(OURS + 1)
        for wait in (50, 100, 200):
            peer.now += wait * MS
            assert peer.psns() == [OURS + 2, OURS + 3]


def test_a_cap_on_what_is_in_flight() -> None:
    """Check the cap in whole messages, beyond the window's limit; the last one never waits."""
    peer = Peer.of(window=8, in_flight_bytes=2 * 4 * 256)
    peer.endpoint.post(sum_of(np.zeros(8 * LANES, np.int32)), peer.now)
    assert peer.psns() == list(range(OURS, OURS + 8))
    peer.ack(OURS + 3)
    assert peer.psns() == list(range(OURS + 8, OURS + 12))
    tiny = Peer.of(window=8, in_flight_bytes=1)
    tiny.endpoint.post(sum_of(np.zeros(8 * LANES, np.int32)), tiny.now)
    assert tiny.psns() == list(range(OURS, OURS + 4))


@given(
    st.lists(
        st.tuples(
            st.integers(-20, 40), st.integers(-(2**23), 2**23) | st.integers(-20, 40), st.integers(0, 63)
        ),
        max_size=40,
    )
)
def test_naks_of_any_kind_make_it_send_only_what_it_sent(naks: list[tuple[int, int, int]]) -> None:
    peer = Peer.of(selective=True, window=4)
    peer.endpoint.post(sum_of(np.zeros(8 * LANES, np.int32)), peer.now)
    sent = {packet.bth.psn: packet.payload for packet in peer.poll()}
    for psn, arrived, run in naks:
        peer.now += MS // 4
        peer.selective_nak((OURS + psn) % 2**24, (OURS + arrived) % 2**24, run=run)
        again = peer.poll()
        assert len(again) <= len(sent)
        for packet in again:
            assert sent[packet.bth.psn] == packet.payload
    assert not any(event.type is EventType.FAILED for event in peer.endpoint.events())


@given(st.permutations(range(8)), st.lists(st.integers(0, 7), max_size=12))
def test_any_order_gives_the_same_result(order: list[int], repeated: list[int]) -> None:
    peer = Peer.of(selective=True)
    result = expect_sum(peer)
    frames = result_frames(peer)
    for index in [*order[:4], *repeated, *order]:
        peer.give(frames[index])
        peer.poll()
    assert np.array_equal(result, np.arange(2 * LANES))
    assert peer.endpoint.progress().expected_psn == THEIRS + 8
