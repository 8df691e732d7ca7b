"""What leaves the model and what leaves the compiled program, without what nobody may rely on."""

from __future__ import annotations

from host_agent.wire.aggregation import CHUNK_BYTES, MAGIC, SUMMED_BIT, Flags
from host_agent.wire.headers import ETHERTYPE_IPV4, RocePacket
from simulation.switch.tree_packets import TreeFlags, TreePacket

_HEADERS = 14 + 20 + 8 + 12  # Ethernet, IPv4, UDP, BTH
_ACK_REQ_OFFSET = _HEADERS - 4  # and BTH's reserved bits


def comparable(leaving: tuple[int, bytes]) -> tuple[int, bytes]:
    """A frame without what nobody may rely on: the lanes of a result that says the ranks do not agree.

    Where their packets differ in size, the longest one's last chunks are added to what an older message left.
    """
    port, frame = leaving
    head = frame[_HEADERS : _HEADERS + CHUNK_BYTES]
    is_sum = len(head) == CHUNK_BYTES and frame[_ACK_REQ_OFFSET] & SUMMED_BIT
    if is_sum and head[:4] == MAGIC.to_bytes(4, "big") and head[5] & Flags.MISMATCH:
        assert RocePacket.parse(frame).icrc_ok()
        return port, frame[: _HEADERS + CHUNK_BYTES] + bytes(len(frame) - _HEADERS - CHUNK_BYTES)
    return leaving


def normal(left: tuple[int, bytes]) -> tuple[int, bytes]:
    """A frame without padding, a PSN that is not valid, and lanes where the ranks disagree."""
    port, frame = left
    if frame[12:14] == ETHERTYPE_IPV4.to_bytes(2, "big"):
        frame = frame[: 14 + int.from_bytes(frame[16:18], "big")]
    packet = TreePacket.parse(frame)
    if packet is None:
        return comparable((port, frame))
    assert packet.icrc_ok()
    plain = packet.header()[: -3 if not packet.flags & TreeFlags.PSN_VALID else None]
    size = len(packet.payload)
    kept = packet.payload[:256] + bytes(size - 256) if packet.flags & TreeFlags.MISMATCH else packet.payload
    return port, frame[:42] + plain + kept


def describe(frame: bytes) -> str:
    """For a failed assertion."""
    packet: TreePacket | RocePacket | None = TreePacket.parse(frame)
    if packet is None:
        try:
            packet = RocePacket.parse(frame)
        except ValueError:
            return frame[:64].hex()
    text = str(packet)
    return text if len(text) < 900 else text[:900] + "..."
