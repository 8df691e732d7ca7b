"""Programs with much of the language: what simple_switch sends for the same packets."""

from __future__ import annotations

import pytest

from tests.soft_switch.conftest import PlaneFactory
from tests.soft_switch.programs import HERE


@pytest.mark.parametrize("name", ["mixed", pytest.param("varbits", marks=pytest.mark.slow)])
def test_frames(plane_with: PlaneFactory, name: str) -> None:
    """NAME.frames has, line by line, a random packet (- for an empty one) and what BMv2 sends for it."""
    plane = plane_with(name)
    lines = (HERE / f"{name}.frames").read_text().splitlines()
    assert len(lines) > 100
    for number, line in enumerate(lines, 1):
        frame, wanted = (bytes.fromhex(text.strip("-")) for text in line.split())
        [(port, got)] = plane.process(0, frame)
        assert (port, got.hex()) == (1, wanted.hex()), f"line {number}: {line}"
