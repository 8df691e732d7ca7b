"""What leaves the model and what leaves the compiled program, without what nobody may rely on."""

from __future__ import annotations

from host_agent.wire.headers import ETHERTYPE_IPV4, RocePacket
from p4reduce.oracle.tree_packets import TreePacket


def normal(left: tuple[int, bytes]) -> tuple[int, bytes]:
    """A frame without padding."""
    port, frame = left
    if frame[12:14] == ETHERTYPE_IPV4.to_bytes(2, "big"):
        frame = frame[: 14 + int.from_bytes(frame[16:18], "big")]
    return port, frame


def describe(frame: bytes) -> str:
    """For a failed assertion."""
    try:
        packet = TreePacket.parse(frame) or RocePacket.parse(frame)
    except ValueError:
        return frame[:64].hex()
    return f"{packet!s:.900}"
