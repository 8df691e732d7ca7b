"""Frames that the hosts of bench.switch send and expect, as `native/traffic.c` reads them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Final

import numpy as np

from controller.api.messages import Mode
from controller.entries import Entry, table_entry
from controller.fabric.addresses import mac_number, switch_mac
from controller.fabric.flows import Ring, leaf_entries
from controller.fabric.tables.edges import EDGE_PORT
from controller.fabric.tables.emit import source_port
from controller.jobs.specs import Member, Plan
from controller.slots.allocator import Region
from host_agent.wire.aggregation import (
    CHUNK_LANES,
    SUMMED_BIT,
    AggregationHeader,
    ElementType,
    Flags,
    Op,
    Reduction,
)
from host_agent.wire.headers import Bth, Ethernet, IPv4, Opcode, RocePacket, Udp, parse_mac

PACKETS: Final = 16  # of a message
WINDOW: Final = 8  # messages
BURST: Final = 16
DEVICE_ID: Final = 1
_GENERATION: Final = 7
_SEED: Final = 20
_ROUTER: Final = "02:00:00:00:00:01"

Frames = Sequence[RocePacket]  # of the rounds of one message


@dataclass(frozen=True)
class Job:
    """One job on ports 1 to `ports`, the `number`-th on its switch: on the same hosts as others there."""

    ports: int
    number: int

    @property
    def members(self) -> list[Member]:
        """The workers of the job: rank r is behind port r + 1."""
        return [
            Member(
                rank=rank,
                ip=IPv4Address(_behind(rank + 1)),
                mac=f"02:00:0a:14:00:{1 + rank:02x}",
                qpn_out=0x1000 * self.number + 0x100 + rank,
                psn_out=0x1000 * rank,
                qpn_in=0x1000 * self.number + 0x200 + rank,
                path_mtu_max=4096,
            )
            for rank in range(self.ports)
        ]

    def entries(self) -> list[Entry]:
        """Return the entries that the controller installs: ICRCs are checked."""
        plan = Plan(
            job_id=self.number,
            generation=_GENERATION + self.number,
            window=WINDOW,
            message_packets=PACKETS,
            path_mtu=4096,
            mode=Mode.IN_NETWORK,
        )
        ring = Ring(self.members, {rank: rank + 1 for rank in range(self.ports)}, DEVICE_ID)
        region = Region(self.number, self.number * 2 * WINDOW * PACKETS, 2 * WINDOW * PACKETS)
        return leaf_entries(ring, plan, region, check_icrc=True, rnr_timer=0)

    def plan(self, interfaces: Sequence[str], chunks: int, window: int) -> bytes:
        """Return messages of packets of `chunks` chunks from every rank; on every flow, their sums."""
        members = self.members
        lanes = np.random.default_rng(_SEED).integers(
            -(2**31), 2**31, (self.ports, PACKETS, chunks * CHUNK_LANES), dtype=np.int64
        )
        sums = (lanes.sum(axis=0) + 2**31) % 2**32 - 2**31
        sent = [self._frames(member, lanes[member.rank]) for member in members]
        received: list[Frames] = [()] * self.ports
        for member in members:
            receiver = (member.rank + 1) % self.ports
            received[receiver] = [
                _result(packet, receiver + 1) for packet in self._frames(member, sums, sums=True)
            ]
        before = [members[rank - 1].psn_out for rank in range(self.ports)]
        return _plan(interfaces, window, sent, received, [m.psn_out for m in members], before)

    def _frames(
        self, member: Member, lanes: np.ndarray[tuple[int, int], np.dtype[np.int64]], *, sums: bool = False
    ) -> Frames:
        receiver = self.members[(member.rank + 1) % self.ports]
        header = AggregationHeader(
            job=self.number,
            generation=_GENERATION + self.number,
            message=0,
            rank=member.rank,
            op=Op.SUM,
            packets=PACKETS,
            element_type=ElementType.INT32,
            reduction=Reduction.SUM,
            elements=1,
            tensor_elements=1,
            flags=Flags.RESULT if sums else Flags.NONE,
        )
        return [
            RocePacket(
                ethernet=Ethernet(dst=parse_mac(receiver.mac), src=parse_mac(member.mac)),
                ip=IPv4(src=member.ip, dst=receiver.ip, total_length=0),
                udp=Udp(length=0, src_port=source_port(member.qpn_out)),
                bth=Bth(opcode=_opcode(i), dest_qp=receiver.qpn_in, psn=0, ack_req=i == PACKETS - 1),
                payload=(header.pack() if i == 0 else b"")
                + row.astype(">i4").tobytes()[256 if i == 0 else 0 :],
            )
            for i, row in enumerate(lanes)
        ]


def _result(packet: RocePacket, port: int) -> RocePacket:
    """Return the packet as the switch makes it."""
    source = switch_mac(DEVICE_ID, port).to_bytes(6, "big")
    return replace(
        packet,
        ethernet=replace(packet.ethernet, src=source),
        ip=replace(packet.ip, ttl=packet.ip.ttl - 1),
        bth=replace(packet.bth, reserved=SUMMED_BIT),
    )


def _opcode(index: int) -> Opcode:
    if index == 0:
        return Opcode.SEND_FIRST
    return Opcode.SEND_LAST if index == PACKETS - 1 else Opcode.SEND_MIDDLE


def host_entries(ports: int) -> list[Entry]:
    """Return entries for the hosts behind ports 1 to `ports`: packets from other ports do not leave."""
    return [
        table_entry(EDGE_PORT, {"ingress_port": port}, "SwitchIngress.edges.host_port", ip=_behind(port))
        for port in range(1, ports + 1)
    ]


def _behind(port: int) -> int:
    return int(IPv4Address("10.20.0.0")) + port


def crossing_packets(chunks: int) -> list[Frames]:
    """Return the frames that the hosts at two ports send each other through a router."""
    job = Job(2, 0)
    lanes = np.random.default_rng(_SEED).integers(-(2**31), 2**31, (PACKETS, chunks * CHUNK_LANES))
    return [
        [
            replace(
                packet,
                ethernet=replace(packet.ethernet, dst=parse_mac(_ROUTER)),
                ip=replace(packet.ip, dst=_host(2 - member.rank)),
            )
            for packet in job._frames(member, lanes)
        ]
        for member in job.members
    ]


def crossing(interfaces: Sequence[str], chunks: int, window: int, *, routed: bool) -> bytes:
    """Return a plan where frames enter at one of two ports and leave at the other; `routed`, by a router."""
    sent = crossing_packets(chunks)
    received: list[Frames] = []
    for port, frames in enumerate(sent, 1):
        received.insert(0, [_routed(packet, 3 - port) for packet in frames] if routed else frames)
    return _plan(interfaces, window, sent, received, [0, 0], [0, 0])


def _host(port: int) -> IPv4Address:
    return IPv4Address(f"10.99.0.{port}")


def _routed(packet: RocePacket, port: int) -> RocePacket:
    ethernet = Ethernet(dst=_neighbour(port).to_bytes(6, "big"), src=parse_mac(_ROUTER))
    return replace(packet, ethernet=ethernet, ip=replace(packet.ip, ttl=packet.ip.ttl - 1))


def _neighbour(port: int) -> int:
    return mac_number("02:00:00:00:01:00") + port


def router_entries() -> list[Entry]:
    """Return entries of tests/soft_switch/programs/l3.p4: a host behind each of two ports, more routes."""
    routes: list[Entry] = [
        table_entry(
            "RouterIngress.routes",
            {"hdr.ipv4.dst": (int(IPv4Address(f"10.{net}.0.0")), 16)},
            "RouterIngress.next_hop",
            address=int(_host(1)),
            port=1,
        )
        for net in range(64)
    ]
    for port in (1, 2):
        routes += [
            table_entry(
                "RouterIngress.routes",
                {"hdr.ipv4.dst": (int(_host(port)), 32)},
                "RouterIngress.to_host",
                port=port,
            ),
            table_entry(
                "RouterIngress.neighbours",
                {"meta.next_hop": int(_host(port))},
                "RouterIngress.set_dst",
                mac=_neighbour(port),
            ),
        ]
    return routes


def _plan(
    interfaces: Sequence[str],
    window: int,
    sent: Sequence[Frames],
    received: Sequence[Frames],
    psns_in: Sequence[int],
    psns_out: Sequence[int],
) -> bytes:
    build: Callable[[Frames], bytes] = lambda frames: b"".join(packet.build() for packet in frames)  # noqa: E731
    length = len(sent[0][0].build())
    parts = [struct.pack("<5I", len(sent), PACKETS, length, window, min(BURST, window // 2))]
    for port, interface in enumerate(interfaces[: len(sent)]):
        parts.append(struct.pack("<16s2I", interface.encode(), psns_in[port], psns_out[port]))
        parts += [build(sent[port]), build(received[port])]
    return b"".join(parts)
