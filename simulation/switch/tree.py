"""Jobs whose workers are in several racks: what goes on between leaf and spine.

leaf: all of the rack there            PARTIAL ──►  spine: all leaves there
leaf: stores it, emits on its flows    ◄── RESULT
leaf: stored sum, or partial again     ◄── ASK      spine: a partial came again, others lack
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, SIGNATURE, Op
from host_agent.wire.headers import Ethernet, IPv4, Udp
from simulation.switch.emit import Shape, sum_on
from simulation.switch.state import (
    BUCKETS,
    MOST_AGGREGATED,
    PORT_COUNTERS,
    Flow,
    Job,
    Link,
    Out,
    Slot,
    SpineJob,
    Tag,
)
from simulation.switch.tree_packets import TREE_PORT, TREE_VERSION, Kind, TreeFlags, TreePacket

# As plain numbers, of which combinations are no members to be looked up.
_MISMATCH, _PSN_VALID = TreeFlags.MISMATCH.value, TreeFlags.PSN_VALID.value


class TreeSwitch:
    """The part of a switch that knows tree packets.

    `links`: the ports to other switches. `tree_jobs`: whose a tree packet is, by port and generation.
    """

    def __init__(
        self, links: Mapping[int, Link], tree_jobs: Mapping[tuple[int, int], Job | SpineJob] | None = None
    ) -> None:
        self.links = dict(links)
        self.fabric_ports = frozenset(self.links)  # that another switch is behind
        self.tree_jobs = dict(tree_jobs or {})
        self.port_counters = {name: Counter[int]() for name in PORT_COUNTERS}
        self.echoes: list[int] = []  # the nonces of echoes that came back, for the controller

    def claim(self, job: Job, slot: Slot, tag: Tag) -> None:
        """Rule 1 in a rack: the slot's older message is forgotten."""
        slot.claim(tag)

    def claim_on_spine(self, job: SpineJob, slot: Slot, tag: Tag) -> None:
        """Rule 1 on a spine."""
        slot.claim(tag)

    def tree_packet(self, port: int, packet: TreePacket) -> list[Out]:
        """What leaves when a tree packet comes in on `port`."""
        if port not in self.fabric_ports or packet.version != TREE_VERSION or packet.is_cut:
            self.port_counters["no_job"][port] += 1
            return []
        if packet.kind in (Kind.ECHO_REQUEST, Kind.ECHO_REPLY):
            return self.echo(port, packet)
        job = self.tree_jobs.get((port, packet.generation))
        if job is None:
            self.port_counters["no_job"][port] += 1
            return []
        if not packet.icrc_ok():
            return job.drop("bad_icrc")
        known = Kind.PARTIAL if isinstance(job, SpineJob) else Kind.ASK
        right_kind = packet.kind in (Kind.RESULT, known)
        if not (right_kind and packet.payload and packet.op in (Op.SUM, Op.MAX, Op.SUM_HALF, Op.MAX_HALF)):
            return job.drop("unplaced")
        if packet.index >= job.packets or packet.message >= MOST_AGGREGATED:
            return job.drop("unplaced")
        if job.heard_of_mismatch(packet.message, packet.index):
            return job.drop("mismatch")
        if isinstance(job, SpineJob):
            return self.from_leaf(port, job, packet)
        return self.from_spine(port, job, packet)

    def echo(self, port: int, packet: TreePacket) -> list[Out]:
        """A probe of the link: turned around, or come back."""
        if not packet.icrc_ok():
            self.port_counters["bad_echo"][port] += 1
            return []
        if packet.kind == Kind.ECHO_REPLY:
            self.echoes.append(packet.message)
            return []
        answer = replace(packet, udp=replace(packet.udp, checksum=0), kind=Kind.ECHO_REPLY)
        link = self.links.get(port)
        if link is not None:  # its entry comes after the port's
            answer = replace(
                answer,
                ethernet=Ethernet(dst=link.dst_mac, src=link.src_mac),
                ip=replace(packet.ip, src=link.src_ip, dst=link.dst_ip),
            )
        return [(port, answer.build())]

    def from_leaf(self, port: int, job: SpineJob, packet: TreePacket) -> list[Out]:
        """The slot rules, with leaves as ranks."""
        leaf, tag = job.leaves.index(port), (job.generation, packet.message)
        slot, brings_all = job.slot(packet.message, packet.index), packet.kind == Kind.RESULT
        chunks = len(packet.payload) // CHUNK_BYTES
        if slot.behind(tag):  # 1
            self.claim_on_spine(job, slot, tag)
            slot.store(packet.payload, Op.SUM if brings_all or len(job.leaves) == 1 else Op(packet.op))
        elif slot.tag != tag:  # 5: who sent it knows by now
            return job.drop("stale")
        elif packet.index > 0 and chunks != slot.count:
            return job.drop("mismatch")
        elif brings_all and slot.result:
            return job.drop("duplicate")
        elif slot.result:  # 4: its result was lost
            job.counters["replayed"] += 1
            disagrees = chunks != slot.count
            job.counters["mismatch"] += disagrees
            return [self.to_leaf(job, slot, leaf, packet, disagrees)]
        elif brings_all:  # from a leaf that was asked: nothing is left to be added
            slot.store(packet.payload)
        elif leaf in slot.ranks:  # 3: somebody lacks the sum; whoever has not contributed may have it
            job.counters["asked"] += 1
            others = [k for k in range(len(job.leaves)) if k not in slot.ranks]
            question = replace(packet, kind=Kind.ASK)
            return [self.to_leaf(job, slot, k, question, False) for k in others]
        else:  # 2
            self.compare(job, slot, packet.index, packet.payload)
            slot.add(packet.payload, Op(packet.op), packet.index, last=len(slot.ranks) + 1 == len(job.leaves))
        slot.ranks.add(leaf)
        slot.psns[leaf] = packet.psn
        slot.mismatch |= bool(packet.flags & _MISMATCH)
        if brings_all:
            job.counters["results"] += 1
        else:
            job.counters["aggregated"] += 1
            if len(slot.ranks) < len(job.leaves):
                return []
            job.counters["completed"] += 1
        slot.result = True
        return [self.to_leaf(job, slot, k, packet, False) for k in range(len(job.leaves))]

    def compare(self, job: Job | SpineJob, slot: Slot, index: int, payload: bytes) -> None:
        """Whether a contribution asks for what the first contributor's asked for."""
        chunks = len(payload) // CHUNK_BYTES
        if index == 0 and (payload[SIGNATURE] != slot.header[SIGNATURE] or chunks != slot.count):
            slot.mismatch = True
            job.counters["mismatch"] += 1

    def to_leaf(self, job: SpineJob, slot: Slot, leaf: int, packet: TreePacket, disagrees: bool) -> Out:
        """The sum of all racks, with the PSN on the flow that enters the leaf's rack; or the question."""
        before = (leaf - 1) % len(job.leaves)
        told = before in slot.ranks
        asks = packet.kind == Kind.ASK
        port = job.leaves[leaf]
        link = self.links[port]
        out = replace(
            packet,
            ethernet=Ethernet(dst=link.dst_mac, src=link.src_mac),
            ip=replace(packet.ip, src=link.src_ip, dst=link.dst_ip),
            udp=replace(packet.udp, checksum=0),
            kind=Kind.ASK if asks else Kind.RESULT,
            flags=(_MISMATCH if (slot.mismatch and not asks) or disagrees else 0)
            | (_PSN_VALID if told else 0),
            psn=slot.psns.get(before, 0),
            payload=packet.payload if asks else slot.load(packet.index, len(packet.payload)),
        )
        return port, out.build()

    def from_spine(self, port: int, job: Job, packet: TreePacket) -> list[Out]:
        """The sum of all racks, or the question for it."""
        slot, tag = job.slot(packet.message, packet.index), (job.generation, packet.message)
        all_here = len(slot.ranks) == len(job.flows)
        chunks = len(packet.payload) // CHUNK_BYTES
        asks = packet.kind == Kind.ASK
        if slot.behind(tag):
            return job.drop("late")
        if slot.tag != tag:
            return job.drop("stale")
        if packet.index > 0 and chunks != slot.count:
            return job.drop("mismatch")
        if job.is_over(packet.message, packet.index):
            return job.drop("late")
        if slot.result and not asks:
            return job.drop("duplicate")
        if not (slot.result or all_here):
            return job.drop("late")
        if asks:
            job.counters["replayed" if slot.result else "partials"] += 1
            if packet.index == 0 and chunks != slot.count:
                job.counters["mismatch"] += 1
            shape = Shape.of_result(packet)
            return [self.up(job, slot, packet.message, packet.index, Op(packet.op), shape, port)]
        slot.store(packet.payload)
        slot.mismatch |= bool(packet.flags & _MISMATCH)
        slot.result = True
        job.counters["results"] += 1
        return self.emit_in_rack(job, slot, packet)

    def emit_in_rack(self, job: Job, slot: Slot, packet: TreePacket) -> list[Out]:
        """The sum on every flow whose receiver is here."""
        assert job.tree is not None
        shape, index = Shape.of_result(packet), packet.index
        psns: list[tuple[Flow, int]] = [
            (flow, psn_math.add(job.first_psn(place, packet.message), index))
            for place, flow in enumerate(job.flows[:-1])
        ]
        if packet.flags & _PSN_VALID:  # else its sender will ask, and its own leaf will answer
            psns.append((job.tree.entering, packet.psn))
        return [sum_on(flow, slot, index, shape, psn) for flow, psn in psns]

    def send_up(self, job: Job, slot: Slot, message: int, index: int, op: Op, shape: Shape) -> list[Out]:
        """The rack's sum, to the spine that its message goes to."""
        assert job.tree is not None
        job.counters["partials"] += 1
        port = job.tree.uplinks[message % BUCKETS]
        if port is None:
            return job.drop("no_uplink")
        return [self.up(job, slot, message, index, op, shape, port)]

    def up(self, job: Job, slot: Slot, message: int, index: int, op: Op, shape: Shape, port: int) -> Out:
        """What a leaf has, with the PSN of this packet on the flow that leaves the rack."""
        mismatch = slot.mismatch or (index == 0 and shape.size != slot.count * CHUNK_BYTES)
        link = self.links[port]
        packet = TreePacket(
            ethernet=Ethernet(dst=link.dst_mac, src=link.src_mac),
            ip=IPv4(
                src=link.src_ip,
                dst=link.dst_ip,
                total_length=0,
                identification=shape.ip.identification,
                tos=shape.ip.tos,
                flags=shape.ip.flags,
            ),
            udp=Udp(length=0, src_port=TREE_PORT, dst_port=TREE_PORT),
            kind=Kind.RESULT if slot.result else Kind.PARTIAL,
            opcode=shape.bth.opcode,
            op=op,
            index=index,
            flags=_PSN_VALID | (_MISMATCH if mismatch else 0),
            generation=job.generation,
            message=message,
            psn=psn_math.add(job.first_psn(len(job.flows) - 1, message), index),
            payload=slot.load(index, shape.size),
        )
        return port, packet.build()
