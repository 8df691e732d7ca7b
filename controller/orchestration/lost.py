"""Search in the switches' slots for the first message that a lost worker did not contribute to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from controller.api.errors import ControllerError
from controller.config import Config
from controller.fabric.trees import Tree
from controller.jobs.serials import rearmost
from controller.orchestration.record import Record
from controller.slots.allocation import Allocation
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.queries import RESULT, SlotContent

_ASKING_S = 2.0


@dataclass
class Found:
    """Slots that have been read, their indexes counted from the region's first. `whole`: all were read."""

    at_leaf: list[SlotContent] = field(default_factory=list)
    at_spines: list[SlotContent] = field(default_factory=list)
    whole: bool = False


async def what_it_lacks(
    config: Config, switches: Mapping[str, ManagedSwitch], record: Record, token: bytes
) -> tuple[int | None, str]:
    """Find the first message that others wait for and that worker had not sent.

    Return it with a sentence; None for it if there is none, or it is not known. This reads the job's slots.
    """
    job = record.job
    rank = next((rank for rank, worker in job.workers.items() if worker.token == token), None)
    if rank is None or job.plan is None:
        return None, "what it had sent is not known"
    tree = Tree.of(config, job.members)
    leaf = config.by_ip[job.workers[rank].member.ip].switch
    found = Found()
    asking = asyncio.ensure_future(_read(switches, record, leaf, job.plan.message_packets, found))
    asking.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.wait({asking}, timeout=_ASKING_S)  # what is late ends by itself
    if asking.done() and not isinstance(asking.exception(), ControllerError):
        asking.result()
    position = [ranks[0] for ranks in tree.ranks_by_bit(leaf)].index(rank)
    everybody = (1 << len(tree.ranks_by_bit(leaf))) - 1
    rack_bit = 1 << tree.leaves.index(leaf)
    message = first_missing(
        job.plan.generation, found.at_leaf, 1 << position, everybody, found.at_spines, rack_bit
    )
    if message is not None:
        return message, f"the first message it did not contribute to is {message}"
    if not found.whole:
        return None, (
            "the first message it did not contribute to is not known, as switch "
            f"{leaf} does not say: {switches[leaf].switch.state}"
        )
    if not any(slot.generation == job.plan.generation for slot in (*found.at_leaf, *found.at_spines)):
        # Nobody has sent anything, or the switch was restarted since.
        return None, f"what it had sent is not known, as switch {leaf} has no sums of the job"
    return None, "it had contributed to all sums that the others have begun"


async def _read(
    switches: Mapping[str, ManagedSwitch], record: Record, leaf: str, message_packets: int, found: Found
) -> None:
    """Read the slots of a leaf, and of the spines that can be asked: of messages' first packets, then all."""
    allocations = [record.allocations[leaf]] if leaf in record.allocations else []
    allocations += [
        allocation
        for allocation in record.leaves_first
        if allocation.role == "spine" and switches[allocation.switch].switch.connected
    ]
    for step in (message_packets, 1):
        for allocation in allocations:
            slots = await slots_of(switches, allocation, step)
            (found.at_leaf if allocation.role == "leaf" else found.at_spines).extend(slots)
    found.whole = True


async def slots_of(
    switches: Mapping[str, ManagedSwitch], allocation: Allocation, step: int
) -> list[SlotContent]:
    """Return a job's slots on a switch, each `step`th; their indexes count from the region's first."""
    region = allocation.region
    slots = await switches[allocation.switch].switch.slots(region.base, region.slots, step=step)
    return [replace(slot, index=slot.index - region.base) for slot in slots]


def first_missing(
    generation: int,
    at_leaf: Iterable[SlotContent],
    own_bit: int,
    everybody: int,
    at_spines: Iterable[SlotContent],
    rack_bit: int,
) -> int | None:
    """Return the oldest message that others have contributed to but not this worker; None if none.

    `own_bit` of `everybody` is the worker's bit on the leaf, `rack_bit` that of its rack on spines. If a
    spine lacks the rack's part, and the leaf does not have the worker's, the worker has not sent it. Indexes
    count from the region's first slot.
    """
    sent: set[tuple[int, int]] = set()
    missing: set[int] = set()
    for slot in at_leaf:
        if slot.generation != generation:
            continue
        if slot.bitmap & own_bit or slot.flags & RESULT or slot.bitmap == everybody:
            sent.add((slot.message, slot.index))
        else:
            missing.add(slot.message)
    for slot in at_spines:
        waits = slot.generation == generation and not slot.flags & RESULT and not slot.bitmap & rack_bit
        if waits and (slot.message, slot.index) not in sent:
            missing.add(slot.message)
    return rearmost(missing) if missing else None
