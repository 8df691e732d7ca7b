"""The revisions of the applied document, in the store's database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from controller.api.errors import NotFoundError
from controller.database.revisions import NOTHING, SCHEMA, Revision, Revisions


def revisions(path: Path, *, at: float = 7.5) -> Revisions:
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    return Revisions(db, wall_clock=lambda: at)


def test_the_last_is_current_and_survives(tmp_path: Path) -> None:
    first = revisions(tmp_path / "db")
    assert first.current() == NOTHING
    assert first.all() == []
    assert first.add("drain: [s1]") == Revision(1, 7.5, "drain: [s1]")
    first.add("drain: [s2]")
    again = revisions(tmp_path / "db")
    assert again.current() == Revision(2, 7.5, "drain: [s2]")
    assert [revision.number for revision in again.all()] == [1, 2]
    assert again.get(1).document == "drain: [s1]"


def test_zero_is_before_all(tmp_path: Path) -> None:
    assert revisions(tmp_path / "db").get(0) == NOTHING


def test_unknown_ones(tmp_path: Path) -> None:
    kept = revisions(tmp_path / "db")
    with pytest.raises(NotFoundError, match="no revision 1: nothing has been applied"):
        kept.get(1)
    kept.add("a")
    kept.add("b")
    with pytest.raises(NotFoundError, match="no revision 3: known are 1 to 2"):
        kept.get(3)


def test_old_ones_are_forgotten_and_their_numbers_not_used_again(tmp_path: Path) -> None:
    kept = revisions(tmp_path / "db")
    for number in range(300):
        kept.add(str(number))
    numbers = [revision.number for revision in kept.all()]
    assert numbers == list(range(101, 301))
    assert revisions(tmp_path / "db").add("again").number == 301
