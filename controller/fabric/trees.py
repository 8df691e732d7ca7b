"""A job's tree: its workers by rack, the ring through them, its entries on leaves and spines. No I/O.

The ring goes through one rack after the other, so exactly one flow leaves each rack and one enters it. A leaf
adds up its own workers. The spines add up the leaves, each spine a part of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.config import Config, Spread
from controller.entries import Entry, Group, TableEntry
from controller.fabric.flows import Ring, leaf_entries
from controller.fabric.graph import Graph, LinkState, spread
from controller.fabric.tables import emit
from controller.fabric.tables import tree as tree_tables
from controller.fabric.tables.up import is_uplink, to_spine
from controller.jobs.specs import Member, Plan
from controller.slots.allocator import Region
from p4src import BUCKETS


@dataclass(frozen=True)
class Rack:
    """A job's workers behind one leaf, in the order of the ring."""

    leaf: str
    members: tuple[Member, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members' ranks."""
        return tuple(member.rank for member in self.members)


@dataclass(frozen=True)
class Tree:
    """A job in the fabric: its racks in the order of the ring."""

    graph: Graph
    racks: tuple[Rack, ...]

    @classmethod
    def of(cls, config: Config, members: Sequence[Member]) -> Tree:
        """Build a job's tree: racks in the order of their smallest rank, ranks ascending inside."""
        racks: dict[str, list[Member]] = {}
        for member in sorted(members, key=lambda member: member.rank):
            racks.setdefault(config.by_ip[member.ip].switch, []).append(member)
        return cls(Graph.of(config), tuple(Rack(leaf, tuple(there)) for leaf, there in racks.items()))

    @property
    def ring(self) -> tuple[int, ...]:
        """All ranks, each followed by its successor."""
        return tuple(rank for rack in self.racks for rank in rack.ranks)

    @property
    def leaves(self) -> tuple[str, ...]:
        """The leaves, by their number on the spines."""
        return tuple(rack.leaf for rack in self.racks)

    @property
    def two_level(self) -> bool:
        """True if there is more than one rack, so that spines are needed."""
        return len(self.racks) > 1

    def spines(self, state: LinkState) -> tuple[str, ...]:
        """Return the spines that can add up for all of its leaves; none is needed in one rack."""
        return self.graph.common_spines(self.leaves, state) if self.two_level else ()

    def rack(self, leaf: str) -> Rack:
        """Return the rack behind a leaf."""
        return next(rack for rack in self.racks if rack.leaf == leaf)

    def ranks_by_bit(self, switch: str) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that each bit of a slot's bitmap stands for."""
        if switch in self.leaves:
            return tuple((rank,) for rank in self.rack(switch).ranks)
        return tuple(rack.ranks for rack in self.racks)

    def flows_on(self, switch: str) -> int:
        """Return the number of flow indexes that the job uses on a switch."""
        return len(self.ranks_by_bit(switch))


def entries_on(
    config: Config, tree: Tree, switch: str, plan: Plan, region: Region, spines: Sequence[str]
) -> list[Entry]:
    """Return a job's entries on one of its leaves or on a spine, in the order to write them.

    `spines`: the spines that shall add up, for a leaf if there are several racks.
    """
    if switch not in tree.leaves:
        return spine_entries(tree, switch, plan, region)
    here = tree.leaves.index(switch)
    rack, uplinks = tree.racks[here], tree.graph.uplinks(switch)
    ring = Ring(
        rack.members,
        {member.rank: config.by_ip[member.ip].port for member in rack.members},
        config.switch(switch).device_id,
    )
    choice: list[Entry] = []
    if tree.two_level:
        ring = replace(
            ring,
            before=tree.racks[here - 1].members[-1],
            after=tree.racks[(here + 1) % len(tree.racks)].members[0],
            uplinks=tuple(link.leaf_port for link in uplinks),
        )
        using = chosen(config.spread, tree.graph, spines, plan.generation)
        choice = uplink_entries(tree.graph, switch, region, using)
    return [
        *choice,
        *leaf_entries(ring, plan, region, check_icrc=config.check_icrc, rnr_timer=config.straggler_rnr_timer),
    ]


def spine_entries(tree: Tree, spine: str, plan: Plan, region: Region) -> list[Entry]:
    """Return a job's entries on a spine: for each leaf, those for packets from it and to it."""
    count = len(tree.racks)
    links = [tree.graph.link(leaf, spine) for leaf in tree.leaves]
    ports = [link.spine_port for link in links if link is not None]
    if len(ports) < count:
        raise ValueError(f"{spine} has no link to one of {', '.join(tree.leaves)}")
    entries: list[Entry] = [Group(region.group, tuple(sorted((port, k + 1) for k, port in enumerate(ports))))]
    entries += [emit.to_leaf(region.group, k, (k - 1) % count) for k in range(count)]
    entries += [
        tree_tables.from_leaf(port, plan, region, count=count, position=k) for k, port in enumerate(ports)
    ]
    return entries


def chosen(how: Spread, graph: Graph, usable: Sequence[str], generation: int) -> tuple[str, ...]:
    """Choose the spines that add up for a job: one, in turns from job to job, or all usable ones."""
    if how is Spread.MESSAGES or not usable:
        return tuple(usable)
    first = generation % len(graph.spines)
    in_turn = (*graph.spines[first:], *graph.spines[:first])
    return (next(spine for spine in in_turn if spine in usable),)


def uplink_entries(graph: Graph, leaf: str, region: Region, spines: Sequence[str]) -> list[Entry]:
    """Return the entries that choose the spine for a leaf's partial sums, by message; all leaves agree.

    Raise ValueError if there is no spine, or no link to one.
    """
    if not spines:
        raise ValueError(f"no spine for {leaf}")
    entries: list[Entry] = []
    for bucket, spine in enumerate(spread(BUCKETS, graph.spines, spines)):
        link = graph.link(leaf, spine)
        if link is None:
            raise ValueError(f"there is no link {leaf}:{spine}")
        entries.append(to_spine(region.group, bucket, port=link.leaf_port, index=link.index))
    return entries


def moved(
    graph: Graph, leaf: str, region: Region, entries: Sequence[Entry], spines: Sequence[str]
) -> tuple[Entry, ...]:
    """Return a job's entries on a leaf, changed to these spines; unchanged if there is none."""
    if not spines or not any(is_uplink(entry) for entry in entries):
        return tuple(entries)
    choice = uplink_entries(graph, leaf, region, spines)
    return (*choice, *(entry for entry in entries if not is_uplink(entry)))


def spines_in_use(graph: Graph, leaf: str, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the spines that a job's partial sums go to from a leaf, by its entries there."""
    used = {
        dict(entry.params)["port"] for entry in entries if isinstance(entry, TableEntry) and is_uplink(entry)
    }
    return tuple(link.spine for link in graph.uplinks(leaf) if link.leaf_port in used)
