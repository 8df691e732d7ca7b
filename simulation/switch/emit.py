"""What leaves a switch for a host in the place of what came in."""

from __future__ import annotations

from dataclasses import replace

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, FLAGS_OFFSET, RANK_OFFSET, SUMMED_BIT, Flags
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from host_agent.wire.values import value_class
from simulation.switch.state import Flow, Out, Record, Slot
from simulation.switch.tree_packets import TreePacket

ENDS = (Opcode.SEND_LAST, Opcode.SEND_ONLY)


@value_class(frozen=True)
class Shape:
    """The packet that a sum takes the place of; `size` of its payload in bytes."""

    ip: IPv4
    udp: Udp
    bth: Bth
    size: int

    @classmethod
    def of(cls, packet: RocePacket) -> Shape:
        return cls(packet.ip, packet.udp, packet.bth, len(packet.payload))

    @classmethod
    def of_result(cls, packet: TreePacket) -> Shape:
        """The host packet that a spine's answer stands for."""
        udp = Udp(length=0, src_port=packet.udp.src_port)
        return cls(packet.ip, udp, Bth(opcode=packet.opcode, dest_qp=0, psn=0), len(packet.payload))


def sum_on(flow: Flow, slot: Slot, index: int, shape: Shape, psn: int) -> Out:
    """The slot's sum as a packet of `flow`, shaped like the one that completed it, or asks again."""
    payload, opcode = slot.load(index, shape.size), shape.bth.opcode
    if index == 0:
        header = bytearray(payload[:CHUNK_BYTES])
        mismatch = slot.mismatch or shape.size != slot.count * CHUNK_BYTES
        header[FLAGS_OFFSET] = Flags.RESULT | (Flags.MISMATCH if mismatch else Flags.NONE)
        header[RANK_OFFSET] = flow.rank
        if mismatch:  # nothing else of the message will come
            opcode = Opcode.SEND_ONLY
        payload = bytes(header) + payload[CHUNK_BYTES:]
    ip, bth = shape.ip, shape.bth
    out = RocePacket(
        ethernet=Ethernet(dst=flow.dst_mac, src=flow.src_mac),
        ip=IPv4(
            src=flow.src_ip,
            dst=flow.dst_ip,
            total_length=0,
            identification=ip.identification,
            ttl=(ip.ttl - 1) & 0xFF,
            tos=ip.tos,
            protocol=ip.protocol,
            flags=ip.flags,
            fragment_offset=ip.fragment_offset,
        ),
        udp=Udp(length=0, src_port=flow.udp_src_port, dst_port=shape.udp.dst_port),
        bth=Bth(
            opcode=opcode,
            dest_qp=flow.dst_qp,
            psn=psn,
            ack_req=bth.ack_req or opcode in ENDS,
            solicited=bth.solicited,
            mig_req=bth.mig_req,
            pad_count=bth.pad_count,
            transport_version=bth.transport_version,
            pkey=bth.pkey,
            resv8a=bth.resv8a,
            reserved=SUMMED_BIT,
        ),
        payload=payload,
    )
    return flow.dst_port, out.build()


def not_ready(flow: Flow, record: Record, packet: RocePacket) -> Out:
    """What its peer would say to `packet` if it had not posted a receive: go on, but later."""
    bth = Bth(
        opcode=Opcode.ACKNOWLEDGE,
        dest_qp=flow.src_qp,
        psn=packet.bth.psn,
        mig_req=packet.bth.mig_req,
        transport_version=packet.bth.transport_version,
        pkey=packet.bth.pkey,
    )
    answer = RocePacket(
        ethernet=Ethernet(dst=packet.ethernet.src, src=packet.ethernet.dst),
        ip=replace(packet.ip, src=packet.ip.dst, dst=packet.ip.src, ttl=64),
        udp=Udp(length=0, src_port=packet.udp.src_port, dst_port=packet.udp.dst_port),
        bth=bth,
        aeth=Aeth(syndrome=flow.rnr_syndrome, msn=record.message & psn_math.PSN_MASK),
    )
    return flow.port, answer.build()
