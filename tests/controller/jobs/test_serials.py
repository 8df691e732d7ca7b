"""Numbers that wrap."""

from __future__ import annotations

import pytest

from controller.jobs.serials import ahead, furthest, rearmost


@pytest.mark.parametrize(
    ("numbers", "rear", "front"),
    [
        ([5], 5, 5),
        ([7, 9, 8], 7, 9),
        ([2**32 - 1, 0, 2**32 - 2], 2**32 - 2, 0),
        ([1, 2**32 - 1], 2**32 - 1, 1),
        ([0, 2**31 - 1], 0, 2**31 - 1),
    ],
)
def test_the_first_and_the_last_of_numbers_that_wrap(numbers: list[int], rear: int, front: int) -> None:
    for turned in (numbers, numbers[::-1]):
        assert (rearmost(turned), furthest(turned)) == (rear, front)
    assert ahead(front, rear) == -ahead(rear, front) == (front - rear) % 2**32
