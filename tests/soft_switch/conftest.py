"""Data planes with the programs of `tests/soft_switch/programs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from soft_switch.dataplane import DataPlane
from tests.soft_switch.programs import program

PlaneFactory = Callable[[str], DataPlane]


@pytest.fixture
def plane_with() -> Iterator[PlaneFactory]:
    """Makes data planes that run a program, given by name; closes them."""
    planes: list[DataPlane] = []

    def make(name: str) -> DataPlane:
        planes.append(DataPlane(cpu_port=255))
        planes[-1].load(program(name))
        return planes[-1]

    yield make
    for plane in planes:
        plane.close()
