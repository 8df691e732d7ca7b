"""The allocation of a job on one switch."""

from __future__ import annotations

from dataclasses import dataclass

from controller.entries import Entry
from controller.slots.allocator import Region


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A job's slots, and its entries in the order of writing; the switch is its "leaf" or "spine"."""

    switch: str
    region: Region
    entries: tuple[Entry, ...]
    role: str = "leaf"
