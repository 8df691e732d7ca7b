"""Forward: routes for traffic of no job, and for a job's packets that are passed on."""

from __future__ import annotations

from ipaddress import IPv4Address

from controller.entries import TableEntry, table_entry
from controller.fabric.addresses import mac_number

ROUTE = "SwitchIngress.forward.route"
ECMP_MEMBER = "SwitchIngress.forward.ecmp_member"
MAC = "SwitchIngress.forward.mac"
FLOOD = "SwitchIngress.forward.flood"
_NEXT_HOP = "SwitchIngress.forward.next_hop"
_BROADCAST = 0xFFFF_FFFF_FFFF


def next_hop(ip: IPv4Address, *, port: int, src_mac: int, dst_mac: int) -> TableEntry:
    """Return the route to one address, out of one port."""
    hop = {"port": port, "src_mac": src_mac, "dst_mac": dst_mac}
    return table_entry(ROUTE, {"dst_ip": (int(ip), 32)}, _NEXT_HOP, **hop)


def ecmp(ip: IPv4Address, *, group: int, size: int) -> TableEntry:
    """Return the route to one address, by any member of a group."""
    return table_entry(ROUTE, {"dst_ip": (int(ip), 32)}, "SwitchIngress.forward.ecmp", group=group, size=size)


def ecmp_member(group: int, index: int, *, port: int, src_mac: int, dst_mac: int) -> TableEntry:
    """Return the entry of one path of a group."""
    hop = {"port": port, "src_mac": src_mac, "dst_mac": dst_mac}
    return table_entry(ECMP_MEMBER, {"group": group, "index": index}, _NEXT_HOP, **hop)


def to_port(mac: str, port: int) -> TableEntry:
    """Return the entry for traffic other than IP, to a host behind this switch."""
    return table_entry(MAC, {"dst_mac": mac_number(mac)}, "SwitchIngress.forward.to_port", port=port)


def flood(group: int) -> TableEntry:
    """Return the entry that sends broadcasts to a multicast group."""
    return table_entry(MAC, {"dst_mac": _BROADCAST}, FLOOD, group=group)
