"""Fabrics whose jobs go on under a new generation."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from controller.api.messages import (
    Ended,
    FromWorker,
    Heartbeat,
    Held,
    HoldAt,
    JobSpec,
    Left,
    Mode,
    Pause,
    Paused,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Start,
    Up,
)
from controller.jobs.job import Job
from controller.jobs.specs import Backup
from controller.orchestration.sessions import Session
from tests.controller.spine_leaf import FabricBench, fabric, member
from tests.controller.told import everything, heard

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
        self.answered: list[int] = []  # renewals, until it has heard Renewed

    def listen(self) -> None:
        for event in heard(self.session):
            if isinstance(event, Ready):
                self.ready = event
            elif isinstance(event, Pause):
                self.session.hear(Paused(event.move, self.collective))
            elif isinstance(event, HoldAt):
                self.session.hear(Held(event.move))
            elif isinstance(event, Renew):
                self.renew = event
                self.qp += 0x1000
                if not self.silent:
                    self.answer()
            elif isinstance(event, Renewed):
                if self.renewed is not None:
                    assert event.ready.generation > self.renewed.ready.generation
                self.renewed, self.ready, self.rank = event, event.ready, event.ready.rank
                self.answered = []
                if not self.deaf:
                    self.session.hear(Up())
            elif isinstance(event, Start):
                self.started += 1
            elif isinstance(event, (Ended, Left)):
                self.end = event

    def answer(self, number: int | None = None) -> None:
        assert self.renew is not None
        number = self.renew.renewal if number is None else number
        self.answered.append(number)
        answer = Renewing(
            renewal=number, qpn_out=self.qp, psn_out=7, qpn_in=self.qp + 1, collective=self.collective
        )
        self.session.hear(answer)

    def asks(self, number: int) -> bool:
        """Whether the controller says that this worker is in its job."""
        self.listen()
        self.session.hear(Heartbeat(number=number))
        return Heartbeat(number=number) in everything(self.session)

    @property
    def plan(self) -> tuple[int, Mode, int]:
        assert self.ready is not None
        return self.ready.generation, self.ready.mode, self.ready.world_size


def say(workers: Iterable[Worker], event: FromWorker) -> None:
    for worker in workers:
        worker.session.hear(event)


class RenewalBench(FabricBench):
    """Workers on top."""

    async def start(self, name: str = "train", hosts: Sequence[int] = ONE_RACK, **how: Any) -> list[Worker]:
        workers = await self.join_only(name, hosts, **how)
        say(workers, Up())
        await self.go(workers)
        assert all(worker.started == 1 for worker in workers)
        return workers

    async def join_only(
        self,
        name: str = "train",
        hosts: Sequence[int] = ONE_RACK,
        *,
        backup: bool = False,
        spec: JobSpec | None = None,
        elastic: bool = False,
    ) -> list[Worker]:
        """They have heard Ready, and are not up."""
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
            session = self.registry.sessions.join(name, len(hosts), who, elastic=elastic)
            workers.append(Worker(session, rank, self.qp))
        await self.registry.drain()
        for worker in workers:
            worker.listen()
        return workers

    async def go(self, workers: Iterable[Worker], seconds: float = 0.0) -> None:
        """Until nothing happens any more; then let time pass."""
        workers = list(workers)
        for step in range(4 + round(2 * seconds)):
            if step >= 4:
                self.now += 0.5
                for worker in workers:
                    if worker.end is None:
                        worker.session.hear(Heartbeat())
                self.registry.tick()
            await self.registry.drain()
            for worker in workers:
                worker.listen()

    async def resume(self, *workers: Worker) -> None:
        for worker in workers:
            assert worker.ready is not None
            plan, token = worker.ready, worker.ready.resume_token
            worker.session = self.registry.sessions.resume(
                "train", plan.generation, worker.rank, token, answered=worker.answered
            )

    def all_hold(self, workers: Sequence[Worker]) -> None:
        """They have nothing under way any more, and wait for the move."""
        number = self.job.move.number if self.job.move is not None else 0
        say(workers, Paused(number, 10))
        say(workers, Held(number))

    async def restore(self, copy: Path) -> None:
        """The controller is stopped, and is back on a database from a backup."""
        self.registry.stop()
        await self.registry.drain()
        self.store.close()
        self.path = copy
        self.registry = self._start()
        await self.settled()
        self.registry.listens()

    def back_up(self, name: str = "backup.db") -> Path:
        copy = self.path.with_name(name)
        with contextlib.closing(sqlite3.connect(copy)) as target:
            self.store.connection.backup(target)
        return copy

    async def restart_switch(self, name: str = "l1") -> None:
        await self.lose(name, forget=True)
        await self.find(name)

    def retired(self, qp: int) -> set[tuple[int, int]]:
        """Which of `qp` and the next somebody may still send to, on which hosts of `ONE_RACK`."""
        now = self.now
        return {
            (host, number)
            for host in ONE_RACK
            for number in (qp, qp + 1)
            if self.registry.book.retired.why_not(self.config.hosts[host].ip, {number}, now)
        }

    @property
    def job(self) -> Job:
        return self.registry.job("train").job

    def tables(self, name: str) -> set[str]:
        return {getattr(entry, "table", "group") for entry in self.of_jobs(name)}
