"""Emit: the headers of each copy of a sum that leaves the switch."""

from __future__ import annotations

from controller.entries import TableEntry, table_entry
from controller.fabric.addresses import mac_number, switch_mac
from controller.jobs.specs import Member

EMIT = "SwitchEgress.emit.emit"


def to_flow(
    group: int, position: int, sender: Member, receiver: Member, *, device_id: int, port: int
) -> TableEntry:
    """Return a leaf's entry for copies from a worker to its successor, which is behind that port."""
    return table_entry(
        EMIT,
        {"group": group, "rid": position + 1},
        "SwitchEgress.emit.to_flow",
        rank=sender.rank,
        psn_shift=8 * position,
        src_mac=switch_mac(device_id, port),
        dst_mac=mac_number(receiver.mac),
        src_ip=int(sender.ip),
        dst_ip=int(receiver.ip),
        udp_src_port=source_port(sender.qpn_out),
        dest_qp=receiver.qpn_in,
    )


def to_leaf(group: int, position: int, before: int) -> TableEntry:
    """Return a spine's entry for copies to the leaf at a position.

    The predecessors of that leaf's workers are behind the leaf at `before`.
    """
    return table_entry(
        EMIT,
        {"group": group, "rid": position + 1},
        "SwitchEgress.emit.to_leaf",
        leaf_bit=1 << position,
        predecessor_bit=1 << before,
        psn_shift=8 * before,
    )


def source_port(qpn: int) -> int:
    """Return the UDP source port that the agent gives a connection, 0xc000..0xffff by its QPN."""
    return 0xC000 | ((qpn ^ qpn >> 14) & 0x3FFF)
