"""The first message that a lost worker did not contribute to, as its switches have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.api.errors import ControllerError
from controller.config import Config
from controller.fabric import ManagedSwitch
from controller.queries import SlotContent
from controller.running import Running
from controller.store import Place
from controller.trees import Tree

_ASKING_S = 1.0
_RESULT = 0x01  # flag of a slot
_MESSAGES = 1 << 32


async def what_it_lacks(
    config: Config, switches: Mapping[str, ManagedSwitch], running: Running, token: bytes
) -> tuple[int | None, str]:
    """The first message that the worker with that token had not sent, of those that others wait for, and that
    in words; None where there is none, or it is not known. A job's slots are read for it.
    """
    job = running.job
    rank = next((rank for rank, seat in job.seats.items() if seat.token == token), None)
    if rank is None or job.plan is None:
        return None, "what it had sent is not known"
    tree = Tree.of(config, job.members)
    leaf = config.by_ip[job.seats[rank].member.ip].switch
    try:
        at_leaf, at_spines = await asyncio.wait_for(_read(switches, running, leaf), _ASKING_S)
    except (ControllerError, asyncio.TimeoutError):
        return None, (
            "the first message it did not contribute to is not known, as switch "
            f"{leaf} does not say: {switches[leaf].switch.state}"
        )
    generation = job.plan.generation
    place = [ranks[0] for ranks in tree.ranks_by_bit(leaf)].index(rank)
    everybody = (1 << len(tree.ranks_by_bit(leaf))) - 1
    rack_bit = 1 << tree.leaves.index(leaf)
    message = first_missing(generation, at_leaf, 1 << place, everybody, at_spines, rack_bit)
    if message is None:
        return None, "it had contributed to all that the others have sent"
    return message, f"the first message it did not contribute to is {message}"


async def _read(
    switches: Mapping[str, ManagedSwitch], running: Running, leaf: str
) -> tuple[list[SlotContent], list[SlotContent]]:
    """What the slots of a leaf hold, and those of the spines that can be asked."""
    at_leaf = await _slots(switches, running.places[leaf]) if leaf in running.places else []
    at_spines: list[SlotContent] = []
    for place in running.leaves_first:
        if place.role == "spine" and switches[place.switch].switch.connected:
            at_spines += await _slots(switches, place)
    return at_leaf, at_spines


async def _slots(switches: Mapping[str, ManagedSwitch], place: Place) -> list[SlotContent]:
    slots = await switches[place.switch].switch.slots(place.region.base, place.region.slots)
    return [replace(slot, index=slot.index - place.region.base) for slot in slots]


def first_missing(
    generation: int,
    at_leaf: Iterable[SlotContent],
    own_bit: int,
    everybody: int,
    at_spines: Iterable[SlotContent] = (),
    rack_bit: int = 0,
) -> int | None:
    """The oldest message that others have contributed to and this worker has not; None if there is none.

    On the leaf `own_bit` of `everybody` is the worker's, on spines `rack_bit` its rack's: what a spine lacks
    of a rack, and its leaf has not from the worker, the worker has not sent either. Indexes count from the
    region's first slot.
    """
    sent: set[tuple[int, int]] = set()
    missing: set[int] = set()
    for slot in at_leaf:
        if slot.generation != generation:
            continue
        if slot.bitmap & own_bit or slot.flags & _RESULT or slot.bitmap == everybody:
            sent.add((slot.message, slot.index))
        else:
            missing.add(slot.message)
    for slot in at_spines:
        waits = slot.generation == generation and not slot.flags & _RESULT and not slot.bitmap & rack_bit
        if waits and (slot.message, slot.index) not in sent:
            missing.add(slot.message)
    oldest: int | None = None
    for message in missing:
        if oldest is None or 0 < (oldest - message) % _MESSAGES < _MESSAGES // 2:
            oldest = message
    return oldest
