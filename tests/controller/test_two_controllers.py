"""Two controllers on copies of one database: who is not primary of a switch decides nothing there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.api.errors import UnreachableError
from controller.api.messages import Heartbeat, Join, Resumed
from controller.api.messages import Worker as Addresses
from tests.controller.bench import ONE_RACK, PATIENCE_S, RACK, Bench, Worker, say
from tests.controller.told import everything, heard

CONFIG = replace(RACK, switch_timeout_s=5.0)


async def second_of(first: Bench) -> Bench:
    """Start another controller on a copy of the database; the first one keeps the switch."""
    other = Bench(first.back_up(), first.config)
    other.switch.entries = first.switch.entries
    await takes(first, before=other)
    other.registry.listens()
    return other


async def takes(bench: Bench, *, before: Bench) -> None:
    """Make one controller primary; the other one hears that its election id is taken."""
    for one, has_it in ((before, False), (bench, True)):
        one.switch.connected = has_it
        one.switch.has_rival = one.switch.is_outranked = not has_it
        one.registry.manager.on_switch_change("s1")
        await one.registry.drain()


async def pass_time(seconds: float, *benches: Bench, alive: list[Worker]) -> None:
    for _ in range(round(seconds)):
        for bench in benches:
            bench.now += 1.0
            say([w for w in alive if w.session.record in bench.registry.jobs()], Heartbeat())
            bench.registry.tick()
            await bench.registry.drain()


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("backup", [False, True])
async def test_who_waits_for_a_switch_ends_no_job_and_takes_nothing_away_when_it_gets_it(
    b: Bench, elastic: bool, backup: bool
) -> None:
    workers = await b.start(elastic=elastic, backup=backup)
    second = await second_of(b)
    entries = dict(b.switch.entries)
    await pass_time(2 * PATIENCE_S, b, second, alive=workers)
    assert (second.job.live, second.job.renewal) == (True, None)
    assert len(second.job.workers) == len(workers)
    await takes(second, before=b)
    assert b.switch.entries == entries
    await pass_time(20.0, b, second, alive=[])
    assert b.switch.entries == entries
    await second.resume(*workers)
    assert [Resumed() in everything(worker.session) for worker in workers] == [True] * 3
    await pass_time(2 * PATIENCE_S, b, second, alive=workers)
    assert (b.job.live, second.job.live) == (True, True)
    assert (b.job.renewal, second.job.renewal) == (None, None)
    assert b.switch.entries == entries


async def test_who_loses_the_switch_to_another_lets_its_workers_go_and_takes_none(b: Bench) -> None:
    """Check that it no longer answers for the lease of an elastic job either, which the other may renew."""
    workers = await b.start(elastic=True)
    assert workers[0].asks(5)
    second = await second_of(b)
    await takes(second, before=b)
    b.registry.tick()
    for worker in workers:
        assert heard(worker.session)[-1] is None
        assert not worker.session.is_current
    with pytest.raises(UnreachableError, match=r"stands by, as another one .* is primary of switch s1"):
        await begin_again(b, workers[0])
    with pytest.raises(UnreachableError, match="stop one of them"):
        b.registry.sessions.begin(joining(b, "another"))
    await pass_time(2 * PATIENCE_S, b, alive=[])
    await takes(b, before=second)
    await pass_time(CONFIG.resume_timeout_s - 1, b, alive=[])
    await b.resume(*workers)
    await pass_time(PATIENCE_S, b, alive=workers)
    assert (b.job.live, len(b.job.workers)) == (True, 3)
    assert workers[0].asks(7)


async def test_workers_that_are_with_neither_controller_are_given_up_by_the_one_that_has_the_switch(
    b: Bench,
) -> None:
    workers = await b.start()
    second = await second_of(b)
    await pass_time(2 * PATIENCE_S, b, second, alive=workers)
    await takes(second, before=b)
    await pass_time(CONFIG.resume_timeout_s - 1, second, alive=[])
    assert second.job.live
    await pass_time(2.0, second, alive=[])
    assert not second.job.live


async def test_guards_of_a_job_that_has_ended_stay_until_long_after_the_other_has_left(b: Bench) -> None:
    """End the job: by the copy that may be long ago, and by the other controller's database just now."""
    workers = await b.start()
    b.registry.manager.engine.act(b.registry.job("train"), lambda job, now: job.broken(0))
    second = await second_of(b)
    second.registry.delete_job("train")
    guards = b.guards("train")
    await pass_time(2 * PATIENCE_S, second, alive=[])
    await takes(second, before=b)
    await pass_time(PATIENCE_S / 2, second, alive=[])
    assert guards <= set(second.switch.entries.values())
    await pass_time(PATIENCE_S, second, alive=[])
    assert second.switch.of_jobs == {}
    assert workers


async def begin_again(bench: Bench, worker: Worker) -> None:
    from controller.api.messages import Resume

    assert worker.ready is not None
    bench.registry.sessions.begin(
        Resume(
            job="train",
            generation=worker.ready.generation,
            rank=worker.rank,
            token=worker.ready.resume_token,
            joined=joining(bench, "train"),
            ready=worker.ready,
            answered=(),
        )
    )


def joining(bench: Bench, name: str) -> Join:
    host = bench.config.hosts[ONE_RACK[0]]
    at = Addresses(rank=0, mac=host.mac, ip=host.ip, qpn_out=0x900, psn_out=1, qpn_in=0x901, hostname="")
    return Join(job=name, world_size=2, worker=at, path_mtu_max=1024)
