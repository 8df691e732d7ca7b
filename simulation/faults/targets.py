"""What a run is held against: the model alone, or the compiled program as well, frame by frame."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from simulation.faults.drawing import draw
from simulation.faults.node import SwitchNode
from simulation.faults.running import Tally
from simulation.faults.schedule import Schedule
from simulation.faults.world import Outcome, World

TARGETS = ("model", "embedded")


@dataclass
class Targeted:
    """Plays schedules; `shadow` gives a switch of the simulation its counterpart."""

    shadow: Callable[[World, SwitchNode], None] | None = None

    def one(self, schedule: Schedule, *, tracing: bool = False) -> Outcome:
        """One run."""
        return World(schedule, tracing=tracing, shadow=self.shadow).run()

    def many(self, seeds: Iterable[int]) -> Tally:
        """Several. Runs leave much behind that hangs together: what is collected when is chosen for that."""
        if not gc.get_freeze_count():  # once: what is frozen is never collected
            gc.freeze()
        gc.set_threshold(50_000, 20, 1_000)
        tally = Tally()
        for seed in seeds:
            tally.add(self.one(draw(seed)))
        gc.collect()
        return tally


@contextmanager
def players(target: str) -> Iterator[Targeted]:
    """For a name among `TARGETS`; its errors are those of the target."""
    if target == "model":
        yield Targeted()
        return
    from simulation.faults import lockstep  # it compiles the program

    with lockstep.shadows(target) as shadow:
        yield Targeted(shadow)
