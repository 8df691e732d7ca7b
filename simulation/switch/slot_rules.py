"""The switch's rules as a Python model: the oracle for the P4 program, both targets and simulations.

    frame ─ port? ─ RoCE v2? ─ flow? ─ own? ─ ICRC ─ place (First records) ─ PASS? ─ slot rules 1..5 ─ emit
                      │no        │no member                                    │             │
                      └──────────┴──────────── forward (TTL - 1) ◄─────────────┘             └─ or up: tree.py

The words are those of docs/protocol.md: a message's fragment i lives in slot (m mod 2W)·P + i of its job,
under the tag (generation, m). Registers keep what was last written to them, as in a switch: a claim writes
only the chunks that its packet has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from ipaddress import IPv4Address
from typing import TypeAlias

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, SUMMED_BIT, Op
from host_agent.wire.headers import ETHERTYPE_ARP, ETHERTYPE_IPV4, IPv4, Opcode, RocePacket, ipv4_checksum
from simulation.switch.ecmp import choice
from simulation.switch.emit import Shape, not_ready, sum_on
from simulation.switch.placement import (
    is_disguised,
    is_roce,
    is_whole,
    note_acknowledgement,
    place,
    whole_chunks,
)
from simulation.switch.state import (
    Flow,
    Job,
    Link,
    Out,
    Record,
    Route,
    Slot,
    SpineJob,
)
from simulation.switch.tree import TreeSwitch
from simulation.switch.tree_packets import TreePacket

BROADCAST = b"\xff" * 6
_IPV4, _ARP = ETHERTYPE_IPV4.to_bytes(2, "big"), ETHERTYPE_ARP.to_bytes(2, "big")

MARK_OFFSET = 50  # BTH's reserved bits
CONGESTION_NOTIFICATION = 0x81  # CNP: RoCE v2's congestion management (annex A17)


class Role(Enum):
    """What a packet of a job's is for this switch."""

    DATA = "data"
    ACK = "ack"
    GUARD = "guard"  # it is aimed at a job's queue pair, and not from its peer
    PASSING = "passing"  # its sender or its receiver is here, and the leaf that deals with it is another


FlowKey: TypeAlias = tuple[int, bytes, bytes, int]  # ingress port, source, destination, its QP
QueuePair: TypeAlias = tuple[bytes, int]  # what takes packets from its peer alone
Routes: TypeAlias = Mapping[IPv4Address, "Route | tuple[Route, ...]"]


class SwitchModel(TreeSwitch):
    """One switch: routes, the ports that non-IP frames are flooded to, and the jobs on it.

    In a fabric also links to other switches, by port; and, of jobs in several racks, `tree_jobs` by port and
    generation. A route of several next hops is ECMP. Behind each other port is the host that is routed there.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        routes: Routes,
        *,
        flood: Iterable[int] = (),
        check_icrc: bool = True,
        links: Mapping[int, Link] | None = None,
        tree_jobs: Mapping[tuple[int, int], Job | SpineJob] | None = None,
    ) -> None:
        super().__init__(links or {}, tree_jobs)
        self.routes = {address.packed: route for address, route in routes.items()}
        self.flood = tuple(flood)
        self.mac_ports: dict[bytes, int] = {}
        self.check_icrc = check_icrc
        self.host_ports = {
            route.port: ip
            for ip, route in routes.items()
            if isinstance(route, Route) and route.port not in self.links
        }
        self.members: dict[FlowKey | QueuePair, tuple[Job, Flow, Role]] = {}
        for job in jobs:
            self.add_job(job)

    def add_job(self, job: Job) -> None:
        """Its flows: those whose senders are here, and the one that enters the rack."""
        for flow in job.flows:
            away = job.tree is not None and flow is job.flows[-1]
            self._add_flow(job, flow, Role.DATA, Role.ACK, receivers=self.links if away else [flow.dst_port])
        if job.tree is not None:
            entering = job.tree.entering
            self._add_flow(job, entering, Role.PASSING, Role.PASSING, senders=self.links)

    def _add_flow(
        self,
        job: Job,
        flow: Flow,
        there: Role,
        back: Role,
        *,
        senders: Iterable[int] | None = None,
        receivers: Iterable[int] | None = None,
    ) -> None:
        src, dst = flow.src_ip.packed, flow.dst_ip.packed
        for port in [flow.port] if senders is None else senders:
            self.members[port, src, dst, flow.dst_qp] = (job, flow, there)
        for port in [flow.dst_port] if receivers is None else receivers:
            self.members[port, dst, src, flow.src_qp] = (job, flow, back)
        self.members[dst, flow.dst_qp] = self.members[src, flow.src_qp] = (job, flow, Role.GUARD)

    def process(self, port: int, frame: bytes) -> list[Out]:
        """What leaves, and where, when `frame` comes in on `port`."""
        if port not in self.host_ports and port not in self.fabric_ports:
            self.port_counters["unnamed"][port] += 1
            return []
        tree_packet = TreePacket.parse(frame)
        if tree_packet is not None:
            return self.tree_packet(port, tree_packet)
        if not is_roce(frame):
            if is_disguised(frame):
                self.port_counters["spoofed"][port] += 1
                return []
            return self.forward(port, frame)
        src, dst, opcode, dest_qp = frame[26:30], frame[30:34], frame[42], int.from_bytes(frame[47:50], "big")
        found = self.members.get((port, src, dst, dest_qp)) or self.members.get((dst, dest_qp))
        if found is not None and found[2] is Role.GUARD:
            return found[0].drop("foreign")
        if found is None or opcode == CONGESTION_NOTIFICATION:
            return [] if self.is_spoofed(port, frame) else self.forward(port, frame)
        job, flow, role = found
        if role is Role.ACK:
            if opcode != Opcode.ACKNOWLEDGE:
                return job.drop("foreign")
            job.counters["acks"] += 1
        if self.is_spoofed(port, frame):
            return []
        if role is Role.DATA:
            return self.data(job, flow, frame)
        if role is Role.ACK and flow.rnr_syndrome:
            note_acknowledgement(job, flow, frame)
        return self.forward(port, frame)

    def is_spoofed(self, port: int, frame: bytes) -> bool:
        """A host sends RoCE v2 with its own address, and never as a switch marks it."""
        own = self.host_ports.get(port)
        spoofed = own is not None and (own.packed != frame[26:30] or bool(frame[MARK_OFFSET] & SUMMED_BIT))
        self.port_counters["spoofed"][port] += spoofed
        return spoofed

    def data(self, job: Job, flow: Flow, frame: bytes) -> list[Out]:
        """A packet of a flow whose sender is here."""
        packet = whole_chunks(frame)
        if packet is None:
            return job.drop("unplaced")
        if self.check_icrc and not is_whole(frame):
            return job.drop("bad_icrc")
        record = None if packet.bth.reserved else place(job, flow, packet)
        if record is None:
            return job.drop("unplaced")
        if record.op == Op.PASS:
            job.counters["passed"] += 1
            return self.forward(flow.port, frame)
        return self.aggregate(job, flow, record, packet, frame)

    def forward(self, port: int, frame: bytes) -> list[Out]:
        """As a router: by destination address, TTL - 1. Of what is not IPv4, ARP alone, as in a switch."""
        if frame[12:14] != _IPV4:
            if frame[12:14] != _ARP:
                return []
            if frame[:6] == BROADCAST:
                return [(out, frame) for out in self.flood if out != port]
            known = self.mac_ports.get(bytes(frame[:6]))
            return [] if known is None else [(known, frame)]
        head = bytearray(frame[14:34])
        route = self.route(frame) if len(head) == IPv4.SIZE else None
        if route is None or head[8] <= 1:
            return []
        head[8] -= 1
        if head[0] & 0xF == 5:  # with options, the checksum is left alone
            head[10:12] = bytes(2)
            head[10:12] = ipv4_checksum(bytes(head)).to_bytes(2, "big")
        return [(route.port, route.dst_mac + route.src_mac + frame[12:14] + bytes(head) + frame[34:])]

    def route(self, frame: bytes) -> Route | None:
        """The next hop of a packet; of several, always the same for the same connection."""
        found = self.routes.get(bytes(frame[30:34]))
        return found[choice(frame, len(found))] if isinstance(found, tuple) else found

    def aggregate(self, job: Job, flow: Flow, record: Record, packet: RocePacket, frame: bytes) -> list[Out]:
        """The slot rules of docs/protocol.md."""
        place, message = job.places[flow.rank], record.message
        index = psn_math.distance(record.psn, packet.bth.psn)
        slot, tag = job.slot(message, index), (job.generation, message)
        if job.heard_of_mismatch(message, index):
            return job.drop("mismatch")
        if index == 0:
            job.first_psns[place][message % job.messages] = packet.bth.psn
        chunks = len(packet.payload) // CHUNK_BYTES
        if slot.behind(tag):  # 1: claim
            self.claim(job, slot, tag)
            slot.store(packet.payload, record.op if len(job.flows) > 1 else Op.SUM)
        elif slot.tag != tag:  # 5: the slot is a newer message's
            job.counters["stale"] += 1
            return self.forward(flow.port, frame)
        elif chunks != slot.count and index > 0:  # not the fragment that the others sent
            return job.drop("mismatch")
        elif slot.result:  # 4: its copy of the sum was lost
            return self.answer_alone(job, flow, slot, index, packet, frame)
        elif place in slot.ranks:  # 3: a duplicate
            return self.duplicate(job, flow, slot, record, index, packet, frame)
        else:  # 2: add
            self.compare(job, slot, index, packet.payload)
            slot.add(packet.payload, record.op, index, last=len(slot.ranks) + 1 == len(job.flows))
        slot.ranks.add(place)
        job.counters["aggregated"] += 1
        if len(slot.ranks) < len(job.flows):
            return []
        shape = Shape.of(packet)
        if job.tree is not None:
            return self.send_up(job, slot, message, index, record.op, shape)
        slot.result = True
        job.counters["completed"] += 1
        firsts = [job.first_psn(k, message) for k in range(len(job.flows))]
        return [
            sum_on(q, slot, index, shape, psn_math.add(first, index))
            for q, first in zip(job.flows, firsts, strict=True)
        ]

    def answer_alone(
        self, job: Job, flow: Flow, slot: Slot, index: int, packet: RocePacket, frame: bytes
    ) -> list[Out]:
        """Rule 4: on its own flow, the ordinary way to the receiver."""
        job.counters["replayed"] += 1
        if len(packet.payload) != slot.count * CHUNK_BYTES:  # its sender contradicts itself: told alone
            job.counters["mismatch"] += 1
        route = self.route(frame)
        if route is None or packet.ip.ttl <= 1:
            return []
        alone = replace(
            flow,
            dst_port=route.port,
            src_mac=route.src_mac,
            dst_mac=route.dst_mac,
            udp_src_port=packet.udp.src_port,
        )
        return [sum_on(alone, slot, index, Shape.of(packet), packet.bth.psn)]

    def duplicate(
        self, job: Job, flow: Flow, slot: Slot, record: Record, index: int, packet: RocePacket, frame: bytes
    ) -> list[Out]:
        """Rule 3: somebody is late, or what went up to a spine, or its answer, was lost."""
        place = job.places[flow.rank]
        goes_up = job.tree is not None and len(slot.ranks) == len(job.flows)
        if goes_up and job.is_over(record.message, index):  # everybody has the sum: as rule 5
            job.counters["stale"] += 1
            return self.forward(flow.port, frame)
        awaited = job.awaited[place]
        awaited = flow.first_psn if awaited is None else awaited
        left: list[Out] = []
        if flow.rnr_syndrome and packet.bth.psn == awaited:
            job.counters["not_ready"] += 1
            left.append(self.not_ready(flow, record, packet))
        elif not goes_up:
            return job.drop("duplicate")
        if goes_up:
            if len(packet.payload) != slot.count * CHUNK_BYTES:
                job.counters["mismatch"] += 1
            left += self.send_up(job, slot, record.message, index, record.op, Shape.of(packet))
        return left

    def not_ready(self, flow: Flow, record: Record, packet: RocePacket) -> Out:
        """The RNR NAK that rule 3 gives to those who want it."""
        return not_ready(flow, record, packet)
