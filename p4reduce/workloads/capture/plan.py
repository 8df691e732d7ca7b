"""Assignment of a capture's packets to a cluster's hosts and to times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.capture.hosts import hosts_for
from p4reduce.workloads.capture.packets import RocePackets
from p4reduce.workloads.capture.player import PACKET
from p4reduce.workloads.errors import WorkloadError
from p4src import PATH_MTUS
from topologies.links import LinkShape
from topologies.state import ClusterState, HostState

_DAY_NS: Final = 86_400 * 10**9
_MOST_DAYS: Final = 30


def require_room(cluster: ClusterState, packets: RocePackets) -> None:
    """Raise WorkloadError if a packet is larger than the cluster's links carry."""
    mtu = LinkShape(path_mtu=cluster.path_mtu).mtu
    worst = int(np.argmax(packets.lengths))
    largest = int(packets.lengths[worst])
    if largest <= mtu:
        return
    enough = next((size for size in PATH_MTUS if LinkShape(path_mtu=size).mtu >= largest), None)
    remedy = (
        "no path MTU of RoCE needs such links" if enough is None else f"bring it up with '--mtu {enough}'"
    )
    raise WorkloadError(
        f"{packets.capture.path}: packet {packets.numbers[worst]} has {largest} bytes from its IP header on "
        f"(and {int((packets.lengths > mtu).sum())} packets have more than {mtu}), and the links of cluster "
        f"{cluster.name} carry {mtu}: {remedy}. Nothing was sent"
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """The packets to play: `played` is the player's form of them, `hosts` are those that it numbers."""

    cluster: ClusterState
    packets: RocePackets
    endpoints: dict[IPv4Address, HostState]
    hosts: list[HostState]
    played: NDArray[np.void]

    @staticmethod
    def of(
        cluster: ClusterState, packets: RocePackets, mapping: Mapping[IPv4Address, str], *, speed: float
    ) -> Plan:
        """Make a plan. WorkloadError if addresses do not fit the cluster's hosts, or times cannot be true."""
        endpoints = hosts_for(cluster, in_order_of_appearance(packets), mapping)
        hosts = [host for host in cluster.hosts if host in endpoints.values()]
        numbers = {int(address): hosts.index(host) for address, host in endpoints.items()}
        played = np.zeros(len(packets), PACKET)
        since = packets.times_ns - packets.times_ns[0]
        if speed and (days := since[-1] / speed / _DAY_NS) > _MOST_DAYS:
            raise WorkloadError(
                f"{packets.capture.path} takes {days:,.0f} days to play, from packet {packets.numbers[0]} to "
                f"packet {packets.numbers[-1]}: if its times are right, play it at a higher speed (--speed)"
            )
        played["at_ns"] = 0 if speed == 0 else np.rint(since / speed)
        played["offset"] = packets.offsets
        played["captured"] = packets.captured
        played["bytes"] = packets.lengths
        played["from"] = _numbered(packets.sources, numbers)
        played["to"] = _numbered(packets.destinations, numbers)
        if (themselves := np.flatnonzero(played["from"] == played["to"])).size:
            row = int(themselves[0])
            source, destination = (IPv4Address(int(a[row])) for a in (packets.sources, packets.destinations))
            raise WorkloadError(
                f"{source} sends to {destination} (packet {packets.numbers[row]}), and both are played by "
                f"{endpoints[source].name}: map them to two hosts"
            )
        return Plan(cluster, packets, endpoints, hosts, played)


def in_order_of_appearance(packets: RocePackets) -> list[IPv4Address]:
    """Return every address of the capture once, sources before destinations."""
    both = np.stack([packets.sources, packets.destinations], axis=1).ravel()
    addresses, first = np.unique(both, return_index=True)
    return [IPv4Address(int(address)) for address in addresses[np.argsort(first)]]


def _numbered(addresses: NDArray[np.int64], numbers: Mapping[int, int]) -> NDArray[np.int64]:
    known, inverse = np.unique(addresses, return_inverse=True)
    return np.array([numbers[int(address)] for address in known], np.int64)[inverse]
