"""Orphans: entries of jobs that the database, new or restored, does not know. The jobs may still run. No I/O.

Their sums go on, so their entries stay. Nobody else gets what they own (slots, flow indexes, groups, QPs)
until their workers come back and tell what the job is (orchestration/adoption.py), or an operator loads the
program anew (`p4reduce push --force`). An entry's group or flow index tells to which of a switch's 32 jobs it
belongs; the job's flows tell its generation and slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from controller.entries import Entry, Group, TableEntry, key_of
from controller.fabric.flows import JOB_GROUPS, of_jobs
from controller.fabric.tables.emit import EMIT
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.fabric.tables.tree import TREE_JOB
from controller.fabric.tables.up import UPLINK
from controller.slots.allocation import Allocation
from controller.slots.allocator import Region
from controller.switches.managed_switch import collide
from p4src import MAX_RANKS


@dataclass
class Orphan:
    """An unknown job's entries on one switch. `generation` None: only guards are left.

    `lost`: the switch has restarted since and forgotten the job's sums: only guards can come back.
    """

    allocation: Allocation
    generation: int | None
    lost: bool = False

    @property
    def qps(self) -> frozenset[tuple[int, int]]:
        """The QPs of its workers that are guarded here: address and number."""
        return frozenset(_qp(entry) for entry in self.allocation.entries if _table(entry) == MEMBER_QP)

    def is_for(self, qps: frozenset[tuple[int, int]]) -> bool:
        """Tell whether packets to any of these QPs meet it; guards are the first of its entries to go."""
        return any(
            _table(entry) in (FLOW, MEMBER_QP) and _qp(entry) in qps for entry in self.allocation.entries
        )

    def give_up(self, qps: frozenset[tuple[int, int]]) -> list[Entry]:
        """Keep only guards, except those of these QPs, which others have now. Return those to remove."""
        self.lost = True
        staying = [
            entry for entry in self.allocation.entries if _table(entry) == MEMBER_QP and _qp(entry) not in qps
        ]
        going = [entry for entry in self.allocation.entries if entry not in staying]
        region = Region(self.allocation.region.number, 0, 0)
        self.allocation = replace(self.allocation, entries=tuple(staying), region=region)
        return going

    def collides(self, allocation: Allocation) -> bool:
        """Tell whether the switch cannot hold it together with that allocation."""
        return self.allocation.region.collides(allocation.region) or collide(
            self.allocation, allocation.entries
        )

    def is_whole(self, found: Iterable[Entry]) -> bool:
        """Tell whether the switch has all of it except the choice of spines, which changes at run time."""
        fixed = {entry for entry in self.allocation.entries if _table(entry) != UPLINK}
        return fixed <= set(found)


def orphans(
    switch: str,
    role: str,
    found: Iterable[Entry],
    known: Iterable[Allocation],
    is_ours: Callable[[int], bool],
) -> list[Orphan]:
    """Find the jobs on a switch without a `known` allocation there whose generation is not ours.

    Such a job and a known allocation may share a number on the switch; one of the two is older then, and the
    entries on the switch belong to the generation that their flows tell.
    """
    allocations = list(known)
    entries_known = {entry for allocation in allocations for entry in allocation.entries}
    keys_known = {key_of(entry) for entry in entries_known}
    generations = {generation_in(allocation.entries) for allocation in allocations}
    entries = sorted((entry for entry in found if of_jobs(key_of(entry))), key=str)
    guarded = {_qp(entry): _number(entry, {}) for entry in entries if _table(entry) == MEMBER_QP}
    by_number: dict[int, list[Entry]] = {}
    for entry in entries:
        number = _number(entry, guarded)
        if number is not None:
            by_number.setdefault(number, []).append(entry)
    unknown = []
    for number, of_number in sorted(by_number.items()):
        generation = generation_in(of_number)
        if generation is None:  # without flows only guards do anything, and are in the database if ours
            theirs = [e for e in of_number if _table(e) == MEMBER_QP and key_of(e) not in keys_known]
        elif generation in generations or is_ours(generation):
            continue
        else:
            qps = {_qp(entry) for entry in of_number if _table(entry) == FLOW}
            theirs = [  # without the guards that were written here for a known job before this was read
                e for e in of_number if _table(e) != MEMBER_QP or _qp(e) in qps or e not in entries_known
            ]
        if theirs:
            allocation = Allocation(
                switch=switch, region=_region(number, theirs), entries=tuple(theirs), role=role
            )
            unknown.append(Orphan(allocation, generation))
    return unknown


def guards_found(allocation: Allocation, found: Iterable[Entry], known: Iterable[Allocation]) -> list[Entry]:
    """Return the guards at an allocation's number on a switch that no known allocation has.

    By the switch's entries they belong to the allocation's workers.
    """
    keys = {key_of(entry) for other in known for entry in other.entries}
    return [
        entry
        for entry in found
        if _table(entry) == MEMBER_QP
        and _number(entry, {}) == allocation.region.number
        and key_of(entry) not in keys
    ]


def generation_in(entries: Iterable[Entry]) -> int | None:
    """Return the generation that a job's flows tell; None if there are none."""
    return max((g for entry in entries if (g := _generation(entry)) is not None), default=None)


def _number(entry: Entry, guarded: dict[tuple[int, int], int | None]) -> int | None:
    """Return the number of the job that an entry belongs to; for one that passes on, by its QP's guards."""
    if isinstance(entry, Group):
        return entry.group - JOB_GROUPS.start
    match, params = dict(entry.match), dict(entry.params)
    if entry.table in (EMIT, UPLINK):
        return _int(match["group"]) - JOB_GROUPS.start
    for name in ("flow", "of_flow"):
        if name in params:
            return params[name] // MAX_RANKS
    return guarded.get(_qp(entry))


def _generation(entry: Entry) -> int | None:
    if not isinstance(entry, TableEntry) or entry.table not in (FLOW, TREE_JOB):
        return None
    generation = dict(entry.params).get("generation", dict(entry.match).get("generation"))
    return None if generation is None else _int(generation)


def _region(number: int, entries: Iterable[Entry]) -> Region:
    """Return the region that the entries tell; without slots if no flow tells them."""
    for entry in entries:
        params = {} if isinstance(entry, Group) else dict(entry.params)
        if "window_mask" in params:
            slots = (params["window_mask"] + 1) << params["packets_shift"]
            return Region(number, params["region"], slots)
    return Region(number, 0, 0)


def _qp(entry: Entry) -> tuple[int, int]:
    assert isinstance(entry, TableEntry)
    match = dict(entry.match)
    return _int(match["dst_ip"]), _int(match["dest_qp"])


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _table(entry: Entry) -> str:
    return entry.table if isinstance(entry, TableEntry) else ""
