"""One move of a running job between ring and switch, as its workers answer. No I/O.

    PAUSING ──all have paused──► HOLDING ──all hold──► WRITING ──► over
       │                            │
       └──────── too late ──────────┴──► over, nothing has changed

Pausing, a worker starts no collective, and says which is the first that it has not started. The largest of
these is where all are held: what comes before it has begun somewhere and so must run everywhere. Held, a
worker has nothing in flight: all it sent is acknowledged, all results are in. Only then may the switches'
entries come or go.

On the way into the switch, or from there into it again, a renewal comes next, which finds nothing to cut
(controller/renewals.py): under a new generation, nothing that a switch has of an earlier stay is believed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from controller.api.messages import HoldAt, Mode, Pause
from controller.serials import furthest

# A worker's session answers by itself, whatever the worker does. The last collective before the held one may
# wait for a straggler, which costs nobody anything: it would be waited for in any case.
HOLDING_S = 60.0


class Step(IntEnum):
    """What a move waits for: workers to pause, to hold, the switches."""

    PAUSING = 1
    HOLDING = 2
    WRITING = 3


@dataclass
class Move:
    """To `mode`; `holding`: the ranks that hold."""

    number: int
    mode: Mode
    ranks: frozenset[int]
    since: float
    step: Step = Step.PAUSING
    collective: int = 0
    holding: set[int] = field(default_factory=set)
    _not_started: dict[int, int] = field(default_factory=dict)

    @property
    def saying(self) -> Pause | HoldAt:
        """What a worker has to know of it now."""
        if self.step is Step.PAUSING:
            return Pause(self.number)
        return HoldAt(self.number, self.collective)

    @property
    def missing(self) -> tuple[int, ...]:
        """Who has not answered this step."""
        answered = self._not_started.keys() if self.step is Step.PAUSING else self.holding
        return tuple(sorted(self.ranks - answered))

    def paused(self, rank: int, number: int, next_collective: int, now: float) -> bool:
        """A worker has paused; whether that was the last one. Answers to another step are old."""
        if number != self.number or self.step is not Step.PAUSING:
            return False
        self._not_started[rank] = next_collective
        if self.missing:
            return False
        self.step, self.since, self.collective = Step.HOLDING, now, furthest(self._not_started.values())
        return True

    def held(self, rank: int, number: int) -> bool:
        """A worker holds; whether that was the last one."""
        if number != self.number or self.step is not Step.HOLDING:
            return False
        self.holding.add(rank)
        if self.missing:
            return False
        self.step = Step.WRITING
        return True

    def is_late(self, now: float, pausing_s: float) -> bool:
        """Whether a worker has kept the others waiting for too long."""
        limit = {Step.PAUSING: pausing_s, Step.HOLDING: HOLDING_S}.get(self.step)
        return limit is not None and now - self.since > limit
