"""Ports on real interfaces: traffic, captures, counters, rates, interfaces that go and come back, the end."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scapy.utils import rdpcap

from soft_switch.dataplane import DataPlane
from tests.host_agent.transport.namespaces import inside, run
from tests.soft_switch.programs import p4info, program
from tests.soft_switch.switches import TIMEOUT_S, Switch, Wire, add_veth, namespace, running, unique, wait_for

pytestmark = [pytest.mark.emulation, pytest.mark.timeout(120)]

NAMES = {port: (f"w{port}", f"s{port}") for port in (1, 2)}
HEAD = bytes([2, 0])  # `stacks.p4` sends it to port 1 behind its report
REPORT = 8


@pytest.fixture
def space() -> Iterator[str]:
    with namespace(unique("p4prt"), list(NAMES.values())) as name:
        yield name


@pytest.fixture
def plane(space: str) -> Iterator[DataPlane]:
    """Yield a data plane in this process whose ports and threads are in the namespace."""
    made = DataPlane()
    made.load(program("stacks"))

    def start() -> None:
        for port, (_, near) in NAMES.items():
            made.attach(port, near)
        made.start()

    inside(space, start)
    yield made
    made.close()


def frame(number: int, length: int = 60) -> bytes:
    return (HEAD + number.to_bytes(4, "big") + bytes(length))[:length]


def collect(wire: Wire, count: int) -> list[bytes]:
    """Return the next frames that arrive."""
    got: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(got) < count and time.monotonic() < deadline:
        wait_for([wire], 0.2)
        got += wire.received()
    return got


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_frames_of_every_length_and_counters(space: str, plane: DataPlane) -> None:
    wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
    lengths = [*range(14, 80), 1500, 9000, 9200]
    total = 0
    for number, length in enumerate(lengths):
        wires[2].send(frame(number, length))
        total += length
        [left] = collect(wires[1], 1)
        assert left[REPORT:] == frame(number, length)
    into, out = plane.ports()[2], plane.ports()[1]
    assert (into.rx_packets, into.rx_bytes, into.tx_packets) == (len(lengths), total, 0)
    assert (out.tx_packets, out.tx_bytes) == (len(lengths), total + REPORT * len(lengths))
    assert (out.rx_packets, into.rx_dropped, out.tx_dropped, out.tx_errors) == (0, 0, 0, 0)
    assert into.up == out.up == 1


def test_bursts_keep_their_order(space: str, plane: DataPlane) -> None:
    wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
    for start in range(0, 3000, 300):
        for number in range(start, start + 300):
            wires[2].send(frame(number, 1082))
        got = collect(wires[1], 300)
        assert [left[REPORT:] for left in got] == [
            frame(number, 1082) for number in range(start, start + 300)
        ]


def test_lost_frames_are_counted(space: str, plane: DataPlane) -> None:
    wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
    plane.set_loss(2, "in", 0.5, 1)
    for number in range(400):
        wires[2].send(frame(number))
    until(lambda: plane.ports()[2].rx_lost + plane.ports()[2].rx_packets == 400)
    passed = plane.ports()[2].rx_packets
    assert 100 < passed < 300
    assert len(collect(wires[1], passed)) == passed


def test_a_rate_set_with_tc_holds(space: str, plane: DataPlane) -> None:
    """Check that no more comes out in a time than the bucket and the rate allow."""
    rate, bucket = 20e6 / 8, 20_000
    run(f"ip netns exec {space} tc qdisc add dev s1 root tbf rate 20mbit burst {bucket} limit 4000000")
    wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
    start = time.monotonic()
    got, size, sent = 0, 0, 0
    while got < 600:
        # Always more than the bucket under way, and never more than the sockets' buffers hold.
        while sent < min(got + 60, 600):
            wires[2].send(frame(sent, 1082))
            sent += 1
        wait_for([wires[1]], 1)
        for left in wires[1].received():
            got, size = got + 1, size + len(left)
        assert size <= bucket + rate * (time.monotonic() - start) + 1100
        assert time.monotonic() - start < TIMEOUT_S


def test_a_shaped_port_keeps_order_and_loses_nothing(space: str, plane: DataPlane) -> None:
    """Bursts are longer than what the interface takes at once, pauses let it catch up."""
    run(f"ip netns exec {space} tc qdisc add dev s1 root tbf rate 80mbit burst 20000 limit 4000000")
    wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
    for start, length in ((0, 1082), (400, 60), (800, 9000), (900, 300)):
        sent = [frame(number, length) for number in range(start, start + (400 if length < 9000 else 100))]
        for one in sent:
            wires[2].send(one)
        assert [left[REPORT:] for left in collect(wires[1], len(sent))] == sent
    out = plane.ports()[1]
    assert (out.tx_packets, out.tx_dropped, out.tx_errors) == (1300, 0, 0)


def test_frames_longer_than_the_mtu_are_errors(space: str, plane: DataPlane) -> None:
    wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
    run(f"ip -n {space} link set s1 mtu 1000")

    def is_refused() -> bool:
        seen = plane.ports()[2].rx_packets
        wires[2].send(frame(1, 1014 - REPORT + 1))
        until(lambda: plane.ports()[2].rx_packets > seen)
        return plane.ports()[1].tx_errors > 0

    until(is_refused)  # it looks at the MTU from time to time
    list(wires[1].received())
    wires[2].send(frame(2, 1014 - REPORT))
    assert [left[REPORT:] for left in collect(wires[1], 1)] == [frame(2, 1014 - REPORT)]


def test_an_interface_that_vanishes_and_returns(space: str, plane: DataPlane) -> None:
    far, near = NAMES[2]
    for back in (1, 2):
        run(f"ip -n {space} link delete {near}")
        until(lambda: plane.ports()[2].up == 0)
        add_veth(space, far, near)
        until(lambda: plane.ports()[2].reopened == back and plane.ports()[2].up == 1)  # noqa: B023
        wires = {port: Wire(space, name) for port, (name, _) in NAMES.items()}
        wires[2].send(frame(back))
        assert [left[REPORT:] for left in collect(wires[1], 1)] == [frame(back)]


def test_an_interface_that_goes_down_and_up(space: str, plane: DataPlane) -> None:
    wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
    run(f"ip -n {space} link set s1 down")
    for number in range(10):
        wires[2].send(frame(number))
    until(lambda: plane.ports()[2].rx_packets == 10)
    run(f"ip -n {space} link set s1 up")
    until(lambda: plane.ports()[1].up == 1)

    def passes() -> bool:
        wires[2].send(frame(99))
        wait_for([wires[1]], 0.2)
        return frame(99) in [left[REPORT:] for left in wires[1].received()]

    until(passes)


def push(switch: Switch) -> None:
    switch.push(program("stacks"), p4info("stacks"))


def ports(prefix: str = "s") -> dict[int, str]:
    return {port: f"{prefix}{port}" for port in (1, 2)}


def test_sigterm_under_traffic(space: str) -> None:
    with running(space, ports()) as switch:
        push(switch)
        wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
        stop = threading.Event()

        def flood() -> None:
            while not stop.is_set():
                for number in range(100):
                    wires[2].send(frame(number, 1082))

        sender = threading.Thread(target=flood)
        sender.start()
        try:
            wait_for([wires[1]], TIMEOUT_S)
            assert next(wires[1].received(), None)  # not all: there is no end of them
            assert switch.stop() == 0
        finally:
            stop.set()
            sender.join()
        assert "Traceback" not in switch.log.read_text()


def test_two_switches_and_a_program_loaded_under_traffic(space: str) -> None:
    for port in (1, 2):
        add_veth(space, f"v{port}", f"t{port}")
    with running(space, ports()) as one, running(space, ports("t")) as other:
        for switch in (one, other):
            push(switch)
        wires = {name: Wire(space, name) for name in ("w1", "w2", "v1", "v2")}
        for number in range(50):
            wires["w2"].send(frame(number))
            wires["v2"].send(frame(1000 + number))
            if number == 25:
                push(one)
        assert len(collect(wires["v1"], 50)) == 50
        assert all(int.from_bytes(left[10:14], "big") < 1000 for left in collect(wires["w1"], 50))


def test_captures_can_be_read(space: str, tmp_path: Path) -> None:
    with running(space, ports(), options=[f"--pcap={tmp_path}"]) as switch:
        push(switch)
        wires = {port: Wire(space, far) for port, (far, _) in NAMES.items()}
        for number in range(20):
            wires[2].send(frame(number, 60 + number))
        left = collect(wires[1], 20)
        assert switch.stop() == 0
    into, out = (rdpcap(str(tmp_path / f"{near}.pcap")) for near in ("s2", "s1"))
    assert [bytes(packet) for packet in into] == [frame(number, 60 + number) for number in range(20)]
    assert [bytes(packet) for packet in out] == left
    assert abs(float(into[0].time) - time.time()) < 300
    tshark = shutil.which("tshark")
    if tshark is not None:
        listed = subprocess.run(
            [tshark, "-r", str(tmp_path / "s1.pcap")], capture_output=True, text=True, check=True
        )
        assert len(listed.stdout.splitlines()) == 20
