"""Gangs: planes get slots together or not at all, move, are renewed and end together, also over restarts."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.api import controller_pb2 as pb
from controller.api.errors import ConflictError, InvalidRequestError, UnreachableError
from controller.api.messages import (
    Abort,
    EndCause,
    Ended,
    Gang,
    HoldAt,
    JobSpec,
    Leave,
    Left,
    Mode,
    Moved,
    Pause,
    Paused,
    Ready,
    Up,
    Waiting,
)
from controller.jobs.specs import Phase
from controller.jobs.states import State
from controller.orchestration.adoption import Account
from controller.orchestration.record import stored
from controller.orchestration.sessions import Session
from controller.slots.admission import Quotas, TenantQuota
from tests.controller.bench import Bench, Worker, backed_up, say
from tests.controller.orchestration.test_waitlist import FULL, Agents, go, start, waitlisted
from tests.controller.told import ended_of, everything, heard, plan_of, ready_of
from tests.host_agent.machine.machines import Machines

MACHINES = (0, 1, 2)


async def joined(
    b: Bench,
    name: str,
    planes: int,
    *,
    machines: Sequence[int] = MACHINES,
    tenant: str = "",
    elastic: bool = False,
) -> list[list[Session]]:
    """Let the workers of all planes join, and return their sessions."""
    return [
        await b.join(
            f"{name}/{plane}",
            machines,
            tenant=tenant,
            psn=0,
            elastic=elastic,
            gang=Gang(name=name, plane=plane, planes=planes),
        )
        for plane in range(planes)
    ]


async def gang(
    b: Bench, name: str, planes: int, *, tenant: str = "", machines: Sequence[int] = MACHINES, **spec: Any
) -> list[Agents]:
    """Run a gang, and return its planes."""
    for plane in range(planes) if spec else ():
        b.registry.create_job(
            JobSpec(
                name=f"{name}/{plane}",
                world_size=len(machines),
                tenant=tenant,
                gang=Gang(name, plane, planes),
                **spec,
            )
        )
    found = []
    for sessions in await joined(b, name, planes, tenant=tenant, machines=machines):
        await b.registry.drain()
        (plan,) = {plan_of(event) for one in sessions for event in heard(one) if isinstance(event, Ready)}
        found.append(Agents(sessions, plan))
    for agents in found:
        say(agents.sessions, Up())
    await go(b, *found)
    return found


def modes(planes: Sequence[Agents]) -> set[Mode]:
    return {plane.mode for plane in planes}


def slots(planes: Sequence[Agents]) -> list[int]:
    return [2 * plane.plan.window * plane.plan.message_packets for plane in planes]


# Joining


async def test_a_gang_is_set_up_when_all_workers_of_all_planes_have_joined(b: Bench) -> None:
    """Check that until then each worker hears who is missing, by machine and local rank."""
    first = await b.join("train/0", MACHINES, gang=Gang("train", 0, 2))
    assert not any(isinstance(event, Ready) for one in first for event in heard(one))
    assert b.registry.job("train/0").job.phase is Phase.JOINING
    where = [b.config.hosts[host] for host in MACHINES]
    b.qp += 2
    late = b.registry.sessions.join("train/1", 3, b.member(0, 0, qp=b.qp, plane=1), gang=Gang("train", 1, 2))
    missing = tuple(f"GPU 1 of machine {n} ({where[n].name}, {where[n].ip})" for n in (1, 2))
    assert [everything(one)[-1] for one in first] == [Waiting((), missing)] * 3
    assert everything(late)[-1] == Waiting((1, 2), missing)
    late.broken()  # it withdraws, and the gang waits on
    everybody = tuple(f"GPU 1 of machine {n} ({where[n].name}, {where[n].ip})" for n in MACHINES)
    assert [everything(one)[-1] for one in first] == [Waiting((), everybody)] * 3
    second = await b.join("train/1", MACHINES, gang=Gang("train", 1, 2))
    plans = [plan_of(event) for one in (*first, *second) for event in heard(one) if isinstance(event, Ready)]
    assert [plan.mode for plan in plans] == [Mode.IN_NETWORK] * 6
    assert len({plan.generation for plan in plans}) == 2


async def test_several_gpus_of_a_machine_that_are_missing_are_named_together(b: Bench) -> None:
    sessions = await b.join("train/1", (0,), gang=Gang("train", 1, 4))
    host = b.config.hosts[0]
    assert everything(sessions[0]) == [Waiting((), (f"GPUs 0, 2, 3 of machine 0 ({host.name}, {host.ip})",))]


@pytest.mark.parametrize(
    ("name", "other", "size", "tenant", "why"),
    [
        (
            "train/1",
            Gang("train", 1, 4),
            3,
            "",
            "has 2 planes, one for each GPU of a machine, but plane 1 says 4",
        ),
        ("train/1", Gang("train", 1, 2), 4, "", "has 3 machines, but plane 1 says 4"),
        ("train/1", Gang("train", 1, 2), 3, "red", "is of tenant default, but plane 1 says red"),
    ],
)
async def test_planes_that_differ_are_refused(
    b: Bench, name: str, other: Gang, size: int, tenant: str, why: str
) -> None:
    await b.join("train/0", MACHINES, gang=Gang("train", 0, 2))
    with pytest.raises(InvalidRequestError, match=why):
        await b.join(name, range(size), gang=other, tenant=tenant)
    assert "train/1" not in b.registry.book.by_name


SETTINGS: list[tuple[str, Any, Any, str]] = [
    ("elastic", True, False, "elastic true in plane 0, but false in plane 1"),
    ("mode", Mode.IN_NETWORK, None, "mode in-network in plane 0, but open in plane 1"),
    ("mode", Mode.RING, Mode.IN_NETWORK, "mode ring in plane 0, but in-network in plane 1"),
    ("path_mtu", 1024, 512, "path_mtu 1024 in plane 0, but 512 in plane 1"),
    ("window", None, 4, "window open in plane 0, but 4 in plane 1"),
    ("message_packets", 16, 8, "message_packets 16 in plane 0, but 8 in plane 1"),
    ("selective", True, None, "selective true in plane 0, but open in plane 1"),
]


@pytest.mark.parametrize(("name", "first", "second", "why"), SETTINGS)
async def test_planes_that_are_created_with_other_settings_are_refused(
    b: Bench, name: str, first: Any, second: Any, why: str
) -> None:
    def plane(number: int, value: Any) -> JobSpec:
        of = {name: value}
        return JobSpec(name=f"train/{number}", world_size=3, gang=Gang("train", number, 2), **of)

    b.registry.create_job(plane(0, first))
    with pytest.raises(InvalidRequestError, match=f"gang train has {why}: start all workers alike"):
        b.registry.create_job(plane(1, second))
    b.registry.create_job(plane(1, first))


async def test_a_plane_that_its_first_worker_makes_is_asked_for_as_one_that_was_created(b: Bench) -> None:
    spec = JobSpec(name="train/0", world_size=3, mode=Mode.IN_NETWORK, gang=Gang("train", 0, 2))
    b.registry.create_job(spec)
    with pytest.raises(InvalidRequestError, match="mode in-network in plane 0, but open in plane 1"):
        await b.join("train/1", MACHINES, gang=Gang("train", 1, 2))


async def test_planes_whose_least_numbers_of_machines_differ_are_refused(b: Bench) -> None:
    for plane, least in enumerate((2, 1)):
        spec = JobSpec(
            name=f"train/{plane}",
            world_size=3,
            elastic=True,
            min_workers=least,
            gang=Gang("train", plane, 2),
        )
        if plane == 0:
            b.registry.create_job(spec)
    with pytest.raises(InvalidRequestError, match="min_workers 2 in plane 0, but 1 in plane 1"):
        b.registry.create_job(spec)


async def test_planes_of_which_only_some_are_elastic_are_refused(b: Bench) -> None:
    await b.join("train/0", MACHINES, gang=Gang("train", 0, 2), elastic=True)
    with pytest.raises(InvalidRequestError, match="elastic true in plane 0, but false in plane 1"):
        await b.join("train/1", MACHINES, gang=Gang("train", 1, 2))
    await b.join("train/1", MACHINES, gang=Gang("train", 1, 2), elastic=True)


def settings(workers: Sequence[Worker]) -> set[tuple[Any, ...]]:
    """Return the distinct settings that workers heard last: sizes of packets and messages, lease and mode."""
    heard = [worker.ready for worker in workers if worker.ready is not None]
    assert len(heard) == len(workers)
    return {(r.path_mtu, r.window, r.message_packets, r.selective, r.lease_s, r.mode) for r in heard}


@pytest.mark.parametrize("elastic", [False, True])
async def test_all_planes_have_the_path_mtu_of_the_smallest_link_also_when_they_are_renewed(
    b: Bench, elastic: bool
) -> None:
    """Give one worker's link 512 bytes, and one plane's backup interfaces 256."""
    found: list[list[Worker]] = []
    for plane in range(2):
        b.qp += 2
        for rank in MACHINES:
            fields: dict[str, Any] = {"plane": plane, "qp": b.qp}
            if (plane, rank) == (1, 2):
                fields["path_mtu_max"] = 512
            who = backed_up(b.member(rank, **fields), rank)
            assert who.backup is not None
            if plane == 0:
                who = replace(who, backup=replace(who.backup, path_mtu=256))
            session = b.registry.sessions.join(
                f"train/{plane}", 3, who, elastic=elastic, gang=Gang("train", plane, 2)
            )
            found += [[]] if rank == 0 else []
            found[plane].append(Worker(session, rank, 0x2000 + 0x20 * plane + 0x40 * rank))
            found[plane][-1].gang_collective = 3 if elastic else None
    await b.registry.drain()
    workers = [worker for plane in found for worker in plane]
    await b.go(workers)
    say(workers, Up())
    await b.go(workers)
    lease_s = b.registry.timing.lease_s if elastic else 0.0
    in_network = (512, 8, 8, True, lease_s, Mode.IN_NETWORK)
    assert settings(workers) == {in_network}
    await b.restart_switch("s1")
    await b.go(workers)
    assert settings(workers) == {in_network}
    await b.lose("s1")
    await b.go(workers, seconds=b.config.switch_timeout_s + 2)
    assert settings(workers) == {(256, 8, 8, True, lease_s, Mode.RING)}
    assert all(worker.ready.backup for worker in workers if worker.ready is not None)
    await b.find("s1")
    await b.go(workers, seconds=2)
    assert settings(workers) == {in_network}
    if elastic:  # the machine with that link dies
        left = await lose(b, found, 0, 2)
        found[1][2].session.took_end()
        await b.pass_time(2.0)
        await b.go(left)
        assert settings(left) == {(2048, 8, 8, True, lease_s, Mode.IN_NETWORK)}


async def test_one_gpu_that_asks_for_go_back_n_makes_all_planes_go_back(b: Bench) -> None:
    sessions = await b.join("train/0", MACHINES, gang=Gang("train", 0, 2))
    sessions += await b.join("train/1", MACHINES, gang=Gang("train", 1, 2), selective=False)
    assert {ready_of(session).selective for session in sessions} == {False}
    sessions = await b.join("other/0", MACHINES, gang=Gang("other", 0, 2), selective=True)
    sessions += await b.join("other/1", MACHINES, gang=Gang("other", 1, 2), rnr_nak=True)
    assert "is on an RDMA device" in ended_of(sessions[0]).reason


async def planned(b: Bench, path_mtu: int) -> list[tuple[int, int]]:
    """Return path MTU and packets a message of two planes; one GPU's link carries so many bytes."""
    b.registry.create_job(JobSpec(name="train", world_size=4, message_packets=64, gang=Gang("train", 0, 2)))
    sessions = await b.join("train/0", (0, 1), gang=Gang("train", 0, 2))
    sessions += await b.join("train/1", (0, 1), gang=Gang("train", 1, 2), path_mtu_max=path_mtu)
    readies = [ready_of(session) for session in sessions[::2]]
    return [(ready.path_mtu, ready.message_packets) for ready in readies]


@pytest.mark.parametrize("path_mtu", [2048, 512])
async def test_gpus_add_up_right_in_the_sizes_that_the_controller_gives_them(b: Bench, path_mtu: int) -> None:
    """Use 64 packets a message, so that the path MTU limits blocks, which a machine's GPUs share."""
    machines = Machines(2, 2, sizes=await planned(b, path_mtu))
    try:
        random = np.random.default_rng(7)
        arrays = [random.standard_normal(40_000).astype(np.float32) for _ in range(4)]
        found = machines.run(lambda c: c.all_reduce(arrays[c.rank]))
    finally:
        machines.close()
    wanted = np.sum([array.astype(np.float64) for array in arrays], axis=0)
    for result in found:
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5)
        assert result.tobytes() == found[0].tobytes()


async def test_planes_that_move_have_the_same_settings_before_and_after(b: Bench) -> None:
    """Begin by ring, and move in when there is room for smaller regions."""
    jobs = [*await fill(b), await start(b, "last", window=4, message_packets=16)]
    sessions = [
        await b.join(f"train/{plane}", MACHINES, psn=0, gang=Gang("train", plane, 2), path_mtu_max=path_mtu)
        for plane, path_mtu in enumerate((2048, 1024))
    ]
    planes = [Agents(of, plan_of(ready_of(of[0]))) for of in sessions]
    for agents in planes:
        say(agents.sessions, Up())

    def plans() -> set[tuple[Any, ...]]:
        found = [b.registry.job(f"train/{n}").job.plan for n in range(2)]
        return {(p.mode, p.path_mtu, p.window, p.message_packets) for p in found if p is not None}

    await go(b, *jobs, *planes)
    assert plans() == {(Mode.RING, 1024, 8, 8)}
    jobs[-1].leave()
    await go(b, *jobs, *planes)
    assert plans() == {(Mode.IN_NETWORK, 1024, 4, 8)}
    record = b.registry.job("train/0")
    record.job.spec = replace(record.job.spec, mode=Mode.RING)  # so that it does not come back at once
    b.registry.waitlist.move_out(b.registry.job("train/1"), "room for others")
    await go(b, *jobs, *planes)
    assert plans() == {(Mode.RING, 1024, 4, 8)}


async def test_a_job_and_a_gang_cannot_have_one_name(b: Bench) -> None:
    await b.join("train/0", MACHINES, gang=Gang("train", 0, 2))
    with pytest.raises(ConflictError, match="there is a gang train already"):
        await b.join("train", 2)
    await b.run_job("mine", 2)
    with pytest.raises(ConflictError, match="there is a job mine already"):
        await b.join("mine/0", MACHINES, gang=Gang("mine", 0, 2))


# Slots


async def test_all_planes_get_slots_or_all_go_by_ring_though_there_is_room_for_some(b: Bench) -> None:
    jobs = [await start(b, f"job{n}", **FULL) for n in range(7)]  # of 8192 slots, 1024 are left
    planes = await gang(b, "train", 2, **FULL)
    assert modes(planes) == {Mode.RING}
    reason = planes[0].plan.mode_reason
    assert reason == "needs 2 times 1024 slots on switch s1; 7168 of 8192 in use by 7 jobs"
    assert [waitlisted(b, f"train/{n}") for n in range(2)] == [
        pb.Waitlisted(position=1, reason=reason, waiting_s=0.0)
    ] * 2
    behind = await start(b, "behind", **FULL)
    assert modes([behind]) == {Mode.RING}
    assert (queued := waitlisted(b, "behind")) is not None
    assert (queued.position, queued.reason) == (2, "waits behind gang train for slots on s1")
    jobs[0].leave()
    await go(b, *jobs, *planes, behind)
    assert modes(planes) == {Mode.IN_NETWORK}
    assert modes([behind]) == {Mode.RING}
    assert b.used() == {"s1": 8192}
    for plane in planes:
        plane.leave()
    await go(b, *jobs, *planes, behind)
    assert modes([behind]) == {Mode.IN_NETWORK}


async def test_planes_take_fewer_slots_each_where_there_is_no_room_for_more(b: Bench) -> None:
    """Set up two planes that want 128 slots each, half a job's, where 128 are left."""
    await fill(b)
    planes = await gang(b, "train", 2)
    assert modes(planes) == {Mode.IN_NETWORK}
    assert slots(planes) == [64, 64]
    assert b.used() == {"s1": 8192}


async def test_planes_have_together_what_a_job_has_as_far_as_each_has_enough(b: Bench) -> None:
    assert slots(await gang(b, "two", 2)) == [128, 128]
    assert slots(await gang(b, "eight", 8, machines=(3, 4))) == [64] * 8


async def fill(b: Bench) -> list[Agents]:
    """Start jobs for all but 128 of a switch's slots."""
    jobs = [await start(b, f"job{n}", **FULL) for n in range(7)]
    jobs += [await start(b, f"half{n}", window=4, message_packets=32) for n in range(3)]
    return [*jobs, await start(b, "little", window=4, message_packets=16)]


async def test_planes_do_not_become_smaller_than_they_are_good_for(b: Bench) -> None:
    for n in range(7):
        await start(b, f"job{n}", **FULL)
    for n in range(3):
        await start(b, f"half{n}", window=4, message_packets=32)
    planes = await gang(b, "train", 8)
    assert modes(planes) == {Mode.RING}
    assert planes[0].plan.mode_reason == "needs 8 times 64 slots on switch s1; 7936 of 8192 in use by 10 jobs"


async def test_a_gang_that_waits_moves_in_with_fewer_slots_when_there_is_room_for_those(b: Bench) -> None:
    jobs = [*await fill(b), await start(b, "last", window=4, message_packets=16)]
    planes = await gang(b, "train", 2)
    assert modes(planes) == {Mode.RING}
    jobs[-1].leave()
    await go(b, *jobs, *planes)
    assert modes(planes) == {Mode.IN_NETWORK}
    assert b.used() == {"s1": 8192}
    regions = [next(iter(b.registry.job(f"train/{n}").allocations.values())).region for n in range(2)]
    assert {region.slots for region in regions} == {64}


async def test_quotas_count_all_planes(b: Bench) -> None:
    b.registry.waitlist.set_quotas(Quotas(job_slots=200))
    smaller = await gang(b, "smaller", 2)
    assert slots(smaller) == [64, 64]
    b.registry.waitlist.set_quotas(Quotas(job_slots=512))
    within = await gang(b, "within", 4, machines=(3, 4))
    assert slots(within) == [64] * 4
    assert modes([*within, *smaller]) == {Mode.IN_NETWORK}
    never = await gang(b, "never", 4, machines=(5, 6), window=8, message_packets=16)
    assert modes(never) == {Mode.RING}
    assert never[0].plan.mode_reason == (
        "its 4 planes need 1024 slots, 256 each, over the quota of 512 a job: it stays on the ring (with a "
        "smaller window or fewer packets a message it needs fewer)"
    )
    assert waitlisted(b, "never/0") is None
    b.registry.waitlist.set_quotas(Quotas(tenants={"red": TenantQuota(slots=500)}))
    first = await gang(b, "first", 2, tenant="red", machines=(7, 8), window=8, message_packets=8)
    over = await gang(b, "over", 2, tenant="red", machines=(7, 8), window=8, message_packets=16)
    assert (modes(first), modes(over)) == ({Mode.IN_NETWORK}, {Mode.RING})
    assert over[0].plan.mode_reason.startswith("its 2 planes need 512 slots, 256 each, more than the 500 of")
    third = await gang(b, "third", 4, tenant="red", machines=(7, 8), window=4, message_packets=8)
    reason = "tenant red has 256 of its 500 slots, the gang needs 256 for its 4 planes"
    assert third[0].plan.mode_reason == reason


async def test_pre_emption_moves_out_a_gang_as_a_whole(b: Bench) -> None:
    b.registry.waitlist.set_quotas(Quotas(preemption=True))
    red = [await gang(b, f"red{n}", 2, tenant="red", **FULL) for n in range(4)]  # all of the switch
    blue = await start(b, "blue", tenant="blue", **FULL)
    everybody = [plane for planes in red for plane in planes]
    await go(b, *everybody, blue)
    assert blue.mode is Mode.IN_NETWORK
    moved = [planes for planes in red if modes(planes) == {Mode.RING}]
    assert len(moved) == 1
    assert [modes(planes) for planes in red if planes not in moved] == [{Mode.IN_NETWORK}] * 3
    reason = "moved out for job blue of tenant blue, which is below its share"
    assert {plane.reason for plane in moved[0]} == {reason}


# Moving


async def test_switches_are_written_when_all_planes_hold_and_not_before(b: Bench) -> None:
    planes = await gang(b, "train", 2)
    slow = planes[1]
    slow.silent = {1}
    b.registry.waitlist.move_out(b.registry.job("train/0"), "room for others")
    await go(b, *planes)
    states = [b.registry.job(f"train/{n}").job.state for n in range(2)]
    assert states == [State.RELOCATING, State.PAUSING]
    assert b.used() == {"s1": 256}
    slow.silent = set()
    move = next(event for event in slow.heard if isinstance(event, Pause)).move
    slow.sessions[1].hear(Paused(move, slow.next + 1))
    await go(b, *planes)
    for plane in planes:  # there is room, so it comes back
        moved = [event.mode_reason for event in plane.heard if isinstance(event, Moved)]
        assert moved == ["room for others"] * 3
    assert modes(planes) == {Mode.IN_NETWORK}


async def test_a_move_that_one_plane_cannot_make_is_made_by_none(b: Bench) -> None:
    planes = await gang(b, "train", 2)
    slow = planes[1]
    slow.silent = {1}
    b.registry.waitlist.move_out(b.registry.job("train/1"), "room for others")
    await go(b, *planes)
    sessions = [session for plane in planes for session in plane.sessions]
    await b.pass_time(b.config.lost_timeout_s + 1, *sessions)
    await go(b, *planes)
    assert modes(planes) == {Mode.IN_NETWORK}
    assert [b.registry.job(f"train/{n}").job.state for n in range(2)] == [State.RUNNING] * 2
    assert b.used() == {"s1": 256}


# Renewals


async def gang_of_workers(
    b: Bench, planes: int = 2, *, up: bool = True, elastic: bool = False
) -> list[list[Worker]]:
    found = []
    for sessions in await joined(b, "train", planes, elastic=elastic):
        found.append([Worker(session, rank, b.qp) for rank, session in enumerate(sessions)])
    qp = 0x2000
    for plane in found:
        for worker in plane:
            worker.qp = qp = qp + 0x10
            worker.gang_collective = 3 if elastic else None
            worker.listen()
        if up:
            say(plane, Up())
    await b.go([worker for plane in found for worker in plane])
    return found


async def test_a_switch_that_restarts_renews_all_planes_once_and_all_are_in_it_again(b: Bench) -> None:
    planes = await gang_of_workers(b)
    workers = [worker for plane in planes for worker in plane]
    before = {worker.plan[0] for worker in workers}
    await b.restart_switch("s1")
    await b.go(workers)
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}
    assert len({worker.plan[0] for worker in workers} - before) == 2
    assert [b.registry.job(f"train/{n}").job.plan.renewals for n in range(2)] == [1, 1]  # type: ignore[union-attr]
    assert [worker.started for worker in workers] == [2] * 6


async def test_planes_that_cannot_all_come_back_into_a_switch_all_go_by_ring(b: Bench) -> None:
    planes = await gang_of_workers(b)
    workers = [worker for plane in planes for worker in plane]
    for worker in planes[1]:
        worker.silent = True
    await b.restart_switch("s1")
    await b.go(workers)
    assert b.registry.job("train/0").job.state is State.REBUILDING  # it waits for plane 1
    for n in range(7):
        await b.run_job(f"job{n}", (10, 11))
    b.registry.switches["s1"].allocator.jobs = len(b.registry.switches["s1"].allocator.regions) + 1
    for worker in planes[1]:
        worker.silent = False
        worker.answer()
    await b.go(workers)
    assert {worker.plan[1] for worker in workers} == {Mode.RING}
    assert [worker.started for worker in workers] == [2] * 6


# Elastic gangs


async def lose(b: Bench, planes: list[list[Worker]], plane: int, machine: int) -> list[Worker]:
    """Kill a GPU's process, and return the workers that are left when the controller has learned of it."""
    planes[plane][machine].session.broken()
    left = [worker for of in planes for n, worker in enumerate(of) if n != machine]
    await b.pass_time(b.config.lost_timeout_s + 1, *(worker.session for worker in left))
    gone = [of[machine] for n, of in enumerate(planes) if n != plane]
    for worker in gone:
        worker.listen()
    await b.go([*left, *gone])
    return left


async def test_an_elastic_gang_goes_on_without_the_whole_machine_of_who_died(b: Bench) -> None:
    planes = await gang_of_workers(b, 3, elastic=True)
    left = await lose(b, planes, 1, 0)
    host = b.config.hosts[0]
    for number in (0, 2):
        end = planes[number][0].end
        assert isinstance(end, Ended)
        assert f"GPU 1 of machine 0 ({host.name}, {host.ip}) has been without a connection" in end.reason
        assert (end.cause, end.rank, end.plane, end.host) == (EndCause.WORKER_LOST, 0, 1, host.name)
        planes[number][0].session.took_end()  # it returns nothing more
    await b.pass_time(2.0)
    await b.go(left)
    assert {worker.plan[2] for worker in left} == {2}
    assert [worker.started for worker in left] == [2] * 6
    assert {worker.renewed.members for worker in left if worker.renewed} == {(1, 2)}
    assert [worker.rank for worker in left] == [0, 1] * 3
    jobs = [b.registry.job(f"train/{n}").job for n in range(3)]
    assert [job.plan.renewals for job in jobs if job.plan] == [1, 1, 1]  # one step


async def test_planes_begin_the_first_collective_that_no_gpu_has_finished_anew(b: Bench) -> None:
    planes = await gang_of_workers(b, elastic=True)
    planes[1][1].gang_collective = 4
    left = await lose(b, planes, 0, 2)
    planes[1][2].session.took_end()
    await b.pass_time(2.0)
    await b.go(left)
    told = [worker.renewed for worker in left if worker.renewed is not None]
    assert [one.gang_collective for one in told] == [4] * 4
    assert {one.gang_renewal for one in told} == {max(worker.plan[0] for worker in left)}


@pytest.mark.parametrize("elastic", [False, True])
async def test_all_gpus_take_their_new_ranks_at_the_same_call(b: Bench, elastic: bool) -> None:
    planes = await gang_of_workers(b, elastic=elastic)
    workers = [worker for plane in planes for worker in plane]
    for worker, called in zip(workers, (7, 7, 8, 9, 7, 8), strict=True):
        worker.called = called
    await b.restart_switch("s1")
    await b.go(workers)
    assert [worker.renewed.ranks_from for worker in workers if worker.renewed] == [9] * 6
    workers[4].called = None  # of an older release
    await b.restart_switch("s1")
    await b.go(workers)
    assert [worker.renewed.ranks_from for worker in workers if worker.renewed] == [None] * 6


async def test_an_elastic_gang_waits_until_who_was_left_out_has_stopped_for_sure(b: Bench) -> None:
    """Check that the gang waits for its lease: until then it may return a sum with its part in it."""
    planes = await gang_of_workers(b, elastic=True)
    left = await lose(b, planes, 0, 2)
    await b.pass_time(b.config.lost_timeout_s - 2)
    await b.go(left)
    assert [worker.started for worker in left] == [1] * 4
    assert [b.registry.job(f"train/{n}").job.state for n in range(2)] == [State.REBUILDING] * 2
    await b.pass_time(3.0)
    await b.go(left)
    assert [worker.started for worker in left] == [2] * 4


async def test_an_elastic_gang_ends_where_too_few_machines_are_left(b: Bench) -> None:
    """Set a least number of workers, which counts GPUs; a machine goes whole."""
    b.registry.create_job(
        JobSpec(name="train", world_size=6, elastic=True, min_workers=5, gang=Gang("train", 0, 2))
    )
    assert [b.registry.job(f"train/{n}").job.spec.min_workers for n in range(2)] == [3, 3]
    planes = await gang_of_workers(b, elastic=True)
    left = await lose(b, planes, 1, 2)
    for worker in left:
        assert isinstance(worker.end, Ended)
        assert "GPU 1 of machine 2" in worker.end.reason
        assert "2 machines are left, and the job needs 3" in worker.end.reason
    assert [b.registry.job(f"train/{n}").job.state for n in range(2)] == [State.ENDED] * 2


async def test_a_worker_of_an_elastic_gang_has_to_say_in_which_collective_it_is(b: Bench) -> None:
    planes = await gang_of_workers(b, elastic=True)
    planes[0][0].gang_collective = None
    with pytest.raises(InvalidRequestError, match="does not say in which collective of its elastic gang"):
        await lose(b, planes, 1, 2)


# Ends


async def test_a_plane_that_fails_ends_all_with_the_reason_and_whose_doing_it_was(b: Bench) -> None:
    planes = await gang(b, "train", 2)
    for plane in planes:
        plane.heard.clear()
    planes[1].sessions[2].broken()
    sessions = [*planes[0].sessions, *planes[1].sessions[:2]]
    await b.pass_time(b.config.lost_timeout_s + 1, *sessions)
    host = b.config.hosts[2]
    for session in sessions:
        ended = ended_of(session)
        assert f"GPU 1 of machine 2 ({host.name}, {host.ip}) has been without a connection" in ended.reason
        assert (ended.cause, ended.rank) == (EndCause.WORKER_LOST, 2)
        assert ended.plane == (1 if session in planes[0].sessions else None)
        assert ended.host == host.name


async def test_who_ends_its_plane_for_another_gpu_of_its_machine_is_not_to_blame(b: Bench) -> None:
    planes = await gang(b, "train", 3)
    planes[0].sessions[1].hear(Abort("GPU 2 of machine 1 (h2) died", plane=2))
    await b.registry.drain()
    for number, plane in enumerate(planes):
        ended = ended_of(plane.sessions[0])
        assert (ended.rank, ended.plane) == (1, None if number == 2 else 2)
        assert ended.host == b.config.hosts[1].name


async def test_a_worker_that_goes_while_the_gang_is_set_up_ends_it(b: Bench) -> None:
    """Break a session when the last plane has joined and the switch is still being written."""
    await b.join("train/0", MACHINES, gang=Gang("train", 0, 2))
    b.qp += 2
    sessions = [
        b.registry.sessions.join(
            "train/1", 3, b.member(rank, rank, qp=b.qp, plane=1), gang=Gang("train", 1, 2)
        )
        for rank in MACHINES
    ]
    assert b.registry.job("train/0").job.state is State.INSTALLING
    sessions[0].broken()
    await b.registry.drain()
    assert ended_of(sessions[1]).cause is EndCause.WORKER_LOST
    assert [b.registry.job(f"train/{n}").job.state for n in range(2)] == [State.ENDED] * 2
    await b.pass_time(200.0)
    assert (b.switch.of_jobs, b.used()) == ({}, {})


async def test_planes_whose_workers_leave_end_one_by_one_and_nobody_is_told_of_a_failure(b: Bench) -> None:
    planes = await gang(b, "train", 2)
    planes[0].leave()
    await go(b, *planes)
    assert isinstance(planes[0].heard[-2], Left)
    assert b.registry.job("train/1").job.live
    planes[1].leave()
    await go(b, *planes)
    assert isinstance(planes[1].heard[-2], Left)
    again = await gang(b, "train", 2)  # the same name, a new run
    assert modes(again) == {Mode.IN_NETWORK}


async def test_a_new_run_has_nothing_to_do_with_a_plane_that_is_still_leaving(b: Bench) -> None:
    planes = await gang(b, "train", 2)
    planes[0].leave()
    await go(b, *planes)
    early = await b.join("train/0", MACHINES, gang=Gang("train", 0, 2))
    planes[1].sessions[0].hear(Abort("it failed at last"))
    await b.registry.drain()
    assert ended_of(planes[1].sessions[1]).reason == "it failed at last"
    assert not any(isinstance(event, Ended) for one in early for event in heard(one))
    late = await b.join("train/1", MACHINES, gang=Gang("train", 1, 2))
    assert [isinstance(heard(one)[-1], Ready) for one in (*early, *late)] == [True] * 6


async def test_who_is_waited_for_in_a_move_may_leave(b: Bench) -> None:
    """End a plane while the others hold for a move: they go on."""
    planes = await gang(b, "train", 2)
    planes[1].silent = {0, 1, 2}
    b.registry.waitlist.move_out(b.registry.job("train/0"), "room for others")
    await go(b, *planes)
    assert any(isinstance(event, HoldAt) for event in planes[0].heard)
    say(planes[1].sessions, Leave())
    await go(b, *planes)
    assert planes[0].mode is Mode.RING
    assert not b.registry.job("train/1").job.live


async def test_a_gang_is_created_and_deleted_by_its_name(b: Bench) -> None:
    b.registry.create_job(
        JobSpec(name="train", world_size=6, window=4, message_packets=8, gang=Gang("train", 0, 2))
    )
    assert [record.job.spec.name for record in b.registry.jobs()] == ["train/0", "train/1"]
    planes = await gang(b, "train", 2)
    assert slots(planes) == [64, 64]
    deleted = b.registry.delete_job("train")
    assert [record.job.spec.name for record in deleted] == ["train/0", "train/1"]
    assert b.registry.jobs() == []
    for plane in planes:
        assert ended_of(plane.sessions[0]).reason == "gang train was deleted"


@pytest.mark.parametrize("size", [5, 1])
async def test_a_gang_has_as_many_workers_on_each_machine(b: Bench, size: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{size} workers cannot be 2 on each machine"):
        b.registry.create_job(JobSpec(name="train", world_size=size, gang=Gang("train", 0, 2)))


# Restarts


async def test_a_controller_that_restarts_knows_the_gang_again(b: Bench) -> None:
    planes = await gang_of_workers(b)
    await b.restart(listen=True)
    records = [b.registry.job(f"train/{n}") for n in range(2)]
    assert records[0].planes == records[1].planes == records
    for n, plane in enumerate(planes):
        for worker in plane:
            assert worker.ready is not None
            worker.session = b.registry.sessions.resume(
                f"train/{n}", worker.ready.generation, worker.rank, worker.ready.resume_token
            )
    workers = [worker for plane in planes for worker in plane]
    await b.go(workers)
    planes[0][1].session.hear(Abort("enough"))
    await b.go(workers)
    assert {worker.end.reason for worker in workers if isinstance(worker.end, Ended)} == {"enough"}
    assert all(isinstance(worker.end, Ended) for worker in workers)


async def test_a_controller_that_dies_while_planes_end_ends_the_others_when_it_is_back(
    b: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes = await gang_of_workers(b)
    monkeypatch.setattr(b.registry.gangs, "ended", lambda record: None)  # as if it died before
    planes[0][1].session.hear(Abort("enough"))
    await b.registry.drain()
    assert b.registry.job("train/1").job.live
    await b.restart(listen=True)
    assert not b.registry.job("train/1").job.live
    assert b.registry.job("train/1").job.outcome.reason == "enough"  # type: ignore[union-attr]


async def test_a_plane_whose_workers_had_left_before_a_restart_is_not_missed(b: Bench) -> None:
    planes = await gang_of_workers(b)
    await b.leave([worker.session for worker in planes[0]])
    await b.restart(listen=True)
    for worker in planes[1]:
        assert worker.ready is not None
        worker.session = b.registry.sessions.resume(
            "train/1", worker.ready.generation, worker.rank, worker.ready.resume_token
        )
    await b.pass_time(b.config.resume_timeout_s + 5, *(worker.session for worker in planes[1]))
    assert b.registry.job("train/1").job.live


async def test_workers_that_say_another_gang_than_was_created_are_refused(b: Bench) -> None:
    b.registry.create_job(JobSpec(name="train", world_size=6, gang=Gang("train", 0, 2)))
    with pytest.raises(InvalidRequestError, match="is plane 0 of 2 of gang train, but "):
        await b.join("train/0", MACHINES)
    b.registry.create_job(JobSpec(name="mine/0", world_size=3))  # and one that was created without
    assert (await b.join("mine/0", MACHINES, gang=Gang("mine", 0, 2)))[0].record.job.spec.gang is not None


@pytest.mark.parametrize(
    ("is_created", "joining"), [(False, 0), (True, 0), (True, 1), (False, 2), (False, 3)]
)
async def test_planes_that_a_new_database_hears_nothing_of_end_those_that_it_does(
    b: Bench, tmp_path: Path, is_created: bool, joining: int
) -> None:
    """Resume one plane; in an older database an operator may have created the other, or others join it."""
    planes = await gang_of_workers(b)
    await b.restart_on_a_new_database(listen=True)
    if is_created:
        b.registry.create_job(JobSpec(name="train/1", world_size=3, gang=Gang("train", 1, 2)))
    first = planes[0]
    accounts = []
    for worker in first:
        assert worker.ready is not None
        accounts.append(
            Account(
                spec=JobSpec(name="train/0", world_size=3, gang=Gang("train", 0, 2)),
                plan=replace(plan_of(worker.ready), mode_reason=""),
                member=b.member(worker.rank, worker.rank, qp=0x102, psn=0, plane=0),
                token=worker.ready.resume_token,
            )
        )
    for worker, known in zip(first, accounts, strict=True):
        try:
            worker.session = b.registry.sessions.resume(
                "train/0", known.plan.generation, worker.rank, known.token, known
            )
        except UnreachableError:
            continue
    for worker, known in zip(first[:-1], accounts[:-1], strict=True):
        worker.session = b.registry.sessions.resume(
            "train/0", known.plan.generation, worker.rank, known.token, known
        )
    record = b.registry.job("train/0")
    assert record.job.live
    others = [
        b.registry.sessions.join(
            "train/1", 3, b.member(rank, rank, qp=0x700 + 16 * rank, psn=0, plane=1), gang=Gang("train", 1, 2)
        )
        for rank in range(joining)
    ]
    await b.pass_time(b.config.resume_timeout_s + 1, *(worker.session for worker in first), *others)
    assert not record.job.live
    assert "of plane 1 nobody came back within" in record.job.outcome.reason


async def tell(b: Bench, planes: Sequence[Sequence[Worker]], **otherwise: Any) -> None:
    """Let all workers tell a controller of a gang that it does not know; plane 1 was planned `otherwise`."""
    for plane, of in enumerate(planes):
        accounts = []
        for worker in of:
            assert worker.ready is not None
            plan = replace(plan_of(worker.ready), mode_reason="", **(otherwise if plane == 1 else {}))
            account = Account(
                spec=JobSpec(name=f"train/{plane}", world_size=3, gang=Gang("train", plane, 2)),
                plan=plan,
                member=b.member(worker.rank, worker.rank, qp=0x102 + 2 * plane, psn=0, plane=plane),
                token=worker.ready.resume_token,
            )
            accounts.append((worker, account))
        for worker, known in (*accounts, *accounts[:-1]):
            with contextlib.suppress(UnreachableError):
                worker.session = b.registry.sessions.resume(
                    f"train/{plane}", known.plan.generation, worker.rank, known.token, known
                )
    await b.go([worker for of in planes for worker in of])


async def test_planes_that_tell_of_different_sizes_are_renewed_with_the_same(b: Bench) -> None:
    planes = await gang_of_workers(b)
    workers = [worker for of in planes for worker in of]
    await b.restart_on_a_new_database(listen=True)
    await tell(b, planes, path_mtu=512)
    assert [worker.started for worker in workers] == [2] * 6
    assert len(settings(workers)) == 1


async def test_planes_of_a_database_that_have_different_sizes_are_renewed_with_the_same(b: Bench) -> None:
    """Store planes as an earlier release did, which planned each by itself."""
    planes = await gang_of_workers(b)
    workers = [worker for of in planes for worker in of]
    record = b.registry.job("train/1")
    assert record.job.plan is not None
    plan = replace(record.job.plan, path_mtu=512)
    b.store.save_job(stored(record.job, plan, record.allocations.values(), Phase.RUNNING))
    await b.restart(listen=True)
    for plane, of in enumerate(planes):
        for worker in of:
            assert worker.ready is not None
            token, generation = worker.ready.resume_token, worker.ready.generation
            worker.session = b.registry.sessions.resume(f"train/{plane}", generation, worker.rank, token)
    await b.go(workers)
    assert [worker.started for worker in workers] == [2] * 6
    assert len(settings(workers)) == 1


async def test_a_gang_that_comes_back_beside_its_created_self_is_renewed_with_all_planes(b: Bench) -> None:
    """Create the gang anew on the new database before its workers tell of it."""
    planes = await gang_of_workers(b)
    workers = [worker for of in planes for worker in of]
    await b.restart_on_a_new_database(listen=True)
    b.registry.create_job(JobSpec(name="train", world_size=6, gang=Gang("train", 0, 2)))
    await tell(b, planes)
    await b.restart_switch("s1")
    await b.go(workers)
    assert [worker.started for worker in workers] == [2] * 6
    assert {worker.plan[1] for worker in workers} == {Mode.IN_NETWORK}
