"""The parts of a switch and the jobs that own them: slots, flow indexes, multicast groups. No I/O.

A job's region has a power of two of slots and starts at a multiple of its size. Job number j (0..31) on a
switch has flow indexes 32*j + rank and the multicast group 2 + j; group 1 floods.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.api.errors import NoResourcesError
from p4src import MAX_JOBS, MAX_RANKS, MAX_SLOTS

FLOOD_GROUP = 1
_FIRST_JOB_GROUP = 2


@dataclass(frozen=True)
class Region:
    """The part of one switch that one job owns; `base` and `slots` count slots."""

    number: int
    base: int
    slots: int

    @property
    def end(self) -> int:
        """The first slot behind the region."""
        return self.base + self.slots

    @property
    def group(self) -> int:
        """The job's multicast group."""
        return _FIRST_JOB_GROUP + self.number

    def collides(self, other: Region) -> bool:
        """Tell whether two jobs cannot have these on one switch."""
        return self.number == other.number or (self.base < other.end and other.base < self.end)

    def flow(self, rank: int) -> int:
        """Return the flow index of a rank."""
        return self.number * MAX_RANKS + rank


class SwitchAllocator:
    """The regions of one switch: first fit, lowest address first."""

    def __init__(self, *, slots: int = MAX_SLOTS, jobs: int = MAX_JOBS) -> None:
        self.slots = slots
        self.jobs = jobs
        self._taken: list[Region] = []
        self._next_number = 0

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions that are taken, by address."""
        return tuple(self._taken)

    @property
    def used(self) -> int:
        """The number of slots that are taken."""
        return sum(region.slots for region in self._taken)

    def allocate(self, slots: int) -> Region:
        """Take a region of `slots`, a power of two. Raise NoResourcesError if there is no room."""
        if slots <= 0 or slots & (slots - 1):
            raise ValueError(f"{slots} is not a power of two")
        if slots > self.slots:
            raise NoResourcesError(f"the job needs {slots} slots, a switch has {self.slots}")
        numbers = {region.number for region in self._taken}
        in_turn = [(self._next_number + n) % self.jobs for n in range(self.jobs)]
        number = next((n for n in in_turn if n not in numbers), None)
        if number is None:
            raise NoResourcesError(f"the switch already serves {self.jobs} jobs, which is all it can")
        for base in range(0, self.slots - slots + 1, slots):
            if all(base >= taken.end or base + slots <= taken.base for taken in self._taken):
                region = Region(number, base, slots)
                self.take(region)
                # A job that comes back must not find what the program remembers of its flows.
                self._next_number = (number + 1) % self.jobs
                return region
        raise NoResourcesError(
            f"the job needs {slots} adjacent slots; {self.used} of the switch's {self.slots} are in use by "
            f"{len(self._taken)} jobs"
        )

    def take(self, region: Region) -> None:
        """Take a region known from before. Raise ValueError if it overlaps another: the records are wrong."""
        if region.end > self.slots or not 0 <= region.number < self.jobs:
            raise ValueError(f"{region} does not fit into a switch of {self.slots} slots, {self.jobs} jobs")
        for taken in self._taken:
            if region.collides(taken):
                raise ValueError(f"{region} overlaps {taken}")
        self._taken.append(region)
        self._taken.sort(key=lambda r: r.base)

    def release(self, region: Region) -> None:
        """Give a region back. Raise ValueError if it is not taken."""
        self._taken.remove(region)
