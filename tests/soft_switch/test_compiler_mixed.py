"""Much of the language at once: what simple_switch sends for the same packets."""

from __future__ import annotations

from tests.soft_switch.conftest import PlaneFactory
from tests.soft_switch.programs import HERE


def test_frames(plane_with: PlaneFactory) -> None:
    """mixed.frames has, line by line, a random packet (- for an empty one) and what BMv2 sends for it."""
    plane = plane_with("mixed")
    lines = (HERE / "mixed.frames").read_text().splitlines()
    assert len(lines) > 100
    for number, line in enumerate(lines, 1):
        frame, wanted = (bytes.fromhex(text.strip("-")) for text in line.split())
        [(port, got)] = plane.process(0, frame)
        assert (port, got.hex()) == (1, wanted.hex()), f"line {number}: {line}"
