"""A rack on the model and on the compiled program, which have to agree on every packet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import AggregationHeader, ElementType, Op
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from p4reduce.oracle.slot_rules import SwitchModel
from p4reduce.simulation.rack import configs, job_of, routes_of
from tests.p4src.rack import CompiledRack

LANES = 64
PACKETS = 4


class Pair:
    """A rack of `world_size` workers on the model and on the compiled program.

    `rnr_ranks`: bit r, rank r wants RNR NAKs; each with a timer of its own.
    """

    generation = 0

    def __init__(
        self,
        compiled: CompiledRack,
        *,
        world_size: int,
        window: int,
        check_icrc: bool,
        generation: int | None = None,
        rnr_ranks: int = 0,
    ) -> None:
        Pair.generation += 1
        psns = [0xFFFFF0 + 5 * rank for rank in range(world_size)]
        self.configs = configs(
            world_size, window=window, packets=PACKETS, path_mtu=4096, psns=[p % 2**24 for p in psns]
        )
        self.job = job_of(self.configs, lambda rank: (0x20 | (24 + rank) % 32) * (rnr_ranks >> rank & 1))
        self.job.generation = generation or Pair.generation  # registers keep what older ones left
        routes = routes_of(self.configs)
        self.model = SwitchModel([self.job], routes, check_icrc=check_icrc)
        self.compiled = compiled
        compiled.reset([self.job], routes, check_icrc=check_icrc)

    def packets_of(self, message: int) -> int:
        """Return how many packets a message has: messages differ in length, the same for all ranks."""
        return (3, 1, 4, 2, 1)[message % 5]

    def psn(self, rank: int, message: int, index: int) -> int:
        first = sum(self.packets_of(m) for m in range(message))
        return psn_math.add(self.configs[rank].psn_out, first + index)

    def op_of(self, message: int) -> Op:
        return (Op.SUM, Op.MAX, Op.SUM_HALF, Op.MAX_HALF, Op.PASS, Op.SUM, Op.SUM_HALF)[message % 7]

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
            packed = AggregationHeader(**{**fields, **(header or {})}).pack_fields()
            payload = packed + payload[len(packed) :]  # bytes of any kind behind the fields
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

    def acknowledgement(self, rank: int, psn: int, syndrome: int = 0x1F, **bth: Any) -> RocePacket:
        """Return what rank's successor says to it; `bth`: other fields of that header."""
        flow = self.job.flows[rank]
        return RocePacket(
            ethernet=Ethernet(dst=flow.src_mac, src=flow.dst_mac),
            ip=IPv4(src=flow.dst_ip, dst=flow.src_ip, total_length=0),
            udp=Udp(length=0),
            bth=Bth(opcode=Opcode.ACKNOWLEDGE, dest_qp=flow.src_qp, psn=psn % 2**24, **bth),
            aeth=Aeth(syndrome=syndrome, msn=1),
        )

    def acknowledge(self, rank: int, psn: int, syndrome: int = 0x1F) -> None:
        """Send an ACK through both switches, where it has to pass."""
        flow = self.job.flows[rank]
        ((port, _),) = self.both(flow.dst_port, self.acknowledgement(rank, psn, syndrome).build())
        assert port == flow.port

    def both(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return what leaves, after asserting that both agree on it to the byte."""
        expected = self.model.process(port, frame)
        actual = self.compiled.plane.process(port, frame)
        assert sorted(actual) == sorted((out, bytes(data)) for out, data in expected)
        return actual

    def send(self, rank: int, index: int, message: int = 0) -> list[tuple[int, bytes]]:
        """Send a packet as always, of two chunks, and return what leaves."""
        return self.both(rank + 1, self.packet(rank, message, index, 16 * message + index, 2).build())

    def counted(self, *names: str) -> tuple[int, ...]:
        """Return these counters of the compiled program."""
        counters = self.compiled.counted(self.job)
        return tuple(counters[name] for name in names)

    def assert_counters_agree(self) -> None:
        assert +Counter(self.compiled.counted(self.job)) == +self.job.counters


# What rank 0 gets for the second of `too_early`.
RNR_NAK = bytes.fromhex(
    "02 00 00 00 01 01 02 00 00 00 01 02 08 00 "  # Ethernet: back
    "45 1a 00 30 be ef 40 00 40 11 67 af 0a 01 00 02 0a 01 00 01 "  # IPv4: back, 48 bytes, TTL 64
    "d0 0d 12 b7 00 1c 00 00 "  # UDP: 28 bytes
    "11 00 ff ff 00 00 01 00 00 ff ff f0 "  # BTH: Acknowledge, rank 0's QP_out, the packet's PSN
    "38 00 00 00 "  # AETH: RNR NAK with timer 24, no message completed
    "90 65 b8 e3"  # ICRC
)


def too_early(pair: Pair) -> list[tuple[int, bytes]]:
    """Return rank 0's first packet, twice, with nothing in its headers left at what is usual."""
    packet = pair.packet(0, 0, 0, 0, 1)
    packet = replace(
        packet,
        ip=replace(packet.ip, tos=0x1A, identification=0xBEEF, ttl=3),
        udp=replace(packet.udp, src_port=0xD00D, checksum=0x1234),
        bth=replace(packet.bth, resv8a=0x80, ack_req=True, solicited=True),
    )
    return [(1, packet.build())] * 2
