"""Edges: the host or switch behind each port."""

from __future__ import annotations

from ipaddress import IPv4Address

from controller.entries import TableEntry, table_entry

EDGE_PORT = "SwitchIngress.edges.port"


def host_port(port: int, ip: IPv4Address) -> TableEntry:
    """Return the entry for a port with one host, which has that address."""
    return table_entry(EDGE_PORT, {"ingress_port": port}, "SwitchIngress.edges.host_port", ip=int(ip))


def fabric_port(port: int) -> TableEntry:
    """Return the entry for a port with another switch."""
    return table_entry(EDGE_PORT, {"ingress_port": port}, "SwitchIngress.edges.fabric_port")
