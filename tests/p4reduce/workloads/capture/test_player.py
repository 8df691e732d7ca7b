"""The frame player on a veth pair behind which frames get lost, overtaken and doubled. Needs root."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from ipaddress import IPv4Address

import numpy as np
import pytest

from host_agent.wire.headers import Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from p4reduce.oracle.placement import is_whole
from p4reduce.workloads.capture.player import NEVER, PACKET, FramePlayer, PlayerError, PlayHost

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for veths and raw sockets"),
]

_RCVBUFFORCE = 33  # SO_RCVBUFFORCE: more than net.core.rmem_max
LOST, OVERTAKEN, DOUBLED = 7, 50, 20  # of each hundred packets, that one
ANOTHER = 70  # overtaken as well, by one of another connection: each has its own way through a fabric


class Relay(threading.Thread):
    """Carries frames from one interface to the other, and does to some of each hundred what is said above."""

    def __init__(self, interface: str, other: str) -> None:
        super().__init__(name="relay")
        self._in, self._out = self._open(interface), self._open(other)
        self._in.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 1 << 26)
        self._wake, self._stopper = socket.socketpair()
        self.seen: list[bytes] = []

    @staticmethod
    def _open(name: str) -> socket.socket:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)  # hears nothing until it is bound
        raw.bind((name, 0x0800))
        return raw

    def run(self) -> None:
        number, held = 0, b""
        while self._wake not in select.select([self._in, self._wake], [], [])[0]:
            try:
                frame = self._in.recv(65536)
            except OSError:  # the interface is down: a test deleted it
                return
            place = number % 100
            number += 1
            if place == 0:
                self.seen.append(frame)
            if place in (OVERTAKEN, ANOTHER):
                held = frame
            elif place != LOST:
                self._out.send(frame)
            if place == DOUBLED:
                self._out.send(frame)
            if place in (OVERTAKEN + 1, ANOTHER + 1):
                self._out.send(held)

    def stop(self) -> None:
        self._stopper.send(b"x")
        self.join()
        for each in (self._in, self._out, self._wake, self._stopper):
            each.close()


@pytest.fixture
def wires() -> Iterator[tuple[list[PlayHost], Relay]]:
    """Yield two hosts; what the first sends comes to the second through a relay."""
    tag = f"fp{os.getpid() % 100000}"
    hosts = [
        PlayHost(ip=IPv4Address(f"198.51.100.{n}"), mac=f"02:00:00:00:07:0{n}", interface=f"{tag}h{n}")
        for n in (1, 2)
    ]
    relay = None
    try:
        for host in hosts:
            port = host.interface.replace("h", "s")
            ip("link", "add", host.interface, "type", "veth", "peer", "name", port)
            ip("link", "set", host.interface, "address", host.mac, "up")
            ip("link", "set", port, "up")
        relay = Relay(f"{tag}s1", f"{tag}s2")
        relay.start()
        yield hosts, relay
    finally:
        if relay is not None:
            relay.stop()
        for host in hosts:
            subprocess.run(["ip", "link", "delete", host.interface], capture_output=True, check=False)


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def captured(psn: int) -> bytes:
    """Return a packet from its IP header on."""
    packet = RocePacket(
        ethernet=Ethernet(dst=bytes(6), src=bytes(6)),
        ip=IPv4(src=IPv4Address("192.0.2.1"), dst=IPv4Address("192.0.2.2"), total_length=0),
        udp=Udp(src_port=50000, length=0),
        bth=Bth(opcode=Opcode.SEND_ONLY, dest_qp=0x77, psn=psn % 2**24),
        payload=bytes(12),
    )
    return packet.build()[14:]


def played(count: int, *, gap_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return data and packets, which differ by PSN, and each hundred's ANOTHER by its UDP port."""
    one = np.frombuffer(captured(0), np.uint8)
    data = np.tile(one, (count, 1))
    for byte in range(3):
        data[:, 37 + byte] = np.arange(count) >> 8 * (2 - byte) & 0xFF
    data[ANOTHER::100, 21] ^= 1
    packets = np.zeros(count, PACKET)
    packets["at_ns"] = np.arange(count) * gap_ns
    packets["offset"] = np.arange(count) * len(one)
    packets["captured"] = packets["bytes"] = len(one)
    packets["to"] = 1
    return data.ravel(), packets


def wait_until_quiet(player: FramePlayer) -> None:
    deadline, received = time.monotonic() + 60, -1
    while (state := player.progress()).senders or state.received != received:
        assert time.monotonic() < deadline, state
        received = state.received
        time.sleep(0.3)


def test_what_becomes_of_each_packet(wires: tuple[list[PlayHost], Relay]) -> None:
    """More packets than there are IPv4 identifications, so that these do not tell which is which."""
    hosts, relay = wires
    count = 70_000
    data, packets = played(count, gap_ns=20_000)
    with FramePlayer(data, hosts, packets) as player:
        player.start()
        wait_until_quiet(player)
        player.stop()
        state = player.progress()
        place = np.arange(count) % 100
        assert state.unexpected == state.ring_drops == 0
        assert (player.sent_ns >= packets["at_ns"]).all()
        assert np.array_equal(player.received_ns == NEVER, place == LOST)
        assert np.array_equal(player.reordered == 1, place == OVERTAKEN)
        assert np.array_equal(player.duplicates == 1, place == DOUBLED)
        assert state.received == count - count // 100
    assert all(is_whole(frame) for frame in relay.seen)
    assert len(relay.seen) == count // 100


def test_a_captured_sum_is_played_without_the_mark_that_no_host_may_send(
    wires: tuple[list[PlayHost], Relay],
) -> None:
    """A switch would drop it. What else is in BTH's reserved bits stays; the ICRC is right."""
    hosts, relay = wires
    data, packets = played(1, gap_ns=0)
    data[20 + 8 + 8] = 0x80 | 0x40 | 0x05  # asks for an acknowledgement
    with FramePlayer(data, hosts, packets) as player:
        player.start()
        wait_until_quiet(player)
        player.stop()
        assert player.progress().received == 1
    (frame,) = relay.seen
    assert frame[50] == 0x85
    assert is_whole(frame)


def test_stopping_at_once(wires: tuple[list[PlayHost], Relay]) -> None:
    hosts, _ = wires
    data, packets = played(2, gap_ns=3600 * 10**9)
    player = FramePlayer(data, hosts, packets)
    player.start()
    with pytest.raises(PlayerError, match="started already"):
        player.start()
    wait_for_one(player)
    player.stop()
    player.close()
    player.close()
    player.stop()
    with pytest.raises(PlayerError, match="the player is closed"):
        player.progress()
    assert (player.sent_ns[1], player.received_ns[1]) == (NEVER, NEVER)


def wait_for_one(player: FramePlayer) -> None:
    deadline = time.monotonic() + 30
    while player.progress().received == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interface_that_goes_away_is_said(wires: tuple[list[PlayHost], Relay]) -> None:
    hosts, _ = wires
    data, packets = played(100_000, gap_ns=1_000_000)
    with FramePlayer(data, hosts, packets) as player:
        player.start()
        wait_for_one(player)
        ip("link", "delete", hosts[0].interface)
        deadline = time.monotonic() + 30
        while not (error := player.progress().error):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert error.startswith(f"interface {hosts[0].interface} sends nothing: ")
