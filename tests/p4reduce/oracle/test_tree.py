"""Leaves and spines of the oracle where the table of slot rules leaves off, in packets."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from controller.fabric.addresses import switch_ip
from host_agent.wire.aggregation import Op
from host_agent.wire.headers import Opcode
from p4reduce.oracle.tree_packets import TREE_PORT, Kind, TreeFlags
from tests.p4reduce.oracle.racks import UP1, UP2, Racks, host, lanes, tree


@pytest.fixture
def racks() -> Racks:
    return Racks()


def test_the_last_of_a_rack_sends_its_sum_to_the_messages_spine(racks: Racks) -> None:
    """Check that its ICRC leaves out what any router may change on the way."""
    assert racks.send(0, 3, 0, 1) == []
    left = racks.send(1, 3, 0, 10)
    ((port, packet),) = tree(left)
    assert port == UP2
    assert (packet.kind, packet.op, packet.opcode) == (Kind.PARTIAL, Op.SUM, Opcode.SEND_FIRST)
    assert (packet.generation, packet.message, packet.index) == (7, 3, 0)
    assert (packet.flags, packet.psn) == (TreeFlags.PSN_VALID, racks.psn(1, 3, 0))
    assert (packet.ip.src, packet.ip.dst) == (IPv4Address(switch_ip(1)), IPv4Address(switch_ip(102)))
    assert (packet.ip.ttl, packet.udp.src_port, packet.udp.dst_port) == (64, TREE_PORT, TREE_PORT)
    assert lanes(packet) == {11}
    routed = bytearray(left[0][1])
    routed[15], routed[22], routed[24] = 0xFF, 3, 0x55  # TOS, TTL, checksum
    assert lanes(tree([(port, bytes(routed))])[0][1]) == {11}


def test_the_spine_sends_the_sum_of_all_to_every_leaf_with_its_predecessors_psn(racks: Racks) -> None:
    first, second = racks.partials(0, 1)
    assert first == []  # the First of each flow never came
    first, second = racks.partials(0, 0)
    assert racks.to_spine("l1", first) == []
    results = tree(racks.to_spine("l2", second))
    assert [port for port, _ in results] == [1, 2]
    assert [lanes(packet) for _, packet in results] == [{111}, {111}]
    assert [packet.psn for _, packet in results] == [racks.psn(2, 0, 0), racks.psn(1, 0, 0)]
    assert {(packet.kind, packet.flags) for _, packet in results} == {(Kind.RESULT, TreeFlags.PSN_VALID)}
    blind = replace(results[0][1], flags=0)
    assert [port for port, _ in racks.come("l1", UP1, blind)] == [2]  # not the flow that enters


def test_another_spine_learns_the_sum_from_who_has_it(racks: Racks) -> None:
    """The result came to l1 only, and the spine is lost with it."""
    first, second = racks.partials(0, 0)
    racks.to_spine("l1", first)
    racks.to_leaf("s1", racks.to_spine("l2", second), "l1")
    assert racks.to_spine("l2", second, "s2") == []
    ((port, question),) = tree(racks.to_spine("l2", second, "s2"))
    assert (port, question.kind) == (1, Kind.ASK)
    ((up, answer),) = tree(racks.come("l1", UP2, question))
    assert (up, answer.kind, lanes(answer)) == (UP2, Kind.RESULT, {111})
    results = racks.come("s2", 1, answer)
    assert [port for port, _ in results] == [1, 2]
    assert racks.to_leaf("s2", results, "l1") == []  # it has it
    ((_, arrived),) = host(racks.to_leaf("s2", results, "l2"))
    assert (arrived.bth.psn, lanes(arrived)) == (racks.psn(1, 0, 0), {111})
    assert racks.counted("l1")["duplicate"] == 1
    assert racks.counted("s2") == {"aggregated": 1, "asked": 1, "results": 1}


def test_the_sum_of_all_claims_a_slot_of_a_spine_that_knows_nothing(racks: Racks) -> None:
    """Check that a flow of which no leaf has told a PSN is not emitted; its sender asks for it."""
    first, second = racks.partials(0, 0)
    racks.to_spine("l1", first)
    racks.to_leaf("s1", racks.to_spine("l2", second), "l1")
    question = replace(tree(second)[0][1], kind=Kind.ASK)
    ((_, answer),) = tree(racks.come("l1", UP2, question))
    assert [packet.flags for _, packet in tree(racks.come("s2", 1, answer))] == [0, TreeFlags.PSN_VALID]
    ((port, again),) = tree(racks.to_spine("l2", second, "s2"))
    assert (port, again.kind, lanes(again)) == (2, Kind.RESULT, {111})
    assert racks.counted("s2") == {"results": 1, "replayed": 1}


def test_what_is_no_partial_is_dropped_and_counted(racks: Racks) -> None:
    ((_, packet),) = tree(racks.send(2, 0, 0))
    kinds = [replace(packet, kind=kind) for kind in (Kind.ASK, 6)]
    numbers = [replace(packet, op=Op.PASS), replace(packet, index=2), replace(packet, message=2**31)]
    for wrong in (*kinds, *numbers, replace(packet, payload=b"")):
        assert racks.come("s1", 2, wrong) == []
    assert racks.counted("s1") == {"unplaced": 6}


def test_tree_packets_of_nobody_or_from_a_host_or_cut_are_dropped_and_counted(racks: Racks) -> None:
    ((_, frame),) = racks.send(2, 0, 0)
    packet = tree([(0, frame)])[0][1]
    damaged = bytearray(frame)
    damaged[70] ^= 1
    nobodys = [replace(packet, generation=8), replace(packet, version=2)]
    cut = [frame[:-size] for size in (1, 4, 5)]
    for wrong in [*(packet.build() for packet in nobodys), *cut, bytes(damaged)]:
        assert racks.come("s1", 2, wrong) == []
    assert racks.switches["s1"].port_counters["no_job"] == {2: 5}
    assert racks.counted("s1") == {"bad_icrc": 1}
    assert racks.come("l1", 1, frame) == []
    assert racks.switches["l1"].port_counters["no_job"] == {1: 1}


def test_both_ends_of_a_flow_between_racks_pass_through_the_other_leaf(racks: Racks) -> None:
    """Data of rank 1 at l2, and what rank 2 says to it."""
    passed = racks.packet(1, 0, 0, op=Op.PASS)
    for port in (UP1, UP2):
        ((to, _),) = racks.come("l2", port, passed)
        assert to == 1
    assert len(racks.ack(1, racks.psn(1, 0, 0))) == 1
    assert racks.counted("l1") == {"acks": 1}
    assert racks.counted("l2") == {}
    assert racks.come("l1", 2, racks.packet(2, 0, 0)) == []  # the flow enters by uplinks alone
    assert racks.counted("l1") == {"acks": 1, "foreign": 1}


def test_the_ways_between_racks_are_shared_by_connection(racks: Racks) -> None:
    packet = racks.packet(0, 0, 0)
    ip, bth = replace(packet.ip, dst=racks.members[2].ip), replace(packet.bth, dest_qp=0x999)
    ports = set()
    for source in range(0xC000, 0xC040):
        other = replace(packet, ip=ip, udp=replace(packet.udp, src_port=source), bth=bth)
        once, again = racks.come("l1", 1, other), racks.come("l1", 1, other)
        assert once == again
        ports.add(once[0][0])
    assert ports == {UP1, UP2}


# RNR NAKs


@pytest.mark.parametrize("acknowledged", [False, True])
def test_any_duplicate_of_a_whole_rack_goes_up_again(acknowledged: bool) -> None:
    """Check duplicates behind the awaited packet and ahead; their receiver may have a sum this leaf lacks.

    Behind: the ACK was lost after the leaf. Ahead: it was lost before, and the awaited one cannot be placed.
    """
    racks = Racks(frozenset({2}))
    racks.send(2, 0, 0, 5)
    racks.send(2, 0, 1, 5)
    if acknowledged:
        racks.ack(2, racks.psn(2, 0, 1))
    index = 0 if acknowledged else 1
    ((port, again),) = tree(racks.send(2, 0, index, 5))
    assert (port, again.kind) == (UP1, Kind.PARTIAL)
    assert "not_ready" not in racks.counted("l2")


def test_without_an_uplink_the_awaited_packet_is_still_answered() -> None:
    racks = Racks(frozenset({2}))
    uplinks = [e for e in racks.entries["l2"] if getattr(e, "table", "") == "SwitchIngress.up.uplink"]
    racks.switches["l2"].write(delete=uplinks)
    assert racks.send(2, 0, 0, 5) == []
    ((port, answer),) = host(racks.send(2, 0, 0, 5))
    assert (port, answer.aeth is not None) == (1, True)
    assert racks.counted("l2") == {"aggregated": 1, "not_ready": 1, "partials": 2, "no_uplink": 2}


# What would be a wrong sum


def test_a_leaf_never_tells_the_psn_of_a_newer_message(racks: Racks) -> None:
    """The First of message 2 has taken message 0's place in l1's memory; slot (0, 1) is as it was.

    l2 lacks the sum of (0, 1), which its worker has got; all have begun message 2.
    """
    racks.reduce(0, 0)
    first, second = racks.partials(0, 1)
    racks.to_spine("l1", first)
    racks.to_leaf("s1", racks.to_spine("l2", second), "l1")
    for message, index in ((1, 0), (1, 1), (2, 0)):
        racks.reduce(message, index)
    question = replace(tree(racks.send(2, 2, 1, 100))[0][1], kind=Kind.ASK, message=0)
    assert racks.come("l1", UP2, question) == []
    assert racks.counted("l1")["late"] == 1


def test_a_spines_psns_are_those_of_the_slots_own_message(racks: Racks) -> None:
    """A partial of message 0 that comes late, to a spine that has nothing of it, is not message 2's."""
    late = racks.send(2, 0, 0, 1) and racks.send(2, 0, 1, 1)
    racks.to_spine("l2", racks.send(2, 2, 0, 100))
    racks.to_spine("l2", late)
    racks.send(0, 2, 0, 1)
    results = tree(racks.to_spine("l1", racks.send(1, 2, 0, 10)))
    assert [packet.psn for _, packet in results] == [racks.psn(2, 2, 0), racks.psn(1, 2, 0)]
