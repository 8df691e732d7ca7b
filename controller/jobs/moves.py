"""One move of a running job between ring and switch, as its workers answer (jobs/states.py). No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.api.messages import HoldAt, Mode, Pause
from controller.jobs.serials import furthest
from controller.jobs.states import State

# A worker's session answers by itself, whatever the worker does. The last collective before the held one may
# wait for a straggler, which costs nobody anything: it would be waited for in any case.
HOLDING_S = 60.0


@dataclass
class Move:
    """A move of these `ranks` to `mode`. `missing`: those without an answer to the step begun at `since`."""

    number: int
    mode: Mode
    ranks: frozenset[int]
    since: float
    missing: set[int] = field(default_factory=set)
    collective: int | None = None
    _not_started: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.missing = set(self.ranks)

    @property
    def saying(self) -> Pause | HoldAt:
        """The message that a worker has to hear now."""
        return Pause(self.number) if self.collective is None else HoldAt(self.number, self.collective)

    def paused(self, rank: int, next_collective: int, now: float) -> bool:
        """Note that a worker has paused; tell whether it was the last one, so that all are to be held."""
        self._not_started[rank] = next_collective
        self.missing.discard(rank)
        if self.missing:
            return False
        self.missing, self.since, self.collective = set(self.ranks), now, furthest(self._not_started.values())
        return True

    def held(self, rank: int) -> bool:
        """Note that a worker holds, and tell whether it was the last one."""
        self.missing.discard(rank)
        return not self.missing

    def is_late(self, state: State, now: float, pausing_s: float) -> bool:
        """Tell whether a worker has kept the others waiting for too long."""
        limit = {State.PAUSING: pausing_s, State.HOLDING: HOLDING_S}.get(state)
        return limit is not None and now - self.since > limit
