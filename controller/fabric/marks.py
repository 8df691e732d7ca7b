"""The newest generation that a switch has had, on the switch itself for as long as its registers are. No I/O.

A switch believes what its registers have of a packet's generation. A database from a backup, or a new one
under a clock that was set back, would give numbers out again that are in there. So before a job's entries are
written, its generation is, into a multicast group that no packet is sent to: the one thing that P4Runtime
keeps on any target, gives back, and forgets where the program and its registers begin anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.entries import Entry, Group
from controller.slots.allocator import FLOOD_GROUP
from p4src import MAX_JOBS

MARK_GROUP = FLOOD_GROUP + MAX_JOBS + 1  # behind those of the jobs


def mark_of(generation: int) -> Group:
    """What says so: the number's halves, as instances on ports 1 and 2."""
    return Group(MARK_GROUP, ((1, generation >> 16), (2, generation & 0xFFFF)))


def mark_in(entries: Iterable[Entry]) -> int:
    """The newest generation that a switch with these entries has had; 0 where it has had none."""
    for entry in entries:
        if isinstance(entry, Group) and entry.group == MARK_GROUP:
            instances = dict(entry.replicas)
            return instances.get(1, 0) << 16 | instances.get(2, 0)
    return 0
