"""Comparison with BMv2's simple_switch_grpc: same program, entries and packets, equal bytes out."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from host_agent.wire.headers import RocePacket
from soft_switch.dataplane import DataPlane, Exact, Lpm, Match, MeterConfig, Range, Ternary
from tests.p4src.pair import RNR_NAK, Pair, too_early
from tests.p4src.rack import CompiledRack, mac
from tests.soft_switch import bits
from tests.soft_switch.aggregation_frames import NoPlane, p4reduce_frames
from tests.soft_switch.beside_bmv2 import PORTS, BeforeParser, Both, assert_alike
from tests.soft_switch.layouts import FLOW_COMMAND, METERED, SEEN, flow_frame, labels_frame
from tests.soft_switch.layouts import STATE_COMMAND as COMMAND
from tests.soft_switch.programs import p4info, program
from tests.soft_switch.switches import BMV2, Fence, Switch

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.timeout(180),
]

P4REDUCE = Path(__file__).parents[2] / "p4src" / "build"


def l3_entries(switch: Switch, chance: random.Random) -> None:
    insert = switch.insert

    def route(address: int, length: int, action: str, params: Sequence[int]) -> None:
        match = [Lpm(address, length)]
        insert("RouterIngress.routes", match, priority=0, action=f"RouterIngress.{action}", params=params)

    for port in PORTS:
        route(ip(10, 99, 0, port), 32, "to_host", [port])
        route(ip(10, port, 0, 0), 16, "next_hop", [ip(10, 0, 0, port), port])
        for address in (ip(10, 99, 0, port), ip(10, 0, 0, port)):
            insert(
                "RouterIngress.neighbours",
                [Exact(address)],
                priority=0,
                action="RouterIngress.set_dst",
                params=[0x020000000100 + port],
            )
    route(ip(10, 1, 2, 0), 24, "next_hop", [ip(10, 0, 0, 3), 3])
    route(ip(10, 1, 2, 3), 32, "drop", [])
    route(0, 0, "next_hop", [ip(10, 0, 0, 4), 4])
    for priority in range(1, 20):
        match: list[Match] = [
            Ternary(*chance.choice([(0, 0), (ip(10, 1, 0, 0), 0xFFFF0000), (1, 1)])),
            Ternary(*chance.choice([(0, 0), (6, 0xFF), (17, 0xFF)])),
            Range(
                *chance.choice([(20 * priority, 20 * priority + 15), (100, 200), (1 << 15, (1 << 16) - 1)])
            ),
        ]
        action, params = chance.choice([("drop", []), ("mark", [priority])])
        insert(
            "RouterIngress.access", match, priority=priority, action=f"RouterIngress.{action}", params=params
        )
    flood = ("RouterIngress.flood", [7])
    for address in (0xFFFFFFFFFFFF, 0x010203040506):
        insert("RouterIngress.others", [Exact(address)], priority=0, action=flood[0], params=flood[1])
    switch.multicast_set(7, [(port, port) for port in PORTS])


def ip(*parts: int) -> int:
    return int.from_bytes(bytes(parts), "big")


def checksum(head: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(head) // 2}H", head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def l3_frame(chance: random.Random) -> bytes:
    """Draw a mostly good frame, often with one fault: checksum, version, header length, TTL, cut anywhere."""
    dst = chance.choice([0x020000000001, 0xFFFFFFFFFFFF, 0x010203040506, 0x0A0B0C0D0E0F])
    ethernet = dst.to_bytes(6, "big") + bytes.fromhex("020000000099")
    if chance.random() < 0.15:
        return ethernet + struct.pack(">H", chance.choice([0x0806, 0x1234, 0x0800])) + chance.randbytes(40)
    if chance.random() < 0.2:
        ethernet += struct.pack(">HH", 0x8100, chance.getrandbits(16))
    version, ihl = chance.choice([4] * 8 + [6]), chance.choice([5] * 8 + [6, 0, 15])
    to = ip(10, chance.choice([1, 1, 2, 3, 4, 5]), chance.choice([0, 2]), chance.choice([3, 4, 250]))
    head = struct.pack(
        ">BBHHHBBHII",
        version << 4 | ihl,
        chance.getrandbits(8),
        chance.getrandbits(16),
        chance.getrandbits(16),
        chance.choice([0, 0, 0x4000, 5]),
        chance.choice([64, 64, 64, 2, 1, 0, 255]),
        chance.choice([6, 17, 17, 1]),
        0,
        chance.choice([ip(10, 1, 7, 7), ip(10, 2, 1, 1), chance.getrandbits(32)]),
        to,
    )
    wrong = chance.choice([0] * 6 + [1])
    head = head[:10] + struct.pack(">H", checksum(head) ^ wrong) + head[12:]
    ports = struct.pack(">HH", chance.getrandbits(16), chance.choice([25, 45, 100, 150, 1 << 15, 65535]))
    frame = ethernet + b"\x08\x00" + head + ports + chance.randbytes(chance.choice([0, 1, 20, 700, 3000]))
    return frame[: chance.randint(14, len(frame))] if chance.random() < 0.2 else frame


def test_router(both: Both) -> None:
    chance = random.Random(1)
    for switch in both[0]:
        switch.push(program("l3"), p4info("l3"))
        l3_entries(switch, random.Random(2))
    frames = [(chance.choice(PORTS), l3_frame(chance)) for _ in range(1500)]
    frames.sort(key=lambda item: item[0])  # so that there are batches
    left = assert_alike(both, frames, batch=10)
    assert all(len(frames) > 30 for frames in left.values())


def test_parser(both: Both) -> None:
    """`stacks.p4` sends everything to port 1, with what its parser found."""
    for switch in both[0]:
        switch.push(program("stacks"), p4info("stacks"))
    for bench in both[1]:
        bench.fence = BeforeParser(bytes([2, 0]))
        bench.targets = [1]
    chance, frames = random.Random(3), []
    for number in range(600):
        frame = labels_frame(chance)
        if number % 2:
            kind = chance.choice([0, 1, 2, 9, 10, 0x40, 0x7F, 0x80, 0xFC, 0xFD, 0xFF, chance.getrandbits(8)])
            frame = bytes([kind, chance.choice([0, 1, 3, 4, 5, 7, 15, 16, 127, 128, 255])])
        frame += chance.randbytes(chance.randrange(1, 12))
        frames.append((1, frame if len(frame) >= 14 else frame + chance.randbytes(14 - len(frame))))
    left = assert_alike(both, frames, batch=10)
    assert len(left[1]) == len(frames)


def test_state(both: Both) -> None:
    """Registers, hashes and replicas; not `random`, and not a failing assert, which ends BMv2."""
    for switch in both[0]:
        switch.push(program("state"), p4info("state"))
        switch.multicast_set(5, [(1, 1), (2, 2), (3, 3), (4, 4)])  # the order of two on one port is open
    for bench in both[1]:
        bench.fence = BeforeParser(bytes(bits.size(COMMAND)))  # op 0 goes to port 4
        bench.fence.port = 4
        bench.targets = [4]
    chance, frames = random.Random(4), []
    for _ in range(900):
        command = {
            "op": chance.choice([0, 1, 2, 3, 4, 5, 6, 8, 8, 9, 10, 11, 12, 13, 14]),
            "index": chance.choice([0, 1, 3, 4, 5, 5, 7, 8, 20, 63, 64, 300, chance.getrandbits(32)]),
            "value": chance.getrandbits(32),
            "wide": chance.getrandbits(2048),
        }
        frame = bits.pack(COMMAND, command) + chance.randbytes(chance.randrange(60))
        short = command["op"] != 10 and chance.random() < 0.1
        frames.append((1, frame[: chance.randrange(14, len(frame))] if short else frame))
    left = assert_alike(both, frames, batch=5)
    assert len(left[4]) > 300
    assert all(len(left[port]) > 10 for port in (1, 2, 4))
    assert not left[3]  # instance 3 is dropped in egress


class FlowFence(Fence):
    """Fence for `flow.p4`: a command that asks for nothing but a port."""

    def frame(self, port: int) -> bytes:
        return flow_frame(port=port)


def flow_command(chance: random.Random) -> dict[str, int]:
    """Draw much at once, with sessions and groups that are there or not; no more than BMv2's queues hold."""
    ways = [1 << bit for bit in range(8)]
    ingress_op = sum(way for way in ways if chance.random() < 0.25)
    egress_op = sum(way for way in ways[:-1] if chance.random() < 0.25)
    if egress_op & 4 and (egress_op | ingress_op) & 3:  # clones go round too
        ingress_op &= ~0x14
    return {
        "ingress_op": ingress_op,
        "egress_op": egress_op | (0x80 if chance.random() < 0.05 else 0),
        "rounds": chance.choice([0, 0, 1, 1]) if (egress_op | ingress_op) & 3 else chance.randrange(5),
        "port": chance.choice([*PORTS, 255, 77]),
        "session": chance.choice([0, 5, 5, 6, 9, 5 | 0x8000]),
        "group": chance.choice([0, 1, 2, 77]),
        "length": chance.choice([20, 60, 100, 150, 1000]),
        "value": chance.getrandbits(20) + 1,
    }


def without_queue(frame: bytes) -> bytes:
    """Return a frame of `flow.p4` but for the byte that says whether BMv2's queues were empty."""
    at = bits.size(FLOW_COMMAND) + bits.size(SEEN) - 2
    return frame[:at] + frame[at + 1 :]


def test_flow(both: Both) -> None:
    """Clones, resubmitted and recirculated packets, replicas; what leaves first on a port is open."""
    for switch in both[0]:
        switch.push(program("flow"), p4info("flow"))
        switch.clone_set(5, [(2, 20), (3, 30)])
        switch.clone_set(6, [(4, 41), (4, 42)])
        switch.multicast_set(1, [(1, 11), (3, 33)])
        switch.multicast_set(2, [(2, 2)])
    for bench in both[1]:
        bench.fence = FlowFence()
    chance = random.Random(6)
    commands = [flow_command(chance) for _ in range(1500)]
    ports = [chance.choice(PORTS) for _ in commands]
    frames = [
        (port, flow_frame(**command) + bytes([number & 0xFF]) * chance.randrange(200))
        for number, (port, command) in enumerate(zip(ports, commands, strict=True))
    ]
    lefts = []
    for bench in both[1]:
        left = bench.play(frames, batch=1)
        for _ in range(30):  # a fence can overtake a packet that goes round
            for port, more in bench.play([], batch=1).items():
                left[port] += more
        lefts.append({port: sorted(map(without_queue, left[port])) for port in PORTS})
    for port in PORTS:
        assert len(lefts[0][port]) > 150
        assert [frame.hex() for frame in lefts[0][port]] == [frame.hex() for frame in lefts[1][port]]
    counters = both[0][0].counters()
    assert counters == both[0][1].counters()
    assert sum(packets > 0 for packets, _ in counters["TestEgress.left"]) == 4
    assert sum(packets > 0 for packets, _ in counters["TestIngress.entered"]) == 3


def test_meters(both: Both) -> None:
    """Buckets that are never filled again, so that colors do not depend on the time."""
    chance = random.Random(7)
    rows = [(name, index) for name in ("by_packets", "by_bytes") for index in range(0, 8, 2)]
    sizes = [chance.randrange(2, 20) * (1 if name == "by_packets" else 70) for name, _ in rows]
    for switch in both[0]:
        switch.push(program("meters"), p4info("meters"))
        for kind, action in enumerate(("metered", "reset_color", "metered")):
            insert = ("TestIngress.entries", [Exact(kind)])
            switch.insert(*insert, priority=0, action=f"TestIngress.{action}", params=[])
            if kind < 2:
                switch.direct_meter_write(*insert, MeterConfig(cir=0, cburst=2000, pir=0, pburst=3000))
        for (name, index), size in zip(rows, sizes, strict=True):
            config = MeterConfig(cir=0, cburst=size, pir=0, pburst=size + size // 2)
            switch.meter_write(f"TestIngress.{name}", index, config)
    for bench in both[1]:
        bench.fence = BeforeParser(bits.pack(METERED, {"kind": 9, "index": 99}) + bytes(8))
        bench.targets = [1]
    frames = [
        (1, bits.pack(METERED, {"kind": chance.randrange(5), "index": chance.randrange(10)}) + bytes(size))
        for size in (chance.randrange(5, 120) for _ in range(400))
    ]
    left = assert_alike(both, frames, batch=5)
    seen = [bits.unpack(METERED, frame) for frame in left[1]]
    for name in ("packets_color", "bytes_color", "entry_color"):
        assert {0, 1, 2} <= {item[name] for item in seen}


def install_aggregation(switches: Sequence[Switch], pair: Pair) -> None:
    """Install the program, and the pair's job."""
    for switch in switches:
        switch.push(
            (P4REDUCE / "p4reduce.json").read_bytes(), (P4REDUCE / "p4reduce.p4info.txtpb").read_text()
        )
        rack = CompiledRack.__new__(CompiledRack)
        rack.plane, rack.handles = cast(DataPlane, switch), []
        rack.install(pair.job, 0, check_icrc=True)
        for flow in pair.job.flows:
            rack.insert(
                "SwitchIngress.forward.route",
                [Lpm(int(flow.dst_ip), 32)],
                "SwitchIngress.forward.next_hop",
                [flow.dst_port, 5, mac(flow.dst_mac)],
            )
        senders = {flow.port: int(flow.src_ip) for flow in pair.job.flows}
        for port in PORTS:
            rack.name_host(port, senders.get(port, ip(10, 99, 0, port)))
            rack.insert(
                "SwitchIngress.forward.route",
                [Lpm(ip(10, 99, 0, port), 32)],
                "SwitchIngress.forward.next_hop",
                [port, 1, 2],
            )


def test_an_rnr_nak_to_the_byte(both: Both) -> None:
    pair = Pair(cast(CompiledRack, NoPlane()), world_size=3, window=2, check_icrc=True, rnr_ranks=0b011)
    install_aggregation(both[0], pair)
    assert assert_alike(both, too_early(pair)) == {1: [RNR_NAK], 2: [], 3: [], 4: []}


def test_aggregation(both: Both) -> None:
    pair = Pair(cast(CompiledRack, NoPlane()), world_size=4, window=4, check_icrc=True, rnr_ranks=0b0111)
    install_aggregation(both[0], pair)
    frames = list(p4reduce_frames(pair, random.Random(5), 900))
    left = assert_alike(both, frames, batch=8)
    assert sum(len(frames) for frames in left.values()) > 500
    counters = both[0][0].counters()
    for name in ("completed", "duplicate", "not_ready", "replayed"):
        assert sum(packets for packets, _ in counters[f"SwitchIngress.slots.{name}"]) > 0
    answers = [frame for port in PORTS for frame in left[port] if len(frame) == 62 and frame[54] >> 5 == 1]
    mine = [frame for frame in answers if RocePacket.parse(frame).ip.ttl == 64]
    assert len(mine) == sum(packets for packets, _ in counters["SwitchIngress.slots.not_ready"])
    assert all(RocePacket.parse(frame).icrc_ok() for frame in mine)
