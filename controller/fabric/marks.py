"""A mark on each switch: the newest generation that it has had. It lives as long as the registers. No I/O.

A switch trusts its registers about a packet's generation. A database from a backup, or a new one under a
clock that was set back, would give out generations that the registers still hold. So the controller writes a
job's generation to the switch before the job's entries. The mark is a multicast group that no packet is sent
to: every P4Runtime target stores a group, reads it back, and loses it exactly when the registers start anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.entries import Entry, Group
from controller.slots.allocator import FLOOD_GROUP
from p4src import MAX_JOBS

MARK_GROUP = FLOOD_GROUP + MAX_JOBS + 1  # behind those of the jobs


def mark_of(generation: int) -> Group:
    """Return the group that marks a generation: the number's halves, as instances on ports 1 and 2."""
    return Group(MARK_GROUP, ((1, generation >> 16), (2, generation & 0xFFFF)))


def mark_in(entries: Iterable[Entry]) -> int:
    """Return the newest generation that a switch with these entries has had; 0 if it has had none."""
    for entry in entries:
        if isinstance(entry, Group) and entry.group == MARK_GROUP:
            instances = dict(entry.replicas)
            return instances.get(1, 0) << 16 | instances.get(2, 0)
    return 0
