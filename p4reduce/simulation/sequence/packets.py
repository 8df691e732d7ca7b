"""Frames for people: the kind of each, its place in its message, and the fields of its headers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Final

import numpy as np
from numpy.typing import NDArray

from host_agent.transport import TransportConfig
from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import (
    CHUNK_BYTES,
    SUMMED_BIT,
    AggregationHeader,
    NotAnAggregationHeader,
    Op,
)
from host_agent.wire.headers import (
    NAK_SEQUENCE_ERROR,
    RNR_NAK_SYNDROME,
    Ethernet,
    IPv4,
    MalformedPacket,
    Opcode,
    RocePacket,
    Udp,
)
from p4reduce.oracle.half import UNIT
from p4reduce.oracle.state import Slot
from p4reduce.oracle.tree_packets import Kind, TreeFlags, TreePacket

SHOWN: Final = 6  # numbers of a payload
LAYERS: Final = {
    "Ethernet": ("destination", "source", "type"),
    "IPv4": ("source", "destination", "TTL", "TOS", "identification", "length"),
    "UDP": ("source port", "destination port", "length", "checksum"),
    "BTH": ("opcode", "destination QP", "PSN", "AckReq", "reserved", "P_Key"),
    "AETH": ("syndrome", "MSN"),
    "aggregation header": (
        *("flags", "job", "generation", "message", "rank", "op", "element type", "packets", "reduction"),
        *("kind", "root", "stage", "elements", "collective", "tensor elements"),
    ),
    "tree header": ("kind", "opcode", "op", "index", "flags", "generation", "message", "PSN"),
    "payload": ("bytes", "first numbers"),
    "ICRC": ("value",),
}
"""A packet's headers, with the names of their fields."""

Layer = tuple[str, tuple[str, ...]]
_OPCODES: Final = {
    int(Opcode.SEND_FIRST): "First",
    int(Opcode.SEND_MIDDLE): "Middle",
    int(Opcode.SEND_LAST): "Last",
    int(Opcode.SEND_ONLY): "Only",
    int(Opcode.ACKNOWLEDGE): "Acknowledge",
}
_TREE_KINDS: Final[dict[int, str]] = {
    Kind.PARTIAL: "partial",
    Kind.RESULT: "result",
    Kind.ASK: "ask",
    Kind.ECHO_REQUEST: "probe",
    Kind.ECHO_REPLY: "probe",
}


@dataclass(frozen=True)
class Place:
    """Packet `index` of a message, and the op by which switches add it."""

    message: int
    index: int
    op: int

    def __str__(self) -> str:
        return f"m{self.message}.{self.index}"


@dataclass
class Flow:
    """A rank's connection to its successor, as its Firsts have told it. `sent`: the PSNs that were sent."""

    rank: int
    sent: set[int] = field(default_factory=set)
    # PSN, packets, message, op; a window is 8 messages at most, and no more are asked for
    _firsts: deque[tuple[int, int, int, int]] = field(default_factory=lambda: deque(maxlen=64))

    def note(self, psn: int, header: AggregationHeader) -> None:
        """Remember a message that begins."""
        known = (psn, header.packets, header.message, int(header.op))
        if known not in self._firsts:
            self._firsts.append(known)

    def place(self, psn: int) -> Place | None:
        """Return a packet's place, or None if its First was not seen."""
        for first, packets, message, op in reversed(self._firsts):
            if (index := psn_math.distance(first, psn)) < packets:
                return Place(message, index, op)
        return None


@dataclass(frozen=True)
class Packet:
    """A frame in words.

    `kind`: data, sum, pass, ack, nak, rnr, partial, result, ask, probe, broken or other.
    """

    kind: str
    label: str
    layers: tuple[Layer, ...]
    place: Place | None = None
    flow: Flow | None = None
    psn: int = 0


class Packets:
    """The reader of frames, which knows the connections that workers have opened."""

    def __init__(self) -> None:
        self._data: dict[tuple[IPv4Address, int], Flow] = {}  # by receiver's address and QP
        self._acks: dict[tuple[IPv4Address, int], Flow] = {}  # by sender's

    def opened(self, config: TransportConfig) -> None:
        """Remember a worker's two queue pairs."""
        flow = Flow(config.rank)
        self._acks[config.ip, config.qpn_out] = flow
        self._data[config.successor.ip, config.successor.qpn_in] = flow

    def place(self, ip: IPv4Address, qpn: int, psn: int) -> Place | None:
        """Return the place of a packet that comes to a receiver's queue pair."""
        flow = self._data.get((ip, qpn))
        return None if flow is None else flow.place(psn)

    def read(self, frame: bytes) -> Packet:
        """Return a frame in words; remember it if it is a First."""
        if (tree := TreePacket.parse(frame)) is not None:
            return _of_tree(tree)
        try:
            packet = RocePacket.parse(frame)
        except MalformedPacket:
            return Packet("other", "other", tuple(_outer(Ethernet.unpack(frame), None, None)))
        end = packet.ip.dst, packet.bth.dest_qp
        if packet.aeth is not None:
            return _acknowledgement(packet, self._acks.get(end))
        flow, header = self._data.get(end), _header(packet)
        whole = packet.icrc_ok()
        if flow is not None and header is not None and whole:
            flow.note(packet.bth.psn, header)
        place = None if flow is None else flow.place(packet.bth.psn)
        kind = "sum" if packet.bth.reserved & SUMMED_BIT else "data"
        if place is not None and place.op == Op.PASS:
            kind = "pass"
        if not whole:
            kind = "broken"
        return Packet(
            kind,
            " ".join([*(["sum"] if kind == "sum" else []), str(place or "?"), _opcode(packet.bth.opcode)]),
            tuple(_layers(packet, header, place)),
            place,
            flow,
            packet.bth.psn,
        )


def numbers(payload: bytes, op: int, *, header: bool) -> str:
    """Return the first numbers of a payload, as a switch takes them."""
    lanes = payload[CHUNK_BYTES if header else 0 :][: 4 * SHOWN]
    kind = {Op.SUM_HALF: ">f2", Op.MAX_HALF: ">i2"}.get(Op(op), ">i4")
    return _shown(np.frombuffer(lanes, kind)[:SHOWN])


def slot_numbers(slot: Slot, index: int, op: int, *, more: bool) -> str:
    """Return the first numbers that a slot's accumulators hold; `more`: others will be added."""
    first = int(index == 0)
    if slot.count <= first or (first and slot.mismatch):  # there is nothing of this message
        return ""
    lanes = slot.chunks[first]
    if op == Op.SUM_HALF and more:
        both = np.stack([lanes[: SHOWN // 2], slot.seconds[first][: SHOWN // 2]], axis=1)
        return _shown(both.reshape(-1) * UNIT)
    return numbers(lanes[:SHOWN].astype(">i4").tobytes(), op, header=False)


def _shown(values: NDArray[np.generic]) -> str:
    return " ".join(f"{value:.4g}" if isinstance(value, np.floating) else str(value) for value in values)


def _opcode(opcode: int) -> str:
    return _OPCODES.get(opcode, f"opcode 0x{opcode:02x}")


def _mac(address: bytes) -> str:
    return address.hex(":")


def _outer(ethernet: Ethernet, ip: IPv4 | None, udp: Udp | None) -> Iterable[Layer]:
    yield "Ethernet", (_mac(ethernet.dst), _mac(ethernet.src), f"0x{ethernet.ether_type:04x}")
    if ip is not None:
        values = str(ip.src), str(ip.dst), str(ip.ttl), str(ip.tos), str(ip.identification)
        yield "IPv4", (*values, str(ip.total_length))
    if udp is not None:
        yield "UDP", (str(udp.src_port), str(udp.dst_port), str(udp.length), str(udp.checksum))


def _layers(packet: RocePacket, header: AggregationHeader | None, place: Place | None) -> Iterable[Layer]:
    yield from _outer(packet.ethernet, packet.ip, packet.udp)
    bth = packet.bth
    reserved = f"0x{bth.reserved:02x}" + (" made by a switch" if bth.reserved & SUMMED_BIT else "")
    yield (
        "BTH",
        (
            f"0x{bth.opcode:02x} {_opcode(bth.opcode)}",
            f"0x{bth.dest_qp:06x}",
            f"0x{bth.psn:06x}" + (f" {place}" if place else ""),
            str(int(bth.ack_req)),
            reserved,
            f"0x{bth.pkey:04x}",
        ),
    )
    if packet.aeth is not None:
        syndrome = packet.aeth.syndrome
        yield "AETH", (f"0x{syndrome:02x} {_syndrome(syndrome)}", str(packet.aeth.msn))
    if header is not None:
        yield "aggregation header", tuple(_of_header(header))
    if packet.payload:
        op = place.op if place is not None else Op.SUM
        shown = numbers(packet.payload, op, header=header is not None)
        yield "payload", (str(len(packet.payload)), shown or "none: all of it is the header")
    yield "ICRC", (f"{packet.icrc.hex()} {'right' if packet.icrc_ok() else 'wrong'}",)


def _of_header(header: AggregationHeader) -> Iterable[str]:
    yield _flags(header.flags)
    for number in (header.job, header.generation, header.message, header.rank):
        yield str(number)
    yield f"{int(header.op)} {header.op.name}"
    yield f"{int(header.element_type)} {header.element_type.name.lower()}"
    yield str(header.packets)
    yield f"{int(header.reduction)} {header.reduction.name}"
    yield f"{int(header.kind)} {header.kind.name.lower()}"
    yield str(header.root)
    yield f"{int(header.stage)} {header.stage.name.lower()}"
    for number in (header.elements, header.collective, header.tensor_elements):
        yield str(number)


def _flags(flags: int) -> str:
    names = [name for bit, name in ((1, "RESULT"), (2, "MISMATCH")) if flags & bit]
    return " ".join([f"0x{flags:02x}", *names])


def _header(packet: RocePacket) -> AggregationHeader | None:
    if packet.bth.opcode not in (Opcode.SEND_FIRST, Opcode.SEND_ONLY):
        return None
    try:
        return AggregationHeader.unpack(packet.payload[:CHUNK_BYTES])
    except NotAnAggregationHeader:
        return None


def _syndrome(syndrome: int) -> str:
    if syndrome == NAK_SEQUENCE_ERROR:
        return "NAK, PSN sequence error"
    if syndrome & 0xE0 == RNR_NAK_SYNDROME:
        return "RNR NAK"
    return "ACK" if syndrome < RNR_NAK_SYNDROME else "NAK"


def _acknowledgement(packet: RocePacket, flow: Flow | None) -> Packet:
    assert packet.aeth is not None
    place = None if flow is None else flow.place(packet.bth.psn)
    said = _syndrome(packet.aeth.syndrome).partition(",")[0]
    kind = {"ACK": "ack", "RNR NAK": "rnr"}.get(said, "nak") if packet.icrc_ok() else "broken"
    where = str(place) if place is not None else f"0x{packet.bth.psn:06x}"
    return Packet(kind, f"{said} {where}", tuple(_layers(packet, None, place)), place, flow, packet.bth.psn)


def _of_tree(packet: TreePacket) -> Packet:
    names = {int(kind): kind.name.replace("_", " ") for kind in Kind}
    name, whole = names.get(packet.kind, f"kind {packet.kind}"), packet.icrc_ok()
    probe = packet.kind in (Kind.ECHO_REQUEST, Kind.ECHO_REPLY)
    place = None if probe else Place(packet.message, packet.index, packet.op)
    flags = [flag.name or "" for flag in TreeFlags if flag and packet.flags & flag]
    op = f"{packet.op} {Op(packet.op).name}" if packet.op in set(Op) else str(packet.op)
    layers = [
        *_outer(packet.ethernet, packet.ip, packet.udp),
        (
            "tree header",
            (
                f"{packet.kind} {name}",
                "–" if probe else f"0x{packet.opcode:02x} {_opcode(packet.opcode)}",
                op,
                str(packet.index),
                " ".join([f"0x{packet.flags:02x}", *flags]),
                str(packet.generation),
                str(packet.message),
                f"0x{packet.psn:06x}",
            ),
        ),
    ]
    if packet.payload:
        known = packet.op if packet.op in set(Op) else Op.SUM
        shown = numbers(packet.payload, known, header=packet.index == 0)
        layers.append(("payload", (str(len(packet.payload)), shown or "none: all of it is the header")))
    layers.append(("ICRC", (f"{packet.icrc.hex()} {'right' if whole else 'wrong'}",)))
    kind = _TREE_KINDS.get(packet.kind, "other") if whole else "broken"
    return Packet(kind, name if place is None else f"{name} {place}", tuple(layers), place)
