"""The oracle where the table of slot rules leaves off, in packets: sums, what has a place, what is forwarded.

Each row of the table is played, to the oracle and to the program, in tests/p4src/test_rules.py.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from controller.fabric.tables.forward import ROUTE
from host_agent.wire.aggregation import AggregationHeader, ElementType, Flags, Op
from host_agent.wire.headers import Opcode
from p4reduce.oracle.slot_rules import SwitchModel
from tests.p4reduce.oracle.racks import Racks, host, lanes

ALL_SHAPES = pytest.mark.parametrize("hosts", [(3,), (2, 1), (1, 1, 1)], ids=["rack", "racks", "far apart"])
NOBODYS_QP = 0x999


@pytest.fixture
def rack() -> Racks:
    """Return racks in which rank r is on port r + 1 of l1."""
    return Racks(hosts=(3,), window=2)


@ALL_SHAPES
def test_the_sum_comes_on_every_flow_with_that_flows_addresses_and_psns(hosts: tuple[int, ...]) -> None:
    """Check that a sender that repeats gets its own sum again, and nobody else anything. PSNs wrap here."""
    racks = Racks(hosts=hosts)
    for index in (0, 1):
        arrived = racks.reduce(1, index)
        assert sorted(rank for rank, _ in arrived) == [0, 1, 2]
        for receiver, packet in arrived:
            rank = (receiver - 1) % 3
            me, after = racks.members[rank], racks.members[receiver]
            assert (packet.ip.src, packet.ip.dst) == (me.ip, after.ip)
            assert (packet.bth.dest_qp, packet.bth.psn) == (after.qpn_in, racks.psn(rank, 1, index))
            assert (packet.bth.reserved, packet.bth.ack_req, lanes(packet)) == (0x40, index == 1, {111})
            if index == 0:
                header = AggregationHeader.unpack(packet.payload)
                assert (header.rank, header.flags) == (rank, Flags.RESULT)
            ((to, again),) = racks.through(rank, 1, index)
            assert (to, again.bth, again.payload) == (receiver, packet.bth, packet.payload)
    assert (racks.psn(0, 1, 0), racks.psn(0, 1, 1)) == (0xFFFFFF, 0)


@ALL_SHAPES
@pytest.mark.parametrize("wrong", [0, 1, 2])
@pytest.mark.parametrize("shape", [False, True], ids=["element type", "shape"])
def test_ranks_that_disagree_all_hear_of_it_also_on_replays(
    hosts: tuple[int, ...], wrong: int, shape: bool
) -> None:
    """Check that the result is an Only, as nothing else of the message will come."""
    racks = Racks(hosts=hosts)
    other = racks.packet(wrong, 0, 0, element_type=ElementType.FLOAT32)
    if shape:
        other = racks.packet(wrong, 0, 0, chunks=1, packets=1)
        other = replace(other, bth=replace(other.bth, opcode=Opcode.SEND_ONLY))
    arrived = [
        item
        for rank in range(3)
        for item in racks.through(rank, 0, 0, packet=other if rank == wrong else None)
    ]
    assert sorted(rank for rank, _ in arrived) == [0, 1, 2]
    for _, packet in arrived + racks.through(0, 0, 0, packet=other if wrong == 0 else None):
        header = AggregationHeader.unpack(packet.payload)
        assert (header.flags, packet.bth.opcode) == (Flags.RESULT | Flags.MISMATCH, Opcode.SEND_ONLY)
    late = 1 if wrong == 2 else 2
    assert racks.through(late, 0, 1) == []
    assert racks.counted(racks.config.hosts[late].switch)["mismatch"] >= 1


# What has a place


def test_pass_messages_go_through_untouched_but_for_the_ttl(rack: Racks) -> None:
    for packet in [rack.packet(0, 0, index, 7, op=Op.PASS) for index in (0, 1)]:
        ((port, out),) = host(rack.come("l1", 1, packet))
        assert (port, out.bth, out.payload, out.ip.ttl) == (2, packet.bth, packet.payload, 63)
        assert out.icrc == packet.build()[-4:]
    assert rack.counted("l1") == {"passed": 2}


def test_a_header_that_does_not_match_the_flow_is_dropped_and_counted(rack: Racks) -> None:
    packet = rack.packet(0, 0, 0)
    header = AggregationHeader.unpack(packet.payload)
    wrong = [replace(header, job=9), replace(header, generation=6), replace(header, rank=1)]
    wrong += [replace(header, flags=Flags.RESULT), *(replace(header, packets=n) for n in (0, 1, 3))]
    for other in wrong:
        assert rack.come("l1", 1, replace(packet, payload=other.pack() + packet.payload[256:])) == []
    assert rack.send(0, 0, 1) == []  # so its First was never seen
    assert rack.counted("l1") == {"unplaced": 8}


def test_a_first_that_is_2w_messages_late_or_has_another_psn_than_before_is_dropped(rack: Racks) -> None:
    first = rack.packet(0, 4, 0)
    rack.come("l1", 1, first)
    assert rack.come("l1", 1, replace(first, bth=replace(first.bth, psn=77))) == []
    assert rack.send(0, 0, 0) == []
    assert rack.counted("l1") == {"aggregated": 1, "unplaced": 2}
    assert rack.send(0, 1, 0) == []
    assert rack.counted("l1") == {"aggregated": 2, "unplaced": 2}


@pytest.mark.parametrize("opcode", [Opcode.SEND_MIDDLE, Opcode.SEND_LAST])
def test_only_a_first_is_first_and_only_a_last_is_last(rack: Racks, opcode: Opcode) -> None:
    rack.send(0, 0, 0)
    for index in (0, 1):
        packet = rack.packet(0, 0, index)
        placed = index == 1 and opcode is Opcode.SEND_LAST
        assert rack.come("l1", 1, replace(packet, bth=replace(packet.bth, opcode=opcode))) == []
        assert rack.counted("l1")["aggregated"] == 1 + placed


def test_a_truncated_padded_or_damaged_packet_on_a_jobs_flow_is_dropped(rack: Racks) -> None:
    packet = rack.packet(0, 0, 0)
    damaged = bytearray(packet.build())
    damaged[-20] ^= 4
    cut = [packet.build()[:-cut] for cut in (1, 4, 100, 400)]
    sizes = [replace(packet, payload=packet.payload[:size]).build() for size in (-4, 0)]
    assert [rack.come("l1", 1, frame) for frame in (*cut, *sizes, bytes(damaged))] == [[]] * 7
    assert rack.counted("l1") == {"unplaced": 6, "bad_icrc": 1}


def test_what_is_for_a_jobs_qp_comes_from_its_peer_alone(rack: Racks) -> None:
    """Acknowledgements as well, and they are nothing else."""
    packet, ack = rack.packet(0, 0, 0), rack.acknowledgement(0, 5)
    assert rack.come("l1", 3, packet) == []
    assert rack.come("l1", 1, replace(packet, ip=replace(packet.ip, src=rack.members[2].ip))) == []
    assert rack.come("l1", 3, ack) == []
    assert rack.come("l1", 2, replace(ack, bth=replace(ack.bth, opcode=Opcode.SEND_ONLY), aeth=None)) == []
    assert rack.counted("l1") == {"foreign": 4}
    ((port, out),) = host(rack.come("l1", 2, ack))
    assert (port, out.aeth, out.ip.ttl) == (1, ack.aeth, 63)
    assert rack.counted("l1") == {"foreign": 4, "acks": 1}


# What is forwarded


def test_other_traffic_is_routed_and_dead_packets_are_dropped(rack: Racks) -> None:
    packet = rack.packet(0, 0, 0)
    other = replace(packet, bth=replace(packet.bth, dest_qp=NOBODYS_QP, reserved=0x3F))
    ((port, out),) = host(rack.come("l1", 1, other))
    assert (port, out.ip.ttl, out.bth, out.payload) == (2, 63, other.bth, packet.payload)
    for ip in (replace(packet.ip, ttl=1), replace(packet.ip, dst=packet.ip.dst + 100)):
        assert rack.come("l1", 1, replace(other, ip=ip)) == []
    assert rack.counted("l1") == {}
    assert not +rack.switches["l1"].port_counters["spoofed"]


def test_arp_goes_on_as_in_a_switch(rack: Racks) -> None:
    arp = bytes(6) + b"\x08\x06" + bytes(28)
    broadcast, known, unknown = b"\xff" * 6 + arp, rack.packet(2, 0, 0).ethernet.dst + arp, bytes(6) + arp
    assert rack.come("l1", 2, broadcast) == [(1, broadcast), (3, broadcast)]
    assert rack.come("l1", 2, known) == [(1, known)]
    assert rack.come("l1", 2, unknown) == []


def test_only_ipv4_has_a_route(rack: Racks) -> None:
    frame = bytearray(rack.packet(0, 0, 0).build())
    frame[12:14] = b"\x88\xb5"
    assert rack.come("l1", 1, bytes(frame)) == []


def test_the_checksum_of_a_header_with_options_is_left_alone(rack: Racks) -> None:
    frame = bytearray(rack.packet(0, 0, 0).build())
    frame[14], frame[23] = 0x46, 1  # ICMP
    ((port, out),) = rack.come("l1", 1, bytes(frame))
    assert (port, out[22], out[24:26]) == (2, frame[22] - 1, bytes(frame[24:26]))


def test_a_sum_that_is_asked_for_again_goes_nowhere_without_a_route(rack: Racks) -> None:
    rack.reduce(0, 0)
    switch = rack.switches["l1"]
    switch.write(delete=[entry for entry in switch.entries.values() if getattr(entry, "table", "") == ROUTE])
    assert rack.send(0, 0, 0) == []
    assert rack.counted("l1")["replayed"] == 1


@pytest.mark.parametrize(("at", "byte"), [(14, 0x46), (20, 0x20)], ids=["IP options", "first fragment"])
def test_what_a_host_could_take_for_roce_but_the_switch_does_not_read_is_dropped(
    rack: Racks, at: int, byte: int
) -> None:
    frame = bytearray(rack.packet(0, 0, 0).build())
    frame[at] = byte
    assert rack.come("l1", 1, bytes(frame)) == []
    assert +rack.switches["l1"].port_counters["spoofed"] == {1: 1}


# Made of jobs and routes, without entries


def made_of(rack: Racks, **options: bool) -> SwitchModel:
    """Return the same job, on a switch of its own."""
    switch = rack.switches["l1"]
    routes = {IPv4Address(ip): route for ip, route in switch.routes.items()}
    return SwitchModel([switch.jobs[7]], routes, **options)


@pytest.mark.parametrize("stranger", [2, 0])
def test_either_qp_of_a_worker_takes_nothing_from_strangers(rack: Racks, stranger: int) -> None:
    """Rank 1 hears rank 0 on the one, and rank 2 on the other."""
    switch, packet, me = made_of(rack), rack.packet(stranger, 0, 0), rack.members[1]
    aimed = replace(packet.bth, dest_qp=me.qpn_in if stranger == 2 else me.qpn_out)
    other = replace(packet, ip=replace(packet.ip, dst=me.ip), bth=aimed)
    assert switch.process(stranger + 1, other.build()) == []
    assert rack.counted("l1") == {"foreign": 1}


@pytest.mark.parametrize("check_icrc", [False, True])
def test_damage_is_looked_for_where_that_is_asked_for(rack: Racks, check_icrc: bool) -> None:
    damaged = bytearray(rack.packet(0, 0, 0).build())
    damaged[-1] ^= 1
    assert made_of(rack, check_icrc=check_icrc).process(1, bytes(damaged)) == []
    assert rack.counted("l1") == {"bad_icrc" if check_icrc else "aggregated": 1}


def test_arp_goes_to_nobody_where_no_mac_is_known(rack: Racks) -> None:
    answer = bytes(range(6)) + bytes(6) + b"\x08\x06" + bytes(46)
    assert made_of(rack).process(1, answer) == []
