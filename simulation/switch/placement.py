"""Which packet of which message a packet of a flow is, and which one its receiver awaits."""

from __future__ import annotations

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import (
    CHUNK_BYTES,
    CODES,
    MAX_CHUNKS,
    AggregationHeader,
    NotAnAggregationHeader,
    Op,
)
from host_agent.wire.headers import (
    ETHERTYPE_IPV4,
    NAK_SEQUENCE_ERROR,
    PROTOCOL_UDP,
    RNR_NAK_SYNDROME,
    ROCE_V2_PORT,
    Bth,
    Ethernet,
    IPv4,
    MalformedPacket,
    Opcode,
    RocePacket,
    Udp,
)
from host_agent.wire.icrc import ICRC_SIZE, icrc
from simulation.switch.state import MOST_AGGREGATED, Flow, Job, Record, serial_age

_ROCE = ROCE_V2_PORT.to_bytes(2, "big")
_IPV4_PLAIN = ETHERTYPE_IPV4.to_bytes(2, "big") + b"\x45"  # without options
FIRSTS = (Opcode.SEND_FIRST, Opcode.SEND_ONLY)
SENDS = (*FIRSTS, Opcode.SEND_MIDDLE, Opcode.SEND_LAST)


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


def is_disguised(frame: bytes) -> bool:
    """UDP whose ports the switch does not read, but a host may: with options, or RoCE's first fragment."""
    head = frame[14:34]
    if frame[12:14] != ETHERTYPE_IPV4.to_bytes(2, "big") or len(head) < 20 or head[9] != PROTOCOL_UDP:
        return False
    fragment = int.from_bytes(head[6:8], "big") & 0x3FFF
    if fragment & 0x1FFF:
        return False  # not the first one
    if head[0] != 0x45:
        return True
    return bool(fragment) and frame[36:38] == ROCE_V2_PORT.to_bytes(2, "big") and len(frame) >= 42


def is_roce(frame: bytes) -> bool:
    """Whether `roce_headers` finds some; as many frames are looked at, without making anything of them."""
    return (
        frame[36:38] == _ROCE
        and frame[12:15] == _IPV4_PLAIN
        and frame[23] == PROTOCOL_UDP
        and len(frame) >= 54
        and not (frame[20] & 0x3F or frame[21])
    )


def is_whole(frame: bytes) -> bool:
    """Whether the ICRC of a RoCE packet whose lengths agree is right."""
    packet = frame[14 : 14 + int.from_bytes(frame[16:18], "big")]
    return icrc(packet[:-ICRC_SIZE]) == packet[-ICRC_SIZE:]


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
    known, latest = job.awaited[job.places[flow.rank]], job.latest[job.places[flow.rank]]
    known = flow.first_psn if known is None else known
    if latest is not None:  # else nothing was sent that it could be about
        unknown = psn_math.compare(psn_math.add(latest.psn, latest.packets), known)
        if 0 < psn_math.distance(known, awaits) <= unknown:
            job.awaited[job.places[flow.rank]] = awaits


def place(job: Job, flow: Flow, packet: RocePacket) -> Record | None:
    """The record of the message that this packet belongs to; a First or Only makes it."""
    if packet.bth.opcode in FIRSTS:
        return place_first(job, flow, packet)
    latest, psn, found = job.latest[job.places[flow.rank]], packet.bth.psn, None
    if latest is not None and psn_math.distance(latest.psn, psn) < latest.packets:
        found = latest
    elif latest is not None:
        for _, record in sorted(job.records[job.places[flow.rank]].items()):
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
    for code in CODES:  # compared between ranks, not understood
        head[code] = 0
    try:
        header = AggregationHeader.unpack(bytes(head))
    except NotAnAggregationHeader:
        return None
    if (header.job, header.generation, header.rank) != (job.job, job.generation, flow.rank) or header.flags:
        return None
    only = packet.bth.opcode == Opcode.SEND_ONLY
    if not 1 <= header.packets <= job.packets or (header.packets == 1) != only:
        return None
    if header.op != Op.PASS and header.message >= MOST_AGGREGATED:
        return None
    record = Record(header.message, packet.bth.psn, header.packets, header.op)
    records, latest = job.records[job.places[flow.rank]], job.latest[job.places[flow.rank]]
    behind = -1 if latest is None else serial_age(header.message, latest.message)
    if behind < 0:
        job.latest[job.places[flow.rank]] = record
    else:
        known = records.get(header.message % job.messages)
        if behind >= job.messages:
            return None  # its place in the history belongs to a newer message
        if known is not None and known.message == record.message and known != record:
            return None  # sent again, it would have the PSN it had
    records[header.message % job.messages] = record
    return record
