"""Data planes with the programs of `tests/soft_switch/programs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from soft_switch.dataplane import DataPlane
from tests.soft_switch.beside_bmv2 import PORTS, Both
from tests.soft_switch.programs import program
from tests.soft_switch.switches import Bench, Fence, Wire, namespace, running, unique

PlaneFactory = Callable[[str], DataPlane]


@pytest.fixture
def plane_with() -> Iterator[PlaneFactory]:
    """Yield a maker of data planes that run a program, given by name; they are closed at the end."""
    planes: list[DataPlane] = []

    def make(name: str) -> DataPlane:
        planes.append(DataPlane(cpu_port=255))
        planes[-1].load(program(name))
        return planes[-1]

    yield make
    for plane in planes:
        plane.close()


@pytest.fixture
def both() -> Iterator[Both]:
    """Yield this switch and BMv2 in one namespace, each with four ports."""
    names = {kind: {p: (f"{kind}w{p}", f"{kind}s{p}") for p in PORTS} for kind in "ab"}
    with ExitStack() as stack:
        space = stack.enter_context(
            namespace(unique("p4cmp"), [p for n in names.values() for p in n.values()])
        )
        benches = []
        for pairs in names.values():
            wires = {port: Wire(space, far) for port, (far, _) in pairs.items()}
            benches.append(Bench(wires, Fence()))
            stack.callback(benches[-1].close)
        switches = [
            stack.enter_context(running(space, {p: near for p, (_, near) in pairs.items()}, bmv2=kind == "b"))
            for kind, pairs in names.items()
        ]
        yield switches, benches
