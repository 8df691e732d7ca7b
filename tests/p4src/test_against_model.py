"""The compiled P4 program and the Python model of its rules decide alike, packet by packet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, AggregationHeader, Op
from host_agent.wire.headers import Opcode, RocePacket
from tests.p4src.pair import RNR_NAK, Pair, too_early
from tests.p4src.rack import CompiledRack

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled() -> Iterator[CompiledRack]:
    rack = CompiledRack()
    yield rack
    rack.plane.close()


EVENTS = st.tuples(
    st.sampled_from(
        ["next"] * 8
        + ["again", "again", "skip", "corrupt", "port", "address", "opcode", "chunks"]
        + ["acknowledge", "acknowledge", "damaged ack", "straggle", "straggle", "straggle"]
        + ["generation", "rank", "job", "elements", "signature", "signature", "flags", "op", "packets"]
        + ["psn", "cut", "reserved"]
    ),
    st.integers(0, 2**32 - 1),
)


def said(pair: Pair, rank: int, psn: int, seed: int) -> RocePacket:
    """Return an acknowledgement around `psn` of any kind: credits, timers, error codes, what is reserved."""
    syndrome = (0x1F, 0x00, 0x60, 0x20, 0x3F, 0x61, 0x64, 0x40, 0x5F, 0x7F, 0x80, 0x9F, 0xA0, 0xE0)[seed % 14]
    offset = (-1, 0, 0, -1, -2, 1, 3, -9, 2**23 - 1, 2**23, 2**23 + 1, seed >> 8)[(seed >> 4) % 12]
    if offset > 3 and seed >> 28:  # such a jump ends the tracking: rarely
        offset = -1
    reserved = (0, 0, 0, 0x3F, 0x40)[(seed >> 20) % 5]
    bits = {"ack_req": bool(seed & 64), "resv8a": seed & 128, "reserved": reserved}
    return pair.acknowledgement(rank, psn + offset, syndrome, **bits)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    world_size=st.integers(2, 5),
    window=st.sampled_from([1, 2, 4, 8]),
    check_icrc=st.booleans(),
    rnr_ranks=st.sampled_from([0, 0b11111, 0b00101]),
    events=st.lists(EVENTS, min_size=20, max_size=120),
)
def test_any_schedule_of_packets_is_decided_alike(
    compiled: CompiledRack,
    world_size: int,
    window: int,
    check_icrc: bool,
    rnr_ranks: int,
    events: list[tuple[str, int]],
) -> None:
    pair = Pair(compiled, world_size=world_size, window=window, check_icrc=check_icrc, rnr_ranks=rnr_ranks)
    place = [(0, 0)] * world_size  # what each rank sends next: message, index
    for kind, seed in events:
        rank = seed % world_size
        message, index = place[rank]
        if kind in ("again", "opcode", "elements", "signature", "straggle") and message + index:
            back = (seed >> 4) % (3 * window)  # beyond the 2W messages that are remembered, too
            message = max(0, message - back)
            index = (seed >> 8) % pair.packets_of(message)
        chunks = 1 + message % 4 if index else 2
        wrong: dict[str, dict[str, Any]] = {
            "generation": {"generation": pair.job.generation + 1},
            "rank": {"rank": (rank + 1) % world_size},
            "job": {"job": 9},
            "elements": {"elements": 18},
            "flags": {"flags": 1},
            "op": {"op": Op.MAX},
            "packets": {"packets": (seed >> 5) % 7},
        }
        packet = pair.packet(rank, message, index, seed, chunks + (kind == "chunks"), wrong.get(kind))
        flow, port = pair.job.flows[rank], pair.job.flows[rank].port
        if kind == "signature" and index == 0:  # what only ranks can make sense of, too
            payload = bytearray(packet.payload)
            payload[18 + (seed >> 12) % 18] ^= 1 << (seed >> 20) % 8
            packet = replace(packet, payload=bytes(payload))
        if kind == "address":
            packet = replace(packet, ip=replace(packet.ip, src=pair.job.flows[rank - 1].src_ip))
        elif kind == "port":
            port = 1 + (port + seed) % 6
        elif kind == "opcode":
            opcode = list(Opcode)[(seed >> 12) % len(Opcode)]
            if opcode is not Opcode.ACKNOWLEDGE:
                packet = replace(packet, bth=replace(packet.bth, opcode=opcode))
        elif kind == "reserved":  # marked as a sum, or not
            packet = replace(
                packet, bth=replace(packet.bth, reserved=(0x40, 0x41, 0x01, 0x3F)[(seed >> 12) % 4])
            )
        elif kind == "psn":
            packet = replace(
                packet, bth=replace(packet.bth, psn=psn_math.add(packet.bth.psn, (seed >> 6) % 9))
            )
        elif kind in ("acknowledge", "damaged ack"):
            port, packet = flow.dst_port, said(pair, rank, packet.bth.psn, seed)
        elif kind == "straggle":  # all before it is acknowledged, and it comes again
            pair.acknowledge(rank, packet.bth.psn - 1)
        frame = bytearray(packet.build())
        if kind == "damaged ack":
            frame[42 + (seed >> 3) % (len(frame) - 42)] ^= 1 << (seed >> 16) % 8
        if kind == "corrupt" and check_icrc:
            frame[54 + (seed >> 3) % (len(frame) - 58)] ^= 1 << (seed >> 16) % 8
        elif kind == "cut":
            del frame[54 + (seed >> 3) % (len(frame) - 54) :]
        if kind == "cut":
            # A frame shorter than its IP length says is nobody's: never added, and the switch goes on.
            before = pair.compiled.counted(pair.job)
            pair.compiled.plane.process(port, bytes(frame))
            after = pair.compiled.counted(pair.job)
            assert after["aggregated"] == before["aggregated"]
            for name, count in after.items():
                pair.job.counters[name] += count - before[name]
        else:
            pair.both(port, bytes(frame))
        if kind in ("next", "skip") and place[rank] == (message, index):
            index += 1
            place[rank] = (message, index) if index < pair.packets_of(message) else (message + 1, 0)
    pair.assert_counters_agree()


@pytest.mark.parametrize("chunks", range(1, 17))
@pytest.mark.parametrize("op", [Op.SUM, Op.MAX, Op.SUM_HALF, Op.MAX_HALF])
def test_every_packet_size_is_combined_and_its_icrc_is_right(
    compiled: CompiledRack, chunks: int, op: Op
) -> None:
    """Check the payload of a First, behind the header, and of a Middle, whole."""
    pair = Pair(compiled, world_size=3, window=2, check_icrc=True)
    for index, start in ((0, CHUNK_BYTES), (1, 0)):
        sent = [pair.packet(rank, 2, index, 7 + rank, chunks, {"op": op}) for rank in range(3)]
        if op is Op.SUM_HALF:  # of numbers up to 32, of which three stay below 2^7
            sent = [replace(p, payload=p.payload[:start] + halved(p.payload[start:])) for p in sent]
        results = [pair.both(rank + 1, packet.build()) for rank, packet in enumerate(sent)][-1]
        lanes = np.array([np.frombuffer(p.payload[start:], ">i4") for p in sent], np.int32)
        expected = COMBINED[op](lanes)
        assert len(results) == 3
        for _, frame in results:
            packet = RocePacket.parse(frame)
            assert packet.icrc_ok()
            assert np.array_equal(np.frombuffer(packet.payload[start:], ">i4"), expected)


@pytest.mark.parametrize("ops", [(Op.SUM, Op.SUM_HALF), (Op.SUM_HALF, Op.SUM), (Op.MAX, Op.SUM)])
@pytest.mark.parametrize("sizes", [(16, 16), (1, 16), (16, 1)])
def test_ranks_that_disagree_get_nothing_of_what_was_in_the_slots_before(
    compiled: CompiledRack, ops: tuple[Op, Op], sizes: tuple[int, int]
) -> None:
    """Check that nothing leaves of another job's sums, say, or of what is kept beside them."""
    before = Pair(compiled, world_size=2, window=2, check_icrc=True)
    for message, op in ((0, Op.SUM), (2, Op.SUM_HALF)):
        for rank in (0, 1):
            before.both(rank + 1, before.packet(rank, message, 0, 5 + rank, 16, {"op": op}).build())
    after = Pair(compiled, world_size=2, window=2, check_icrc=True)
    for message in (0, 2):
        for rank in (0, 1):
            packet = after.packet(rank, message, 0, 1, sizes[rank], {"op": ops[rank]})
            silent = packet.payload[:CHUNK_BYTES].ljust(len(packet.payload), b"\0")
            left = after.both(rank + 1, replace(packet, payload=silent).build())
        for _, frame in left:
            assert not any(RocePacket.parse(frame).payload[CHUNK_BYTES:])
        # Who asks again with more than the slot has.
        again = after.packet(0, message, 0, 1, 16, {"op": ops[0]})
        for _, frame in after.both(1, again.build()):
            assert not any(RocePacket.parse(frame).payload[CHUNK_BYTES:])


def halved(payload: bytes) -> bytes:
    below_two = np.frombuffer(payload, ">u2").astype(np.uint16) & np.uint16(0xBFFF)
    numbers: NDArray[np.float16] = below_two.view(np.float16) * np.float16(16)
    return bytes(numbers.astype(">f2").tobytes())


def half_sum(lanes: NDArray[np.int32]) -> NDArray[np.int32]:
    halves = np.ascontiguousarray(lanes, ">i4").view(">f2")
    sums: NDArray[Any] = halves.astype(np.float64).sum(axis=0).astype(">f2")
    return np.asarray(sums.view(">i4"), np.int32)


def half_max(lanes: NDArray[np.int32]) -> NDArray[np.int32]:
    largest: NDArray[Any] = np.ascontiguousarray(lanes, ">i4").view(">i2").max(axis=0).astype(">i2")
    return np.asarray(largest.view(">i4"), np.int32)


COMBINED: dict[Op, Callable[[NDArray[np.int32]], NDArray[np.int32]]] = {
    Op.SUM: lambda lanes: np.asarray(lanes.sum(axis=0, dtype=np.int32)),
    Op.MAX: lambda lanes: np.asarray(lanes.max(axis=0)),
    Op.SUM_HALF: half_sum,
    Op.MAX_HALF: half_max,
}


def test_thirty_two_ranks_each_get_the_sum_with_their_own_psn(compiled: CompiledRack) -> None:
    pair = Pair(compiled, world_size=32, window=8, check_icrc=True)
    results = [pair.both(rank + 1, pair.packet(rank, 0, 0, rank, 4).build()) for rank in range(32)][-1]
    assert len(results) == 32
    by_rank = {
        AggregationHeader.unpack(RocePacket.parse(f).payload).rank: RocePacket.parse(f) for _, f in results
    }
    assert {rank: p.bth.psn for rank, p in by_rank.items()} == {r: pair.psn(r, 0, 0) for r in range(32)}
    pair.assert_counters_agree()


def test_a_slots_state_is_answered_to_the_controller(compiled: CompiledRack) -> None:
    pair = Pair(compiled, world_size=3, window=2, check_icrc=True)
    pair.both(2, pair.packet(1, 0, 0, 1, 3).build())
    query = bytes([1]) + (0).to_bytes(2, "big") + (0).to_bytes(4, "big")
    ((port, answer),) = compiled.plane.process(255, query)
    assert port == 255
    answer, age_us = answer[:-6], int.from_bytes(answer[-6:], "big")
    assert 0 <= age_us < 600_000_000
    assert answer == (
        bytes([1])
        + (0).to_bytes(4, "big")
        + pair.job.generation.to_bytes(4, "big")
        + (0).to_bytes(4, "big")
        + (0b010).to_bytes(4, "big")
        + bytes([3, 0])
    )
    beyond = bytes([1]) + (0).to_bytes(2, "big") + (1 << 20).to_bytes(4, "big")
    assert compiled.plane.process(255, beyond) == []


@pytest.fixture
def waiting(compiled: CompiledRack) -> Pair:
    """Return a pair: ranks 0 and 1 want RNR NAKs; rank 0 has sent message 0, of three packets, alone."""
    pair = Pair(compiled, world_size=3, window=2, check_icrc=True, rnr_ranks=0b011)
    for index in range(3):
        assert pair.send(0, index) == []
    return pair


def test_the_awaited_packet_that_comes_again_is_answered_with_an_rnr_nak(compiled: CompiledRack) -> None:
    waiting = Pair(compiled, world_size=3, window=2, check_icrc=True, rnr_ranks=0b011)
    for port, frame in too_early(waiting):
        answers = waiting.both(port, frame)
    assert answers == [(1, RNR_NAK)]
    assert RocePacket.parse(RNR_NAK).icrc_ok()


def test_only_who_asks_for_rnr_naks_gets_them(waiting: Pair) -> None:
    assert waiting.send(2, 0) == []
    assert waiting.send(2, 0) == []
    assert waiting.counted("duplicate", "not_ready") == (1, 0)


def test_no_other_than_the_awaited_packet_is_answered(waiting: Pair) -> None:
    """An RNR NAK for index 1 would say that index 0 has been taken, and nobody has."""
    assert [waiting.send(0, index) for index in (1, 2)] == [[], []]
    assert waiting.counted("duplicate", "not_ready") == (2, 0)
    ((_, nak),) = waiting.send(0, 0)
    assert RocePacket.parse(nak).bth.psn == waiting.psn(0, 0, 0)
    waiting.acknowledge(0, waiting.psn(0, 0, 0))
    assert waiting.send(0, 0) == []
    ((_, nak),) = waiting.send(0, 1)
    assert RocePacket.parse(nak).bth.psn == waiting.psn(0, 0, 1)
    assert waiting.counted("duplicate", "not_ready") == (3, 2)


@pytest.mark.parametrize(
    ("syndrome", "awaits"),
    [(0x1F, 2), (0x00, 2), (0x15, 2), (0x60, 1), (0x20, 1), (0x3F, 1)]
    + [(code, 0) for code in (0x61, 0x62, 0x63, 0x64, 0x7F, 0x40, 0x5F, 0x80, 0x9F, 0xA0, 0xE0, 0xFF)],
)
def test_what_each_syndrome_says(waiting: Pair, syndrome: int, awaits: int) -> None:
    waiting.acknowledge(0, waiting.psn(0, 0, 1), syndrome)
    assert [len(waiting.send(0, index)) for index in range(3)] == [index == awaits for index in range(3)]


def test_acknowledgements_count_forwards_only_also_where_psns_wrap(waiting: Pair) -> None:
    """Rank 0's first PSN is 0xfffff0: message 7 crosses the end."""
    assert waiting.psn(0, 7, 1) == 0x000000
    for message in range(1, 8):
        for index in range(waiting.packets_of(message)):
            waiting.send(0, index, message)
    waiting.acknowledge(0, 0xFFFFFE)
    waiting.acknowledge(0, 0xFFFFF3)  # late
    assert [len(waiting.send(0, index, 7)) for index in range(4)] == [1, 0, 0, 0]
    waiting.acknowledge(0, 0xFFFFFF)
    waiting.acknowledge(0, 0xFFFFFE, 0x60)
    assert [len(waiting.send(0, index, 7)) for index in range(4)] == [0, 1, 0, 0]


def test_a_damaged_or_lengthened_acknowledgement_passes_and_says_nothing(waiting: Pair) -> None:
    packet = waiting.acknowledgement(0, waiting.psn(0, 0, 0))
    damaged = bytearray(packet.build())
    damaged[-1] ^= 1
    assert len(waiting.both(2, bytes(damaged))) == 1
    assert len(waiting.both(2, replace(packet, payload=bytes(4)).build())) == 1
    assert len(waiting.send(0, 0)) == 1


def test_what_acknowledges_more_than_was_sent_passes_and_says_nothing(compiled: CompiledRack) -> None:
    """A stray of an older job, whose QP had the same number, could name a packet that is missing."""
    pair = Pair(compiled, world_size=3, window=2, check_icrc=True, rnr_ranks=0b011)
    pair.acknowledge(0, pair.psn(0, 0, 0))  # nothing was sent
    for index in range(3):
        assert pair.send(0, index) == []
    for psn in (pair.psn(0, 0, 3), pair.psn(0, 0, 3) + 1000, pair.psn(0, 0, 0) + 2**23 + 5):
        pair.acknowledge(0, psn)
    assert [len(pair.send(0, index)) for index in range(3)] == [1, 0, 0]


def test_congestion_notifications_pass_both_ways(waiting: Pair) -> None:
    """CNPs slow a NIC down; they go to the QP that sent the marked packet."""
    there = waiting.packet(0, 0, 0, 0, 1)
    for port, packet in ((2, waiting.acknowledgement(0, 0)), (1, there)):
        bth = replace(packet.bth, opcode=0x81, psn=0, ack_req=False, resv8a=0x40)
        cnp = replace(packet, bth=bth, aeth=None, payload=bytes(16))
        ((_, frame),) = waiting.both(port, cnp.build())
        assert frame[42:] == cnp.build()[42:]
        strange = replace(cnp, ip=replace(cnp.ip, src=IPv4Address("10.9.9.9")))
        assert waiting.both(port, strange.build()) == []
    assert waiting.counted("foreign", "acks", "unplaced") == (2, 0, 0)


def test_a_new_generation_awaits_its_own_first_psn(compiled: CompiledRack, waiting: Pair) -> None:
    waiting.acknowledge(0, waiting.psn(0, 0, 1))
    again = Pair(compiled, world_size=3, window=2, check_icrc=True, rnr_ranks=0b011)
    assert [len(again.send(0, index)) for index in range(3)] == [0, 0, 0]
    assert [len(again.send(0, index)) for index in range(3)] == [1, 0, 0]
    again.acknowledge(0, again.psn(0, 0, 0))  # behind what the older generation had acknowledged
    assert [len(again.send(0, index)) for index in range(3)] == [0, 1, 0]
