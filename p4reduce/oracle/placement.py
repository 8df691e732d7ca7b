"""The place of a packet: its message and index in a flow, and the PSN that the flow's receiver awaits."""

from __future__ import annotations

from host_agent.wire import aggregation, headers
from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, CODES, LAST_OP, MAX_CHUNKS, AggregationHeader, Op
from host_agent.wire.headers import MalformedPacket, Opcode, RocePacket
from host_agent.wire.icrc import ICRC_SIZE, icrc
from p4reduce.oracle.state import MOST_AGGREGATED, Flow, Job, Record, SpineJob, serial_age
from p4reduce.oracle.tree_packets import Kind, TreePacket

_ROCE = headers.ROCE_V2_PORT.to_bytes(2, "big")
_IPV4 = headers.ETHERTYPE_IPV4.to_bytes(2, "big")
_PLAIN = 0x45  # IPv4 without options
FIRSTS = (Opcode.SEND_FIRST, Opcode.SEND_ONLY)
SENDS = (*FIRSTS, Opcode.SEND_MIDDLE, Opcode.SEND_LAST)


def is_roce(frame: bytes) -> bool:
    """Return whether a frame has the headers of RoCE v2, whatever follows them."""
    if frame[36:38] != _ROCE or frame[12:14] != _IPV4 or frame[14] != _PLAIN or len(frame) < 54:
        return False
    return frame[23] == headers.PROTOCOL_UDP and not (frame[20] & 0x3F or frame[21])


def is_disguised(frame: bytes) -> bool:
    """Return whether a frame is UDP whose ports a host may read but the switch does not.

    These are packets with IP options, and the first fragment of a RoCE packet.
    """
    if frame[12:14] != _IPV4 or len(frame) < 34 or frame[23] != headers.PROTOCOL_UDP:
        return False
    more, offset = frame[20] & 0x20, int.from_bytes(frame[20:22], "big") & 0x1FFF
    is_first = frame[14] != _PLAIN or (more != 0 and frame[36:38] == _ROCE and len(frame) >= 42)
    return offset == 0 and is_first


def is_whole(frame: bytes) -> bool:
    """Return whether the ICRC of a RoCE packet is right; its lengths must agree."""
    packet = frame[14 : 14 + int.from_bytes(frame[16:18], "big")]
    return icrc(packet[:-ICRC_SIZE]) == packet[-ICRC_SIZE:]


def whole_chunks(frame: bytes) -> RocePacket | None:
    """Parse a SEND whose lengths agree and whose payload is 1 to 16 whole chunks; return None otherwise."""
    try:
        packet = RocePacket.parse(frame)
    except MalformedPacket:
        return None
    chunks, rest = divmod(len(packet.payload), CHUNK_BYTES)
    return packet if packet.bth.opcode in SENDS and 1 <= chunks <= MAX_CHUNKS and rest == 0 else None


def awaited(job: Job, flow: Flow) -> int:
    """Return the PSN that the receiver of a flow awaits: it has acknowledged everything before it."""
    known = job.awaited[job.places[flow.rank]]
    return flow.first_psn if known is None else known


def note_acknowledgement(job: Job, flow: Flow, frame: bytes) -> None:
    """Remember which PSN the receiver of a flow awaits, if this frame says it and is whole."""
    try:
        packet = RocePacket.parse(frame)
    except MalformedPacket:
        return
    number, aeth = job.places[flow.rank], packet.aeth
    latest = job.latest[number]
    if latest is None or aeth is None or packet.payload or not packet.icrc_ok():
        return  # nothing was sent that it could be about, or it is no acknowledgement
    is_ack, is_rnr = aeth.syndrome & 0xE0 == 0, aeth.syndrome & 0xE0 == headers.RNR_NAK_SYNDROME
    if is_ack or is_rnr or aeth.syndrome == headers.NAK_SEQUENCE_ERROR:
        awaits, known = psn_math.add(packet.bth.psn, is_ack), awaited(job, flow)
        unknown = psn_math.compare(psn_math.add(latest.psn, latest.packets), known)
        if 0 < psn_math.distance(known, awaits) <= unknown:
            job.awaited[number] = awaits


def place(job: Job, flow: Flow, packet: RocePacket) -> Record | None:
    """Return the record of the message that this packet belongs to; a First or Only makes it."""
    if packet.bth.opcode in FIRSTS:
        return place_first(job, flow, packet)
    number, psn = job.places[flow.rank], packet.bth.psn
    found = latest = job.latest[number]
    if latest is not None and psn_math.distance(latest.psn, psn) >= latest.packets:
        history, most = sorted(job.records[number].items(), reverse=True), job.messages
        known = (r for _, r in history if 0 <= serial_age(r.message, latest.message) < most)
        found = next((r for r in known if psn_math.distance(r.psn, psn) < r.packets), None)
    if found is None:
        return None
    index, is_last = psn_math.distance(found.psn, psn), packet.bth.opcode == Opcode.SEND_LAST
    return found if index > 0 and (index + 1 == found.packets) == is_last else None


def place_first(job: Job, flow: Flow, packet: RocePacket) -> Record | None:
    """Check the header against the flow, and remember the message. Return None if it is refused."""
    head = bytearray(packet.payload[:CHUNK_BYTES])
    for code in CODES:  # compared between ranks, not understood
        head[code] = 0
    try:
        header = AggregationHeader.unpack(bytes(head))
    except aggregation.NotAnAggregationHeader:
        return None
    if (header.job, header.generation, header.rank) != (job.job, job.generation, flow.rank) or header.flags:
        return None
    only = packet.bth.opcode == Opcode.SEND_ONLY
    if not 1 <= header.packets <= job.packets or (header.packets == 1) != only:
        return None
    if header.op != Op.PASS and header.message >= MOST_AGGREGATED:
        return None
    record = Record(header.message, packet.bth.psn, header.packets, header.op)
    number, cell = job.places[flow.rank], header.message % job.messages
    latest, known = job.latest[number], job.records[number].get(cell)
    behind = -1 if latest is None else serial_age(header.message, latest.message)
    if behind < 0:
        job.latest[number] = record
    elif behind >= job.messages:
        return None  # its place in the history belongs to a newer message
    elif known is not None and known.message == record.message and known != record:
        return None  # sent again, it would have the PSN it had
    job.records[number][cell] = record
    return record


def is_placed(job: Job | SpineJob, packet: TreePacket) -> bool:
    """Return whether a tree packet is of a kind that is sent here, and of a message that is aggregated."""
    kinds = (Kind.RESULT, Kind.PARTIAL if isinstance(job, SpineJob) else Kind.ASK)
    if packet.kind not in kinds or not Op.PASS < packet.op <= LAST_OP or not packet.payload:
        return False
    return packet.index < job.packets and packet.message < MOST_AGGREGATED
