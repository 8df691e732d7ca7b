"""Negative constants: in selects, in a table's own entries, as arguments of actions."""

from __future__ import annotations

import pytest

from tests.soft_switch.bits import pack
from tests.soft_switch.conftest import PlaneFactory

NUMBER = {"first": 8, "pad": 3, "second": 13, "result": 8}
MISMATCH = 99


@pytest.mark.parametrize(
    ("first", "pad", "second", "result"),
    [
        (-1, 0, -1, -4),
        (-128, 0, 4095, -128),
        (3, 0, -4096, -127),
        (3, 0, 0, -6),
        (-100, 0, 100, 12),
        (-99, 0, 100, -6),
        (42, 0, 101, -11),
        (-2, 1, -3, MISMATCH),
        (-2, 1, -4, -6),
        (-2, 2, -3, -6),
        (5, 1, -4096, MISMATCH),
        (4, 1, -4096, -6),
        (-128, 2, 7, MISMATCH),
    ],
)
def test_negative_constants(plane_with: PlaneFactory, first: int, pad: int, second: int, result: int) -> None:
    values = {"first": first, "pad": pad, "second": second}
    out = pack(NUMBER, {**values, "result": result})
    assert plane_with("signed").process(0, pack(NUMBER, values)) == [(1, out)]
