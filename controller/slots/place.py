"""What a job has on one switch."""

from __future__ import annotations

from dataclasses import dataclass

from controller.entries import Entry
from controller.slots.allocator import Region


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a job is on a switch, a "leaf" or a "spine", and its entries there in the order of writing."""

    switch: str
    region: Region
    entries: tuple[Entry, ...]
    role: str = "leaf"
