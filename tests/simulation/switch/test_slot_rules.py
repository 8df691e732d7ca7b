"""The oracle itself: one test a rule, in packets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import AggregationHeader, ElementType, Flags, Op
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from simulation.rack import configs, job_of, routes_of
from simulation.switch.slot_rules import SwitchModel
from simulation.switch.state import Flow, Job

Out = list[tuple[int, RocePacket]]
LANES = 64


class Rack:
    """Three workers on ports 1 to 3; packets are written by hand."""

    def __init__(self, *, world_size: int = 3, **options: Any) -> None:
        self.configs = configs(world_size, window=2, packets=4, path_mtu=512, psns=[0xFFFFFE, 100, 200])
        self.job: Job = job_of(self.configs)
        self.routes = routes_of(self.configs)
        self.switch = SwitchModel([self.job], self.routes, flood=[1, 2, 3], **options)

    def psn(self, rank: int, message: int, index: int) -> int:
        """Every message has two packets."""
        return psn_math.add(self.configs[rank].psn_out, 2 * message + index)

    def packet(self, rank: int, message: int, index: int, value: int = 1, **header: Any) -> RocePacket:
        """Packet `index` (0: First, 1: Last) of a message whose lanes all hold `value`."""
        flow: Flow = self.job.flows[rank]
        payload = np.full(2 * LANES if index == 0 else LANES, value, ">i4").tobytes()
        if index == 0:
            fields: dict[str, Any] = {
                "job": self.job.job,
                "generation": self.job.generation,
                "message": message,
                "rank": rank,
                "op": Op.SUM,
                "packets": 2,
                "element_type": ElementType.INT32,
            }
            payload = AggregationHeader(**{**fields, **header}).pack() + payload[4 * LANES :]
        return RocePacket(
            ethernet=Ethernet(dst=flow.dst_mac, src=flow.src_mac),
            ip=IPv4(src=flow.src_ip, dst=flow.dst_ip, total_length=0, identification=message & 0xFFFF),
            udp=Udp(length=0),
            bth=Bth(
                opcode=(Opcode.SEND_FIRST, Opcode.SEND_LAST)[index],
                dest_qp=flow.dst_qp,
                psn=self.psn(rank, message, index),
                ack_req=index == 1,
            ),
            payload=payload,
        )

    def process(self, port: int, packet: RocePacket) -> Out:
        return [(p, RocePacket.parse(f)) for p, f in self.switch.process(port, packet.build())]

    def send(self, rank: int, message: int, index: int, value: int = 1, **header: Any) -> Out:
        return self.process(rank + 1, self.packet(rank, message, index, value, **header))

    def counted(self) -> dict[str, int]:
        return {name: count for name, count in self.job.counters.items() if count}


@pytest.fixture
def rack() -> Rack:
    return Rack()


def lanes(packet: RocePacket) -> set[int]:
    return set(np.frombuffer(packet.payload, ">i4")[-LANES:].tolist())


def test_the_sum_goes_out_on_every_flow_with_that_flows_addresses_and_psns(rack: Rack) -> None:
    assert rack.send(0, 0, 0, 1) == []
    assert rack.send(1, 0, 0, 10) == []
    results = rack.send(2, 0, 0, 100)
    assert [port for port, _ in results] == [2, 3, 1]
    for rank, (_, packet) in enumerate(results):
        flow = rack.job.flows[rank]
        assert packet.icrc_ok()
        assert (packet.ethernet.src, packet.ethernet.dst) == (flow.src_mac, flow.dst_mac)
        assert (packet.ip.src, packet.ip.dst, packet.ip.ttl) == (flow.src_ip, flow.dst_ip, 63)
        assert (packet.bth.dest_qp, packet.bth.psn) == (flow.dst_qp, rack.psn(rank, 0, 0))
        header = AggregationHeader.unpack(packet.payload)
        assert (header.rank, header.flags) == (rank, Flags.RESULT)
        assert lanes(packet) == {111}
    assert rack.counted() == {"aggregated": 3, "completed": 1}


def test_psns_wrap_at_24_bits_within_a_message(rack: Rack) -> None:
    for rank in range(3):
        rack.send(rank, 0, 0)
        rack.send(rank, 1, 0)
    results = [rack.send(rank, 1, 1, 5) for rank in range(3)][-1]
    assert [p.bth.psn for _, p in results] == [1, 103, 203]
    assert all(lanes(p) == {15} and p.bth.ack_req for _, p in results)


def test_a_duplicate_before_the_sum_is_dropped_and_never_added(rack: Rack) -> None:
    rack.send(0, 0, 0)
    assert rack.send(0, 0, 0) == []
    rack.send(1, 0, 0)
    (_, packet), *_ = rack.send(2, 0, 0)
    assert lanes(packet) == {3}
    assert rack.counted() == {"aggregated": 3, "completed": 1, "duplicate": 1}


def test_a_duplicate_after_the_sum_is_answered_on_its_own_flow_alone(rack: Rack) -> None:
    first = [rack.send(rank, 0, 0) for rank in range(3)][-1]
    ((port, again),) = rack.send(1, 0, 0)
    route = rack.routes[again.ip.dst]
    assert again.ethernet == Ethernet(dst=route.dst_mac, src=route.src_mac)  # it took the ordinary way
    assert (port, replace(again, ethernet=first[1][1].ethernet)) == first[1]
    assert rack.counted() == {"aggregated": 3, "completed": 1, "replayed": 1}


def test_a_packet_of_an_older_message_than_the_slots_goes_on_to_the_receiver(rack: Rack) -> None:
    for message in range(4):
        for rank in range(3):
            rack.send(rank, message, 0)
    rack.send(1, 4, 0)  # rank 0 is late: it resends message 0, whose slot is message 4's now
    ((port, packet),) = rack.send(0, 0, 0, 9)
    assert (port, lanes(packet), packet.ip.ttl) == (2, {9}, 63)
    assert rack.counted() == {"aggregated": 13, "completed": 4, "stale": 1}


def test_a_new_message_claims_the_slot_with_only_its_own_sum(rack: Rack) -> None:
    for message in range(5):
        results = [rack.send(rank, message, 0, message + 1) for rank in range(3)][-1]
    assert lanes(results[0][1]) == {15}


def test_max_is_signed(rack: Rack) -> None:
    results = [rack.send(rank, 0, 0, value, op=Op.MAX) for rank, value in enumerate([-5, -3, -4])][-1]
    assert lanes(results[0][1]) == {-3}


def test_a_sum_wraps_like_int32(rack: Rack) -> None:
    results = [rack.send(rank, 0, 0, 2**30) for rank in range(3)][-1]
    assert lanes(results[0][1]) == {3 * 2**30 - 2**32}


def test_ranks_that_disagree_all_learn_of_it_also_on_replays(rack: Rack) -> None:
    rack.send(0, 0, 0)
    rack.send(1, 0, 0, element_type=ElementType.FLOAT32)
    results = rack.send(2, 0, 0) + rack.send(0, 0, 0)
    headers = [AggregationHeader.unpack(packet.payload) for _, packet in results]
    assert [h.flags for h in headers] == [Flags.RESULT | Flags.MISMATCH] * 4
    assert {h.element_type for h in headers} == {ElementType.INT32}
    assert rack.job.counters["mismatch"] == 1


def test_pass_messages_go_through_untouched_but_for_the_ttl(rack: Rack) -> None:
    sent = [rack.packet(0, 0, index, 7, op=Op.PASS) for index in (0, 1)]
    for packet in sent:
        ((port, out),) = rack.process(1, packet)
        assert port == 2
        assert (out.bth, out.payload) == (packet.bth, packet.payload)
        assert out.ip.ttl == 63
        assert out.icrc == packet.build()[-4:]
    assert rack.counted() == {"passed": 2}


@pytest.mark.parametrize(
    "wrong",
    [
        {"job": 9},
        {"generation": 6},
        {"rank": 1},
        {"packets": 0},
        {"packets": 1},
        {"packets": 5},
        {"flags": Flags.RESULT},
    ],
    ids=str,
)
def test_a_header_that_does_not_match_the_flow_is_dropped_and_counted(
    rack: Rack, wrong: dict[str, int]
) -> None:
    packet = rack.packet(0, 0, 0)
    header = replace(AggregationHeader.unpack(packet.payload), **wrong)  # type: ignore[arg-type]
    assert rack.process(1, replace(packet, payload=header.pack() + packet.payload[256:])) == []
    assert rack.send(0, 0, 1) == []
    assert rack.counted() == {"unplaced": 2}


def test_a_packet_whose_first_was_never_seen_is_dropped_never_forwarded(rack: Rack) -> None:
    assert rack.send(0, 0, 1) == []
    assert rack.counted() == {"unplaced": 1}


def test_a_first_that_is_2w_messages_late_is_dropped(rack: Rack) -> None:
    rack.send(0, 4, 0)
    assert rack.send(0, 0, 0) == []
    assert rack.send(0, 1, 0) == []
    assert rack.counted() == {"aggregated": 2, "unplaced": 1}


def test_a_first_sent_again_with_another_psn_is_not_believed(rack: Rack) -> None:
    rack.send(0, 0, 0)
    moved = rack.packet(0, 0, 0)
    assert rack.process(1, replace(moved, bth=replace(moved.bth, psn=77))) == []
    assert rack.counted() == {"aggregated": 1, "unplaced": 1}


@pytest.mark.parametrize("opcode", [Opcode.SEND_MIDDLE, Opcode.SEND_LAST])
def test_only_a_first_is_first_and_only_a_last_is_last(rack: Rack, opcode: Opcode) -> None:
    rack.send(0, 0, 0)
    for index in (0, 1):
        packet = rack.packet(0, 0, index)
        wrong = replace(packet, bth=replace(packet.bth, opcode=opcode))
        placed = index == 1 and opcode is Opcode.SEND_LAST
        assert rack.process(1, wrong) == []
        assert rack.job.counters["aggregated"] == 1 + placed


@pytest.mark.parametrize("cut", [1, 4, 100, 400])
def test_a_truncated_or_padded_packet_on_a_jobs_flow_is_dropped(rack: Rack, cut: int) -> None:
    packet = rack.packet(0, 0, 0)
    assert rack.switch.process(1, packet.build()[:-cut]) == []
    assert rack.process(1, replace(packet, payload=packet.payload[:-4])) == []
    assert rack.process(1, replace(packet, payload=b"")) == []
    assert rack.counted() == {"unplaced": 3}


def test_messages_of_different_shape_are_a_mismatch_that_everybody_hears_of(rack: Rack) -> None:
    """A worker that sends one packet and one that sends more meet in the slot of packet 0."""
    only = rack.packet(1, 0, 0, packets=1)
    only = replace(only, bth=replace(only.bth, opcode=Opcode.SEND_ONLY), payload=only.payload[:256])
    rack.send(0, 0, 0)
    rack.process(2, only)
    results = rack.send(2, 0, 0)
    assert {AggregationHeader.unpack(p.payload).flags for _, p in results} == {Flags.RESULT | Flags.MISMATCH}
    assert rack.job.counters["mismatch"] == 1


def test_a_fragment_of_another_length_than_the_others_is_never_added(rack: Rack) -> None:
    for rank in range(3):
        rack.send(rank, 0, 0)
    rack.send(0, 0, 1)
    longer = rack.packet(1, 0, 1)
    assert rack.process(2, replace(longer, payload=longer.payload * 2)) == []
    assert rack.job.counters["mismatch"] == 1
    assert lanes([rack.send(rank, 0, 1) for rank in (1, 2)][-1][0][1]) == {3}


def test_message_numbers_are_serial_over_32_bits(rack: Rack) -> None:
    """Of a flow, which PASS messages count in: they come round."""
    for message in (2**31 - 1, 2**31, 2**32 - 1, 0, 1):
        for rank in range(3):
            assert len(rack.send(rank, message, 0, op=Op.PASS)) == 1
            assert len(rack.send(rank, message, 1)) == 1
    assert rack.counted() == {"passed": 30}


@pytest.mark.parametrize("op", [Op.SUM, Op.MAX])
def test_aggregated_messages_are_the_first_2_31(rack: Rack, op: Op) -> None:
    """Any two of them compare right, however many PASS messages are between them."""
    for message in (2**31 - 1, 2**31, 2**32 - 9):
        left = [rack.send(rank, message, index, 1, op=op) for index in (0, 1) for rank in range(3)]
        assert [len(out) for out in left] == ([0, 0, 3, 0, 0, 3] if message < 2**31 else [0] * 6)
    assert rack.counted() == {"aggregated": 6, "completed": 2, "unplaced": 12}


def test_a_corrupted_packet_is_dropped_and_counted(rack: Rack) -> None:
    frame = bytearray(rack.packet(0, 0, 0).build())
    frame[-20] ^= 4
    assert rack.switch.process(1, bytes(frame)) == []
    assert rack.counted() == {"bad_icrc": 1}


def test_a_packet_for_a_jobs_qp_from_elsewhere_is_dropped_and_counted(rack: Rack) -> None:
    packet = rack.packet(0, 0, 0)
    assert rack.process(3, packet) == []
    assert rack.process(1, replace(packet, ip=replace(packet.ip, src=rack.job.flows[2].src_ip))) == []
    assert rack.counted() == {"foreign": 2}


def test_other_traffic_is_routed(rack: Rack) -> None:
    packet = rack.packet(0, 0, 0)
    other_qp = replace(packet, bth=replace(packet.bth, dest_qp=0x999))
    ((port, out),) = rack.process(1, other_qp)
    assert (port, out.ip.ttl, out.payload) == (2, 63, packet.payload)
    assert rack.counted() == {}


def test_a_host_sends_as_itself_and_never_as_a_switch(rack: Rack) -> None:
    """By the mark, agents know a sum; by the address, the peers of a ring know each other."""
    packet = rack.packet(0, 0, 0)
    other_qp = replace(packet.bth, dest_qp=0x999)
    for port, sent in (
        (3, replace(packet, bth=other_qp)),
        (1, replace(packet, bth=replace(other_qp, reserved=0x40))),
        (1, replace(packet, bth=replace(other_qp, reserved=0x7F, opcode=0x0A))),
        (1, replace(packet, bth=replace(packet.bth, reserved=0x40))),
    ):
        assert rack.process(port, sent) == []
    assert rack.switch.port_counters["spoofed"] == {3: 1, 1: 3}
    assert rack.counted() == {}
    ((_, out),) = rack.process(1, replace(packet, bth=replace(other_qp, reserved=0x3F)))
    assert out.bth.reserved == 0x3F  # means nothing to a switch, and not that it is a sum


def test_nothing_in_by_an_unnamed_port_leaves(rack: Rack) -> None:
    packet = rack.packet(0, 0, 0)
    arp = b"\xff" * 6 + bytes(6) + b"\x08\x06" + bytes(28)
    other = replace(packet, bth=replace(packet.bth, dest_qp=0x999))
    tcp = bytearray(packet.build())
    tcp[23] = 6
    for frame in (packet.build(), other.build(), arp, bytes(tcp)):
        assert rack.switch.process(7, frame) == []
        assert rack.switch.process(1, frame) != [] or frame == packet.build()
    assert rack.switch.port_counters["unnamed"] == {7: 4}


def test_arp_goes_on_as_in_a_switch_and_dead_packets_are_dropped(rack: Rack) -> None:
    arp = bytes(6) + b"\x08\x06" + bytes(28)
    broadcast, known, unknown_mac = b"\xff" * 6 + arp, b"\2" + bytes(4) + b"\1" + arp, bytes(6) + arp
    rack.switch.mac_ports = {known[:6]: 1}
    assert rack.switch.process(2, broadcast) == [(1, broadcast), (3, broadcast)]
    assert rack.switch.process(2, known) == [(1, known)]
    assert rack.switch.process(2, unknown_mac) == []
    packet = rack.packet(0, 0, 0)
    elsewhere = replace(packet, bth=replace(packet.bth, dest_qp=0x999))
    assert rack.process(1, replace(elsewhere, ip=replace(elsewhere.ip, ttl=1))) == []
    unknown = replace(elsewhere.ip, dst=elsewhere.ip.dst + 100)
    assert rack.process(1, replace(elsewhere, ip=unknown)) == []
    assert not +rack.switch.port_counters["spoofed"]


def test_acknowledgements_pass_through(rack: Rack) -> None:
    flow = rack.job.flows[0]
    ack = RocePacket(
        ethernet=Ethernet(dst=flow.src_mac, src=flow.dst_mac),
        ip=IPv4(src=flow.dst_ip, dst=flow.src_ip, total_length=0),
        udp=Udp(length=0),
        bth=Bth(opcode=Opcode.ACKNOWLEDGE, dest_qp=flow.src_qp, psn=5),
        aeth=Aeth(syndrome=0x1F, msn=1),
    )
    ((port, out),) = rack.process(2, ack)
    assert (port, out.aeth, out.ip.ttl) == (1, ack.aeth, 63)
    assert rack.process(3, ack) == []
    assert rack.process(2, replace(ack, bth=replace(ack.bth, opcode=Opcode.SEND_ONLY), aeth=None)) == []
    assert rack.counted() == {"acks": 1, "foreign": 2}
