"""The links between a running cluster's switches, as the kernel has them: up or down, their traffic.

The kernel counts at the veths, so that these figures outlive a switch that dies and starts again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.config import Target
from topologies.launch import namespace_command
from topologies.namespaces import NETNS_DIRECTORY, run
from topologies.state import ClusterState, HostState, LinkState

HOLE: Final = "blackhole"  # a queueing discipline that drops everything


@dataclass(frozen=True)
class Traffic:
    """Frames, and their bytes from the Ethernet header on."""

    packets: int = 0
    bytes: int = 0

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.packets - earlier.packets, self.bytes - earlier.bytes)


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A link: whether both ends are up, and the traffic from its leaf up and from its spine down."""

    link: LinkState
    is_up: bool
    upward: Traffic
    downward: Traffic

    def since(self, earlier: Wire) -> Wire:
        """Return the traffic since an earlier look."""
        return Wire(
            link=self.link,
            is_up=self.is_up,
            upward=self.upward - earlier.upward,
            downward=self.downward - earlier.downward,
        )


def wires(cluster: ClusterState) -> list[Wire]:
    """Return all links between switches, as they are now."""
    return decode(cluster, interfaces(cluster)) if cluster.links else []


def interfaces(cluster: ClusterState) -> dict[str, Any]:
    """Return the output of `ip -json -statistics link show` for each interface of the switches."""
    shown = json.loads(run(*_entering(cluster), "ip", "-json", "-statistics", "link", "show"))
    return {interface["ifname"]: interface for interface in shown}


def decode(cluster: ClusterState, shown: Mapping[str, Any]) -> list[Wire]:
    """Return links from the kernel's data on each interface."""
    return [
        Wire(
            link=link,
            is_up=all(_is_up(shown[end]) for end in (link.a_interface, link.b_interface)),
            upward=_sent(shown[link.a_interface]),
            downward=_sent(shown[link.b_interface]),
        )
        for link in cluster.links
    ]


def since(now: list[Wire], earlier: list[Wire]) -> list[Wire]:
    """Return each link's traffic between two looks."""
    return [wire.since(old) for wire, old in zip(now, earlier, strict=True)]


def set_link(cluster: ClusterState, link: LinkState, *, up: bool) -> None:
    """Take a link down, both ends, or up again, as it was shaped."""
    inside = _entering(cluster)
    for interface in (link.a_interface, link.b_interface):
        if cluster.target != Target.BMV2.value:
            run(*inside, "ip", "link", "set", "dev", interface, "up" if up else "down")
        else:
            _set_hole(inside, interface, link.qdiscs, up=up)


def set_host_link(cluster: ClusterState, host: HostState, *, up: bool) -> None:
    """Take a host's link down, or up again, as it was shaped.

    As when a cable is pulled, the host's end has no carrier, but keeps its address and neighbours: the
    switch's end goes down.
    """
    interface = cluster.switch(host.switch).interfaces[host.port]
    if cluster.wires is not None:
        end = wire_end(host.interface)
        run(*_entering(cluster), "ip", "link", "set", "dev", end, "up" if up else "down")
        return
    if cluster.target != Target.BMV2.value:
        run(*_entering(cluster), "ip", "link", "set", "dev", interface, "up" if up else "down")
        return
    _set_hole(_entering(cluster), interface, host.qdiscs, up=up)
    _set_hole(namespace_command(host), host.interface, host.qdiscs, up=up)


def wire_end(interface: str) -> str:
    """Return the wire's interface opposite one of a host or switch, with --fault-wires."""
    return f"w-{interface}"


def _set_hole(inside: Sequence[str], interface: str, qdiscs: Sequence[str], *, up: bool) -> None:
    """Let an interface drop all that it sends, or send again as it was shaped; it stays up.

    BMv2 hears nothing on any port once one of its ports is down.
    """
    if not up:
        run(*inside, "tc", "qdisc", "replace", "dev", interface, "root", HOLE)
        return
    (shown,) = json.loads(run(*inside, "ip", "-json", "link", "show", "dev", interface))
    if shown["qdisc"] == HOLE:
        run(*inside, "tc", "qdisc", "del", "dev", interface, "root")
        for qdisc in qdiscs:
            run(*inside, "tc", "qdisc", "add", "dev", interface, *qdisc.split())


def _is_up(interface: Mapping[str, Any]) -> bool:
    return "UP" in interface["flags"] and interface["qdisc"] != HOLE


def _sent(interface: Mapping[str, Any]) -> Traffic:
    counted = interface["stats64"]["tx"]
    return Traffic(packets=counted["packets"], bytes=counted["bytes"])


def _entering(cluster: ClusterState) -> list[str]:
    return ["nsenter", f"--net={NETNS_DIRECTORY / cluster.namespace}", "--"]
