"""Packets that a switch builds: sums and RNR NAKs to hosts, and tree packets to other switches."""

from __future__ import annotations

from typing import TypeVar

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, FLAGS_OFFSET, RANK_OFFSET, SUMMED_BIT, Flags
from host_agent.wire.headers import Aeth, Bth, Ethernet, Opcode, RocePacket, Udp
from p4reduce.oracle.rules import Fragment
from p4reduce.oracle.state import Flow, Job, Link, Out, Slot
from p4reduce.oracle.tree_packets import TREE_PORT, Kind, TreeFlags, TreePacket

ENDS = (Opcode.SEND_LAST, Opcode.SEND_ONLY)
# As plain numbers, of which combinations are no members to be looked up.
MISMATCH, PSN_VALID = TreeFlags.MISMATCH.value, TreeFlags.PSN_VALID.value


_T = TypeVar("_T")


def changed(value: _T, **fields: object) -> _T:
    """Replace fields of a value class in a fraction of the time of `dataclasses.replace`."""
    made = object.__new__(type(value))
    made.__dict__.update(value.__dict__, **fields)
    return made


def sum_on(flow: Flow, slot: Slot, fragment: Fragment, psn: int) -> Out:
    """Return the slot's sum as a packet of `flow`, shaped like the packet that completed it or asks again."""
    like, index, shape = fragment.packet, fragment.index, fragment.shape
    opcode, payload = like.bth.opcode, slot.load(index, shape)
    if index == 0:
        header, disagrees = bytearray(payload[:CHUNK_BYTES]), slot.disagrees(index, shape)
        header[FLAGS_OFFSET] = Flags.RESULT | (Flags.MISMATCH if disagrees else Flags.NONE)
        header[RANK_OFFSET] = flow.rank
        payload = bytes(header) + payload[CHUNK_BYTES:]
        if disagrees:  # nothing else of the message will come
            opcode = Opcode.SEND_ONLY
    ack_req = like.bth.ack_req or opcode in ENDS
    bth = changed(like.bth, opcode=opcode, dest_qp=flow.dst_qp, psn=psn, ack_req=ack_req, reserved=SUMMED_BIT)
    ip = changed(like.ip, src=flow.src_ip, dst=flow.dst_ip, ttl=(like.ip.ttl - 1) & 0xFF)
    udp = Udp(length=0, src_port=flow.udp_src_port, dst_port=like.udp.dst_port)
    ethernet = Ethernet(dst=flow.dst_mac, src=flow.src_mac)
    return flow.dst_port, RocePacket(ethernet, ip, udp, bth, payload).build()


def not_ready(flow: Flow, message: int, packet: RocePacket) -> Out:
    """Return the RNR NAK by which the receiver would ask the sender of `packet` to send it again later."""
    asked, ends = packet.bth, packet.ethernet
    bth = Bth(
        opcode=Opcode.ACKNOWLEDGE,
        dest_qp=flow.src_qp,
        psn=asked.psn,
        mig_req=asked.mig_req,
        transport_version=asked.transport_version,
        pkey=asked.pkey,
    )
    ip = changed(packet.ip, src=packet.ip.dst, dst=packet.ip.src, ttl=64)
    aeth = Aeth(syndrome=flow.rnr_syndrome, msn=message & psn_math.PSN_MASK)
    back, udp = Ethernet(dst=ends.src, src=ends.dst), changed(packet.udp, checksum=0)
    return flow.port, RocePacket(back, ip, udp, bth, aeth=aeth).build()


def over(link: Link, packet: TreePacket) -> TreePacket:
    """Return the packet with the addresses of this link's ends."""
    ethernet = Ethernet(dst=link.dst_mac, src=link.src_mac)
    return changed(packet, ethernet=ethernet, ip=changed(packet.ip, src=link.src_ip, dst=link.dst_ip))


def to_spine(job: Job, slot: Slot, fragment: Fragment, link: Link) -> bytes:
    """Return what a leaf's slot holds, with the PSN of this packet on the flow that leaves the rack."""
    like, index, shape = fragment.packet, fragment.index, fragment.shape
    packet = TreePacket(
        ethernet=like.ethernet,
        ip=changed(like.ip, ttl=64),
        udp=Udp(length=0, src_port=TREE_PORT, dst_port=TREE_PORT),
        kind=Kind.RESULT if slot.result else Kind.PARTIAL,
        opcode=like.bth.opcode,
        op=fragment.op,
        index=index,
        flags=PSN_VALID | (MISMATCH if slot.disagrees(index, shape) else 0),
        generation=job.generation,
        message=fragment.message,
        psn=job.psn(len(job.flows) - 1, fragment.message, index),
        payload=slot.load(index, shape),
    )
    return over(link, packet).build()


def to_leaf(slot: Slot, fragment: Fragment, link: Link, predecessor: int, *, asks: bool) -> bytes:
    """Return the sum that a spine's slot holds or, if `asks`, the packet as a question.

    It has the PSN that the predecessor on the ring told, if it has told one.
    """
    packet, shape = fragment.tree, fragment.shape
    assert packet is not None
    flags = PSN_VALID if predecessor in slot.psns else 0
    if not asks and slot.disagrees(packet.index, shape):
        flags |= MISMATCH
    return changed(
        over(link, packet),
        udp=changed(packet.udp, checksum=0),
        kind=Kind.ASK if asks else Kind.RESULT,
        flags=flags,
        psn=slot.psns.get(predecessor, 0),
        payload=packet.payload if asks else slot.load(packet.index, shape),
    ).build()
