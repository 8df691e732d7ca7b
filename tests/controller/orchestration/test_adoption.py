"""A controller on a new database: what switches hold of jobs stays, and their workers tell of them."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from controller.api.codec import from_proto, to_proto
from controller.api.errors import (
    ConflictError,
    ControllerError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotPossibleError,
    UnreachableError,
)
from controller.api.messages import (
    Abort,
    Ended,
    Gang,
    JobSpec,
    Join,
    Leave,
    Mode,
    Moved,
    Ready,
    Renew,
    Resume,
    Resumed,
    Up,
    Worker,
)
from controller.orchestration.adoption import Account
from controller.orchestration.callers import token_hash
from controller.orchestration.sessions import Session
from controller.security import tokens
from controller.slots.allocator import Region
from tests.controller.bench import RACK, Bench
from tests.controller.told import heard, ready_of


async def test_what_a_job_has_on_a_switch_stays_there_and_is_given_to_nobody(b: Bench) -> None:
    known = await b.run_known(3)
    entries, region = dict(b.switch.of_jobs), b.registry.job("train").allocations["s1"].region
    qp = b.qp
    await b.restart_on_a_new_database()
    assert b.switch.of_jobs == entries
    with pytest.raises(ConflictError, match="belongs to a job on switch s1 that the controller's database"):
        b.registry.sessions.join("other", 2, b.member(1, qp=qp))
    other = ready_of((await b.run_job("other", 2))[0])
    place = b.registry.job("other").allocations["s1"]
    assert place.region.number != region.number
    assert place.region.base >= region.end
    assert other.generation > known[0].plan.generation
    assert entries.items() <= b.switch.of_jobs.items()


async def test_the_workers_of_a_job_bring_it_back(b: Bench) -> None:
    known = await b.run_known(3)
    entries = dict(b.switch.of_jobs)
    await b.restart_on_a_new_database()
    back = b.all_tell(known)
    assert [heard(session)[:2] for session in back] == [[Resumed(), Moved(0, Mode.IN_NETWORK, "")]] * 3
    await b.pass_time(60.0, *back)
    assert b.switch.of_jobs == entries
    await b.restart()  # it is in the new database
    back = [b.tell(one) for one in known]
    await b.all_leave(back)


async def test_a_job_by_ring_comes_back_too(b: Bench) -> None:
    known = await b.run_known(33)
    assert known[0].plan.mode is Mode.RING
    await b.restart_on_a_new_database()
    back = b.all_tell(known)
    assert all(Resumed() in heard(session) for session in back)


async def test_who_does_not_come_to_tell_of_a_job_ends_it_for_those_who_did(b: Bench) -> None:
    known = await b.run_known(3)
    wanted = b.guards("train")
    await b.restart_on_a_new_database()
    for one in known[:2]:
        with pytest.raises(UnreachableError, match="new: it waits for rank"):
            b.tell(one)
    await b.pass_time(RACK.resume_timeout_s + 1)
    with pytest.raises(NotFoundError, match="rank 2 did not come back within 30 s"):
        b.tell(known[0])
    assert wanted <= set(b.switch.of_jobs.values()), "the one that did not come may still send"
    await b.registry.manager.push("s1", force=True)
    assert (b.switch.of_jobs, b.used()) == ({}, {})


async def test_a_switch_that_was_restarted_before_anybody_told_of_the_job_has_its_guards_and_it_is_renewed(
    b: Bench,
) -> None:
    known = await b.run_known(2)
    wanted = b.guards("train")
    await b.restart_on_a_new_database()
    since = len(b.switch.log)
    await b.restart_switch("s1")
    assert not b.switch.routed_without(wanted, since=since)
    assert set(b.switch.of_jobs.values()) == wanted
    for session in b.all_tell(known):
        (renew,) = (event for event in heard(session) if isinstance(event, Renew))
        assert renew.renewal > known[0].plan.generation
        assert renew.reason == "switch s1 was restarted, and has forgotten the job's sums"


async def test_a_job_that_was_lost_while_it_moved_is_renewed(b: Bench) -> None:
    """Adopt a job of which some workers have heard that it runs by ring now, and the others have not."""
    known = await b.run_known(2)
    await b.restart_on_a_new_database()
    known[1] = replace(known[1], plan=replace(known[1].plan, mode=Mode.RING))
    for session in b.all_tell(known):
        assert any(isinstance(event, Renew) for event in heard(session))


async def test_a_job_of_this_database_that_is_over_is_not_taken_over_again(b: Bench) -> None:
    known = await b.run_known(2)
    b.registry.delete_job("train")
    b.registry.book.by_generation.clear()  # long ago
    await b.pass_time(100.0)
    with pytest.raises(NotFoundError, match="ended long ago"):
        b.tell(known[0])


async def test_workers_that_tell_different_things_are_asked_again(b: Bench) -> None:
    known = await b.run_known(2)
    known[1] = replace(known[1], plan=replace(known[1].plan, window=4))
    await b.restart_on_a_new_database()
    for one in known:
        with pytest.raises(UnreachableError):
            b.tell(one)
    await b.pass_time(RACK.resume_timeout_s + 1)
    for one in known:
        with pytest.raises(ConflictError, match="tell different things"):
            b.tell(one)


async def test_a_region_that_no_flow_tells_of_takes_no_slots(b: Bench) -> None:
    """Leave only the guards of a job that had ended."""
    (first, *_) = await b.run_job("train", 3)
    wanted = b.guards("train")
    first.hear(Abort("no more"))
    await b.registry.drain()
    await b.restart_on_a_new_database()
    assert set(b.switch.of_jobs.values()) == wanted
    (orphan,) = b.registry.allocations.orphans["s1"]
    assert (orphan.allocation.region, orphan.generation) == (Region(0, 0, 0), None)


@pytest.mark.parametrize(
    "changes",
    [
        {"ready": {"mode": 7}},
        {"ready": {"ring": [0, 0]}},
        {"ready": {"window": 1 << 20}},
        {"rank": 9},
        {"joined": {"world_size": 0}},
    ],
)
def test_what_no_controller_can_have_said_is_refused(changes: dict[str, Any]) -> None:
    host = RACK.hosts[0]
    worker = pb.Worker(rank=0, mac=host.mac, ip=str(host.ip), qpn_out=0x100, qpn_in=0x101)
    ready = pb.Ready(
        generation=5,
        window=4,
        message_packets=4,
        path_mtu=1024,
        mode=pb.RING,
        ring=[0, 1],
        successor=worker,
        predecessor=worker,
    )
    message = pb.Resume(
        job="train",
        generation=5,
        rank=0,
        token=b"t",
        joined=pb.Join(job="train", world_size=2, worker=worker, path_mtu_max=1024),
        ready=ready,
    )
    assert Account.of(RACK, from_proto(Resume, message)) is not None
    message.MergeFrom(pb.Resume(rank=changes.get("rank", 0)))
    for name in ("joined", "ready"):
        for field, value in changes.get(name, {}).items():
            if isinstance(value, list):
                getattr(message, name).ClearField(field)
                getattr(getattr(message, name), field).extend(value)
            else:
                setattr(getattr(message, name), field, value)
    with pytest.raises(InvalidRequestError):
        Account.of(RACK, from_proto(Resume, message))


async def test_an_elastic_job_stays_elastic_also_where_its_workers_did_not_say_so(b: Bench) -> None:
    """Check that their leases go on, without which no result is returned."""
    b.registry.create_job(JobSpec(name="train", world_size=2, elastic=True))
    sessions = await b.run_job("train", 2)
    host = RACK.hosts[0]
    worker = Worker(rank=0, mac=host.mac, ip=host.ip, qpn_out=b.qp, psn_out=0, qpn_in=b.qp + 1)
    told = ready_of(sessions[0])
    known = Account.of(
        RACK,
        Resume(
            job="train",
            generation=told.generation,
            rank=0,
            token=told.resume_token,
            joined=Join(job="train", world_size=2, worker=worker, path_mtu_max=1024),
            ready=told,
        ),
    )
    assert known is not None
    assert told.lease_s > 0
    assert known.spec.elastic


TOKEN = "a token of sixteen letters"
CREATED = JobSpec(
    name="train",
    world_size=3,
    tenant="blue",
    elastic=True,
    min_workers=2,
    mode=Mode.IN_NETWORK,
    window=4,
    message_packets=8,
    path_mtu=512,
    selective=True,
    token_hash=token_hash(TOKEN),
)


async def run_created(b: Bench) -> list[Account]:
    """Run a job that was created, and return the accounts that its workers send of it."""
    b.qp += 2
    who = [b.member(rank, qp=b.qp) for rank in range(3)]
    sessions = [b.registry.sessions.join("train", 3, one, token=TOKEN) for one in who]
    await b.registry.drain()
    known = []
    for session, one in zip(sessions, who, strict=True):
        ready = ready_of(session)
        joined = Join(job="train", world_size=3, worker=one.worker(), path_mtu_max=4096, join_token=TOKEN)
        resume = Resume(
            job="train",
            generation=ready.generation,
            rank=ready.rank,
            token=ready.resume_token,
            joined=joined,
            ready=ready,
        )
        account = Account.of(RACK, from_proto(Resume, to_proto(resume)))
        assert account is not None
        known.append(account)
        session.hear(Up())
    return known


@pytest.mark.parametrize("known_as", ["created", "created anew", "created otherwise", "ended", "nothing"])
async def test_a_job_that_was_created_comes_back_as_that(b: Bench, tmp_path: Path, known_as: str) -> None:
    b.registry.create_job(CREATED)
    if known_as == "ended":
        for one in await run_created(b):
            session = b.registry.job("train").sessions[one.member.rank]
            assert isinstance(session, Session)
            session.hear(Leave())
        await b.registry.drain()
        assert b.used() == {}
    copy = tmp_path / "backup.db"
    if known_as in ("created", "ended"):
        with contextlib.closing(sqlite3.connect(copy)) as target:
            b.store.connection.backup(target)
    known = await run_created(b)
    entries = dict(b.switch.of_jobs)
    await b.restart(copy)
    if known_as.startswith("created "):
        b.registry.create_job(CREATED if known_as == "created anew" else JobSpec(name="train", world_size=2))
    back = b.all_tell(known)
    assert [heard(session)[0] for session in back] == [Resumed()] * 3
    await b.restart()
    b.registry.listens()
    running = b.registry.job("train")
    spec = running.job.spec
    assert running.generation == known[0].plan.generation
    assert replace(spec, token_hash="") == replace(CREATED, token_hash="")
    assert tokens.matches(TOKEN, spec.token_hash)
    assert running.job.explicit
    back = [b.tell(one) for one in known]
    await b.pass_time(10.0, *back)
    assert b.switch.of_jobs == entries
    back[0].broken()  # seen, as in each job: a worker is lost, and later another one
    await b.pass_time(10.0, *back[1:])
    for session in back[1:]:
        assert any(isinstance(event, Renew) for event in heard(session))
    back[1].hear(Abort("no more"))
    (ended,) = [event for event in heard(back[2]) if isinstance(event, Ended)]
    assert "1 worker is left, and the job needs 2" in ended.reason


def stranger(b: Bench, name: str, token: str, gang: Gang | None = None) -> Session:
    """Let a worker that never joined, by itself, tell of a job of that name."""
    host, b.qp = RACK.hosts[5], b.qp + 2
    worker = Worker(rank=0, mac=host.mac, ip=host.ip, qpn_out=b.qp, psn_out=0, qpn_in=b.qp + 1)
    resume = Resume(
        job=name,
        generation=b.store.newest_generation + 1000,
        rank=0,
        token=b"x" * 16,
        joined=Join(job=name, world_size=1, worker=worker, path_mtu_max=1024, join_token=token, gang=gang),
        ready=Ready(
            job_id=1,
            generation=b.store.newest_generation + 1000,
            window=4,
            message_packets=4,
            path_mtu=1024,
            mode=Mode.RING,
            successor=worker,
            predecessor=worker,
            heartbeat_interval_s=1.0,
            heartbeat_timeout_s=5.0,
        ),
    )
    return b.registry.sessions.begin(resume)


@pytest.mark.parametrize("when", ["before anybody joined", "after it ran"])
@pytest.mark.parametrize("token", ["", "another token of sixteen"])
async def test_nobody_takes_the_name_of_a_created_job_without_its_token(
    b: Bench, token: str, when: str
) -> None:
    """Try it by a Join, and by a Resume that tells of a job which nobody knows."""
    b.registry.create_job(CREATED)
    if when == "after it ran":
        await run_created(b)
        await b.leave([s for s in b.registry.job("train").sessions.values() if isinstance(s, Session)])
    before = b.registry.job("train")
    with pytest.raises(NotAllowedError):
        b.registry.sessions.join("train", 3, b.member(5, qp=0x900), token=token)
    with pytest.raises(NotAllowedError):
        stranger(b, "train", token)
    assert b.registry.job("train") is before
    await run_created(b)  # who brings it takes the name


@pytest.mark.parametrize("token", ["", "another token of sixteen"])
@pytest.mark.parametrize("created", [True, False])
async def test_nobody_becomes_a_plane_of_a_gang_without_its_token(
    b: Bench, created: bool, token: str
) -> None:
    gang = Gang("train", 0, 2)
    if created:
        spec = JobSpec(name="train", world_size=2, gang=gang, token_hash=token_hash(TOKEN))
        b.registry.create_job(spec)
    else:
        b.registry.sessions.join("train/0", 1, b.member(0, qp=0x900, plane=0), token=TOKEN, gang=gang)
    with pytest.raises(NotAllowedError):
        stranger(b, "train/1", token, Gang("train", 1, 2))
    with pytest.raises(ConflictError, match="there is a gang train already"):
        stranger(b, "train", token)
    with pytest.raises(NotAllowedError):
        b.registry.sessions.join(
            "train/1", 1, b.member(0, qp=0x910, plane=1), token=token, gang=Gang("train", 1, 2)
        )
    session = b.registry.sessions.join(
        "train/1", 1, b.member(0, qp=0x920, plane=1), token=TOKEN, gang=Gang("train", 1, 2)
    )
    assert session.is_current


async def test_the_names_of_a_created_gang_stay_its_own_when_it_is_over(b: Bench) -> None:
    gang = Gang("train", 0, 2)
    spec = JobSpec(name="train", world_size=2, gang=gang, token_hash=token_hash(TOKEN))
    b.registry.create_job(spec)
    sessions = [
        b.registry.sessions.join(
            f"train/{n}", 1, b.member(0, qp=0x900 + 16 * n, plane=n), token=TOKEN, gang=replace(gang, plane=n)
        )
        for n in range(2)
    ]
    await b.registry.drain()
    await b.leave(sessions)
    assert not any(record.job.live for record in b.registry.planes("train"))
    for take in (
        stranger,
        lambda b, name, token: b.registry.sessions.join(name, 1, b.member(0, 5, qp=0x990)),
    ):
        with pytest.raises(ConflictError, match="there is a gang train already"):
            take(b, "train", "")
    with pytest.raises(InvalidRequestError, match="has 2 planes"):
        b.registry.sessions.join(
            "train/5", 1, b.member(0, qp=0x970, plane=5), token=TOKEN, gang=Gang("train", 5, 6)
        )


async def test_a_job_that_others_are_joining_is_in_the_way_until_they_have_gone(b: Bench) -> None:
    known = await b.run_known(2)
    await b.restart_on_a_new_database()
    other = b.registry.sessions.join("train", 5, b.member(3, qp=0x700))
    with pytest.raises(UnreachableError):
        b.tell(known[0])
    with pytest.raises(ConflictError, match="another job has that name now"):
        b.tell(known[1])
    other.broken()
    all_back = [b.tell(one) for one in known]
    assert all(Resumed() in heard(session) for session in all_back)


async def test_workers_of_a_job_that_was_created_for_a_tenant_need_not_all_say_whose_it_is(b: Bench) -> None:
    known = await b.run_known(2)
    known[1] = replace(known[1], spec=replace(known[1].spec, tenant="blue"))
    await b.restart_on_a_new_database()
    b.all_tell(known)
    assert b.registry.job("train").job.spec.tenant == "blue"


@pytest.mark.parametrize("rank", [1, 2])
async def test_one_that_tells_something_else_does_not_keep_the_others_from_their_job(
    b: Bench, rank: int
) -> None:
    known = await b.run_known(2)
    other = replace(
        known[1],
        plan=replace(known[1].plan, window=4, ring=tuple(range(rank + 1))),
        member=replace(known[1].member, rank=rank),
    )
    await b.restart_on_a_new_database()
    with pytest.raises(ControllerError):
        b.tell(other)
    b.all_tell(known)


async def test_the_controller_holds_no_stop_of_its_own_against_who_has_still_to_tell_of_a_job(
    b: Bench,
) -> None:
    known = await b.run_known(2)
    await b.restart_on_a_new_database()
    await b.pass_time(1.0)
    with pytest.raises(UnreachableError):
        b.tell(known[0])
    b.now += 100.0  # stopped
    with pytest.raises(UnreachableError):
        b.tell(known[0])
    b.registry.tick()
    with pytest.raises(UnreachableError):
        b.tell(known[0])
    b.tell(known[1])


async def test_a_job_that_is_taken_over_gives_up_queue_pairs_that_another_has_by_now(b: Bench) -> None:
    """Take over a job by ring: nothing on a switch tells that its queue pairs are in use."""
    for _ in range(5):
        b.store.next_generation()  # a clock that was set back: the new database gives it out later
    known = await b.run_known(33)
    qp = b.qp
    await b.restart_on_a_new_database()
    b.qp = qp - 2
    await b.run_job("other", 2)
    back = b.all_tell(known)
    assert all(any(isinstance(event, Renew) for event in heard(session)) for session in back)


async def test_what_a_switch_holds_of_others_is_not_taken_from_them(b: Bench) -> None:
    """Tell of a job under the generation of another one."""
    known = await b.run_known(2)
    entries = dict(b.switch.of_jobs)
    await b.restart_on_a_new_database()
    host = b.member(7, qp=0x5000)
    forged = Account(
        spec=JobSpec(name="other", world_size=1),
        plan=replace(known[0].plan, mode=Mode.RING, ring=(0,)),
        member=replace(host, rank=0),
        token=b"x" * 16,
    )
    with pytest.raises(ConflictError):
        b.registry.sessions.resume("other", forged.plan.generation, 0, forged.token, forged)
    await b.registry.drain()
    assert b.switch.of_jobs == entries
    b.all_tell(known)
    assert b.switch.of_jobs == entries


async def test_a_program_is_not_loaded_anew_beneath_a_job_that_is_to_come_back_unless_forced(
    b: Bench,
) -> None:
    await b.run_known(2)
    entries = dict(b.switch.of_jobs)
    await b.restart_on_a_new_database()
    with pytest.raises(NotPossibleError, match="that the controller's database does not know"):
        await b.registry.manager.push("s1", force=False)
    assert b.switch.of_jobs == entries
    await b.registry.manager.push("s1", force=True)
    assert b.switch.of_jobs == {}


async def test_a_database_from_a_backup_takes_over_what_was_set_up_after_it(b: Bench, tmp_path: Path) -> None:
    first = await b.run_job("first", 2)
    await b.leave(first)
    copy = tmp_path / "backup.db"
    with sqlite3.connect(copy) as target:
        b.store.connection.backup(target)
    known = await b.run_known(3)
    entries = dict(b.switch.of_jobs)
    b.registry.stop()
    await b.registry.drain()
    b.store.close()
    b.path = copy
    b.registry = b._start()
    await b.settled()
    assert b.switch.of_jobs == entries
    back = b.all_tell(known)
    assert [heard(session)[0] for session in back] == [Resumed()] * 3
    assert b.switch.of_jobs == entries
