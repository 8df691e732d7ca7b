"""A port that the configuration does not name is no way in, and no host sends what only a switch may.

A job of four workers behind two leaves, in the network or by ring; a third leaf on which nobody works.
Frames of somebody who knows all of it go through the compiled programs of all switches, each held against the
model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from typing import Any

import pytest

from controller.fabric.addresses import switch_ip
from host_agent.transport import TransportConfig
from host_agent.wire.aggregation import SUMMED_BIT, AggregationHeader, Flags, Op
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from p4reduce.oracle.tree_packets import TREE_PORT, Kind, TreePacket
from p4src import CPU_PORT
from tests.p4reduce.simulation.worlds import End, a_job, a_schedule, a_sum, far_ends, installed
from tests.p4src.entry_pair import EntryPair

UNNAMED = 77
NOBODYS_QP = 0xABCDE


@dataclass
class Fabric:
    """Compiled switches with the entries of a simulation's; `send` gives what reaches hosts."""

    switches: dict[str, EntryPair]
    ends: dict[tuple[str, int], End]
    members: list[TransportConfig]  # in the order of the ring, which is that of their ranks
    ports: dict[IPv4Address, tuple[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.ports = {end: here for here, end in self.ends.items() if isinstance(end, IPv4Address)}

    def send(self, switch: str, port: int, frame: bytes) -> list[tuple[IPv4Address, bytes]]:
        reached = []
        for out, data in self.switches[switch].process(port, frame):
            end = self.ends[switch, out]
            reached += [(end, data)] if isinstance(end, IPv4Address) else self.send(*end, data)
        return reached

    def from_host(self, ip: IPv4Address, frame: bytes) -> list[tuple[IPv4Address, bytes]]:
        return self.send(*self.ports[ip], frame)

    def counted(self, counter: str) -> int:
        """Return the count of all switches, at all of their ports."""
        for switch in self.switches.values():
            switch.assert_counters_agree()
        return sum(sum(switch.model.port_counters[counter].values()) for switch in self.switches.values())

    @property
    def flows(self) -> list[tuple[TransportConfig, TransportConfig]]:
        """Senders and receivers around the ring."""
        return list(zip(self.members, [*self.members[1:], self.members[0]], strict=True))


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, EntryPair]]:
    made: dict[str, EntryPair] = {}
    yield made
    for pair in made.values():
        pair.plane.close()


def fabric(pairs: dict[str, EntryPair], *, racks: bool, in_network: bool) -> Fabric:
    job = a_job(range(4), [a_sum(500)], mode="IN_NETWORK" if in_network else "RING")
    schedule = a_schedule(1 if racks else 0, [2, 2, 1] if racks else [4], job)
    entries, members = installed(schedule)
    for name in entries:
        if name not in pairs:
            pairs[name] = EntryPair()
        pairs[name].reset()
        pairs[name].write(entries[name])
    return Fabric({name: pairs[name] for name in entries}, far_ends(schedule.config()), members)


def data(
    sender: TransportConfig, receiver: TransportConfig, *, marked: bool, op: Op = Op.SUM, **bth: Any
) -> bytes:
    """Return what a leaf would answer to a packet of the sender's; without the mark, that packet itself."""
    head = AggregationHeader(
        job=sender.job_id,
        generation=sender.generation,
        message=0,
        rank=sender.rank,
        op=op,
        packets=1,
        flags=Flags.RESULT if marked else Flags.NONE,
    ).pack()
    fields: dict[str, Any] = {"dest_qp": receiver.qpn_in, "reserved": SUMMED_BIT if marked else 0, **bth}
    return RocePacket(
        ethernet=Ethernet(dst=bytes(6), src=bytes(6)),
        ip=IPv4(src=sender.ip, dst=receiver.ip, total_length=0),
        udp=Udp(length=0),
        bth=Bth(opcode=Opcode.SEND_ONLY, psn=sender.psn_out, **fields),
        payload=head,
    ).build()


def ack(sender: TransportConfig, receiver: TransportConfig, **bth: Any) -> bytes:
    """Return a NAK of the receiver's to the sender."""
    return RocePacket(
        ethernet=Ethernet(dst=bytes(6), src=bytes(6)),
        ip=IPv4(src=receiver.ip, dst=sender.ip, total_length=0),
        udp=Udp(length=0),
        bth=Bth(opcode=Opcode.ACKNOWLEDGE, dest_qp=sender.qpn_out, psn=sender.psn_out, **bth),
        aeth=Aeth(0x60, 7),
    ).build()


def forged(made: Fabric) -> list[bytes]:
    """Return frames as from each member to each other, to both of its queue pairs: sums, raw data, NAKs."""
    frames = []
    for sender in made.members:
        for receiver in made.members:
            if sender is receiver:
                continue
            for qpn in (receiver.qpn_in, receiver.qpn_out):
                frames += [data(sender, receiver, marked=marked, dest_qp=qpn) for marked in (True, False)]
            frames.append(ack(sender, receiver))
    return frames


def tcp(source: IPv4Address, destination: IPv4Address) -> bytes:
    ip = IPv4(src=source, dst=destination, total_length=0, protocol=6)
    return bytes(12) + b"\x08\x00" + ip.pack(60) + bytes(40)


ARP = b"\xff" * 6 + bytes(6) + b"\x08\x06" + bytes(28)
WAYS = [(racks, in_network) for racks in (False, True) for in_network in (True, False)]
WAY_IDS = ["rack-in_network", "rack-ring", "racks-in_network", "racks-ring"]


@pytest.mark.parametrize(("racks", "in_network"), WAYS, ids=WAY_IDS)
def test_nobody_reaches_a_member_by_an_unnamed_port(
    pairs: dict[str, EntryPair], racks: bool, in_network: bool
) -> None:
    """Send with a member's address, its queue pairs, PSN and mark; on any leaf, and on a spine."""
    made = fabric(pairs, racks=racks, in_network=in_network)
    frames = forged(made)
    for name in made.switches:
        for frame in frames:
            assert made.send(name, UNNAMED, frame) == [], f"by {name}: {RocePacket.parse(frame)}"
    assert made.counted("unnamed") == len(made.switches) * len(frames)
    assert made.counted("spoofed") == 0


def test_no_port_passes_for_another_whose_number_ends_alike(pairs: dict[str, EntryPair]) -> None:
    """Check ports beyond a program's 9 bits, for which 513 was a host's port 1, and 767 the controller's."""
    made = fabric(pairs, racks=False, in_network=False)
    sender, receiver = made.flows[0]
    switch, port = made.ports[sender.ip]
    plane = made.switches[switch].plane
    frame = data(sender, receiver, marked=False)
    assert len(plane.process(port, frame)) == 1
    to_receiver = bytes([0]) + made.ports[receiver.ip][1].to_bytes(2, "big") + bytes(4)  # as a packet-out
    for beyond, sent in (
        (port + 512, frame),
        (CPU_PORT + 512, to_receiver + data(sender, receiver, marked=True)),
    ):
        with pytest.raises(ValueError, match=f"port {beyond} is not within 0 and 511"):
            plane.process(beyond, sent)


def test_what_is_forged_is_what_a_member_takes(pairs: dict[str, EntryPair]) -> None:
    """Send it by the link where such a sum comes by in truth; else the test above says nothing."""
    made = fabric(pairs, racks=True, in_network=True)
    sender, receiver = next(
        flow for flow in made.flows if made.ports[flow[0].ip][0] == "l2" and made.ports[flow[1].ip][0] == "l1"
    )
    frame = data(sender, receiver, marked=True)
    [(ip, arrived)] = made.send("s1", 2, frame)
    assert ip == receiver.ip
    assert RocePacket.parse(arrived).bth.reserved == SUMMED_BIT


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
def test_nothing_else_comes_in_by_an_unnamed_port_either(pairs: dict[str, EntryPair], racks: bool) -> None:
    """Send frames whose senders could take part in the fabric under any name if they were answered."""
    made = fabric(pairs, racks=racks, in_network=True)
    one, other = made.members[0], made.members[1]
    echo = TreePacket(
        ethernet=Ethernet(dst=bytes(6), src=bytes(6)),
        ip=IPv4(src=IPv4Address(switch_ip(1)), dst=IPv4Address(switch_ip(101)), total_length=0),
        udp=Udp(length=0, src_port=TREE_PORT, dst_port=TREE_PORT),
        kind=Kind.ECHO_REQUEST,
    ).build()
    frames = [ARP, tcp(one.ip, other.ip), echo, data(one, other, marked=False, dest_qp=NOBODYS_QP), bytes(14)]
    for name in made.switches:
        for frame in frames:
            assert made.switches[name].process(UNNAMED, frame) == []
    assert made.counted("unnamed") == len(frames) * len(made.switches)
    for frame in (ARP, tcp(one.ip, other.ip), data(one, other, marked=False, dest_qp=NOBODYS_QP)):
        assert made.from_host(one.ip, frame) != []


def test_a_port_that_is_named_later_is_a_way_in_from_then_on(pairs: dict[str, EntryPair]) -> None:
    made = fabric(pairs, racks=False, in_network=False)
    one, other = made.members[0], made.members[1]
    switch, port = made.ports[one.ip]
    named = [
        entry
        for entry in made.switches[switch].model.entries.values()
        if dict(getattr(entry, "match", ())).get("ingress_port") == port
    ]
    frame = data(one, other, marked=False)
    assert made.from_host(one.ip, frame) != []
    made.switches[switch].write(delete=named)
    assert made.from_host(one.ip, frame) == []
    made.switches[switch].write(named)
    assert made.from_host(one.ip, frame) != []
    assert made.counted("unnamed") == 1


@pytest.mark.parametrize("reserved", [0x40, 0x41, 0x7F])
@pytest.mark.parametrize(("racks", "in_network"), WAYS, ids=WAY_IDS)
def test_no_host_marks_a_packet_as_summed(
    pairs: dict[str, EntryPair], racks: bool, in_network: bool, reserved: int
) -> None:
    """Check members as well: data, PASS messages, acknowledgements, and what is no job's, on every way."""
    made = fabric(pairs, racks=racks, in_network=in_network)
    sent = 0
    for sender, receiver in made.flows:
        of_sender = [
            data(sender, receiver, marked=False, reserved=reserved),
            data(sender, receiver, marked=False, op=Op.PASS, reserved=reserved),
            data(sender, receiver, marked=False, dest_qp=NOBODYS_QP, reserved=reserved),
            data(sender, receiver, marked=False, dest_qp=NOBODYS_QP, reserved=reserved, ack_req=1),
        ]
        for frame in of_sender:
            assert made.from_host(sender.ip, frame) == []
        assert made.from_host(receiver.ip, ack(sender, receiver, reserved=reserved)) == []
        sent += len(of_sender) + 1
    assert made.counted("spoofed") == sent


@pytest.mark.parametrize(("racks", "in_network"), WAYS, ids=WAY_IDS)
def test_what_hosts_and_cards_send_themselves_gets_through(
    pairs: dict[str, EntryPair], racks: bool, in_network: bool
) -> None:
    """Check zeros, as cards send there, and the six bits that agents use in selective NAKs."""
    made = fabric(pairs, racks=racks, in_network=in_network)
    for sender, receiver in made.flows:
        passes = data(sender, receiver, marked=False, op=Op.PASS)
        answer = ack(sender, receiver, reserved=0x3F)
        for ip, to, frame in ((sender.ip, receiver.ip, passes), (receiver.ip, sender.ip, answer)):
            [(reached, arrived)] = made.from_host(ip, frame)
            assert reached == to
            assert arrived[50] == frame[50]
    assert made.counted("spoofed") == 0


def test_a_member_of_a_ring_is_not_reached_under_its_peers_name(pairs: dict[str, EntryPair]) -> None:
    """Check that a named port has one address, and that another leaf's ports are no way around that."""
    made = fabric(pairs, racks=True, in_network=False)
    sender, receiver = made.flows[0]
    frame = data(sender, receiver, marked=False)
    assert len(made.from_host(sender.ip, frame)) == 1
    others = [ip for ip in made.ports if ip != sender.ip]
    for ip in others:
        assert made.from_host(ip, frame) == []
    assert made.counted("spoofed") == len(others)
    own = replace(RocePacket.parse(frame), ip=replace(RocePacket.parse(frame).ip, src=others[0])).build()
    assert len(made.from_host(others[0], own)) == 1  # it is no job's for a switch; agents know their peers
