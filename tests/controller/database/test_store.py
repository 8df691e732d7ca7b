"""The store: its rows come back from a file that was closed, and from one whose process died."""

from __future__ import annotations

import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from controller.api.messages import EndCause, Ended, JobSpec, Left, Mode
from controller.database.store import Store, StoredJob, StoreError
from controller.entries import Group, table_entry
from controller.jobs.specs import Member, Phase, Plan
from controller.slots.allocation import Allocation
from controller.slots.allocator import Region

ALLOCATION = Allocation(
    switch="s1",
    region=Region(number=3, base=512, slots=256),
    entries=(
        Group(5, ((1, 1), (2, 2))),
        table_entry("route", {"dst_ip": (0x0A000001, 32)}, "next_hop", port=1, src_mac=0x2700001),
        table_entry("flow", {"ingress_port": 1, "dest_qp": 0x123456}, "data_flow", flow=96),
    ),
)
OTHER = Allocation(
    switch="s2", role="spine", region=Region(number=0, base=0, slots=256), entries=(Group(2, ()),)
)
PLAN = Plan(
    job_id=7,
    generation=7,
    window=8,
    message_packets=16,
    path_mtu=1024,
    mode=Mode.RING,
    mode_reason="full",
    ring=(0, 2, 1),
)
JOB = StoredJob(
    spec=JobSpec(name="train", world_size=1, mode=Mode.IN_NETWORK, window=4),
    explicit=True,
    plan=PLAN,
    workers=(
        (
            Member(
                rank=0,
                mac="02:00:00:00:00:01",
                ip=IPv4Address("10.0.0.1"),
                qpn_out=2,
                psn_out=0,
                qpn_in=3,
                rnr_nak=True,
            ),
            b"\x00token",
        ),
    ),
    phase=Phase.INSTALLING,
    allocations=(ALLOCATION, OTHER),
)


def store(path: Path) -> Store:
    return Store(path, wall_clock=lambda: 100.0)


def test_everything_comes_back(tmp_path: Path) -> None:
    spec = JobSpec(name="mine", world_size=4, path_mtu=512)
    with store(tmp_path / "db") as db:
        db.save_spec(spec)
        db.save_job(JOB)
    with store(tmp_path / "db") as db:
        assert db.specs() == [spec]
        assert db.jobs() == [JOB]


@pytest.mark.parametrize(
    "outcome",
    [
        Left(),
        Ended(reason="rank 0 died", cause=EndCause.WORKER_LOST, rank=0, host="h1", first_message=7),
        Ended(reason="they disagree", cause=EndCause.MISMATCH),
        Ended(reason="deleted", cause=EndCause.DELETED),
    ],
)
def test_how_a_job_ended_comes_back(tmp_path: Path, outcome: Left | Ended) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(JOB)
        db.save_phase(7, Phase.RUNNING)
        db.save_phase(7, Phase.ENDED, outcome)
        db.release(7, "s1", "s2")
        assert db.jobs() == [replace(JOB, phase=Phase.ENDED, outcome=outcome, allocations=())]


def test_an_end_that_a_release_without_causes_saved_has_the_cause_that_follows(tmp_path: Path) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(JOB)
        db.save_phase(7, Phase.ENDED, Ended(reason="they disagree", cause=EndCause.MISMATCH))
        db.connection.execute("UPDATE jobs SET outcome = json_remove(outcome, '$.cause')")
        db.connection.commit()
    with store(tmp_path / "db") as db:
        assert [job.outcome for job in db.jobs()] == [Ended(reason="they disagree", cause=EndCause.MISMATCH)]


def test_what_was_written_is_there_after_the_process_died(tmp_path: Path) -> None:
    db = store(tmp_path / "db")
    db.save_job(JOB)
    generation = db.next_generation()
    for file in tmp_path.glob("db*"):  # as the disk is at this moment
        shutil.copy(file, tmp_path / file.name.replace("db", "copy"))
    db.close()
    with store(tmp_path / "copy") as copy:
        assert copy.jobs() == [JOB]
        assert copy.next_generation() > generation


@contextmanager
def full_disk() -> Iterator[None]:
    """Keep every file of this process from growing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_database_is_taken_up_again_while_the_disk_is_full(tmp_path: Path) -> None:
    db = store(tmp_path / "db")
    db.save_job(JOB)
    for file in tmp_path.glob("db*"):
        shutil.copy(file, tmp_path / file.name.replace("db", "copy"))
    db.close()
    with full_disk(), store(tmp_path / "copy") as copy:
        assert copy.jobs() == [JOB]
        with pytest.raises(sqlite3.Error):
            copy.next_generation()
    with store(tmp_path / "copy") as copy:
        assert copy.jobs() == [JOB]
        assert copy.next_generation()


def test_generations_are_never_given_out_twice(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        with store(tmp_path / "db") as db:
            seen += [db.next_generation() for _ in range(3)]
    assert seen == sorted(set(seen))
    assert seen[:3] == [101, 102, 103]


def test_a_new_file_begins_where_no_old_one_has_been(tmp_path: Path) -> None:
    with Store(tmp_path / "new", wall_clock=lambda: 1.8e9) as db:
        assert db.next_generation() == 1_800_000_001


@pytest.mark.parametrize("clock", [-3.6e9, 0.0, 2**32 - 2, 1e12], ids=["1855", "1970", "2106", "33658"])
def test_a_new_file_has_generations_to_give_whatever_the_clock_says(tmp_path: Path, clock: float) -> None:
    with Store(tmp_path / "new", wall_clock=lambda: clock) as db:
        assert 0 < db.next_generation() <= 2**32 - 2**28 + 1


def test_generations_end_with_an_error_and_not_with_zero(tmp_path: Path) -> None:
    with store(tmp_path / "db") as db:
        db.outlive(2**32 - 2)
        assert db.next_generation() == 2**32 - 1
        with pytest.raises(StoreError, match="all generations are used up"):
            db.next_generation()


def test_only_old_ended_jobs_are_forgotten(tmp_path: Path) -> None:
    with store(tmp_path / "db") as db:
        for generation in range(1, 121):
            phase = Phase.RUNNING if generation == 1 else Phase.ENDED
            db.save_job(replace(JOB, plan=replace(PLAN, generation=generation), phase=phase, allocations=()))
        db.release(120)
        assert [job.plan.generation for job in db.jobs()] == [1, *range(21, 121)]


def test_a_job_that_ended_last_is_kept_however_long_it_ran(tmp_path: Path) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(replace(JOB, phase=Phase.RUNNING, allocations=()))
        for generation in range(11, 132):
            one = replace(
                JOB, spec=replace(JOB.spec, name="other"), plan=replace(PLAN, generation=generation)
            )
            db.save_job(replace(one, phase=Phase.RUNNING, allocations=()))
            db.save_phase(generation, Phase.ENDED, Left())
        db.save_phase(7, Phase.ENDED, Left())
        assert [job.plan.generation for job in db.jobs()] == [7, *range(33, 132)]


def test_workers_that_a_job_has_dropped_come_back_with_it(tmp_path: Path) -> None:
    dropped = replace(JOB, dropped={b"\x00token": "it died"})
    with store(tmp_path / "db") as db:
        db.save_job(dropped)
        assert db.jobs() == [dropped]


def test_no_run_of_a_job_that_was_deleted_is_asked_for_any_more(tmp_path: Path) -> None:
    with store(tmp_path / "db") as db:
        for generation, name in ((7, JOB.spec.name), (8, JOB.spec.name), (9, "other")):
            one = replace(JOB, spec=replace(JOB.spec, name=name), plan=replace(PLAN, generation=generation))
            db.save_job(replace(one, phase=Phase.ENDED, outcome=Ended(reason="died"), allocations=()))
        db.hide(JOB.spec.name)
        assert [(job.deleted, job.outcome) for job in db.jobs()] == [
            *[(True, Ended(reason="died"))] * 2,
            (False, Ended(reason="died")),
        ]


def test_generations_that_jobs_went_on_after_displace_no_ended_job(tmp_path: Path) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(replace(JOB, phase=Phase.ENDED, outcome=Left(), allocations=()))
        for generation in range(11, 132):
            db.supersede(replace(JOB, plan=replace(PLAN, generation=generation), allocations=()))
        assert [job.plan.generation for job in db.jobs()] == [7, *range(31, 132)]
        assert db.running() == [131]


def test_a_job_with_a_region_is_not_forgotten(tmp_path: Path) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(JOB)
        with pytest.raises(StoreError, match="generation 7 still has a region on s1"):
            db.forget_job(7)
        db.release(7, "s1")
        assert [job.allocations for job in db.jobs()] == [(OTHER,)]
        with pytest.raises(StoreError, match="generation 7 still has a region on s2"):
            db.forget_job(7)
        db.release(7, "s2")
        db.forget_job(7)
        assert db.jobs() == []


def test_a_place_that_changes_is_the_only_one_that_does(tmp_path: Path) -> None:
    moved = replace(OTHER, entries=(Group(2, ((1, 1),)),))
    third = replace(OTHER, switch="s3")
    with store(tmp_path / "db") as db:
        db.save_job(JOB)
        db.save_allocations([(7, moved), (7, third)])
        assert db.jobs() == [replace(JOB, allocations=(ALLOCATION, moved, third))]


# As format 2 had them; format 1 had the same tables.
_OLDER = """
DROP TABLE entries;
DROP TABLE regions;
CREATE TABLE regions (
    generation INTEGER PRIMARY KEY REFERENCES jobs (generation) ON DELETE CASCADE,
    switch TEXT NOT NULL,
    number INTEGER NOT NULL,
    base INTEGER NOT NULL,
    slots INTEGER NOT NULL,
    UNIQUE (switch, number)
);
CREATE TABLE entries (
    generation INTEGER NOT NULL REFERENCES regions (generation) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (generation, position)
) WITHOUT ROWID;
"""


def make_older(path: Path, version: int, *, entries: bool = False) -> None:
    """Write a file of an older format, whose jobs were on one switch and knew less of plans and members."""
    with sqlite3.connect(path) as db:
        db.executescript(_OLDER)
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("UPDATE jobs SET plan = replace(plan, ', \"ring\": [0, 2, 1]', '')")
        db.execute("UPDATE jobs SET spec = replace(spec, ', \"tenant\": \"\"', '')")
        if version == 1:
            db.execute("UPDATE jobs SET workers = replace(workers, ', \"rnr_nak\": true', '')")
        if entries:
            db.execute("INSERT INTO regions VALUES (7, 's1', 0, 0, 256)")
            db.execute("INSERT INTO entries VALUES (7, 0, '[\"group\", 2, []]')")
    db.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_a_format_before_is_taken_if_it_holds_no_entries(tmp_path: Path, version: int) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(replace(JOB, allocations=()))
        generation = db.next_generation()
    make_older(tmp_path / "db", version)
    with store(tmp_path / "db") as db:
        (job,) = db.jobs()
        assert job.plan == replace(PLAN, ring=())
        assert job.spec == JOB.spec
        ((member, _),) = job.workers
        assert member.rnr_nak is (version == 2)
        assert db.next_generation() > generation
        db.save_job(JOB)
        assert db.jobs() == [JOB]


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_a_format_before_with_entries_is_refused(tmp_path: Path, version: int) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(replace(JOB, allocations=()))
    make_older(tmp_path / "db", version, entries=True)
    match = f"has format {version} and holds jobs' entries on switches, this controller knows 3: use another"
    with pytest.raises(StoreError, match=match):
        store(tmp_path / "db")


@pytest.mark.parametrize("version", [4, 99])
def test_a_file_of_a_later_format_is_refused(tmp_path: Path, version: int) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(JOB)
    with sqlite3.connect(tmp_path / "db") as raw:
        raw.execute(f"PRAGMA user_version = {version}")
    raw.close()
    with pytest.raises(StoreError, match=f"has format {version}, this controller knows 3"):
        store(tmp_path / "db")


def with_number(generation: int) -> StoredJob:
    return replace(JOB, plan=replace(PLAN, generation=generation), allocations=())


def test_numbers_that_were_left_out_are_not_ours_however_many_are_given_out_behind_them(
    tmp_path: Path,
) -> None:
    with Store(tmp_path / "db", wall_clock=lambda: 1000.0) as db:
        assert not db.is_ours(1000)
        first = db.next_generation()
        assert not db.is_ours(first), "no job has it"
        db.save_job(with_number(first))
        db.next_generation()
        third = db.next_generation()
        db.save_job(with_number(third))
    for _ in range(2):
        with store(tmp_path / "db") as db:
            later = db.next_generation()
            db.save_job(with_number(later))
            assert [n for n in range(900, later + 300) if db.is_ours(n)][:3] == [first, first + 1, third]
            assert not any(db.is_ours(n) for n in range(third + 1, third + 200))
            assert db.is_ours(later)
            assert not db.is_ours(later + 1)
            db.save_job(with_number(third + 5))  # one that was taken over from its workers
            assert not db.is_ours(third + 5)


def test_behind_what_others_have_given_out_nothing_is_surely_ours(tmp_path: Path) -> None:
    with store(tmp_path / "db") as db:
        before = db.next_generation()
        db.save_job(with_number(before))
        db.outlive(before + 1000)
        assert not db.is_ours(before)
        after = db.next_generation()
        db.save_job(with_number(after))
    with store(tmp_path / "db") as db:
        assert [n for n in range(before - 5, after + 5) if db.is_ours(n)] == [after]


@pytest.mark.parametrize(
    ("counters", "ours"),
    [
        ({"first": 1000, "generation": 1300, "used": 1007}, range(1001, 1008)),
        ({"first": 1000, "generation": 1000, "used": 1000}, range(0)),
        ({"generation": 7}, range(1, 8)),
    ],
)
def test_a_file_that_says_otherwise_what_it_gave_out_is_read(
    tmp_path: Path, counters: dict[str, int], ours: range
) -> None:
    with store(tmp_path / "db") as db:
        db.save_job(JOB)
    with sqlite3.connect(tmp_path / "db") as raw:
        raw.execute("DROP TABLE given")
        raw.execute("DELETE FROM counters")
        raw.executemany("INSERT INTO counters VALUES (?, ?)", counters.items())
    raw.close()
    for _ in range(2):
        with store(tmp_path / "db") as db:
            assert [n for n in range(2000) if db.is_ours(n)] == list(ours)
            assert db.newest_generation == counters["generation"]
            assert db.jobs() == [JOB]


def test_two_controllers_cannot_use_one_file(tmp_path: Path) -> None:
    with store(tmp_path / "db"), pytest.raises(StoreError, match="in use by another controller"):
        store(tmp_path / "db")


@pytest.mark.parametrize("content", [b"something else, and long enough to be no header " * 4])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "db").write_bytes(content)
    with pytest.raises(StoreError, match="db is not a database of this controller"):
        store(tmp_path / "db")
    assert (tmp_path / "db").read_bytes() == content


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot open the database"):
        store(tmp_path / "nowhere" / "db")
