"""A controller with switches in memory: it can be restarted, and the test turns its clock."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from controller.api.messages import Heartbeat, Leave
from controller.config import Config
from controller.database.store import Store
from controller.orchestration.registry import Registry
from controller.orchestration.sessions import Session
from controller.switches.managed_switch import ManagedSwitch
from tests.controller.fake_switch import FakeSwitch


class ControllerBench:
    """Switches and the database stay when the controller goes."""

    STEP_S = 0.25
    STORE = Store

    def __init__(self, path: Path, config: Config, switches: Iterable[FakeSwitch]) -> None:
        self.path = path
        self.config = config
        self.now = 1000.0
        self.switches = {switch.config.name: switch for switch in switches}
        self.registry = self._start()
        self.qp = 0x100

    def _start(self) -> Registry:
        self.store = self.STORE(self.path, wall_clock=lambda: 1e6)
        managed = [ManagedSwitch(switch) for switch in self.switches.values()]
        registry = Registry(self.config, self.store, managed, clock=lambda: self.now)
        registry.load()
        return registry

    async def __aenter__(self) -> ControllerBench:
        await self.settled()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.registry.drain()
        self.store.close()

    async def settled(self) -> None:
        """The controller has looked over the switches that are there, and done what was to be done."""
        for name, switch in self.registry.switches.items():
            if self.switches[name].connected:
                await self.registry.manager.settle(switch)
        await self.registry.drain()

    async def restart(self, path: Path | None = None, *, settle: bool = True) -> None:
        """The controller dies and comes back, on the database in `path` if it is another."""
        self.registry.stop()
        await self.registry.drain()
        self.store.close()
        self.path = path or self.path
        self.registry = self._start()
        if settle:
            await self.settled()

    async def restart_on_a_new_database(self) -> None:
        """What switches hold of jobs stays, and nobody knows of it."""
        await self.restart(Path(f"{self.path}.new"))

    async def leave(self, sessions: Iterable[Session]) -> None:
        """All say that they leave, and what is to be done for it is done."""
        for session in sessions:
            session.hear(Leave())
        await self.registry.drain()

    async def pass_time(self, seconds: float, *alive: Session, step: float | None = None) -> None:
        """Time goes by in steps; these workers send heartbeats meanwhile."""
        step = step or self.STEP_S
        for _ in range(round(seconds / step)):
            self.now += step
            for session in alive:
                session.hear(Heartbeat())
            self.registry.tick()
            await self.registry.drain()
