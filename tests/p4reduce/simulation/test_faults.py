"""Seeds hold, replay exactly, shrink; the compiled program does the same; and broken variants are found."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from controller.api.messages import Ended
from controller.jobs import job as jobs
from controller.jobs.renewals import Agreed, Cause
from controller.jobs.specs import Plan
from controller.orchestration import lost, renewer
from controller.orchestration.allocations import Allocations
from controller.orchestration.gangs import Gangs
from controller.orchestration.record import Record
from controller.orchestration.renewer import Renewer
from controller.orchestration.retired import RetiredQueuePairs
from controller.orchestration.setup import Installer
from controller.slots.allocator import Region, SwitchAllocator
from controller.switches.switch import Switch
from host_agent.collectives.plan import Call
from host_agent.machine.gang import Asked, Gang, Place
from host_agent.member import Member, Settle
from host_agent.recovery import ReplayLog
from host_agent.transport import Operation
from p4reduce.oracle import emit, placement
from p4reduce.oracle.state import SpineJob
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.network import BackupNetwork
from p4reduce.simulation.faults.playing import Outcome, run
from p4reduce.simulation.faults.running import Tally, run_many
from p4reduce.simulation.faults.schedule import Mishap, Schedule, ScheduleError, Work
from p4reduce.simulation.faults.shrinking import Shrinker, fewest, kind_of
from p4reduce.simulation.faults.targets import Targeted, play_seeds, players
from p4reduce.simulation.faults.worker import Worker
from p4reduce.simulation.watched import WatchedSwitch
from tests.p4reduce.simulation.defects import (
    duplicates_are_added,
    foreign_packets_are_forwarded,
    generations_are_ignored,
    one_window_of_slots,
    ranks_change_over_at_once,
    sums_go_out_before_all_are_there,
)
from tests.p4reduce.simulation.planted import sets

SEEDS = int(os.environ.get("P4REDUCE_SEEDS", "100"))
SCHEDULES = Path(__file__).parent / "schedules"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_seeds_hold() -> None:
    """$P4REDUCE_SEEDS says how many; `p4reduce simulate-faults --seed N` plays one again."""
    tally = run_many(range(SEEDS), play=Targeted().many)
    assert not tally.failures
    assert tally.seeds == SEEDS
    assert tally.collectives > 2 * SEEDS


def test_gangs_are_among_what_is_drawn() -> None:
    """Check that gangs of two and three planes are drawn, elastic or not, and machines that die."""
    drawn = [draw(seed) for seed in range(600) if has_gang(seed)]
    assert len(drawn) > 40
    assert {len(schedule.planes(len(schedule.jobs) - 1)) for schedule in drawn} >= {2, 3}
    kinds = {mishap.kind for schedule in drawn for mishap in schedule.mishaps}
    assert kinds >= {"worker-kill", "machine-kill", "switch-restart", "controller-restart"}
    assert {job.elastic for schedule in drawn for job in schedule.jobs if job.gang} == {True, False}


def test_a_seed_is_played_alike_every_time() -> None:
    for seed in (3, lossy(), 27):
        first, second = run(draw(seed)), run(draw(seed))
        assert (first.trace, first.events, first.strikes) == (second.trace, second.events, second.strikes)


@pytest.mark.slow
def test_a_seed_is_played_alike_in_every_process() -> None:
    """Check it with another order of sets of strings in each."""
    code = (
        "from p4reduce.simulation.faults.drawing import draw\n"
        "from p4reduce.simulation.faults.playing import run\n"
        "print([run(draw(seed)).trace for seed in (3, 11, 27, 40)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in (1, 2)
    }
    assert len(said) == 1


@functools.cache
def lossy() -> int:
    """Return a seed of links that lose frames."""
    return next(seed for seed in itertools.count(1) if len(run(draw(seed)).strikes) > 20)


@pytest.mark.parametrize("path", sorted(SCHEDULES.glob("*.json")), ids=lambda path: path.stem)
def test_a_schedule_that_once_failed_holds(path: Path) -> None:
    assert not run(Schedule.from_json(path.read_text())).error


@pytest.mark.slow
def test_what_struck_as_a_list_plays_the_same() -> None:
    by_rates = run(draw(lossy()))
    assert by_rates.strikes
    listed = replace(draw(lossy()), strikes=list(by_rates.strikes))
    again = run(Schedule.from_json(listed.to_json()))
    assert again.trace == by_rates.trace
    assert again.strikes == by_rates.strikes


def test_a_schedule_is_json() -> None:
    for seed in range(20):
        schedule = draw(seed)
        assert Schedule.from_json(schedule.to_json()) == schedule
        assert json.loads(schedule.to_json())["seed"] == seed
        assert schedule.in_words()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"p4reduce_schedule": 1}', '{"p4reduce_schedule": 2}'])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError):
        Schedule.from_json(text)


@pytest.mark.slow
def test_any_executor_plays_the_same() -> None:
    def found(**how: Any) -> dict[str, Any]:
        tally = run_many(range(7, 40), **how).as_json()
        return {name: tally[name] for name in tally.keys() - {"seconds", "seeds_per_s"}}

    here = found(play=Targeted().many)
    assert here["seeds"] == 33
    with ThreadPoolExecutor(3) as threads:
        assert found(play=functools.partial(play_seeds, "model"), executor=threads) == here


def test_what_fails_at_an_executor_ends_the_run() -> None:
    def broken(seeds: range) -> Tally:
        raise ArithmeticError(f"no {seeds[0]}")

    with ThreadPoolExecutor(1) as threads, pytest.raises(ArithmeticError, match="no 0"):
        run_many(range(2**64), play=broken, executor=threads)


def test_the_compiled_program_does_what_the_model_does() -> None:
    """Compare both frame by frame, on every switch of the run."""
    with players("embedded") as play:
        tally = run_many(range(1000, 1000 + min(12, SEEDS)), play=play.many)
    assert not tally.failures


def test_a_program_that_does_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "SUMMED_BIT", 0x20)
    with players("embedded") as play:
        outcome = play.one(draw(3))
    assert "the program and the model differ" in outcome.error


# Broken variants, each of which some seed has to find.


@dataclass(frozen=True)
class Mutant:
    """`broken`: what is set where; `seeds`: within how many it is found, of schedules that `drawn` makes."""

    name: str
    broken: Callable[[pytest.MonkeyPatch], None]
    seeds: int
    drawn: Callable[[int], Schedule] = draw


def nothing_is_drained(patch: pytest.MonkeyPatch) -> None:
    def settle(self: Member) -> None:
        if self._move is not None and self._held_from is not None:
            self._actions.append(Settle(self._move))

    def settled(self: Worker) -> None:
        if self._settling is not None and self.member is not None:
            move, self._settling = self._settling, None
            self.member.settled(move)
            self._act_on_job()

    patch.setattr(Member, "_perhaps_settle", settle)
    patch.setattr(Worker, "_perhaps_settled", settled)


def restarted(seed: int) -> Schedule:
    """Return a schedule: the leaf loses all while the first job runs, which adds up in place, repeatedly."""
    schedule = draw(seed)
    job = schedule.jobs[0]
    work = [
        replace(
            job.work[0], name="all_reduce", dtype="int32", elements=120, in_place=True, module="in_network"
        )
    ] * 3
    mishap = Mishap(20_000 + seed * 37_000 % 1_500_000, "switch-restart", "l1", lasts_ns=1_000_000, since=1)
    return replace(schedule, jobs=[replace(job, work=work, mode="")], mishaps=[mishap], slots=0)


def crowded(seed: int) -> Schedule:
    """Return jobs that begin by ring for want of slots, and are moved into the switch when there are some."""
    schedule = draw(seed)
    job = replace(schedule.jobs[0], mode="", elastic=False, window=2, packets=4, path_mtu=256, adapters=[])
    long = replace(job, work=[replace(job.work[0], name="all_reduce", module="in_network", elements=120)] * 6)
    other = replace(long, qpns=[qpn + 0x4000 for qpn in job.qpns], psns=[psn ^ 0x400000 for psn in job.psns])
    return replace(
        schedule, jobs=[replace(long, work=long.work[:1]), other], mishaps=[], slots=16, strikes=None
    )


def without_its_switch(seed: int) -> Schedule:
    """Return a schedule: the leaf is away for longer than anybody waits; workers have another network."""
    schedule = restarted(seed)
    (job,), (mishap,) = schedule.jobs[:1], schedule.mishaps
    job = replace(job, backup=True, adapters=[], rnr=[], elastic=False)
    return replace(schedule, jobs=[job], mishaps=[replace(mishap, lasts_ns=20_000_000_000)], timing={})


def bereaved(seed: int) -> Schedule:
    """Return a schedule: a worker is killed while its job runs, which nobody else disturbs."""
    schedule = draw(seed)
    job = schedule.jobs[0]
    work = [replace(job.work[0], name="all_reduce", dtype="int32", elements=120, module="in_network")] * 3
    mishap = Mishap(20_000 + seed * 37_000 % 500_000, "worker-kill", job=1, rank=seed, since=1)
    return replace(
        schedule, jobs=[replace(job, work=work, mode="", elastic=False)], mishaps=[mishap], slots=0
    )


def jobs_move_in_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """Let jobs keep the generation that they had."""

    def begin_planned(self: Renewer, running: Record, cause: Cause, reason: str) -> None:
        planes = running.live_planes
        self._begin(planes, [plane.generation or 0 for plane in planes], cause, reason)

    patch.setattr(Renewer, "begin_planned", begin_planned)


def gang(seed: int) -> Schedule:
    """Return the schedule of the `seed`th seed, from 0, that has a gang."""
    return draw(next(itertools.islice((n for n in itertools.count() if has_gang(n)), seed, None)))


def has_gang(seed: int) -> bool:
    return any(job.gang for job in draw(seed).jobs)


def rigid_gang(seed: int) -> Schedule:
    """Return the schedule of the `seed`th seed that has a gang which ends where a worker does."""
    wanted = (n for n in itertools.count() if any(job.gang and not job.elastic for job in draw(n).jobs))
    return draw(next(itertools.islice(wanted, seed, None)))


def elastic_gang(seed: int) -> Schedule:
    """Return the schedule of the `seed`th seed that has an elastic gang of which a worker is killed."""
    wanted = (n for n in itertools.count() if loses_machine(n))
    return draw(next(itertools.islice(wanted, seed, None)))


@functools.cache
def loses_machine(seed: int) -> bool:
    drawn = draw(seed)
    gangs = {n for n, job in enumerate(drawn.jobs) if job.gang and job.elastic}
    return any(m.kind.endswith("-kill") and (m.job - 1) % len(drawn.jobs) in gangs for m in drawn.mishaps)


def nothing_is_begun_anew(patch: pytest.MonkeyPatch) -> None:
    """Let each plane go on with a sum as if it were all of it."""
    agreed = renewer._agreed

    def nobody(*args: Any) -> Agreed:
        return replace(agreed(*args), gang_collective=None)

    patch.setattr(renewer, "_agreed", nobody)


def planes_are_set_up_alone(patch: pytest.MonkeyPatch) -> None:
    """Set up each plane alone: it gets slots, or not, whatever the others get."""
    set_up = Installer.set_up

    async def alone(
        self: Installer, planes: Sequence[Record], *, generations: Sequence[int] | None = None
    ) -> list[Plan]:
        numbers = [None] * len(planes) if generations is None else [[number] for number in generations]
        return [
            plan
            for plane, number in zip(planes, numbers, strict=True)
            for plan in await set_up(self, [plane], generations=number)
        ]

    patch.setattr(Installer, "set_up", alone)


def planes_are_cut_alone(patch: pytest.MonkeyPatch) -> None:
    """Cut each plane's packets by what its own workers' interfaces carry."""
    plans = Installer._plans

    def alone(
        self: Installer, of_planes: Sequence[jobs.Job], generations: Sequence[int], *of: Any, **how: Any
    ) -> list[Plan]:
        alike = zip(of_planes, generations, strict=True)
        return [plan for job, number in alike for plan in plans(self, [job], [number], *of, **how)]

    patch.setattr(Installer, "_plans", alone)


def mates_start_alone(patch: pytest.MonkeyPatch) -> None:
    """Begin a call as soon as one has come to it, whatever its mates call."""
    patch.setattr(Gang, "_difference", lambda self: "")


def a_cancelled_call_meets_nobody(patch: pytest.MonkeyPatch) -> None:
    """End a cancelled call at once, so that its mates hear nothing of it."""
    begin = Gang.begin

    def skip(self: Gang, asked: Asked, lanes: tuple[int, ...], place: Place) -> None:
        if not asked.is_cancelled:
            begin(self, asked, lanes, place)
            return
        self._asked = asked
        self._return()

    patch.setattr(Gang, "begin", skip)


def machines_count_steps_apart(patch: pytest.MonkeyPatch) -> None:
    """Let headers say the number of a plane's own collective."""
    operation = Call.operation

    def unnumbered(self: Call, *args: Any, **how: Any) -> Operation:
        assert self.signature is not None
        bare = replace(self, signature=replace(self.signature, step=None))
        return operation(bare, *args, **how)

    patch.setattr(Call, "operation", unnumbered)


def broadcasting_gang(seed: int) -> Schedule:
    """Return an elastic gang that is bereaved, and broadcasts all the time from roots that may die."""
    schedule = elastic_gang(seed)
    work = Work(
        module="in_network", name="broadcast", dtype="int32", elements=40, root=seed, think_ns=4_000_000_000
    )
    jobs = [replace(job, work=[work] * 3, cancels=[]) if job.gang else job for job in schedule.jobs]
    return replace(schedule, jobs=jobs)


def forgetful_gang(seed: int) -> Schedule:
    """Return a gang of which one machine cancels a call among many alike, and nothing else goes wrong."""
    schedule = rigid_gang(seed)
    work = Work(module="in_network", name="all_reduce", dtype="int32", elements=40)
    jobs = [
        replace(job, work=[work] * 4, cancels=[[0, seed % 3]] if job.gang else []) for job in schedule.jobs
    ]
    return replace(schedule, jobs=jobs, mishaps=[])


MUTANTS = [
    Mutant("mates are not compared", mates_start_alone, 80, gang),
    Mutant("a cancelled call meets nobody", a_cancelled_call_meets_nobody, 80, gang),
    Mutant("machines count apart", machines_count_steps_apart, 5, forgetful_gang),
    Mutant("a plane is refused alone", sets(Gang, "_way_of", lambda self, mate: self._way), 120, gang),
    Mutant("ranks change over at once", ranks_change_over_at_once, 120, broadcasting_gang),
    Mutant("nothing is missing", sets(lost, "first_missing", lambda *slots: None), 10, bereaved),
    Mutant("all is missing", sets(lost, "first_missing", lambda *slots: 0), 40, bereaved),
    Mutant("no host", sets(jobs, "Ended", lambda host, **end: Ended(host="", **end)), 10, bereaved),
    Mutant(
        "numbers used again", sets(RetiredQueuePairs, "retire", lambda self, job, free_at=None: None), 100
    ),
    Mutant("W slots", one_window_of_slots, 60),
    Mutant("duplicates added", duplicates_are_added, 40),
    Mutant("generation ignored", generations_are_ignored, 200),
    Mutant("early sums", sums_go_out_before_all_are_there, 20),
    Mutant("no ICRC check", sets(placement, "is_whole", lambda frame: True), 80),
    Mutant("nothing placed", foreign_packets_are_forwarded, 10),
    Mutant(
        "one region for all", sets(SwitchAllocator, "allocate", lambda self, slots: Region(1, 0, slots)), 60
    ),
    Mutant("input not restored", sets(ReplayLog, "restore_input", lambda self: None), 40, restarted),
    Mutant("result not repaired", sets(ReplayLog, "put_result", lambda self: None), 150, restarted),
    Mutant("no drain", nothing_is_drained, 40, crowded),
    Mutant("flows come back", sets(Allocations, "_forgot", lambda self, record, reason: None), 30),
    Mutant("no limit", sets(Member, "mode_of", lambda self, numbered: self.mode), 100),
    Mutant("no new generation", jobs_move_in_as_they_are, 40, crowded),
    Mutant("planes alone", planes_are_set_up_alone, 40, gang),
    Mutant("planes cut alone", planes_are_cut_alone, 40, gang),
    Mutant("a plane ends alone", sets(Gangs, "ended", lambda self, record: None), 40, rigid_gang),
    Mutant(
        "a machine leaves one plane",
        sets(Gangs, "machine_lost", lambda self, record, lost: None),
        60,
        elastic_gang,
    ),
    Mutant("nothing is begun anew", nothing_is_begun_anew, 120, elastic_gang),
    Mutant("a plane moves alone", sets(Record, "live_planes", property(lambda self: [self])), 60, gang),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_variant_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.broken(monkeypatch)
    found = next((seed for seed in range(mutant.seeds) if run(mutant.drawn(seed)).error), None)
    assert found is not None
    monkeypatch.undo()
    assert not run(mutant.drawn(found)).error


def test_a_generation_that_goes_on_with_other_leaves_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a leaf are in each of its flows' entries, which the model compares."""
    rebuild, seen = WatchedSwitch.rebuild, False

    def without_one(self: WatchedSwitch) -> None:
        nonlocal seen
        rebuild(self)
        for job in self.jobs.values():
            if isinstance(job, SpineJob) and job.counters["aggregated"]:
                job.leaves, seen = job.leaves[1:], True

    monkeypatch.setattr(WatchedSwitch, "rebuild", without_one)
    drawn = (draw(seed) for seed in itertools.count())
    outcomes = (run(schedule) for schedule in drawn if schedule.spines)
    error = next(outcome.error for outcome in outcomes if seen)
    assert "has added up what comes from" in error


def test_without_its_switch_a_job_goes_on_over_its_workers_backup_interfaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that its workers send to the addresses that the controller told each of its neighbours."""
    sent: list[bytes] = []
    taken: list[bytes] = []
    send, receive = BackupNetwork.send, Worker.receive

    def record(network: BackupNetwork, frame: bytes) -> None:
        sent.append(frame)
        send(network, frame)

    def note(worker: Worker, frame: bytes) -> None:
        if isinstance(worker.wire, BackupNetwork):
            taken.append(frame)
        receive(worker, frame)

    monkeypatch.setattr(BackupNetwork, "send", record)
    monkeypatch.setattr(Worker, "receive", note)
    for seed in range(3):
        outcome = run(without_its_switch(seed))
        assert not outcome.error
    assert len(taken) > 10
    assert len(taken) > 0.9 * len(sent), "the last ones may come when their worker has left"


@pytest.mark.slow
def test_a_failure_is_made_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A lost packet, repeated and added twice, needs little more than one fault and two workers."""
    duplicates_are_added(monkeypatch)
    outcome = next(o for o in map(run, map(draw, range(40))) if o.error and o.strikes)
    shrunk = Shrinker(outcome, run, seconds=20).shrink()
    assert kind_of(shrunk.outcome.error) == kind_of(outcome.error)
    assert shrunk.schedule.faults <= 3
    assert sum(len(job.hosts) for job in shrunk.schedule.jobs) <= 3
    again = run(Schedule.from_json(shrunk.schedule.to_json()))
    assert again.error == shrunk.outcome.error
    assert again.trace == shrunk.outcome.trace


def test_the_fewest_that_fail() -> None:
    def fails(some: Any) -> bool:
        return {3, 17} <= set(some)

    assert fewest(range(40), fails) == [3, 17]
    assert fewest([1, 2, 3], lambda some: True) == []


def test_an_error_without_its_numbers() -> None:
    one = kind_of("l1: message 4 overwrites the slot of 2, which ranks [0, 1] lack")
    assert one == kind_of("l2: message 19 overwrites the slot of 11, which ranks [2] lack")
    assert one != kind_of("job 1, rank 0 (h1-1) was told that its job is over")


def test_a_broken_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    duplicates_are_added(monkeypatch)
    outcome: Outcome = next(o for o in map(run, map(draw, range(40))) if o.error)
    tally = run_many(range(outcome.schedule.seed, outcome.schedule.seed + 1), play=Targeted().many)
    assert [failure.seed for failure in tally.failures] == [outcome.schedule.seed]
    assert tally.as_json()["failures"][0]["error"] == outcome.error


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        (
            "returned-by-a-clock-that-stood-still",
            sets(Member, "is_delivered", property(lambda self: True)),
        ),
        ("returned-with-acknowledgements-missing", sets(ReplayLog, "parked", lambda self: None)),
    ],
)
def test_a_suspended_worker_returns_nothing_that_the_others_make_again(
    name: str, broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its clock says that its lease has not run out."""
    schedule = Schedule.from_json((SCHEDULES / f"{name}.json").read_text())
    assert not run(schedule).error
    broken(monkeypatch)
    assert "has the result of collective 1 of ranks [0, 1], and rank 1 that of [1]" in run(schedule).error


@pytest.mark.slow
def test_a_second_controller_that_gets_the_switches_for_a_while_interrupts_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check it though the second waited longer than workers may be away: they were with the first one."""

    def renewals(seed: int) -> int:
        job = draw(seed).jobs[0]
        work = [replace(job.work[0], think_ns=4 * NS)] * 8
        job = replace(job, mode="", work=work, elastic=False, first_message=0)
        second = Mishap(1_000_000, "controller-second", lasts_ns=8 * NS, since=1)
        first = Mishap(6 * NS, "controller-restart", lasts_ns=3 * NS, since=1)
        outcome = run(replace(draw(seed), jobs=[job], mishaps=[second, first], renumber=0, slots=0))
        assert not outcome.error
        return outcome.renewals

    seeds = range(4)
    assert not any(map(renewals, seeds))
    monkeypatch.setattr(Switch, "has_rival", False)
    monkeypatch.setattr(Switch, "is_outranked", False)
    assert any(map(renewals, seeds))
