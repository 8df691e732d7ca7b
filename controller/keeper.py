"""The jobs' side of the switches: what is written to them when jobs, links, switches or wishes change."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.api.errors import ControllerError, NotFoundError, NotPossibleError
from controller.api.messages import Mode
from controller.config import Config
from controller.entries import Entry
from controller.fabric import ManagedSwitch
from controller.jobs import Job
from controller.links import LinkWatch
from controller.marks import mark_in
from controller.places import HalfOffError, Places
from controller.retired import STRAGGLERS_S
from controller.running import Running
from controller.setup import Installer
from controller.store import Store, StoreError
from controller.updates import SwitchError
from controller.upkeep import Upkeep

logger = logging.getLogger(__name__)


class Keeper(abc.ABC):
    """The half of the registry that has to do with switches.

    `on_room`: called when slots became free, or a switch or link came back. Whoever writes to a switch has
    its lock; those of several are taken in the order of the configuration (`writing`).
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        switches: Sequence[ManagedSwitch],
        *,
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.store = store
        self.switches = {switch.name: switch for switch in switches}
        self.clock = clock
        self.on_room: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.links = LinkWatch(
            config,
            self.switches,
            clock=clock,
            on_change=self._links_changed,
            broken=store.broken() if config.links else (),
        )
        self.places = Places(config, store, self.switches, self.links, clock=self.awake, on_room=self._room)
        self.upkeep = Upkeep(config, self.switches, self.places, self.links, clock=clock, spawn=self.spawn)
        self.installer = Installer(config, store, self.places)
        for switch in switches:
            switch.switch.guards = functools.partial(self.places.guards, switch.name)
            switch.switch.on_found = functools.partial(self._found, switch)
            switch.switch.base = functools.partial(self.upkeep.base, switch.name)

    def _found(self, switch: ManagedSwitch, entries: Iterable[Entry]) -> None:
        """What a switch holds when it is connected: generations that it has had are given out no more."""
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
                raise SwitchError(f"switch {switch.name}: {self.store.trouble(error)}") from error
        if newest > switch.mark:
            switch.mark = switch.repeated_to = newest

    @abc.abstractmethod
    def notice_stop(self) -> None:
        """Where this process itself stood still, it is held against nobody."""

    @abc.abstractmethod
    def act(self, running: Running, call: Callable[[Job, float], None]) -> None:
        """Call a job's state machine, and do what it asks for."""

    @abc.abstractmethod
    def forgot(self, running: Running, reason: str) -> None:
        """A leaf has lost sums of a live job that nobody else has, or entries of it."""

    @abc.abstractmethod
    def over(self, running: Running) -> None:
        """A job has ended, or one that has is not being written any more."""

    # Moving off the switches. The way there is a renewal.

    async def take_off(self, running: Running, reason: str) -> tuple[Mode, str]:
        """All entries of a job go, while all its workers hold, and its slots are free.

        Returns the mode it has then, and why it is no other; raises nothing that is not a defect.
        """
        job = running.job
        if job.plan is None or not job.live or running.installing or not running.places or job.renewal:
            return self._mode_of(running)
        why = ""
        running.installing = True
        try:
            await self.places.take_off(running, replace(job.plan, mode=Mode.RING, mode_reason=reason))
        except HalfOffError as error:
            why = str(error)
            self.forgot(running, why)
        except (ControllerError, StoreError, sqlite3.Error) as error:
            why = str(error)
        finally:
            self._written(running)
        return (Mode.IN_NETWORK, why) if why else self._mode_of(running)

    def _mode_of(self, running: Running) -> tuple[Mode, str]:
        plan = running.job.plan
        return (Mode.RING, "") if plan is None else (plan.mode, plan.mode_reason)

    def _written(self, running: Running) -> None:
        """The switches have been written for a job that may have ended meanwhile."""
        running.installing = False
        self.upkeep.placed(running)
        waiting, running.when_written = running.when_written, []
        if not running.job.live:
            self.over(running)
            return
        for call in waiting:
            call()

    # Switches, links, and what an operator wants of them.

    def wanted_entries(
        self, name: str, *, drained: frozenset[str] | None = None, extra: Sequence[Entry] | None = None
    ) -> list[Entry]:
        """All that a switch shall hold; with something else drained, or extra, than is in force."""
        return self.upkeep.wanted_entries(name, drained=drained, extra=extra)

    def set_configuration(self, *, drained: frozenset[str], extra: Mapping[str, Sequence[Entry]]) -> None:
        """What is drained, and extra entries. The caller has written the switches, and has their locks."""
        self.links.drained = drained
        self.upkeep.extra = {name: tuple(entries) for name, entries in extra.items()}
        self.upkeep.decide()
        self.links.look()

    def writing(self) -> contextlib.AbstractAsyncContextManager[None]:
        """The locks of all switches."""
        return self.places.locked(self.switches)

    async def quiet(self, timeout_s: float) -> None:
        """Wait until nothing is being moved, but not for longer than that."""
        await self.upkeep.quiet(timeout_s)

    def on_switch_change(self, name: str) -> None:
        """A switch came or went."""
        switch = self.switches[name]
        switch.changed()
        if switch.switch.connected:
            self.spawn(self.settle(switch))
        self.links.look()

    async def settle(self, switch: ManagedSwitch) -> None:
        """Hold a switch that is connected against what it should have, and tell jobs that it forgot."""
        await self.places.settle(switch, self.forgot)
        self.links.look()
        if switch.ready:
            self.upkeep.changed()  # what was decided while it was written

    async def push(self, name: str, *, force: bool) -> list[ManagedSwitch]:
        """The program anew, into one switch or (empty name) all. NotFoundError, NotPossibleError."""
        if name and name not in self.switches:
            raise NotFoundError(f"there is no switch {name!r}, known are {', '.join(self.switches)}")
        chosen = [switch for switch in self.switches.values() if name in ("", switch.name)]
        for switch in chosen:
            jobs = sorted(
                running.job.spec.name
                for running in self.places.on(switch.name)
                if running.job.live and switch.name in running.leaves
            )
            if jobs and not force:
                raise NotPossibleError(
                    f"switch {switch.name} serves {', '.join(jobs)}: a new program would interrupt that; "
                    "wait, or force it"
                )
            if not force and any(not orphan.lost for orphan in self.places.orphans[switch.name]):
                raise NotPossibleError(
                    f"switch {switch.name} serves a job that the controller's database does not know: a new "
                    "program would interrupt that; wait until its workers have told of it, or force it"
                )
        for switch in chosen:
            await self.places.push(switch, self.forgot)
        return chosen

    def _links_changed(self) -> None:
        try:
            self.store.save_broken(self.links.broken)
        except sqlite3.Error as error:  # after a restart it is found out anew
            logger.error("%s: which links are down is not saved: %s", self.store.path, error)
        self.upkeep.changed()
        self._room()

    def _room(self) -> None:
        self.upkeep.room()
        for hook in self.on_room:
            hook()

    # Time.

    def awake(self) -> float:
        """The time, when it is known how long this process itself stood still."""
        self.notice_stop()
        return self.clock()

    def tick_switches(self) -> None:
        """Time has passed."""
        now = self.clock()
        self.places.settle_owed()
        for switch in self.switches.values():
            if switch.switch.connected and not switch.ready:
                self.spawn(self.settle(switch))
        for running in self.places.remains:
            if all(seat.knows_end for seat in running.job.seats.values()):
                running.free_at = min(running.free_at, now + STRAGGLERS_S)
            if self.places.needs_cleaning(running, now):
                self.spawn(self.places.clean(running))
        if probes := self.links.probe():
            self.spawn(self.links.send(probes))
        self.upkeep.retry()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do that beside everything else; its defects are logged, and `drain` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a defect in the controller", exc_info=error)

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)
