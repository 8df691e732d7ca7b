"""Entries from a file: simple_switch_CLI's commands, and what is said of those that are wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from soft_switch.commands import CommandError, number, run_commands
from soft_switch.dataplane import DataPlane
from soft_switch.errors import ProgramError
from soft_switch.p4c import read_program_file
from tests.p4c import P4C, WITHOUT_P4C, assert_is_made_of_its_source
from tests.soft_switch.conftest import PlaneFactory
from tests.soft_switch.switches import Fence

ROUTER = """
# A route, its neighbour, and a group for what is no IPv4.
table_add routes to_host 10.99.0.0/16 => 3
table_add RouterIngress.routes next_hop 10.1.0.0/16 => 10.99.0.1 4   # by a router
table_add neighbours set_dst 10.99.0.7 => 02:00:00:00:00:07
table_add access drop 0&&&0 17&&&0xff 2000->2999 => 10
table_add access NoAction 0&&&0 17&&&0xff 2500->2500 => 5
table_set_default others flood 1
mc_mgrp_create 1
mc_node_create 7 1 2
mc_node_create 8 5
mc_node_associate 1 0
mc_node_associate 1 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "entries.txt"


def frame(port: int, to_udp_port: int) -> bytes:
    made = bytearray(Fence().frame(port))
    made[36:38] = to_udp_port.to_bytes(2, "big")
    return bytes(made) + bytes(20)


@pytest.mark.slow
def test_a_router_from_a_file(plane_with: PlaneFactory, file: Path) -> None:
    plane = plane_with("l3")
    file.write_text(ROUTER)
    assert run_commands(plane, file) == 11
    [(port, left)] = plane.process(1, frame(7, 9))
    assert (port, left[:6]) == (3, bytes([2, 0, 0, 0, 0, 7]))
    assert plane.process(1, frame(8, 9)) == []  # nobody knows that neighbour
    assert plane.process(1, frame(7, 2000)) == []
    assert len(plane.process(1, frame(7, 2500))) == 1  # the least priority wins
    # Not back to where it came from, says the program.
    assert sorted(port for port, _ in plane.process(1, b"\xff" * 12 + b"\x88\xb5" + bytes(50))) == [2, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("table_dump routes", "there is no command table_dump; there are table_add, "),
        ("table_add", "it is table_add TABLE ACTION KEY... => PARAMETER... [PRIORITY]"),
        ("table_add router to_host 1/8 => 1", "table router is not there; there are "),
        ("table_add routes fly 1/8 => 1", "action fly is not there; there are "),
        ("table_add routes to_host 1/8 1", "there is no => between key and parameters"),
        ("table_add routes to_host 1/8 2/8 => 1", "has the key hdr.ipv4.dst (lpm); 2 values were given"),
        (
            "table_add routes to_host 10.0.0.1 => 1",
            "hdr.ipv4.dst is an lpm field: '10.0.0.1' is not VALUE/LEN",
        ),
        ("table_add routes to_host ten/8 => 1", "'ten' is no number, MAC or IP address"),
        ("table_add routes to_host 1/8 =>", "has 1 parameters, 0 were given"),
        ("table_add routes to_host 10.0.0.0/33 => 1", "hdr.ipv4.dst is 32 bits, its prefix length is 33"),
        ("table_add routes to_host 10.0.0.0/8 => 512", "512 does not fit the 9 bits of port"),
        ("table_add routes to_host 10.0.0.0/8 => -1", "-1 is negative"),
        ("table_add access NoAction 0&&&0 1&&&0 1->2 =>", "needs a priority behind the action's parameters"),
        ("table_add access NoAction 1 1&&&0 1->2 => 1", "'1' is not VALUE&&&MASK"),
        ("table_add access NoAction 0&&&0 1&&&0 7 => 1", "'7' is not LOW->HIGH"),
        ("mc_node_associate 1 0", "there is no multicast group 1 yet: mc_mgrp_create 1"),
        ("register_write r 1 1", "register r is not there; there are none"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    plane_with: PlaneFactory, file: Path, line: str, text: str
) -> None:
    file.write_text(f"\n# first\n{line}\n")
    with pytest.raises(CommandError) as caught:
        run_commands(plane_with("l3"), file)
    assert str(caught.value).startswith(f"{file}:3: ")
    assert text in str(caught.value)


def test_values() -> None:
    assert [number(text) for text in ("7", "007", "0x1F", "10.0.0.1", "0:1:2:aa:bb:cc", "::1")] == [
        7,
        7,
        31,
        0x0A000001,
        0x0102AABBCC,
        1,
    ]


def test_without_a_program(file: Path) -> None:
    file.write_text("table_add a b 1 => 1")
    with DataPlane() as plane, pytest.raises(CommandError, match="there is no program yet"):
        run_commands(plane, file)


def test_p4_source_needs_p4c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "program.p4"
    with pytest.raises(FileNotFoundError):
        read_program_file(source)
    source.write_text("nonsense")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramError, match="p4c-bm2-ss is not on the PATH: install p4c, or give the JSON"):
        read_program_file(source)


def test_what_p4c_makes_is_run_and_what_it_says_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for p4c: writes the last argument's content to -o, or fails as p4c does."""
    compiler = tmp_path / "p4c-bm2-ss"
    compiler.write_text(
        '#!/bin/sh\ngrep -q nonsense "$5" && { echo "program.p4(1): error: syntax error" >&2; exit 1; }\n'
        'cp "$5" "$4"\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    source = tmp_path / "program.p4"
    source.write_text("{}")
    assert read_program_file(source) == b"{}"
    source.write_text("nonsense")
    with pytest.raises(ProgramError, match=r"refuses it:\nprogram.p4\(1\): error: syntax error"):
        read_program_file(source)


EXAMPLE = Path(__file__).parents[2] / "examples" / "soft_switch"


@pytest.mark.slow
def test_the_example_of_the_docs() -> None:
    with DataPlane() as plane:
        plane.load((EXAMPLE / "l2.json").read_bytes())
        run_commands(plane, EXAMPLE / "l2.txt")
        known = bytes.fromhex("020000000002" + "020000000001" + "88b5") + bytes(50)
        assert plane.process(1, known) == [(2, known)]
        assert plane.process(2, bytes(64)) == [(1, bytes(64))]


@pytest.mark.p4c
@pytest.mark.skipif(P4C is None, reason=WITHOUT_P4C)
def test_the_json_of_the_example_is_its_sources() -> None:
    made, kept = (json.loads(read_program_file(EXAMPLE / name)) for name in ("l2.p4", "l2.json"))
    committed = json.loads(json.dumps(kept["actions"]).replace("l2.p4", str(EXAMPLE / "l2.p4")))
    assert_is_made_of_its_source("l2.json", made["actions"], committed)
