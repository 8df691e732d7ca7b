"""A switch in memory, as the jobs see it: entries in a dictionary, counters that are all zero.

Like a real one, it fills itself again after a restart or a push: guards, then base entries.
Every write is in `log`, in order, so that tests can ask what was there when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import grpc

from controller.config import SwitchConfig
from controller.entries import Entry, Key, key_of
from controller.fabric.flows import COUNTERS
from controller.fabric.tables.forward import ROUTE
from controller.switches.difference import deleting_stages, flatten, writing_stages
from controller.switches.queries import SlotContent
from controller.switches.switch import PORT_COUNTERS, CounterCell, Switch
from controller.switches.updates import Failure, SwitchUnreachableError, Update, UpdateKind


class FakeSwitch(Switch):
    """`fails`: what the next `install` raises; `refuses`: entries that no batch may write.

    `log`: every change in order, the entry and whether it was written (or deleted); `batches`: what came in
    one request; `frames`: what was sent, by port. A restart forgets the entries.
    """

    connected = True
    has_rival = is_outranked = False

    def __init__(self, config: SwitchConfig, base: Sequence[Entry] = ()) -> None:
        super().__init__(config, base, on_change=lambda switch: None)
        self.entries: dict[Key, Entry] = {}
        self.log: list[tuple[Entry, bool]] = []
        self.fails: Exception | None = None
        self.refuses: set[Entry] = set()
        self.batches: list[list[Update]] = []
        self.frames: list[tuple[int, bytes]] = []
        self.pushes = 0
        self.slot_content: dict[int, SlotContent] = {}
        self._write(self.base())

    @property
    def state(self) -> str:
        if self.has_rival:
            return "another controller is primary: it has our election id"
        return "connected" if self.connected else "unreachable: it was unplugged"

    @property
    def of_jobs(self) -> dict[Key, Entry]:
        """The entries that are no base entries."""
        return {key: entry for key, entry in self.entries.items() if entry not in self.base()}

    def forget(self) -> None:
        """Lose all entries."""
        self._erase(list(self.entries.values()))

    def restart(self) -> None:
        """Lose all entries, and write what a connection writes first."""
        self.forget()
        self._write(chain(self.guards(), self.base()))

    def connect(self) -> None:
        """Connect a new controller: it finds the entries, and adds what its connection writes first."""
        self.on_found(self.entries.values())
        self._write(entry for entry in (*self.guards(), *self.base()) if key_of(entry) not in self.entries)

    def routed_without(self, guards: Iterable[Entry], *, since: int) -> bool:
        """Tell whether, after change `since`, there ever was a route while one of the guards was missing."""
        guards, there = set(guards), set[Entry]()
        for number, (entry, written) in enumerate(self.log, 1):
            (there.add if written else there.discard)(entry)
            routes = any(entry.table == ROUTE for entry in there)
            if number > since and routes and not guards <= there:
                return True
        return False

    def _write(self, entries: Iterable[Entry]) -> None:
        for entry in flatten(writing_stages(entries)):
            self.entries[key_of(entry)] = entry
            self.log.append((entry, True))

    def _erase(self, entries: Iterable[Entry]) -> None:
        for entry in flatten(deleting_stages(entries)):
            if self.entries.pop(key_of(entry), None) is not None:
                self.log.append((entry, False))

    def _check(self) -> None:
        if not self.connected:
            raise SwitchUnreachableError(f"switch {self.config.name}: {self.state}")

    async def adopt(self, wanted: Sequence[Entry]) -> None:
        self._check()
        self.on_found(self.entries.values())
        before, after = set(self.entries.values()), {*self.base(), *wanted}
        self._erase(before - after)
        self._write(after - before)

    async def install(self, entries: Sequence[Entry]) -> None:
        self._check()
        if self.fails is not None:
            fails, self.fails = self.fails, None
            raise fails
        for entry in entries:
            assert key_of(entry) not in self.entries, f"{entry} is there already"
        self._write(entries)

    async def remove(self, entries: Iterable[Entry]) -> None:
        self._check()
        self._erase(entry for entry in entries if entry not in self.base())

    async def read_entries(self) -> set[Entry]:
        self._check()
        return set(self.entries.values())

    @property
    def written(self) -> dict[Key, Entry]:
        return dict(self.entries)

    async def runs_our_program(self) -> bool:
        self._check()
        return True

    async def _came(self) -> None:
        """Intercept a batch that has come and is not written yet."""

    async def write_batch(self, updates: Sequence[Update]) -> list[Failure]:
        self._check()
        self.batches.append(list(updates))
        await self._came()
        failures = []
        for update in updates:
            entry = update.entry
            there = key_of(entry) in self.entries
            if entry in self.refuses:
                failures.append(Failure(update, grpc.StatusCode.RESOURCE_EXHAUSTED, "the table is full"))
            elif there is (update.kind is UpdateKind.INSERT):
                failures.append(Failure(update, grpc.StatusCode.INVALID_ARGUMENT, "refused"))
            elif update.kind is UpdateKind.DELETE:
                self._erase([entry])
            else:
                self._write([entry])
        return failures

    async def send_frame(self, port: int, frame: bytes) -> None:
        self._check()
        self.frames.append((port, frame))

    async def flow_counters(self, first: int, count: int) -> dict[str, list[CounterCell]]:
        self._check()
        return {name: [CounterCell(first + i, 0) for i in range(count)] for name in COUNTERS}

    async def port_counters(self, ports: Iterable[int] = ()) -> dict[str, dict[int, CounterCell]]:
        self._check()
        return {name: {1: CounterCell(3, 300)} for name in PORT_COUNTERS}

    async def reset_flow_counters(self, first: int, count: int) -> None:
        self._check()

    async def slots(self, first: int, count: int, *, step: int = 1) -> list[SlotContent]:
        self._check()
        wanted = range(first, first + count, step)
        return [self.slot_content.get(i, SlotContent(i, 0, 0, 0, 0, 0)) for i in wanted]

    async def push(self) -> None:
        self._check()
        self.pushes += 1
        self.restart()
