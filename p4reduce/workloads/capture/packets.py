"""The frames of a capture that are RoCE v2 packets which a fabric can carry, and their places in the data.

Everything here works on whole columns: a capture may have millions of packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from host_agent.wire.headers import ROCE_V2_PORT
from p4reduce.workloads.capture.player import HEADER_BYTES
from p4reduce.workloads.capture.reading import Capture, LinkType
from p4reduce.workloads.errors import WorkloadError

_IPV4, _IPV6, _ROCE_V1 = 0x0800, 0x86DD, 0x8915
_VLAN_TAGS: Final = (0x8100, 0x88A8, 0x9100)
_MOST_TAGS: Final = 4
_UDP: Final = 17
_ICRC_BYTES: Final = 4
_LEAST_BYTES: Final = HEADER_BYTES + _ICRC_BYTES
_FIRST_MULTICAST: Final = 224  # the first byte of an address; 255 is broadcast
# link type: where the Ethernet type is, where what follows it begins
_LINK_HEADERS: Final = {
    LinkType.ETHERNET: (12, 14),
    LinkType.LINUX_COOKED: (14, 16),
    LinkType.LINUX_COOKED_V2: (0, 20),
}

OTHER = "not RoCE v2 (UDP port 4791)"
OVER_IPV6 = "RoCE v2 over IPv6: fabrics here carry IPv4"
ROCE_V1 = "RoCE v1: it has no IP header"
FRAGMENTS = "IP fragments"
OPTIONS = "IPv4 options"
MALFORMED = "lengths that contradict each other"
CUT_IN_HEADERS = "cut off before the end of the transport header"
MULTICAST = "multicast or broadcast"

Columns = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RocePackets:
    """A row a packet, ordered by time: its number in the file (from 1), time, place in the capture's data.

    `offsets` are those of the IPv4 header, `lengths` go from there to the ICRC, of which `captured` bytes are
    there. `left_out` counts the other frames, by reason.
    """

    capture: Capture
    numbers: Columns
    times_ns: Columns
    offsets: Columns
    lengths: Columns
    captured: Columns
    sources: Columns
    destinations: Columns
    queue_pairs: Columns
    left_out: dict[str, int]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.numbers)


def roce_packets(capture: Capture) -> RocePackets:
    """Return the RoCE v2 packets of a capture. WorkloadError if it has none."""
    left = _Left(capture)
    left.drop_all_but_ipv4()
    left.drop_all_but_roce()
    left.drop(CUT_IN_HEADERS, left.room() < HEADER_BYTES)
    left.drop(MALFORMED, (left.be16(24) != left.be16(2) - 20) | (left.be16(2) < _LEAST_BYTES))
    left.drop(MULTICAST, left.byte(16) >= _FIRST_MULTICAST)
    if not len(left.rows):
        raise WorkloadError(
            f"{capture.path} has {len(capture)} packets, and none that can be played: "
            + "; ".join(f"{count} {reason}" for reason, count in left.out.items())
        )
    lengths = left.be16(2)
    order = np.argsort(capture.times_ns[left.rows], kind="stable")
    captured = np.minimum(left.room(), lengths)
    return RocePackets(
        capture=capture,
        numbers=left.rows[order] + 1,
        times_ns=capture.times_ns[left.rows][order],
        offsets=left.starts[order],
        lengths=lengths[order],
        captured=captured[order],
        sources=left.be32(12)[order],
        destinations=left.be32(16)[order],
        queue_pairs=(left.be32(32) & 0xFFFFFF)[order],
        left_out=left.out,
        notes=(*capture.notes, *_notes(left, captured < lengths - _ICRC_BYTES, order)),
    )


def _notes(left: _Left, cut: NDArray[np.bool_], order: Columns) -> list[str]:
    notes = []
    if tagged := int(left.tagged[left.rows].sum()):
        notes.append(f"{tagged} packets had VLAN tags: they are played without")
    if count := int(cut.sum()):
        notes.append(
            f"the capture has only the beginning of {count} packets (its snapshot length): what is missing "
            "is played as zeros, all sizes are kept"
        )
    if int((np.diff(order) < 0).sum()):
        notes.append("packets are not in the order of their times in the file: they are played by time")
    return notes


class _Left:
    """The frames that may still be RoCE v2: their rows in the capture, and where their IP headers begin."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._ends = capture.offsets + capture.lengths
        self.rows = np.arange(len(capture))
        self.starts = capture.offsets.copy()
        self.tagged = np.zeros(len(capture), np.bool_)
        self.out: dict[str, int] = {}

    def drop(self, reason: str, gone: NDArray[np.bool_]) -> None:
        """Leave out those frames, and count them under `reason`."""
        if count := int(gone.sum()):
            self.out[reason] = self.out.get(reason, 0) + count
            self.rows, self.starts = self.rows[~gone], self.starts[~gone]

    def room(self) -> Columns:
        """Return the bytes that the capture has from the IP header on."""
        room: Columns = self._ends[self.rows] - self.starts
        return room

    def byte(self, at: int) -> Columns:
        """Return the byte so far behind each start; 0 if the capture does not have it."""
        return self._byte(self.starts + at)

    def be16(self, at: int) -> Columns:
        """Return two bytes, big endian."""
        return self.byte(at) << 8 | self.byte(at + 1)

    def be32(self, at: int) -> Columns:
        """Return four bytes, big endian."""
        return self.be16(at) << 16 | self.be16(at + 2)

    def _byte(self, places: Columns) -> Columns:
        if not self._capture.data.size:
            return np.zeros(len(places), np.int64)
        there = places < self._ends[self.rows]
        found = self._capture.data[np.where(there, places, 0)].astype(np.int64)
        found[~there] = 0
        return found

    def drop_all_but_ipv4(self) -> None:
        """Move the starts from the link's header to the IP header, and keep only IPv4."""
        if self._capture.link_type in _LINK_HEADERS:
            types = self._behind_link_header(*_LINK_HEADERS[self._capture.link_type])
        else:
            types = np.where(self.byte(0) >> 4 == 6, _IPV6, _IPV4)
        over_ipv6 = (types == _IPV6) & (self.byte(6) == _UDP) & (self.be16(42) == ROCE_V2_PORT)
        is_ipv4 = (types == _IPV4) & (self.byte(0) >> 4 == 4)
        self._drop_by(
            {OVER_IPV6: over_ipv6, ROCE_V1: types == _ROCE_V1, OTHER: ~is_ipv4},
        )

    def _behind_link_header(self, type_at: int, header_bytes: int) -> Columns:
        types = self.be16(type_at)
        self.starts = self.starts + header_bytes
        for _ in range(_MOST_TAGS):
            tagged = np.isin(types, _VLAN_TAGS)
            if not tagged.any():
                break
            self.tagged |= tagged
            types = np.where(tagged, self.be16(2), types)
            self.starts = self.starts + np.where(tagged, 4, 0)
        return types

    def drop_all_but_roce(self) -> None:
        """Keep only UDP to port 4791, not fragmented, behind an IPv4 header of 20 bytes."""
        header_bytes = (self.byte(0) & 0xF) * 4
        is_udp = self.byte(9) == _UDP
        rest = self.be16(6) & 0x3FFF  # more fragments, or an offset
        port_at = self.starts + header_bytes + 2
        port = self._byte(port_at) << 8 | self._byte(port_at + 1)
        later = (rest & 0x1FFF) != 0  # has no UDP header
        no_port = is_udp & ~later & (port_at + 1 >= self._ends[self.rows])
        self._drop_by(
            {
                OTHER: ~is_udp | (~no_port & ~later & (port != ROCE_V2_PORT)),
                CUT_IN_HEADERS: no_port,
                FRAGMENTS: rest != 0,
                OPTIONS: header_bytes != 20,
            }
        )

    def _drop_by(self, reasons: dict[str, NDArray[np.bool_]]) -> None:
        """Leave out each frame by the first reason that holds for it."""
        remaining = np.ones(len(self.rows), np.bool_)
        for reason, holds in reasons.items():
            now = holds[remaining]
            self.drop(reason, now)
            remaining[np.flatnonzero(remaining)[now]] = False
