"""Mapping of a capture's addresses to hosts of a fabric."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from topologies.state import ClusterState, HostKind, HostState

_FORM: Final = re.compile(r"([0-9.]+)=([A-Za-z0-9_-]+)")


def parse_mapping(texts: Sequence[str]) -> dict[IPv4Address, str]:
    """Parse `10.0.0.1=h3` and the like. WorkloadError for other texts, and if an address comes twice."""
    mapping: dict[IPv4Address, str] = {}
    for text in texts:
        match = _FORM.fullmatch(text.strip())
        try:
            address = IPv4Address(match[1]) if match else None
        except AddressValueError:
            address = None
        if match is None or address is None:
            raise WorkloadError(f"{text!r} maps nothing: say ADDRESS=HOST, as 10.0.0.1=h3")
        if address in mapping:
            raise WorkloadError(f"{address} is mapped twice, to {mapping[address]} and to {match[2]}")
        mapping[address] = match[2]
    return mapping


def hosts_for(
    cluster: ClusterState, endpoints: Sequence[IPv4Address], mapping: Mapping[IPv4Address, str]
) -> dict[IPv4Address, HostState]:
    """Return a host for each endpoint: the host it is mapped to, or the next one that is not taken.

    `endpoints` are in the order of their first appearance. WorkloadError if there are too few hosts, or if an
    address or a host does not exist.
    """
    strangers = [str(address) for address in mapping if address not in endpoints]
    if strangers:
        known = ", ".join(map(str, endpoints))
        raise WorkloadError(f"no packet of the capture is from or to {', '.join(strangers)}: it has {known}")
    chosen = {address: cluster.host(name) for address, name in mapping.items()}
    taken = {host.name for host in chosen.values()}
    free = iter([host for host in cluster.hosts if host.name not in taken])
    for address in endpoints:
        if address in chosen:
            continue
        host = next(free, None)
        if host is None:
            raise WorkloadError(
                f"the capture has {len(endpoints)} endpoints ({', '.join(map(str, endpoints))}) and cluster "
                f"{cluster.name} {len(cluster.hosts)} hosts: bring it up with more (--hosts {len(endpoints)})"
                ", or let one host play several that do not talk to each other (--map ADDRESS=HOST)"
            )
        chosen[address] = host
    for address, host in chosen.items():
        if host.kind is not HostKind.EMULATED:
            raise WorkloadError(
                f"{address} would be played by {host.name}, a machine with a RoCE stack of its own that "
                "these packets could disturb: only emulated hosts play captures (--map ADDRESS=HOST)"
            )
    return {address: chosen[address] for address in endpoints}
