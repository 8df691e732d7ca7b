"""Helpers that compare frames of the model with frames of the compiled program, without unspecified bytes."""

from __future__ import annotations

from host_agent.wire.headers import ETHERTYPE_IPV4, RocePacket
from p4reduce.oracle.tree_packets import TreePacket


def normal(left: tuple[int, bytes]) -> tuple[int, bytes]:
    """Return the port and the frame without Ethernet padding."""
    port, frame = left
    if frame[12:14] == ETHERTYPE_IPV4.to_bytes(2, "big"):
        frame = frame[: 14 + int.from_bytes(frame[16:18], "big")]
    return port, frame


def describe(frame: bytes) -> str:
    """Return a frame in words, for the message of a failed assertion."""
    try:
        packet = TreePacket.parse(frame) or RocePacket.parse(frame)
    except ValueError:
        return frame[:64].hex()
    return f"{packet!s:.900}"
