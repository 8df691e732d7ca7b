"""A simulated switch as the controller sees it: `controller.switch.Switch`, on a connection of our own.

Requests take time, and a switch that dies or cannot be reached ends the connection wherever it was: before a
write was done, or after it and before the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import grpc

from controller.config import SwitchConfig
from controller.entries import Entry, key_of
from controller.switches.p4rt import P4RuntimeClient, Role
from controller.switches.queries import OP_ECHO, OP_QUERY_SLOT
from controller.switches.switch import Switch
from controller.switches.updates import (
    ElectionIdTakenError,
    Failure,
    SwitchUnreachableError,
    Update,
    UpdateKind,
    WriteError,
)
from p4reduce.simulation.faults.node import SwitchNode

_PIPELINE = object()
_PROGRAM: Any = SimpleNamespace(
    schema=SimpleNamespace(packet_in=lambda fields: fields),
    device_config=b"",
    cookie=1,
    sha256="00",
    is_in=lambda pipeline: pipeline is _PIPELINE,
)


class Connection(AbstractAsyncContextManager["Connection"]):
    """A connection that does what `P4RuntimeClient` does, with a node of the simulation."""

    def __init__(self, node: SwitchNode, label: str, on_packet: Callable[[Any], None]) -> None:
        self.node = node
        self.label = label
        self._on_packet = on_packet
        self._boot = node.boots
        self._broken: asyncio.Future[None] | None = None
        self._loop: Any = asyncio.get_running_loop()

    async def __aexit__(self, *_: object) -> None:
        if self.node.connection is self:
            self.node.connection = None

    async def open(self, election_id: int) -> Role:
        self._boot = self.node.boots
        await self._delay()
        before = self.node.connection
        if isinstance(before, Connection) and before._loop is not self._loop and before._loop.alive:
            raise ElectionIdTakenError(f"{self.label}: another controller has our election id")
        if before is not None:  # the last controller's, which is gone
            before.cut()
        self.node.connection = self
        self.node.opened.append((self._loop, self._loop.time()))
        self._broken = asyncio.get_running_loop().create_future()
        return Role(primary=True, vacant=False, election_id=election_id)

    def cut(self) -> None:
        """End the connection; a task that waits for it is told."""
        if self.node.connection is self:
            self.node.connection = None
        self._boot = -1
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(self._gone())

    async def next_role(self) -> Role:
        assert self._broken is not None
        await asyncio.shield(self._broken)
        raise AssertionError("it ends with an error")

    async def claim(self, election_id: int) -> Role:
        return Role(primary=True, vacant=False, election_id=election_id)

    async def cookie(self) -> int | None:
        await self._delay()
        return int(_PROGRAM.cookie) if self.node.has_program else None

    async def pipeline(self) -> object | None:
        await self._delay()
        return _PIPELINE if self.node.has_program else None

    async def set_pipeline(self, device_config: bytes, *, cookie: int) -> None:
        await self._delay()
        self.node.load_program()
        await self._delay()

    async def read_entries(self) -> set[Entry]:
        await self._delay()
        return set(self.node.plane.entries.values())

    async def read_groups(self) -> list[Entry]:
        return []  # none outlive its program

    async def write(self, updates: Sequence[Update]) -> None:
        if failures := await self.write_batch(updates):
            raise WriteError(self.label, failures, updates=len(updates))

    async def write_batch(self, updates: Sequence[Update]) -> list[Failure]:
        await self._delay()
        failures = []
        insert: list[Entry] = []
        delete: list[Entry] = []
        entries = self.node.plane.entries
        for update in updates:
            there = key_of(update.entry) in entries
            if update.kind is UpdateKind.INSERT and there:
                failures.append(Failure(update, grpc.StatusCode.ALREADY_EXISTS, "it is there"))
            elif update.kind is not UpdateKind.INSERT and not there:
                failures.append(Failure(update, grpc.StatusCode.NOT_FOUND, "it is not there"))
            elif update.kind is UpdateKind.DELETE:
                delete.append(update.entry)
            else:
                insert.append(update.entry)
        self.node.write(insert, delete)
        await self._delay()
        return failures

    async def send_packet(self, payload: bytes, **metadata: int) -> None:
        await self._delay()
        if metadata["op"] == OP_QUERY_SLOT:
            self._on_packet(self.node.slot(metadata["index"]))
        else:
            self.node.send(metadata["port"], payload)

    async def read_counters(
        self, cells: Iterable[tuple[str, int | None]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        await self._delay()
        return {(name, index): (0, 0) for name, index in cells if index is not None}

    async def reset_counters(self, cells: Sequence[tuple[str, int]]) -> None:
        await self._delay()

    def echo(self, nonce: int) -> None:
        """Tell the controller that a probe came back."""
        if self._boot != self.node.boots:
            return
        packet = {"op": OP_ECHO, "index": nonce}
        if self._loop.stopped:
            self._loop.call_soon(self._on_packet, packet)
        else:
            self._on_packet(packet)

    def is_of(self, loop: object) -> bool:
        """Return whether that process has opened it."""
        return self._loop is loop

    async def _delay(self) -> None:
        self._require()
        await asyncio.sleep(self.node.request_s)
        self._require()

    def _require(self) -> None:
        if self._boot != self.node.boots or not self.node.reachable:
            raise self._gone()

    def _gone(self) -> SwitchUnreachableError:
        return SwitchUnreachableError(f"{self.label}: the connection is gone")


class SimulatedSwitch(Switch):
    """The controller's own class, on a simulated connection."""

    def __init__(
        self,
        node: SwitchNode,
        config: SwitchConfig,
        base: Sequence[Entry],
        *,
        on_change: Callable[[Switch], None],
    ) -> None:
        super().__init__(config, base, on_change=on_change, program=_PROGRAM)
        self._node = node

    def _new_client(self) -> P4RuntimeClient:
        connection: Any = Connection(self._node, self._label, self._packet_in)
        return connection  # type: ignore[no-any-return]
