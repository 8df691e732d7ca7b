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
    ELEMENT_TYPE_OFFSET,
    FLAGS_OFFSET,
    LANE_BYTES,
    MAX_CHUNKS,
    RANK_OFFSET,
    REDUCTION_OFFSET,
    SIGNATURE,
    SUMMED_BIT,
    AggregationHeader,
    Flags,
    NotAnAggregationHeader,
    Op,
)
from host_agent.wire.headers import (
    DEFAULT_UDP_SOURCE_PORT,
    ETHERTYPE_IPV4,
    NAK_SEQUENCE_ERROR,
    PROTOCOL_UDP,
    RNR_NAK_SYNDROME,
    ROCE_V2_PORT,
    Aeth,
    Bth,
    Ethernet,
    IPv4,
    MalformedPacket,
    Opcode,
    RocePacket,
    Udp,
    ipv4_checksum,
)

Out = tuple[int, bytes]  # port, frame

FIRSTS = (Opcode.SEND_FIRST, Opcode.SEND_ONLY)
CONGESTION_NOTIFICATION = 0x81  # CNP: RoCE v2's congestion management (annex A17)
ENDS = (Opcode.SEND_LAST, Opcode.SEND_ONLY)
SENDS = (*FIRSTS, Opcode.SEND_MIDDLE, Opcode.SEND_LAST)
COUNTERS = (
    "aggregated",  # a contribution was added (rules 1 and 2)
    "completed",  # it was the last one: the sum went out on every flow
    "duplicate",  # rule 3: dropped
    "not_ready",  # rule 3: answered with an RNR NAK
    "replayed",  # rule 4
    "stale",  # rule 5
    "passed",  # of a PASS message: forwarded
    "unplaced",  # on a job's flow, but of no known message: dropped
    "foreign",  # for a job's QP, but from elsewhere: dropped
    "bad_icrc",  # dropped
    "mismatch",  # a header or a length differed from the first contributor's
    "acks",  # forwarded
)


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Rank `rank`'s connection to its successor: data goes src → dst_qp, ACKs come back to src_qp.

    `first_psn` is src_qp's; `rnr_syndrome`: its NIC wants RNR NAKs with that timer (0: it wants none).
    """

    rank: int
    port: int
    src_mac: bytes
    src_ip: IPv4Address
    src_qp: int
    dst_port: int
    dst_mac: bytes
    dst_ip: IPv4Address
    dst_qp: int
    udp_src_port: int = DEFAULT_UDP_SOURCE_PORT
    first_psn: int = 0
    rnr_syndrome: int = 0


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way to a host."""

    port: int
    src_mac: bytes
    dst_mac: bytes


@dataclass(frozen=True)
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
        default_factory=lambda: [np.zeros(CHUNK_BYTES // LANE_BYTES, np.int32) for _ in range(MAX_CHUNKS)]
    )
    header: bytes = bytes(CHUNK_BYTES)
    count: int = 0  # chunks in the first contributor's packet
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
        self.latest: list[Record | None] = [None for _ in self.flows]
        self.awaited: list[int | None] = [None for _ in self.flows]  # all before it is acknowledged
        self.first_psns = [[0] * self.messages for _ in self.flows]
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    def drop(self, reason: str) -> list[Out]:
        """Nothing leaves; `reason` is counted."""
        self.counters[reason] += 1
        return []


def serial_age(message: int, latest: int) -> int:
    """How many messages `message` is behind `latest`; negative where it is ahead (32-bit serial numbers)."""
    behind = (latest - message) & 0xFFFFFFFF
    return behind - (1 << 32) if behind >= 1 << 31 else behind


class SwitchModel:
    """One switch: routes, the ports that non-IP frames are flooded to, and the jobs on it."""

    def __init__(
        self,
        jobs: Iterable[Job],
        routes: Mapping[IPv4Address, Route],
        *,
        flood: Iterable[int] = (),
        check_icrc: bool = True,
    ) -> None:
        self.routes = routes
        self.flood = tuple(flood)
        self.check_icrc = check_icrc
        self.members = {}
        for job in jobs:
            for flow in job.flows:
                self.members[flow.dst_ip, flow.dst_qp] = (job, flow, True)
                self.members[flow.src_ip, flow.src_qp] = (job, flow, False)

    def process(self, port: int, frame: bytes) -> list[Out]:
        """What leaves, and where, when `frame` comes in on `port`."""
        headers = roce_headers(frame)
        member = self.members.get((headers[0].dst, headers[1].dest_qp)) if headers else None
        if headers is None or member is None:
            return self.forward(port, frame)
        ip, bth = headers
        job, flow, is_data = member
        peer = (flow.port, flow.src_ip) if is_data else (flow.dst_port, flow.dst_ip)
        if (port, ip.src) == peer and bth.opcode == CONGESTION_NOTIFICATION:
            return self.forward(port, frame)
        if (port, ip.src) != peer or (not is_data and bth.opcode != Opcode.ACKNOWLEDGE):
            return job.drop("foreign")
        if not is_data:
            job.counters["acks"] += 1
            if flow.rnr_syndrome:
                note_acknowledgement(job, flow, frame)
            return self.forward(port, frame)
        packet = whole_chunks(frame)
        if packet is None:
            return job.drop("unplaced")
        if self.check_icrc and not packet.icrc_ok():
            return job.drop("bad_icrc")
        record = None if bth.reserved else place(job, flow, packet)
        if record is None:
            return job.drop("unplaced")
        if record.op == Op.PASS:
            job.counters["passed"] += 1
            return self.forward(port, frame)
        return self.aggregate(job, flow, record, packet, frame)

    def forward(self, port: int, frame: bytes) -> list[Out]:
        """As a router: by destination address, TTL - 1. What is not IPv4 is flooded."""
        if frame[12:14] != ETHERTYPE_IPV4.to_bytes(2, "big"):
            return [(out, frame) for out in self.flood if out != port]
        head = bytearray(frame[14:34])
        route = self.routes.get(IPv4Address(bytes(head[16:20]))) if len(head) == IPv4.SIZE else None
        if route is None or head[8] <= 1:
            return []
        head[8] -= 1
        if head[0] == 0x45:  # with options, the checksum is left alone
            head[10:12] = bytes(2)
            head[10:12] = ipv4_checksum(bytes(head)).to_bytes(2, "big")
        return [(route.port, route.dst_mac + route.src_mac + frame[12:14] + bytes(head) + frame[34:])]

    def aggregate(self, job: Job, flow: Flow, record: Record, packet: RocePacket, frame: bytes) -> list[Out]:
        """The slot rules of docs/protocol.md."""
        index = psn_math.distance(record.psn, packet.bth.psn)
        slot = job.slots[record.message % job.messages * job.packets + index]
        tag = (job.generation, record.message)
        head = job.slots[record.message % job.messages * job.packets]
        if index > 0 and head.tag == tag and head.mismatch:  # everybody is told by the first packet
            return job.drop("mismatch")
        if index == 0:
            job.first_psns[flow.rank][record.message % job.messages] = packet.bth.psn
        lanes = np.frombuffer(packet.payload, ">i4").astype(np.int32).reshape(-1, CHUNK_BYTES // LANE_BYTES)
        if slot.tag is None or slot.tag[0] != tag[0] or serial_age(slot.tag[1], tag[1]) > 0:  # 1: claim
            self.claim(job, slot, tag)
            slot.header, slot.count = packet.payload[:CHUNK_BYTES], len(lanes)
            for chunk, values in enumerate(lanes):
                slot.chunks[chunk] = values
        elif slot.tag != tag:  # 5: the slot is a newer message's
            job.counters["stale"] += 1
            return self.forward(flow.port, frame)
        elif len(lanes) != slot.count and index > 0:  # not the fragment that the others sent
            return job.drop("mismatch")
        elif len(slot.ranks) == len(job.flows):  # 4: its copy of the sum was lost
            if not self.forward(flow.port, frame):
                return []
            job.counters["replayed"] += 1
            if len(lanes) != slot.count:  # only for index 0; its sender contradicts itself and is told alone
                job.counters["mismatch"] += 1
            route = self.routes[flow.dst_ip]
            alone = replace(flow, dst_port=route.port, src_mac=route.src_mac, dst_mac=route.dst_mac)
            alone = replace(alone, udp_src_port=packet.udp.src_port)
            return [self.emit(slot, alone, index, packet, packet.bth.psn)]
        elif flow.rank in slot.ranks:  # 3: a duplicate
            awaited = job.awaited[flow.rank]
            if packet.bth.psn != (flow.first_psn if awaited is None else awaited) or not flow.rnr_syndrome:
                return job.drop("duplicate")
            job.counters["not_ready"] += 1
            return [self.not_ready(flow, record, packet)]
        else:  # 2: add
            if index == 0 and (
                packet.payload[SIGNATURE] != slot.header[SIGNATURE] or len(lanes) != slot.count
            ):
                slot.mismatch = True
                job.counters["mismatch"] += 1
            for chunk, values in enumerate(lanes):
                old = slot.chunks[chunk]
                slot.chunks[chunk] = old + values if record.op == Op.SUM else np.maximum(old, values)
        slot.ranks.add(flow.rank)
        job.counters["aggregated"] += 1
        if len(slot.ranks) < len(job.flows):
            return []
        job.counters["completed"] += 1
        firsts = [psns[record.message % job.messages] for psns in job.first_psns]
        return [self.emit(slot, q, index, packet, psn_math.add(firsts[q.rank], index)) for q in job.flows]

    def not_ready(self, flow: Flow, record: Record, packet: RocePacket) -> Out:
        """What its peer would say to `packet` if it had not posted a receive: go on, but later."""
        bth = Bth(
            opcode=Opcode.ACKNOWLEDGE,
            dest_qp=flow.src_qp,
            psn=packet.bth.psn,
            mig_req=packet.bth.mig_req,
            transport_version=packet.bth.transport_version,
            pkey=packet.bth.pkey,
        )
        answer = replace(
            packet,
            ethernet=replace(packet.ethernet, dst=packet.ethernet.src, src=packet.ethernet.dst),
            ip=replace(packet.ip, src=packet.ip.dst, dst=packet.ip.src, ttl=64),
            udp=replace(packet.udp, checksum=0),
            bth=bth,
            aeth=Aeth(syndrome=flow.rnr_syndrome, msn=record.message & psn_math.PSN_MASK),
            payload=b"",
        )
        return flow.port, answer.build()

    def claim(self, job: Job, slot: Slot, tag: tuple[int, int]) -> None:
        """Rule 1: the slot's older message is forgotten."""
        slot.tag, slot.ranks, slot.mismatch = tag, set(), False

    def emit(self, slot: Slot, flow: Flow, index: int, packet: RocePacket, psn: int) -> Out:
        """The slot's sum as a packet of `flow`, shaped like `packet` (which completed it, or asks again)."""
        chunks = [
            values.astype(">i4").tobytes() for values in slot.chunks[: len(packet.payload) // CHUNK_BYTES]
        ]
        opcode = packet.bth.opcode
        if index == 0:
            header = bytearray(slot.header)
            mismatch = slot.mismatch or len(chunks) != slot.count
            header[FLAGS_OFFSET] = Flags.RESULT | (Flags.MISMATCH if mismatch else Flags.NONE)
            header[RANK_OFFSET] = flow.rank
            if mismatch:  # nothing else of the message will come
                opcode = Opcode.SEND_ONLY
            chunks[0] = bytes(header)
        out = replace(
            packet,
            ethernet=Ethernet(dst=flow.dst_mac, src=flow.src_mac),
            ip=replace(packet.ip, src=flow.src_ip, dst=flow.dst_ip, ttl=(packet.ip.ttl - 1) & 0xFF),
            udp=replace(packet.udp, src_port=flow.udp_src_port),
            bth=replace(
                packet.bth,
                opcode=opcode,
                dest_qp=flow.dst_qp,
                psn=psn,
                reserved=SUMMED_BIT,
                ack_req=packet.bth.ack_req or opcode in ENDS,
            ),
            payload=b"".join(chunks),
        )
        return flow.dst_port, out.build()


def roce_headers(frame: bytes) -> tuple[IPv4, Bth] | None:
    """IP and BTH of a RoCE v2 packet, whatever follows; None for all others."""
    try:
        ethernet, ip = Ethernet.unpack(frame), IPv4.unpack(frame[14:])
        udp, bth = Udp.unpack(frame[34:]), Bth.unpack(frame[42:])
    except MalformedPacket:
        return None
    fragment = ip.flags & 0x1 or ip.fragment_offset
    if ethernet.ether_type != ETHERTYPE_IPV4 or ip.protocol != PROTOCOL_UDP or fragment:
        return None
    return (ip, bth) if udp.dst_port == ROCE_V2_PORT else None


def whole_chunks(frame: bytes) -> RocePacket | None:
    """A SEND whose payload is 1 to 16 whole chunks, lengths that agree included; None for all others."""
    try:
        packet = RocePacket.parse(frame)
    except MalformedPacket:
        return None
    chunks, rest = divmod(len(packet.payload), CHUNK_BYTES)
    return packet if packet.bth.opcode in SENDS and 1 <= chunks <= MAX_CHUNKS and rest == 0 else None


def note_acknowledgement(job: Job, flow: Flow, frame: bytes) -> None:
    """Remember which PSN the receiver of a flow awaits, if this says it and is whole."""
    try:
        packet = RocePacket.parse(frame)
    except MalformedPacket:
        return
    if packet.aeth is None or packet.payload or not packet.icrc_ok():
        return
    kind = packet.aeth.syndrome & 0xE0
    if kind == 0:
        awaits = psn_math.add(packet.bth.psn, 1)
    elif kind == RNR_NAK_SYNDROME or packet.aeth.syndrome == NAK_SEQUENCE_ERROR:
        awaits = packet.bth.psn
    else:
        return
    known, latest = job.awaited[flow.rank], job.latest[flow.rank]
    known = flow.first_psn if known is None else known
    if latest is not None:  # else nothing was sent that it could be about
        unknown = psn_math.compare(psn_math.add(latest.psn, latest.packets), known)
        if 0 < psn_math.distance(known, awaits) <= unknown:
            job.awaited[flow.rank] = awaits


def place(job: Job, flow: Flow, packet: RocePacket) -> Record | None:
    """The record of the message that this packet belongs to; a First or Only makes it."""
    if packet.bth.opcode in FIRSTS:
        return place_first(job, flow, packet)
    latest, psn, found = job.latest[flow.rank], packet.bth.psn, None
    if latest is not None and psn_math.distance(latest.psn, psn) < latest.packets:
        found = latest
    elif latest is not None:
        for _, record in sorted(job.records[flow.rank].items()):
            remembered = 0 <= serial_age(record.message, latest.message) < job.messages
            if remembered and psn_math.distance(record.psn, psn) < record.packets:
                found = record
    if found is None:
        return None
    index = psn_math.distance(found.psn, psn)
    is_last = packet.bth.opcode == Opcode.SEND_LAST
    return found if index > 0 and (index + 1 == found.packets) == is_last else None


def place_first(job: Job, flow: Flow, packet: RocePacket) -> Record | None:
    """Check the header against the flow, and remember the message."""
    head = bytearray(packet.payload[:CHUNK_BYTES])
    head[ELEMENT_TYPE_OFFSET] = head[REDUCTION_OFFSET] = 0  # compared between ranks, not understood
    try:
        header = AggregationHeader.unpack(bytes(head))
    except NotAnAggregationHeader:
        return None
    if (header.job, header.generation, header.rank) != (job.job, job.generation, flow.rank) or header.flags:
        return None
    only = packet.bth.opcode == Opcode.SEND_ONLY
    if not 1 <= header.packets <= job.packets or (header.packets == 1) != only:
        return None
    record = Record(header.message, packet.bth.psn, header.packets, header.op)
    records, latest = job.records[flow.rank], job.latest[flow.rank]
    behind = -1 if latest is None else serial_age(header.message, latest.message)
    if behind < 0:
        job.latest[flow.rank] = record
    else:
        known = records.get(header.message % job.messages)
        if behind >= job.messages:
            return None  # its place in the history belongs to a newer message
        if known is not None and known.message == record.message and known != record:
            return None  # sent again, it would have the PSN it had
    records[header.message % job.messages] = record
    return record
