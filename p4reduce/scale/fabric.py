"""The machines, racks and links of a simulated fabric, and the size of a tensor's bytes on the wire.

Machines are alike, and so are the GPUs in a machine, the racks, and the uplinks of a rack. A strategy loads
machines alike, too. So one of each stands for all, and links have the names of this one. Where ranks differ
(a ring's next rank is in the machine, in the rack, or in another rack), each kind of hop has its own links.
`tests/p4reduce/scale` compares this with fabrics of which every link is simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from host_agent.wire.aggregation import CHUNK_BYTES
from host_agent.wire.headers import ROCE_OVERHEAD
from p4reduce.scale.flows import Link
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.hierarchy import Shape

MAX_GPUS_PER_HOST: Final = 8
MAX_GPUS: Final = 16384
ETHERNET_BYTES: Final = 14 + 4 + 20  # a frame's header, its checksum, preamble and gap

GPU_OUT: Final = "GPU out"
GPU_IN: Final = "GPU in"
NIC_UP: Final = "NIC up"
NIC_DOWN: Final = "NIC down"


def uplink(spine: int) -> str:
    """Name the link from the rack to a spine."""
    return f"up to spine {spine}"


def downlink(spine: int) -> str:
    """Name the link from a spine to the rack."""
    return f"down from spine {spine}"


@dataclass(frozen=True, kw_only=True)
class Framing:
    """Layout of messages: `packets` of `path_mtu` bytes each, whose first chunk is the header.

    `ethernet_bytes`: bytes that a frame has in addition on the wire.
    """

    path_mtu: int = 4096
    packets: int = 16
    window: int = 8
    ethernet_bytes: int = ETHERNET_BYTES

    def __post_init__(self) -> None:
        if self.path_mtu not in (256, 512, 1024, 2048, 4096):
            raise WorkloadError(
                f"a path MTU of {self.path_mtu} is not one of RoCE's: take 256, 512, 1024, 2048 or 4096"
            )
        if self.window not in (1, 2, 4, 8):
            raise WorkloadError(f"a window of {self.window} messages: take 1, 2, 4 or 8")
        if self.packets not in (2, 4, 8, 16, 32, 64):
            raise WorkloadError(f"a message of {self.packets} packets: take 2, 4, 8, 16, 32 or 64")

    @property
    def window_bytes(self) -> int:
        """W·P·MTU: the most bytes that a worker may have in flight."""
        return self.window * self.packets * self.path_mtu

    @property
    def packet_bytes(self) -> int:
        """A full packet on the wire."""
        return self.path_mtu + self._frame_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensor in a full message."""
        return self.packets * self.path_mtu - CHUNK_BYTES

    def wire_bytes(self, size: float) -> int:
        """Return the bytes on the wire for `size` bytes of one operation, with all headers and padding."""
        full, rest = divmod(math.ceil(size), self.payload_bytes)
        whole = full * self.packets * self.packet_bytes
        if rest == 0:
            return whole
        padded = CHUNK_BYTES * (1 - (-rest // CHUNK_BYTES))  # and the header's chunk
        return whole + padded + -(-padded // self.path_mtu) * self._frame_bytes

    def announcement_bytes(self, size: float) -> int:
        """Return the bytes sent before a sum of `size` bytes of floats: a window of messages of scales."""
        messages = min(self.window, -(-math.ceil(size) // self.payload_bytes))
        return messages * (CHUNK_BYTES + self._frame_bytes)

    @property
    def _frame_bytes(self) -> int:
        return ROCE_OVERHEAD + self.ethernet_bytes


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Rates in bit/s, each way: of a machine's NIC, a GPU's channel inside, and a link between switches.

    `alpha_s` is the latency of a hop: a link and the device at its end. A rack has at most `leaf_hosts`
    machines. If there are several racks, each has a link to each of `spines`.
    """

    hosts: int
    gpus_per_host: int = 1
    leaf_hosts: int = 16
    spines: int = 4
    rate: float
    intra_rate: float
    uplink_rate: float
    alpha_s: float = 1e-6
    framing: Framing = field(default_factory=Framing)

    def __post_init__(self) -> None:
        if not 1 <= self.gpus_per_host <= MAX_GPUS_PER_HOST:
            raise WorkloadError(
                f"{self.gpus_per_host} GPUs a machine: a machine has 1 to {MAX_GPUS_PER_HOST} here"
            )
        if self.hosts < 2:
            raise WorkloadError(
                f"{self.gpus} GPUs are one machine of {self.gpus_per_host}, and nothing crosses the network: "
                f"take at least {2 * self.gpus_per_host}, or fewer GPUs a machine"
            )
        if self.gpus > MAX_GPUS:
            raise WorkloadError(f"{self.gpus} GPUs are too many: take at most {MAX_GPUS}")
        if self.leaf_hosts < 1 or self.spines < 1:
            raise WorkloadError("a rack has at least one machine, and a fabric of several at least one spine")
        if not all(rate > 0 for rate in (self.rate, self.intra_rate, self.uplink_rate)):
            raise WorkloadError("a link has a rate: say 100gbit")
        if not 0 <= self.alpha_s < 1:
            raise WorkloadError(f"a hop of {self.alpha_s:g} s: take a latency below 1s")

    @property
    def gpus(self) -> int:
        return self.hosts * self.gpus_per_host

    @property
    def racks(self) -> int:
        return -(-self.hosts // self.leaf_hosts)

    @property
    def shape(self) -> Shape:
        """The parameters of the closed forms in `workloads.hierarchy`."""
        return Shape(hosts=self.hosts, gpus_per_host=self.gpus_per_host, k=self.intra_rate / self.rate)

    def spine(self, plane: int) -> int:
        """Return the spine that carries a plane's job, or its ring's connection to the next rack."""
        return plane % self.spines

    def capacities(self) -> dict[Link, float]:
        """Return the bytes per second of the links that stand for all."""
        nic, channel, between = (rate / 8 for rate in (self.rate, self.intra_rate, self.uplink_rate))
        links: dict[Link, float] = {GPU_OUT: channel, GPU_IN: channel, NIC_UP: nic, NIC_DOWN: nic}
        if self.racks > 1:
            for spine in range(self.spines):
                links[uplink(spine)] = links[downlink(spine)] = between
        return links

    def way_s(self, size: float, *, crosses: bool) -> float:
        """Return how long the last packet of `size` bytes on the wire takes from one machine to another.

        The way leads over the rack's switch, or over two leaves and a spine. A switch forwards a packet when
        it has received all of it.
        """
        packet = min(size, self.framing.packet_bytes) * 8
        if crosses:
            return 4 * self.alpha_s + packet * (2 / self.uplink_rate + 1 / self.rate)
        return 2 * self.alpha_s + packet / self.rate

    def tree_s(self, size: float) -> float:
        """Return how long a contribution takes to the switch that completes it, and its sum back."""
        return self.way_s(size, crosses=self.racks > 1)

    def window_limit(self, *, crosses: bool, answer_s: float = 0.0) -> float:
        """Return the most wire bytes per second of a connection: a window in a message's round trip.

        `answer_s`: the time that the answer takes.
        """
        message = self.framing.wire_bytes(self.framing.payload_bytes)
        there_s = message * 8 / self.rate + self.way_s(message, crosses=crosses)
        return self.framing.window * message / (there_s + answer_s)
