"""Many seeds: one after the other, or in several processes; what came of them, and how fast."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from p4reduce.simulation.faults.playing import Outcome

CHUNK = 10  # seeds that a process is given at a time


@dataclass(frozen=True)
class Failure:
    """A seed, and the invariant that broke."""

    seed: int
    error: str


@dataclass
class Tally:
    """What some seeds came to. `interrupted`: by Ctrl-C, before all of them were played."""

    seeds: int = 0
    events: int = 0
    packets: int = 0
    collectives: int = 0
    renewals: int = 0
    simulated_s: float = 0.0
    seconds: float = 0.0
    workers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    interrupted: bool = False

    def add(self, outcome: Outcome) -> None:
        """One seed more."""
        self.seeds += 1
        self.events += outcome.events
        self.packets += outcome.packets
        self.collectives += outcome.collectives
        self.renewals += outcome.renewals
        self.simulated_s += outcome.simulated_s
        self.workers.update(outcome.jobs)
        self.faults.update(strike.kind for strike in outcome.strikes)
        self.faults.update(mishap.kind for mishap in outcome.schedule.mishaps)
        if outcome.error:
            self.failures.append(Failure(outcome.schedule.seed, outcome.error))

    def merge(self, other: Tally) -> None:
        """Those of another process."""
        for name in ("seeds", "events", "packets", "collectives", "renewals", "simulated_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.workers.update(other.workers)
        self.faults.update(other.faults)
        self.failures += other.failures
        self.interrupted = self.interrupted or other.interrupted

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "seeds": self.seeds,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
            "seeds_per_s": round(self.seeds / self.seconds, 2) if self.seconds else None,
            "events": self.events,
            "packets": self.packets,
            "collectives": self.collectives,
            "renewals": self.renewals,
            "simulated_s": round(self.simulated_s, 3),
            "workers": dict(sorted(self.workers.items())),
            "faults": dict(sorted(self.faults.items())),
            "failures": [{"seed": failure.seed, "error": failure.error} for failure in self.failures],
        }


def run_many(
    seeds: range,
    *,
    processes: int = 1,
    seconds: float | None = None,
    say: Callable[[Tally], None] | None = None,
    play: Callable[[Iterable[int]], Tally],
) -> Tally:
    """Play seeds until all are done, or time is up, or Ctrl-C; `say` hears of progress every second or so."""
    tally, started, said = Tally(), time.monotonic(), time.monotonic()
    try:
        with _players(processes, play) as players:
            for part in players(_chunks(seeds)):
                tally.merge(part)
                tally.seconds = time.monotonic() - started
                if say is not None and time.monotonic() - said >= 1.0:
                    said = time.monotonic()
                    say(tally)
                if tally.interrupted or (seconds is not None and tally.seconds >= seconds):
                    break
    except KeyboardInterrupt:
        tally.interrupted = True
    tally.seconds = time.monotonic() - started
    tally.failures.sort(key=lambda failure: failure.seed)
    return tally


def _chunks(seeds: range) -> Iterator[range]:
    """One by one, without len(): there may be more seeds than fit into memory, or into what len() can say."""
    for start in range(seeds.start, seeds.stop, CHUNK):
        yield range(start, min(start + CHUNK, seeds.stop))


_HELD_BACK = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
Players = Callable[[Iterable[range]], Iterator[Tally]]


@contextmanager
def _players(processes: int, play: Callable[[Iterable[int]], Tally]) -> Iterator[Players]:
    if processes == 1:
        yield lambda chunks: map(play, chunks)
        return
    context = multiprocessing.get_context("fork")
    # Signals are held back while others are made, which would take them as this process does.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        pool = context.Pool(processes, initializer=_set_signals)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with pool:
        # What goes to them is a pipe: only as many chunks are made ahead as there is room for in that.
        yield lambda chunks: pool.imap_unordered(play, chunks)


def _set_signals() -> None:
    """Ctrl-C is for the process that gathers. What ends the pool does so at once.

    A handler in Python runs when Python does: never, if the signal comes just before it begins to wait.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
