"""What a switch holds against what it shall hold and what it was last given. No I/O.

A change is drift where the switch differs from what the controller last wrote there: somebody changed it by
hand. Otherwise the controller itself wants something else now.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.entries import Entry, Key, key_of
from controller.recovery import deleting_stages, flatten, writing_stages
from controller.updates import Update, UpdateKind


class ChangeKind(enum.Enum):
    """What happens to an entry."""

    ADD = "add"
    CHANGE = "change"
    DELETE = "delete"


_UPDATES = {
    ChangeKind.ADD: UpdateKind.INSERT,
    ChangeKind.CHANGE: UpdateKind.MODIFY,
    ChangeKind.DELETE: UpdateKind.DELETE,
}


@dataclass(frozen=True)
class Change:
    """One entry before and after; None where there is none."""

    before: Entry | None
    after: Entry | None
    drift: bool

    @property
    def kind(self) -> ChangeKind:
        """Which of the three."""
        if self.before is None:
            return ChangeKind.ADD
        return ChangeKind.DELETE if self.after is None else ChangeKind.CHANGE

    @property
    def entry(self) -> Entry:
        """What is written; what is there, where that is deleted."""
        entry = self.after if self.after is not None else self.before
        assert entry is not None
        return entry

    @property
    def update(self) -> Update:
        """The update that makes it so."""
        return Update(_UPDATES[self.kind], self.entry)


@dataclass(frozen=True)
class Difference:
    """What is to change on a switch, by key, and how many entries are right already."""

    changes: tuple[Change, ...]
    unchanged: int


NO_DIFFERENCE = Difference((), 0)


def difference(found: Iterable[Entry], wanted: Iterable[Entry], written: Mapping[Key, Entry]) -> Difference:
    """What turns `found` into `wanted`; `written` is what the controller last wrote."""
    there = {key_of(entry): entry for entry in found}
    want = {key_of(entry): entry for entry in wanted}
    changes = [
        Change(there.get(key), want.get(key), drift=there.get(key) != written.get(key))
        for key in {**want, **there}
        if there.get(key) != want.get(key)
    ]
    return Difference(tuple(changes), unchanged=sum(there.get(key) == want[key] for key in want))


def batch(changes: Sequence[Change]) -> list[Update]:
    """The updates in an order in which no packet can go wrong: new before old, guards before routes.

    P4Runtime lets a switch apply a batch in any order, but both targets keep it.
    """
    written = {key_of(change.entry): change for change in changes if change.after is not None}
    deleted = [change.entry for change in changes if change.after is None]
    stages = writing_stages(change.entry for change in written.values())
    ordered = [written[key_of(entry)].update for entry in flatten(stages)]
    return ordered + [Update(UpdateKind.DELETE, entry) for entry in flatten(deleting_stages(deleted))]
