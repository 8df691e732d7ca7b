"""The switches' own addresses."""

from __future__ import annotations

from ipaddress import IPv4Address

_LINK_LOCAL = int(IPv4Address("169.254.0.0"))


def mac_number(mac: str) -> int:
    """Convert a MAC such as 02:00:00:00:00:01 to a number."""
    return int(mac.replace(":", ""), 16)


def switch_mac(device_id: int, port: int) -> int:
    """Return a locally administered MAC for a switch's side of a link: 02:70:dd:dd:pp:pp."""
    return 0x0270 << 32 | (device_id & 0xFFFF) << 16 | port


def switch_ip(device_id: int) -> int:
    """Return the address of a switch in tree packets: 169.254.dd.dd."""
    return _LINK_LOCAL | device_id & 0xFFFF
