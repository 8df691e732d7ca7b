"""The switch as found against the switch as wanted, and the order in which entries come and go. No I/O.

Updates of one batch may be applied in any order (P4Runtime specification, "Batching and Ordering of
Updates"), so an order between tables means a batch for each: a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from controller.allocator import FLOOD_GROUP
from controller.entries import Entry, Group, Key, key_of
from controller.flows import EMIT, FLOW, MEMBER_QP, TREE_JOB, UPLINK
from controller.routes import ECMP_MEMBER, EDGE_PORT
from p4src import MAX_JOBS

Stage = tuple[Entry, ...]
JOB_TABLES = (FLOW, MEMBER_QP, EMIT, TREE_JOB, UPLINK)
JOB_GROUPS = range(FLOOD_GROUP + 1, FLOOD_GROUP + 1 + MAX_JOBS)

_WRITTEN = {EMIT: 1, UPLINK: 1, FLOW: 2, TREE_JOB: 2, MEMBER_QP: 3, EDGE_PORT: 3, ECMP_MEMBER: 4}
_DELETED = {FLOW: 0, TREE_JOB: 0, ECMP_MEMBER: 2, MEMBER_QP: 3, EDGE_PORT: 3}


@dataclass(frozen=True)
class Difference:
    """What makes a switch as wanted. Stages are written one after the other."""

    insert: tuple[Stage, ...]
    modify: tuple[Stage, ...]
    delete: tuple[Stage, ...]


def compare(found: Iterable[Entry], wanted: Iterable[Entry]) -> Difference:
    """What turns `found` into `wanted`; entries are the same if their keys are."""
    there = {key_of(entry): entry for entry in found}
    want = {key_of(entry): entry for entry in wanted}
    return Difference(
        insert=writing_stages(entry for key, entry in want.items() if key not in there),
        modify=writing_stages(entry for key, entry in want.items() if key in there and there[key] != entry),
        delete=deleting_stages(entry for key, entry in there.items() if key not in want),
    )


def of_jobs(key: Key) -> bool:
    """Whether only jobs have such entries: sums depend on them."""
    return key[0] in JOB_TABLES or (key[0] == "group" and key[1] in JOB_GROUPS)


def writing_stages(entries: Iterable[Entry]) -> tuple[Stage, ...]:
    """Groups, what their replicas look up, the flows that use them, the guards of their QPs, routes last.

    A switch that lost everything forwards nothing without routes: so no packet gets past a guard that is not
    there yet.
    """
    return _stages(entries, _writing_rank)


def deleting_stages(entries: Iterable[Entry]) -> tuple[Stage, ...]:
    """Flows first, groups after what names them; guards last, as they drop what is still under way."""
    return _stages(entries, _deleting_rank)


def _writing_rank(entry: Entry) -> int:
    if isinstance(entry, Group):
        return 0
    return _WRITTEN.get(entry.table, 5)


def _deleting_rank(entry: Entry) -> int:
    if isinstance(entry, Group):
        return 2
    return _DELETED.get(entry.table, 1)


def _stages(entries: Iterable[Entry], rank: Callable[[Entry], int]) -> tuple[Stage, ...]:
    stages: dict[int, list[Entry]] = {}
    for entry in entries:
        stages.setdefault(rank(entry), []).append(entry)
    return tuple(tuple(stages[number]) for number in sorted(stages))


def flatten(stages: Sequence[Stage]) -> tuple[Entry, ...]:
    """The entries of all stages, in order."""
    return tuple(entry for stage in stages for entry in stage)
