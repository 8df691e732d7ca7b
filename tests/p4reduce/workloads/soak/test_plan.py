"""Draws of a soak: the same from the same seed."""

from __future__ import annotations

from p4reduce.workloads.soak.plan import KINDS, PACKETS, RESTARTS, FaultPlan, Job, Jobs, Step


def jobs(seed: int, *, group: int = 0) -> list[Job]:
    source = Jobs(seed, group, workers=4, elastic=True, selective=True)
    return [source.next() for _ in range(200)]


def steps(seed: int, *, but: tuple[str, ...] = ()) -> list[Step]:
    plan = FaultPlan(seed, "all", kinds=KINDS, hosts=4, links=["l1:s1"], switches=["l1", "s1"])
    return [plan.next(but=but) for _ in range(500)]


def test_the_same_seed_draws_the_same() -> None:
    assert jobs(3) == jobs(3)
    assert steps(3) == steps(3)
    assert jobs(3) != jobs(4)
    assert jobs(3) != jobs(3, group=1)
    assert steps(3) != steps(4)


def test_jobs_can_be() -> None:
    for job in jobs(1):
        assert len(job.workers) >= 2
        assert len(set(job.workers)) == len(job.workers)
        assert set(job.workers) <= set(range(4))
        for case in (case for cases in job.rounds for case in cases):
            assert case.elements >= 1
            assert not job.elastic or case.collective == "all_reduce"


def test_ranks_of_a_machine_follow_each_other() -> None:
    source = Jobs(1, 1, workers=6, elastic=True, selective=True, gpus=2)
    drawn = [source.next() for _ in range(200)]
    for job in drawn:
        machines = [worker // 2 for worker in job.workers]
        assert machines[::2] == machines[1::2]
        assert [worker % 2 for worker in job.workers] == [0, 1] * (len(job.workers) // 2)
        assert len(set(job.workers)) == len(job.workers) >= 4
    assert {(len(job.workers), job.elastic) for job in drawn} == {(4, False), (6, False), (6, True)}


def test_every_kind_of_fault_comes_and_can_be_left_out() -> None:
    assert {step.kind for step in steps(1)} == set(KINDS)
    assert {step.kind for step in steps(1, but=RESTARTS)} == set(KINDS) - set(RESTARTS)
    assert all(0 < s.arguments["probability"] < 1 for s in steps(1) if s.kind in PACKETS)
