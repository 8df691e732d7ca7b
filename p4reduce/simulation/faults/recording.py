"""BMv2 beside the model: all that each switch of a run was given is recorded, and played on BMv2 afterwards.

BMv2 gets the same writes, restarts and frames in the same order; what leaves is compared frame by frame.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from controller.entries import Entry
from p4reduce.oracle.state import Out
from p4reduce.simulation.bmv2 import Bmv2
from p4reduce.simulation.compiled import are_alike
from p4reduce.simulation.faults.lockstep import difference
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.world import World


@dataclass(frozen=True)
class Wrote:
    """A write by the controller."""

    insert: list[Entry]
    delete: list[Entry]


@dataclass(frozen=True)
class Restarted:
    """A restart, without entries and with empty registers."""


@dataclass(frozen=True)
class Came:
    """A frame that came in by a port, what left in the model, and the echoes that the controller was told."""

    port: int
    frame: bytes
    left: list[Out]
    echoes: list[int]


Step: TypeAlias = "Wrote | Restarted | Came"


@dataclass
class Recorder:
    """A recorder of all that a switch was given."""

    name: str
    ports: list[int]
    steps: list[Step] = field(default_factory=list)

    def write(self, insert: Sequence[Entry], delete: Sequence[Entry]) -> None:
        """Record what the controller wrote."""
        self.steps.append(Wrote(list(insert), list(delete)))

    def restart(self) -> None:
        """Record a restart; its entries have been taken away before."""
        self.steps.append(Restarted())

    def process(self, port: int, frame: bytes, left: list[Out], echoes: list[int]) -> None:
        """Record what the model did with a frame."""
        self.steps.append(Came(port, frame, left, list(echoes)))


class Playback:
    """A player of recordings on BMv2, which it starts for the first one, in each process that has some."""

    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self._switch: Bmv2 | None = None
        self._owner = 0

    def record(self, world: World, node: SwitchNode) -> None:
        """Record a switch of a run that begins; this is a `World`'s `shadow`."""
        node.shadow = Recorder(node.name, sorted(node.out))
        self.recorders.append(node.shadow)

    def compare(self) -> str:
        """Play what was recorded since the last time.

        Return the first difference in words; empty: there is none.
        """
        recorders, self.recorders = self.recorders, []
        for recorder in recorders:
            if any(isinstance(step, Came) for step in recorder.steps):
                found = self._play(recorder)
                if found:
                    return found
        return ""

    def close(self) -> None:
        """End BMv2."""
        if self._switch is not None and self._owner == os.getpid():
            self._switch.close()
        self._switch = None

    def _ready(self, ports: Sequence[int]) -> Bmv2:
        if self._owner != os.getpid():  # what a process before a fork has is not ours
            self._switch = None
        if self._switch is not None and not set(ports) <= set(self._switch.ports):
            ports = sorted({*ports, *self._switch.ports})
            self._switch.close()
            self._switch = None
        if self._switch is None:
            self._switch, self._owner = Bmv2(ports), os.getpid()
        return self._switch

    def _play(self, recorder: Recorder) -> str:
        switch = self._ready(recorder.ports)
        switch.bench.targets = recorder.ports
        switch.restart()
        waiting: list[Came] = []
        for step in recorder.steps:
            if isinstance(step, Came):
                waiting.append(step)
                continue
            if found := _stretch(switch, recorder.name, waiting):
                return found
            waiting = []
            if isinstance(step, Restarted):
                switch.restart()
            elif step.insert or step.delete:
                switch.write(step.insert, step.delete)
        return _stretch(switch, recorder.name, waiting)


def _stretch(switch: Bmv2, name: str, steps: Sequence[Came]) -> str:
    """Play frames between which nothing was written; return the first difference; empty: there is none.

    A port's frames leave in the order in which they were made. So each is known to belong to the frame that
    came in: as many as the model made of that one, the next ones of the port.
    """
    if not steps:
        return ""
    left = switch.play([(step.port, step.frame) for step in steps])
    switch.wait_for_echoes(sum(len(step.echoes) for step in steps))
    echoes, switch.echoes = switch.echoes, []
    taken = dict.fromkeys(left, 0)
    told = 0
    for step in steps:
        actual: list[Out] = []
        for port, _ in step.left:
            actual += [(port, frame) for frame in left[port][taken[port] : taken[port] + 1]]
            taken[port] += 1
        nonces = echoes[told : told + len(step.echoes)]
        told += len(step.echoes)
        if not are_alike(actual, step.left) or nonces != step.echoes:
            return difference(name, "BMv2", step.port, step.frame, (actual, nonces), (step.left, step.echoes))
    more = [(port, frame) for port, frames in left.items() for frame in frames[taken[port] :]]
    if more or echoes[told:]:
        last = steps[-1]
        return difference(
            name,
            "BMv2",
            last.port,
            last.frame,
            ([*last.left, *more], [*last.echoes, *echoes[told:]]),
            (last.left, last.echoes),
        )
    return ""
