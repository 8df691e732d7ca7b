"""A job's entries on a leaf: flow r is the connection from rank r to its successor, and the ACKs back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.entries import Entry, Group, Key, TableEntry, table_entry
from controller.fabric.routes import mac_number, switch_mac
from controller.jobs.specs import Member, Plan
from controller.slots.allocator import FLOOD_GROUP, Region
from p4src import MAX_JOBS

FLOW = "SwitchIngress.membership.flow"
MEMBER_QP = "SwitchIngress.membership.member_qp"
EMIT = "SwitchEgress.emit.emit"
TREE_JOB = "SwitchIngress.tree.job"
UPLINK = "SwitchIngress.up.uplink"
JOB_TABLES = (FLOW, MEMBER_QP, EMIT, TREE_JOB, UPLINK)
JOB_GROUPS = range(FLOOD_GROUP + 1, FLOOD_GROUP + 1 + MAX_JOBS)

RNR_NAK = 0x20  # AETH syndrome, with a timer in the lower five bits

COUNTERS = {
    **{
        name: f"SwitchIngress.slots.{name}"
        for name in (
            *("aggregated", "completed", "duplicate", "replayed", "stale", "mismatch", "not_ready"),
            *("partials", "results", "late", "asked"),
        )
    },
    **{name: f"SwitchIngress.{name}" for name in ("bad_icrc", "unplaced", "passed")},
    "no_uplink": "SwitchIngress.up.no_uplink",
    **{name: f"SwitchIngress.membership.{name}" for name in ("foreign", "acks")},
}


@dataclass(frozen=True)
class Ring:
    """A job's members behind one switch in the order of the ring, and the port each is behind (by rank).

    Where the ring goes on in other racks, `before` is whom the first receives from, `after` whom the last
    sends to, and `uplinks` are the ports towards the spines. Bits, shifts and indexes on the switch count by
    the place among these members, from 0.
    """

    members: Sequence[Member]
    ports: Mapping[int, int]
    device_id: int
    before: Member | None = None
    after: Member | None = None
    uplinks: Sequence[int] = ()

    @property
    def exit(self) -> int:
        """The place of the member whose flow leaves the rack (in a single rack: goes to the first)."""
        return len(self.members) - 1

    def successor(self, place: int) -> Member:
        """The member that the one at a place sends to."""
        if place < self.exit:
            return self.members[place + 1]
        return self.after or self.members[0]

    def is_here(self, member: Member) -> bool:
        """Whether a member is behind this switch."""
        return member.rank in self.ports


def leaf_entries(ring: Ring, plan: Plan, region: Region, *, check_icrc: bool, rnr_timer: int) -> list[Entry]:
    """All entries of a job on a leaf in the order to write them, but for the choice of spines.

    `removal_order` takes them away. `rnr_timer`: what RNR NAKs to members that want them ask them to wait, 5
    bits.
    """
    entries: list[Entry] = [_group(ring, region)]
    for place, member in enumerate(ring.members):
        if ring.is_here(ring.successor(place)):
            entries.append(_emit(ring, place, member, ring.successor(place), region))
    if ring.before is not None:
        entries.append(_emit(ring, ring.exit, ring.before, ring.members[0], region))
        entries += [_from_spine(ring, port, plan, region) for port in ring.uplinks]
    for place, member in enumerate(ring.members):
        rnr_syndrome = RNR_NAK | rnr_timer if member.rnr_nak else 0
        entries.append(
            _data_flow(ring, place, plan, region, check_icrc=check_icrc, rnr_syndrome=rnr_syndrome)
        )
        entries += _ack_flows(ring, place, plan, region)
    if ring.before is not None:
        entries += _pass_on(ring, ring.before, ring.members[0])
    for place, member in enumerate(ring.members):
        entries += _guards(region.flow(place), member, ring.successor(place))
    if ring.before is not None:
        entries += _guards(region.flow(ring.exit), ring.before, ring.members[0])
    return entries


def removal_order(entries: Collection[Entry]) -> tuple[list[Entry], list[Entry]]:
    """What to remove at once, and what only when no worker can send any more.

    The guards stay until then: without flow entries they drop what is still under way. Forwarded, it would be
    in order at the receiver and be taken for a sum.
    """
    rest = [entry for entry in entries if entry.table != MEMBER_QP]
    return rest, [entry for entry in entries if entry.table == MEMBER_QP]


def of_jobs(key: Key) -> bool:
    """Whether only jobs have such entries: sums depend on them."""
    return key[0] in JOB_TABLES or (key[0] == Group.table and key[1] in JOB_GROUPS)


def _group(ring: Ring, region: Region) -> Group:
    """One for each flow whose receiver is here; the one that enters has the place of the one that leaves."""
    replicas = [
        (ring.ports[ring.successor(place).rank], place + 1)
        for place in range(len(ring.members))
        if ring.is_here(ring.successor(place))
    ]
    if ring.before is not None:
        replicas.append((ring.ports[ring.members[0].rank], ring.exit + 1))
    return Group(region.group, tuple(sorted(replicas)))


def _emit(ring: Ring, place: int, sender: Member, receiver: Member, region: Region) -> TableEntry:
    return table_entry(
        EMIT,
        {"group": region.group, "rid": place + 1},
        "SwitchEgress.emit.to_flow",
        rank=sender.rank,
        psn_shift=8 * place,
        src_mac=switch_mac(ring.device_id, ring.ports[receiver.rank]),
        dst_mac=mac_number(receiver.mac),
        src_ip=int(sender.ip),
        dst_ip=int(receiver.ip),
        udp_src_port=source_port(sender.qpn_out),
        dest_qp=receiver.qpn_in,
    )


def _from_spine(ring: Ring, port: int, plan: Plan, region: Region) -> TableEntry:
    return table_entry(
        TREE_JOB,
        {"ingress_port": port, "generation": plan.generation},
        "SwitchIngress.tree.from_spine",
        flow=region.flow(ring.exit),
        **sums(plan, region, count=len(ring.members), place=ring.exit),
    )


def sums(plan: Plan, region: Region, *, count: int, place: int) -> dict[str, int]:
    """What an entry says of a job whose sums are of `count` parts, about the part at a place."""
    return {
        "all_ranks": (1 << count) - 1,
        "region": region.base,
        "window_mask": 2 * plan.window - 1,
        "packets_shift": plan.message_packets.bit_length() - 1,
        "psn_shift": 8 * place,
        "group": region.group,
    }


def _data_flow(
    ring: Ring, place: int, plan: Plan, region: Region, *, check_icrc: bool, rnr_syndrome: int
) -> TableEntry:
    member, successor = ring.members[place], ring.successor(place)
    two_level = ring.before is not None
    return table_entry(
        FLOW,
        _key(ring.ports[member.rank], member, successor, successor.qpn_in),
        "SwitchIngress.membership.data_flow",
        flow=region.flow(place),
        job=plan.job_id,
        generation=plan.generation,
        rank=member.rank,
        rank_bit=1 << place,
        **sums(plan, region, count=len(ring.members), place=place),
        check_icrc=int(check_icrc),
        first_psn=member.psn_out,
        ack_qp=member.qpn_out,
        rnr_syndrome=rnr_syndrome,
        two_level=int(two_level),
        exit_psn_shift=8 * ring.exit if two_level else 0,
    )


def _ack_flows(ring: Ring, place: int, plan: Plan, region: Region) -> list[Entry]:
    """From a successor's port; one in another rack may be heard by any uplink."""
    member, successor = ring.members[place], ring.successor(place)
    ports = [ring.ports[successor.rank]] if ring.is_here(successor) else ring.uplinks
    return [
        table_entry(
            FLOW,
            _key(port, successor, member, member.qpn_out),
            "SwitchIngress.membership.ack_flow",
            flow=region.flow(place),
            generation=plan.generation,
            track=int(member.rnr_nak),
            first_psn=member.psn_out,
        )
        for port in ports
    ]


def _pass_on(ring: Ring, sender: Member, receiver: Member) -> list[Entry]:
    """The flow that enters the rack, and its ACKs, which leave: the sender's leaf has the flow."""
    action = "SwitchIngress.membership.pass_on"
    keys = [_key(port, sender, receiver, receiver.qpn_in) for port in ring.uplinks]
    keys.append(_key(ring.ports[receiver.rank], receiver, sender, sender.qpn_out))
    return [table_entry(FLOW, key, action) for key in keys]


def _guards(flow: int, sender: Member, receiver: Member) -> list[Entry]:
    """Both QPs of a flow take packets from its two ends only."""
    return [
        table_entry(
            MEMBER_QP,
            {"dst_ip": int(ip), "dest_qp": qpn},
            "SwitchIngress.membership.not_from_its_peer",
            of_flow=flow,
        )
        for ip, qpn in ((receiver.ip, receiver.qpn_in), (sender.ip, sender.qpn_out))
    ]


def _key(port: int, source: Member, destination: Member, qpn: int) -> dict[str, int | tuple[int, int]]:
    return {
        "ingress_port": port,
        "src_ip": int(source.ip),
        "dst_ip": int(destination.ip),
        "dest_qp": qpn,
    }


def source_port(qpn: int) -> int:
    """The UDP source port that the agent gives a connection, 0xc000..0xffff by its QPN."""
    return 0xC000 | ((qpn ^ qpn >> 14) & 0x3FFF)
