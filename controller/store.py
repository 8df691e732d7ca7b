"""What must survive a restart of the controller: one SQLite file (WAL), one process at a time.

A generation is never given out twice: the counter goes up in a transaction of its own before the number is
used. It is kept a reserve ahead of that, so that jobs which run can be given new generations while the disk
is full; a restart leaves out what is left of the reserve. A new file starts it at the time in seconds, so
that a lost file does not bring back generations that slots of a switch may still hold (more than one job a
second for the file's whole life would).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Any

from controller.allocator import Region
from controller.api.messages import Ended, JobSpec, Left, Mode
from controller.effects import Superseded
from controller.entries import Entry, from_json, to_json
from controller.revisions import SCHEMA as _REVISIONS
from controller.specs import Backup, Member, Phase, Plan

_VERSION = 3
_OLDER = (1, 2)  # differ in the parameters of flow entries; one switch a job
_GENERATIONS = 1 << 32
_KEPT = 100  # ended jobs that are remembered, and as many generations that jobs went on after
_RESERVE = 256
_SUPERSEDED = '{"superseded": true}'
_DELETED = "deleted"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS specs (name TEXT PRIMARY KEY, spec TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS broken (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (
    generation INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    explicit INTEGER NOT NULL,
    spec TEXT NOT NULL,
    plan TEXT NOT NULL,
    workers TEXT NOT NULL,
    phase INTEGER NOT NULL,
    outcome TEXT
);
CREATE TABLE IF NOT EXISTS regions (
    generation INTEGER NOT NULL REFERENCES jobs (generation) ON DELETE CASCADE,
    switch TEXT NOT NULL,
    role TEXT NOT NULL,
    number INTEGER NOT NULL,
    base INTEGER NOT NULL,
    slots INTEGER NOT NULL,
    PRIMARY KEY (generation, switch),
    UNIQUE (switch, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    generation INTEGER NOT NULL,
    switch TEXT NOT NULL,
    position INTEGER NOT NULL,
    entry TEXT NOT NULL,
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


class StoreError(Exception):
    """The database cannot be used; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a job is on a switch, a "leaf" or a "spine", and its entries there in the order of writing."""

    switch: str
    region: Region
    entries: tuple[Entry, ...]
    role: str = "leaf"


@dataclass(frozen=True, kw_only=True)
class StoredJob:
    """A job that has a plan. `places`: on each switch that holds something of it; none by ring.

    `deleted`: only its places and its queue pairs' numbers are of interest. `dropped` says, by token, why the
    job goes on without some of `workers`: it was not under its next generation yet.
    """

    spec: JobSpec
    explicit: bool
    plan: Plan
    workers: tuple[tuple[Member, bytes], ...]
    phase: Phase
    outcome: Left | Ended | Superseded | None = None
    places: tuple[Place, ...] = ()
    deleted: bool = False
    dropped: dict[bytes, str] = field(default_factory=dict)

    @property
    def is_draft(self) -> bool:
        """Whether it is what a job was to become: its workers have tokens, and have not heard of it."""
        return self.phase is Phase.INSTALLING and any(token for _, token in self.workers)


class Store:
    """The open database. Every method is one transaction."""

    def __init__(self, path: Path | str, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.path = str(path)
        self._db = _open(self.path, int(wall_clock()))
        (given,) = self._db.execute("SELECT value FROM counters WHERE name = 'generation'").fetchone()
        self._given: int = given
        self._since = given + 1  # what this process gives out begins there
        self._doubtful: list[range] = []
        self._reserved = self._given  # none of the numbers up to this one is given out after a restart

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """For other tables of the same file."""
        return self._db

    def close(self) -> None:
        """Close the file; idempotent."""
        self._db.close()

    def trouble(self, error: Exception) -> str:
        """What went wrong; of the database, where it is and what to do, too."""
        if not isinstance(error, sqlite3.Error):
            return str(error)
        return (
            f"the controller's database {self.path} cannot be written: {error}. Jobs that run go on, new "
            "ones are taken when it can be written again: look for free space there (df), the controller "
            "need not be restarted"
        )

    def next_generation(self, *, spare_reserve: bool = False) -> int:
        """A number from 1 to 2**32-1 that no job of this database has ever had.

        StoreError at the end; what the database raises where it cannot be written and the reserve is used up,
        or is to be spared.
        """
        generation = self._given + 1
        if not 0 < generation < _GENERATIONS:
            raise StoreError(
                f"{self.path}: all generations are used up; restart the switches and begin a new database"
            )
        reserved = min(generation + _RESERVE, _GENERATIONS - 1)
        try:
            with self._db:
                self._db.execute("UPDATE counters SET value = ? WHERE name = 'generation'", (reserved,))
            self._reserved = reserved
        except sqlite3.Error:
            if spare_reserve or generation > self._reserved:
                raise
        self._given = generation
        return generation

    def is_ours(self, generation: int, name: str = "") -> bool:
        """Whether a job of this database has had that number; `name`: the one of that name, as far as known.

        Not what was reserved and left out by a restart: where this is a backup, a job may have got that
        afterwards, however many are given out behind it.
        """
        row = self._db.execute(
            "SELECT (SELECT name FROM jobs WHERE generation = ?) FROM given WHERE ? BETWEEN first AND last",
            (generation, generation),
        ).fetchone()
        return row is not None and (not name or row[0] in (None, name))

    def outlive(self, generation: int) -> None:
        """Another database has given out that number: none up to it is given out here, nor is surely ours."""
        if generation <= self._given:
            return
        self._doubtful.append(range(self._since, self._given + 1))
        with self._db:
            self._db.execute("UPDATE counters SET value = ? WHERE name = 'generation'", (generation,))
            self._db.execute("DELETE FROM given")
        self._given = self._reserved = generation
        self._since = generation + 1

    def is_doubtful(self, generation: int) -> bool:
        """Whether that number was given out here before it was known what others had given out."""
        return any(generation in numbers for numbers in self._doubtful)

    @property
    def newest_generation(self) -> int:
        """The one given out last."""
        return self._given

    # The fabric.

    def save_broken(self, names: Iterable[str]) -> None:
        """Links and spines that cannot be used, by name: all of them."""
        with self._db:
            self._db.execute("DELETE FROM broken")
            self._db.executemany("INSERT INTO broken VALUES (?)", [(name,) for name in sorted(names)])

    def broken(self) -> frozenset[str]:
        """What was saved last."""
        return frozenset(name for (name,) in self._db.execute("SELECT name FROM broken"))

    # Jobs that were asked for by name.

    def save_spec(self, spec: JobSpec) -> None:
        """Remember a job that was created explicitly."""
        with self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO specs VALUES (?, ?)", (spec.name, json.dumps(asdict(spec)))
            )

    def forget_spec(self, name: str) -> None:
        """Forget it; nothing where there is none."""
        with self._db:
            self._db.execute("DELETE FROM specs WHERE name = ?", (name,))

    def specs(self) -> list[JobSpec]:
        """All of them."""
        return [
            _spec(json.loads(text)) for (text,) in self._db.execute("SELECT spec FROM specs ORDER BY name")
        ]

    # Jobs that have a plan.

    def save_job(self, job: StoredJob) -> None:
        """Remember a job and its places, in one transaction: before switches are written."""
        with self._db:
            self._save_job(job)

    def _save_job(self, job: StoredJob) -> None:
        generation = job.plan.generation
        self._db.execute("DELETE FROM jobs WHERE generation = ?", (generation,))
        self._db.execute(
            "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                generation,
                job.spec.name,
                job.explicit,
                json.dumps(asdict(job.spec)),
                json.dumps(asdict(job.plan)),
                json.dumps([_worker_to_json(job, member, token) for member, token in job.workers]),
                int(job.phase),
                _outcome_to_json(job.outcome, deleted=job.deleted),
            ),
        )
        if generation >= self._since:
            self._db.execute(
                "INSERT INTO given VALUES (?, ?) ON CONFLICT (first) DO UPDATE SET last = max(last, ?)",
                (self._since, generation, generation),
            )
        for place in job.places:
            self._insert_place(generation, place)
        if job.phase is Phase.ENDED:
            self._db.execute(f"{_ENDS} generation = ?", (generation,))

    def supersede(self, job: StoredJob) -> None:
        """A job goes on under a new generation: it is remembered, and those before it are over.

        Those stay known for the numbers of their queue pairs (controller/retired.py).
        """
        older = "name = ? AND generation < ? AND phase != ?"
        which = (job.spec.name, job.plan.generation, int(Phase.ENDED))
        with self._db:
            self._save_job(job)
            self._db.execute(f"{_ENDS} {older} ORDER BY generation", which)
            self._db.execute(
                f"UPDATE jobs SET phase = ?, outcome = ? WHERE {older}",
                (int(Phase.ENDED), _outcome_to_json(Superseded()), *which),
            )
            self._forget_old()

    def save_places(self, places: Iterable[tuple[int, Place]]) -> None:
        """Jobs, by generation, have more places, or other entries there."""
        with self._db:
            for generation, place in places:
                self._delete_place(generation, place.switch)
                self._insert_place(generation, place)

    def _insert_place(self, generation: int, place: Place) -> None:
        region = place.region
        self._db.execute(
            "INSERT INTO regions VALUES (?, ?, ?, ?, ?, ?)",
            (generation, place.switch, place.role, region.number, region.base, region.slots),
        )
        self._db.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?)",
            [
                (generation, place.switch, i, json.dumps(to_json(entry)))
                for i, entry in enumerate(place.entries)
            ],
        )

    def _delete_place(self, generation: int, switch: str) -> None:
        self._db.execute("DELETE FROM regions WHERE generation = ? AND switch = ?", (generation, switch))

    def save_phase(
        self,
        generation: int,
        phase: Phase,
        outcome: Left | Ended | Superseded | None = None,
        *,
        deleted: bool = False,
    ) -> None:
        """A job went on. `deleted`: it has ended, and only its places and numbers are of interest."""
        with self._db:
            self._db.execute(
                "UPDATE jobs SET phase = ?, outcome = ? WHERE generation = ?",
                (int(phase), _outcome_to_json(outcome, deleted=deleted), generation),
            )
            if phase is Phase.ENDED:
                self._db.execute(f"{_ENDS} generation = ?", (generation,))
                self._forget_old()

    def save_dropped(self, generation: int, dropped: Mapping[bytes, str]) -> None:
        """Workers of a job, by token, that it goes on without, and why."""
        reasons = {token.hex(): [why] for token, why in dropped.items()}
        with self._db:
            row = self._db.execute("SELECT workers FROM jobs WHERE generation = ?", (generation,)).fetchone()
            if row is None:  # the disk was full
                return
            workers = [[fields, token, *reasons.get(token, [])] for fields, token, *_ in json.loads(row[0])]
            self._db.execute(
                "UPDATE jobs SET workers = ? WHERE generation = ?", (json.dumps(workers), generation)
            )

    def release(self, generation: int, *switches: str) -> None:
        """These switches hold nothing of the job any more. Old ended jobs are forgotten on the way."""
        with self._db:
            for switch in switches:
                self._delete_place(generation, switch)
            self._forget_old()

    def _forget_old(self) -> None:
        newest = (
            "NOT IN (SELECT generation FROM ended JOIN jobs USING (generation) WHERE outcome {} ? "
            "ORDER BY serial DESC LIMIT ?)"
        )
        self._db.execute(
            "DELETE FROM jobs WHERE phase = ? AND generation NOT IN (SELECT generation FROM regions) "
            f"AND generation {newest.format('=')} AND generation {newest.format('IS NOT')}",
            (int(Phase.ENDED), _SUPERSEDED, _KEPT, _SUPERSEDED, _KEPT),
        )

    def hide(self, name: str) -> None:
        """Nobody asks any more for a job that has ended, nor for its runs before: they are `deleted`."""
        with self._db:
            for generation, outcome in self._db.execute(
                "SELECT generation, outcome FROM jobs WHERE name = ? AND phase = ? AND outcome IS NOT ?",
                (name, int(Phase.ENDED), _SUPERSEDED),
            ).fetchall():
                text = json.dumps({**json.loads(outcome or "{}"), _DELETED: True})
                self._db.execute("UPDATE jobs SET outcome = ? WHERE generation = ?", (text, generation))

    def forget_job(self, generation: int) -> None:
        """Forget a job; StoreError where the switch still holds something of it."""
        with self._db:
            held = self._db.execute(
                "SELECT switch FROM regions WHERE generation = ? ORDER BY switch", (generation,)
            ).fetchone()
            if held is not None:
                raise StoreError(f"generation {generation} still has a region on {held[0]}")
            self._db.execute("DELETE FROM jobs WHERE generation = ?", (generation,))

    def jobs(self) -> list[StoredJob]:
        """All of them, oldest first."""
        rows = self._db.execute(
            "SELECT generation, explicit, spec, plan, workers, phase, outcome FROM jobs ORDER BY generation"
        ).fetchall()
        return [
            StoredJob(
                spec=_spec(json.loads(spec)),
                explicit=bool(explicit),
                plan=_plan(json.loads(plan)),
                workers=tuple(_member_from_json(value) for value in json.loads(workers)),
                dropped={bytes.fromhex(token): why[0] for _, token, *why in json.loads(workers) if why},
                phase=Phase(phase),
                outcome=_outcome_from_json(outcome),
                places=self._places(generation),
                deleted=outcome is not None and _DELETED in json.loads(outcome),
            )
            for generation, explicit, spec, plan, workers, phase, outcome in rows
        ]

    def running(self) -> list[int]:
        """The generations of those that are not over, oldest first."""
        rows = self._db.execute("SELECT generation FROM jobs WHERE outcome IS NULL ORDER BY generation")
        return [generation for (generation,) in rows]

    def _places(self, generation: int) -> tuple[Place, ...]:
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
            Place(switch=switch, role=role, region=Region(*numbers), entries=tuple(entries[switch]))
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


def _spec(value: dict[str, Any]) -> JobSpec:
    mode = value.pop("mode")
    return JobSpec(**value, mode=None if mode is None else Mode(mode))


def _plan(value: dict[str, Any]) -> Plan:
    return Plan(**{**value, "mode": Mode(value["mode"]), "ring": tuple(value.get("ring", ()))})


def _member_to_json(member: Member, token: bytes) -> list[Any]:
    fields = asdict(member) | {"ip": str(member.ip)}
    if member.backup is not None:
        fields["backup"]["ip"] = str(member.backup.ip)
    return [fields, token.hex()]


def _worker_to_json(job: StoredJob, member: Member, token: bytes) -> list[Any]:
    why = job.dropped.get(token)
    return [*_member_to_json(member, token), *([] if why is None else [why])]


def _member_from_json(value: list[Any]) -> tuple[Member, bytes]:
    fields, token, *_ = value
    if (backup := fields.get("backup")) is not None:
        fields = {**fields, "backup": Backup(**{**backup, "ip": IPv4Address(backup["ip"])})}
    return Member(**{**fields, "ip": IPv4Address(fields["ip"])}), bytes.fromhex(token)


def _outcome_to_json(outcome: Left | Ended | Superseded | None, *, deleted: bool = False) -> str | None:
    if outcome is None:
        return None
    if isinstance(outcome, Superseded):
        return _SUPERSEDED
    return json.dumps(asdict(outcome) | ({_DELETED: True} if deleted else {}))


def _outcome_from_json(text: str | None) -> Left | Ended | Superseded | None:
    if text is None:
        return None
    if text == _SUPERSEDED:
        return Superseded()
    fields = json.loads(text)
    fields.pop(_DELETED, None)
    return Ended(**fields) if fields else Left()
