"""TreeOut: the addresses of packets between switches, by link."""

from __future__ import annotations

from controller.config import SwitchConfig
from controller.entries import TableEntry, table_entry
from controller.fabric.addresses import switch_ip, switch_mac

TREE_LINK = "SwitchEgress.tree_out.link"


def over(near: SwitchConfig, port: int, far: SwitchConfig, far_port: int) -> TableEntry:
    """Return the entry for packets from one switch, out of that port, to the other."""
    return table_entry(
        TREE_LINK,
        {"egress_port": port},
        "SwitchEgress.tree_out.over",
        src_mac=switch_mac(near.device_id, port),
        dst_mac=switch_mac(far.device_id, far_port),
        src_ip=switch_ip(near.device_id),
        dst_ip=switch_ip(far.device_id),
    )
