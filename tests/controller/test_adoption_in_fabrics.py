"""A controller on a new database takes jobs over while a spine is dead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.api.errors import UnreachableError
from controller.api.messages import Mode
from tests.controller.bench import ACROSS, ONE_RACK, Bench, Worker, account, fabric

CONFIG = fabric((3, 2), spines=2)


def tell(b: Bench, workers: Sequence[Worker], hosts: Sequence[int]) -> set[str]:
    """Let all workers try twice to come back, and return what they are told to wait for the second time."""
    waits: list[str] = []
    for rank, host in [*enumerate(hosts)] * 2:
        worker = workers[rank]
        assert worker.ready is not None
        who = b.member(rank, host, qp=worker.qp)
        try:
            worker.session = b.tell(account(worker.ready, who, len(hosts), elastic=True))
        except UnreachableError as error:
            waits.append(str(error))
    return set(waits[len(hosts) :])


async def test_a_dead_spine_does_not_keep_a_job_of_one_rack_from_its_controller(b: Bench) -> None:
    workers = await b.start(elastic=True)
    before = b.of_jobs("l1")
    await b.lose("s1")
    await b.restart_on_a_new_database(listen=True)
    assert tell(b, workers, ONE_RACK) == set()
    assert [worker.asks(50) for worker in workers] == [True] * 3
    await b.go(workers, 3.0)
    assert (b.of_jobs("l1"), [worker.renew for worker in workers]) == (before, [None] * 3)


@pytest.mark.parametrize("spine", ["s1", "s2"])
async def test_a_job_across_racks_waits_for_a_spine_and_is_then_renewed_without_it(
    b: Bench, spine: str
) -> None:
    workers = await b.start(hosts=ACROSS, elastic=True)
    await b.lose(spine)
    await b.restart_on_a_new_database(listen=True)
    why = f"switch {spine}, which may have sums of the job, is not ready"
    assert tell(b, workers, ACROSS) == {why}
    await b.go([], b.config.resume_timeout_s - 1.0)
    assert tell(b, workers, ACROSS) == {why}
    await b.go([], 2.0)
    assert tell(b, workers, ACROSS) == set()
    await b.go(workers, 1.0)
    assert {worker.plan[1:] for worker in workers} == {(Mode.IN_NETWORK, 4)}
    for worker in workers:
        assert worker.renew is not None
        assert f"switch {spine}" in worker.renew.reason
        assert worker.started == 2
    assert set(b.registry.job("train").allocations) == {"l1", "l2", "s1", "s2"} - {spine}
    assert [worker.asks(50) for worker in workers] == [True] * 4
    await b.find(spine)
    await b.go(workers, 10.0)
    assert [worker.end for worker in workers] == [None] * 4


async def test_a_job_waits_for_its_leaf(b: Bench) -> None:
    """Check that it does, as no other switch knows which guards the job needs."""
    workers = await b.start(elastic=True)
    await b.lose("l1")
    await b.restart_on_a_new_database(listen=True)
    tell(b, workers, ONE_RACK)
    await b.go([], b.config.resume_timeout_s + 1.0)
    assert tell(b, workers, ONE_RACK) == {"switch l1, which may have sums of the job, is not ready"}
    await b.find("l1")
    assert tell(b, workers, ONE_RACK) == set()
    assert [worker.asks(50) for worker in workers] == [True] * 3
