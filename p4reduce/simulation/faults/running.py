"""Many seeds, one after the other or by an executor, with their outcomes and their speed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final

from p4reduce.simulation.faults.playing import Outcome

CHUNK: Final = 10  # seeds that are handed over at a time
AHEAD: Final = 1024  # chunks that an executor has: more than it has workers


@dataclass(frozen=True)
class Failure:
    """A seed, and the invariant that broke."""

    seed: int
    error: str


@dataclass
class Tally:
    """The outcomes of some seeds. `interrupted`: by Ctrl-C, before all of them were played."""

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
        """Add one seed's outcome."""
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
        """Add the tally of another process."""
        for name in ("seeds", "events", "packets", "collectives", "renewals", "simulated_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.workers.update(other.workers)
        self.faults.update(other.faults)
        self.failures += other.failures
        self.interrupted = self.interrupted or other.interrupted

    def as_json(self) -> dict[str, Any]:
        """Return the tally as a file has it."""
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
    executor: Executor | None = None,
    seconds: float | None = None,
    say: Callable[[Tally], None] | None = None,
    play: Callable[[range], Tally],
) -> Tally:
    """Play seeds until all are done, or time is up, or Ctrl-C; `say` hears of progress every second or so.

    `executor`: any engine's; `play` and what it returns are pickled then. Without one, seeds are played here.
    """
    tally, started, said = Tally(), time.monotonic(), time.monotonic()
    parts = map(play, _chunks(seeds)) if executor is None else _as_they_come(executor, play, _chunks(seeds))
    try:
        for part in parts:
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
    """Yield chunks of the seeds, one by one.

    There may be more seeds than fit into memory, or than len() can say.
    """
    for start in range(seeds.start, seeds.stop, CHUNK):
        yield range(start, min(start + CHUNK, seeds.stop))


def _as_they_come(
    executor: Executor, play: Callable[[range], Tally], chunks: Iterator[range]
) -> Iterator[Tally]:
    """Yield tallies in the order in which they are done.

    What has not begun when the caller asks for no more is cancelled.
    """
    done: SimpleQueue[Future[Tally]] = SimpleQueue()
    under_way: set[Future[Tally]] = set()

    def submit(chunk: range) -> None:
        future = executor.submit(play, chunk)
        under_way.add(future)
        future.add_done_callback(done.put)

    try:
        for chunk in islice(chunks, AHEAD):
            submit(chunk)
        while under_way:
            future = done.get()
            under_way.remove(future)
            for chunk in islice(chunks, 1):
                submit(chunk)
            yield future.result()
    finally:
        for future in under_way:
            future.cancel()
