"""Probes: whoever hears nothing for longer than acknowledgements take sends the ends again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host_agent.transport.peer import MS, Peer, passing, sum_of

# P = 4, path MTU 256: 192 lanes a message (768 bytes), 4 packets each. One message at a time.
LANES = 192
OURS, THEIRS = 1000, 2000
MESSAGES = 3000


def one_at_a_time(**changes: object) -> Peer:
    """Return a peer that has begun a long sum and sent its first message."""
    peer = Peer.of(window=1, **changes)
    peer.endpoint.post(sum_of(np.zeros(LANES * MESSAGES, np.int32)), peer.now)
    assert len(peer.psns()) == 4
    return peer


def answer(peer: Peer, *after_ms: float) -> None:
    """Acknowledge each next message and give its result after so long, whatever is probed meanwhile."""
    for wait in after_ms:
        until = peer.now + round(wait * MS)
        while (timer := peer.endpoint.next_timeout_ns()) is not None and timer <= until:
            peer.now = timer
            peer.psns()
        peer.now = until
        message = peer.endpoint.progress().acked_messages
        header = peer.header(message, LANES, tensor_elements=LANES * MESSAGES)
        peer.ack((OURS + 4 * message + 3) % 2**24)
        peer.give(*peer.message((THEIRS + 4 * message) % 2**24, header, bytes(4 * LANES)))
        assert len(peer.psns()) == 4  # the next one


def waits_ms(peer: Peer, times: int) -> list[float]:
    """Return the times in ms between timers that come due with nothing heard."""
    waits = []
    for _ in range(times):
        waits.append(peer.until_timer() / MS)
        peer.psns()
    return waits


@pytest.mark.parametrize("selective", [False, True])
def test_the_ends_of_what_was_sent_are_sent_again(selective: bool) -> None:
    """Check a flow with short delays: its ends come after 2, 4, 8 and 16 ms, and then a whole message."""
    peer = Peer.of(selective=selective)
    peer.endpoint.post(sum_of(np.zeros(3 * LANES, np.int32)), peer.now)
    assert len(peer.psns()) == 8
    peer.now += MS // 10
    peer.ack(OURS + 3)
    header = peer.header(0, LANES, tensor_elements=3 * LANES)
    peer.give(*peer.message(THEIRS, header, bytes(4 * LANES)))
    assert peer.psns() == list(range(OURS + 8, OURS + 12))
    began = peer.now
    for wait in (2, 4, 8, 16):
        assert peer.until_timer() == wait * MS
        assert peer.psns() == [OURS + 4, OURS + 8, OURS + 11]
    peer.until_timer()
    assert peer.now == began + 50 * MS
    assert peer.psns() == list(range(OURS + 4, OURS + 8))
    counters = peer.endpoint.counters()
    assert (counters.tail_probes, counters.timeouts) == (4, 1)


def test_before_a_delay_is_known_there_are_two_probes() -> None:
    """Check that there are two, since the others may not have begun yet."""
    assert waits_ms(one_at_a_time(), 3) == [2, 4, 44]


def test_the_wait_is_the_mean_and_four_deviations() -> None:
    """Check the deviation: half the first delay. It rises by a quarter of the new, and falls by a 16th."""
    peer = one_at_a_time()
    answer(peer, 1)
    assert waits_ms(peer, 1) == [1 + 4 * 0.5]
    peer = one_at_a_time()
    answer(peer, 1.5, 1.5)
    assert waits_ms(peer, 1) == [1.5 + 4 * 0.75 * 15 / 16]
    peer = one_at_a_time()
    answer(peer, 1.5, 1.5, 4.3)  # which is not probed
    mean, deviation = 1.5 + 2.8 / 8, 0.703125 + (2.8 - 0.703125) / 4
    assert waits_ms(peer, 1)[0] == pytest.approx(mean + 4 * deviation, abs=1e-5)


def test_a_probed_message_is_no_measure_but_doubles_the_next_wait() -> None:
    """Check that it stays doubled until a message that was sent once is acknowledged (RFC 6298). Otherwise a
    slower network would never show.
    """
    peer = one_at_a_time()
    answer(peer, 1)
    answer(peer, 8)  # probed after 3 ms
    assert waits_ms(peer, 1) == [6]
    peer = one_at_a_time()
    answer(peer, 1, 8)
    answer(peer, 5)  # not probed
    mean, deviation = 1 + 4 / 8, 0.5 + 3.5 / 4
    assert waits_ms(peer, 1)[0] == pytest.approx(mean + 4 * deviation, abs=1e-5)


def test_a_straggler_is_no_measure_of_the_network() -> None:
    peer = one_at_a_time()
    answer(peer, *[0.5] * 20)
    wait = waits_ms(one_at_a_time_like(peer), 1)
    answer(peer, 10_000, 0.5)
    assert waits_ms(peer, 1) == wait


def one_at_a_time_like(peer: Peer) -> Peer:
    """Return another peer, which was answered as quickly."""
    other = one_at_a_time()
    answer(other, *[0.5] * 20)
    assert other.now == peer.now
    return other


def test_no_wait_is_longer_than_sixteen_times_the_least_delay() -> None:
    peer = one_at_a_time()
    answer(peer, *[0.25, 1.9, 1.9] * 4)
    assert waits_ms(peer, 1) == [16 * 0.25]


def test_a_quick_acknowledgement_among_slow_ones_shortens_no_wait() -> None:
    """Let most messages wait in a link's queue; one of a single packet comes when it is empty."""
    peer = one_at_a_time()
    answer(peer, *[20, 21, 19, 20, 0.2, 20, 21] * 5)
    assert waits_ms(peer, 1)[0] > 21


def test_on_a_slow_link_the_timeout_is_longer_too() -> None:
    peer = one_at_a_time()
    answer(peer, *[40] * 120)
    probe, again, timeout = waits_ms(peer, 3)
    assert 40 < probe < 41
    assert again == 2 * probe
    assert timeout == pytest.approx(160 - 3 * probe)  # a whole message's turn


def test_where_probes_help_nobody_waits_for_long() -> None:
    """Lose packets, so that most delays are those of repairs."""
    peer = one_at_a_time()
    answer(peer, *[1] * 10, *[1.9] * 10)
    (before,) = waits_ms(peer, 1)
    assert before > 3
    answer(peer, 0.8)
    for _ in range(6):  # repaired by its probe
        peer.until_timer()
        peer.psns()
        answer(peer, 0.8)
    assert waits_ms(peer, 1) == [2]


def test_packets_that_arrive_behind_a_gap_tell_the_delay() -> None:
    peer = Peer.of(selective=True)
    peer.endpoint.post(sum_of(np.zeros(2 * LANES, np.int32)), peer.now)
    peer.psns()
    peer.now += MS
    peer.selective_nak(OURS + 1, OURS + 3)
    assert peer.psns() == [OURS + 1, OURS + 2]
    assert waits_ms(peer, 1) == [3]
    assert peer.endpoint.counters().tail_probes == 1


def test_a_receiver_without_room_tells_nothing_of_the_network() -> None:
    peer = Peer.of(window=1)
    peer.endpoint.post(passing(np.zeros(768 * 3, np.uint8), None, cut_elements=768 * 3), peer.now)
    peer.psns()
    peer.rnr(OURS, timer=31)  # 491 ms
    peer.now += 300 * MS
    peer.ack(OURS + 3)
    header = peer.header(0, 0, op=0, element_type=0, reduction=0, packets=2, tensor_elements=0, flags=0)
    peer.give(*peer.message(THEIRS, header, bytes(256)))
    assert peer.psns() == list(range(OURS + 4, OURS + 8))
    peer.now += MS
    peer.ack(OURS + 7)
    header = peer.header(1, 0, op=0, element_type=0, reduction=0, packets=2, tensor_elements=0, flags=0)
    peer.give(*peer.message(THEIRS + 2, header, bytes(256)))
    assert peer.psns() == list(range(OURS + 8, OURS + 12))
    assert waits_ms(peer, 1) == [3]


@pytest.mark.parametrize("seed", range(3))
def test_on_a_busy_machine_hardly_anything_is_sent_again(seed: int) -> None:
    """Draw delays as eight workers on two processors have them: some ms and a long tail."""
    peer = one_at_a_time()
    delays = 3 + np.random.default_rng(seed).gamma(2.0, 4.0, 2000)
    answer(peer, *delays)
    assert peer.endpoint.counters().tail_probes < 30
    assert peer.endpoint.counters().timeouts < 10


def test_not_while_something_arrives() -> None:
    peer = one_at_a_time()
    header = peer.header(0, LANES, tensor_elements=LANES * MESSAGES)
    for frame in peer.message(THEIRS, header, bytes(4 * LANES))[:-1]:
        peer.now += MS
        peer.give(frame)
        assert peer.psns() == []
