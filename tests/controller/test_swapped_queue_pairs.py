"""A database in which two workers' queue pair numbers were swapped: what switches and workers say holds."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from controller.api.messages import Join, Renew, Resume, Resumed, Up
from controller.api.messages import Worker as Addresses
from controller.fabric.tables.membership import FLOW
from tests.controller.bench import PATIENCE_S, Bench, Worker, say
from tests.controller.told import everything

FIRST, SECOND = 0x100, 0x200  # of ranks 0 and 1; their QP_in's are the next
SWAPPED = {FIRST: SECOND, SECOND: FIRST, FIRST + 1: SECOND + 1, SECOND + 1: FIRST + 1}


def swap(value: Any) -> Any:
    """Return the value with the numbers swapped where a key says that they are a queue pair's."""
    match value:
        case [str(name), int(number)] if "qp" in name:
            return [name, SWAPPED.get(number, number)]
        case list():
            return [swap(item) for item in value]
        case dict():
            return {k: SWAPPED.get(v, v) if k.startswith("qpn") else swap(v) for k, v in value.items()}
    return value


def change(database: Path, table: str, column: str) -> None:
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        for (text,) in db.execute(f"SELECT DISTINCT {column} FROM {table}").fetchall():
            changed = json.dumps(swap(json.loads(text)))
            assert table == "entries" or changed != text
            db.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (changed, text))


async def a_job(b: Bench) -> list[Worker]:
    """Run a job of two workers whose queue pairs have other numbers."""
    sessions = [
        b.registry.sessions.join("train", 2, b.member(rank, qp=qp)) for rank, qp in enumerate((FIRST, SECOND))
    ]
    await b.registry.drain()
    workers = [Worker(session, rank, (FIRST, SECOND)[rank]) for rank, session in enumerate(sessions)]
    for worker in workers:
        worker.listen()
    say(workers, Up())
    await b.go(workers)
    return workers


@pytest.mark.parametrize("tables", [["entries"], ["entries", "jobs"]], ids=["flows", "flows and workers"])
async def test_guards_of_the_queue_pairs_that_workers_have_stay_until_none_sends(
    b: Bench, tables: list[str]
) -> None:
    """Renew the job, as the switch's entries are not believed to be its own; its workers still send."""
    workers = await a_job(b)
    guards, copy = b.guards("train"), b.back_up()
    for table in tables:
        change(copy, table, {"entries": "entry", "jobs": "workers"}[table])
    since = len(b.switch.log)
    await b.restore(copy, listen=True)
    assert b.job.renewal is not None
    assert not any(isinstance(e, type(next(iter(guards)))) and e.table == FLOW for e in b.of_jobs("s1"))
    await b.resume(*workers)
    await b.go(workers)
    assert not [entry for entry, written in b.switch.log[since:] if entry in guards and not written]
    await b.pass_time(PATIENCE_S, *[worker.session for worker in workers])
    assert b.job.live
    assert b.is_as_wanted()
    assert not guards & b.of_jobs("s1")


async def test_a_worker_that_has_other_queue_pairs_than_the_database_says_is_believed(b: Bench) -> None:
    """Check that its job is renewed, and that its numbers are retired, not those of the database."""
    workers = await a_job(b)
    copy = b.back_up()
    change(copy, "jobs", "workers")
    await b.restore(copy, listen=True)
    assert b.job.renewal is None
    for worker in workers:
        resume(b, worker)
    assert b.job.renewal is not None
    assert "has other queue pairs than the controller's database says" in b.job.renewal.reason
    retired = b.registry.book.retired
    for rank, qp in enumerate((FIRST, SECOND)):
        assert retired.why_not(b.config.hosts[rank].ip, {qp, qp + 1}, b.now)
        said = everything(workers[rank].session)
        assert {type(event) for event in said} >= {Resumed, Renew}


async def test_a_worker_that_has_what_the_database_says_is_not_renewed(b: Bench) -> None:
    workers = await a_job(b)
    await b.restart(listen=True)
    for worker in workers:
        resume(b, worker)
    assert b.job.renewal is None


def resume(b: Bench, worker: Worker) -> None:
    """Resume a worker as its own session says it."""
    assert worker.ready is not None
    host = b.config.hosts[worker.rank]
    at = Addresses(
        rank=worker.rank, mac=host.mac, ip=host.ip, qpn_out=worker.qp, psn_out=0, qpn_in=worker.qp + 1
    )
    worker.session = b.registry.sessions.begin(
        Resume(
            job="train",
            generation=worker.ready.generation,
            rank=worker.rank,
            token=worker.ready.resume_token,
            joined=Join(job="train", world_size=2, worker=at, path_mtu_max=1024),
            ready=worker.ready,
        )
    )
