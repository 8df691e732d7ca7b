"""A machine's way to its host's links: each is bridged, in the host's namespace, with a tap of the machine's.

So a link is shaped, captured and removed with its namespace as that of any other host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from topologies.links import OFFLOADS, keep_order
from topologies.namespaces import run_inside
from topologies.state import HostState

# A cable: it forwards at once, says nothing of its own, and takes part in no multicast.
_CABLE: Final = ("type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0")


@dataclass(frozen=True, kw_only=True)
class Port:
    """An interface of a machine: its MAC, and the tap that is its other end."""

    tap: str
    mac: str


def attach(host: HostState, interface: str, *, place: int, mac: str, mtu: int) -> Port:
    """Bridge `interface` of `host` with a new tap, number `place`, behind which a machine has `mac`."""
    tap, bridge = f"{host.name}-tap{place}", f"{host.name}-br{place}"
    pid = host.process.pid

    def inside(*command: str) -> None:
        run_inside(pid, *command)

    inside("ip", "tuntap", "add", tap, "mode", "tap")
    inside("ip", "link", "set", "dev", tap, "mtu", str(mtu), "txqueuelen", "4096")
    inside("ethtool", "-K", tap, *(word for offload in OFFLOADS for word in (offload, "off")))
    keep_order(pid, tap)
    inside("ip", "link", "add", bridge, *_CABLE)
    for name in (interface, tap):
        inside("ip", "link", "set", "dev", name, "master", bridge, "up")
    inside("ip", "link", "set", "dev", bridge, "up")
    return Port(tap=tap, mac=mac)
