"""A job's entries on a switch: flow r is the connection rank r -> rank r+1, and the ACKs back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.allocator import Region
from controller.entries import Entry, Group, TableEntry, table_entry
from controller.jobs import Member, Plan
from controller.routes import mac_number, switch_mac

FLOW = "SwitchIngress.membership.flow"
MEMBER_QP = "SwitchIngress.membership.member_qp"
EMIT = "SwitchEgress.emit.emit"

RNR_NAK = 0x20  # AETH syndrome, with a timer in the lower five bits

COUNTERS = {
    **{
        name: f"SwitchIngress.slots.{name}"
        for name in ("aggregated", "completed", "duplicate", "replayed", "stale", "mismatch", "not_ready")
    },
    **{name: f"SwitchIngress.{name}" for name in ("bad_icrc", "unplaced", "passed")},
    **{name: f"SwitchIngress.membership.{name}" for name in ("foreign", "acks")},
}


@dataclass(frozen=True)
class Ring:
    """A job's members in ring order, and the switch port each is behind (by rank)."""

    members: Sequence[Member]
    ports: Mapping[int, int]
    device_id: int

    def successor(self, rank: int) -> Member:
        """The member that rank sends to."""
        return self.members[(rank + 1) % len(self.members)]


def job_entries(ring: Ring, plan: Plan, region: Region, *, check_icrc: bool, rnr_timer: int) -> list[Entry]:
    """All entries of a job in the order to write them; `removal_order` takes them away.

    `rnr_timer`: what RNR NAKs to members that want them ask them to wait, 5 bits.
    """
    members = ring.members
    group = Group(
        region.group,
        tuple(sorted((ring.ports[ring.successor(m.rank).rank], m.rank + 1) for m in members)),
    )
    entries: list[Entry] = [group]
    entries += [_emit(ring, member, region) for member in members]
    for member in members:
        rnr_syndrome = RNR_NAK | rnr_timer if member.rnr_nak else 0
        entries.append(
            _data_flow(ring, member, plan, region, check_icrc=check_icrc, rnr_syndrome=rnr_syndrome)
        )
        entries.append(_ack_flow(ring, member, plan, region))
    for member in members:
        entries += _guards(ring, member, region)
    return entries


def removal_order(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """What to remove at once, and what only when no worker can send any more.

    The guards stay until then: without flow entries they drop what is still under way. Forwarded, it would be
    in order at the receiver and be taken for a sum.
    """
    guards: list[Entry] = [
        entry for entry in entries if isinstance(entry, TableEntry) and entry.table == MEMBER_QP
    ]
    rest = [entry for entry in entries if entry not in guards]
    rest.sort(key=_removal_rank)
    return rest, guards


def _removal_rank(entry: Entry) -> int:
    if isinstance(entry, Group):
        return 2
    return 0 if entry.table == FLOW else 1


def _data_flow(
    ring: Ring, member: Member, plan: Plan, region: Region, *, check_icrc: bool, rnr_syndrome: int
) -> TableEntry:
    successor = ring.successor(member.rank)
    return table_entry(
        FLOW,
        {
            "ingress_port": ring.ports[member.rank],
            "src_ip": int(member.ip),
            "dst_ip": int(successor.ip),
            "dest_qp": successor.qpn_in,
        },
        "SwitchIngress.membership.data_flow",
        flow=region.flow(member.rank),
        job=plan.job_id,
        generation=plan.generation,
        rank=member.rank,
        rank_bit=1 << member.rank,
        all_ranks=(1 << len(ring.members)) - 1,
        region=region.base,
        window_mask=2 * plan.window - 1,
        packets_shift=plan.message_packets.bit_length() - 1,
        psn_shift=8 * member.rank,
        group=region.group,
        check_icrc=int(check_icrc),
        first_psn=member.psn_out,
        ack_qp=member.qpn_out,
        rnr_syndrome=rnr_syndrome,
    )


def _ack_flow(ring: Ring, member: Member, plan: Plan, region: Region) -> TableEntry:
    successor = ring.successor(member.rank)
    return table_entry(
        FLOW,
        {
            "ingress_port": ring.ports[successor.rank],
            "src_ip": int(successor.ip),
            "dst_ip": int(member.ip),
            "dest_qp": member.qpn_out,
        },
        "SwitchIngress.membership.ack_flow",
        flow=region.flow(member.rank),
        generation=plan.generation,
        track=int(member.rnr_nak),
        first_psn=member.psn_out,
    )


def _guards(ring: Ring, member: Member, region: Region) -> list[Entry]:
    """Both QPs of a flow take packets from its two ends only."""
    successor = ring.successor(member.rank)
    return [
        table_entry(
            MEMBER_QP,
            {"dst_ip": int(ip), "dest_qp": qpn},
            "SwitchIngress.membership.not_from_its_peer",
            of_flow=region.flow(member.rank),
        )
        for ip, qpn in ((successor.ip, successor.qpn_in), (member.ip, member.qpn_out))
    ]


def _emit(ring: Ring, member: Member, region: Region) -> TableEntry:
    successor = ring.successor(member.rank)
    return table_entry(
        EMIT,
        {"group": region.group, "rid": member.rank + 1},
        "SwitchEgress.emit.to_flow",
        rank=member.rank,
        psn_shift=8 * member.rank,
        src_mac=switch_mac(ring.device_id, ring.ports[successor.rank]),
        dst_mac=mac_number(successor.mac),
        src_ip=int(member.ip),
        dst_ip=int(successor.ip),
        udp_src_port=source_port(member.qpn_out),
        dest_qp=successor.qpn_in,
    )


def source_port(qpn: int) -> int:
    """The UDP source port that the agent gives a connection, 0xc000..0xffff by its QPN."""
    return 0xC000 | ((qpn ^ qpn >> 14) & 0x3FFF)
