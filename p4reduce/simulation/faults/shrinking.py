"""Shrinking of a failing schedule to a short one that fails alike: delta debugging.

The faults of packets that struck are taken as a list. Half of all faults is left out, then quarters, and so
on (Zeller's ddmin); then jobs, collectives, elements, workers; then faults again, as fewer may do now.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from p4reduce.simulation.faults.playing import Outcome
from p4reduce.simulation.faults.schedule import (
    JobPlan,
    Mishap,
    Rates,
    Schedule,
    ScheduleError,
    Strike,
    directions,
)

T = TypeVar("T")
Play = Callable[[Schedule], Outcome]
_NAMES = re.compile(r"0x[0-9a-f]+|\b[a-z]\d+(-\d+)?\b|[-+]?\d+(\.\d+)?|\(.*?\)|\[.*?\]|\{.*?\}")


def kind_of(error: str) -> str:
    """Return what broke, without the numbers in it; empty if nothing did."""
    return " ".join(_NAMES.sub("#", error).split())[:60]


@dataclass
class Shrunk:
    """The shortest schedule found, its outcome, and the number of runs that it took."""

    schedule: Schedule
    outcome: Outcome
    runs: int


class Shrinker:
    """A shrinker, which tries for no longer than `seconds`."""

    def __init__(self, outcome: Outcome, play: Play, *, seconds: float = 60.0) -> None:
        self.play = play
        self.wanted = kind_of(outcome.error)
        self.best = outcome
        self.runs = 0
        self._until = time.monotonic() + seconds

    def shrink(self) -> Shrunk:
        """Try all that may help, until nothing does."""
        self._work()  # while links go on as they did
        before = self.best
        if before.schedule.strikes is None:
            listed = replace(
                before.schedule, strikes=list(before.strikes), host_rates=Rates(), uplink_rates=Rates()
            )
            self._try(listed)
        for _ in range(4):
            size = self._size()
            self._faults()
            self._work()
            self._short()
            if self._size() == size:
                break
        return Shrunk(self.best.schedule, self.best, self.runs)

    def _size(self) -> tuple[int, int, int]:
        schedule = self.best.schedule
        work = sum(1 + w.elements for job in schedule.jobs for w in job.work)
        return schedule.faults, work, sum(len(job.hosts) for job in schedule.jobs)

    def _try(self, schedule: Schedule) -> bool:
        """Play a schedule; return whether it fails alike. If so, it is the best so far."""
        if time.monotonic() > self._until:
            return False
        try:
            schedule.check()
        except ScheduleError:  # it makes no sense any more, and could not be read again
            return False
        self.runs += 1
        outcome = self.play(schedule)
        if kind_of(outcome.error) != self.wanted:
            return False
        self.best = outcome
        return True

    def _faults(self) -> None:
        """Find the fewest mishaps and strikes, taken as one list, with which it fails."""
        schedule = self.best.schedule
        faults: list[Mishap | Strike] = [*schedule.mishaps, *(schedule.strikes or [])]

        def fails(some: Sequence[Mishap | Strike]) -> bool:
            return self._try(
                replace(
                    schedule,
                    mishaps=[fault for fault in some if isinstance(fault, Mishap)],
                    strikes=None
                    if schedule.strikes is None
                    else [fault for fault in some if isinstance(fault, Strike)],
                )
            )

        fewest(faults, fails)

    def _work(self) -> None:
        again = True
        while again and time.monotonic() < self._until:
            again = any(self._try(smaller) for smaller in _smaller(self.best.schedule))

    def _short(self) -> None:
        """Try faults that last for less, at round times."""
        for n, mishap in enumerate(self.best.schedule.mishaps):
            for lasts in (0, 1_000_000, 100_000_000):
                if lasts < mishap.lasts_ns:
                    changed = list(self.best.schedule.mishaps)
                    changed[n] = replace(mishap, lasts_ns=lasts)
                    if self._try(replace(self.best.schedule, mishaps=changed)):
                        break


def fewest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a part of `items` that fails, of which no single item may be left out (ddmin)."""
    items, parts = list(items), 2
    if items and fails([]):
        return []
    while len(items) >= 2:
        size = -(-len(items) // parts)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        for n in range(len(chunks)):
            rest = [item for k, chunk in enumerate(chunks) for item in chunk if k != n]
            if fails(rest):
                items, parts = rest, max(2, parts - 1)
                break
        else:
            if parts >= len(items):
                break
            parts = min(len(items), 2 * parts)
    return items


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules with a little less to do."""
    jobs = schedule.jobs
    for n in range(len(jobs) - 1, -1, -1):
        if len(jobs) > 1:
            yield _without_job(schedule, n)
    for n, job in enumerate(jobs):
        for smaller in _smaller_job(job):
            yield replace(schedule, jobs=[*jobs[:n], smaller, *jobs[n + 1 :]])
    if schedule.slots:
        yield replace(schedule, slots=0)
    used = {host for job in jobs for host in job.hosts}
    hosts, total = list(schedule.hosts), sum(schedule.hosts)
    if hosts[-1] > 1 and total - 1 not in used:
        yield _what_is_left(replace(schedule, hosts=[*hosts[:-1], hosts[-1] - 1]))
    elif len(hosts) > 1 and hosts[-1] == 1 and total - 1 not in used:
        yield _what_is_left(replace(schedule, hosts=hosts[:-1]))
    if schedule.spines > 1:
        yield _what_is_left(replace(schedule, spines=schedule.spines - 1))


def _what_is_left(schedule: Schedule) -> Schedule:
    """Return the schedule without faults of hosts, switches and links that are gone."""
    config = schedule.config()
    links = directions(config)
    there = {"", *(switch.name for switch in config.switches), *(link.replace(">", ":") for link in links)}
    strikes = schedule.strikes
    return replace(
        schedule,
        mishaps=[mishap for mishap in schedule.mishaps if mishap.what in there],
        strikes=None if strikes is None else [strike for strike in strikes if strike.link in links],
    )


def _smaller_job(job: JobPlan) -> Iterator[JobPlan]:
    for n in range(len(job.work) - 1, -1, -1):
        if len(job.work) > 1:
            yield replace(job, work=[*job.work[:n], *job.work[n + 1 :]])
    if len(job.hosts) > 2:
        last = len(job.hosts) - 1
        yield replace(
            job,
            hosts=job.hosts[:-1],
            qpns=job.qpns[:-1],
            psns=job.psns[:-1],
            late_ns=job.late_ns[:-1],
            adapters=[rank for rank in job.adapters if rank != last],
            rnr=[rank for rank in job.rnr if rank != last],
        )
    if job.adapters:
        yield replace(job, adapters=[])
    if job.rnr:
        yield replace(job, rnr=[])
    if any(job.late_ns):
        yield replace(job, late_ns=[0] * len(job.hosts))
    for n, work in enumerate(job.work):
        for elements in (0, 1, work.elements // 2):
            if elements < work.elements:
                smaller = replace(work, elements=elements)
                yield replace(job, work=[*job.work[:n], smaller, *job.work[n + 1 :]])
        plain = replace(
            work, dtype="int32", reduction="SUM", non_finite=False, half=False, scaled=False, think_ns=0
        )
        if plain != work:
            yield replace(job, work=[*job.work[:n], plain, *job.work[n + 1 :]])


def _without_job(schedule: Schedule, n: int) -> Schedule:
    """Return the schedule without a job.

    Numbers of jobs behind it change, also where faults and other jobs name them.
    """

    def moved(number: int) -> int:
        return number - 1 if number > n + 1 else number

    jobs = [
        replace(job, after=0 if job.after == n + 1 else moved(job.after))
        for k, job in enumerate(schedule.jobs)
        if k != n
    ]
    mishaps = [
        replace(mishap, job=moved(mishap.job), since=moved(mishap.since))
        for mishap in schedule.mishaps
        if n + 1 not in (mishap.job, mishap.since)  # else it would never begin
    ]
    return replace(schedule, jobs=jobs, mishaps=mishaps)
