"""Routes and trees kept on what works: when a spine or a link comes or goes, entries are modified.

Nothing else is needed: a leaf's partial sum is final once it is there, and spines take each leaf's once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.api.errors import ControllerError
from controller.config import Config
from controller.entries import Entry, Key, TableEntry, key_of
from controller.fabric import ManagedSwitch
from controller.flows import UPLINK, removal_order
from controller.graph import LinkState
from controller.links import LinkWatch
from controller.marks import mark_of
from controller.places import Places
from controller.routes import ECMP_MEMBER, base_entries
from controller.running import Running
from controller.store import Place
from controller.trees import chosen, generation_of, moved, spines_in_use
from controller.updates import SwitchError, Update, UpdateKind, WriteError

logger = logging.getLogger(__name__)

_RETRY_S = 2.0


class Upkeep:
    """`extra`: entries by switch that an operator wants beside ours; they win over base entries."""

    def __init__(
        self,
        config: Config,
        switches: Mapping[str, ManagedSwitch],
        places: Places,
        links: LinkWatch,
        *,
        clock: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.extra: dict[str, tuple[Entry, ...]] = {}
        self._config = config
        self._switches = switches
        self._places = places
        self._links = links
        self._spawn = spawn
        self._base: dict[str, tuple[LinkState, list[Entry]]] = {}  # made last
        self._stuck: set[Running] = set()  # without any spine, which has been said
        self._without: set[tuple[Running, str]] = set()  # without this one for want of room, likewise
        self._again = False
        self._working = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._retry_at = 0.0
        self._clock = clock

    # What switches shall hold

    def base(self, name: str) -> list[Entry]:
        """Base entries and extra ones, as things are."""
        return list(self._beside_jobs(name, self._links.state, self.extra.get(name, ())).values())

    def wanted_entries(
        self, name: str, *, drained: frozenset[str] | None = None, extra: Sequence[Entry] | None = None
    ) -> list[Entry]:
        """All that a switch shall hold; with something else drained, or extra, than is in force."""
        state = self._links.state if drained is None else self._links.state.draining(drained)
        wanted = self._beside_jobs(name, state, self.extra.get(name, ()) if extra is None else extra)
        written = self._switches[name].switch.written
        for running in sorted(self._places.on(name), key=lambda running: running.job.live):
            place = running.places[name]
            if running.job.live:
                entries = self._moved(running, place, state)
            else:
                rest, guards = removal_order(place.entries)
                going = () if name in running.flows_removed else rest
                keys = [key_of(entry) for entry in going]  # a tree may have moved when the job ended
                entries = (*(written[key] for key in keys if key in written), *guards)
            wanted.update((key_of(entry), entry) for entry in entries)
        for orphan in self._places.orphans[name]:
            guards = removal_order(orphan.place.entries)[1]
            left = guards if orphan.lost else orphan.place.entries
            wanted.update((key_of(entry), entry) for entry in left)
        return list(wanted.values())

    def _beside_jobs(self, name: str, state: LinkState, extra: Sequence[Entry]) -> dict[Key, Entry]:
        if name not in self._base or self._base[name][0] != state:
            self._base[name] = (state, base_entries(self._config, self._config.switch(name), state))
        mark = self._switches[name].mark
        marks = [mark_of(mark)] if mark else []
        return {key_of(entry): entry for entry in (*self._base[name][1], *extra, *marks)}

    def _moved(self, running: Running, place: Place, state: LinkState) -> tuple[Entry, ...]:
        if place.role == "spine":
            return place.entries
        spines = self._spines(running, state)
        return moved(self._links.graph, place.switch, place.region, place.entries, spines)

    def _spines(self, running: Running, state: LinkState) -> tuple[str, ...]:
        """The spines that a job shall use."""
        if len(running.leaves) < 2:
            return ()
        graph = self._links.graph
        usable = [s for s in graph.common_spines(running.leaves, state) if s in running.places]
        generation = generation_of(running.places[running.leaves[0]].entries)
        return chosen(self._config.spread, graph, usable, generation)

    # When something has changed

    def changed(self) -> None:
        """Links, spines or what is drained: look at everything again."""
        self._again = True
        if not self._working:
            self._working = True
            self._quiet.clear()
            self._spawn(self._work())

    def room(self) -> None:
        """Slots became free: a job that does without a spine for want of them may get some now."""
        if self._without:
            self.changed()

    def placed(self, running: Running) -> None:
        """A job has been given its places; a spine may have come meanwhile."""
        if self._lacks(running):
            self.changed()

    def retry(self) -> None:
        """Time has passed: what could not be written is tried again."""
        if self._again and self._clock() >= self._retry_at:
            self.changed()

    async def _work(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._extend()
                self.decide()
                if not await self._write():
                    self._again, self._retry_at = True, self._clock() + _RETRY_S
                    break
        finally:
            self._working = False
            self._quiet.set()

    async def quiet(self, timeout_s: float) -> None:
        """Wait until nothing is being moved, but not for longer than that."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), timeout_s)

    def decide(self) -> None:
        """Which spines jobs use from now on; the switches are not written."""
        self._stuck &= set(self._places.holding)
        changed: list[tuple[int, Place]] = []
        for running in self._places.holding:
            if running.job.live and len(running.leaves) > 1:
                changed += self._decide(running)
        if not changed:
            return
        store = self._places.store
        try:
            store.save_places(changed)
        except sqlite3.Error as error:  # only after a restart they would be written as they were
            logger.error("%s: what jobs have on leaves is not saved: %s", store.path, error)

    def _decide(self, running: Running) -> list[tuple[int, Place]]:
        """The places of a job that have changed."""
        state, name = self._links.state, running.job.spec.name
        spines = self._spines(running, state)
        if not spines:
            if running not in self._stuck:
                what, why = self._why_stuck(running, state)
                logger.warning("job %s %s: %s", name, what, why)
            self._stuck.add(running)
            return []
        self._stuck.discard(running)
        changed: list[tuple[int, Place]] = []
        before: set[str] = set()
        for leaf in running.leaves:
            place = running.places[leaf]
            entries = self._moved(running, place, state)
            if set(entries) == set(place.entries):
                continue
            before.update(spines_in_use(self._links.graph, leaf, place.entries))
            place = running.places[leaf] = replace(place, entries=entries)
            if running.generation is not None:  # else it is being set up, and saved when that is done
                changed.append((running.generation, place))
        if before:
            was = ", ".join(spine for spine in self._links.graph.spines if spine in before)
            logger.info("job %s: leaves' sums go to %s now, they went to %s", name, ", ".join(spines), was)
        return changed

    def _why_stuck(self, running: Running, state: LinkState) -> tuple[str, str]:
        """What a job without a spine to go to does, and why."""
        graph, leaf = self._links.graph, running.leaves[0]
        used = spines_in_use(graph, leaf, running.places[leaf].entries)
        others = graph.common_spines(running.leaves, state)
        why = f"no place on {', '.join(others)}" if others else graph.why_apart(running.leaves, state)
        works = set(used) <= set(graph.common_spines(running.leaves, state.draining(())))
        return (f"stays on {', '.join(used)}" if works else "waits"), why

    async def _extend(self) -> None:
        """Spines that were not there when a job was set up can take a part now, if they have room."""
        self._without = {(running, spine) for running, spine in self._without if running.job.live}
        for running in list(self._places.holding):
            for spine in self._lacks(running):
                try:
                    await self._places.extend(running, spine)
                    self._without.discard((running, spine))
                except (ControllerError, sqlite3.Error) as error:
                    if (running, spine) not in self._without:
                        logger.info("job %s does without spine %s: %s", running.job.spec.name, spine, error)
                    self._without.add((running, spine))

    def _lacks(self, running: Running) -> list[str]:
        """The spines that could add up for a job, but that it has no place on."""
        if not running.job.live or running.installing or len(running.leaves) < 2:
            return []
        usable = self._links.graph.common_spines(running.leaves, self._links.state)
        return [spine for spine in usable if spine not in running.places and self._switches[spine].ready]

    async def _write(self) -> bool:
        """Modify what is not as it shall be; whether that went well on all switches that are there."""
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
        for place, live in self._places.held(switch.name):
            wanted += place.entries if live else ()
        return [
            Update(UpdateKind.MODIFY, entry)
            for entry in wanted
            if _table(entry) in (ECMP_MEMBER, UPLINK) and written.get(key_of(entry), entry) != entry
        ]


def _table(entry: Entry) -> str:
    return entry.table if isinstance(entry, TableEntry) else ""
