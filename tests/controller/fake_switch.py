"""A switch in memory, as the jobs see it: entries in a dictionary, counters that are all zero.

Like `controller.switch.Switch`, it fills itself again after a restart or a push: guards, then base entries.
Every write is in `log`, in order, so that tests can ask what was there when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from controller.config import SwitchConfig
from controller.entries import Entry, Key, TableEntry, key_of
from controller.flows import COUNTERS
from controller.queries import SlotContent
from controller.recovery import deleting_stages, flatten, writing_stages
from controller.routes import ROUTE
from controller.switch import AdoptReport, CounterCell, SwitchUnreachableError


class FakeSwitch:
    """`fails`: what the next `install` raises. A restart forgets the entries.

    `log`: every change in order, the entry and whether it was written (or deleted).
    """

    def __init__(self, config: SwitchConfig, base: Sequence[Entry] = ()) -> None:
        self.config = config
        self.guards: Callable[[], Sequence[Entry]] = tuple
        self.base = tuple(base)
        self.entries: dict[Key, Entry] = {}
        self.log: list[tuple[Entry, bool]] = []
        self.connected = True
        self.fails: Exception | None = None
        self.pushes = 0
        self.slot_content: dict[int, SlotContent] = {}
        self._write(self.base)

    @property
    def state(self) -> str:
        return "connected" if self.connected else "unreachable: it was unplugged"

    @property
    def program_sha256(self) -> str:
        return "00"

    @property
    def of_jobs(self) -> dict[Key, Entry]:
        """The entries that are no base entries."""
        return {key: entry for key, entry in self.entries.items() if entry not in self.base}

    def restart(self) -> None:
        """Everything is lost; what fills it again is what a connection does first."""
        self._delete(list(self.entries.values()))
        self._write(chain(self.guards(), self.base))

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

    async def adopt(self, wanted: Sequence[Entry]) -> AdoptReport:
        self._require()
        before, after = set(self.entries.values()), {*self.base, *wanted}
        self._delete(before - after)
        self._write(after - before)
        return AdoptReport(
            kept=tuple(before & after),
            written=tuple(after - before),
            changed=(),
            deleted=tuple(before - after),
        )

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
        self._delete(entry for entry in entries if entry not in self.base)

    async def read_entries(self) -> set[Entry]:
        self._require()
        return set(self.entries.values())

    async def flow_counters(self, first: int, count: int) -> dict[str, list[CounterCell]]:
        self._require()
        return {name: [CounterCell(first + i, 0) for i in range(count)] for name in COUNTERS}

    async def port_counters(self) -> dict[str, dict[int, CounterCell]]:
        self._require()
        return {name: {1: CounterCell(3, 300)} for name in ("port_rx", "port_tx", "no_route")}

    async def reset_flow_counters(self, first: int, count: int) -> None:
        self._require()

    async def slots(self, first: int, count: int) -> list[SlotContent]:
        self._require()
        return [self.slot_content.get(i, SlotContent(i, 0, 0, 0, 0, 0)) for i in range(first, first + count)]

    async def push(self) -> None:
        self._require()
        self.pushes += 1
        self.restart()
