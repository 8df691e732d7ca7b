"""State of a switch: flows, routes and links from the controller, slots and records from packets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from ipaddress import IPv4Address

import numpy as np
from numpy.typing import NDArray

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES, HEADER_BYTES, LANE_BYTES, MAX_CHUNKS, Op
from host_agent.wire.headers import DEFAULT_UDP_SOURCE_PORT
from host_agent.wire.values import value_class
from p4reduce.oracle import half

Out = tuple[int, bytes]  # port, frame
Tag = tuple[int, int]  # generation, message

ELSEWHERE = -1  # the port of who is in another rack
BUCKETS = 16  # that messages are spread over spines by
MOST_AGGREGATED = 2**31  # messages of a generation: slots compare serial numbers


@value_class(frozen=True, kw_only=True)
class Flow:
    """Rank `rank`'s connection to its successor: data goes src → dst_qp, ACKs come back to src_qp.

    `first_psn` is src_qp's. `rnr_syndrome`: the timer of the RNR NAKs that the sender's NIC wants (0: it
    wants none). A field that the switch is not told has its default. Packets of an end in another rack come
    and go by any uplink.
    """

    rank: int = 0
    port: int = ELSEWHERE
    src_mac: bytes = bytes(6)
    src_ip: IPv4Address = IPv4Address(0)
    src_qp: int = 0
    dst_port: int = ELSEWHERE
    dst_mac: bytes = bytes(6)
    dst_ip: IPv4Address = IPv4Address(0)
    dst_qp: int = 0
    udp_src_port: int = DEFAULT_UDP_SOURCE_PORT
    first_psn: int = 0
    rnr_syndrome: int = 0


@value_class(frozen=True, kw_only=True)
class Route:
    """The next hop towards a host."""

    port: int
    src_mac: bytes
    dst_mac: bytes


@value_class(frozen=True, kw_only=True)
class Link:
    """A link to another switch: the addresses of this switch's end (src) and of the other's (dst)."""

    src_mac: bytes
    dst_mac: bytes
    src_ip: IPv4Address
    dst_ip: IPv4Address


@value_class(frozen=True)
class Record:
    """The message that a First packet has announced."""

    message: int
    psn: int
    packets: int
    op: Op


_LANE = np.dtype(">i4")
_COMBINE: dict[int, np.ufunc] = {  # of lanes of 32 bits
    Op.SUM: np.add,
    Op.MAX: np.maximum,
}
_ZEROS = np.zeros(CHUNK_BYTES // LANE_BYTES, np.int32)
_NEVER_WRITTEN = [_ZEROS] * MAX_CHUNKS


@dataclass
class Slot:
    """The aggregator of one fragment.

    `ranks`: the places of those that have contributed, among the rack's workers or, on a spine, the job's
    leaves; `psns`: the PSN of each one's packet. `result`: it holds the sum of all workers. `chunks` and
    `seconds` are what the registers hold, the first contributor's header included: `seconds` are the second
    numbers of lanes, while halves are added up. A chunk's lanes are replaced, never written into. `shape` is
    that of the first contributor's packet; it says which of the chunks `tag` has written.
    """

    tag: Tag | None = None
    ranks: set[int] = field(default_factory=set)
    chunks: list[NDArray[np.int32]] = field(default_factory=_NEVER_WRITTEN.copy)
    seconds: list[NDArray[np.int32]] = field(default_factory=_NEVER_WRITTEN.copy)
    op: int = Op.PASS  # the first contributor's
    count: int = 0  # chunks in its packet
    mismatch: bool = False
    result: bool = False
    psns: dict[int, int] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Op and chunks, which every packet that is added here must have too."""
        return self.op, self.count

    def behind(self, tag: Tag) -> bool:
        """Return whether it may be claimed for `tag`: it holds an older message or another generation's."""
        return self.tag is None or self.tag[0] != tag[0] or serial_age(self.tag[1], tag[1]) > 0

    @property
    def header(self) -> bytes:
        """The first chunk: the header, if the fragment's index is 0."""
        return self.chunks[0].astype(_LANE).tobytes()

    def claim(self, tag: Tag) -> None:
        """Forget all but the lanes."""
        self.tag, self.ranks, self.mismatch, self.result, self.psns = tag, set(), False, False, {}

    def store(self, payload: bytes, op: int, index: int, *, last: bool) -> None:
        """Replace what is there; chunks that the payload does not have keep what they hold.

        `last`: nothing is to be added.
        """
        values = lanes_of(payload)
        self.chunks[: len(values)] = values
        if op == Op.SUM_HALF and not last:
            for chunk in range(index == 0, len(values)):  # a header is none
                self.chunks[chunk], self.seconds[chunk] = half.numbers(values[chunk])

    def add(self, payload: bytes, op: int, index: int, *, last: bool) -> None:
        """Add lane by lane; in a header, behind its fields, take the larger of each byte.

        `last`: nothing more comes.
        """
        for chunk, value in enumerate(lanes_of(payload)):
            old = self.chunks[chunk]
            if index == chunk == 0:
                self.chunks[0] = header_of(old, value)
            elif op == Op.SUM_HALF:
                sums = np.add(half.numbers(value), (old, self.seconds[chunk]))
                if last:
                    self.chunks[chunk] = half.rounded(sums)
                else:
                    self.chunks[chunk], self.seconds[chunk] = sums
            elif op == Op.MAX_HALF:
                self.chunks[chunk] = np.maximum(old.view(np.int16), value.view(np.int16)).view(np.int32)
            else:
                self.chunks[chunk] = _COMBINE[op](old, value)

    def disagrees(self, index: int, shape: tuple[int, int]) -> bool:
        """Return whether ranks disagree, or a receiver's own packet has another shape."""
        return self.mismatch or (index == 0 and shape != self.shape)

    def load(self, index: int, shape: tuple[int, int]) -> bytes:
        """Return what is stored, for the sender of a packet of that shape.

        If ranks disagree, this is the header and zeros: the chunks behind the header may hold what an older
        message, even of another job, has left.
        """
        _, count = shape
        if index == 0 and self.disagrees(index, shape):
            return self.header.ljust(count * CHUNK_BYTES, b"\0")
        return np.concatenate(self.chunks[:count]).astype(_LANE).tobytes()


@dataclass
class Owner:
    """A job on a switch and its region of 2·W·P slots."""

    job: int
    generation: int
    window: int
    packets: int

    def __post_init__(self) -> None:
        self.messages = 2 * self.window
        self.slots = [Slot() for _ in range(self.messages * self.packets)]
        self.counters: Counter[str] = Counter()

    def slot(self, message: int, index: int) -> Slot:
        return self.slots[message % self.messages * self.packets + index]

    def heard_of_mismatch(self, message: int) -> bool:
        """Return whether ranks disagree about the message.

        Then only its first packet, which says so, goes on.
        """
        first = self.slot(message, 0)
        return first.tag == (self.generation, message) and first.mismatch

    def is_over(self, message: int) -> bool:
        """Return whether a message 2W later has taken the first packet's slot.

        Everybody has all of this message then, and its first PSNs are gone.
        """
        return self.slot(message, 0).tag != (self.generation, message)

    def drop(self, reason: str) -> list[Out]:
        """Count `reason`, and send nothing."""
        self.counters[reason] += 1
        return []


@dataclass
class LeafTree:
    """A job's place on a leaf if it has workers in other racks too; the rack's last flow leaves the rack."""

    entering: Flow  # whose receiver alone is here
    uplinks: list[int | None]  # the port that leads to the spine of each bucket


@dataclass
class Job(Owner):
    """A job's flows with senders in this rack, and per flow the First packets of its last 2W messages."""

    flows: tuple[Flow, ...]
    tree: LeafTree | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contributors = len(self.flows)
        self.places = {flow.rank: place for place, flow in enumerate(self.flows)}
        self.records: list[dict[int, Record]] = [{} for _ in self.flows]
        self.latest: list[Record | None] = [None for _ in self.flows]
        self.awaited: list[int | None] = [None for _ in self.flows]  # all before it is acknowledged
        self.first_psns = [[0] * self.messages for _ in self.flows]

    def psn(self, place: int, message: int, index: int) -> int:
        """Return the PSN of a message's packet on a flow."""
        return psn_math.add(self.first_psns[place][message % self.messages], index)


@dataclass
class SpineJob(Owner):
    """A job on a spine: the ports of its leaves, in the order of the ring."""

    leaves: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contributors = len(self.leaves)


def header_of(first: NDArray[np.int32], other: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the first header's fields, and behind them the larger of each byte."""
    found, bytes_of_other = (lanes.astype(_LANE).view(np.uint8) for lanes in (first, other))
    np.maximum(found[HEADER_BYTES:], bytes_of_other[HEADER_BYTES:], out=found[HEADER_BYTES:])
    return found.view(_LANE).astype(np.int32)


def lanes_of(payload: bytes) -> NDArray[np.int32]:
    """Return a payload's lanes, a row for each chunk."""
    return np.frombuffer(payload, _LANE).astype(np.int32).reshape(-1, CHUNK_BYTES // LANE_BYTES)


def serial_age(message: int, latest: int) -> int:
    """Return how far `message` is behind `latest`; negative if it is ahead (32-bit serial numbers)."""
    return ((latest - message + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
