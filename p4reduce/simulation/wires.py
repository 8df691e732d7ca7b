"""Frames through a switch process, from its ports' far ends, in an order that its speed does not change."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address

_PATIENCE_S = 20.0
_EVERY_PROTOCOL = 0x0003
_SO_RCVBUFFORCE = 33
_PACKET_OUTGOING = 4


class SilentSwitchError(Exception):
    """A switch did not forward a fence, which it always forwards."""


class Wire:
    """The far end of a port's veth, in the namespace of the calling thread."""

    def __init__(self, interface: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)  # hears nothing until it is bound
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        self.socket.bind((interface, _EVERY_PROTOCOL))
        self.socket.setblocking(False)

    def send(self, frame: bytes) -> None:
        """Send a frame to the switch."""
        self.socket.send(frame)

    def received(self) -> Iterator[bytes]:
        """Yield the frames that have arrived so far."""
        while True:
            try:
                frame, address = self.socket.recvfrom(1 << 16)
            except BlockingIOError:
                return
            if address[2] != _PACKET_OUTGOING:
                yield frame

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def wait_for(wires: Sequence[Wire], timeout_s: float) -> None:
    """Wait until some wire has something to receive, or the time is over."""
    select.select([wire.socket for wire in wires], [], [], timeout_s)


class Bench:
    """The wires of all ports. Frames into a port are followed by a fence, which leaves by a known port.

    When the fence has come out there, the switch has decided on all frames that came in before it.
    """

    def __init__(self, wires: Mapping[int, Wire], fence: Fence) -> None:
        self.wires = wires
        self.fence = fence
        self.left: dict[int, list[bytes]] = {port: [] for port in wires}
        self.targets = list(wires)
        self._serial = 0

    def play(self, frames: Sequence[tuple[int, bytes]], *, batch: int) -> dict[int, list[bytes]]:
        """Send frames; return what came out of each port, in order."""
        at = 0
        while at < len(frames):
            port = frames[at][0]
            count = 0
            while count < batch and at < len(frames) and frames[at][0] == port:
                self.wires[port].send(frames[at][1])
                at, count = at + 1, count + 1
            self._pass(port, self.fence.port)
        first = next(iter(self.wires))
        for port in self.targets:  # every port's queue is empty when its fence is out
            self._pass(first, port)
        left, self.left = self.left, {port: [] for port in self.wires}
        return left

    def _pass(self, source: int, target: int) -> None:
        self._serial += 1
        mark = b"fence" + struct.pack(">QI", self._serial, target)
        self.wires[source].send(self.fence.frame(target) + mark)
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            wait_for(list(self.wires.values()), 0.5)
            for port, wire in self.wires.items():
                for frame in wire.received():
                    if frame.endswith(mark):
                        assert port == target
                        return self._rest()
                    if b"fence" not in frame[-17:]:
                        self.left[port].append(frame)
        raise SilentSwitchError(f"the fence from port {source} did not leave port {target}")

    def _rest(self) -> None:
        for port, wire in self.wires.items():
            for frame in wire.received():
                assert b"fence" not in frame[-17:]
                self.left[port].append(frame)

    def close(self) -> None:
        """Let go of the wires, also of those whose interface is gone."""
        for wire in self.wires.values():
            with contextlib.suppress(OSError):
                wire.close()


class Fence:
    """A fence's frame for a port; any content may follow it."""

    port = 1

    @staticmethod
    def address(port: int) -> IPv4Address:
        """Return the address of a port's fences, 10.99.0.PORT, for which the switch needs a route."""
        return IPv4Address(bytes([10, 99, 0, port]))

    def frame(self, port: int) -> bytes:
        """Return the head of an IPv4 packet to that address, to UDP port 9."""
        size = 20 + 8 + 17
        head = struct.pack(">BBHHHBBH", 0x45, 0, size, 1, 0, 64, 17, 0) + bytes([10, 98, 0, 1])
        head += self.address(port).packed
        total = sum(struct.unpack(">10H", head))
        total = (total & 0xFFFF) + (total >> 16)
        checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        head = head[:10] + struct.pack(">H", checksum) + head[12:]
        ethernet = bytes.fromhex("020000000001020000000002") + b"\x08\x00"
        return ethernet + head + struct.pack(">HHHH", 7, 9, 25, 0)
