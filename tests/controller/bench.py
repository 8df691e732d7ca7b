"""A controller with switches in memory, and its workers; it can be restarted, and tests turn its clock."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import UnreachableError
from controller.api.messages import (
    Ended,
    FromWorker,
    Gang,
    Heartbeat,
    Held,
    HoldAt,
    JobSpec,
    Leave,
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
from controller.config import Config, HostConfig, Spread, SwitchConfig
from controller.database.store import Store
from controller.entries import Entry, TableEntry
from controller.fabric.flows import removal_order
from controller.fabric.routes import base_entries
from controller.fabric.tables.forward import ECMP_MEMBER
from controller.fabric.tables.up import UPLINK
from controller.jobs.job import Job
from controller.jobs.specs import Backup, Member
from controller.orchestration.adoption import Account
from controller.orchestration.registry import Registry
from controller.orchestration.sessions import Session
from controller.switches.managed_switch import ManagedSwitch
from p4reduce.simulation.network import fabric_config
from tests.controller.fake_switch import FakeSwitch
from tests.controller.told import everything, heard, plan_of, ready_of


def fabric(hosts: Sequence[int] = (2, 2), spines: int = 2, **fields: object) -> Config:
    """Return leaves with so many hosts each, h1 and so on, and a link from every leaf to every spine."""
    config = fabric_config(spines, hosts, Spread.JOBS)
    named = tuple(replace(host, name=f"h{number}") for number, host in enumerate(config.hosts, 1))
    return replace(config, hosts=named, **{"probe_interval_s": 0.0, **fields})  # type: ignore[arg-type]


RACK = Config(
    switches=(SwitchConfig(name="s1", device_id=1, address="127.0.0.1:1"),),
    hosts=tuple(
        HostConfig(
            name=f"h{i}", ip=IPv4Address(f"10.0.0.{i}"), mac=f"02:00:00:00:00:{i:02x}", switch="s1", port=i
        )
        for i in range(1, 41)
    ),
    path_mtu=2048,
)
# How long a worker that is out of reach may send: until it misses heartbeats, and then until it gives up.
PATIENCE_S = RACK.resume_timeout_s + 2 * (RACK.heartbeat_timeout_s + RACK.heartbeat_interval_s)
RACKS = fabric((3, 2), spines=1)
ONE_RACK, ACROSS = (0, 1, 2), (0, 3, 1, 4)  # hosts of jobs in RACKS


def member(config: Config, rank: int, host: int, *, qp: int = 0x100, **fields: Any) -> Member:
    """Return the worker of a rank on the host with that number, counted from 0."""
    where = config.hosts[host]
    return Member(
        rank=rank,
        mac=where.mac,
        ip=where.ip,
        qpn_out=qp,
        psn_out=fields.pop("psn", 1000 * rank),
        qpn_in=qp + 1,
        host=where.name,
        **fields,
    )


def backed_up(who: Member, host: int) -> Member:
    """Return this worker with a backup interface on the host with that number."""
    ip = IPv4Address(f"172.31.0.{host + 1}")
    return replace(who, backup=Backup(mac=f"06:00:00:00:00:{host:02x}", ip=ip, path_mtu=1024))


def account(ready: Ready, who: Member, size: int, **spec: Any) -> Account:
    """Return the account of the job "train" that a worker gives when it resumes."""
    return Account(
        spec=JobSpec(name="train", world_size=size, **spec),
        plan=replace(plan_of(ready), mode_reason=""),
        member=who,
        token=ready.resume_token,
    )


class Worker:
    """One worker's agent: it answers, with new QPs each time. `collective`: the first it has not finished.

    `called`: the first that its user has not called.
    """

    def __init__(self, session: Session, rank: int, qp: int) -> None:
        self.session = session
        self.rank = rank
        self.qp = qp
        self.collective = 10
        self.gang_collective: int | None = None
        self.called: int | None = None
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
            renewal=number,
            qpn_out=self.qp,
            psn_out=7,
            qpn_in=self.qp + 1,
            collective=self.collective,
            gang_collective=self.gang_collective,
            called=self.called,
        )
        self.session.hear(answer)

    def asks(self, number: int) -> bool:
        """Tell whether the controller says that this worker is in its job."""
        self.listen()
        self.session.hear(Heartbeat(number=number))
        return Heartbeat(number=number) in everything(self.session)

    @property
    def plan(self) -> tuple[int, Mode, int]:
        assert self.ready is not None
        return self.ready.generation, self.ready.mode, self.ready.world_size


def say(workers: Iterable[Worker | Session], event: FromWorker) -> None:
    for worker in workers:
        (worker.session if isinstance(worker, Worker) else worker).hear(event)


class Bench:
    """Switches and the database stay when the controller goes."""

    STORE = Store
    SWITCH = FakeSwitch

    def __init__(self, path: Path, config: Config = RACK) -> None:
        self.path = path
        self.config = config
        self.now = 1000.0
        self.qp = 0x100
        self.switches = {s.name: self.SWITCH(s, base_entries(config, s)) for s in config.switches}
        self.registry = self._start()

    def _start(self) -> Registry:
        self.store = self.STORE(self.path, wall_clock=lambda: 1e6)
        managed = [ManagedSwitch(switch) for switch in self.switches.values()]
        registry = Registry(self.config, self.store, managed, clock=lambda: self.now)
        registry.load()
        return registry

    async def __aenter__(self) -> Bench:
        await self.settled()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.registry.drain()
        self.store.close()

    # The controller

    async def settled(self) -> None:
        """Let the controller settle the connected switches, and wait until it has nothing to do."""
        for name, switch in self.registry.switches.items():
            if self.switches[name].connected:
                await self.registry.manager.settle(switch)
        await self.registry.drain()

    async def restart(self, path: Path | None = None, *, settle: bool = True, listen: bool = False) -> None:
        """Kill the controller and start it again, on the database in `path` if that is given."""
        self.registry.stop()
        await self.registry.drain()
        self.store.close()
        self.path = path or self.path
        self.registry = self._start()
        if settle:
            await self.settled()
        if listen:
            self.registry.listens()

    async def restart_on_a_new_database(self, *, listen: bool = False) -> None:
        """Restart with an empty database: switches still hold entries of jobs that nobody knows."""
        await self.restart(Path(f"{self.path}.new"), listen=listen)

    def back_up(self) -> Path:
        """Copy the database as it is now, and return the copy's path."""
        copy = self.path.with_name("backup.db")
        with contextlib.closing(sqlite3.connect(copy)) as target:
            self.store.connection.backup(target)
        return copy

    async def restore(self, backup: Path, *, settle: bool = True, listen: bool = False) -> None:
        """Stop the controller, and start another one on the backup."""
        await self.restart(backup, settle=False)
        for switch in self.switches.values():
            if switch.connected:
                switch.connect()
        if settle:
            await self.settled()
        if listen:
            self.registry.listens()

    async def pass_time(self, seconds: float, *alive: Session, step: float = 0.25) -> None:
        """Let time go by in steps; these workers send heartbeats meanwhile."""
        for _ in range(round(seconds / step)):
            self.now += step
            say(alive, Heartbeat())
            self.registry.tick()
            await self.registry.drain()

    # Workers, and what they say; `hosts`: so many, or which

    async def join(
        self,
        name: str,
        hosts: int | Sequence[int],
        *,
        tenant: str = "",
        elastic: bool = False,
        backup: bool = False,
        gang: Gang | None = None,
        **fields: Any,
    ) -> list[Session]:
        """Let workers of a job, or of a gang's plane, join on these hosts, rank 0 on the first."""
        self.qp += 2
        hosts = range(hosts) if isinstance(hosts, int) else hosts
        if gang is not None:
            fields["plane"] = gang.plane
        members = [self.member(rank, host, qp=self.qp, **fields) for rank, host in enumerate(hosts)]
        if backup:
            members = [backed_up(who, host) for who, host in zip(members, hosts, strict=True)]
        sessions = [
            self.registry.sessions.join(name, len(hosts), who, tenant, elastic=elastic, gang=gang)
            for who in members
        ]
        await self.registry.drain()
        return sessions

    async def run_job(self, name: str, hosts: int | Sequence[int], **how: Any) -> list[Session]:
        """Let workers join as in `join`, bring them up, and return their sessions."""
        sessions = await self.join(name, hosts, **how)
        say(sessions, Up())
        return sessions

    async def leave(self, sessions: Iterable[Session]) -> None:
        """Let all workers leave, and wait until the controller has nothing to do."""
        say(sessions, Leave())
        await self.registry.drain()

    async def ready_workers(
        self, name: str = "train", hosts: Sequence[int] = ONE_RACK, *, spec: JobSpec | None = None, **how: Any
    ) -> list[Worker]:
        """Return workers that have joined and heard Ready, but are not up."""
        if spec is not None:
            self.registry.create_job(spec)
        sessions = await self.join(name, hosts, **how)
        workers = [Worker(session, rank, self.qp) for rank, session in enumerate(sessions)]
        for worker in workers:
            worker.listen()
        return workers

    async def start(self, name: str = "train", hosts: Sequence[int] = ONE_RACK, **how: Any) -> list[Worker]:
        """Return the workers of a job that runs."""
        workers = await self.ready_workers(name, hosts, **how)
        say(workers, Up())
        await self.go(workers)
        assert all(worker.started == 1 for worker in workers)
        return workers

    async def go(self, workers: Iterable[Worker], seconds: float = 0.0) -> None:
        """Go on until nothing happens any more, then let `seconds` pass."""
        workers = list(workers)
        for step in range(4 + round(2 * seconds)):
            if step >= 4:
                self.now += 0.5
                say([worker for worker in workers if worker.end is None], Heartbeat())
                self.registry.tick()
            await self.registry.drain()
            for worker in workers:
                worker.listen()

    def all_hold(self, workers: Sequence[Worker]) -> None:
        """Let workers answer that they have nothing under way, and wait for the job's move."""
        number = self.job.move.number if self.job.move is not None else 0
        say(workers, Paused(number, 10))
        say(workers, Held(number))

    async def resume(self, *workers: Worker) -> None:
        for worker in workers:
            assert worker.ready is not None
            plan, token = worker.ready, worker.ready.resume_token
            worker.session = self.registry.sessions.resume(
                "train", plan.generation, worker.rank, token, answered=worker.answered
            )

    # Workers that tell of their job

    async def run_known(self, size: int) -> list[Account]:
        """Run a job, and return what its workers know of it."""
        sessions = await self.run_job("train", size)
        return [
            account(ready_of(session), self.member(rank, qp=self.qp), size)
            for rank, session in enumerate(sessions)
        ]

    def tell(self, known: Account) -> Session:
        """Resume a worker that tells what it knows, and return its session."""
        rank, generation = known.member.rank, known.plan.generation
        return self.registry.sessions.resume("train", generation, rank, known.token, known)

    def all_tell(self, known: Sequence[Account]) -> list[Session]:
        """Resume workers that tell what they know: the job is back with the last of them."""
        for one in known[:-1]:
            with pytest.raises(UnreachableError, match="to tell of it"):
                self.tell(one)
        return [self.tell(one) for one in known[::-1]][::-1]

    async def all_leave(self, back: Sequence[Session]) -> None:
        """Let all workers leave, and check that nothing of the job is left."""
        await self.leave(back)
        assert [heard(session)[-2:] for session in back] == [[Left(), None]] * len(back)
        assert (self.switch.of_jobs, self.used()) == ({}, {})

    # Switches

    async def lose(self, name: str, *, forget: bool = False) -> None:
        """Disconnect a switch; with `forget` it has lost its entries when it is back."""
        self.switches[name].connected = False
        self.registry.manager.on_switch_change(name)
        await self.registry.drain()
        if forget:
            self.switches[name].forget()

    async def find(self, name: str) -> None:
        """Reconnect a switch as its own connection does: guards and base entries first."""
        switch = self.switches[name]
        switch.connected = True
        if not switch.entries:
            switch.restart()
        self.registry.manager.on_switch_change(name)
        await self.registry.drain()

    async def restart_switch(self, name: str = "l1") -> None:
        await self.lose(name, forget=True)
        await self.find(name)

    # What is there

    @property
    def switch(self) -> FakeSwitch:
        """The only one."""
        (switch,) = self.switches.values()
        return switch

    @property
    def job(self) -> Job:
        return self.registry.job("train").job

    def member(self, rank: int, host: int | None = None, **fields: Any) -> Member:
        """Return the worker of a rank, on the host of the same number unless `host` names another."""
        return member(self.config, rank, rank if host is None else host, **fields)

    def guards(self, name: str) -> set[Entry]:
        """Return the guards of a job on the only switch."""
        return set(removal_order(self.registry.job(name).allocations["s1"].entries)[1])

    def uses(self, leaf: str) -> set[str]:
        """Return the spines that a leaf's partial sums go to, by its entries."""
        return self._spines(leaf, UPLINK)

    def routes_over(self, leaf: str) -> set[str]:
        """Return the spines that a leaf's routes to other racks go over."""
        return self._spines(leaf, ECMP_MEMBER)

    def _spines(self, leaf: str, table: str) -> set[str]:
        entries = self.switches[leaf].entries.values()
        ports = {dict(e.params)["port"] for e in entries if isinstance(e, TableEntry) and e.table == table}
        return {link.spine for link in self.registry.links.graph.uplinks(leaf) if link.leaf_port in ports}

    def of_jobs(self, name: str) -> set[Entry]:
        """Return the entries that a switch holds beside its base entries."""
        return set(self.switches[name].of_jobs.values())

    def tables(self, name: str = "s1") -> set[str]:
        """Return the tables of a switch's entries of jobs; a group's is "group"."""
        return {getattr(entry, "table", "group") for entry in self.of_jobs(name)}

    def used(self) -> dict[str, int]:
        """Return the number of slots taken, of the switches that have any taken."""
        switches = self.registry.switches.items()
        return {name: switch.allocator.used for name, switch in switches if switch.allocator.used}

    def is_as_wanted(self) -> bool:
        """Tell whether each switch holds exactly the entries that it should."""
        return all(
            set(self.switches[name].entries.values())
            == set(self.registry.manager.rerouting.wanted_entries(name))
            for name in self.switches
        )

    def retired(self, qp: int) -> set[tuple[int, int]]:
        """Return hosts in `ONE_RACK` with those of `qp` and the next QPN that somebody may still send to."""
        now = self.now
        return {
            (host, number)
            for host in ONE_RACK
            for number in (qp, qp + 1)
            if self.registry.book.retired.why_not(self.config.hosts[host].ip, {number}, now)
        }
