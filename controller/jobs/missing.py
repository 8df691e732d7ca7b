"""Workers that a collective without progress waits for, from what workers said. No I/O.

If the switches' slots name somebody, they know better (`controller/orchestration/missing.py`): what a worker
has said is up to a heartbeat's interval old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.jobs.serials import ahead
from controller.jobs.workers import WorkerState

_BEATS = 3  # who has missed so many heartbeats has stopped, or is out of reach


def not_in_it(
    workers: Mapping[int, WorkerState], collective: int, now: float, interval_s: float
) -> Iterator[str]:
    """Yield, in words, the workers that are silent, or are not in that collective."""
    for _, worker in sorted(workers.items()):
        silent_s = now - worker.heard_at
        if worker.lost or silent_s > _BEATS * interval_s:
            yield f"nothing has been heard of {worker.member} for {silent_s:.0f} s"
        elif worker.leaving:
            yield f"{worker.member} has left"
        elif worker.in_collective is None:
            yield f"{worker.member} is in no collective"
        elif (behind := ahead(collective, worker.in_collective)) > 0:
            yield f"{worker.member} is {behind} collective{'s' * (behind > 1)} behind"
