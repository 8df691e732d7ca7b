"""Frames of any kind: each is counted or a failure, never a crash, and never changes what was received."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from host_agent.transport import Endpoint
from host_agent.wire.headers import Opcode
from tests.host_agent.transport.fabric import ring_configs
from tests.host_agent.transport.peer import Peer, passing, sum_of

LANES = 192
FIRST = 2000


def busy_peer(*, selective: bool = False) -> tuple[Peer, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    peer = Peer.of(selective=selective)
    result = np.full(2 * LANES, -1, np.int32)
    peer.endpoint.post(sum_of(np.zeros(2 * LANES, np.int32), result), peer.now)
    peer.endpoint.post(passing(np.zeros(100, np.uint8), None), peer.now)
    peer.poll()
    return peer, result


def good_frames(peer: Peer) -> list[bytes]:
    header = peer.header(0, LANES, tensor_elements=2 * LANES)
    return peer.message(FIRST, header, np.arange(LANES, dtype=">i4").tobytes())


@given(st.lists(st.binary(max_size=400), max_size=20))
def test_random_bytes_are_foreign_or_malformed(frames: list[bytes]) -> None:
    endpoint = Endpoint(ring_configs(2)[0])
    for frame in frames:
        endpoint.receive(frame, 1)
    counters = endpoint.counters()
    assert counters.foreign + counters.malformed + counters.icrc_errors == len(frames)


@given(st.data())
def test_a_damaged_frame_never_gets_through(data: st.DataObject) -> None:
    """Cut short, extended or with bits turned over: unless only fields that the ICRC leaves out changed."""
    peer, result = busy_peer()
    frame = bytearray(data.draw(st.sampled_from(good_frames(peer))))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(14, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    frame = frame[: data.draw(st.integers(0, len(frame)))]
    peer.give(bytes(frame))
    before = peer.endpoint.counters()
    assert before.data_packets_received + before.foreign + before.malformed + before.icrc_errors == 1
    if before.data_packets_received:  # TTL, type of service, checksums, resv8a
        assert any(frame[:55] != good[:55] and frame[55:] == good[55:] for good in good_frames(peer))
    else:
        assert (result == -1).all()
        assert peer.endpoint.progress().expected_psn == FIRST


ACKNOWLEDGEMENT = st.tuples(
    st.just("ack"),
    st.one_of(st.integers(0, 255), st.just(0x60)),
    st.tuples(
        st.integers(-9, 40), st.one_of(st.integers(-9, 40), st.integers(0, 2**24 - 1)), st.integers(0, 127)
    ),
)
PACKET = st.tuples(
    st.integers(-8, 24),
    st.sampled_from([*Opcode, 3, 5, 6, 0x15, 0x81, 255]),
    st.one_of(
        st.binary(max_size=600), st.sampled_from([0, 255, 256, 512, 4096]).map(bytes), st.just(b"header")
    ),
)


@given(st.booleans(), st.lists(st.one_of(PACKET, ACKNOWLEDGEMENT), max_size=30))
def test_well_formed_nonsense_of_the_neighbours(
    selective: bool, packets: list[tuple[object, int, object]]
) -> None:
    """Send the wildest order of opcodes, PSNs, sizes and syndromes with right addresses and ICRC."""
    peer, _ = busy_peer(selective=selective)
    for kind, code, body in packets:
        peer.now += 1_000_000
        if kind == "ack":
            assert isinstance(body, tuple)
            psn, msn, run = body
            peer.acknowledge(code, (1000 + psn) % 2**24, msn=(1000 + msn) % 2**24, run=run)
        else:
            assert isinstance(kind, int)
            assert isinstance(body, bytes)
            payload = peer.header(0, LANES, tensor_elements=2 * LANES).pack() if body == b"header" else body
            peer.give(peer.data(FIRST + kind, payload, opcode=code))  # type: ignore[arg-type]
        sent = peer.poll()
        assert len(sent) <= 33  # acknowledgements, and at most what 2W messages hold
        peer.endpoint.events()
    assert peer.endpoint.progress().received_messages <= 1
