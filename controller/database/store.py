"""State that survives a restart of the controller: one SQLite file (WAL), one process at a time.

A generation is never given out twice: the counter goes up in a transaction of its own before the number is
used. The counter runs a reserve ahead, so that running jobs can get new generations while the disk is full; a
restart skips the rest of the reserve. A new file starts the counter at the time in seconds. So after the loss
of a file no generation comes back that a switch's slots may still hold, unless the lost file had given out
more than one a second for its whole life.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from controller.api.messages import Ended, JobSpec, Left
from controller.database.revisions import SCHEMA as _REVISIONS
from controller.entries import Entry, from_json, to_json
from controller.jobs.effects import Superseded
from controller.jobs.specs import Member, Phase, Plan
from controller.plain import read
from controller.slots.allocation import Allocation
from controller.slots.allocator import Region

_VERSION = 3
_OLDER = (1, 2)  # differ in the parameters of flow entries; one switch a job
_GENERATIONS = 1 << 32
_KEPT = 100  # ended jobs that are remembered, and as many generations that jobs went on after
_RESERVE = 256
_LATEST = _GENERATIONS - (1 << 28)  # where a new file begins at most, whatever the clock says
_SUPERSEDED = '{"superseded": true}'
_DELETED = "deleted"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS specs (name TEXT PRIMARY KEY, spec TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS broken (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (
    generation INTEGER PRIMARY KEY,
    name TEXT NOT NULL, explicit INTEGER NOT NULL, spec TEXT NOT NULL, plan TEXT NOT NULL,
    workers TEXT NOT NULL, phase INTEGER NOT NULL, outcome TEXT
);
CREATE TABLE IF NOT EXISTS regions (
    generation INTEGER NOT NULL REFERENCES jobs (generation) ON DELETE CASCADE,
    switch TEXT NOT NULL, role TEXT NOT NULL,
    number INTEGER NOT NULL, base INTEGER NOT NULL, slots INTEGER NOT NULL,
    PRIMARY KEY (generation, switch),
    UNIQUE (switch, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    generation INTEGER NOT NULL, switch TEXT NOT NULL, position INTEGER NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (generation, switch, position),
    FOREIGN KEY (generation, switch) REFERENCES regions (generation, switch) ON DELETE CASCADE
) WITHOUT ROWID;
"""
# What each process gave out, from the first number that it could to the last that a job was saved with.
# A file that has no such table has said the same in two counters, or nothing: then all were its own.
_GIVEN = """
CREATE TABLE given (first INTEGER PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO given SELECT first, last FROM (
    SELECT coalesce((SELECT value FROM counters WHERE name = 'first'), 0) + 1 AS first,
        coalesce((SELECT value FROM counters WHERE name = 'used'), value) AS last
    FROM counters WHERE name = 'generation'
) WHERE first <= last;
DELETE FROM counters WHERE name IN ('first', 'used');
"""
# In which order jobs came to their end, or went on under another generation.
_ENDED = f"""
CREATE TABLE ended (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    generation INTEGER NOT NULL UNIQUE REFERENCES jobs (generation) ON DELETE CASCADE
);
INSERT INTO ended (generation)
    SELECT generation FROM jobs WHERE phase = {int(Phase.ENDED)} ORDER BY generation;
"""
_ENDS = "INSERT OR IGNORE INTO ended (generation) SELECT generation FROM jobs WHERE"
_DROP_OLDER = "DROP TABLE entries; DROP TABLE regions;"

Outcome = Left | Ended | Superseded | None


class StoreError(Exception):
    """Error about a database that cannot be used; the message says why."""


@dataclass(frozen=True, kw_only=True)
class StoredJob:
    """A job that has a plan. `allocations`: one for each switch that holds something of it; none by ring.

    `deleted`: only its allocations and its queue pairs' numbers still matter. `dropped` gives, by token, the
    reason why the job goes on without some of `workers`; it had not reached its next generation yet.
    """

    spec: JobSpec
    explicit: bool
    plan: Plan
    workers: tuple[tuple[Member, bytes], ...]
    phase: Phase
    outcome: Outcome = None
    allocations: tuple[Allocation, ...] = ()
    deleted: bool = False
    dropped: dict[bytes, str] = field(default_factory=dict)

    @property
    def is_draft(self) -> bool:
        """True for a planned generation: its workers have tokens, but have not heard of it."""
        return self.phase is Phase.INSTALLING and any(token for _, token in self.workers)


class Store(contextlib.AbstractContextManager["Store"]):
    """The open database. Every method is one transaction.

    `left_out`: the number of generations that are not given out because workers, but no switch, say that
    others have given them out.
    """

    def __init__(self, path: Path | str, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.path = str(path)
        self._db = _open(self.path, min(max(0, int(wall_clock())), _LATEST))
        (given,) = self._db.execute("SELECT value FROM counters WHERE name = 'generation'").fetchone()
        self._given: int = given
        self._since = given + 1  # what this process gives out begins there
        self._doubtful: list[range] = []
        self.left_out = 0
        self._reserved = self._given  # none of the numbers up to this one is given out after a restart

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection, for other tables of the same file."""
        return self._db

    def close(self) -> None:
        """Close the file; idempotent."""
        self._db.close()

    def explain(self, error: Exception) -> str:
        """Describe an error; for one of the database, say also where it is and what to do."""
        if not isinstance(error, sqlite3.Error):
            return str(error)
        return (
            f"the controller's database {self.path} cannot be written: {error}. Jobs that run go on, new "
            "ones are taken when it can be written again: look for free space there (df), the controller "
            "need not be restarted"
        )

    def next_generation(self, *, spare_reserve: bool = False) -> int:
        """Return a number from 1 to 2**32-1 that no job of this database has ever had.

        Raise StoreError if all are used up. Raise the database's error if it cannot be written and the
        reserve is used up, or is to be spared.
        """
        generation = self._given + 1
        if not 0 < generation < _GENERATIONS:
            raise StoreError(
                f"{self.path}: all generations are used up; restart the switches and begin a new database"
            )
        reserved = min(generation + _RESERVE, _GENERATIONS - 1)
        try:
            self._write("UPDATE counters SET value = ? WHERE name = 'generation'", reserved)
            self._reserved = reserved
        except sqlite3.Error:
            if spare_reserve or generation > self._reserved:
                raise
        self._given = generation
        return generation

    def is_ours(self, generation: int, name: str = "") -> bool:
        """Tell whether a job of this database has had that number; with `name`, a job of that name, if known.

        Numbers that a restart skipped in the reserve do not count, however many are given out after them: if
        this file is a backup, a later copy may have given them to a job.
        """
        row = self._db.execute(
            "SELECT (SELECT name FROM jobs WHERE generation = ?) FROM given WHERE ? BETWEEN first AND last",
            (generation, generation),
        ).fetchone()
        return row is not None and (not name or row[0] in (None, name))

    def outlive(self, generation: int, *, workers_say_so: bool = False) -> None:
        """Note that another database has given out that number.

        From now on, give out only higher numbers, and claim no number so far as surely ours. A switch knows
        the numbers that it has had, so its word resets `left_out`, which counts those skipped on the word of
        workers.
        """
        if generation <= self._given:
            return
        if self._since <= self._given:
            self._doubtful.append(range(self._since, self._given + 1))
        with self._db:
            self._db.execute("UPDATE counters SET value = ? WHERE name = 'generation'", (generation,))
            self._db.execute("DELETE FROM given")
        self.left_out = self.left_out + generation - self._given if workers_say_so else 0
        self._given = self._reserved = generation
        self._since = generation + 1

    def is_doubtful(self, generation: int) -> bool:
        """Tell whether that number was given out here before others' numbers were known."""
        return any(generation in numbers for numbers in self._doubtful)

    @property
    def newest_generation(self) -> int:
        """The generation that was given out last."""
        return self._given

    def _write(self, statement: str, *values: object) -> None:
        """Run a transaction of one statement."""
        with self._db:
            self._db.execute(statement, values)

    # The fabric.

    def save_broken(self, names: Iterable[str]) -> None:
        """Save the names of all links and spines that cannot be used."""
        with self._db:
            self._db.execute("DELETE FROM broken")
            self._db.executemany("INSERT INTO broken VALUES (?)", [(name,) for name in sorted(names)])

    def broken(self) -> frozenset[str]:
        """Return the names that were saved last."""
        return frozenset(name for (name,) in self._db.execute("SELECT name FROM broken"))

    # Jobs that were asked for by name.

    def save_spec(self, *planes: JobSpec) -> None:
        """Remember a job, or the planes of a gang, that was created explicitly."""
        with self._db:
            rows = [(spec.name, _text(spec)) for spec in planes]
            self._db.executemany("INSERT OR REPLACE INTO specs VALUES (?, ?)", rows)

    def forget_spec(self, name: str) -> None:
        """Forget the request for a job; do nothing if there is none."""
        self._write("DELETE FROM specs WHERE name = ?", name)

    def specs(self) -> list[JobSpec]:
        """Return all requests for jobs, by name."""
        rows = self._db.execute("SELECT spec FROM specs ORDER BY name")
        return [read(JobSpec, json.loads(text)) for (text,) in rows]

    # Jobs that have a plan.

    def save_job(self, *planes: StoredJob) -> None:
        """Remember a job, or the planes of a gang, with their allocations: before switches are written."""
        with self._db:
            for job in planes:
                self._save_job(job)

    def _save_job(self, job: StoredJob) -> None:
        generation = job.plan.generation
        self._db.execute("DELETE FROM jobs WHERE generation = ?", (generation,))
        whys = {token: [why] for token, why in job.dropped.items()}
        row = (
            *(generation, job.spec.name, job.explicit, _text(job.spec), _text(job.plan)),
            _text([[member, token, *whys.get(token, [])] for member, token in job.workers]),
            *(job.phase, _outcome_text(job.outcome, deleted=job.deleted)),
        )
        self._insert("jobs", row)
        if generation >= self._since:
            self._db.execute(
                "INSERT INTO given VALUES (?, ?) ON CONFLICT (first) DO UPDATE SET last = max(last, ?)",
                (self._since, generation, generation),
            )
        for allocation in job.allocations:
            self._insert_allocation(generation, allocation)
        if job.phase is Phase.ENDED:
            self._db.execute(f"{_ENDS} generation = ?", (generation,))

    def _insert(self, table: str, *rows: Sequence[object]) -> None:
        for width in {len(row) for row in rows}:
            self._db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", rows)

    def supersede(self, *planes: StoredJob) -> None:
        """Save a job, or a gang, under new generations, and mark those before as over.

        The old generations stay known for the numbers of their queue pairs (orchestration/retired.py).
        """
        older = "name = ? AND generation < ? AND phase != ?"
        with self._db:
            for job in planes:
                which = (job.spec.name, job.plan.generation, Phase.ENDED)
                self._save_job(job)
                self._db.execute(f"{_ENDS} {older} ORDER BY generation", which)
                over = (Phase.ENDED, _SUPERSEDED, *which)
                self._db.execute(f"UPDATE jobs SET phase = ?, outcome = ? WHERE {older}", over)
            self._forget_old()

    def save_allocations(self, allocations: Iterable[tuple[int, Allocation]]) -> None:
        """Save allocations of jobs, by generation: new ones, or ones with other entries."""
        with self._db:
            for generation, allocation in allocations:
                self._delete_allocation(generation, allocation.switch)
                self._insert_allocation(generation, allocation)

    def _insert_allocation(self, generation: int, allocation: Allocation) -> None:
        where = (generation, allocation.switch)
        self._insert("regions", (*where, allocation.role, *astuple(allocation.region)))
        entries = [_text(to_json(entry)) for entry in allocation.entries]
        self._insert("entries", *((*where, position, text) for position, text in enumerate(entries)))

    def _delete_allocation(self, generation: int, switch: str) -> None:
        self._db.execute("DELETE FROM regions WHERE generation = ? AND switch = ?", (generation, switch))

    def save_phase(
        self, generation: int, phase: Phase, outcome: Outcome = None, *, deleted: bool = False
    ) -> None:
        """Save a job's phase. `deleted`: the job has ended, and only its allocations and numbers matter."""
        with self._db:
            self._db.execute(
                "UPDATE jobs SET phase = ?, outcome = ? WHERE generation = ?",
                (phase, _outcome_text(outcome, deleted=deleted), generation),
            )
            if phase is Phase.ENDED:
                self._db.execute(f"{_ENDS} generation = ?", (generation,))
                self._forget_old()

    def save_dropped(self, generation: int, dropped: Mapping[bytes, str]) -> None:
        """Save the workers that a job goes on without, by token, and why."""
        reasons = {token.hex(): [why] for token, why in dropped.items()}
        with self._db:
            row = self._db.execute("SELECT workers FROM jobs WHERE generation = ?", (generation,)).fetchone()
            if row is None:  # the disk was full
                return
            workers = [[fields, token, *reasons.get(token, [])] for fields, token, *_ in json.loads(row[0])]
            self._db.execute("UPDATE jobs SET workers = ? WHERE generation = ?", (_text(workers), generation))

    def release(self, generation: int, *switches: str) -> None:
        """Note that these switches hold nothing of the job any more, and forget old ended jobs."""
        with self._db:
            for switch in switches:
                self._delete_allocation(generation, switch)
            self._forget_old()

    def _forget_old(self) -> None:
        newest = (
            "NOT IN (SELECT generation FROM ended JOIN jobs USING (generation) WHERE outcome {} ? "
            "ORDER BY serial DESC LIMIT ?)"
        )
        self._db.execute(
            "DELETE FROM jobs WHERE phase = ? AND generation NOT IN (SELECT generation FROM regions) "
            f"AND generation {newest.format('=')} AND generation {newest.format('IS NOT')}",
            (Phase.ENDED, _SUPERSEDED, _KEPT, _SUPERSEDED, _KEPT),
        )

    def hide(self, name: str) -> None:
        """Mark an ended job of that name, and its runs before, as `deleted`: nobody asks for them now."""
        self._write(
            "UPDATE jobs SET outcome = json_set(coalesce(outcome, '{}'), ?, json('true')) "
            "WHERE name = ? AND phase = ? AND outcome IS NOT ?",
            *(f"$.{_DELETED}", name, Phase.ENDED, _SUPERSEDED),
        )

    def forget_job(self, generation: int) -> None:
        """Forget a job. Raise StoreError if a switch still holds something of it."""
        with self._db:
            held = self._db.execute(
                "SELECT switch FROM regions WHERE generation = ? ORDER BY switch", (generation,)
            ).fetchone()
            if held is not None:
                raise StoreError(f"generation {generation} still has a region on {held[0]}")
            self._db.execute("DELETE FROM jobs WHERE generation = ?", (generation,))

    def jobs(self) -> list[StoredJob]:
        """Return all jobs, oldest first."""
        rows = self._db.execute(
            "SELECT generation, explicit, phase, spec, plan, workers, outcome FROM jobs ORDER BY generation"
        ).fetchall()
        return [
            StoredJob(
                spec=read(JobSpec, spec),
                explicit=bool(explicit),
                plan=read(Plan, plan),
                workers=tuple((read(Member, member), bytes.fromhex(token)) for member, token, *_ in workers),
                dropped={bytes.fromhex(token): why[0] for _, token, *why in workers if why},
                phase=Phase(phase),
                outcome=_outcome(outcome),
                allocations=self._allocations(generation),
                deleted=_DELETED in (outcome or ()),
            )
            for generation, explicit, phase, *texts in rows
            for spec, plan, workers, outcome in [[json.loads(text or "null") for text in texts]]
        ]

    def running(self) -> list[int]:
        """Return the generations of the jobs that are not over, oldest first."""
        rows = self._db.execute("SELECT generation FROM jobs WHERE outcome IS NULL ORDER BY generation")
        return [generation for (generation,) in rows]

    def _allocations(self, generation: int) -> tuple[Allocation, ...]:
        rows = self._db.execute(
            "SELECT switch, role, number, base, slots FROM regions WHERE generation = ? ORDER BY switch",
            (generation,),
        ).fetchall()
        entries: dict[str, list[Entry]] = {row[0]: [] for row in rows}
        for switch, text in self._db.execute(
            "SELECT switch, entry FROM entries WHERE generation = ? ORDER BY switch, position", (generation,)
        ):
            entries[switch].append(from_json(json.loads(text)))
        return tuple(
            Allocation(switch=switch, role=role, region=Region(*numbers), entries=tuple(entries[switch]))
            for switch, role, *numbers in rows
        )


def _open(path: str, first_generation: int) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, timeout=1.0)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open the database {path}: {error}") from error
    try:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # a second controller would give out the same slots
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version in _OLDER and not db.execute("SELECT 1 FROM entries LIMIT 1").fetchone():
            db.executescript(f"BEGIN IMMEDIATE; {_DROP_OLDER} PRAGMA user_version = 0; COMMIT;")
            version = 0
        if version not in (0, _VERSION):
            holds = " and holds jobs' entries on switches" if version in _OLDER else ""
            raise StoreError(
                f"the database {path} has format {version}{holds}, this controller knows {_VERSION}: use "
                "another"
            )
        if version != _VERSION:  # else nothing is written: a controller may start while the disk is full
            db.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} {_REVISIONS} PRAGMA user_version = {_VERSION}; COMMIT;"
            )
        for name, script in (("given", _GIVEN), ("ended", _ENDED)):
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone():
                db.executescript(f"BEGIN IMMEDIATE; {script} COMMIT;")
        with db:
            db.execute("INSERT OR IGNORE INTO counters VALUES ('generation', ?)", (first_generation,))
    except sqlite3.OperationalError as error:
        db.close()
        if "locked" in str(error):
            raise StoreError(f"the database {path} is in use by another controller: stop that one") from error
        raise StoreError(f"cannot use the database {path}: {error}") from error
    except sqlite3.DatabaseError as error:
        db.close()
        raise StoreError(f"{path} is not a database of this controller: {error}") from error
    except StoreError:
        db.close()
        raise
    return db


# Values as JSON: a dataclass by the names of its fields, bytes in hexadecimal, addresses as text.


def _text(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return value.hex() if isinstance(value, bytes) else str(value)


def _outcome_text(outcome: Outcome, *, deleted: bool = False) -> str | None:
    if outcome is None or isinstance(outcome, Superseded):
        return None if outcome is None else _SUPERSEDED
    return _text(_plain(outcome) | ({_DELETED: True} if deleted else {}))


def _outcome(said: dict[str, Any] | None) -> Outcome:
    if said is None or "superseded" in said:
        return None if said is None else Superseded()
    fields = {name: value for name, value in said.items() if name != _DELETED}
    return Ended(**fields) if fields else Left()
