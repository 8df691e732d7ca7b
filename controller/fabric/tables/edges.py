"""Edges: who is behind which port."""

from __future__ import annotations

from ipaddress import IPv4Address

from controller.entries import TableEntry, table_entry

EDGE_PORT = "SwitchIngress.edges.port"


def host_port(port: int, ip: IPv4Address) -> TableEntry:
    """A host with that address, and no other."""
    return table_entry(EDGE_PORT, {"ingress_port": port}, "SwitchIngress.edges.host_port", ip=int(ip))


def fabric_port(port: int) -> TableEntry:
    """Another switch."""
    return table_entry(EDGE_PORT, {"ingress_port": port}, "SwitchIngress.edges.fabric_port")
