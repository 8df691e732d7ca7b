"""Targets that a run is held against: the model alone, or the compiled program as well, frame by frame."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache

from controller.switches.updates import SwitchError
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.playing import Outcome, run
from p4reduce.simulation.faults.running import Tally
from p4reduce.simulation.faults.scene import Observer
from p4reduce.simulation.faults.schedule import Schedule
from p4reduce.simulation.faults.world import World

TARGETS = ("model", "embedded", "bmv2")
_ONE_AT_A_TIME = threading.Lock()  # a run hears what the whole process logs


class TargetError(Exception):
    """A target cannot be had here, or does not answer; the message says what to do about it."""


@cache
def _freeze() -> None:
    """Freeze all objects, once: they are never collected.

    Asking Python whether something is frozen would count all that is.
    """
    gc.freeze()


@dataclass
class Targeted:
    """A player of schedules.

    `shadow` gives a switch of the simulation its counterpart. `afterwards` says what a counterpart that is
    asked after the run did otherwise (empty: nothing).
    """

    shadow: Callable[[World, SwitchNode], None] | None = None
    afterwards: Callable[[], str] | None = None

    def one(self, schedule: Schedule, *, tracing: bool = False, observer: Observer | None = None) -> Outcome:
        """Play one run."""
        outcome = run(schedule, tracing=tracing, shadow=self.shadow, observer=observer)
        if self.afterwards is not None:
            outcome.error = self.afterwards() or outcome.error
        return outcome

    def many(self, seeds: Iterable[int]) -> Tally:
        """Play several seeds, or those before Ctrl-C.

        Runs leave much garbage in cycles, for which the collector's thresholds are chosen. No run lives for
        long, so runs that are over are collected with young objects, and the many old ones need not be looked
        at.
        """
        _freeze()
        gc.set_threshold(50_000, 20, 1_000)
        tally = Tally()
        try:
            for seed in seeds:
                tally.add(self.one(draw(seed)))
        except KeyboardInterrupt:
            tally.interrupted = True  # the caller says so
        return tally


@contextmanager
def players(target: str) -> Iterator[Targeted]:
    """Yield a player for a name among `TARGETS`. Raise TargetError if that one cannot be had."""
    if target == "model":
        yield Targeted()
    elif target == "embedded":
        from p4reduce.simulation.faults import lockstep  # it compiles the program

        with lockstep.shadows() as shadow:
            yield Targeted(shadow)
    else:
        if os.geteuid() != 0:
            raise TargetError("BMv2's ports are interfaces, which only root can make: run it again with sudo")
        from p4reduce.simulation.bmv2 import Bmv2Error
        from p4reduce.simulation.faults import recording

        with closing(recording.Playback()) as playback:
            try:
                yield Targeted(playback.record, playback.compare)
            except (Bmv2Error, SwitchError) as error:
                raise TargetError(str(error)) from error


def play_seeds(target: str, seeds: Iterable[int]) -> Tally:
    """Play seeds against a target of its own; an executor is given this, wherever it runs that."""
    with _ONE_AT_A_TIME, players(target) as play:
        return play.many(seeds)
