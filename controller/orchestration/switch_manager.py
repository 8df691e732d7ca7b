"""All switches together: settled when they connect, written when jobs, links or the configuration change."""

from __future__ import annotations

import contextlib
import functools
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.api.errors import NotFoundError, NotPossibleError
from controller.config import Config
from controller.database.store import Store
from controller.entries import Entry
from controller.fabric.marks import mark_in
from controller.fabric.trees import Tree
from controller.jobs.specs import Member
from controller.orchestration.allocations import Allocations
from controller.orchestration.engine import Engine
from controller.orchestration.rerouting import Rerouting
from controller.orchestration.retired import STRAGGLERS_S
from controller.switches.links import LinkWatch
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.switch import Switch
from controller.switches.updates import SwitchError

logger = logging.getLogger(__name__)


class SwitchManager:
    """All switches. `on_room`: called when slots became free, or a switch or link came back.

    A writer to a switch holds its lock; those of several are taken in the order of the configuration
    (`writing`).
    """

    def __init__(
        self, config: Config, store: Store, switches: Sequence[ManagedSwitch], engine: Engine
    ) -> None:
        self.config = config
        self.store = store
        self.engine = engine
        self.switches = {switch.name: switch for switch in switches}
        self.on_room: list[Callable[[], None]] = []
        self.links = LinkWatch(
            config,
            self.switches,
            clock=engine.clock,
            on_change=self._links_changed,
            broken=store.broken() if config.links else (),
        )
        self.allocations = Allocations(config, store, self.switches, self.links, engine, on_room=self._room)
        self.rerouting = Rerouting(config, self.switches, self.allocations, self.links, engine)
        for switch in switches:
            switch.switch.guards = functools.partial(self.allocations.guards, switch.name)
            switch.switch.on_found = functools.partial(self._found, switch)
            switch.switch.base = functools.partial(self.rerouting.base, switch.name)

    def _found(self, switch: ManagedSwitch, entries: Iterable[Entry]) -> None:
        """Give out only later generations than the newest that a connected switch has had."""
        newest = mark_in(entries)
        if newest > self.store.newest_generation:
            logger.warning(
                "switch %s has had generations up to %d, the database %s only up to %d (is it from a backup, "
                "or was the clock set back?): new ones begin behind what the switch has had",
                *(switch.name, newest, self.store.path, self.store.newest_generation),
            )
            try:
                self.store.outlive(newest)
            except sqlite3.Error as error:
                raise SwitchError(f"switch {switch.name}: {self.store.explain(error)}") from error
        if newest > switch.mark:
            switch.mark = switch.repeated_to = newest

    # What an operator wants.

    def set_configuration(self, *, drained: frozenset[str], extra: Mapping[str, Sequence[Entry]]) -> None:
        """Set drains and extra entries. The caller has written the switches, and has their locks."""
        self.links.drained = drained
        self.rerouting.extra = {name: tuple(entries) for name, entries in extra.items()}
        self.rerouting.decide()
        self.links.refresh()

    def writing(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return the locks of all switches, to be held with `async with`."""
        return self.allocations.locked(self.switches)

    async def push(self, name: str, *, force: bool) -> list[ManagedSwitch]:
        """Load the program again into one switch or, for an empty name, all.

        Raise NotFoundError or NotPossibleError.
        """
        if name and name not in self.switches:
            raise NotFoundError(f"there is no switch {name!r}, known are {', '.join(self.switches)}")
        chosen = [switch for switch in self.switches.values() if name in ("", switch.name)]
        for switch in [] if force else chosen:
            jobs = sorted(
                record.job.spec.name
                for record in self.allocations.on(switch.name)
                if record.job.live and switch.name in record.leaves
            )
            if jobs:
                raise NotPossibleError(
                    f"switch {switch.name} serves {', '.join(jobs)}: a new program would interrupt that; "
                    "wait, or force it"
                )
            if any(not orphan.lost for orphan in self.allocations.orphans[switch.name]):
                raise NotPossibleError(
                    f"switch {switch.name} serves a job that the controller's database does not know: a new "
                    "program would interrupt that; wait until its workers have told of it, or force it"
                )
        for switch in chosen:
            await self.allocations.push(switch)
        return chosen

    # What comes and goes.

    def why_away(self, members: Sequence[Member], *, usable: bool) -> str:
        """Name the switch or spine whose absence keeps workers from each other; empty if none.

        With `usable`, name also one that cannot give them slots: it is not ready, or is drained.
        """
        tree = Tree.of(self.config, members)
        for leaf in tree.leaves:
            switch = self.switches[leaf]
            if not (switch.ready if usable else switch.switch.connected):
                return f"switch {leaf} is away: {switch.switch.state}"
        state = self.links.state if usable else self.links.state.draining(())
        if tree.two_level and (usable or self.config.links) and not tree.spines(state):
            return tree.graph.why_apart(tree.leaves, state)
        return ""

    def rival_at(self, members: Iterable[Member]) -> str:
        """Return a switch of these workers' hosts where a rival is primary; empty if there is none."""
        return min(self._leaves_of(members, lambda switch: switch.has_rival), default="")

    def is_outranked_at(self, members: Iterable[Member]) -> bool:
        """Tell whether anybody else is primary of a switch of these workers' hosts."""
        return bool(self._leaves_of(members, lambda switch: switch.is_outranked))

    def _leaves_of(self, members: Iterable[Member], wanted: Callable[[Switch], bool]) -> set[str]:
        """Return the switches of these workers' hosts for which `wanted` is true."""
        names = {name for name, switch in self.switches.items() if wanted(switch.switch)}
        if not names:  # as most often, and this is asked for each job at each tick
            return names
        by_ip = self.config.by_ip
        return names & {by_ip[member.ip].switch for member in members if member.ip in by_ip}

    def on_switch_change(self, name: str) -> None:
        """React to a switch that came or went."""
        switch = self.switches[name]
        switch.changed()
        if switch.switch.connected:
            self.engine.spawn(self.settle(switch))
        self.links.refresh()

    async def settle(self, switch: ManagedSwitch) -> None:
        """Make a connected switch hold what it should; jobs that it forgot are renewed."""
        await self.allocations.settle(switch)
        self.links.refresh()
        if switch.ready:
            self.rerouting.changed()  # what was decided while it was written

    def tick(self) -> None:
        """Settle, clean and probe what is due."""
        now = self.engine.clock()
        self.allocations.settle_owed()
        for switch in self.switches.values():
            if switch.switch.connected and not switch.ready:
                self.engine.spawn(self.settle(switch))
        for record in self.allocations.remains:
            if all(worker.knows_end for worker in record.job.workers.values()):
                record.free_at = min(record.free_at, now + STRAGGLERS_S)
            if self.allocations.needs_cleaning(record, now):
                self.engine.spawn(self.allocations.clean(record))
        if probes := self.links.probe():
            self.engine.spawn(self.links.send(probes))
        self.rerouting.retry()

    def _links_changed(self) -> None:
        try:
            self.store.save_broken(self.links.broken)
        except sqlite3.Error as error:  # after a restart it is found out anew
            logger.error("%s: which links are down is not saved: %s", self.store.path, error)
        self.rerouting.changed()
        self._room()

    def _room(self) -> None:
        self.rerouting.room()
        for hook in self.on_room:
            hook()
