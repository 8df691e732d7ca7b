"""Random histories of a job, by seed: whatever happens to controller, switches and workers, it goes on.

The controller dies at any point at which it waits, its disk full or not. When all that was taken away is
back, the workers that are left have to run; when they leave, nothing of the job may be left anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from controller.api.errors import ControllerError
from controller.api.messages import (
    Abort,
    Ended,
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
    Resumed,
    Start,
    Up,
)
from controller.entries import Entry
from controller.jobs.specs import Phase
from controller.orchestration.sessions import Session
from tests.controller.bench import RACKS, Bench, backed_up, member
from tests.controller.fake_switch import FakeSwitch
from tests.controller.told import heard

pytestmark = pytest.mark.slow
SEEDS = int(os.environ.get("P4REDUCE_SEEDS", "200"))
AT_ONCE = 20
COLLECTIVE = 10  # where all stand
LONG_S = 130.0  # for whatever retries, and for the guards of ended jobs


class Agent:
    """A worker as the controller sees it: it answers what it is told, and says it again after a break."""

    def __init__(self, session: Session, rank: int, qps: Callable[[], int]) -> None:
        self.session, self.rank = session, rank
        self.ready: Ready | None = None
        self.renew: Renew | None = None
        self.answer: Renewing | None = None
        self.started = self.up = self.leaving = self.dead = self.refused = False
        self.connected = True
        self.end: Ended | Left | None = None
        self._qps = qps

    @property
    def alive(self) -> bool:
        return self.end is None and not self.dead and not self.refused

    def listen(self) -> None:
        for event in heard(self.session) if self.connected else ():
            if isinstance(event, Ready):
                self.ready = event
                self._come_up()
            elif isinstance(event, Renew):
                self._answer_renew(event)
            elif isinstance(event, Renewed):
                if self.answer is not None and self.answer.renewal == event.renewal:
                    self.ready, self.rank, self.answer = event.ready, event.ready.rank, None
                    self._come_up()
            elif isinstance(event, Start):
                self.started = self.answer is None
            elif isinstance(event, Resumed):
                self._say_again()
            elif isinstance(event, Pause):
                self.session.hear(Paused(event.move, COLLECTIVE))
            elif isinstance(event, HoldAt):
                self.session.hear(Held(event.move))
            elif isinstance(event, (Ended, Left)):
                self.end = event
            elif event is None:
                self.connected = False

    def leave(self) -> None:
        self.leaving = True
        self.session.hear(Leave())

    def _come_up(self) -> None:
        self.up, self.started = True, False
        self.session.hear(Up())

    def _answer_renew(self, renew: Renew) -> None:
        if self.renew is None or renew.renewal > self.renew.renewal:
            self.renew, self.up, self.started, qp = renew, False, False, self._qps()
            self.answer = Renewing(
                renewal=renew.renewal, qpn_out=qp, psn_out=7, qpn_in=qp + 1, collective=COLLECTIVE
            )
        if self.answer is not None and self.answer.renewal == renew.renewal:
            self.session.hear(self.answer)

    def _say_again(self) -> None:
        if self.answer is not None:
            self.session.hear(self.answer)
        elif self.up:
            self.session.hear(Up())
        if self.leaving:
            self.session.hear(Leave())


class SlowSwitch(FakeSwitch):
    """A switch that lets others have their turn before and after each request."""

    async def install(self, entries: Sequence[Entry]) -> None:
        await turns(2)
        await super().install(entries)
        await turns(2)

    async def remove(self, entries: Iterable[Entry]) -> None:
        await turns(2)
        await super().remove(entries)
        await turns(2)

    async def read_entries(self) -> set[Entry]:
        await turns(2)
        return await super().read_entries()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class History:
    """One of them. `events` is what has happened, for who looks into a failure."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bench = Bench(path, RACKS)
        self.events: list[str] = []
        self.agents: list[Agent] = []
        self.qp = 0x1000
        self.may_be_by_ring = self.deleted = False

    @property
    def alive(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.alive]

    def next_qp(self) -> int:
        self.qp += 2
        return self.qp

    async def begin(self) -> None:
        chance, bench = self.chance, self.bench
        await bench.settled()
        hosts = chance.choice([(0, 1, 2), (0, 3, 1, 4), (0, 1)])
        mode = chance.choice([None, None, None, Mode.RING, Mode.IN_NETWORK])
        elastic, backup = chance.random() < 0.7, chance.random() < 0.5
        self.may_be_by_ring = mode is Mode.RING
        if mode is not None or chance.random() < 0.4:
            bench.registry.create_job(
                JobSpec(name="train", world_size=len(hosts), mode=mode, elastic=elastic)
            )
        for rank, host in enumerate(hosts):
            who = member(bench.config, rank, host, qp=self.next_qp())
            if backup:
                who = backed_up(who, host)
            session = bench.registry.sessions.join("train", len(hosts), who, elastic=elastic)
            self.agents.append(Agent(session, rank, self.next_qp))
        await self.go(chance.choice([0, 1, 3]))

    async def go(self, rounds: int = 3, seconds: float = 0.0) -> None:
        """Give everybody so many turns, then let time pass."""
        for step in range(rounds + round(2 * seconds)):
            if step >= rounds:
                self.bench.now += 0.5
                for agent in self.alive:
                    if agent.connected:
                        agent.session.hear(Heartbeat())
                self.bench.registry.tick()
            await self.bench.registry.drain()
            for agent in self.alive:
                agent.listen()

    async def happen(self) -> None:
        """Let something happen."""
        what = self.chance.choice(
            [
                *(self.switch_restarts, self.switch_blinks, self.switch_goes, self.switches_return),
                *(self.controller_dies, self.controller_dies, self.controller_restarts),
                *(self.disk_fills, self.disk_is_freed, self.pushed, self.moved_out),
                *(self.worker_aborts, self.worker_closes, self.worker_breaks, self.workers_return),
                *(self.all_leave, self.time_passes, self.deletion),
            ]
        )
        self.events.append(what.__name__)
        await what()
        if self.chance.random() < 0.5:
            await self.go(self.chance.choice([1, 2, 4]))

    # Switches

    async def switch_restarts(self) -> None:
        name = self.chance.choice(["l1", "l2", "s1"])
        await self.bench.lose(name, forget=True)
        await self.bench.find(name)

    async def switch_blinks(self) -> None:
        """Restart a switch before anybody has done anything about its loss."""
        name = self.chance.choice(["l1", "l2", "s1"])
        switch = self.bench.switches[name]
        switch.connected = False
        self.bench.registry.manager.on_switch_change(name)
        switch.entries.clear()
        switch.restart()
        switch.connected = True
        self.bench.registry.manager.on_switch_change(name)

    async def switch_goes(self) -> None:
        await self.bench.lose(self.chance.choice(["l1", "l2", "s1"]), forget=self.chance.random() < 0.5)

    async def switches_return(self) -> None:
        for name, switch in self.bench.switches.items():
            if not switch.connected:
                await self.bench.find(name)

    # The controller

    async def controller_restarts(self) -> None:
        for agent in self.agents:
            agent.connected = False
        await self.bench.restart()
        self.some_resume()

    async def controller_dies(self) -> None:
        """Kill the controller wherever it waits; switches and database stay as they were then."""
        for _ in range(self.chance.randint(0, 14)):
            await asyncio.sleep(0)
            if self.chance.random() < 0.4:
                for agent in self.alive:
                    agent.listen()
        bench = self.bench
        path = bench.path.with_name(f"{len(self.events)}.db")
        await self.disk_is_freed()
        bench.store.connection.execute("VACUUM INTO ?", (str(path),))
        entries = {name: dict(switch.entries) for name, switch in bench.switches.items()}
        await self._end_tasks()
        bench.store.close()
        for name, switch in bench.switches.items():
            switch.entries = entries[name]
        for agent in self.agents:
            agent.connected = False
        bench.path = path
        bench.registry = bench._start()
        await bench.settled()
        self.some_resume()

    async def _end_tasks(self) -> None:
        registry = self.bench.registry
        registry.engine.stopping = True
        while registry.engine._tasks:
            for task in list(registry.engine._tasks):
                task.cancel()
            await asyncio.sleep(0)

    async def disk_fills(self) -> None:
        self.bench.store.connection.execute("PRAGMA query_only = ON")

    async def disk_is_freed(self) -> None:
        self.bench.store.connection.execute("PRAGMA query_only = OFF")

    async def pushed(self) -> None:
        with contextlib.suppress(ControllerError, sqlite3.Error):
            await self.bench.registry.manager.push(self.chance.choice(["l1", "s1"]), force=True)

    async def moved_out(self) -> None:
        with contextlib.suppress(ControllerError):
            self.bench.registry.waitlist.move_out(self.bench.registry.job("train"), "drained")

    async def deletion(self) -> None:
        if self.chance.random() < 0.2:
            with contextlib.suppress(ControllerError, sqlite3.Error):
                self.bench.registry.delete_job("train")
                self.deleted = True

    # Workers

    def _one(self) -> Agent | None:
        there = [agent for agent in self.alive if agent.connected]
        return self.chance.choice(there) if there else None

    async def worker_aborts(self) -> None:
        if (agent := self._one()) is not None:
            agent.session.hear(Abort("no more"))
            agent.dead = True

    async def worker_closes(self) -> None:
        if (agent := self._one()) is not None:
            agent.session.closed()
            agent.dead = True

    async def worker_breaks(self) -> None:
        if (agent := self._one()) is not None:
            agent.session.broken()
            agent.connected = False

    async def workers_return(self) -> None:
        for agent in self.alive:
            if not agent.connected:
                self.resume(agent)

    def some_resume(self) -> None:
        for agent in self.alive:
            if self.chance.random() < 0.8:
                self.resume(agent)

    def resume(self, agent: Agent) -> None:
        if agent.ready is None:
            agent.refused = True
            return
        generation, token = agent.ready.generation, agent.ready.resume_token
        try:
            agent.session = self.bench.registry.sessions.resume("train", generation, agent.rank, token)
        except ControllerError:
            agent.refused = True
        else:
            agent.connected = True

    async def all_leave(self) -> None:
        if self.chance.random() < 0.2:
            for agent in self.alive:
                if agent.connected and agent.started:
                    agent.leave()

    async def time_passes(self) -> None:
        await self.go(seconds=self.chance.choice([1.0, 4.0, 11.0]))

    # What has to hold

    async def all_is_back(self) -> None:
        """Check that the workers that are left run, in the network unless the job was to be by ring."""
        await self.disk_is_freed()
        await self.switches_return()
        await self.workers_return()
        await self.go(seconds=LONG_S)
        left = self.alive
        assert not [agent.rank for agent in left if not (agent.started and agent.connected)], "some are stuck"
        assert len({agent.ready.generation for agent in left if agent.ready is not None}) <= 1
        assert self.bench.is_as_wanted()
        if not left or self.deleted:
            return
        job = self.bench.registry.job("train").job
        assert (job.phase, job.world_size) == (Phase.RUNNING, len(left))
        assert job.plan is not None
        if len(left) > 1 and not self.may_be_by_ring and not any(agent.leaving for agent in left):
            assert job.plan.mode is Mode.IN_NETWORK, job.plan.mode_reason

    async def nothing_is_left(self) -> None:
        """Let all leave, and check that no slot, entry or live job is left, also for the next controller."""
        for agent in self.alive:
            agent.leave()
        await self.go(seconds=5.0)
        assert not [agent.rank for agent in self.alive], "some did not get away"
        await self.go(seconds=LONG_S)
        assert self.bench.used() == {}
        assert not any(self.bench.of_jobs(name) for name in self.bench.switches)
        assert [known for known in self.bench.store.jobs() if known.outcome is None] == []
        await self.bench.restart()
        jobs = self.bench.registry.jobs()
        assert not [running for running in jobs if running.job.live and running.generation is not None]


async def play(path: Path, seed: int) -> None:
    history = History(path, seed)
    try:
        await history.begin()
        for _ in range(history.chance.randint(3, 14)):
            await history.happen()
        await history.all_is_back()
        await history.nothing_is_left()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}; {', '.join(history.events)}") from error
    finally:
        history.bench.store.close()


@pytest.fixture
def defects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages that the controller logs as defects of its own."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "defect" in record.getMessage():
                found.append(self.format(record))

    logger = logging.getLogger("controller")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, Handler()])
    return found


@pytest.mark.parametrize("start", range(0, SEEDS, AT_ONCE))
def test_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defects: list[str], start: int
) -> None:
    """Play random histories. The error names the seed; $P4REDUCE_SEEDS says how many, for a longer run."""
    monkeypatch.setattr(Bench, "SWITCH", SlowSwitch)
    monkeypatch.setattr("controller.orchestration.allocations._SWITCH_PATIENCE_S", 0.001)
    for seed in range(start, min(start + AT_ONCE, SEEDS)):
        (tmp_path / str(seed)).mkdir()
        asyncio.run(play(tmp_path / str(seed) / "c.db", seed))
        assert defects == [], f"seed {seed}"
