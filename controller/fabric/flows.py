"""A job's entries on a leaf: flow r is the connection from rank r to its successor, and the ACKs back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.entries import Entry, Group, Key
from controller.fabric.tables import emit, membership, tree
from controller.fabric.tables.emit import EMIT
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.fabric.tables.tree import TREE_JOB
from controller.fabric.tables.up import UPLINK
from controller.jobs.specs import Member, Plan
from controller.slots.allocator import FLOOD_GROUP, Region
from p4src import MAX_JOBS

JOB_TABLES = (FLOW, MEMBER_QP, EMIT, TREE_JOB, UPLINK)
JOB_GROUPS = range(FLOOD_GROUP + 1, FLOOD_GROUP + 1 + MAX_JOBS)

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
    """A job's members behind one switch in the order of the ring, and the port of each (by rank).

    If the ring goes on in other racks, the first member receives from `before`, the last sends to `after`,
    and `uplinks` are the ports towards the spines. Bits, shifts and indexes on the switch count by the
    position among these members, from 0.
    """

    members: Sequence[Member]
    ports: Mapping[int, int]
    device_id: int
    before: Member | None = None
    after: Member | None = None
    uplinks: Sequence[int] = ()

    @property
    def exit(self) -> int:
        """The position of the member whose flow leaves the rack (in a single rack: goes to the first)."""
        return len(self.members) - 1

    def successor(self, position: int) -> Member:
        """Return the member that the one at a position sends to."""
        if position < self.exit:
            return self.members[position + 1]
        return self.after or self.members[0]

    def is_here(self, member: Member) -> bool:
        """Tell whether a member is behind this switch."""
        return member.rank in self.ports


def leaf_entries(ring: Ring, plan: Plan, region: Region, *, check_icrc: bool, rnr_timer: int) -> list[Entry]:
    """Return all entries of a job on a leaf in the order to write them, except the choice of spines.

    `removal_order` takes them away. `rnr_timer`: the time that RNR NAKs ask members to wait, as a code of 5
    bits; only members that want RNR NAKs get them.
    """
    count, first, before = len(ring.members), ring.members[0], ring.before
    flows = [(position, member, ring.successor(position)) for position, member in enumerate(ring.members)]
    entries: list[Entry] = [_group(ring, region)]
    entries += [
        _emit(ring, position, member, receiver, region)
        for position, member, receiver in flows
        if ring.is_here(receiver)
    ]
    if before is not None:
        entries.append(_emit(ring, ring.exit, before, first, region))
        entries += [
            tree.from_spine(port, plan, region, count=count, position=ring.exit) for port in ring.uplinks
        ]
    for position, member, receiver in flows:
        entries.append(
            membership.data_flow(
                *(ring.ports[member.rank], member, receiver, plan, region),
                count=count,
                position=position,
                check_icrc=check_icrc,
                rnr_timer=rnr_timer,
                exit_position=None if before is None else ring.exit,
            )
        )
        # A successor in another rack may be heard by any uplink.
        ports = [ring.ports[receiver.rank]] if ring.is_here(receiver) else ring.uplinks
        entries += [
            membership.ack_flow(port, member, receiver, plan, region.flow(position)) for port in ports
        ]
    if before is not None:  # the flow that enters the rack, and its ACKs, which leave
        entries += [membership.pass_on(port, before, first) for port in ring.uplinks]
        entries.append(membership.pass_on(ring.ports[first.rank], before, first, acks=True))
    for position, member, receiver in flows:
        entries += membership.guards(region.flow(position), member, receiver)
    if before is not None:
        entries += membership.guards(region.flow(ring.exit), before, first)
    return entries


def removal_order(entries: Collection[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Return the entries to remove at once, and those to remove when no worker can send any more.

    The guards stay until then: without flow entries they drop packets that are still under way. If such a
    packet were forwarded, it would be in order at the receiver and pass for a sum.
    """
    rest = [entry for entry in entries if entry.table != MEMBER_QP]
    return rest, [entry for entry in entries if entry.table == MEMBER_QP]


def of_jobs(key: Key) -> bool:
    """Tell whether only jobs have entries with this key, so that sums depend on them."""
    return key[0] in JOB_TABLES or (key[0] == Group.table and key[1] in JOB_GROUPS)


def _group(ring: Ring, region: Region) -> Group:
    """Make the group with one replica for each flow whose receiver is here.

    The flow that enters the rack gets the replica id of the flow that leaves it.
    """
    replicas = [
        (ring.ports[ring.successor(position).rank], position + 1)
        for position in range(len(ring.members))
        if ring.is_here(ring.successor(position))
    ]
    if ring.before is not None:
        replicas.append((ring.ports[ring.members[0].rank], ring.exit + 1))
    return Group(region.group, tuple(sorted(replicas)))


def _emit(ring: Ring, position: int, sender: Member, receiver: Member, region: Region) -> Entry:
    port = ring.ports[receiver.rank]
    return emit.to_flow(region.group, position, sender, receiver, device_id=ring.device_id, port=port)
