"""Bytes over every link of a running cluster: hosts' and those between switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topologies import wires
from topologies.state import ClusterState
from workloads.run_file import LinkBytes


def link_names(cluster: ClusterState) -> list[str]:
    """`h1:s1` for each host, then `l1:s1` for each link between switches."""
    hosts = [f"{host.name}:{host.switch}" for host in cluster.hosts]
    return [*hosts, *(link.name for link in cluster.links)]


def link_bytes(cluster: ClusterState) -> dict[str, LinkBytes]:
    """What went over each link since it is there, as the kernel counted it at the switches' ends."""
    return decode(cluster, wires.interfaces(cluster))


def decode(cluster: ClusterState, interfaces: Mapping[str, Any]) -> dict[str, LinkBytes]:
    """From what the kernel says of each interface of the switches."""
    found = {}
    for host in cluster.hosts:
        counted = interfaces[cluster.switch(host.switch).interfaces[host.port]]["stats64"]
        found[f"{host.name}:{host.switch}"] = LinkBytes(
            up=counted["rx"]["bytes"], down=counted["tx"]["bytes"]
        )
    for wire in wires.decode(cluster, interfaces):
        found[wire.link.name] = LinkBytes(up=wire.upward.bytes, down=wire.downward.bytes)
    return found


def since(now: Mapping[str, LinkBytes], earlier: Mapping[str, LinkBytes]) -> dict[str, LinkBytes]:
    """What went over each link between two looks."""
    return {
        name: LinkBytes(up=bytes_.up - earlier[name].up, down=bytes_.down - earlier[name].down)
        for name, bytes_ in now.items()
    }


def mean(looks: Sequence[Mapping[str, LinkBytes]], *, repeat: int = 1) -> dict[str, LinkBytes]:
    """What one of several looks found on average, each of `repeat` times the same."""
    count = len(looks) * repeat
    return {
        name: LinkBytes(
            up=round(sum(look[name].up for look in looks) / count),
            down=round(sum(look[name].down for look in looks) / count),
        )
        for name in looks[0]
    }
