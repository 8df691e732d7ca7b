"""Leaves and spines of the oracle: one test a rule, in packets; the entries are the controller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from controller.fabric.routes import switch_ip
from host_agent.wire.aggregation import AggregationHeader, ElementType, Flags, Op
from host_agent.wire.headers import Ethernet, IPv4, Opcode, Udp
from simulation.switch.tree_packets import TREE_PORT, Kind, TreeFlags, TreePacket
from tests.simulation.switch.racks import UP1, UP2, Left, Racks, host, lanes, tree


@pytest.fixture
def racks() -> Racks:
    return Racks()


def test_the_last_of_a_rack_sends_its_sum_to_the_messages_spine(racks: Racks) -> None:
    assert racks.send(0, 3, 0, 1) == []
    ((port, packet),) = tree(racks.send(1, 3, 0, 10))
    assert port == UP2
    assert (packet.kind, packet.op, packet.opcode) == (Kind.PARTIAL, Op.SUM, Opcode.SEND_FIRST)
    assert (packet.generation, packet.message, packet.index) == (7, 3, 0)
    assert (packet.flags, packet.psn) == (TreeFlags.PSN_VALID, racks.psn(1, 3, 0))
    assert (packet.ip.src, packet.ip.dst) == (IPv4Address(switch_ip(1)), IPv4Address(switch_ip(102)))
    assert (packet.ip.ttl, packet.udp.src_port, packet.udp.dst_port) == (64, TREE_PORT, TREE_PORT)
    assert lanes(packet) == {11}
    assert racks.counted("l1") == {"aggregated": 2, "partials": 1}


def test_a_rack_of_one_sends_at_once(racks: Racks) -> None:
    ((port, packet),) = tree(racks.send(2, 0, 0, 5))
    assert (port, packet.kind, packet.psn, lanes(packet)) == (UP1, Kind.PARTIAL, racks.psn(2, 0, 0), {5})


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
    assert racks.counted("s1") == {"aggregated": 2, "completed": 1}


def test_a_leaf_emits_the_sum_on_every_flow_whose_receiver_is_there(racks: Racks) -> None:
    left = host(racks.reduce(0, 0))
    expected = [(2, 0), (1, 2), (1, 1)]  # port, flow: at l1 rank 1 and rank 0 receive, at l2 rank 2
    for (port, packet), (to, rank) in zip(left, expected, strict=True):
        me, after = racks.members[rank], racks.members[(rank + 1) % 3]
        assert (port, packet.ip.src, packet.ip.dst) == (to, me.ip, after.ip)
        assert (packet.bth.dest_qp, packet.bth.psn) == (after.qpn_in, racks.psn(rank, 0, 0))
        assert packet.bth.reserved == 0x40
        header = AggregationHeader.unpack(packet.payload)
        assert (header.rank, header.flags) == (rank, Flags.RESULT)
        assert lanes(packet) == {111}
    assert racks.counted("l1") == {"aggregated": 2, "partials": 1, "results": 1}


def test_a_repeated_packet_of_the_flow_that_leaves_is_answered_by_its_own_leaf(racks: Racks) -> None:
    racks.reduce(0, 0)
    ((port, packet),) = host(racks.send(1, 0, 0))
    assert port in (UP1, UP2)
    assert (packet.ip.dst, packet.bth.psn, lanes(packet)) == (
        racks.members[2].ip,
        racks.psn(1, 0, 0),
        {111},
    )
    spine = racks.switches[f"s{port - 100}"]
    ((down, frame),) = spine.process(1, packet.build())
    ((to, arrived),) = host(racks.switches["l2"].process(port, frame))
    assert (down, to) == (2, 1)
    assert arrived.payload == packet.payload
    assert racks.counted("l1")["replayed"] == 1


def test_a_duplicate_before_the_sum_of_all_sends_the_racks_sum_again(racks: Racks) -> None:
    racks.send(0, 0, 0, 1)
    assert racks.send(0, 0, 0, 1) == []  # rank 1 is late
    first = racks.send(1, 0, 0, 10)
    again = racks.send(0, 0, 0, 1)
    assert lanes(tree(again)[0][1]) == lanes(tree(first)[0][1]) == {11}
    assert racks.counted("l1") == {"aggregated": 2, "duplicate": 1, "partials": 2}


def test_a_repeated_partial_asks_those_that_have_not_contributed(racks: Racks) -> None:
    first, _ = racks.partials(0, 0)
    racks.to_spine("l1", first)
    ((port, question),) = tree(racks.to_spine("l1", first))
    assert (port, question.kind) == (2, Kind.ASK)
    assert racks.counted("s1") == {"aggregated": 1, "asked": 1}
    ((back, answer),) = tree(racks.switches["l2"].process(UP1, question.build()))
    assert (back, answer.kind, lanes(answer)) == (UP1, Kind.PARTIAL, {100})
    assert answer.psn == racks.psn(2, 0, 0)


def test_a_leaf_that_is_asked_too_early_or_too_late_says_nothing(racks: Racks) -> None:
    racks.send(0, 0, 0, 1)
    question = tree(racks.send(2, 0, 0, 100))[0][1]
    question = replace(question, kind=Kind.ASK)
    assert racks.switches["l1"].process(UP1, question.build()) == []  # rank 1 has not sent
    assert racks.switches["l1"].process(UP1, replace(question, message=1).build()) == []
    for message in (0, 1, 2):
        racks.reduce(message, 0)
    assert racks.switches["l1"].process(UP1, question.build()) == []
    assert racks.counted("l1")["late"] == 2
    assert racks.counted("l1")["stale"] == 1


def test_another_spine_learns_the_sum_from_who_has_it(racks: Racks) -> None:
    """The result came to l1 only, and the spine is lost with it."""
    first, second = racks.partials(0, 0)
    racks.to_spine("l1", first)
    racks.to_leaf("s1", racks.to_spine("l2", second), "l1")
    assert racks.to_spine("l2", second, "s2") == []
    ((port, question),) = tree(racks.to_spine("l2", second, "s2"))
    assert (port, question.kind) == (1, Kind.ASK)
    ((up, answer),) = tree(racks.switches["l1"].process(UP2, question.build()))
    assert (up, answer.kind, lanes(answer)) == (UP2, Kind.RESULT, {111})
    results = racks.switches["s2"].process(1, answer.build())
    assert [port for port, _ in results] == [1, 2]
    assert racks.to_leaf("s2", results, "l1") == []  # it has it
    ((_, arrived),) = host(racks.to_leaf("s2", results, "l2"))
    assert (arrived.bth.psn, lanes(arrived)) == (racks.psn(1, 0, 0), {111})
    assert racks.counted("l1")["duplicate"] == 1
    assert racks.counted("s2") == {"aggregated": 1, "asked": 1, "results": 1}


def test_the_sum_of_all_claims_a_slot_of_a_spine_that_knows_nothing(racks: Racks) -> None:
    """Only its leaf has told a PSN: the flow out of the other rack is not emitted, and its sender asks."""
    first, second = racks.partials(0, 0)
    racks.to_spine("l1", first)
    results = racks.to_spine("l2", second)
    racks.to_leaf("s1", results, "l1")
    question = replace(tree(second)[0][1], kind=Kind.ASK)
    ((_, answer),) = tree(racks.switches["l1"].process(UP2, question.build()))
    results = racks.switches["s2"].process(1, answer.build())
    assert [packet.flags for _, packet in tree(results)] == [0, TreeFlags.PSN_VALID]
    ((port, again),) = tree(racks.to_spine("l2", second, "s2"))  # 4
    assert (port, again.kind, lanes(again)) == (2, Kind.RESULT, {111})
    assert racks.counted("s2") == {"results": 1, "replayed": 1}


def test_without_a_psn_the_flow_that_enters_is_not_emitted(racks: Racks) -> None:
    first, second = racks.partials(0, 0)
    racks.to_spine("l1", first)
    ((_, result), _) = tree(racks.to_spine("l2", second))
    blind = replace(result, flags=0)
    assert [port for port, _ in racks.switches["l1"].process(UP1, blind.build())] == [2]


def test_a_spine_drops_what_is_older_than_its_slot(racks: Racks) -> None:
    old, _ = racks.partials(0, 0)
    new, _ = racks.partials(2, 0)
    assert new[0][0] == old[0][0]
    racks.to_spine("l1", new)
    assert racks.to_spine("l1", old) == []
    assert racks.counted("s1") == {"aggregated": 1, "stale": 1}


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_ranks_of_different_racks_that_disagree_all_hear_of_it(racks: Racks, wrong: int) -> None:
    left: Left = []
    for rank in range(3):
        kind = ElementType.FLOAT32 if rank == wrong else ElementType.INT32
        left += [(rank, frame) for _, frame in racks.send(rank, 0, 0, element_type=kind)]
    assert racks.switches["s1"].process(1, left[0][1]) == []
    results = racks.switches["s1"].process(2, left[1][1])
    assert all(packet.flags & TreeFlags.MISMATCH for _, packet in tree(results))
    arrived = host(racks.to_leaf("s1", results, "l1") + racks.to_leaf("s1", results, "l2"))
    assert len(arrived) == 3
    for _, packet in arrived:
        assert AggregationHeader.unpack(packet.payload).flags == Flags.RESULT | Flags.MISMATCH
        assert packet.bth.opcode == Opcode.SEND_ONLY
    assert racks.send(2, 0, 1) == []  # nothing else of the message goes on
    assert racks.counted("l2")["mismatch"] == 1


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        (lambda packet: replace(packet, kind=Kind.ASK), "unplaced"),
        (lambda packet: replace(packet, kind=6), "unplaced"),
        (lambda packet: replace(packet, op=Op.PASS), "unplaced"),
        (lambda packet: replace(packet, index=2), "unplaced"),
        (lambda packet: replace(packet, message=2**31), "unplaced"),
        (lambda packet: replace(packet, payload=b""), "unplaced"),
    ],
)
def test_what_is_no_partial_is_dropped_and_counted(
    racks: Racks, change: Callable[[TreePacket], TreePacket], counter: str
) -> None:
    packet = tree(racks.send(2, 0, 0))[0][1]
    assert racks.switches["s1"].process(2, change(packet).build()) == []
    assert racks.counted("s1") == {counter: 1}


def test_tree_packets_of_nobody_or_from_a_host_are_dropped_and_counted(racks: Racks) -> None:
    ((_, frame),) = racks.send(2, 0, 0)
    packet = tree([(0, frame)])[0][1]
    spine = racks.switches["s1"]
    assert spine.process(2, replace(packet, generation=8).build()) == []
    assert spine.process(2, replace(packet, version=2).build()) == []
    assert spine.port_counters["no_job"] == {2: 2}
    damaged = bytearray(frame)
    damaged[70] ^= 1
    assert spine.process(2, bytes(damaged)) == []
    assert racks.counted("s1") == {"bad_icrc": 1}
    leaf = racks.switches["l1"]
    assert leaf.process(1, frame) == []
    assert leaf.port_counters["no_job"] == {1: 1}


def test_nobody_behind_a_leaf_may_send_with_anothers_address(racks: Racks) -> None:
    """Else it could speak for a worker of another rack."""
    packet = racks.packet(2, 0, 0)
    other = replace(packet, bth=replace(packet.bth, dest_qp=0x999))
    assert racks.switches["l1"].process(2, other.build()) == []
    assert racks.switches["l1"].port_counters["spoofed"] == {2: 1}
    assert racks.switches["l1"].process(2, packet.build()) == []  # the flow enters by uplinks alone
    assert racks.counted("l1") == {"foreign": 1}


def test_both_ends_of_a_flow_between_racks_pass_through_the_other_leaf(racks: Racks) -> None:
    """Data of rank 1 at l2, and what rank 2 says to it."""
    passed = racks.packet(1, 0, 0, op=Op.PASS)
    for port in (UP1, UP2):
        ((to, _),) = racks.switches["l2"].process(port, passed.build())
        assert to == 1
    assert len(racks.ack(1, racks.psn(1, 0, 0))) == 1
    assert racks.counted("l1") == {"acks": 1}
    assert racks.counted("l2") == {}


def test_the_ways_between_racks_are_shared_by_connection(racks: Racks) -> None:
    packet = racks.packet(0, 0, 0)
    elsewhere = replace(packet, ip=replace(packet.ip, dst=racks.members[2].ip))
    ports = set()
    for source in range(0xC000, 0xC040):
        udp = replace(packet.udp, src_port=source)
        other = replace(elsewhere, udp=udp, bth=replace(packet.bth, dest_qp=0x999)).build()
        ((port, _),) = racks.switches["l1"].process(1, other)
        assert racks.switches["l1"].process(1, other)[0][0] == port
        ports.add(port)
    assert ports == {UP1, UP2}


# RNR NAKs


def test_the_awaited_packet_goes_up_again_and_is_answered() -> None:
    racks = Racks(frozenset({0}))
    racks.send(0, 0, 0, 1)
    ((port, answer),) = host(racks.send(0, 0, 0, 1))
    assert (port, answer.aeth is not None) == (1, True)  # rank 1 is late: nothing to send up
    racks.send(1, 0, 0, 10)
    left = racks.send(0, 0, 0, 1)
    assert sorted(port for port, _ in left) == [1, UP1]
    assert racks.counted("l1") == {"aggregated": 2, "not_ready": 2, "partials": 2}


@pytest.mark.parametrize("acknowledged", [False, True])
def test_any_duplicate_of_a_whole_rack_goes_up_again(acknowledged: bool) -> None:
    """Behind what is awaited or ahead of it: its receiver may have the sum though this leaf has not.

    Behind: the ACK was lost after the leaf. Ahead: it was lost before, and what is awaited cannot be placed.
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
    racks.switches["l2"].write(
        delete=[e for e in racks.entries["l2"] if getattr(e, "table", "") == "SwitchIngress.up.uplink"]
    )
    assert racks.send(2, 0, 0, 5) == []
    ((port, answer),) = host(racks.send(2, 0, 0, 5))
    assert (port, answer.aeth is not None) == (1, True)
    assert racks.counted("l2") == {"aggregated": 1, "not_ready": 1, "partials": 2, "no_uplink": 2}


# What would be a wrong sum


def stale_leaf(racks: Racks) -> None:
    """l2 lacks the sum of (0, 1), which its worker has got; all have begun message 2."""
    racks.reduce(0, 0)
    first, second = racks.partials(0, 1)
    racks.to_spine("l1", first)
    racks.to_leaf("s1", racks.to_spine("l2", second), "l1")
    racks.reduce(1, 0)
    racks.reduce(1, 1)
    racks.reduce(2, 0)


def test_a_leaf_never_tells_the_psn_of_a_newer_message(racks: Racks) -> None:
    """The First of message 2 has taken message 0's place in l1's memory; slot (0, 1) is as it was."""
    stale_leaf(racks)
    question = tree(racks.send(2, 2, 1, 100))[0][1]
    question = replace(question, kind=Kind.ASK, message=0)
    assert racks.switches["l1"].process(UP2, question.build()) == []
    assert racks.counted("l1")["late"] == 1


def test_a_spines_psns_are_those_of_the_slots_own_message(racks: Racks) -> None:
    """A partial of message 0 that comes late, to a spine that has nothing of it, is not message 2's."""
    late = racks.send(2, 0, 0, 1) and racks.send(2, 0, 1, 1)
    new = racks.send(2, 2, 0, 100)
    racks.to_spine("l2", new)
    racks.to_spine("l2", late)
    racks.send(0, 2, 0, 1)
    results = tree(racks.to_spine("l1", racks.send(1, 2, 0, 10)))
    assert [packet.psn for _, packet in results] == [racks.psn(2, 2, 0), racks.psn(1, 2, 0)]


# Packets


def test_the_icrc_of_a_tree_packet_as_bytes() -> None:
    """The first eight bytes of the header stand for RoCE's eight 0xff, the others for the BTH."""
    packet = TreePacket(
        ethernet=Ethernet(dst=bytes(6), src=bytes(6)),
        ip=IPv4(src=IPv4Address("169.254.0.1"), dst=IPv4Address("169.254.0.101"), total_length=0),
        udp=Udp(length=0, src_port=TREE_PORT, dst_port=TREE_PORT),
        kind=Kind.ECHO_REQUEST,
        message=0x12345678,
    )
    frame = packet.build()
    assert frame[42:62].hex() == "0104000000000000" + "0000000012345678" + "00000000"
    assert len(frame) == 14 + 20 + 8 + 20 + 4
    found = TreePacket.parse(frame)
    assert found is not None
    assert found.icrc_ok()
    routed = bytearray(frame)
    routed[15], routed[22], routed[24] = 0xFF, 3, 0x55  # TOS, TTL, checksum: any router may
    again = TreePacket.parse(bytes(routed))
    assert again is not None
    assert again.icrc_ok()


@pytest.mark.parametrize("cut", [1, 4, 5])
def test_a_tree_packet_without_its_end_is_dropped(racks: Racks, cut: int) -> None:
    ((_, frame),) = racks.send(2, 0, 0)
    spine = racks.switches["s1"]
    assert spine.process(2, frame[:-cut]) == []
    assert spine.port_counters["no_job"] == {2: 1}
    assert racks.counted("s1") == {}
