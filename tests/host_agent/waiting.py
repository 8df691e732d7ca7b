"""Bad links, and patience."""

from __future__ import annotations

import time
from collections.abc import Callable

from p4reduce.simulation.faults.schedule import Rates

BAD_LINKS = Rates(loss=0.03, duplicate=0.03, reorder=0.05, corrupt=0.01)


def eventually(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)
