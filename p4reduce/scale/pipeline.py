"""A tensor in pieces: reduce-scatter inside the machine, planes in the network, all-gather inside.

    piece       time ->
      0     scatter | network | gather  |
      1             | scatter | network | gather  |
      2                       | scatter | network | gather

Piece j is scattered while j-1 is in the network and j-2 is gathered. The first and the last stage share the
GPUs' channels; the planes share the NIC. A stage takes the next piece when it has sent the one before. With
one piece, the stages are phases one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from host_agent.machine.sums import EIGHTHS, LEAST_CUT
from p4reduce.scale.flows import Flow, Link, Network
from p4reduce.workloads.errors import WorkloadError

MAX_PIECES: Final = 4096


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The flow of each stage, and the time that its last byte is under way after it was sent."""

    pieces: int
    planes: int
    inside: Callable[[int], Flow]  # by piece; of both stages inside
    inside_s: float
    in_the_network: Callable[[int, int], Flow]  # by piece and plane
    in_the_network_s: float


@dataclass(frozen=True, kw_only=True)
class Played:
    """The time when the last piece is gathered, and the bytes that each link has carried."""

    seconds: float
    carried: Mapping[Link, float]


def pieces_of(size: float, piece: int) -> list[float]:
    """Cut `size` bytes into equal pieces of at most `piece`, with smaller ones at the ends, as machines do.

    WorkloadError: too many.
    """
    number = max(1, math.ceil(size / piece))
    if number > MAX_PIECES:
        raise WorkloadError(
            f"{number} pieces of a plane are too many to simulate: take pieces of "
            f"{math.ceil(size / MAX_PIECES)} bytes or more"
        )
    if number < LEAST_CUT:
        return [size / number] * number
    ends = [size / number * part / 8 for part in EIGHTHS]
    return [*ends, *[size / number] * (number - 2), *reversed(ends)]


def play(stages: Stages, capacities: Mapping[Link, float], *, begin_s: float = 0.0) -> Played:
    """Play all pieces, from `begin_s` on."""
    network = Network(capacities)
    _Pipeline(stages, network).begin(begin_s)
    return Played(seconds=network.run(), carried=network.carried)


@dataclass
class _Stage:
    """A stage's next piece, and the number of pieces that have come so far."""

    next: int = 0
    ready: int = 0  # pieces before this one may go
    busy: bool = False

    def take(self) -> int | None:
        """Return the next piece if the stage may begin it now; else None."""
        if self.busy or self.next >= self.ready:
            return None
        self.busy = True
        self.next += 1
        return self.next - 1


@dataclass
class _Pipeline:
    stages: Stages
    network: Network
    scatter: _Stage = field(default_factory=_Stage)
    gather: _Stage = field(default_factory=_Stage)
    planes: list[_Stage] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)  # planes, by piece
    summed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.planes = [_Stage() for _ in range(self.stages.planes)]
        self.sent, self.summed = [0] * self.stages.pieces, [0] * self.stages.pieces

    def begin(self, seconds: float) -> None:
        def go() -> None:
            self.scatter.ready = min(2, self.stages.pieces)
            self._scatter()

        self.network.after(seconds, go)

    def _scatter(self) -> None:
        piece = self.scatter.take()
        if piece is None:
            return

        def sent() -> None:
            self.scatter.busy = False
            self.network.after(self.stages.inside_s, arrived)
            self._scatter()

        def arrived() -> None:
            for number, plane in enumerate(self.planes):
                plane.ready = piece + 1
                self._sum(number)

        self.network.start(self.stages.inside(piece), sent)

    def _sum(self, number: int) -> None:
        plane = self.planes[number]
        piece = plane.take()
        if piece is None:
            return

        def sent() -> None:
            plane.busy = False
            self.sent[piece] += 1
            if self.sent[piece] == self.stages.planes:  # so the piece after the next may be scattered
                self.scatter.ready = min(piece + 3, self.stages.pieces)
                self._scatter()
            self.network.after(self.stages.in_the_network_s, arrived)
            self._sum(number)

        def arrived() -> None:
            self.summed[piece] += 1
            if self.summed[piece] == self.stages.planes:
                self.gather.ready = piece + 1
                self._gather()

        self.network.start(self.stages.in_the_network(piece, number), sent)

    def _gather(self) -> None:
        piece = self.gather.take()
        if piece is None:
            return

        def sent() -> None:
            self.gather.busy = False
            self.network.after(self.stages.inside_s, lambda: None)  # the last byte's way
            self._gather()

        self.network.start(self.stages.inside(piece), sent)
