"""The ends of a fabric link: rate, MTU, offloads off; anything that cannot be set is an error."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from typing import Any, Final

from mininet.link import Intf

from host_agent.wire.headers import ROCE_OVERHEAD
from topologies.errors import TopologyError, UnsupportedError
from topologies.namespaces import run, run_inside

ETHERNET_OVERHEAD: Final = 14
# rdma_rxe takes 80 bytes off the link's MTU, for any header there could be, before it looks for a path MTU.
_ROOM_FOR_HEADERS: Final = 128
WINDOW_PACKETS: Final = 128  # W·P of the largest window: what a worker may have in flight
_WINDOWS: Final = 16  # jobs that may share a link
_SLACK_BYTES: Final = 256 * 1024  # acknowledgements, resent packets
OFFLOADS: Final = ("tx", "rx", "tso", "gso", "gro")


@dataclass(frozen=True, kw_only=True)
class LinkShape:
    """A link of `rate_mbit` (None: as fast as it goes) that carries `path_mtu`; the same both ways.

    `delay_ms` and `loss` (a probability) need netem in the kernel.
    """

    path_mtu: int
    rate_mbit: float | None = None
    delay_ms: float = 0.0
    loss: float = 0.0

    @property
    def mtu(self) -> int:
        """The link's MTU, with room for the management of a real network (at least 1500)."""
        return max(1500, self.path_mtu + _ROOM_FOR_HEADERS)

    @property
    def queue_bytes(self) -> int:
        """Size of a queue that holds a full window of 16 jobs: the links lose nothing by themselves."""
        frame = self.path_mtu + ROCE_OVERHEAD + ETHERNET_OVERHEAD
        return _WINDOWS * WINDOW_PACKETS * frame + _SLACK_BYTES

    def qdiscs(self) -> list[str]:
        """Return the arguments of `tc qdisc add dev X`, in order."""
        commands, parent = [], "root"
        if self.rate_mbit is not None:
            # What a busy machine is late by must not be lost to the rate: 4 ms.
            burst = max(2 * (self.mtu + ETHERNET_OVERHEAD), round(self.rate_mbit * 1e6 / 8 * 0.004))
            commands.append(
                f"{parent} handle 5: tbf rate {round(self.rate_mbit * 1e6)}bit burst {burst} "
                f"limit {self.queue_bytes}"
            )
            parent = "parent 5:1"
        if self.delay_ms or self.loss:
            packets = self.queue_bytes // (256 + ROCE_OVERHEAD)
            commands.append(
                f"{parent} handle 10: netem delay {self.delay_ms:g}ms "
                f"loss {self.loss * 100:g}% limit {packets}"
            )
        return commands


def parse_rate_mbit(text: str) -> float | None:
    """Parse `100mbit`, `1gbit`, `1.5Gbit/s`, `800kbit`, a number of Mbit/s, or `none`; return Mbit/s.

    Raise TopologyError for a unit that may mean bits or bytes: in tc `mbps` means bytes, elsewhere it does
    not.
    """
    if text.strip().lower() in ("none", "unlimited"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmg])(bit(?:/s|ps)?|b?(?:/s|ps)?))?", text.strip().lower())
    if match is None:
        raise TopologyError(f"{text!r} is no rate: say 100mbit, 1gbit or none")
    number, prefix, unit = float(match[1]), match[2] or "m", match[3] or ""
    if number == 0:
        raise TopologyError(f"{text!r} is no rate: say none for a link without a limit, or 100mbit, 1gbit")
    if match[2] and not unit.startswith("bit"):
        raise TopologyError(
            f"{text!r} may mean bits or bytes: say {number:g}{prefix}bit, or {8 * number:g}{prefix}bit if "
            "you mean bytes a second, as tc does by mbps"
        )
    return number * {"k": 1e-3, "m": 1.0, "g": 1e3}[prefix]


def require_netem() -> None:
    """Raise UnsupportedError if this kernel has no netem, tried on the present namespace's loopback."""
    try:
        run("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except TopologyError as error:
        raise UnsupportedError(
            "this kernel has no netem, so links cannot delay or lose packets; the embedded switch can lose "
            f"them by itself: --switch-loss PROBABILITY ({error})"
        ) from error
    run("tc", "qdisc", "del", "dev", "lo", "root")


class FabricIntf(Intf):  # type: ignore[misc]
    """One end of a fabric link, with its `shape`."""

    def config(self, *, shape: LinkShape | None = None, **params: Any) -> dict[str, Any]:
        """Configure as Mininet does, then apply `shape`. Raise TopologyError if something does not hold."""
        result: dict[str, Any] = super().config(**params)
        if shape is not None:
            self._apply(shape)
        return result

    def _apply(self, shape: LinkShape) -> None:
        self._must("ip", "link", "set", "dev", self.name, "mtu", str(shape.mtu), "txqueuelen", "4096", "up")
        self._must("ethtool", "-K", self.name, *(word for o in OFFLOADS for word in (o, "off")))
        for qdisc in shape.qdiscs():
            self._must("tc", "qdisc", "add", "dev", self.name, *qdisc.split())
        keep_order(self.node.pid, self.name)
        features = self._must("ethtool", "-k", self.name)
        for feature in ("tx-checksumming", "tcp-segmentation-offload", "generic-receive-offload"):
            if f"{feature}: off" not in features:
                raise TopologyError(f"{self.name}: {feature} cannot be turned off")

    def _must(self, *command: str) -> str:
        return run_inside(self.node.pid, *command)


def keep_order(pid: int, interface: str) -> None:
    """Deliver what an interface in the namespace of the process `pid` receives through one processor's queue.

    A cable keeps frames in order; a veth's frames wait in the queue of whichever processor sent them, and
    a shaped link is served by two: its sender's and its timer's. Receive packet steering (where a kernel
    has it) puts them in one queue again. Without it, connections recover, at the price of resent packets.
    """
    processors = sorted(os.sched_getaffinity(0))
    mask = 1 << processors[zlib.crc32(interface.encode()) % len(processors)]
    words = f"{mask:x}"
    words = ",".join(words[max(0, end - 8) : end] for end in range(len(words), 0, -8)[::-1])
    path = f"/sys/class/net/{interface}/queues/rx-0/rps_cpus"
    script = f"mount -t sysfs sysfs /sys && if [ -e {path} ]; then echo {words} > {path}; fi"
    run_inside(pid, "unshare", "--mount", "sh", "-c", script)  # a /sys of this network namespace
