"""An endpoint's state as bytes: the same for those that do the same from now on, whenever they got there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host_agent.transport.peer import MS, Peer, passing, sum_of


def sent(peer: Peer) -> Peer:
    """Let a peer post and send a message of two packets, and return it."""
    peer.endpoint.post(sum_of(np.arange(64, dtype=np.int32)), peer.now)
    assert len(peer.poll()) == 2
    return peer


@pytest.mark.parametrize("selective", [False, True])
def test_a_state_does_not_know_when_it_was_reached(selective: bool) -> None:
    early, late = (
        sent(Peer.of(selective=selective)),
        sent(Peer(Peer.of(selective=selective).endpoint, 77 * MS)),
    )
    assert early.endpoint.state(early.now) == late.endpoint.state(late.now)
    assert early.endpoint.state(early.now) != early.endpoint.state(early.now + 1)  # its timers are nearer


def test_what_decides_something_is_in_it() -> None:
    states = [Peer.of().endpoint.state(MS)]
    peer = Peer.of()
    peer.endpoint.post(passing(np.zeros(300, np.uint8), np.zeros(300, np.uint8)), peer.now)
    states.append(peer.endpoint.state(peer.now))
    first = peer.config.psn_out
    packets = len(peer.poll())
    assert packets > 1
    states.append(peer.endpoint.state(peer.now))
    peer.nak(first + 1)  # the first has arrived, the second has not
    states.append(peer.endpoint.state(peer.now))
    assert peer.poll()
    states.append(peer.endpoint.state(peer.now))
    peer.ack(first + packets - 1)
    states.append(peer.endpoint.state(peer.now))
    peer.give(peer.data(peer.config.predecessor.psn_out + 1, bytes(256)))  # a gap
    states.append(peer.endpoint.state(peer.now))
    assert len(set(states)) == len(states)


def test_what_decides_nothing_is_not() -> None:
    peer = sent(Peer.of())
    before = peer.endpoint.state(peer.now)
    peer.ack(peer.config.psn_out - 1)  # of nothing that was sent
    peer.give(b"no frame")
    assert peer.endpoint.counters().malformed + peer.endpoint.counters().foreign == 1
    assert peer.endpoint.state(peer.now) == before
