"""A switch in memory, as the jobs see it: entries in a dictionary, counters that are all zero.

Like `controller.switch.Switch`, it fills itself again after a restart or a push: guards, then base entries.
Every write is in `log`, in order, so that tests can ask what was there when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import grpc

from controller.config import SwitchConfig
from controller.difference import deleting_stages, flatten, writing_stages
from controller.entries import Entry, Key, TableEntry, key_of
from controller.flows import COUNTERS
from controller.queries import SlotContent
from controller.routes import ROUTE
from controller.switch import PORT_COUNTERS, CounterCell
from controller.updates import Failure, SwitchUnreachableError, Update, UpdateKind


class FakeSwitch:
    """`fails`: what the next `install` raises; `refuses`: entries that no batch may write.

    `log`: every change in order, the entry and whether it was written (or deleted); `batches`: what came in
    one request; `frames`: what was sent, by port. A restart forgets the entries.
    """

    def __init__(self, config: SwitchConfig, base: Sequence[Entry] = ()) -> None:
        self.config = config
        self.guards: Callable[[], Sequence[Entry]] = tuple
        self.base: Callable[[], Sequence[Entry]] = lambda: base
        self.on_found: Callable[[Iterable[Entry]], None] = lambda found: None
        self.on_echo: Callable[[int], None] | None = None
        self.entries: dict[Key, Entry] = {}
        self.log: list[tuple[Entry, bool]] = []
        self.connected = True
        self.fails: Exception | None = None
        self.refuses: set[Entry] = set()
        self.batches: list[list[Update]] = []
        self.frames: list[tuple[int, bytes]] = []
        self.pushes = 0
        self.slot_content: dict[int, SlotContent] = {}
        self._write(self.base())

    @property
    def state(self) -> str:
        return "connected" if self.connected else "unreachable: it was unplugged"

    @property
    def program_sha256(self) -> str:
        return "00"

    @property
    def of_jobs(self) -> dict[Key, Entry]:
        """The entries that are no base entries."""
        return {key: entry for key, entry in self.entries.items() if entry not in self.base()}

    def restart(self) -> None:
        """Everything is lost; what fills it again is what a connection does first."""
        self._delete(list(self.entries.values()))
        self._write(chain(self.guards(), self.base()))

    def connect(self) -> None:
        """A new controller has come: what its connection writes first, beside what is there."""
        self.on_found(self.entries.values())
        self._write(entry for entry in (*self.guards(), *self.base()) if key_of(entry) not in self.entries)

    def routed_without(self, guards: Iterable[Entry], *, since: int) -> bool:
        """Whether, after so many changes, there ever was a route while one of the guards was not."""
        guards, there = set(guards), set[Entry]()
        for number, (entry, written) in enumerate(self.log, 1):
            (there.add if written else there.discard)(entry)
            routes = any(isinstance(e, TableEntry) and e.table == ROUTE for e in there)
            if number > since and routes and not guards <= there:
                return True
        return False

    def _write(self, entries: Iterable[Entry]) -> None:
        for entry in flatten(writing_stages(entries)):
            self.entries[key_of(entry)] = entry
            self.log.append((entry, True))

    def _delete(self, entries: Iterable[Entry]) -> None:
        for entry in flatten(deleting_stages(entries)):
            if self.entries.pop(key_of(entry), None) is not None:
                self.log.append((entry, False))

    def _require(self) -> None:
        if not self.connected:
            raise SwitchUnreachableError(f"switch {self.config.name}: {self.state}")

    async def adopt(self, wanted: Sequence[Entry]) -> None:
        self._require()
        self.on_found(self.entries.values())
        before, after = set(self.entries.values()), {*self.base(), *wanted}
        self._delete(before - after)
        self._write(after - before)

    async def install(self, entries: Sequence[Entry]) -> None:
        self._require()
        if self.fails is not None:
            fails, self.fails = self.fails, None
            raise fails
        for entry in entries:
            assert key_of(entry) not in self.entries, f"{entry} is there already"
        self._write(entries)

    async def remove(self, entries: Sequence[Entry]) -> None:
        self._require()
        self._delete(entry for entry in entries if entry not in self.base())

    async def read_entries(self) -> set[Entry]:
        self._require()
        return set(self.entries.values())

    @property
    def written(self) -> dict[Key, Entry]:
        return dict(self.entries)

    async def runs_our_program(self) -> bool:
        self._require()
        return True

    async def write_batch(self, updates: Sequence[Update]) -> list[Failure]:
        self._require()
        self.batches.append(list(updates))
        failures = []
        for update in updates:
            entry = update.entry
            there = key_of(entry) in self.entries
            if entry in self.refuses or there is (update.kind is UpdateKind.INSERT):
                failures.append(Failure(update, grpc.StatusCode.INVALID_ARGUMENT, "refused"))
            elif update.kind is UpdateKind.DELETE:
                self._delete([entry])
            else:
                self._write([entry])
        return failures

    async def send_frame(self, port: int, frame: bytes) -> None:
        self._require()
        self.frames.append((port, frame))

    async def flow_counters(self, first: int, count: int) -> dict[str, list[CounterCell]]:
        self._require()
        return {name: [CounterCell(first + i, 0) for i in range(count)] for name in COUNTERS}

    async def port_counters(self, ports: Iterable[int]) -> dict[str, dict[int, CounterCell]]:
        self._require()
        return {name: {1: CounterCell(3, 300)} for name in PORT_COUNTERS}

    async def reset_flow_counters(self, first: int, count: int) -> None:
        self._require()

    async def slots(self, first: int, count: int, *, step: int = 1) -> list[SlotContent]:
        self._require()
        wanted = range(first, first + count, step)
        return [self.slot_content.get(i, SlotContent(i, 0, 0, 0, 0, 0)) for i in wanted]

    async def push(self) -> None:
        self._require()
        self.pushes += 1
        self.restart()
