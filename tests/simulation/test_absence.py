"""Jobs while there is no controller for ten minutes: it is stopped, dead, or has lost its database."""

from __future__ import annotations

import pytest

from simulation.faults.loop import NS
from simulation.faults.schedule import JobPlan, Mishap, Schedule, Work
from simulation.faults.world import World

WORKERS = 8
AWAY_S = 600
BEGINS_S, PACE_S = 5, 10


def schedule(kind: str, *, spines: int = 0) -> Schedule:
    """Eight workers, a sum every ten seconds, and the controller away for nearly all of it."""
    work = Work(module="in_network", name="all_reduce", dtype="int32", elements=100, think_ns=PACE_S * NS)
    job = JobPlan(
        hosts=list(range(WORKERS)),
        work=[work] * (2 * (BEGINS_S + AWAY_S) // PACE_S),
        qpns=[0x100 + 2 * rank for rank in range(WORKERS)],
        psns=[2**21 + rank for rank in range(WORKERS)],
        seed=5,
    )
    return Schedule(
        seed=1,
        spines=spines,
        hosts=[WORKERS // 2] * 2 if spines else [WORKERS],
        jobs=[job],
        mishaps=[Mishap(BEGINS_S * NS, kind, lasts_ns=AWAY_S * NS, since=1)],
    )


@pytest.mark.parametrize("spines", [0, 2], ids=["rack", "spine-leaf"])
@pytest.mark.parametrize("kind", ["controller-restart", "controller-pause", "database-lost"])
def test_a_job_goes_on_without_a_controller_and_all_its_workers_come_back(kind: str, spines: int) -> None:
    world = World(schedule(kind, spines=spines))
    done: list[int] = []
    last_ns = (BEGINS_S + AWAY_S - PACE_S) * NS
    for at_ns in (BEGINS_S * NS, last_ns):
        world.clock.at(at_ns, lambda: done.append(min(w.collective for w in world.jobs[0].workers)))
    outcome = world.run()
    assert not outcome.error
    assert outcome.jobs == {"left": WORKERS}
    assert outcome.renewals == 0
    before, after = done
    assert after - before >= (AWAY_S - 2 * PACE_S) // PACE_S, "it stood still meanwhile"
