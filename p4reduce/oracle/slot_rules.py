"""A switch in Python: the oracle for the P4 program, for both targets and in simulations.

    frame ─ port? ─ tree packet? ─ RoCE v2? ─ flow? ─ own? ─ ICRC ─ place ─ PASS? ─► the slot rules (rules.py)
                      │              │no        │no member                   │
                      │              └──────────┴──────── forward ◄──────────┘
                      └─ job? ─ ICRC ─ place ─► the slot rules

The words are those of docs/protocol.md. Registers keep what was last written to them, as in a switch: a claim
writes only the chunks that its packet has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from enum import Enum
from ipaddress import IPv4Address
from typing import TypeAlias

from host_agent.wire import headers
from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, SIGNATURE, SUMMED_BIT, Op
from host_agent.wire.headers import Opcode, RocePacket
from p4reduce.oracle import emit, placement
from p4reduce.oracle.ecmp import choice
from p4reduce.oracle.rules import Brings, Fragment, Rule, Sends, Writes, case_of, rule_of
from p4reduce.oracle.state import BUCKETS, Flow, Job, Link, Out, Record, Route, Slot, SpineJob, Tag
from p4reduce.oracle.tree_packets import TREE_VERSION, Kind, TreePacket

BROADCAST = b"\xff" * 6
_IPV4, _ARP = headers.ETHERTYPE_IPV4.to_bytes(2, "big"), headers.ETHERTYPE_ARP.to_bytes(2, "big")
_BRINGS = {int(Kind.PARTIAL): Brings.CONTRIBUTION, int(Kind.RESULT): Brings.RESULT, int(Kind.ASK): Brings.ASK}
_READS = (Sends.SUM, Sends.UP, Sends.ANSWER, Sends.NOT_READY_AND_UP)  # what the slot holds

MARK_OFFSET = 50  # BTH's reserved bits
CONGESTION_NOTIFICATION = 0x81  # CNP: RoCE v2's congestion management (annex A17)


class Role(Enum):
    """The part that a RoCE packet has in a job, for this switch."""

    DATA = "data"
    ACK = "ack"
    GUARD = "guard"  # it is aimed at a job's queue pair, and not from its peer
    PASSING = "passing"  # its sender or its receiver is here, and the leaf that deals with it is another


FlowKey: TypeAlias = tuple[int, bytes, bytes, int]  # ingress port, source, destination, its QP
QueuePair: TypeAlias = tuple[bytes, int]  # what takes packets from its peer alone


class SwitchModel:
    """One switch of a rack: routes, and the jobs on it.

    Behind each port is the host that is routed there. `EntrySwitch` has links to other switches as well, by
    port (`links`), ports that ARP is flooded to, routes of several next hops (ECMP), and jobs in several
    racks by port and generation (`tree_jobs`).
    """

    links: dict[int, Link]
    tree_jobs: dict[tuple[int, int], Job | SpineJob]

    def __init__(
        self, jobs: Iterable[Job], routes: Mapping[IPv4Address, Route], *, check_icrc: bool = True
    ) -> None:
        self.routes: dict[bytes, Route | tuple[Route, ...]] = {ip.packed: routes[ip] for ip in routes}
        self.host_ports = {route.port: ip for ip, route in routes.items()}
        self.fabric_ports: frozenset[int] = frozenset()  # that another switch is behind
        self.flood: tuple[int, ...] = ()  # the ports that ARP is sent to
        self.mac_ports: dict[bytes, int] = {}
        self.check_icrc = check_icrc
        self.members: dict[FlowKey | QueuePair, tuple[Job, Flow, Role]] = {}
        self.port_counters: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.echoes: list[int] = []  # the nonces of echoes that came back, for the controller
        for job in jobs:
            for flow in job.flows:
                src, dst = flow.src_ip.packed, flow.dst_ip.packed
                self.members[flow.port, src, dst, flow.dst_qp] = (job, flow, Role.DATA)
                self.members[flow.dst_port, dst, src, flow.src_qp] = (job, flow, Role.ACK)
                self.members[dst, flow.dst_qp] = self.members[src, flow.src_qp] = (job, flow, Role.GUARD)

    # What comes in

    def process(self, port: int, frame: bytes) -> list[Out]:
        """Return the frames that leave, with their ports, when `frame` comes in on `port`."""
        if port not in self.host_ports and port not in self.fabric_ports:
            return self.drop("unnamed", port)
        if (tree_packet := TreePacket.parse(frame)) is not None:
            return self.tree_packet(port, tree_packet)
        if not placement.is_roce(frame):
            return self.drop("spoofed", port) if placement.is_disguised(frame) else self.forward(port, frame)
        src, dst, opcode, dest_qp = frame[26:30], frame[30:34], frame[42], int.from_bytes(frame[47:50], "big")
        found = self.members.get((port, src, dst, dest_qp)) or self.members.get((dst, dest_qp))
        if found is not None and found[2] is Role.GUARD:
            return found[0].drop("foreign")
        if found is None or opcode == CONGESTION_NOTIFICATION:
            return self.drop("spoofed", port) if self.is_spoofed(port, frame) else self.forward(port, frame)
        job, flow, role = found
        if role is Role.ACK:
            if opcode != Opcode.ACKNOWLEDGE:
                return job.drop("foreign")
            job.counters["acks"] += 1
        if self.is_spoofed(port, frame):
            return self.drop("spoofed", port)
        if role is Role.DATA:
            return self.data(job, flow, frame)
        if flow.rnr_syndrome:
            placement.note_acknowledgement(job, flow, frame)
        return self.forward(port, frame)

    def drop(self, reason: str, port: int) -> list[Out]:
        """Count `reason` at the port, and send nothing."""
        self.port_counters[reason][port] += 1
        return []

    def is_spoofed(self, port: int, frame: bytes) -> bool:
        """Return whether a host sent RoCE v2 with another's address, or with a switch's mark."""
        own = self.host_ports.get(port)
        return own is not None and (own.packed != frame[26:30] or bool(frame[MARK_OFFSET] & SUMMED_BIT))

    def data(self, job: Job, flow: Flow, frame: bytes) -> list[Out]:
        """Process a packet of a flow whose sender is here."""
        packet = placement.whole_chunks(frame)
        if packet is None:
            return job.drop("unplaced")
        if self.check_icrc and not placement.is_whole(frame):
            return job.drop("bad_icrc")
        record = None if packet.bth.reserved else placement.place(job, flow, packet)
        if record is None:
            return job.drop("unplaced")
        if record.op == Op.PASS:
            job.counters["passed"] += 1
            return self.forward(flow.port, frame)
        return self.aggregate(job, flow, record, packet, frame)

    def aggregate(self, job: Job, flow: Flow, record: Record, packet: RocePacket, frame: bytes) -> list[Out]:
        """Apply the slot rules to a worker's contribution."""
        place, psn = job.places[flow.rank], packet.bth.psn
        index = psn_math.distance(record.psn, psn)
        if index == 0:
            job.first_psns[place][record.message % job.messages] = psn
        is_awaited = flow.rnr_syndrome != 0 and psn == placement.awaited(job, flow)
        fields = (record.message, index, record.op, place, psn, flow.port, packet)
        return self.apply(job, Fragment(Brings.CONTRIBUTION, *fields, frame=frame, is_awaited=is_awaited))

    def tree_packet(self, port: int, packet: TreePacket) -> list[Out]:
        """Process a packet that comes from another switch or claims to."""
        if port not in self.fabric_ports or packet.version != TREE_VERSION or packet.is_cut:
            return self.drop("no_job", port)
        if packet.kind in (Kind.ECHO_REQUEST, Kind.ECHO_REPLY):
            return self.echo(port, packet)
        job = self.tree_jobs.get((port, packet.generation))
        if job is None:
            return self.drop("no_job", port)
        if not packet.icrc_ok():
            return job.drop("bad_icrc")
        if not placement.is_placed(job, packet):
            return job.drop("unplaced")
        sender = job.leaves.index(port) if isinstance(job, SpineJob) else len(job.flows) - 1
        brings, stands_for = _BRINGS[packet.kind], packet.as_host_packet()
        fields = (packet.message, packet.index, packet.op, sender, packet.psn, port, stands_for)
        return self.apply(job, Fragment(brings, *fields, tree=packet))

    def echo(self, port: int, packet: TreePacket) -> list[Out]:
        """Turn a probe of the link around, or note the one that has come back."""
        if not packet.icrc_ok():
            return self.drop("bad_echo", port)
        if packet.kind == Kind.ECHO_REPLY:
            self.echoes.append(packet.message)
            return []
        answer = emit.changed(packet, udp=emit.changed(packet.udp, checksum=0), kind=Kind.ECHO_REPLY)
        if port in self.links:  # its entry comes after the port's
            answer = emit.over(self.links[port], answer)
        return [(port, answer.build())]

    # What the slot rules do

    def apply(self, job: Job | SpineJob, fragment: Fragment) -> list[Out]:
        """Do what the packet's rule says."""
        slot = job.slot(fragment.message, fragment.index)
        return self.obey(rule_of(*case_of(job, slot, fragment)), job, slot, fragment)

    def obey(self, rule: Rule, job: Job | SpineJob, slot: Slot, fragment: Fragment) -> list[Out]:
        """Count, write and send."""
        for name in rule.counts:
            job.counters[name] += 1
        if rule.writes is not Writes.NOTHING:
            self.update(rule, job, slot, fragment)
        elif rule.sends in _READS:
            self.compare(job, slot, fragment, adds=False)
        if isinstance(job, Job):
            return self.send(rule.sends, job, slot, fragment)
        return self.send_to_leaves(rule.sends, job, slot, fragment)

    def update(self, rule: Rule, job: Job | SpineJob, slot: Slot, fragment: Fragment) -> None:
        """Write to the slot. More will be added if the rule sends nothing."""
        payload, index, last = fragment.packet.payload, fragment.index, rule.sends is not Sends.NOTHING
        if rule.writes is Writes.CLAIM:
            self.claim(job, slot, (job.generation, fragment.message))
        if rule.writes is Writes.ADD:
            slot.mismatch |= self.compare(job, slot, fragment, adds=True)
        else:
            slot.op, slot.count = fragment.shape
        slot.mismatch |= fragment.flags & emit.MISMATCH != 0
        if index == 0 and slot.mismatch:  # behind the header, nothing of what ranks disagree about is kept
            payload = payload[:CHUNK_BYTES]
        combine = slot.add if rule.writes is Writes.ADD else slot.store
        combine(payload, fragment.op, index, last=last)
        slot.ranks.add(fragment.sender)
        slot.psns[fragment.sender] = fragment.psn
        slot.result = rule.sends is Sends.SUMS

    def claim(self, job: Job | SpineJob, slot: Slot, tag: Tag) -> None:
        """Forget the slot's older message."""
        slot.claim(tag)

    def compare(self, job: Job | SpineJob, slot: Slot, fragment: Fragment, *, adds: bool) -> bool:
        """Return whether a header differs from the first contributor's, and count it."""
        payload = fragment.packet.payload
        differs = fragment.index == 0 and (
            fragment.shape != slot.shape or (adds and payload[SIGNATURE] != slot.header[SIGNATURE])
        )
        job.counters["mismatch"] += differs
        return differs

    def send(self, sends: Sends, job: Job, slot: Slot, fragment: Fragment) -> list[Out]:
        """Send from a rack or a leaf: to hosts or up."""
        if sends is Sends.NOTHING:
            return []
        if sends is Sends.ITSELF:
            assert fragment.tree is None, "a tree packet ends here"
            return self.forward(fragment.port, fragment.frame)
        if sends is Sends.SUMS:
            return self.emit_sums(job, slot, fragment)
        if sends is Sends.SUM:
            return self.sum_again(job, slot, fragment)
        if sends is Sends.NOT_READY:
            return [self.not_ready(job, fragment)]
        assert job.tree is not None
        if sends is Sends.ANSWER:
            return self.up(job, slot, fragment, fragment.port)
        up = self.up(job, slot, fragment, job.tree.uplinks[fragment.message % BUCKETS])
        if sends is Sends.UP:
            return up
        assert sends is Sends.NOT_READY_AND_UP, f"{sends} is for a spine"
        return [self.not_ready(job, fragment), *up]

    def send_to_leaves(self, sends: Sends, job: SpineJob, slot: Slot, fragment: Fragment) -> list[Out]:
        """Send from a spine."""
        leaves, asks = range(len(job.leaves)), sends is Sends.ASK
        to = {
            Sends.NOTHING: (),
            Sends.SUMS: leaves,
            Sends.SUM: (fragment.sender,),
            Sends.ASK: [leaf for leaf in leaves if leaf not in slot.ranks],
        }[sends]
        return [self.to_leaf(job, slot, leaf, fragment, asks=asks) for leaf in to]

    def emit_sums(self, job: Job, slot: Slot, fragment: Fragment) -> list[Out]:
        """Return the sum on every flow whose receiver is here.

        In a tree, the flow that enters the rack has the place of the one that leaves it.
        """
        message, index = fragment.message, fragment.index
        here = job.flows if job.tree is None else job.flows[:-1]
        psns = [(flow, job.psn(place, message, index)) for place, flow in enumerate(here)]
        if fragment.flags & emit.PSN_VALID:  # else its sender asks its own leaf
            assert job.tree is not None
            psns.append((job.tree.entering, fragment.psn))
        return [emit.sum_on(flow, slot, fragment, psn) for flow, psn in psns]

    def sum_again(self, job: Job, slot: Slot, fragment: Fragment) -> list[Out]:
        """Return the sum on the sender's own flow, forwarded to its receiver as any packet is."""
        packet, route = fragment.packet, self.route(fragment.frame)
        if route is None or packet.ip.ttl <= 1:
            return []
        way = {"dst_port": route.port, "src_mac": route.src_mac, "dst_mac": route.dst_mac}
        flow = emit.changed(job.flows[fragment.sender], udp_src_port=packet.udp.src_port, **way)
        return [emit.sum_on(flow, slot, fragment, fragment.psn)]

    def not_ready(self, job: Job, fragment: Fragment) -> Out:
        """Return the RNR NAK to the sender, in its receiver's name."""
        return emit.not_ready(job.flows[fragment.sender], fragment.message, fragment.packet)

    def up(self, job: Job, slot: Slot, fragment: Fragment, port: int | None) -> list[Out]:
        """Send what the slot holds to the spine behind that port."""
        if port is None:
            return job.drop("no_uplink")
        return [(port, emit.to_spine(job, slot, fragment, self.links[port]))]

    def to_leaf(self, job: SpineJob, slot: Slot, leaf: int, fragment: Fragment, *, asks: bool) -> Out:
        """Return the packet to a leaf, with its PSN on the flow that enters the leaf's rack.

        The leaf before it on the ring has told that PSN.
        """
        port, before = job.leaves[leaf], (leaf - 1) % len(job.leaves)
        return port, emit.to_leaf(slot, fragment, self.links[port], before, asks=asks)

    # What goes on as in any router

    def forward(self, port: int, frame: bytes) -> list[Out]:
        """Forward by destination address, with TTL - 1. Besides IPv4, forward only ARP, as a switch does."""
        if frame[12:14] == _ARP:
            if frame[:6] == BROADCAST:
                return [(out, frame) for out in self.flood if out != port]
            known = self.mac_ports.get(bytes(frame[:6]))
            return [] if known is None else [(known, frame)]
        route = self.route(frame) if frame[12:14] == _IPV4 else None
        if route is None or frame[22] <= 1:
            return []
        head = bytearray(frame[14:34])
        head[8] -= 1
        if head[0] & 0xF == 5:  # with options, the checksum is left alone
            head[10:12] = bytes(2)
            head[10:12] = headers.ipv4_checksum(bytes(head)).to_bytes(2, "big")
        return [(route.port, route.dst_mac + route.src_mac + frame[12:14] + head + frame[34:])]

    def route(self, frame: bytes) -> Route | None:
        """Return a packet's next hop; of several, always the same for the same connection."""
        found = self.routes.get(bytes(frame[30:34]))
        return found[choice(frame, len(found))] if isinstance(found, tuple) else found
