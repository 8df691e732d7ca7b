"""Jobs while there is no controller for ten minutes: it is stopped, dead, or has lost its database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.jobs.specs import Timing
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.playing import play, run
from p4reduce.simulation.faults.schedule import Mishap, Schedule
from p4reduce.simulation.faults.world import World
from tests.p4reduce.simulation.worlds import a_job, a_schedule, a_sum

WORKERS = 8
AWAY_S = 600
BEGINS_S, PACE_S = 5, 10


def schedule(kind: str, *, spines: int = 0) -> Schedule:
    """Return eight workers, a sum every ten seconds, and the controller away for nearly all of it."""
    work = [a_sum(100, think_ns=PACE_S * NS)] * (2 * (BEGINS_S + AWAY_S) // PACE_S)
    away = Mishap(BEGINS_S * NS, kind, lasts_ns=AWAY_S * NS, since=1)
    mishaps = [Mishap(NS, "database-backup", since=1), away]
    hosts = [WORKERS // 2] * 2 if spines else [WORKERS]
    return a_schedule(spines, hosts, a_job(range(WORKERS), work), mishaps=mishaps)


@pytest.mark.slow
@pytest.mark.parametrize("spines", [0, 2], ids=["rack", "spine-leaf"])
@pytest.mark.parametrize(
    "kind", ["controller-restart", "controller-pause", "database-lost", "database-restored"]
)
def test_a_job_goes_on_without_a_controller_and_all_its_workers_come_back(kind: str, spines: int) -> None:
    world = World(schedule(kind, spines=spines))
    done: list[int] = []
    last_ns = (BEGINS_S + AWAY_S - PACE_S) * NS
    for at_ns in (BEGINS_S * NS, last_ns):
        world.clock.at(at_ns, lambda: done.append(min(w.collective for w in world.workers[0])))
    outcome = play(world)
    assert not outcome.error
    assert outcome.jobs == {"left": WORKERS}
    assert outcome.renewals == 0
    before, after = done
    assert after - before >= (AWAY_S - 2 * PACE_S) // PACE_S, "it stood still meanwhile"


def given_up(pause_us: int, down_us: int) -> Schedule:
    """Return a schedule: both have sent all of a sum; one's link fails, one stops with its result queued."""
    faults = [
        Mishap(down_us * 1000, "link-down", "h1-2:l1", lasts_ns=2 * NS, since=1),
        Mishap(pause_us * 1000, "worker-pause", job=1, rank=0, lasts_ns=4 * NS, since=1),
    ]
    return a_schedule(0, [2], a_job([0, 1], [a_sum(100)] * 2, elastic=True), mishaps=faults)


_MOMENTS = [(pause_us, down_us) for pause_us in range(100, 260, 20) for down_us in (10, 20, 30)]


@pytest.mark.slow
def test_who_was_given_up_while_stopped_returns_no_sum_that_the_rest_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that it asks first whether it still belongs; without that, some moments give two sums."""
    assert not [error for moment in _MOMENTS if (error := run(given_up(*moment)).error)]
    monkeypatch.setattr(Timing, "lease_s", 0.0)
    errors = {run(given_up(*moment)).error for moment in _MOMENTS}
    assert any("and rank 1 that of [1]" in error for error in errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["controller-restart", "controller-pause", "database-lost", "database-restored"]
)
def test_an_elastic_job_waits_for_the_controller_and_then_goes_on(kind: str) -> None:
    plan = schedule(kind)
    plan = replace(plan, jobs=[replace(plan.jobs[0], elastic=True, work=plan.jobs[0].work[:5])])
    world = World(plan)
    done: list[int] = []
    for at_s in (BEGINS_S + PACE_S, BEGINS_S + AWAY_S):
        world.clock.at(at_s * NS, lambda: done.append(sum(job.collectives for job in world.jobs)))
    outcome = play(world)
    assert not outcome.error
    assert outcome.jobs == {"left": WORKERS}
    assert done[0] == done[1] < outcome.collectives
    assert outcome.collectives == WORKERS * len(plan.jobs[0].work)
