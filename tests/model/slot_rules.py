"""The switch's rules as a Python model: the oracle for the P4 program, both targets and simulations.

    frame ─ RoCE v2? ─ flow? ─ ICRC ─ place (First PSN records) ─ PASS? ─ slot rules 1..5 ─ emit on flow(s)
              │no        │no member                                  │
              └──────────┴───────────── forward (TTL - 1) ◄──────────┘

The words are those of docs/protocol.md: a message's fragment i lives in slot (m mod 2W)·P + i of its job,
under the tag (generation, m). Registers keep what was last written to them, as in a switch: a claim writes
only the chunks that its packet has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

import numpy as np
from numpy.typing import NDArray

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import (
    CHUNK_BYTES,
    FLAGS_OFFSET,
    MAX_CHUNKS,
    RANK_OFFSET,
    SIGNATURE,
    AggregationHeader,
    Flags,
    NotAnAggregationHeader,
    Op,
)
from host_agent.wire.headers import Ethernet, IPv4, MalformedPacket, Opcode, RocePacket

FIRSTS = (Opcode.SEND_FIRST, Opcode.SEND_ONLY)
SENDS = (*FIRSTS, Opcode.SEND_MIDDLE, Opcode.SEND_LAST)
COUNTERS = (
    "aggregated",  # a contribution was added (rules 1 and 2)
    "completed",  # it was the last one: the sum went out on every flow
    "duplicate",  # rule 3
    "replayed",  # rule 4
    "stale",  # rule 5
    "passed",  # of a PASS message: forwarded
    "unplaced",  # on a job's flow, but of no known message: dropped
    "foreign",  # for a job's QP, but from elsewhere: dropped
    "bad_icrc",  # dropped
    "mismatch",  # a header differed from the first contributor's
    "acks",  # forwarded
)


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Rank `rank`'s connection to its successor: data goes src → dst_qp, ACKs come back to src_qp."""

    rank: int
    port: int
    src_mac: bytes
    src_ip: IPv4Address
    src_qp: int
    dst_port: int
    dst_mac: bytes
    dst_ip: IPv4Address
    dst_qp: int


@dataclass
class Record:
    """What the First packet of a message said."""

    message: int
    psn: int
    packets: int
    op: Op


@dataclass
class Slot:
    """The aggregator of one fragment."""

    tag: tuple[int, int] | None = None
    ranks: set[int] = field(default_factory=set)
    chunks: list[NDArray[np.int32]] = field(
        default_factory=lambda: [np.zeros(CHUNK_BYTES // 4, np.int32) for _ in range(MAX_CHUNKS)]
    )
    header: bytes = bytes(CHUNK_BYTES)
    mismatch: bool = False


@dataclass
class Job:
    """A job's flows, its region of 2·W·P slots, and per flow the First packets of its last 2W messages."""

    job: int
    generation: int
    window: int
    packets: int
    flows: tuple[Flow, ...]

    def __post_init__(self) -> None:
        self.messages = 2 * self.window
        self.slots = [Slot() for _ in range(self.messages * self.packets)]
        self.records: list[dict[int, Record]] = [{} for _ in self.flows]
        self.latest: list[int | None] = [None for _ in self.flows]
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))


def serial_age(message: int, latest: int) -> int:
    """How many messages `message` is behind `latest`; negative where it is ahead (32-bit serial numbers)."""
    behind = (latest - message) & 0xFFFFFFFF
    return behind - (1 << 32) if behind >= 1 << 31 else behind


class SwitchModel:
    """One switch: ports, routes (destination → port) and the jobs on it."""

    def __init__(
        self, jobs: Iterable[Job], routes: Mapping[IPv4Address, int], *, check_icrc: bool = True
    ) -> None:
        self.routes = routes
        self.check_icrc = check_icrc
        self.jobs = {job.job: job for job in jobs}
        self.members = {}
        for job in self.jobs.values():
            for flow in job.flows:
                self.members[flow.dst_ip, flow.dst_qp] = (job, flow, True)
                self.members[flow.src_ip, flow.src_qp] = (job, flow, False)

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """What leaves, and where, when `frame` comes in on `port`."""
        try:
            packet = RocePacket.parse(frame)
        except MalformedPacket:
            return self.forward(frame)
        member = self.members.get((packet.ip.dst, packet.bth.dest_qp))
        if member is None:
            return self.forward(frame)
        job, flow, is_data = member
        sender = (flow.port, flow.src_ip) if is_data else (flow.dst_port, flow.dst_ip)
        if (port, packet.ip.src) != sender:
            job.counters["foreign"] += 1
            return []
        if not is_data:
            job.counters["acks"] += 1
            return self.forward(frame)
        if packet.bth.opcode not in SENDS or len(packet.payload) not in range(
            CHUNK_BYTES, MAX_CHUNKS * CHUNK_BYTES + 1, CHUNK_BYTES
        ):
            job.counters["unplaced"] += 1
            return []
        if self.check_icrc and not packet.icrc_ok():
            job.counters["bad_icrc"] += 1
            return []
        record = self.place(job, flow, packet)
        if record is None:
            job.counters["unplaced"] += 1
            return []
        if record.op is Op.PASS:
            job.counters["passed"] += 1
            return self.forward(frame)
        return self.aggregate(job, flow, record, packet, frame)

    def forward(self, frame: bytes) -> list[tuple[int, bytes]]:
        """As a router: by destination address, TTL - 1, nothing else touched."""
        try:
            ip = IPv4.unpack(frame[Ethernet.SIZE :])
        except MalformedPacket:
            return []
        if ip.ttl <= 1 or ip.dst not in self.routes:
            return []
        head = Ethernet.SIZE + IPv4.SIZE
        return [
            (self.routes[ip.dst], frame[: Ethernet.SIZE] + replace(ip, ttl=ip.ttl - 1).pack() + frame[head:])
        ]

    def place(self, job: Job, flow: Flow, packet: RocePacket) -> Record | None:
        """The record of the message that this packet belongs to; a First or Only makes it."""
        records, psn = job.records[flow.rank], packet.bth.psn
        if packet.bth.opcode not in FIRSTS:
            found = (r for r in records.values() if psn_math.distance(r.psn, psn) < r.packets)
            return next(found, None)
        try:
            header = AggregationHeader.unpack(packet.payload)
        except NotAnAggregationHeader:
            return None
        if (header.job, header.generation, header.rank) != (job.job, job.generation, flow.rank):
            return None
        if not 1 <= header.packets <= job.packets:
            return None
        latest = job.latest[flow.rank]
        if latest is None or serial_age(header.message, latest) < 0:
            job.latest[flow.rank] = header.message
        elif serial_age(header.message, latest) >= job.messages:
            return None  # its place in the history belongs to a newer message
        record = Record(header.message, psn, header.packets, header.op)
        records[header.message % job.messages] = record
        return record

    def aggregate(
        self, job: Job, flow: Flow, record: Record, packet: RocePacket, frame: bytes
    ) -> list[tuple[int, bytes]]:
        """The slot rules of docs/protocol.md."""
        index = psn_math.distance(record.psn, packet.bth.psn)
        slot = job.slots[record.message % job.messages * job.packets + index]
        tag = (job.generation, record.message)
        lanes = np.frombuffer(packet.payload, ">i4").astype(np.int32).reshape(-1, CHUNK_BYTES // 4)
        if slot.tag is None or slot.tag[0] != tag[0] or serial_age(slot.tag[1], tag[1]) > 0:  # 1: claim
            self.claim(job, slot, tag)
            slot.header = packet.payload[:CHUNK_BYTES]
            for chunk, values in enumerate(lanes):
                slot.chunks[chunk] = values
        elif slot.tag != tag:  # 5: the slot is a newer message's
            job.counters["stale"] += 1
            return self.forward(frame)
        elif flow.rank in slot.ranks:
            if len(slot.ranks) < len(job.flows):  # 3: a duplicate
                job.counters["duplicate"] += 1
                return []
            job.counters["replayed"] += 1  # 4: its copy of the sum was lost
            return [self.emit(slot, flow, index, packet, packet.bth.psn)]
        else:  # 2: add
            if index == 0 and packet.payload[SIGNATURE] != slot.header[SIGNATURE]:
                slot.mismatch = True
                job.counters["mismatch"] += 1
            for chunk, values in enumerate(lanes):
                old = slot.chunks[chunk]
                slot.chunks[chunk] = old + values if record.op is Op.SUM else np.maximum(old, values)
        slot.ranks.add(flow.rank)
        job.counters["aggregated"] += 1
        if len(slot.ranks) < len(job.flows):
            return []
        job.counters["completed"] += 1
        firsts = [job.records[q.rank][record.message % job.messages].psn for q in job.flows]
        return [self.emit(slot, q, index, packet, psn_math.add(firsts[q.rank], index)) for q in job.flows]

    def claim(self, job: Job, slot: Slot, tag: tuple[int, int]) -> None:
        """Rule 1: the slot's older message is forgotten."""
        slot.tag, slot.ranks, slot.mismatch = tag, set(), False

    def emit(self, slot: Slot, flow: Flow, index: int, packet: RocePacket, psn: int) -> tuple[int, bytes]:
        """The slot's sum as a packet of `flow`, shaped like `packet` (which completed it, or asks again)."""
        chunks = [
            values.astype(">i4").tobytes() for values in slot.chunks[: len(packet.payload) // CHUNK_BYTES]
        ]
        if index == 0:
            header = bytearray(slot.header)
            header[FLAGS_OFFSET] = Flags.RESULT | (Flags.MISMATCH if slot.mismatch else Flags.NONE)
            header[RANK_OFFSET] = flow.rank
            chunks[0] = bytes(header)
        out = replace(
            packet,
            ethernet=Ethernet(dst=flow.dst_mac, src=flow.src_mac),
            ip=replace(packet.ip, src=flow.src_ip, dst=flow.dst_ip, ttl=packet.ip.ttl - 1),
            bth=replace(packet.bth, dest_qp=flow.dst_qp, psn=psn),
            payload=b"".join(chunks),
        )
        return flow.dst_port, out.build()
