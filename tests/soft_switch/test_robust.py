"""Hardships of a working switch: signals, interfaces pulled out, other programs, clients that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from finsy.proto import U128, p4r

from soft_switch.dataplane import DataPlane
from tests.host_agent.transport.namespaces import inside, run
from tests.soft_switch.programs import HERE, p4info, program
from tests.soft_switch.switches import (
    TIMEOUT_S,
    Switch,
    Wire,
    add_veth,
    arbitrate,
    namespace,
    running,
    unique,
    wait_for,
)

pytestmark = [pytest.mark.emulation, pytest.mark.timeout(180)]

NAMES = {port: (f"w{port}", f"s{port}") for port in (1, 2)}
HEAD = bytes([2, 0])  # `stacks.p4` sends it to port 1 behind its report
REPORT = 8
SIZE = 300


@pytest.fixture
def space() -> Iterator[str]:
    with namespace(unique("p4rob"), list(NAMES.values())) as name:
        yield name


def frame(number: int) -> bytes:
    """Return the frame of any number, with content that belongs to it."""
    return (HEAD + number.to_bytes(4, "big") + bytes([number % 251]) * SIZE)[:SIZE]


def is_whole(left: bytes) -> bool:
    """Tell whether what came out is a frame of ours, to the last byte."""
    mine = left[REPORT:]
    return len(mine) == SIZE and mine == frame(int.from_bytes(mine[2:6], "big"))


@contextmanager
def traffic(wire: Wire) -> Iterator[None]:
    """Send frames into a wire, all the time."""
    stop = threading.Event()

    def flood() -> None:
        number = 0
        while not stop.is_set():
            try:
                wire.send(frame(number))
            except OSError:  # the interface is gone
                time.sleep(0.001)
            number += 1
            if number % 64 == 0:
                time.sleep(0.001)

    sender = threading.Thread(target=flood)
    sender.start()
    try:
        yield
    finally:
        stop.set()
        sender.join()


def next_frames(wire: Wire, count: int) -> list[bytes]:
    got: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(got) < count:
        assert time.monotonic() < deadline
        wait_for([wire], 0.2)
        got += wire.received()
    return got


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def attached(space: str, plane: DataPlane) -> dict[int, Wire]:
    def start() -> None:
        for port, (_, near) in NAMES.items():
            plane.attach(port, near)
        plane.start()

    inside(space, start)
    return {port: Wire(space, far) for port, (far, _) in NAMES.items()}


def test_interfaces_that_vanish_and_return_under_traffic(space: str) -> None:
    """First the one that frames leave through, then the one they come in on."""
    with DataPlane() as plane:
        plane.load(program("stacks"))
        wires = attached(space, plane)
        for port in (1, 2):
            far, near = NAMES[port]
            with traffic(wires[2]):
                next_frames(wires[1], 200)
                run(f"ip -n {space} link delete {near}")
                until(lambda: plane.ports()[port].up == 0)  # noqa: B023
                add_veth(space, far, near)
                until(lambda: plane.ports()[port].up == 1)  # noqa: B023
            wires[port] = Wire(space, far)
            with traffic(wires[2]):
                assert all(map(is_whole, next_frames(wires[1], 500)))
            assert plane.ports()[port].reopened == 1


def test_programs_replaced_under_traffic(space: str) -> None:
    """Frames come out whole, by one program or the other; each frame that came in was counted once."""
    with DataPlane() as plane:
        plane.load(program("stacks"))
        wires = attached(space, plane)
        with traffic(wires[2]):
            for name in ["l3", "stacks", "tables", "stacks"] * 4:
                plane.load(program(name))
                if name == "stacks":
                    assert all(left[REPORT:REPORT + 2] == HEAD or left[:2] == HEAD
                               for left in next_frames(wires[1], 20))  # fmt: skip
        for left in wires[1].received():
            assert is_whole(left) or left[:2] == HEAD
        plane.load(program("stacks"))
        list(wires[1].received())
        before = plane.ports()
        for number in range(100):
            wires[2].send(frame(number))
        assert [left[REPORT:] for left in next_frames(wires[1], 100)] == [frame(n) for n in range(100)]
        after = plane.ports()
        assert after[2].rx_packets - before[2].rx_packets == 100
        assert after[1].tx_packets - before[1].tx_packets == 100


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_traffic(space: str, number: signal.Signals) -> None:
    with running(space, {port: near for port, (_, near) in NAMES.items()}) as switch:
        switch.push(program("stacks"), p4info("stacks"))
        wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
        with traffic(wires[2]):
            next_frames(wires[1], 200)
            switch.process.send_signal(number)
            switch.process.send_signal(number)  # an impatient user
            assert switch.process.wait(TIMEOUT_S) == 0
        assert "Traceback" not in switch.log.read_text()
    for _, near in NAMES.values():  # as they were
        state = subprocess.run(
            ["ip", "-n", space, "-d", "link", "show", near], capture_output=True, text=True, check=True
        ).stdout
        assert "UP" in state
        assert "promiscuity 0" in state


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_during_compilation(tmp_path: Path, number: signal.Signals) -> None:
    """Check that it ends at once, the compiler with it, and that the next start is not affected."""
    compiler = tmp_path / "slow-g++"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *--version*|*engine*) exec g++ "$@";; esac\n'
        f'echo $$ > {tmp_path}/compiling; [ -e {tmp_path}/slow ] && exec sleep 60; exec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    (tmp_path / "slow").touch()
    programs = tmp_path / "cache" / "p4reduce" / "programs"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(compiler)}
    environment["SOFT_SWITCH_COMPILE"] = "quick"
    command = [
        sys.executable,
        "-m",
        "soft_switch",
        str(HERE / "stacks.json"),
        "--grpc-server-addr",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    pid = tmp_path / "compiling"
    try:
        until(lambda: pid.exists() and pid.read_text().strip() != "")
        process.send_signal(number)
        out, error = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    if number == signal.SIGKILL:
        os.kill(int(pid.read_text()), signal.SIGKILL)  # an orphan that nobody could end
    else:
        assert (process.returncode, out, error) == (0, "", "")
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
    assert all(library.name.startswith("engine") for library in programs.glob("*.so"))
    (tmp_path / "slow").unlink()
    again = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert again.stdout is not None
    try:
        assert again.stdout.readline().startswith("listening on ")
        again.terminate()
        assert again.wait(TIMEOUT_S) == 0
    finally:
        again.kill()
        again.wait()
    assert not list(programs.glob("*.tmp"))


def test_clients_that_leave_in_the_middle(space: str) -> None:
    """Leave a write of many updates, a read, a stream, and a pipeline's load; others are served on."""
    with running(space, {port: near for port, (_, near) in NAMES.items()}) as switch:
        switch.push(program("l3"), p4info("l3"))
        table = next(item for item in switch.info.tables if item.preamble.name.endswith(".routes"))
        action = next(item for item in switch.info.actions if item.preamble.name.endswith(".to_host"))

        def update(number: int) -> p4r.Update:
            entry = p4r.TableEntry(table_id=table.preamble.id)
            entry.match.add(field_id=1).lpm.CopyFrom(
                p4r.FieldMatch.LPM(value=(0x0A000000 + number).to_bytes(4, "big"), prefix_len=32)
            )
            entry.action.action.action_id = action.preamble.id
            entry.action.action.params.add(param_id=1, value=b"\x01")
            return p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=entry))

        stub: Any = switch.stub
        many = p4r.WriteRequest(
            device_id=0, election_id=U128.encode(1), updates=[update(number) for number in range(1000)]
        )
        everything = p4r.ReadRequest(device_id=0, entities=[p4r.Entity(table_entry=p4r.TableEntry())])
        config = p4r.ForwardingPipelineConfig(p4info=switch.info, p4_device_config=program("l3"))
        load = p4r.SetForwardingPipelineConfigRequest(
            device_id=0,
            election_id=U128.encode(1),
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=config,
        )
        for round_ in range(10):
            stub.Write.future(many).cancel()
            stub.Read(everything).cancel()
            stub.SetForwardingPipelineConfig.future(load).cancel()
            arbitrate(stub, 100 + round_).cancel()

        def is_primary_again() -> bool:
            """Tell whether it may load a program again: the switch has seen the last of these streams go."""
            try:
                switch.push(program("l3"), p4info("l3"))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
                    raise
                return False
            return True

        # All or nothing of each call: what is there can be read, and written anew.
        until(is_primary_again)
        until(lambda: not any(response.entities for response in stub.Read(everything)))
        stub.Write(many, timeout=TIMEOUT_S)
        entries = [one for response in stub.Read(everything) for one in response.entities]
        assert len(entries) == 1000
        assert switch.stop() == 0
        assert "Traceback" not in switch.log.read_text()


def test_a_client_that_is_killed(space: str, tmp_path: Path) -> None:
    """Kill it in the middle of writes, with an open stream: the next controller takes over."""
    script = """
import sys
from tests.soft_switch.switches import arbitrate
import grpc
from finsy.proto import U128, p4r, p4r_grpc
stub = p4r_grpc.P4RuntimeStub(grpc.insecure_channel(sys.argv[1]))
stream = arbitrate(stub, 7)
print("ready", flush=True)
while True:
    entry = p4r.MulticastGroupEntry(multicast_group_id=1, replicas=[p4r.Replica(egress_port=1, instance=1)])
    for kind in (p4r.Update.INSERT, p4r.Update.DELETE):
        engine = p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
        update = p4r.Update(type=kind, entity=p4r.Entity(packet_replication_engine_entry=engine))
        stub.Write(p4r.WriteRequest(device_id=0, election_id=U128.encode(7), updates=[update]))
"""
    with running(space, {port: near for port, (_, near) in NAMES.items()}) as switch:
        switch.push(program("stacks"), p4info("stacks"))
        command = [sys.executable, "-c", script, switch.address]
        for _ in range(3):
            client = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
            )
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            client.kill()
            client.wait()
        until(lambda: can_write(switch))
        assert switch.stop() == 0
        assert "Traceback" not in switch.log.read_text()


def can_write(switch: Switch) -> bool:
    """Tell whether the switch's first controller is the primary again."""
    try:
        switch.multicast_set(9, [(1, 1)])
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.PERMISSION_DENIED:
            raise
        return False
    return True


def test_a_full_disk(tmp_path: Path) -> None:
    """Said in one line; what has been compiled before still runs."""
    disk = tmp_path / "disk"
    disk.mkdir()
    run(f"mount -t tmpfs -o size=64k tmpfs {disk}")
    try:
        environment = {**os.environ, "XDG_CACHE_HOME": str(disk)}
        command = [sys.executable, "-m", "soft_switch", str(HERE / "stacks.json")]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=100, check=False,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
        assert "cannot keep compiled programs in " in done.stderr
        assert "set XDG_CACHE_HOME to a directory that can be written" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    finally:
        run(f"umount {disk}")


def test_a_disk_that_fills_up_while_ports_are_captured(space: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run(f"mount -t tmpfs -o size=64k tmpfs {disk}")
    try:
        with DataPlane() as plane:
            plane.load(program("stacks"))

            def start() -> None:
                for port, (_, near) in NAMES.items():
                    plane.attach(port, near, pcap=disk / f"{near}.pcap")
                plane.start()

            inside(space, start)
            wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
            with traffic(wires[2]):
                assert all(map(is_whole, next_frames(wires[1], 3000)))
    finally:
        run(f"umount {disk}")


def test_every_file_of_the_cache_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SOFT_SWITCH_COMPILE", "quick")
    code = f"""
from pathlib import Path
from soft_switch.build import build_engine
from soft_switch.dataplane import DataPlane
with DataPlane() as plane:
    plane.load(Path({str(HERE / "stacks.json")!r}).read_bytes())
    print(plane.process(2, bytes([2, 0]) + bytes(40)))
"""

    def output() -> str:
        command, folder = [sys.executable, "-c", code], Path(__file__).parents[2]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout

    first = output()
    files = [file for file in sorted(tmp_path.rglob("*")) if file.is_file()]
    assert {file.suffix for file in files} >= {".so", ".lock"}
    for number, file in enumerate(files):
        file.write_bytes((b"", b"\x80\x05rubbish", bytes(5000))[number % 3])
    assert output() == first
