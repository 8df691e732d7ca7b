"""The compiled P4 program and the Python model of its rules decide alike, packet by packet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, MAGIC, AggregationHeader, ElementType, Flags, Op
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from tests.host_agent.sim import configs, job_of, routes_of
from tests.model.slot_rules import Job, SwitchModel
from tests.p4src.rack import CompiledRack

LANES = 64
HEADERS = 14 + 20 + 8 + 12  # Ethernet, IPv4, UDP, BTH
PACKETS = 4


@pytest.fixture(scope="module")
def compiled() -> Iterator[CompiledRack]:
    rack = CompiledRack()
    yield rack
    rack.plane.close()


def comparable(leaving: tuple[int, bytes]) -> tuple[int, bytes]:
    """A frame without what nobody may rely on: the lanes of a result that says the ranks do not agree.

    Where their packets differ in size, the longest one's last chunks are added to what an older message left.
    """
    port, frame = leaving
    head = frame[HEADERS : HEADERS + 6]
    if head[:4] == MAGIC.to_bytes(4, "big") and head[5] & Flags.MISMATCH:
        assert RocePacket.parse(frame).icrc_ok()
        return port, frame[: HEADERS + CHUNK_BYTES] + bytes(len(frame) - HEADERS - CHUNK_BYTES)
    return leaving


class Pair:
    """A rack of `world_size` workers on the model and on the compiled program."""

    generation = 0

    def __init__(
        self,
        compiled: CompiledRack,
        *,
        world_size: int,
        window: int,
        check_icrc: bool,
        generation: int | None = None,
    ) -> None:
        Pair.generation += 1
        psns = [0xFFFFF0 + 5 * rank for rank in range(world_size)]
        self.configs = configs(
            world_size, window=window, packets=PACKETS, path_mtu=4096, psns=[p % 2**24 for p in psns]
        )
        self.job: Job = job_of(self.configs)
        self.job.generation = generation or Pair.generation  # registers keep what older ones left
        routes = routes_of(self.configs)
        self.model = SwitchModel([self.job], routes, check_icrc=check_icrc)
        self.compiled = compiled
        compiled.reset([self.job], routes, check_icrc=check_icrc)

    def packets_of(self, message: int) -> int:
        """Messages differ in length, the same for all ranks."""
        return (3, 1, 4, 2, 1)[message % 5]

    def psn(self, rank: int, message: int, index: int) -> int:
        first = sum(self.packets_of(m) for m in range(message))
        return psn_math.add(self.configs[rank].psn_out, first + index)

    def op_of(self, message: int) -> Op:
        return (Op.SUM, Op.SUM, Op.MAX, Op.SUM, Op.PASS, Op.SUM, Op.MAX)[message % 7]

    def packet(
        self,
        rank: int,
        message: int,
        index: int,
        seed: int,
        chunks: int,
        header: Mapping[str, Any] | None = None,
    ) -> RocePacket:
        flow, count = self.job.flows[rank], self.packets_of(message)
        lanes = np.random.default_rng(seed).integers(-(2**31), 2**31, chunks * LANES)
        payload = lanes.astype(">i4").tobytes()
        if index == 0:
            fields: dict[str, Any] = {
                "job": self.job.job,
                "generation": self.job.generation,
                "message": message,
                "rank": rank,
                "op": self.op_of(message),
                "packets": count,
                "element_type": ElementType.INT32,
                "elements": 17,
            }
            payload = AggregationHeader(**{**fields, **(header or {})}).pack() + payload[4 * LANES :]
        opcode = Opcode.SEND_MIDDLE
        if count == 1:
            opcode = Opcode.SEND_ONLY
        elif index in (0, count - 1):
            opcode = Opcode.SEND_FIRST if index == 0 else Opcode.SEND_LAST
        return RocePacket(
            ethernet=Ethernet(dst=flow.dst_mac, src=flow.src_mac),
            ip=IPv4(src=flow.src_ip, dst=flow.dst_ip, total_length=0, identification=seed & 0xFFFF),
            udp=Udp(length=0),
            bth=Bth(
                opcode=opcode,
                dest_qp=flow.dst_qp,
                psn=self.psn(rank, message, index),
                ack_req=index == count - 1,
            ),
            payload=payload,
        )

    def both(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """What leaves, after asserting that both agree on it to the byte."""
        expected = self.model.process(port, frame)
        actual = self.compiled.plane.process(port, frame)
        assert sorted(map(comparable, actual)) == sorted(
            comparable((out, bytes(data))) for out, data in expected
        )
        return actual

    def assert_counters_agree(self) -> None:
        assert self.compiled.counted(self.job) == dict(self.job.counters)


EVENTS = st.tuples(
    st.sampled_from(
        ["next"] * 8
        + ["again", "again", "skip", "corrupt", "port", "address", "opcode", "ack", "chunks"]
        + ["generation", "rank", "job", "elements", "flags", "op", "packets", "psn", "cut"]
    ),
    st.integers(0, 2**32 - 1),
)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    world_size=st.integers(2, 5),
    window=st.sampled_from([1, 2, 4, 8]),
    check_icrc=st.booleans(),
    events=st.lists(EVENTS, min_size=20, max_size=120),
)
def test_any_schedule_of_packets_is_decided_alike(
    compiled: CompiledRack, world_size: int, window: int, check_icrc: bool, events: list[tuple[str, int]]
) -> None:
    pair = Pair(compiled, world_size=world_size, window=window, check_icrc=check_icrc)
    place = [(0, 0)] * world_size  # what each rank sends next: message, index
    for kind, seed in events:
        rank = seed % world_size
        message, index = place[rank]
        if kind in ("again", "opcode", "elements") and message + index:
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
        if kind == "address":
            packet = replace(packet, ip=replace(packet.ip, src=pair.job.flows[rank - 1].src_ip))
        elif kind == "port":
            port = 1 + (port + seed) % 6
        elif kind == "opcode":
            opcode = list(Opcode)[(seed >> 12) % len(Opcode)]
            if opcode is not Opcode.ACKNOWLEDGE:
                packet = replace(packet, bth=replace(packet.bth, opcode=opcode))
        elif kind == "psn":
            packet = replace(
                packet, bth=replace(packet.bth, psn=psn_math.add(packet.bth.psn, (seed >> 6) % 9))
            )
        elif kind == "ack":
            port = flow.dst_port
            packet = RocePacket(
                ethernet=Ethernet(dst=flow.src_mac, src=flow.dst_mac),
                ip=IPv4(src=flow.dst_ip, dst=flow.src_ip, total_length=0),
                udp=Udp(length=0),
                bth=Bth(opcode=Opcode.ACKNOWLEDGE, dest_qp=flow.src_qp, psn=5),
                aeth=Aeth(syndrome=0x1F, msn=1),
            )
        frame = bytearray(packet.build())
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
@pytest.mark.parametrize("op", [Op.SUM, Op.MAX])
def test_every_packet_size_is_combined_and_its_icrc_is_right(
    compiled: CompiledRack, chunks: int, op: Op
) -> None:
    pair = Pair(compiled, world_size=3, window=2, check_icrc=True)
    sent = [pair.packet(rank, 1, 0, 7 + rank, chunks, {"op": op}) for rank in range(3)]
    results = [pair.both(rank + 1, packet.build()) for rank, packet in enumerate(sent)][-1]
    lanes = np.array([np.frombuffer(p.payload, ">i4")[LANES:] for p in sent], np.int32)
    expected = lanes.sum(axis=0, dtype=np.int32) if op is Op.SUM else lanes.max(axis=0)
    assert len(results) == 3
    for _, frame in results:
        packet = RocePacket.parse(frame)
        assert packet.icrc_ok()
        assert np.array_equal(np.frombuffer(packet.payload, ">i4")[LANES:], expected)


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
