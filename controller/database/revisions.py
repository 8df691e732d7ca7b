"""The documents that were applied, each under a number that is never used again."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from controller.api.errors import NotFoundError

SCHEMA = """
CREATE TABLE IF NOT EXISTS revisions (
    number INTEGER PRIMARY KEY,
    applied_at REAL NOT NULL,
    document TEXT NOT NULL
);
"""
_KEPT = 200


@dataclass(frozen=True)
class Revision:
    """A document, and when it was applied in seconds since 1970. Number 0: before anything was."""

    number: int
    applied_at: float = 0.0
    document: str = ""


NOTHING = Revision(0)


class Revisions:
    """The table `revisions` of the store's database; every method is one transaction."""

    def __init__(self, db: sqlite3.Connection, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._db = db
        self._wall_clock = wall_clock

    def add(self, document: str) -> Revision:
        """Record the document that has been applied, and forget very old ones."""
        applied_at = self._wall_clock()
        with self._db:
            cursor = self._db.execute(
                "INSERT INTO revisions (applied_at, document) VALUES (?, ?)", (applied_at, document)
            )
            number = int(cursor.lastrowid or 0)
            self._db.execute("DELETE FROM revisions WHERE number <= ?", (number - _KEPT,))
        return Revision(number, applied_at, document)

    def current(self) -> Revision:
        """Return the revision that was applied last; its number is 0 if there is none."""
        row = self._db.execute("SELECT * FROM revisions ORDER BY number DESC LIMIT 1").fetchone()
        return Revision(*row) if row is not None else NOTHING

    def get(self, number: int) -> Revision:
        """Return a revision by number, 0 too. Raise NotFoundError."""
        if number == 0:
            return NOTHING
        row = self._db.execute("SELECT * FROM revisions WHERE number = ?", (number,)).fetchone()
        if row is None:
            known = [revision.number for revision in self.all()]
            span = f"known are {known[0]} to {known[-1]}" if known else "nothing has been applied yet"
            raise NotFoundError(f"there is no revision {number}: {span}")
        return Revision(*row)

    def all(self) -> list[Revision]:
        """Return all revisions that are kept, oldest first."""
        return [Revision(*row) for row in self._db.execute("SELECT * FROM revisions ORDER BY number")]
