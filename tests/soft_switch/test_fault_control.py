"""The socket that faults are told over: what it takes, what it refuses, and that it is its owner's alone."""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soft_switch import cli, wires
from soft_switch.dataplane import DataPlane
from soft_switch.errors import FaultError
from soft_switch.fault_control import FaultControl, ask
from tests.host_agent.transport.namespaces import inside
from tests.soft_switch.fault_frames import FIRST, MIDDLE, roce
from tests.soft_switch.switches import TIMEOUT_S, Wire, namespace, unique, wait_for
from topologies.processes import wait_until

NAMES = [(f"w{port}", f"s{port}") for port in range(4)]


@pytest.fixture
def control(tmp_path: Path) -> Iterator[FaultControl]:
    """Yield the control of a data plane without ports."""
    with DataPlane() as plane, FaultControl(f"unix:{tmp_path / 'faults.sock'}", plane.faults) as made:
        yield made


def add(fault: Any = None, places: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "do": "add",
        "fault": {"kind": "loss"} if fault is None else fault,
        "places": [{"port": 1, "direction": "in"}] if places is None else places,
        **more,
    }


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({}, "say what to do: add, list, clear"),
        ([], "say what to do"),
        ({"do": ["add"]}, "say what to do"),
        ({"do": "add"}, "None is no fault"),
        (add({"kind": "theft"}), "'theft' is no kind of fault"),
        (add(places=[]), "a fault needs places"),
        (add(places=[3]), "3 is no place"),
        (add(places=[{"port": True, "direction": "in"}]), "port True is no port number"),
        (add(places=[{"port": 1, "direction": 7}]), "7 is no direction"),
        (add(places=[{"port": 1, "direction": "up"}]), "'up' is no direction: give 'in' or 'out'"),
        (add(number=0), "0 is no fault's number"),
        (add(), "there is no port 1"),
        ({"do": "clear", "number": 4}, "there is no fault 4"),
        ({"do": "clear", "number": "4"}, "'4' is no fault's number"),
    ],
)
def test_what_is_refused(control: FaultControl, request_: Any, complaint: str) -> None:
    with pytest.raises(FaultError, match=complaint):
        ask(control.path, request_)
    assert ask(control.path, {"do": "list"}) == []
    assert ask(control.path, {"do": "clear"}) == {"cleared": 0}


def test_any_bytes_are_answered_or_the_client_is_left(control: FaultControl) -> None:
    chance = random.Random(1)
    junk = [b"\n", b"{\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'"do"\n', chance.randbytes(5000) + b"\n"]
    for line in junk:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(TIMEOUT_S)
            client.connect(str(control.path))
            client.sendall(line)
            client.shutdown(socket.SHUT_WR)
            answer = client.makefile("rb").readline()
            assert not answer or "error" in json.loads(answer)
    assert ask(control.path, {"do": "list"}) == []


def test_it_is_its_owners_alone_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "faults.sock"
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(path))
    left.close()  # as a switch that was killed leaves it
    with DataPlane() as plane:
        with FaultControl(f"unix:{path}", plane.faults):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(FaultError, match="Address already in use"):
                FaultControl(f"unix:{path}", plane.faults)
        assert not path.exists()
        for address in ("faults.sock", "unix:faults.sock", f"unix:/{'x' * 108}"):
            with pytest.raises(FaultError, match="socket"):
                FaultControl(address, plane.faults)


def test_a_switch_that_cannot_have_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--no-p4", "--grpc-server-addr", "127.0.0.1:0", f"--faults=unix:{tmp_path}/no/faults.sock"]
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.endswith("no/faults.sock: No such file or directory\n")


def test_wires_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"--faults=unix:{tmp_path / 'faults.sock'}"
    assert wires.main(["--wire", "missing0:missing1", place]) == 2
    assert "missing0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        wires.main(["--wire", "a:a", place])


@pytest.mark.emulation
def test_wires_with_faults(tmp_path: Path) -> None:
    """Two wires; at the second, faults in one direction, until they are cleared."""
    path = tmp_path / "faults.sock"
    with namespace(unique("p4wire"), NAMES) as space:
        command = [sys.executable, "-m", "soft_switch.wires", f"--faults=unix:{path}"]
        command += ["--wire", "s0:s1", "--wire", "s2:s3"]
        process = inside(space, lambda: subprocess.Popen(command, stdout=subprocess.PIPE, cwd=os.getcwd()))
        try:
            assert wait_until(path.exists, timeout_s=TIMEOUT_S)
            ends = [Wire(space, far) for far, _ in NAMES]

            def sent(end: int, frames: list[bytes], *, count: int) -> list[bytes]:
                """Return the first `count` frames that come out at the other end."""
                for frame in frames:
                    ends[end].send(frame)
                got: list[bytes] = []
                deadline = time.monotonic() + TIMEOUT_S
                while len(got) < count and time.monotonic() < deadline:
                    wait_for([ends[end ^ 1]], 0.2)
                    got += ends[end ^ 1].received()
                return got

            frames = [roce(FIRST if n % 4 == 0 else MIDDLE, n, bytes(256)) for n in range(20)]
            for end in range(4):
                assert sent(end, frames, count=20) == frames
            for fault in (
                {"kind": "loss", "packets": "first", "skip": 1, "count": 3},
                {"kind": "duplicate", "psn": 2},
                {"kind": "delay", "psn": 7, "delay_ms": 60},
                {"kind": "reorder", "psn": 5},
            ):
                ask(path, add(fault, [{"port": 2, "direction": "in"}]))
            order = [0, 1, 2, 2, 3, 6, 5, 7, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19]
            out = sent(2, frames, count=len(order))
            assert [frame[14 + 28 + 11] for frame in out] == order
            for end in (0, 1, 3):
                assert sent(end, frames, count=20) == frames
            listed = ask(path, {"do": "list"})
            assert [(rule["number"], rule["struck"]) for rule in listed] == [(1, 3), (2, 1), (3, 1), (4, 1)]
            both = [{"port": port, "direction": "in"} for port in (0, 2)]
            with pytest.raises(FaultError, match="port 2 has a fault 2 inward already"):
                ask(path, add(places=both, number=2))
            assert len(ask(path, {"do": "list"})) == 4, "at all places or at none"
            assert ask(path, {"do": "clear"}) == {"cleared": 4}
            assert sent(2, frames, count=20) == frames
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
    assert not path.exists()
