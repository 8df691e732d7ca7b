"""Answers to workers whose collective makes no progress: whom it waits for, as `p4reduce doctor` says.

The switches' slots say who has not contributed to the oldest message that is not complete. Where they name
nobody, as in a job by ring, the workers' heartbeats say who is not in the collective.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from controller.api.errors import ControllerError
from controller.fabric.trees import Tree
from controller.jobs.effects import Stuck
from controller.jobs.job import Job
from controller.jobs.missing import not_in_it
from controller.jobs.serials import rearmost
from controller.orchestration.lost import slots_of
from controller.orchestration.record import Record
from controller.orchestration.switch_manager import SwitchManager
from controller.switches.queries import RESULT, SlotContent

_ASKING_S = 2.0
_NAMED = 8  # workers in a sentence

Slots = Mapping[str, Iterable[SlotContent]]  # by switch, indexes counted from the region's first


class Missing:
    """Answers for workers that ask. A job's slots are read once for all that ask meanwhile."""

    def __init__(self, manager: SwitchManager, *, interval_s: float) -> None:
        self._manager = manager
        self._engine = manager.engine
        self._interval_s = interval_s
        self._asking: dict[Record, list[Stuck]] = {}

    def asked(self, record: Record, stuck: Stuck) -> None:
        """Answer a worker's question, in the background."""
        if record in self._asking:
            self._asking[record].append(stuck)
        else:
            self._asking[record] = [stuck]
            self._engine.spawn(self._answer(record))

    async def _answer(self, record: Record) -> None:
        try:
            by_slots = await self._who_has_not_contributed(record)
        finally:
            asked = self._asking.pop(record)
        for stuck in asked:
            job, now = record.job, self._engine.clock()
            who = by_slots or _listed([*not_in_it(job.workers, stuck.collective, now, self._interval_s)])
            self._engine.act(record, partial(_tell, stuck=stuck, who=who))

    async def _who_has_not_contributed(self, record: Record) -> str:
        """Name the late workers; empty if no slot names any, or no switch answers."""
        job = record.job
        if job.plan is None or not record.allocations:
            return ""
        found: dict[str, list[SlotContent]] = {}
        reading = asyncio.ensure_future(self._read(record, job.plan.message_packets, found))
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait({reading}, timeout=_ASKING_S)  # what is late ends by itself
        if reading.done() and not isinstance(reading.exception(), ControllerError):
            reading.result()
        oldest = not_contributed(job.plan.generation, Tree.of(self._manager.config, job.members), found)
        if oldest is None:
            return ""
        message, ranks = oldest
        members = [str(job.workers[rank].member) for rank in ranks if rank in job.workers]
        verb = "has" if len(members) == 1 else "have"
        return f"{_listed(members)} {verb} not contributed to message {message}"

    async def _read(self, record: Record, message_packets: int, found: dict[str, list[SlotContent]]) -> None:
        """Read slots of switches that can be asked, leaves first: of messages' first packets, then all."""
        switches = self._manager.switches
        for step in (message_packets, 1):
            for allocation in record.leaves_first:
                if switches[allocation.switch].switch.connected:
                    slots = await slots_of(switches, allocation, step)
                    found.setdefault(allocation.switch, []).extend(slots)


def _tell(job: Job, now: float, *, stuck: Stuck, who: str) -> None:
    job.tell_who_is_missing(stuck, who)


def not_contributed(generation: int, tree: Tree, slots: Slots) -> tuple[int, tuple[int, ...]] | None:
    """Return the oldest message that lacks contributions, and the ranks that have sent none; or None.

    If a spine lacks a rack's part and the leaf has nothing of it either, nobody in that rack has sent it. If
    the leaf has all of the rack's part, that is on its way.
    """
    missing: dict[int, set[int]] = {}
    begun: set[tuple[str, int, int]] = set()
    for rack in tree.racks:
        for slot in slots.get(rack.leaf, ()):
            if slot.generation == generation:
                begun.add((rack.leaf, slot.message, slot.index))
                if not slot.flags & RESULT:
                    late = {rank for bit, rank in enumerate(rack.ranks) if not slot.bitmap >> bit & 1}
                    missing.setdefault(slot.message, set()).update(late)
    for spine in slots.keys() - {*tree.leaves}:
        for slot in slots[spine]:
            if slot.generation != generation or slot.flags & RESULT:
                continue
            for bit, rack in enumerate(tree.racks):
                is_known = rack.leaf in slots and (rack.leaf, slot.message, slot.index) not in begun
                if is_known and not slot.bitmap >> bit & 1:
                    missing.setdefault(slot.message, set()).update(rack.ranks)
    late_for = [message for message, ranks in missing.items() if ranks]
    if not late_for:
        return None
    oldest = rearmost(late_for)
    return oldest, tuple(sorted(missing[oldest]))


def _listed(words: list[str]) -> str:
    """List some, and say how many more there are."""
    shown = words[:_NAMED] + ([f"{len(words) - _NAMED} more"] if len(words) > _NAMED else [])
    return ", ".join(shown)
