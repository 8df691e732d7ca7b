"""A worker that shows its metrics."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from controller.api.messages import Mode
from host_agent.metrics import Statistics
from host_agent.transport.events import Counters

NUMBERED = Counters(**{field.name: number for number, field in enumerate(fields(Counters), 1)})


@dataclass
class Worker:
    """A communicator that has done something."""

    rank: int = 2
    mode: Mode = Mode.IN_NETWORK
    wire: Counters = NUMBERED

    def counters(self) -> Counters:
        return self.wire

    def statistics(self) -> Statistics:
        counts: dict[str, Any] = {field.name: 0 for field in fields(Statistics)}
        return replace(Statistics(**counts), collectives=5, in_network=3, ring=2, busy_s=1.5)

    def status(self, job: str) -> dict[str, Any]:
        return {"job": job, "rank": self.rank}
