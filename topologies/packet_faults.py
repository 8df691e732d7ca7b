"""A fault on a cluster's links, and its places: ports of switches, or of the wires.

Every link has one place: the port of its leaf, or, with --fault-wires, the wire's end at the host or leaf. A
host's packets come in there, so "to-switch" is inward and "to-host" outward.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from controller.config import Target
from soft_switch.errors import FaultError
from soft_switch.faults import TREE_PACKETS, FaultRule, Packets
from topologies.errors import TopologyError, UnsupportedError
from topologies.state import ClusterState

ALL: Final = "*"
BOTH: Final = "both"
HOST_DIRECTIONS: Final = ("to-switch", "to-host")
SWITCH_DIRECTIONS: Final = ("a-to-b", "b-to-a")
DIRECTIONS: Final = (BOTH, *HOST_DIRECTIONS, *SWITCH_DIRECTIONS)
WIRES: Final = "wires"  # as the name of what has the ports
# Packets that are not everywhere (docs/protocol.md): in which directions, in words.
_WAYS: Final = {
    Packets.RESULT: (("to-host",), "what a switch sends to a host (LINK h1 --direction to-host)"),
    **dict.fromkeys(
        TREE_PACKETS, (SWITCH_DIRECTIONS, "between switches (LINK l1:s1, in a spine-leaf fabric)")
    ),
}
_SEED_MASK: Final = (1 << 64) - 1
_SPREAD: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True)
class PacketFault(FaultRule):
    """A rule for the packets of a link. Raises TopologyError if it makes no sense.

    `link`: "h1" or "h1:s1" (a host's link), "l1:s2", or "*" (all). `direction`: "to-switch" or "to-host" of
    hosts' links, "a-to-b" or "b-to-a" of a:b, "both". Each link and direction counts, and throws its dice,
    for itself.
    """

    link: str
    direction: str = BOTH

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise TopologyError(f"{self.direction!r} is no direction, there are {', '.join(DIRECTIONS)}")
        try:
            super().__post_init__()
        except FaultError as error:
            raise TopologyError(str(error)) from error

    def __str__(self) -> str:
        where = "all links" if self.link == ALL else f"link {self.link}"
        way = "both directions" if self.direction == BOTH else self.direction
        meant = ", ".join(words for words in (f"{self.packets.value} packets", self.which) if words)
        return f"{self.kind.value} on {where}, {way}: {meant}{f' ({self.how})' if self.how else ''}"

    @property
    def which(self) -> str:
        """Selection among these packets, in words; empty: all."""
        said = {"message": self.message, "PSN": self.psn, "QPN": self.qpn}
        words = [f"{name} {value}" for name, value in said.items() if value is not None]
        words += [f"after {self.skip}"] if self.skip else []
        words += [f"at most {self.count}"] if self.count is not None else []
        return ", ".join(words)

    @property
    def how(self) -> str:
        """Chance and strength, in words; empty: always, as usual."""
        words = [f"{self.probability * 100:g}%"] if self.probability < 1 else []
        words += [f"{self.copies} copies"] if self.copies > 1 else []
        words += [f"{self.delay_ms:g} ms"] if self.delay_ms else []
        words += [f"{self.bits} bits"] if self.bits > 1 else []
        return ", ".join(words)

    def encode(self) -> dict[str, Any]:
        """Return it as an object for JSON."""
        return {"link": self.link, "direction": self.direction, **super().encode()}

    def at(self, place: Place) -> FaultRule:
        """Return the rule for that port. Chance differs between links and directions."""
        rule = {field.name: getattr(self, field.name) for field in fields(FaultRule)}
        rule["seed"] = (
            self.seed * _SPREAD + zlib.crc32(f"{place.link} {place.direction}".encode())
        ) & _SEED_MASK
        return FaultRule(**rule)


class Place(NamedTuple):
    """A link in one direction: the port of a switch (or of the wires), and inward or outward there."""

    link: str
    way: str
    at: str
    port: int
    direction: str


def places(cluster: ClusterState, fault: PacketFault) -> list[Place]:
    """Return the places of a fault. Raise TopologyError that names the links, or UnsupportedError."""
    there = [place for place in _links(cluster, fault.link) if fault.direction in (BOTH, place.way)]
    if not there:
        raise TopologyError(
            f"no link {fault.link!r} has a direction {fault.direction}: hosts' links have "
            f"{' and '.join(HOST_DIRECTIONS)}, links between switches {' and '.join(SWITCH_DIRECTIONS)}"
        )
    ways, where = _WAYS.get(fault.packets, (DIRECTIONS, ""))
    found = [place for place in there if place.way in ways]
    if not found:
        raise TopologyError(
            f"{fault.packets.value} packets are never on link {fault.link}, {fault.direction}: "
            f"they are {where}"
        )
    for place in found:
        _require(cluster, place)
    return found


def _links(cluster: ClusterState, name: str) -> Iterator[Place]:
    """Yield every direction of the links of that name."""
    hosts = {host.name: host for host in cluster.hosts}
    name = cluster.host_link(name) or name
    if name != ALL and name not in hosts:
        if ":" not in name:
            known = [*hosts, *(link.name for link in cluster.links)]
            raise TopologyError(
                f"cluster {cluster.name} has no link {name!r}: it has {', '.join(known)}, and {ALL} for all"
            )
        cluster.link(name)
    for host in cluster.hosts:
        if name in (ALL, host.name):
            at, port = _port(cluster, host.name, host.switch, host.port)
            yield Place(host.name, "to-switch", at, port, "in")
            yield Place(host.name, "to-host", at, port, "out")
    for link in cluster.links:
        turned = f"{link.b}:{link.a}"
        if name in (ALL, link.name, turned):
            at, port = _port(cluster, link.name, link.a, link.a_port)
            # A wire's end at the leaf sees what the leaf sends come in; the leaf's own port sees it go out.
            from_leaf, to_leaf = ("in", "out") if cluster.wires is not None else ("out", "in")
            up, down = ("b-to-a", "a-to-b") if name == turned else ("a-to-b", "b-to-a")
            yield Place(link.name, up, at, port, from_leaf)
            yield Place(link.name, down, at, port, to_leaf)


def _port(cluster: ClusterState, link: str, leaf: str, port: int) -> tuple[str, int]:
    if cluster.wires is not None:
        return WIRES, cluster.wires.links[link]
    return leaf, port


def _require(cluster: ClusterState, place: Place) -> None:
    if place.at != WIRES and cluster.switch(place.at).target != Target.EMBEDDED.value:
        raise UnsupportedError(
            f"switch {place.at} is BMv2, which has no faults to inject: bring the cluster up with "
            "--fault-wires, which puts a wire that has them into every link"
        )
