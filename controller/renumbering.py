"""Jobs in the network that have numbered many messages go on under a new generation, long before they must.

A switch tells a slot's messages apart by 32-bit serial numbers, and sums the first 2^31 of a generation
(docs/protocol.md, "How many messages"). Workers say with their heartbeats how far they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.registry import Registry

_AGAIN_S = 5.0  # from a try that came to nothing to the next


class Renumbering:
    """Belongs to a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tried: dict[int | None, float] = {}  # generations, and when

    def tick(self) -> None:
        """Time has passed."""
        registry = self._registry
        now = registry.clock()
        self._tried = {tried: at for tried, at in self._tried.items() if now < at + _AGAIN_S}
        for running in registry.jobs():
            job = running.job
            due = running.places and job.numbered >= registry.config.renumber_messages
            if due and running.generation not in self._tried and not job.why_not_move():
                self._tried[running.generation] = now
                registry.waitlist.renumber(running)
