"""Rerouting: moves routes and trees to links and spines that work, when one of them comes or goes.

It modifies entries. No more is needed: a leaf's partial sum never changes once it is complete, and a spine
counts it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.api.errors import ControllerError
from controller.config import Config
from controller.entries import Entry, Key, TableEntry, key_of
from controller.fabric.flows import removal_order
from controller.fabric.graph import LinkState
from controller.fabric.marks import mark_of
from controller.fabric.routes import base_entries
from controller.fabric.tables.forward import ECMP_MEMBER
from controller.fabric.tables.tree import generation_of
from controller.fabric.tables.up import UPLINK
from controller.fabric.trees import chosen, moved, spines_in_use
from controller.orchestration.allocations import Allocations
from controller.orchestration.engine import Engine
from controller.orchestration.record import Record
from controller.slots.allocation import Allocation
from controller.switches.links import LinkWatch
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.updates import SwitchError, Update, UpdateKind, WriteError

logger = logging.getLogger(__name__)

_RETRY_S = 2.0


class Rerouting:
    """Routes over usable links. `extra`: an operator's entries by switch; they win over base entries."""

    def __init__(
        self,
        config: Config,
        switches: Mapping[str, ManagedSwitch],
        allocations: Allocations,
        links: LinkWatch,
        engine: Engine,
    ) -> None:
        self.extra: dict[str, tuple[Entry, ...]] = {}
        self._config = config
        self._switches = switches
        self._allocations = allocations
        self._links = links
        self._engine = engine
        self._base: dict[str, tuple[LinkState, list[Entry]]] = {}  # made last
        self._again = False
        self._working = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._retry_at = 0.0

    # What switches shall hold

    def base(self, name: str) -> list[Entry]:
        """Return base entries, for the present state of links, and extra ones."""
        return list(self._beside_jobs(name, self._links.state, self.extra.get(name, ())).values())

    def wanted_entries(
        self, name: str, *, drained: frozenset[str] | None = None, extra: Sequence[Entry] | None = None
    ) -> list[Entry]:
        """Return all that a switch shall hold; optionally with another drain, or other extra entries."""
        state = self._links.state if drained is None else self._links.state.draining(drained)
        wanted = self._beside_jobs(name, state, self.extra.get(name, ()) if extra is None else extra)
        written = self._switches[name].switch.written
        for record in sorted(self._allocations.on(name), key=lambda record: record.job.live):
            allocation = record.allocations[name]
            if record.job.live:
                entries = self._moved(record, allocation, state)
            else:
                rest, guards = removal_order(allocation.entries)
                going = () if name in record.flows_removed else rest
                keys = [key_of(entry) for entry in going]  # a tree may have moved when the job ended
                entries = (*(written[key] for key in keys if key in written), *guards)
            wanted.update((key_of(entry), entry) for entry in entries)
        for orphan in self._allocations.orphans[name]:
            guards = removal_order(orphan.allocation.entries)[1]
            left = guards if orphan.lost else orphan.allocation.entries
            wanted.update((key_of(entry), entry) for entry in left)
        return list(wanted.values())

    def _beside_jobs(self, name: str, state: LinkState, extra: Sequence[Entry]) -> dict[Key, Entry]:
        if name not in self._base or self._base[name][0] != state:
            self._base[name] = (state, base_entries(self._config, self._config.switch(name), state))
        mark = self._switches[name].mark
        marks = [mark_of(mark)] if mark else []
        return {key_of(entry): entry for entry in (*self._base[name][1], *extra, *marks)}

    def _moved(self, record: Record, allocation: Allocation, state: LinkState) -> tuple[Entry, ...]:
        if allocation.role == "spine":
            return allocation.entries
        spines = self._spines(record, state)
        return moved(self._links.graph, allocation.switch, allocation.region, allocation.entries, spines)

    def _spines(self, record: Record, state: LinkState) -> tuple[str, ...]:
        """Return the spines that a job shall use."""
        if len(record.leaves) < 2:
            return ()
        graph = self._links.graph
        usable = [s for s in graph.common_spines(record.leaves, state) if s in record.allocations]
        generation = generation_of(record.allocations[record.leaves[0]].entries)
        return chosen(self._config.spread, graph, usable, generation)

    # When something has changed

    def changed(self) -> None:
        """Look at everything again, as links, spines or drains have changed."""
        self._again = True
        if not self._working:
            self._working = True
            self._quiet.clear()
            self._engine.spawn(self._work())

    def room(self) -> None:
        """Let jobs that lack a spine for want of slots try again, as slots became free."""
        if any(record.without and record.job.live for record in self._allocations.holding):
            self.changed()

    def allocated(self, record: Record) -> None:
        """Look for spines that a job lacks after it got its allocations; one may have come meanwhile."""
        if self._lacks(record):
            self.changed()

    def retry(self) -> None:
        """Try again what could not be written, if it is time."""
        if self._again and self._engine.clock() >= self._retry_at:
            self.changed()

    async def _work(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._extend()
                self.decide()
                if not await self._write():
                    self._again, self._retry_at = True, self._engine.clock() + _RETRY_S
                    break
        finally:
            self._working = False
            self._quiet.set()

    async def quiet(self, timeout_s: float) -> None:
        """Wait until nothing is being moved, but not for longer than that."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), timeout_s)

    def decide(self) -> None:
        """Decide which spines jobs use from now on, without writing the switches."""
        changed: list[tuple[int, Allocation]] = []
        for record in self._allocations.holding:
            if record.job.live and len(record.leaves) > 1:
                changed += self._decide(record)
        if not changed:
            return
        store = self._allocations.store
        try:
            store.save_allocations(changed)
        except sqlite3.Error as error:  # only after a restart they would be written as they were
            logger.error("%s: what jobs have on leaves is not saved: %s", store.path, error)

    def _decide(self, record: Record) -> list[tuple[int, Allocation]]:
        """Decide for one job; return its allocations that have changed."""
        state, name = self._links.state, record.job.spec.name
        spines = self._spines(record, state)
        if not spines:
            if not record.stuck:
                what, why = self._why_stuck(record, state)
                logger.warning("job %s %s: %s", name, what, why)
            record.stuck = True
            return []
        record.stuck = False
        changed: list[tuple[int, Allocation]] = []
        before: set[str] = set()
        for leaf in record.leaves:
            allocation = record.allocations[leaf]
            entries = self._moved(record, allocation, state)
            if set(entries) == set(allocation.entries):
                continue
            before.update(spines_in_use(self._links.graph, leaf, allocation.entries))
            allocation = record.allocations[leaf] = replace(allocation, entries=entries)
            if record.generation is not None:  # else it is being set up, and saved when that is done
                changed.append((record.generation, allocation))
        if before:
            was = ", ".join(spine for spine in self._links.graph.spines if spine in before)
            logger.info("job %s: leaves' sums go to %s now, they went to %s", name, ", ".join(spines), was)
        return changed

    def _why_stuck(self, record: Record, state: LinkState) -> tuple[str, str]:
        """Say what a job without a usable spine does, and why."""
        graph, leaf = self._links.graph, record.leaves[0]
        used = spines_in_use(graph, leaf, record.allocations[leaf].entries)
        others = graph.common_spines(record.leaves, state)
        why = f"no place on {', '.join(others)}" if others else graph.why_apart(record.leaves, state)
        works = set(used) <= set(graph.common_spines(record.leaves, state.draining(())))
        return (f"stays on {', '.join(used)}" if works else "waits"), why

    async def _extend(self) -> None:
        """Give jobs slots on spines that were not there when they were set up, if there is room."""
        for record in list(self._allocations.holding):
            for spine in self._lacks(record):
                try:
                    await self._allocations.extend(record, spine)
                    record.without.discard(spine)
                except (ControllerError, sqlite3.Error) as error:
                    if spine not in record.without:
                        logger.info("job %s does without spine %s: %s", record.job.spec.name, spine, error)
                    record.without.add(spine)

    def _lacks(self, record: Record) -> list[str]:
        """Return the spines that could add up for a job, but that it has no allocation on."""
        if not record.job.live or record.installing or len(record.leaves) < 2:
            return []
        usable = self._links.graph.common_spines(record.leaves, self._links.state)
        return [spine for spine in usable if spine not in record.allocations and self._switches[spine].ready]

    async def _write(self) -> bool:
        """Modify entries that are out of date; tell whether that went well on all switches that are there."""
        return all(await asyncio.gather(*(self._write_to(switch) for switch in self._switches.values())))

    async def _write_to(self, switch: ManagedSwitch) -> bool:
        async with switch.lock:
            if not switch.ready:
                return True  # it is given all of it when it is back
            updates = self._overdue(switch)
            if not updates:
                return True
            try:
                failures = await switch.switch.write_batch(updates)
                if failures:
                    raise WriteError(f"switch {switch.name}", failures, updates=len(updates))
            except SwitchError as error:
                logger.warning("switch %s: traffic is not moved yet: %s", switch.name, error)
                return False
        routes = sum(_table(update.entry) == ECMP_MEMBER for update in updates)
        logger.info(
            "switch %s: %d routing and %d tree entries moved", switch.name, routes, len(updates) - routes
        )
        return True

    def _overdue(self, switch: ManagedSwitch) -> list[Update]:
        written = switch.switch.written
        wanted = [*self.base(switch.name)]
        for allocation, live in self._allocations.held(switch.name):
            wanted += allocation.entries if live else ()
        return [
            Update(UpdateKind.MODIFY, entry)
            for entry in wanted
            if _table(entry) in (ECMP_MEMBER, UPLINK) and written.get(key_of(entry), entry) != entry
        ]


def _table(entry: Entry) -> str:
    return entry.table if isinstance(entry, TableEntry) else ""
