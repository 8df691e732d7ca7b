"""Shared state of a soak's threads: counts, running jobs, killed workers, the first failure."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from topologies.processes import ProcessId

IDLE_S: Final = 0.2
_LAST_STEPS: Final = 30
_AFTERMATH_S: Final = 40.0  # for so long what happened may still be why a job could not begin


@dataclass
class Running:
    """A job that runs: its live `ranks` (as in the beginning), those `killed` on purpose, all processes.

    `gpus`: ranks of one machine; a worker that dies takes its machine's workers along.
    """

    name: str
    ranks: set[int]
    gpus: int = 1
    processes: dict[int, ProcessId] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    spared: bool = False

    def kill(self, rank: int) -> None:
        """Count a rank and all of its machine as dead."""
        first = rank - rank % self.gpus
        machine = {*range(first, first + self.gpus)}
        self.ranks -= machine
        self.killed |= machine


class Board:
    """State shared by all threads; every method may be called by any thread."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.failure = ""
        self.interrupted = False
        self._lock = threading.RLock()
        self._steps: deque[str] = deque(maxlen=_LAST_STEPS)
        self._running: dict[str, Running] = {}
        self._quiet = threading.Event()
        self._busy = 0
        self._disturbed_until = 0.0
        self._began = time.monotonic()

    def take_turns(self, who: str, turn: Callable[[], None]) -> None:
        """Call `turn` again and again until the soak ends; an exception ends the soak."""
        try:
            while not self.stop.is_set():
                if not self.enter():
                    time.sleep(IDLE_S)
                    continue
                try:
                    turn()
                finally:
                    self.leave()
        except Exception as error:  # noqa: BLE001 (whatever it is, the soak has to end with it)
            self.fail(f"{who}: {type(error).__name__}: {error}")

    def count(self, **what: int) -> None:
        """Add to the figures."""
        with self._lock:
            self.counts.update(what)

    def step(self, text: str, kind: str) -> None:
        """Note that a fault begins."""
        with self._lock:
            self.faults[kind] += 1
            self._steps.append(f"{self.elapsed_s:7.1f} s  {text}")

    def note(self, text: str) -> None:
        """Note more about the fault that has just begun."""
        with self._lock:
            self._steps.append(f"{self.elapsed_s:7.1f} s  {text}")

    def fail(self, text: str) -> None:
        """End the soak with a failure. Only the first one counts, and none after an interruption."""
        with self._lock:
            if not self.failure and not self.interrupted:
                steps = "\n  ".join(self._steps)
                self.failure = f"at {self.elapsed_s:.1f} s: {text}\nfaults before it:\n  {steps}"
        self.stop.set()

    @property
    def over(self) -> bool:
        """True if the soak is to end. The main thread asks: only it hears of an interruption."""
        if self.interrupted:  # by a signal's handler, which must wait for no lock
            self.stop.set()
        return self.stop.is_set()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the soak began."""
        return time.monotonic() - self._began

    # Jobs, for faults that are aimed at workers

    def begins(self, job: Running) -> None:
        """Note that a job's workers have all joined."""
        with self._lock:
            self._running[job.name] = job

    def ends(self, job: Running) -> None:
        """Remove a job: faults no longer aim at its workers."""
        with self._lock:
            self._running.pop(job.name, None)

    def victim(self, choice: float, *, kill: bool) -> tuple[str, int, ProcessId] | None:
        """Draw a job and a rank of it by `choice` in 0..1. With `kill`, the rank counts as dead from now on.

        With `kill`, spared jobs and jobs of one machine are left out. None if there is no victim.
        """
        with self._lock:
            there = [
                (job, rank)
                for job in self._running.values()
                for rank in sorted(job.ranks)
                if not (kill and (job.spared or len(job.ranks) == job.gpus))
            ]
            if not there:
                return None
            job, rank = there[int(choice * len(there))]
            if kill:
                job.kill(rank)
            return job.name, rank, job.processes[rank]

    # What keeps jobs from beginning

    def disturb(self, hold_s: float) -> None:
        """Note that the controller, its disk or a switch is away for so long."""
        with self._lock:
            self._disturbed_until = max(self._disturbed_until, time.monotonic() + hold_s + _AFTERMATH_S)

    def disturbed(self) -> bool:
        """Return whether a job that cannot begin has an excuse."""
        with self._lock:
            return time.monotonic() < self._disturbed_until

    # Quiet moments

    def enter(self) -> bool:
        """Return whether the thread may work now, and count it as busy if so."""
        with self._lock:
            if self._quiet.is_set() or self.stop.is_set():
                return False
            self._busy += 1
            return True

    def leave(self) -> None:
        """Count the thread as idle again."""
        with self._lock:
            self._busy -= 1

    def hush(self, limit_s: float) -> bool:
        """Let no thread begin anything; return whether all are idle within `limit_s`."""
        self._quiet.set()
        deadline = time.monotonic() + limit_s
        while self.busy and not self.over and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.busy

    def resume(self) -> None:
        """Let the threads go on."""
        self._quiet.clear()

    @property
    def quiet(self) -> bool:
        """True if threads are to begin nothing and to bring their work to its end."""
        return self._quiet.is_set() or self.stop.is_set()

    @property
    def busy(self) -> int:
        """Number of threads that work."""
        with self._lock:
            return self._busy
