"""A switch and the controller's state of it: owners of its slots, and whether it is ready for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from controller.api.errors import UnreachableError
from controller.entries import Entry, key_of
from controller.fabric.flows import removal_order
from controller.fabric.marks import mark_of
from controller.slots.allocation import Allocation
from controller.slots.allocator import SwitchAllocator
from controller.switches.switch import Switch
from controller.switches.updates import Update, UpdateKind, WriteError


class ManagedSwitch:
    """A switch, its slots, and a lock for its writers.

    It is ready once it is connected and `adopt` has made it hold what it should, until the connection breaks.
    `settling`: `adopt` is under way. `mark`: the newest generation that it has had; `repeated_to`: the newest
    that another process has given it.
    """

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.allocator = SwitchAllocator()
        self.lock = asyncio.Lock()
        self.settling = False
        self.mark = self.repeated_to = 0
        self._ready = asyncio.Event()

    @property
    def name(self) -> str:
        """Name in the configuration."""
        return self.switch.config.name

    @property
    def ready(self) -> bool:
        """True if it can take jobs."""
        return self._ready.is_set()

    def changed(self) -> None:
        """Note that it came or went: it is not ready any more."""
        self._ready.clear()

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait until it is ready, at most that long; tell whether it is."""
        if self.ready:
            return True
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def require_ready(self, patience_s: float) -> None:
        """Wait until it is ready. Raise UnreachableError after so many seconds."""
        if not await self.wait_ready(patience_s):
            raise UnreachableError(
                f"switch {self.name} at {self.switch.config.address} cannot be used: {self.switch.state}"
            )

    # The caller holds the lock. Errors are SwitchErrors.

    async def adopt(self, allocations: Iterable[tuple[Allocation, bool]]) -> None:
        """Make it hold its base entries, these jobs and nothing else; jobs as `held` says."""
        await self.switch.adopt(held(allocations))
        if self.switch.connected:
            self._ready.set()

    async def install(self, allocation: Allocation, flows: int, generation: int) -> None:
        """Write a job's entries, all or none; the counters of so many flows begin at zero."""
        await self.note(generation)
        await self.switch.reset_flow_counters(allocation.region.flow(0), flows)
        await self.switch.install(allocation.entries)

    async def note(self, generation: int) -> None:
        """Write a generation's mark before the switch's registers can have anything of it."""
        if generation <= self.mark:
            return
        mark = mark_of(generation)
        kind = UpdateKind.MODIFY if key_of(mark) in self.switch.written else UpdateKind.INSERT
        # Also where the connection breaks: it may have been written.
        before, self.mark = self.mark, generation
        if failures := await self.switch.write_batch([Update(kind, mark)]):
            self.mark = before
            raise WriteError(f"switch {self.name}", failures, updates=1)

    async def remove_flows(self, allocation: Allocation) -> None:
        """Remove all of a job but the guards, which drop what its workers still send."""
        await self.switch.remove(removal_order(allocation.entries)[0])

    async def remove(self, allocation: Allocation) -> None:
        """Remove all of a job."""
        flows, guards = removal_order(allocation.entries)
        await self.switch.remove([*flows, *guards])


def held(allocations: Iterable[tuple[Allocation, bool]]) -> list[Entry]:
    """Return the entries that a switch should hold: all entries of live jobs, the guards of others.

    Each allocation comes with True if its job is live. Of two guards for the same QP, the live job's is held.
    """
    wanted: dict[object, Entry] = {}
    for allocation, live in sorted(allocations, key=lambda item: item[1]):
        entries = allocation.entries if live else removal_order(allocation.entries)[1]
        wanted.update({key_of(entry): entry for entry in entries})
    return list(wanted.values())


def guards_of(allocations: Iterable[tuple[Allocation, bool]]) -> list[Entry]:
    """Return the guards among the entries that `held` returns."""
    return removal_order(held(allocations))[1]


def collide(allocation: Allocation, entries: Iterable[Entry]) -> bool:
    """Tell whether a job's entries and others cannot be on the switch together."""
    return not {key_of(entry) for entry in allocation.entries}.isdisjoint(key_of(entry) for entry in entries)
