"""Rules by themselves: which frames they mean, how often they strike, what becomes of what they strike."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from soft_switch.errors import FaultError
from soft_switch.faults import FaultKind, FaultRule, Packets, PortFaults
from tests.soft_switch.fault_frames import (
    ACK,
    ASK,
    ECHO,
    ETHERNET,
    FIRST,
    LAST,
    MIDDLE,
    NAK,
    ONLY,
    PARTIAL,
    RNR,
    TREE_RESULT,
    acknowledge,
    message,
    roce,
    tcp,
    tree,
)

MS = 1000
FRAMES = {
    "first": roce(FIRST, 1, bytes(256)),
    "middle": roce(MIDDLE, 1, bytes(256)),
    "last": roce(LAST, 1, bytes(256), options=bytes(8)),
    "only": roce(ONLY, 1, bytes(256)),
    "result": roce(MIDDLE, 1, bytes(256), summed=True),
    "ack": acknowledge(ACK, 1),
    "rnr": acknowledge(RNR, 1),
    "nak": acknowledge(NAK, 1),
    "cnp": roce(0x81, 0, bytes(16)),
    "partial": tree(PARTIAL, 5),
    "tree-result": tree(TREE_RESULT, 5),
    "ask": tree(ASK, 5),
    "echo": tree(ECHO, 5),
    "tcp": tcp(),
    "arp": bytes(12) + b"\x08\x06" + bytes(28),
    "cut": roce(FIRST, 1, bytes(256))[:50],
    "tagged": (lambda frame: frame[:12] + b"\x81\x00\x00\x05" + frame[12:])(roce(LAST, 1)),
}
SENDS = {"first", "middle", "last", "only", "result", "tagged"}
ACKNOWLEDGES = {"ack", "rnr", "nak"}
TREE = {"partial", "tree-result", "ask", "echo"}
MEANT = {
    Packets.ANY: set(FRAMES),
    Packets.ROCE: SENDS | ACKNOWLEDGES | {"cnp"},
    Packets.SEND: SENDS,
    Packets.FIRST: {"first"},
    Packets.MIDDLE: {"middle", "result"},
    Packets.LAST: {"last", "tagged"},
    Packets.ONLY: {"only"},
    Packets.ACK: {"ack"},
    Packets.NAK: {"nak"},
    Packets.RNR: {"rnr"},
    Packets.RESULT: {"result"},
    Packets.TREE: TREE,
    Packets.PARTIAL: {"partial"},
    Packets.TREE_RESULT: {"tree-result"},
    Packets.ASK: {"ask"},
    Packets.TCP: {"tcp"},
}


@pytest.fixture
def port() -> Iterator[PortFaults]:
    with PortFaults() as made:
        yield made


def numbered(count: int) -> list[bytes]:
    return [ETHERNET + number.to_bytes(4, "big") + bytes(60) for number in range(count)]


def numbers(frames: list[bytes]) -> list[int]:
    return [int.from_bytes(frame[14:18], "big") for frame in frames]


def passing(port: PortFaults, frames: list[bytes], *, every_us: int = 0) -> list[int]:
    """Return the numbers of those that go on, in order, at times that are `every_us` apart."""
    out: list[bytes] = []
    for at, frame in enumerate(frames):
        out += [held for _, held in port.release(now_us=at * every_us)]
        out += port.pass_("in", frame, now_us=at * every_us)
    return numbers(out)


@pytest.mark.parametrize("packets", list(Packets), ids=lambda packets: packets.value)
def test_which_frames_a_rule_means(port: PortFaults, packets: Packets) -> None:
    port.add("out", FaultRule(kind=FaultKind.LOSS, packets=packets))
    lost = {name for name, frame in FRAMES.items() if not port.pass_("out", frame, now_us=0)}
    assert lost == MEANT[packets]
    for frame in FRAMES.values():
        assert port.pass_("in", frame, now_us=0) == [frame], "a rule is of one direction"


def test_frames_of_any_bytes_are_read_within_their_length(port: PortFaults) -> None:
    port.add("in", FaultRule(kind=FaultKind.LOSS, packets=Packets.FIRST, message=1))
    chance = random.Random(1)
    for _ in range(3000):
        frame = bytearray(chance.choice(list(FRAMES.values())))
        for _ in range(chance.randrange(4)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        del frame[chance.randrange(len(frame) + 1) :]
        port.pass_("in", bytes(frame), now_us=0)


def test_packets_belong_to_the_message_that_their_first_names(port: PortFaults) -> None:
    number = port.add("in", FaultRule(kind=FaultKind.LOSS, message=8))
    frames = {
        m: message(m, 0xFFFFF8 + 4 * (m - 7), packets=4) for m in range(7, 10)
    }  # the PSN wraps in message 8's middle
    for m in (7, 8, 9):
        for frame in frames[m]:
            assert bool(port.pass_("in", frame, now_us=0)) == (m != 8)
    assert port.struck("in")[number] == (4, 4)
    # Sent again from the middle of an older message, as go-back-N does.
    assert port.pass_("in", frames[7][2], now_us=0)
    assert not port.pass_("in", frames[8][2], now_us=0)
    # The same PSNs on other connections are no such message.
    for source, destination, source_port in ((9, 2, 0xC001), (1, 9, 0xC001), (1, 2, 0xC002)):
        where = {"source": source, "destination": destination, "source_port": source_port}
        assert port.pass_("in", message(1, 0xFFFFFD, packets=4, **where)[1], now_us=0)


def test_acknowledgements_belong_to_a_message_too(port: PortFaults) -> None:
    port.add("out", FaultRule(kind=FaultKind.LOSS, packets=Packets.NAK, message=3))
    for frame in message(3, 100, packets=4) + message(4, 104, packets=1):
        assert port.pass_("in", frame, now_us=0)
    assert port.pass_("out", acknowledge(ACK, 102), now_us=0)
    assert not port.pass_("out", acknowledge(NAK, 102), now_us=0)
    assert port.pass_("out", acknowledge(NAK, 104), now_us=0)
    assert port.pass_("out", acknowledge(NAK, 102, source=7), now_us=0)


def test_tree_packets_name_their_message(port: PortFaults) -> None:
    port.add("in", FaultRule(kind=FaultKind.LOSS, packets=Packets.PARTIAL, message=0xFFFFFFFF))
    assert not port.pass_("in", tree(PARTIAL, 0xFFFFFFFF), now_us=0)
    assert port.pass_("in", tree(PARTIAL, 0), now_us=0)
    assert port.pass_("in", tree(ASK, 0xFFFFFFFF), now_us=0)


def test_psn_and_qpn(port: PortFaults) -> None:
    port.add("in", FaultRule(kind=FaultKind.LOSS, psn=0xFFFFFF, qpn=0x200))
    assert not port.pass_("in", roce(MIDDLE, -1), now_us=0)
    assert port.pass_("in", roce(MIDDLE, -2), now_us=0)
    assert port.pass_("in", roce(MIDDLE, -1, qpn=0x201), now_us=0)
    assert port.pass_("in", tcp(), now_us=0)


def test_skip_and_count(port: PortFaults) -> None:
    number = port.add("in", FaultRule(kind=FaultKind.LOSS, skip=3, count=2))
    assert passing(port, numbered(8)) == [0, 1, 2, 5, 6, 7]
    assert port.struck("in") == {number: (8, 2)}
    port.remove("in", number)
    with pytest.raises(FaultError, match="there is no fault 1"):
        port.remove("in", number)


@pytest.mark.parametrize("kind", list(FaultKind), ids=lambda kind: kind.value)
def test_the_seed_decides_all_chance(kind: FaultKind) -> None:
    """The same frames in the same order meet the same fate, whatever else the port has."""

    def fate(seed: int, *, beside: bool) -> list[bytes]:
        with PortFaults() as port:
            if beside:
                port.add("in", FaultRule(kind=FaultKind.LOSS, packets=Packets.TCP, probability=0.5))
                port.add("out", FaultRule(kind=FaultKind.LOSS, probability=0.5))
            delay_ms = 0 if kind in (FaultKind.LOSS, FaultKind.CORRUPT) else 4
            rule = FaultRule(kind=kind, probability=0.3, seed=seed, delay_ms=delay_ms)
            number = port.add("in", rule)
            out: list[bytes] = []
            for at, frame in enumerate(numbered(1000)):
                out += port.pass_("in", frame, now_us=at * MS)
                port.pass_("out", frame, now_us=at * MS)
                out += [late for _, late in port.release(now_us=at * MS)]
            matched, struck = port.struck("in")[number]
            assert matched == 1000
            assert 200 < struck < 400
            return out

    assert fate(1, beside=False) == fate(1, beside=True) != fate(2, beside=False)


def test_lost(port: PortFaults) -> None:
    port.add("in", FaultRule(kind=FaultKind.LOSS, probability=0.25, seed=5))
    assert 650 < len(passing(port, numbered(1000))) < 850


def test_doubled_at_once_and_later(port: PortFaults) -> None:
    port.add("in", FaultRule(kind=FaultKind.DUPLICATE, count=1))
    assert passing(port, numbered(3)) == [0, 0, 1, 2]
    stale = FaultRule(kind=FaultKind.DUPLICATE, count=1, copies=2, delay_ms=2)
    port.add("in", stale)
    assert passing(port, numbered(6), every_us=MS) == [0, 1, 0, 2, 3, 0, 4, 5]
    assert port.due_us is None


def test_overtaken_by_the_next(port: PortFaults) -> None:
    port.add("in", FaultRule(kind=FaultKind.REORDER, skip=1, count=2))
    assert passing(port, numbered(5)) == [0, 3, 1, 2, 4]
    port.add("in", FaultRule(kind=FaultKind.REORDER))
    assert passing(port, numbered(1)) == []
    assert port.due_us is not None, "nobody overtakes it: it goes on after a while"
    assert [frame for _, frame in port.release(now_us=port.due_us)] == numbered(1)


def test_overtaken_for_a_time(port: PortFaults) -> None:
    port.add("in", FaultRule(kind=FaultKind.REORDER, delay_ms=3, count=1))
    assert passing(port, numbered(6), every_us=MS) == [1, 2, 0, 3, 4, 5]


def test_delayed_frames_keep_their_order(port: PortFaults) -> None:
    port.add("in", FaultRule(kind=FaultKind.DELAY, delay_ms=3, count=1))
    assert port.pass_("in", numbered(3)[0], now_us=0) == []
    assert port.pass_("in", numbered(3)[1], now_us=MS) == [], "it waits behind the first"
    assert port.due_us == 3 * MS
    assert port.release(now_us=3 * MS - 1) == []
    assert numbers([frame for _, frame in port.release(now_us=3 * MS)]) == [0, 1]
    assert port.pass_("in", numbered(3)[2], now_us=4 * MS) == [numbered(3)[2]]


def test_removed_while_it_holds_frames(port: PortFaults) -> None:
    number = port.add("out", FaultRule(kind=FaultKind.DELAY, delay_ms=1))
    port.pass_("out", numbered(1)[0], now_us=0)
    port.remove("out", number)
    assert port.release(now_us=MS) == [("out", numbered(1)[0])]


def test_a_port_whose_faults_are_over_pays_nothing(port: PortFaults) -> None:
    assert not port.active
    number = port.add("out", FaultRule(kind=FaultKind.REORDER))
    assert port.pass_("out", numbered(2)[0], now_us=0) == []
    port.remove("out", number)
    assert port.active, "it holds a frame"
    assert numbers(port.pass_("out", numbered(2)[1], now_us=0)) == [1, 0]
    assert not port.active
    number = port.add("in", FaultRule(kind=FaultKind.DELAY, delay_ms=1))
    assert port.pass_("in", numbered(1)[0], now_us=0) == []
    port.remove("in", number)
    port.release(now_us=MS)
    assert not port.active


@pytest.mark.parametrize("bits", [1, 7])
def test_damaged_behind_the_ethernet_header(port: PortFaults, bits: int) -> None:
    number = port.add("in", FaultRule(kind=FaultKind.CORRUPT, bits=bits, seed=3))
    frame = FRAMES["first"]
    hit = set()
    for _ in range(2000):
        [damaged] = port.pass_("in", frame, now_us=0)
        assert len(damaged) == len(frame)
        changed = int.from_bytes(damaged, "big") ^ int.from_bytes(frame, "big")
        assert changed.bit_count() == bits
        assert damaged[:14] == frame[:14]
        hit |= {at for at in range(len(frame)) if damaged[at] != frame[at]}
    assert len(hit) > 0.9 * (len(frame) - 14), "headers too"
    assert port.struck("in")[number] == (2000, 2000)
    assert port.pass_("in", frame[:14], now_us=0) == [frame[:14]], "nothing to damage"


def test_rules_follow_one_another(port: PortFaults) -> None:
    """A copy is what the frame was; who is lost is not looked at by later rules."""
    port.add("in", FaultRule(kind=FaultKind.DUPLICATE, skip=1, count=1))
    lost = port.add("in", FaultRule(kind=FaultKind.LOSS, skip=1, count=1))
    last = port.add("in", FaultRule(kind=FaultKind.LOSS, count=1))
    assert passing(port, numbered(4)) == [1, 2, 3]
    assert port.struck("in")[lost] == (4, 1)
    assert port.struck("in")[last] == (3, 1)


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (
            {"kind": "theft"},
            "'theft' is no kind of fault, there are loss, duplicate, reorder, delay, corrupt",
        ),
        ({"kind": "loss", "packets": "lost"}, "'lost' is no kind of packet, there are any, roce, send,"),
        ({"kind": "loss", "probability": 0}, "a probability of 0 is not above 0 and at most 1"),
        ({"kind": "loss", "probability": "1"}, "probability '1' is no number"),
        ({"kind": "loss", "seed": 1.5}, "seed 1.5 is no whole number"),
        ({"kind": "loss", "seed": None}, "seed None is no whole number"),
        ({"kind": "loss", "psn": 1 << 24}, "psn 16777216 is not within 0 and 16777215"),
        ({"kind": "loss", "count": 0}, "count 0 is not within 1"),
        ({"kind": "delay"}, "a delay of 0 ms delays nothing: give delay_ms"),
        ({"kind": "delay", "delay_ms": 1e9}, "a delay of 1e.09 ms is not within 0 and 600000"),
        (
            {"kind": "loss", "copies": 3},
            "copies 3 means nothing to loss: .* of duplicate. Leave --copies out",
        ),
        ({"kind": "delay", "delay_ms": 1, "bits": 2}, "bits 2 means nothing to delay: it is of corrupt"),
        (
            {"kind": "corrupt", "delay_ms": 5},
            "delay_ms 5 means nothing .* delay, reorder, duplicate. Leave --delay-ms",
        ),
        (
            {"kind": "loss", "packets": "tcp", "message": 4},
            "tcp packets have no message, .* leave --message out",
        ),
        ({"kind": "loss", "packets": "tcp", "psn": 4}, "tcp packets have no psn"),
        ({"kind": "loss", "packets": "ask", "qpn": 4}, "ask packets have no qpn"),
        ({"kind": "loss", "colour": 1}, "a fault has no field 'colour'; its fields are bits, copies, count,"),
        ({}, "a fault needs a kind; its fields are"),
        ("loss", "'loss' is no fault: give an object"),
    ],
)
def test_what_cannot_be(rule: object, complaint: str) -> None:
    with pytest.raises(FaultError, match=complaint):
        FaultRule.decode(rule)


def test_as_json_and_back() -> None:
    rule = FaultRule(kind=FaultKind.CORRUPT, packets=Packets.ACK, message=5, bits=3, seed=9)
    assert FaultRule.decode(rule.encode()) == rule
