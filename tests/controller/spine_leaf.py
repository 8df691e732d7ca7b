"""A small spine-leaf fabric of switches in memory, with a controller that can be restarted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from controller.api.messages import FromController, Moved, Up
from controller.config import Config, Spread
from controller.entries import Entry, TableEntry
from controller.fabric.routes import base_entries
from controller.fabric.tables.forward import ECMP_MEMBER
from controller.fabric.tables.up import UPLINK
from controller.jobs.specs import Member
from controller.orchestration.sessions import Session
from p4reduce.simulation.network import fabric_config
from tests.controller import told
from tests.controller.bench import ControllerBench
from tests.controller.fake_switch import FakeSwitch


def fabric(hosts: Sequence[int] = (2, 2), spines: int = 2, **fields: object) -> Config:
    """Leaves with so many hosts each, h1 and so on, and a link from every leaf to every spine."""
    config = fabric_config(spines, hosts, Spread.JOBS)
    named = tuple(replace(host, name=f"h{number}") for number, host in enumerate(config.hosts, 1))
    return replace(config, hosts=named, **{"probe_interval_s": 0.0, **fields})  # type: ignore[arg-type]


def member(config: Config, rank: int, host: int, *, qp: int = 0x100, psn: int | None = None) -> Member:
    """The worker of a rank on the host of that number, from 0."""
    where = config.hosts[host]
    return Member(
        rank=rank,
        mac=where.mac,
        ip=where.ip,
        qpn_out=qp,
        psn_out=1000 * rank if psn is None else psn,
        qpn_in=qp + 1,
        host=where.name,
    )


class FabricBench(ControllerBench):
    """Leaves and spines."""

    def __init__(self, path: Path, config: Config) -> None:
        super().__init__(path, config, [FakeSwitch(s, base_entries(config, s)) for s in config.switches])

    async def join(self, name: str, hosts: Sequence[int]) -> list[Session]:
        """Workers of a job on these hosts, rank 0 on the first."""
        self.qp += 2
        sessions = [
            self.registry.sessions.join(name, len(hosts), member(self.config, rank, host, qp=self.qp))
            for rank, host in enumerate(hosts)
        ]
        await self.registry.drain()
        return sessions

    async def run_job(self, name: str, hosts: Sequence[int]) -> list[Session]:
        """The same, until it runs."""
        sessions = await self.join(name, hosts)
        for session in sessions:
            session.hear(Up())
        return sessions

    async def lose(self, name: str, *, forget: bool = False) -> None:
        """A switch goes away; with `forget` it has lost its entries when it is back."""
        self.switches[name].connected = False
        self.registry.manager.on_switch_change(name)
        await self.registry.drain()
        if forget:
            self.switches[name].entries.clear()

    async def find(self, name: str) -> None:
        """It is back, as its own connection makes it: guards and base entries first."""
        switch = self.switches[name]
        switch.connected = True
        if not switch.entries:
            switch.restart()
        self.registry.manager.on_switch_change(name)
        await self.registry.drain()

    def uses(self, leaf: str) -> set[str]:
        """The spines that a leaf's partial sums go to, by its entries."""
        ports = {params["port"] for params in self._params(leaf, UPLINK)}
        return {link.spine for link in self.registry.links.graph.uplinks(leaf) if link.leaf_port in ports}

    def routes_over(self, leaf: str) -> set[str]:
        """The spines that a leaf's routes to other racks go over."""
        ports = {params["port"] for params in self._params(leaf, ECMP_MEMBER)}
        return {link.spine for link in self.registry.links.graph.uplinks(leaf) if link.leaf_port in ports}

    def _params(self, name: str, table: str) -> list[dict[str, int]]:
        entries = self.switches[name].entries.values()
        return [dict(e.params) for e in entries if isinstance(e, TableEntry) and e.table == table]

    def of_jobs(self, name: str) -> set[Entry]:
        """What a switch holds beside its base entries."""
        return set(self.switches[name].of_jobs.values())

    def used(self) -> dict[str, int]:
        """Slots taken, of the switches that have any taken."""
        switches = self.registry.switches.items()
        return {name: switch.allocator.used for name, switch in switches if switch.allocator.used}

    def is_as_wanted(self) -> bool:
        """Whether each switch holds exactly what it shall."""
        return all(
            set(self.switches[name].entries.values())
            == set(self.registry.manager.rerouting.wanted_entries(name))
            for name in self.switches
        )


def heard(session: Session) -> list[FromController | None]:
    """What a session was told since the last call, without what comes again and again."""
    return [event for event in told.heard(session) if not isinstance(event, Moved)]
