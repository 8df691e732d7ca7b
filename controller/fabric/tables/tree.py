"""Tree: the job that a packet from another switch belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from controller.entries import Entry, TableEntry, table_entry
from controller.jobs.specs import Plan
from controller.slots.allocator import Region

TREE_JOB = "SwitchIngress.tree.job"


def sums(plan: Plan, region: Region, *, count: int, position: int) -> dict[str, int]:
    """Return the parameters of a job's sums of `count` parts, for the part at a position."""
    return {
        "all_ranks": (1 << count) - 1,
        "region": region.base,
        "window_mask": 2 * plan.window - 1,
        "packets_shift": plan.message_packets.bit_length() - 1,
        "psn_shift": 8 * position,
        "group": region.group,
    }


def from_spine(port: int, plan: Plan, region: Region, *, count: int, position: int) -> TableEntry:
    """Return the entry on a leaf with `count` workers; the flow at that position leaves the rack."""
    return table_entry(
        TREE_JOB,
        {"ingress_port": port, "generation": plan.generation},
        "SwitchIngress.tree.from_spine",
        flow=region.flow(position),
        **sums(plan, region, count=count, position=position),
    )


def from_leaf(port: int, plan: Plan, region: Region, *, count: int, position: int) -> TableEntry:
    """Return the entry on a spine for packets from the leaf at a position of `count`."""
    return table_entry(
        TREE_JOB,
        {"ingress_port": port, "generation": plan.generation},
        "SwitchIngress.tree.from_leaf",
        flow=region.flow(position),
        rank=position,
        rank_bit=1 << position,
        **sums(plan, region, count=count, position=position),
    )


def generation_of(entries: Iterable[Entry]) -> int:
    """Return the generation of a job of several racks, by its entries on one of its switches."""
    found = (entry for entry in entries if isinstance(entry, TableEntry) and entry.table == TREE_JOB)
    generation = dict(next(found).match)["generation"]
    assert isinstance(generation, int)
    return generation
