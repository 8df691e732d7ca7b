"""What all parts of a run share: the schedule, the cluster, the clock, what went wrong, and what was said."""

from __future__ import annotations

import zlib

from p4reduce.simulation.faults.loop import NS, Clock
from p4reduce.simulation.faults.schedule import Mishap, Schedule


class Scene:
    """`happened`: which mishaps, and when."""

    def __init__(self, schedule: Schedule, *, tracing: bool = False) -> None:
        self.schedule = schedule
        self.config = schedule.config()
        self.clock = Clock()
        self.tracing = tracing
        self.lines: list[str] = []
        self.happened: list[tuple[int, Mishap]] = []

    def latency(self, name: str, least_ns: int, most_ns: int) -> int:
        """A delay of the schedule, or one that follows from its seed and the name."""
        known = self.schedule.latencies.get(name)
        if known is not None:
            return known
        return least_ns + zlib.crc32(f"{self.schedule.seed}/{name}".encode()) % (most_ns - least_ns + 1)

    def note(self, what: str) -> None:
        """A line of the trace, where one is wanted."""
        if self.tracing:
            self.lines.append(f"{self.clock.now_ns / NS:12.6f}  {what}")
