"""A switch in memory, as the jobs see it: entries in a dictionary, counters that are all zero."""

from __future__ import annotations

from collections.abc import Sequence

from controller.config import SwitchConfig
from controller.entries import Entry, Key, key_of
from controller.flows import COUNTERS
from controller.queries import SlotContent
from controller.switch import AdoptReport, CounterCell, SwitchError, SwitchUnreachableError


class FakeSwitch:
    """`fails`: what the next `install` raises. A restart forgets the entries."""

    def __init__(self, config: SwitchConfig) -> None:
        self.config = config
        self.entries: dict[Key, Entry] = {}
        self.connected = True
        self.fails: SwitchError | None = None
        self.pushes = 0
        self.slot_content: dict[int, SlotContent] = {}

    @property
    def state(self) -> str:
        return "connected" if self.connected else "unreachable: it was unplugged"

    @property
    def program_sha256(self) -> str:
        return "00"

    def restart(self) -> None:
        self.entries.clear()

    def _require(self) -> None:
        if not self.connected:
            raise SwitchUnreachableError(f"switch {self.config.name}: {self.state}")

    async def adopt(self, wanted: Sequence[Entry]) -> AdoptReport:
        self._require()
        before = set(self.entries.values())
        self.entries = {key_of(entry): entry for entry in wanted}
        return AdoptReport(
            kept=tuple(before & set(wanted)),
            written=tuple(set(wanted) - before),
            changed=(),
            deleted=tuple(before - set(wanted)),
        )

    async def install(self, entries: Sequence[Entry]) -> None:
        self._require()
        if self.fails is not None:
            fails, self.fails = self.fails, None
            raise fails
        for entry in entries:
            assert key_of(entry) not in self.entries, f"{entry} is there already"
            self.entries[key_of(entry)] = entry

    async def remove(self, entries: Sequence[Entry]) -> None:
        self._require()
        for entry in entries:
            self.entries.pop(key_of(entry), None)

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
        self.entries.clear()
