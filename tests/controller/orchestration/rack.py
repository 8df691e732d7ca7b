"""A controller of one rack in memory, and its workers."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest

from controller.api.messages import (
    Up,
)
from controller.config import Config, HostConfig, SwitchConfig
from controller.entries import Entry
from controller.fabric.flows import removal_order
from controller.fabric.routes import rack_entries
from controller.jobs.specs import Member
from controller.orchestration.sessions import Session
from tests.controller.bench import ControllerBench
from tests.controller.fake_switch import FakeSwitch

CONFIG = Config(
    switches=(SwitchConfig(name="s1", device_id=1, address="127.0.0.1:1"),),
    hosts=tuple(
        HostConfig(
            name=f"h{i}", ip=IPv4Address(f"10.0.0.{i}"), mac=f"02:00:00:00:00:{i:02x}", switch="s1", port=i
        )
        for i in range(1, 41)
    ),
    path_mtu=2048,
)


def member(rank: int, *, qp: int = 0x100, path_mtu_max: int = 4096) -> Member:
    host = CONFIG.hosts[rank]
    return Member(
        rank=rank,
        mac=host.mac,
        ip=host.ip,
        qpn_out=qp,
        psn_out=rank,
        qpn_in=qp + 1,
        host=host.name,
        path_mtu_max=path_mtu_max,
    )


class Bench(ControllerBench):
    """One switch."""

    STEP_S = 0.5

    def __init__(self, path: Path, config: Config = CONFIG) -> None:
        self.switch = FakeSwitch(config.switches[0], rack_entries(config.switches[0], config.hosts))
        super().__init__(path, config, [self.switch])

    async def join(self, name: str, size: int, **member_fields: int) -> list[Session]:
        self.qp += 2
        sessions = [
            self.registry.sessions.join(name, size, member(rank, qp=self.qp, **member_fields))
            for rank in range(size)
        ]
        await self.registry.drain()
        return sessions

    async def run_job(self, name: str, size: int, **member_fields: int) -> list[Session]:
        sessions = await self.join(name, size, **member_fields)
        for session in sessions:
            session.hear(Up())
        return sessions

    @property
    def used(self) -> int:
        return self.registry.switches["s1"].allocator.used

    def tables(self) -> set[str]:
        return {getattr(entry, "table", "group") for entry in self.switch.of_jobs.values()}


@pytest.fixture(name="b")
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """With another configuration where a test says so by `parametrize("b", …, indirect=True)`."""
    return Bench(tmp_path / "c.db", getattr(request, "param", CONFIG))


# How long a worker that is out of reach may send: until it misses heartbeats, and then until it gives up.
PATIENCE_S = CONFIG.resume_timeout_s + 2 * (CONFIG.heartbeat_timeout_s + CONFIG.heartbeat_interval_s)


def guards(bench: Bench, name: str) -> set[Entry]:
    return set(removal_order(bench.registry.job(name).allocations["s1"].entries)[1])


async def comes_back(b: Bench) -> None:
    """The switch restarts, and the controller notices."""
    for connected in (False, True):
        b.switch.connected = connected
        if connected:
            b.switch.restart()
        b.registry.manager.on_switch_change("s1")
    await b.registry.drain()
