"""A rack's own entries: how hosts reach each other, whatever jobs there are."""

from __future__ import annotations

from collections.abc import Iterable

from controller.allocator import FLOOD_GROUP
from controller.config import HostConfig, SwitchConfig
from controller.entries import Entry, Group, table_entry

ROUTE = "SwitchIngress.forward.route"
MAC = "SwitchIngress.forward.mac"
_BROADCAST = 0xFFFF_FFFF_FFFF


def mac_number(mac: str) -> int:
    """02:00:00:00:00:01 as a number."""
    return int(mac.replace(":", ""), 16)


def switch_mac(device_id: int, port: int) -> int:
    """A locally administered MAC for a switch's side of a link: 02:70:dd:dd:pp:pp."""
    return 0x0270 << 32 | (device_id & 0xFFFF) << 16 | port


def rack_entries(switch: SwitchConfig, hosts: Iterable[HostConfig]) -> list[Entry]:
    """Routes and MAC entries of one switch for the hosts behind it; broadcasts go everywhere."""
    hosts = sorted(hosts, key=lambda host: host.port)
    entries: list[Entry] = [Group(FLOOD_GROUP, tuple((host.port, 1) for host in hosts))]
    for host in hosts:
        mac = mac_number(host.mac)
        entries.append(
            table_entry(
                ROUTE,
                {"dst_ip": (int(host.ip), 32)},
                "SwitchIngress.forward.next_hop",
                port=host.port,
                src_mac=switch_mac(switch.device_id, host.port),
                dst_mac=mac,
            )
        )
        entries.append(table_entry(MAC, {"dst_mac": mac}, "SwitchIngress.forward.to_port", port=host.port))
    entries.append(
        table_entry(MAC, {"dst_mac": _BROADCAST}, "SwitchIngress.forward.flood", group=FLOOD_GROUP)
    )
    return entries
