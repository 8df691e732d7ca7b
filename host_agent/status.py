"""A worker's status, in plain numbers: what `p4reduce doctor` asks of each worker."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from host_agent.member import Member
from host_agent.runner import Alone, Runner
from host_agent.transport.errors import TransportClosedError

_NS: Final = 1e9
_FRAMES: Final = 8  # of a stack, the innermost
_OURS: Final = str(Path(__file__).parent)
_STDLIB: Final = str(Path(threading.__file__).parent)


def status(
    *,
    job: str,
    rank: int,
    world_size: int,
    generation: int,
    runner: Runner,
    member: Member,
    failure: str,
    is_leaving: bool,
    machine: dict[str, Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Return JSON. Times are seconds before now, None for never; see `p4reduce.doctor.facts.WorkerStatus`."""
    now, running = clock(), runner.running
    counters = runner.counters()
    try:
        progress = runner.link.progress()
    except TransportClosedError:  # between two generations
        progress = Alone().progress()
    return {
        "job": job,
        "rank": rank,
        "pid": os.getpid(),
        "world_size": world_size,
        "generation": generation,
        "mode": member.mode.name.lower(),
        "mode_reason": member.mode_reason,
        "collective": None if running is None else {"what": running[0], "for_s": now - running[1]},
        "next_collective": member.next_collective,
        "is_held": member.is_holding,
        "idle_s": None if running is not None else now - runner.idle_since,
        "is_leaving": is_leaving,
        "failure": failure,
        "progress": {**asdict(progress), "oldest_unacked_s": _ago(progress.oldest_unacked_since_ns, now)},
        "counters": asdict(counters),
        "sent_s_ago": _ago(counters.last_sent_ns, now),
        "received_s_ago": _ago(counters.last_received_ns, now),
        "threads": list(threads()),
        "machine": machine,
    }


def _ago(at_ns: int, now: float) -> float | None:
    """Return seconds before `now`, None for never: the endpoint's clock is the monotonic one, as ours."""
    return max(0.0, now - at_ns / _NS) if at_ns else None


def threads() -> Iterator[dict[str, Any]]:
    """Yield the user's threads with their stacks, innermost frame last: "train.py:83 in load_batch"."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.name.startswith("p4reduce-metrics") or thread.ident not in frames:
            continue
        stack = [
            (frame.filename, f"{frame.filename}:{frame.lineno} in {frame.name}")
            for frame in traceback.StackSummary.extract(
                traceback.walk_stack(frames[thread.ident]), lookup_lines=False
            )
        ]
        stack.reverse()
        if thread is threading.main_thread() or any(_is_users(file) for file, _ in stack):
            yield {
                "name": thread.name,
                "stack": [line for _, line in stack][-_FRAMES:],
                "users": next((line for file, line in reversed(stack) if _is_users(file)), ""),
            }


def _is_users(file: str) -> bool:
    """Tell whether a frame is the user's: not of this package, Python itself or installed packages."""
    return not (file.startswith((_OURS, _STDLIB, "<")) or "site-packages" in file or "dist-packages" in file)
