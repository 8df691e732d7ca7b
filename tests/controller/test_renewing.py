"""Jobs that go on under a new generation, on switches in memory: a switch fails, a worker, the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from controller.config import Config
from controller.events import Renewed
from controller.jobs import Ended, Job, JobSpec, Left, Mode, Ready, Start
from controller.renewals import Cause, Renew, Standing
from controller.sessions import Session
from controller.specs import Backup
from controller.views import job_info
from tests.controller.spine_leaf import FabricBench, fabric, member
from tests.controller.told import heard

Run = Callable[..., None]
CONFIG = fabric((3, 2), spines=1)
ONE_RACK = (0, 1, 2)
ACROSS = (0, 3, 1, 4)


class Worker:
    """What one worker's agent does: answers, with new QPs each time; `collective` is where it stands."""

    def __init__(self, session: Session, rank: int, qp: int) -> None:
        self.session = session
        self.rank = rank
        self.qp = qp
        self.collective = 10
        self.ready: Ready | None = None
        self.renewed: Renewed | None = None
        self.renew: Renew | None = None
        self.started = 0
        self.end: Ended | Left | None = None
        self.silent = self.deaf = False

    def listen(self) -> None:
        for event in heard(self.session):
            if isinstance(event, Ready):
                self.ready = event
                self.session.up()
            elif isinstance(event, Renew):
                self.renew = event
                self.qp += 0x1000
                if not self.silent:
                    self.answer()
            elif isinstance(event, Renewed):
                if self.renewed is not None:
                    assert event.ready.plan.generation > self.renewed.ready.plan.generation
                self.renewed, self.ready, self.rank = event, event.ready, event.ready.rank
                if not self.deaf:
                    self.session.up()
            elif isinstance(event, Start):
                self.started += 1
            elif isinstance(event, (Ended, Left)):
                self.end = event

    def answer(self, number: int | None = None) -> None:
        assert self.renew is not None
        standing = Standing(qpn_out=self.qp, psn_out=7, qpn_in=self.qp + 1, collective=self.collective)
        self.session.stands(self.renew.renewal if number is None else number, standing)

    @property
    def plan(self) -> tuple[int, Mode, int]:
        assert self.ready is not None
        return self.ready.plan.generation, self.ready.plan.mode, self.ready.world_size


class RenewalBench(FabricBench):
    """Workers on top."""

    async def start(
        self,
        name: str = "train",
        hosts: Sequence[int] = ONE_RACK,
        *,
        backup: bool = False,
        spec: JobSpec | None = None,
        elastic: bool = False,
    ) -> list[Worker]:
        self.qp += 2
        if spec is not None:
            self.registry.create_job(spec)
        workers = []
        for rank, host in enumerate(hosts):
            who = member(self.config, rank, host, qp=self.qp)
            if backup:
                at = Backup(
                    mac=f"06:00:00:00:00:{host:02x}", ip=IPv4Address(f"172.31.0.{host + 1}"), path_mtu=1024
                )
                who = replace(who, backup=at)
            session = self.registry.join(name, len(hosts), who, elastic=elastic)
            workers.append(Worker(session, rank, self.qp))
        await self.go(workers)
        assert all(worker.started == 1 for worker in workers)
        return workers

    async def go(self, workers: Iterable[Worker], seconds: float = 0.0) -> None:
        """Until nothing happens any more; then let time pass."""
        workers = list(workers)
        for step in range(4 + round(2 * seconds)):
            if step >= 4:
                self.now += 0.5
                for worker in workers:
                    if worker.end is None:
                        worker.session.heartbeat()
                self.registry.tick()
            await self.registry.drain()
            for worker in workers:
                worker.listen()

    async def resume(self, worker: Worker) -> None:
        assert worker.ready is not None
        plan, token = worker.ready.plan, worker.ready.token
        worker.session = self.registry.resume("train", plan.generation, worker.rank, token)

    async def restart_switch(self, name: str = "l1") -> None:
        await self.lose(name, forget=True)
        await self.find(name)

    @property
    def job(self) -> Job:
        return self.registry.job("train").job

    def tables(self, name: str) -> set[str]:
        return {getattr(entry, "table", "group") for entry in self.of_jobs(name)}


@pytest.fixture
def bench(tmp_path: Path) -> Run:
    def run(test: Callable[[RenewalBench], Awaitable[None]], config: Config = CONFIG) -> None:
        async def body() -> None:
            bench = RenewalBench(tmp_path / "c.db", config)
            await bench.settled()
            await test(bench)
            await bench.registry.drain()
            bench.store.close()

        asyncio.run(body())

    return run


def test_a_leaf_that_restarted_gives_its_jobs_a_new_generation(bench: Run) -> None:
    async def test(b: RenewalBench) -> None:
        workers = await b.start()
        first, mode, _ = workers[0].plan
        workers[1].collective = 11
        await b.restart_switch()
        await b.go(workers)
        (plan,) = {worker.plan for worker in workers}
        assert plan == (plan[0], Mode.IN_NETWORK, 3)
        assert (plan[0] > first, mode) == (True, Mode.IN_NETWORK)
        assert [w.renewed and (w.renewed.collective, w.renewed.holder) for w in workers] == [(10, 1)] * 3
        assert [worker.started for worker in workers] == [2] * 3
        assert b.job.renewal is None
        info = job_info(b.registry, b.registry.job("train"))
        assert (info.renewals, info.renewing, list(info.awaited)) == (1, False, [])
        assert "l1 was restarted" in info.renewal_reason
        assert b.registry.renewer.begun == {Cause.SWITCH_RESTARTED: 1}
        await b.go(workers, 3.0)  # the old generation's guards go when nobody sends any more
        assert b.used() == {"l1": 256}
        assert len(b.of_jobs("l1")) == 1 + 5 * 3
        assert b.is_as_wanted()
        for worker in workers:
            worker.session.leave()
        await b.go(workers)
        assert [worker.end for worker in workers] == [Left()] * 3
        assert b.used() == {}
        assert len(b.store.jobs()) == 1

    bench(test)
