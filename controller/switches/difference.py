"""Comparison of a switch's entries with the wanted ones, and the order of changes. No I/O.

A change is drift if the switch differs from what the controller last wrote: somebody changed it by hand.
Otherwise the controller itself wants something else now.

A target may apply the updates of one batch in any order (P4Runtime specification, "Batching and Ordering of
Updates"). So tables whose order matters get a batch each, a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.entries import Entry, Group, Key, key_of
from controller.fabric.tables.edges import EDGE_PORT
from controller.fabric.tables.emit import EMIT
from controller.fabric.tables.forward import ECMP_MEMBER
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.fabric.tables.tree import TREE_JOB
from controller.fabric.tables.up import UPLINK
from controller.switches.updates import Update, UpdateKind

Stage = tuple[Entry, ...]

# When the entries of a table are written, and deleted.
_WRITTEN = {
    Group.table: 0,
    EMIT: 1,
    UPLINK: 1,
    FLOW: 2,
    TREE_JOB: 2,
    MEMBER_QP: 3,
    EDGE_PORT: 3,
    ECMP_MEMBER: 4,
}
_DELETED = {FLOW: 0, TREE_JOB: 0, Group.table: 2, ECMP_MEMBER: 2, MEMBER_QP: 3, EDGE_PORT: 3}


@dataclass(frozen=True)
class Change:
    """Change of one entry; `before` or `after` is None if there is none."""

    before: Entry | None
    after: Entry | None
    drift: bool

    @property
    def kind(self) -> UpdateKind:
        """Kind of update: insert, modify or delete."""
        if self.before is None:
            return UpdateKind.INSERT
        return UpdateKind.DELETE if self.after is None else UpdateKind.MODIFY

    @property
    def entry(self) -> Entry:
        """The entry to write, or to delete."""
        entry = self.after if self.after is not None else self.before
        assert entry is not None
        return entry

    @property
    def update(self) -> Update:
        """The update that makes the change."""
        return Update(self.kind, self.entry)


@dataclass(frozen=True)
class Difference:
    """The changes to make on a switch, and the number of entries that are right already."""

    changes: tuple[Change, ...] = ()
    unchanged: int = 0

    def of(self, kind: UpdateKind) -> list[Entry]:
        """Return the entries of one kind of change."""
        return [change.entry for change in self.changes if change.kind is kind]

    def stages(self, kind: UpdateKind) -> tuple[Stage, ...]:
        """Return the entries of one kind of change in the order in which they come or go."""
        return deleting_stages(self.of(kind)) if kind is UpdateKind.DELETE else writing_stages(self.of(kind))


NO_DIFFERENCE = Difference()


def difference(
    found: Iterable[Entry], wanted: Iterable[Entry], written: Mapping[Key, Entry] | None = None
) -> Difference:
    """Return the changes that turn `found` into `wanted`.

    `written`: the entries that the controller last wrote (None: `found`).
    """
    there = {key_of(entry): entry for entry in found}
    want = {key_of(entry): entry for entry in wanted}
    ours = there if written is None else written
    changes = [
        Change(there.get(key), want.get(key), drift=there.get(key) != ours.get(key))
        for key in {**want, **there}
        if there.get(key) != want.get(key)
    ]
    return Difference(tuple(changes), unchanged=sum(there.get(key) == want[key] for key in want))


def batch(changes: Sequence[Change]) -> list[Update]:
    """Return the updates in an order in which no packet can go wrong: new before old, guards before routes.

    P4Runtime lets a switch apply a batch in any order, but both targets keep it.
    """
    written = {key_of(change.entry): change.update for change in changes if change.after is not None}
    stages = writing_stages(update.entry for update in written.values())
    deleted = Difference(tuple(changes)).stages(UpdateKind.DELETE)
    return [
        *(written[key_of(entry)] for entry in flatten(stages)),
        *(Update(UpdateKind.DELETE, entry) for entry in flatten(deleted)),
    ]


def writing_stages(entries: Iterable[Entry]) -> tuple[Stage, ...]:
    """Return entries in stages: groups, `emit` and uplinks, flows, their guards, routes last.

    A switch that lost everything forwards nothing without routes, so no packet gets past a guard that is not
    there yet.
    """
    return _stages(entries, _WRITTEN, others=5)


def deleting_stages(entries: Iterable[Entry]) -> tuple[Stage, ...]:
    """Return entries in stages: flows first, groups after their users, guards last.

    Guards drop packets that are still under way.
    """
    return _stages(entries, _DELETED, others=1)


def _stages(entries: Iterable[Entry], order: Mapping[str, int], *, others: int) -> tuple[Stage, ...]:
    stages: dict[int, list[Entry]] = {}
    for entry in entries:
        stages.setdefault(order.get(entry.table, others), []).append(entry)
    return tuple(tuple(stages[number]) for number in sorted(stages))


def flatten(stages: Sequence[Stage]) -> tuple[Entry, ...]:
    """Return the entries of all stages, in order."""
    return tuple(entry for stage in stages for entry in stage)
