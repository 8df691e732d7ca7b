"""A switch that fills itself has the guards of known jobs before routes, whatever it was found like."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import IPv4Address

import pytest

from controller.config import Config, HostConfig, SwitchConfig
from controller.entries import Entry, Group, Key, TableEntry, key_of
from controller.fabric.flows import removal_order
from controller.fabric.routes import rack_entries
from controller.fabric.tables.forward import ROUTE
from controller.switches.p4rt import P4RuntimeClient, Pipeline, Role
from controller.switches.pipeline import Program, push_to, shipped_program
from controller.switches.switch import Switch
from controller.switches.updates import Update, UpdateKind
from tests.controller.running_switch import job

CONFIG = SwitchConfig(name="s1", device_id=1, address="127.0.0.1:1")
HOSTS = [
    HostConfig(
        name=f"h{n}", ip=IPv4Address(f"10.0.0.{n}"), mac=f"02:00:00:00:00:{n:02x}", switch="s1", port=n
    )
    for n in range(1, 5)
]
BASE = rack_entries(CONFIG, HOSTS)
GUARDS = removal_order(job())[1]


class MemoryClient(P4RuntimeClient):
    """The switch behind it is a dictionary; `exposed`: there was a route while a guard was missing."""

    def __init__(self, entries: Sequence[Entry] = (), *, program: Program | None = None) -> None:
        schema = shipped_program().schema
        super().__init__(CONFIG.address, device_id=1, schema=schema)
        self.entries: dict[Key, Entry] = {key_of(entry): entry for entry in entries}
        self.exposed = False
        self._p4info = schema.p4info.SerializeToString(deterministic=True)
        self._pipeline: Pipeline | None = None
        if program is not None:
            self._pipeline = Pipeline(self._p4info, program.device_config, program.cookie)

    async def open(self, election_id: int) -> Role:
        return Role(primary=True, election_id=election_id, vacant=False)

    async def close(self) -> None:
        pass

    async def pipeline(self) -> Pipeline | None:
        return self._pipeline

    async def set_pipeline(self, device_config: bytes, *, cookie: int) -> None:
        self.entries.clear()
        self._pipeline = Pipeline(self._p4info, device_config, cookie)

    async def write(self, updates: Sequence[Update]) -> None:
        for update in updates:
            if update.kind is UpdateKind.DELETE:
                del self.entries[key_of(update.entry)]
            else:
                assert (key_of(update.entry) in self.entries) is (update.kind is UpdateKind.MODIFY)
                self.entries[key_of(update.entry)] = update.entry
            there = self.entries.values()
            routed = any(isinstance(entry, TableEntry) and entry.table == ROUTE for entry in there)
            self.exposed |= routed and not set(GUARDS) <= set(there)

    async def read_entries(self) -> set[Entry]:
        return set(self.entries.values())

    async def read_groups(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if isinstance(entry, Group)]


def switch() -> Switch:
    made = Switch(CONFIG, BASE, on_change=lambda switch: None)
    made.guards = lambda: GUARDS
    return made


@pytest.mark.parametrize(
    "client",
    [
        MemoryClient(),
        MemoryClient(program=shipped_program()),
        MemoryClient([*BASE, *job()], program=Program(b"{}", shipped_program().schema, "0" * 64, 1)),
    ],
    ids=["empty", "loaded", "another program"],
)
def test_a_switch_that_comes_back_has_guards_before_routes(client: MemoryClient) -> None:
    asyncio.run(switch()._prepare(client))
    assert not client.exposed
    assert set(client.entries.values()) == {*BASE, *GUARDS}


def test_a_push_brings_guards_back_before_routes() -> None:
    client = MemoryClient([*BASE, *job()], program=shipped_program())
    asyncio.run(switch()._fill(client))
    assert not client.exposed
    assert set(client.entries.values()) == {*BASE, *GUARDS}


def test_guards_that_were_lost_alone_come_back_too() -> None:
    client = MemoryClient(BASE, program=shipped_program())
    asyncio.run(switch()._prepare(client))
    assert set(client.entries.values()) == {*BASE, *GUARDS}


def test_a_push_from_elsewhere_keeps_the_guards_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    client = MemoryClient([*BASE, *job()], program=shipped_program())
    monkeypatch.setattr("controller.switches.pipeline.P4RuntimeClient", lambda *_, **__: client)
    config = Config(switches=(CONFIG,), hosts=tuple(HOSTS))
    result = asyncio.run(push_to(CONFIG.address, config=config, force=True))
    assert not client.exposed
    assert set(client.entries.values()) == {*BASE, *GUARDS}
    assert result.entries == len(BASE) + len(GUARDS)
