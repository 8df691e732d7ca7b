"""Whom a collective waits for, as the workers' heartbeats tell."""

from __future__ import annotations

import pytest

from controller.api.messages import Heartbeat, Lacking, Leave, Stalled
from controller.jobs.effects import Stuck
from controller.jobs.missing import not_in_it
from tests.controller.jobs.made import PLAN, TIMING, running, told

SILENT = 4 * TIMING.heartbeat_interval_s


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        (None, "rank 1 (h2, 10.0.0.2) is in no collective"),
        (6, "rank 1 (h2, 10.0.0.2) is 1 collective behind"),
        (2**32 - 3, "rank 1 (h2, 10.0.0.2) is 10 collectives behind"),
        (7, ""),
        (8, ""),
    ],
)
def test_who_is_not_in_it(runs: int | None, says: str) -> None:
    job = running(2)
    job.hear(0, Heartbeat(generation=PLAN.generation, running=7), 10.0)
    job.hear(1, Heartbeat(generation=PLAN.generation, running=runs), 10.0)
    words = not_in_it(job.workers, 7, 10.0, TIMING.heartbeat_interval_s)
    assert ", ".join(words).replace("10.0.1.", "10.0.0.") == says


def test_who_is_silent_and_who_has_left() -> None:
    job = running(3)
    for rank in range(3):
        job.hear(rank, Heartbeat(generation=PLAN.generation, running=7), 10.0)
    job.hear(0, Heartbeat(generation=PLAN.generation, running=7), 10.0 + SILENT)
    job.hear(2, Leave(9), 10.0 + SILENT)
    silent, left = not_in_it(job.workers, 7, 10.0 + SILENT, TIMING.heartbeat_interval_s)
    assert silent.startswith("nothing has been heard of rank 1")
    assert left.startswith("rank 2")
    assert left.endswith("has left")


def test_who_asks_is_answered() -> None:
    job = running(2)
    told(job)
    job.hear(1, Stalled(7), 10.0)
    (stuck,) = job.take_effects()
    assert stuck == Stuck(job.workers[1].token, 7)
    job.tell_who_is_missing(stuck, "rank 0 is late")
    assert told(job) == [(1, Lacking(7, "rank 0 is late"))]
