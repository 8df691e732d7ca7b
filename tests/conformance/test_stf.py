"""The reader of STF scripts, and how what left is compared with them; without p4c."""

from __future__ import annotations

from pathlib import Path

import pytest

from soft_switch.dataplane import DataPlane
from soft_switch.description import Exact, KeyField, Lpm, Match, Range, TableInfo, Ternary
from tests.conformance import expectations, stf
from tests.conformance.control import Direct
from tests.conformance.player import Mismatch, Player, compare, key_index, key_match
from tests.conformance.stf import Add, Call, CheckCounter, Command, Expect, NoPacket, Packet, SetDefault
from tests.soft_switch.programs import program
from tests.soft_switch.switches import Fence


def test_each_statement() -> None:
    script = """
    # a comment, an empty line

    packet 3 0a 0B0c        # upper and lower case
    expect 4 0a** 0b $
    expect 5
    EXPECT 6 1
    no_packet
    add c.t 100 hdr.a$0.f:0x0a** b:10.1 c.act(x:0x1, y:0b11) = A
    """
    with pytest.raises(stf.StfError, match=r"line 9: .*missing.*10\.1"):
        stf.parse(script)
    assert stf.parse(script.replace("b:10.1", "b:10/8")) == [
        Packet(4, 3, b"\x0a\x0b\x0c"),
        Expect(5, 4, "0a**0b", True),
        Expect(6, 5, None, False),
        Expect(7, 6, "1", False),
        NoPacket(8),
        Add(
            9, "c.t", 100, (("hdr.a$0.f", "0x0a**"), ("b", "10/8")), Call("c.act", (("x", 1), ("y", 3))), "A"
        ),
    ]
    assert stf.parse('setdefault "t.x" a()\ncheck_counter c(7) bytes >= 0x10\ncheck_counter c($A)') == [
        SetDefault(1, "t.x", Call("a", ())),
        CheckCounter(2, "c", 7, "bytes", ">=", 16),
        CheckCounter(3, "c", "$A", "packets", "==", 0),
    ]
    assert stf.parse("mc_node_create 400 6 7\nmeter_set_rates c.m 2 0.000005:4 1:5") == [
        Command(1, "mc_node_create", "", (400, 6, 7)),
        Command(2, "meter_set_rates", "c.m", (2,), ((0.000005, 4), (1.0, 5))),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "jump 3",
        "packet a 00",
        "packet 1 0g",
        "expect 1 00$00",
        "add t a:1",
        "add t a(x:1",
        "add t a(x:0x1*)",
        "remove one",
        "wait (",
        "check_counter c(1) octets == 1",
        "mc_mgrp_create",
    ],
)
def test_what_is_no_stf(line: str) -> None:
    with pytest.raises(stf.StfError, match="line 1"):
        stf.parse(f"{line} ]" if line == "wait (" else line)


KEYS = (
    KeyField("hdr.h.a", "ternary", 16),
    KeyField("hdr.h[0].b", "exact", 8),
    KeyField("meta.c", "lpm", 32),
    KeyField("hdr.u.$valid$", "exact", 1),
    KeyField("meta.d", "range", 16),
)


@pytest.mark.parametrize(
    ("name", "index"),
    [("hdr.h.a", 0), ("a", 0), ("hdr.h$0.b", 1), ("hdr.h[0].b", 1), ("meta.c", 2), ("c", 2), ("hdr.u", 3),
     ("hdr.u.valid", 3), ("valid", 3)],
)  # fmt: skip
def test_names_of_key_fields(name: str, index: int) -> None:
    assert key_index(TableInfo("t", KEYS, 10, (), (), None, False, False), name) == index


@pytest.mark.parametrize(
    ("field", "text", "match"),
    [
        (0, None, Ternary(0, 0)),
        (0, "0x12*4", Ternary(0x1204, 0xFF0F)),
        (0, "0x5", Ternary(5, 0xF)),  # digits that are not there do not matter, as for p4c
        (0, "0b*1", Ternary(1, 1)),
        (0, "5", Ternary(5, 0xFFFF)),
        (1, "0x7", Exact(7)),
        (1, None, Exact(0)),
        (2, None, Lpm(0, 0)),
        (2, "0x0a000000/8", Lpm(0x0A000000, 8)),
        (2, "0x0a01****", Lpm(0x0A010000, 16)),
        (2, "10", Lpm(10, 32)),
        (4, "3", Range(3, 3)),
    ],
)
def test_values_of_key_fields(field: int, text: str | None, match: Match) -> None:
    assert key_match(KEYS[field], text) == match


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("expect 1 0a0b", None),
        ("expect 1 0A*b", None),
        ("expect 1 0a", None),
        ("expect 1 0a $", "expected 0a\\$, 0a0b left"),
        ("expect 1 0a0b00", "0a0b left"),
        ("expect 1 0c", "0a0b left"),
        ("expect 1\nexpect 2", None),
        ("expect 2 00", "the first that is missing"),
        ("packet 1 00", "the first that is too much is 0a0b"),
        ("expect 2", None),  # nothing is said about port 1
        ("no_packet", "no packet was expected"),
    ],
)
def test_what_left_is_compared(script: str, complaint: str | None) -> None:
    statements = stf.parse(script)
    if complaint is None:
        compare({1: [b"\x0a\x0b"]}, statements)
    else:
        with pytest.raises(Mismatch, match=complaint):
            compare({1: [b"\x0a\x0b"]}, statements)


def test_a_script_is_played() -> None:
    """A route and a neighbour send a packet to a port; counters, default actions and `remove all` follow."""
    frame = Fence().frame(3).hex()
    script = f"""
    add RouterIngress.routes hdr.ipv4.dst:0x0a6300**  RouterIngress.to_host(port:3) = A
    add neighbours meta.next_hop:0x0a630003 set_dst(mac:0x020304050607)
    check_counter routed($A) packets == 0
    packet 1 {frame}
    expect 3 020304050607 ************ 0800 4500
    check_counter routed($A) packets == 1
    check_counter routed($A) bytes == {len(frame) // 2 + 4}
    remove all
    packet 1 {frame}
    setdefault routes to_host(port:2)
    setdefault neighbours set_dst(mac:0x02030405060a)
    packet 1 {frame}
    expect 2 02030405060a
    """
    with DataPlane() as plane:
        plane.load(program("l3"))
        assert plane.program is not None
        player = Player(plane.program, Direct(plane), plane.process)
        player.play(stf.parse(script))
        with pytest.raises(Mismatch, match="no table is called nowhere"):
            player.play(stf.parse("setdefault nowhere a()"))


def test_known_failures_are_those_of_the_table(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        f"| `no` | other table |\n\n{expectations.HEADING}\n\n| sample | reason |\n| --- | --- |\n"
        "| `a-bmv2` | because |\n\n## Next\n| `b` | no |\n"
    )
    assert expectations.known_failures(document) == {"a-bmv2": "because"}
