"""Pairs of this switch and simple_switch_grpc with one program: asked the same, they have to do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import grpc

from soft_switch.dataplane import DataPlane
from tests.conformance.alike import Outputs, difference
from tests.conformance.bmv2 import Bmv2, running_bmv2
from tests.conformance.p4runtime import OverP4Runtime, refused
from tests.conformance.ways import served
from tests.soft_switch.switches import Controller

BATCH = 16  # BMv2's output queues hold 64 packets, also of replicas
Packets = Sequence[tuple[int, bytes]]
Program = tuple[bytes, str]
"""BMv2 JSON and the text of P4Info."""


class BothRefuse(Exception):
    """Error where neither switch takes a program."""


class Pair:
    """Both switches with one program."""

    def __init__(self, program: Program, plane: DataPlane, ours: Controller, theirs: Bmv2) -> None:
        self.program, self.plane, self.ours, self.theirs = program, plane, ours, theirs
        self.restart()

    def restart(self) -> None:
        """Load the program as if it had not been there before. BothRefuse if it cannot be loaded."""
        controllers = (self.ours, self.theirs.controller)
        answers = [_answer(controller.push, *self.program) for controller in controllers]
        if not _accepted(answers):
            raise BothRefuse("; ".join(answers))
        self.controls = (OverP4Runtime(self.ours), OverP4Runtime(self.theirs.controller))

    def both(self, request: Callable[[OverP4Runtime], object]) -> bool:
        """Make a request to both; tell if they accept it, which has to be the same."""
        return _accepted([_answer(request, control) for control in self.controls])

    def same(self, read: Callable[[OverP4Runtime], object]) -> None:
        """Read from both, and compare."""
        ours, theirs = (read(control) for control in self.controls)
        assert ours == theirs

    def play(self, packets: Packets, *, batch: int = BATCH, in_order: bool = True) -> list[Outputs]:
        """Send packets through both and compare what leaves, a port's packets `in_order`; give what left."""
        result: list[Outputs] = []
        for at in range(0, len(packets), batch):
            some = packets[at : at + batch]
            for packet, theirs in zip(some, self.theirs.process(some), strict=True):
                ours = self.plane.process(*packet)
                told = difference(packet, ours, theirs, in_order=in_order)
                assert told is None, told
                result.append(ours)
        return result


def _answer(request: Callable[..., object], *operands: object) -> str:
    try:
        request(*operands)
    except grpc.RpcError as error:
        return f"refused: {refused(error)}"
    return "accepted"


def _accepted(answers: Sequence[str]) -> bool:
    """Tell if both accept; assert that both do the same."""
    ours, theirs = (answer == "accepted" for answer in answers)
    assert ours == theirs, f"soft_switch: {answers[0]}\nBMv2: {answers[1]}"
    return ours


@contextmanager
def pair_with(program: Program) -> Iterator[Pair]:
    """Yield both switches with a program."""
    with ExitStack() as stack:
        plane = stack.enter_context(DataPlane())
        ours = stack.enter_context(served(plane))
        yield Pair(program, plane, ours, stack.enter_context(running_bmv2()))
