"""Peers of a worker's two queue pairs, and the parameters on which both sides must agree."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address

PATH_MTUS = (256, 512, 1024, 2048, 4096)
_MOST_24_BITS = 2**24 - 1


@dataclass(frozen=True, kw_only=True)
class Successor:
    """The next worker on the ring: our QP_out sends to its QP_in."""

    mac: str
    ip: IPv4Address
    qpn_in: int


@dataclass(frozen=True, kw_only=True)
class Predecessor:
    """The worker before us on the ring: its QP_out sends to our QP_in, starting at `psn_out`.

    `rank` None: the one before ours, as in a ring by rank.
    """

    mac: str
    ip: IPv4Address
    qpn_out: int
    psn_out: int
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class TransportConfig:
    """One worker's connection to its neighbours for one generation of a job.

    `window` (W, messages) and `message_packets` (P, packets a message) are powers of two, 2W <= 16 and
    P <= 64; `path_mtu` is the payload of a full packet in bytes. `retry_limit` is the number of timeouts
    in a row, without any progress, after which the connection fails; 0 retries for as long as it lives.
    `selective` repeats lost packets alone (both neighbours have to agree), else go-back-N. `in_flight_bytes`
    caps the payload that is under way further than the window does, in whole messages. After `rto_low_s`
    without a word, or as long as acknowledgements take, the ends of what was sent are sent again (0: never);
    after `rto_s` a whole message.
    """

    mac: str
    ip: IPv4Address
    qpn_out: int
    psn_out: int
    qpn_in: int
    successor: Successor
    predecessor: Predecessor
    path_mtu: int
    window: int
    message_packets: int
    job_id: int
    generation: int
    rank: int
    world_size: int
    selective: bool = False
    in_flight_bytes: int | None = None
    first_message: int = 0
    """The number that messages count from; only tests, which begin near the wrap, give another than 0."""
    rto_low_s: float = 0.002
    rto_s: float = 0.05
    rto_max_s: float = 1.0
    retry_limit: int = 0
    check_icrc: bool = True
    max_burst: int = 64
    """Frames handed to the interface at once; BMv2's capture buffer loses bursts of more than 32."""

    def __post_init__(self) -> None:
        if self.path_mtu not in PATH_MTUS:
            raise ValueError(f"path_mtu {self.path_mtu} is not one of {PATH_MTUS}")
        if self.message_packets not in (1, 2, 4, 8, 16, 32, 64):
            raise ValueError(f"message_packets {self.message_packets} is not a power of two up to 64")
        if self.path_mtu == 256 and self.message_packets < 2:
            raise ValueError("path_mtu 256 needs message_packets >= 2: the first packet is all header")
        if self.window not in (1, 2, 4, 8):
            raise ValueError(f"window {self.window} is not a power of two up to 8")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not below world_size {self.world_size}")
        if not 0 <= self.predecessor_rank < self.world_size:
            raise ValueError(
                f"the predecessor's rank {self.predecessor_rank} is not below world_size {self.world_size}"
            )
        if not 1 <= self.max_burst <= 256:
            raise ValueError(f"max_burst {self.max_burst} is not between 1 and 256")
        if not 0 < self.rto_s <= self.rto_max_s:
            raise ValueError(f"rto_s {self.rto_s} is not between 0 and rto_max_s {self.rto_max_s}")
        if not 0 <= self.rto_low_s <= self.rto_s:
            raise ValueError(f"rto_low_s {self.rto_low_s} is not between 0 and rto_s {self.rto_s}")
        if not 0 <= self.first_message < 2**32:
            raise ValueError(f"first_message {self.first_message} is not a 32-bit number")
        if self.in_flight_bytes is not None and not 0 < self.in_flight_bytes < 2**32:
            raise ValueError(f"in_flight_bytes {self.in_flight_bytes} is not between 1 and 2^32 - 1")
        for name, value in (
            ("qpn_out", self.qpn_out),
            ("qpn_in", self.qpn_in),
            ("psn_out", self.psn_out),
            ("successor.qpn_in", self.successor.qpn_in),
            ("predecessor.qpn_out", self.predecessor.qpn_out),
            ("predecessor.psn_out", self.predecessor.psn_out),
        ):
            if not 0 <= value <= _MOST_24_BITS:
                raise ValueError(f"{name} {value} does not fit 24 bits")
        if self.qpn_out == self.qpn_in:
            raise ValueError(
                f"qpn_out and qpn_in are both {self.qpn_in:#x}: the two QPs need different numbers"
            )

    @property
    def predecessor_rank(self) -> int:
        """The rank whose messages QP_in takes."""
        if self.predecessor.rank is None:
            return (self.rank - 1) % self.world_size
        return self.predecessor.rank
