"""Leaves, two spines and a job, whose packets are written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from controller.api.messages import Mode
from controller.entries import table_entry
from controller.fabric.graph import ALL_UP
from controller.fabric.routes import base_entries
from controller.fabric.tables.up import UPLINK
from controller.fabric.trees import Tree, entries_on
from controller.jobs.specs import Plan
from controller.slots.allocator import Region
from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import AggregationHeader, ElementType, Op
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, Opcode, RocePacket, Udp, parse_mac
from p4reduce.oracle.from_entries import EntrySwitch
from p4reduce.oracle.state import BUCKETS
from p4reduce.oracle.tree_packets import TreePacket
from p4reduce.simulation.network import fabric_config
from tests.controller.bench import member
from tests.p4reduce.simulation.worlds import far_ends

LANES = 64
UP1, UP2 = 101, 102  # a leaf's uplinks
PSNS = (0xFFFFFD, 100, 200, 300)
Left = list[tuple[int, bytes]]


@dataclass
class Racks:
    """Every message has two packets. `adapters`: the ranks that want RNR NAKs; `hosts`: behind l1, l2, ...

    `make`: the switch of that name, or what is like one.
    """

    adapters: frozenset[int] = frozenset()
    window: int = 1
    hosts: Sequence[int] = (2, 1)
    make: Callable[[str], Any] = lambda name: EntrySwitch()

    def __post_init__(self) -> None:
        self.config = config = fabric_config(2, self.hosts)
        self.members = [
            replace(
                member(config, rank, rank, qp=0x100 + 2 * rank, psn=PSNS[rank]), rnr_nak=rank in self.adapters
            )
            for rank in range(len(config.hosts))
        ]
        plan = Plan(
            job_id=7, generation=7, window=self.window, message_packets=2, path_mtu=512, mode=Mode.IN_NETWORK
        )
        tree = Tree.of(config, self.members)
        names = [*tree.leaves, *(["s1", "s2"] if tree.two_level else [])]
        regions = {name: Region(n, plan.slots * 3, plan.slots) for n, name in enumerate(names)}
        self.entries = {
            name: entries_on(config, tree, name, plan, region, tree.spines(ALL_UP))
            for name, region in regions.items()
        }
        self.switches: dict[str, Any] = {}
        for name, entries in self.entries.items():
            self.switches[name] = self.make(name)
            self.switches[name].write(base_entries(config, config.switch(name)))
            self.switches[name].write(entries)
        for name in tree.leaves if tree.two_level else ():  # even messages go to s1, odd ones to s2
            for bucket in range(BUCKETS):
                port = (UP1, UP2)[bucket % 2]
                key: Any = {"group": regions[name].group, "bucket": bucket}
                to_spine = table_entry(UPLINK, key, "SwitchIngress.up.to_spine", port=port, index=bucket % 2)
                self.switches[name].write([to_spine])

    def counted(self, switch: str) -> dict[str, int]:
        return {name: count for name, count in self.switches[switch].counted().items() if count}

    def psn(self, rank: int, message: int, index: int) -> int:
        return psn_math.add(PSNS[rank], 2 * message + index)

    def packet(
        self, rank: int, message: int, index: int, value: int = 1, chunks: int = 0, **header: Any
    ) -> RocePacket:
        """Return packet `index` (0: First, 1: Last) of a message whose lanes all hold `value`."""
        me, after = self.members[rank], self.members[(rank + 1) % len(self.members)]
        payload = np.full((chunks or 2 - index) * LANES, value, ">i4").tobytes()
        if index == 0:
            of_job: dict[str, Any] = {
                "job": 7,
                "generation": 7,
                "message": message,
                "rank": rank,
                "packets": 2,
            }
            what = {"op": Op.SUM, "element_type": ElementType.INT32}
            payload = AggregationHeader(**{**of_job, **what, **header}).pack() + payload[4 * LANES :]
        return RocePacket(
            ethernet=Ethernet(dst=parse_mac(after.mac), src=parse_mac(me.mac)),
            ip=IPv4(src=me.ip, dst=after.ip, total_length=0, identification=rank + 1),
            udp=Udp(length=0),
            bth=Bth(
                opcode=(Opcode.SEND_FIRST, Opcode.SEND_LAST)[index],
                dest_qp=after.qpn_in,
                psn=self.psn(rank, message, index),
                ack_req=index == 1,
            ),
            payload=payload,
        )

    def acknowledgement(self, rank: int, psn: int) -> RocePacket:
        """Return the ACK of rank's packet that its successor sends."""
        me, after = self.members[rank], self.members[(rank + 1) % len(self.members)]
        return RocePacket(
            ethernet=Ethernet(dst=parse_mac(me.mac), src=parse_mac(after.mac)),
            ip=IPv4(src=after.ip, dst=me.ip, total_length=0),
            udp=Udp(length=0),
            bth=Bth(opcode=Opcode.ACKNOWLEDGE, dest_qp=me.qpn_out, psn=psn),
            aeth=Aeth(syndrome=0x1F, msn=1),
        )

    def come(self, switch: str, port: int, packet: RocePacket | TreePacket | bytes) -> Left:
        """Return what leaves a switch for what comes in."""
        frame = packet if isinstance(packet, bytes) else packet.build()
        left: Left = self.switches[switch].process(port, frame)
        return left

    def send(self, rank: int, message: int, index: int, value: int = 1, **header: Any) -> Left:
        """Send a packet from a worker to its leaf, and return what leaves there."""
        at = self.config.hosts[rank]
        return self.come(at.switch, at.port, self.packet(rank, message, index, value, **header))

    def arrive(self, rank: int, packet: RocePacket) -> list[tuple[int, RocePacket]]:
        """Send a worker's packet over all links; return the packets that reach workers, with their ranks."""
        ends, at, arrived = far_ends(self.config), self.config.hosts[rank], []
        under_way: list[tuple[Any, bytes]] = [((at.switch, at.port), packet.build())]
        while under_way:
            end, frame = under_way.pop(0)
            if isinstance(end, tuple):
                under_way += [(ends[end[0], port], out) for port, out in self.come(end[0], end[1], frame)]
            else:
                arrived.append(([member.ip for member in self.members].index(end), frame))
        return host(arrived)

    def through(
        self, rank: int, message: int, index: int, value: int = 1, *, packet: RocePacket | None = None
    ) -> list[tuple[int, RocePacket]]:
        """Send a worker's packet, as always or this one, and return what arrives."""
        return self.arrive(rank, packet or self.packet(rank, message, index, value))

    def ack(self, rank: int, psn: int) -> list[tuple[int, RocePacket]]:
        """Send the ACK of rank's packet from its successor, and return what arrives."""
        return self.arrive((rank + 1) % len(self.members), self.acknowledgement(rank, psn))

    def reduce(self, message: int, index: int) -> list[tuple[int, RocePacket]]:
        """Send that packet of all ranks, with the values 1, 10 and 100, and return what arrives."""
        ranks = range(len(self.members))
        return [item for rank in ranks for item in self.through(rank, message, index, 10**rank)]

    def to_spine(self, leaf: str, left: Left, spine: str = "") -> Left:
        """Return what leaves a spine when it gets what left a leaf for it."""
        ((port, frame),) = left
        return self.come(spine or f"s{port - 100}", int(leaf[1:]), frame)

    def to_leaf(self, spine: str, left: Left, leaf: str) -> Left:
        """Return what leaves a leaf when it gets what left a spine for it."""
        (frame,) = [frame for port, frame in left if port == int(leaf[1:])]
        return self.come(leaf, 100 + int(spine[1:]), frame)

    def partials(self, message: int, index: int) -> tuple[Left, Left]:
        """Return the partial sums of both leaves: 1 + 10 and 100."""
        assert self.send(0, message, index, 1) == []
        return self.send(1, message, index, 10), self.send(2, message, index, 100)


def tree(left: Left) -> list[tuple[int, TreePacket]]:
    packets = [(port, TreePacket.parse(frame)) for port, frame in left]
    assert all(packet is not None and packet.icrc_ok() for _, packet in packets)
    return packets  # type: ignore[return-value]


def host(left: Left) -> list[tuple[int, RocePacket]]:
    packets = [(port, RocePacket.parse(frame)) for port, frame in left]
    assert all(packet.icrc_ok() for _, packet in packets)
    return packets


def lanes(packet: TreePacket | RocePacket) -> set[int]:
    return set(np.frombuffer(packet.payload, ">i4")[-LANES:].tolist())
