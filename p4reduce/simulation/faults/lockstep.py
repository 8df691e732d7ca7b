"""The compiled program beside the model: it gets what each switch of a run gets, and has to do the same.

It runs on the embedded switch's data plane, in this process. What leaves is compared frame by frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from controller.entries import Entry
from p4reduce.oracle.comparing import describe
from p4reduce.oracle.state import Out
from p4reduce.simulation.compiled import CompiledSwitch, are_alike
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.world import World
from p4reduce.simulation.invariant import InvariantError


class EmbeddedShadow:
    """A switch with the program, which is used again: `reset` makes it the counterpart of another one."""

    def __init__(self) -> None:
        self.switch = CompiledSwitch()
        self.node: SwitchNode | None = None
        self._slots: set[int] = set()

    def reset(self, node: SwitchNode) -> None:
        """Empty it, and make it the counterpart of that switch."""
        self.switch.clear()
        self.restart()
        self._slots.clear()
        self.node = node

    def write(self, insert: Sequence[Entry], delete: Sequence[Entry]) -> None:
        """Write what the controller wrote."""
        self.switch.write(insert, delete)

    def restart(self) -> None:
        """Empty the registers."""
        if self.node is not None:
            self._slots |= set(self.node.plane.registers)
        self.switch.forget(self._slots)

    def process(self, port: int, frame: bytes, left: list[Out], echoes: list[int]) -> None:
        """Require that the program does with a frame what the model has done."""
        actual, nonces = self.switch.process(port, frame)
        if are_alike(actual, left) and nonces == echoes:
            return
        assert self.node is not None
        raise InvariantError(
            difference(self.node.name, "the program", port, frame, (actual, nonces), (left, echoes))
        )


def difference(
    name: str,
    what: str,
    port: int,
    frame: bytes,
    actual: tuple[Sequence[Out], Sequence[int]],
    expected: tuple[Sequence[Out], Sequence[int]],
) -> str:
    """Say what the switch `name` of `what` and the model did with a frame: frames that left, and echoes."""

    def told(left: Sequence[Out], echoes: Sequence[int]) -> str:
        return f"{[(p, describe(f)) for p, f in left]}, {list(echoes)}"

    return (
        f"{name}: {what} and the model differ on what came in by port {port}, {describe(frame)}; "
        f"{what}: {told(*actual)}; the model: {told(*expected)}"
    )


@contextmanager
def shadows() -> Iterator[Callable[[World, SwitchNode], None]]:
    """Yield a function that gives each switch of a run its counterpart."""
    spare: list[EmbeddedShadow] = []
    used: list[EmbeddedShadow] = []
    current: list[World] = []

    def give(world: World, node: SwitchNode) -> None:
        if not current or current[0] is not world:
            current[:] = [world]
            spare.extend(used)
            used.clear()
        shadow = spare.pop() if spare else EmbeddedShadow()
        shadow.reset(node)
        used.append(shadow)
        node.shadow = shadow

    try:
        yield give
    finally:
        for shadow in [*spare, *used]:
            shadow.switch.plane.close()
