"""The switch's command line: what it takes, what it refuses, how it starts and ends."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from finsy.proto import p4r, p4r_grpc

from soft_switch import cli
from soft_switch.errors import ProgramError

pytestmark = pytest.mark.slow


class FakePlane:
    """Records what the command line asks for; as soon as it runs, the process is told to stop."""

    made: list[FakePlane]

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.calls: list[tuple[Any, ...]] = []
        self.made.append(self)

    def load(self, program: bytes) -> None:
        if program == b"broken":
            raise ProgramError("it has no parser")
        self.calls.append(("load", program))

    def attach(self, port: int, interface: str, *, pcap: Path | None = None) -> None:
        if interface == "missing0":
            raise OSError(19, "No such device")
        if interface == "lo":
            raise ValueError("lo is the loopback interface")
        self.calls.append(("attach", port, interface, pcap))

    def set_loss(self, port: int, direction: str, probability: float, seed: int) -> None:
        self.calls.append(("set_loss", port, direction, probability, seed))

    def on_packet_in(self, callback: Callable[[bytes], None]) -> None:
        return

    def on_digest(self, callback: Callable[[str, tuple[int, ...]], None]) -> None:
        return

    def start(self) -> None:
        self.calls.append(("start",))
        os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.fixture
def planes(monkeypatch: pytest.MonkeyPatch) -> list[FakePlane]:
    """Return the data planes a call of main() makes."""
    monkeypatch.setattr(FakePlane, "made", [], raising=False)
    monkeypatch.setattr(cli, "DataPlane", FakePlane)
    return FakePlane.made


def errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return main()'s line on its way to exit code 2; argparse's usage comes before it if that refuses."""
    try:
        assert cli.main(arguments) == 2
    except SystemExit as leaving:
        assert leaving.code == 2  # noqa: PT017 - argparse leaves this way
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err.rstrip("\n").rpartition("\n")[2]


ALIASED = (
    "port {}: ports are numbered from 0 to 511, as programs have 9 bits for them and would take this one for "
    "port {}"
)
ANY_PORT = ["--grpc-server-addr", "127.0.0.1:0"]


def test_a_start_like_simple_switch_grpc(planes: list[FakePlane], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--device-id 1 -i 1@eth1 --interface 2@s1-eth2 --no-p4 --log-level warn -- "
    arguments += "--grpc-server-addr 127.0.0.1:0 --cpu-port 255"
    assert cli.main(arguments.split()) == 0
    (plane,) = planes
    assert plane.options == {
        "cpu_port": 255,
        "drop_port": 511,
        "seed": 0,
        "log": cli.LOG,
        "priority_queues": 1,
    }
    assert plane.calls == [
        ("attach", 1, "eth1", None),
        ("attach", 2, "s1-eth2", None),
        ("start",),
        ("close",),
    ]
    out = capsys.readouterr().out
    assert re.fullmatch(r"listening on 127\.0\.0\.1:[1-9]\d*\n", out)


def test_a_program_is_loaded_before_ports_are_attached(planes: list[FakePlane], tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    program.write_bytes(b"{}")
    assert cli.main([str(program), "-i", "1@eth1", *ANY_PORT]) == 0
    assert planes[0].calls[:2] == [("load", b"{}"), ("attach", 1, "eth1", None)]


def test_an_engine_that_cannot_be_compiled(
    planes: list[FakePlane], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(_: FakePlane) -> None:
        raise ProgramError("cannot keep compiled programs in /proc")

    monkeypatch.setattr(FakePlane, "start", start)
    assert errors(["--no-p4", *ANY_PORT], capsys) == "soft_switch: cannot keep compiled programs in /proc"


def test_all_options(planes: list[FakePlane], tmp_path: Path) -> None:
    log = tmp_path / "switch.log"
    arguments = f"--no-p4 -i 7@eth7 -i8@eth8 --pcap={tmp_path} --seed 9 --loss 7:in:0.25 --loss 8:out:1"
    arguments += (
        f" --drop-port 0x1fe --priority-queues 8 --log-file {log} -L debug --log-flush --thrift-port 9090"
    )
    arguments += " --strict-arbitration --nanolog ipc:///tmp/s1.ipc --dump-packet-data 10000 --disable-swap"
    assert cli.main([*arguments.split(), *ANY_PORT]) == 0
    (plane,) = planes
    assert plane.options == {
        "cpu_port": None,
        "drop_port": 510,
        "seed": 9,
        "log": cli.LOG,
        "priority_queues": 8,
    }
    assert plane.calls[:4] == [
        ("attach", 7, "eth7", tmp_path / "eth7.pcap"),
        ("attach", 8, "eth8", tmp_path / "eth8.pcap"),
        ("set_loss", 7, "in", 0.25, 9),
        ("set_loss", 8, "out", 1.0, 9),
    ]


@pytest.mark.parametrize(
    ("arguments", "pcap", "json"),
    [
        (["--no-p4"], None, None),
        (["--no-p4", "--pcap"], Path("."), None),
        (["--pcap", "program.json"], Path("."), Path("program.json")),
        (["--pcap", "/", "program.json"], Path("/"), Path("program.json")),
        (["--pcap=/", "program.json"], Path("/"), Path("program.json")),
        (["--no-p4", "--pcap", "--", "--cpu-port", "1"], Path("."), None),
    ],
)
def test_pcap_takes_a_directory_or_none(arguments: list[str], pcap: Path | None, json: Path | None) -> None:
    options = cli.parse_arguments(arguments)
    assert (options.pcap, options.json) == (pcap, json)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", "give a program (BMv2 JSON or P4), or --no-p4 to wait for one over P4Runtime"),
        ("--no-p4 --entries x", "--entries needs a program to have them"),
        ("/nowhere/program.p4", "cannot read the program /nowhere/program.p4: No such file or directory"),
        (
            "--no-p4 program.json",
            "--no-p4 means to start without a program, but there is one on the command line",
        ),
        ("--no-p4 -i eth1", "argument -i/--interface: 'eth1' is not PORT@IFACE, for instance 1@eth1"),
        ("--no-p4 -i 1@", "argument -i/--interface: '1@' is not PORT@IFACE, for instance 1@eth1"),
        ("--no-p4 -i 1@a -i 1@b", "port 1 is given twice"),
        ("--no-p4 -i 1@a -i 2@a", "interface a is given twice: each of its frames would come in twice"),
        ("--no-p4 --device-id x", "argument --device-id: 'x' is not a number"),
        ("--no-p4 --cpu-port 0", "--cpu-port: 0 is not a valid CPU port"),
        ("--no-p4 -i 511@a", "port 511 is the CPU or drop port, no interface can have it"),
        ("--no-p4 -i 64@a --cpu-port 64", "port 64 is the CPU or drop port, no interface can have it"),
        ("--no-p4 -i 1@a -i 513@b", ALIASED.format(513, 1)),
        ("--no-p4 -i 767@a --cpu-port 255", ALIASED.format(767, 255)),
        ("--no-p4 --cpu-port 767", ALIASED.format(767, 255)),
        ("--no-p4 --drop-port 513", ALIASED.format(513, 1)),
        ("--no-p4 --cpu-port 511", "port 511 is the drop port: choose another --cpu-port or --drop-port"),
        ("--no-p4 --loss 1:in:0.5", "--loss names port 1, which has no interface"),
        ("--no-p4 -i 1@a --loss 1:up:0.5", "'1:up:0.5' is not PORT:DIR:PROB, for instance 2:in:0.01"),
        ("--no-p4 -i 1@a --loss 1:in:1.5", "'1:in:1.5' is not PORT:DIR:PROB, for instance 2:in:0.01"),
        ("--no-p4 --pcap=/nowhere", "--pcap: there is no directory /nowhere"),
        ("--no-p4 --device-id -1", "-1 is negative"),
        ("--no-p4 --log-console --log-file x", "--log-console and --log-file exclude each other"),
        ("--no-p4 --grpc-server-ssl", "--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key"),
        ("--no-p4 --no-such-option", "unrecognized arguments: --no-such-option"),
        ("/nowhere/program.json", "cannot read the program /nowhere/program.json: No such file or directory"),
        ("--no-p4 -i 1@missing0", "cannot attach missing0 as port 1: No such device"),
        ("--no-p4 -i 1@lo", "cannot attach lo as port 1: lo is the loopback interface"),
        ("--no-p4 --log-file /nowhere/log", "cannot log to /nowhere/log: No such file or directory"),
    ],
)
def test_what_is_refused(
    planes: list[FakePlane], capsys: pytest.CaptureFixture[str], arguments: str, text: str
) -> None:
    line = errors(arguments.split(), capsys)
    assert line.startswith("soft_switch: ")
    assert line.endswith(text)
    assert all(plane.calls == [("close",)] for plane in planes)


def test_a_program_that_cannot_run(
    planes: list[FakePlane], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = tmp_path / "program.json"
    program.write_bytes(b"broken")
    assert errors([str(program)], capsys) == f"soft_switch: cannot run {program}: it has no parser"


def test_an_address_in_use(planes: list[FakePlane], capsys: pytest.CaptureFixture[str]) -> None:
    server = grpc.server(None, options=(("grpc.so_reuseport", 0),))  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    try:
        line = errors(["--no-p4", "--grpc-server-addr", f"127.0.0.1:{port}"], capsys)
    finally:
        server.stop(None)
    assert (
        line == f"soft_switch: cannot listen on 127.0.0.1:{port}: it is in use, or no address of this machine"
    )
    assert planes[0].calls == [("start",), ("close",)]


def test_it_starts_without_what_few_switches_need() -> None:
    code = "import sys, soft_switch.cli; print([m for m in ('numpy', 'mininet') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith("soft_switch ")


@pytest.fixture
def veths() -> Iterator[list[tuple[str, str]]]:
    """Yield two veth pairs (switch's end, host's end)."""
    tag = f"{os.getpid() % 100000:05d}"
    pairs = [(f"ps{tag}{letter}", f"ph{tag}{letter}") for letter in "ab"]
    try:
        for near, far in pairs:
            subprocess.run(["ip", "link", "add", near, "type", "veth", "peer", "name", far], check=True)
            for name in (near, far):
                # No IPv6, so that the kernel does not send anything of its own.
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
                subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield pairs
    finally:
        for near, _ in pairs:
            subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)


@pytest.mark.emulation
def test_a_frame_goes_through_the_process(veths: list[tuple[str, str]], tmp_path: Path) -> None:
    """Started with a program and two interfaces: what enters port 3 leaves port 1, and both are captured."""
    (near1, far1), (near3, far3) = veths
    program = Path(__file__).parent / "server" / "program.json"
    command = [sys.executable, "-m", "soft_switch", str(program), "-i", f"1@{near1}", "-i", f"3@{near3}"]
    command += [f"--pcap={tmp_path}", "--", *ANY_PORT]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("listening on ")
        frame = bytes.fromhex("02000000000102000000000388b5") + bytes(range(64))
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as receiver,
        ):
            sender.bind((far3, 0x88B5))
            receiver.bind((far1, 0x88B5))
            receiver.settimeout(10)
            sender.send(frame)
            assert receiver.recv(2000) == frame
        process.terminate()
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()
        process.wait()
    for name in (near1, near3):
        assert frame in (tmp_path / f"{name}.pcap").read_bytes()


@pytest.mark.emulation
def test_an_interface_that_is_not_there() -> None:
    command = [sys.executable, "-m", "soft_switch", "--no-p4", "-i", "1@nosuch0", *ANY_PORT]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2], check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "soft_switch: cannot attach nosuch0 as port 1: No such device\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_process_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals, kind: str) -> None:
    """The real thing: a process of its own, a client with an open stream, a signal."""
    address = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/p4rt.sock"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "soft_switch",
            "--device-id",
            "3",
            "--no-p4",
            "--",
            "--grpc-server-addr",
            address,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on ")
        with grpc.insecure_channel(line.split()[-1]) as channel:
            stub = p4r_grpc.P4RuntimeStub(channel)
            assert stub.Capabilities(p4r.CapabilitiesRequest(device_id=3), timeout=10).p4runtime_api_version
            bid = p4r.MasterArbitrationUpdate(device_id=3, election_id=p4r.Uint128(low=1))
            requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
            requests.put(p4r.StreamMessageRequest(arbitration=bid))
            stream = stub.StreamChannel(iter(requests.get, None))
            assert next(iter(stream)).arbitration.status.code == 0
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
            requests.put(None)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()
        process.wait()
