"""What a run is: a cluster, its jobs, and what goes wrong when; as data that JSON can hold.

Packet faults come either from rates, which the seed turns into faults of single frames, or are a list of
such: frame number `frame` (from 0) in a direction of a link. A run notes those that struck, so that a list
of them plays it again. Directions are "h1>l1" and "l1>h1", "l1>s2" and "s2>l1".
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from host_agent.quantisation import BFLOAT16
from host_agent.wire.aggregation import Reduction
from simulation.cases import Case

T = TypeVar("T")
DTYPES: dict[str, np.dtype[Any]] = {
    "int32": np.dtype(np.int32),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}


class ScheduleError(ValueError):
    """A file is no schedule; the message says why."""


@dataclass(frozen=True)
class Rates:
    """How often a link does what to a frame; `late_ns` and `stale_ns`: how far behind it may come then."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    stale: float = 0.0
    late_ns: int = 200_000
    stale_ns: int = 50_000_000


@dataclass(frozen=True)
class Strike:
    """What happened to one frame: "loss", "duplicate", "reorder", "corrupt" or "stale" (a late copy)."""

    link: str
    frame: int
    kind: str
    after_ns: int = 0
    bit: int = 0


@dataclass(frozen=True)
class Mishap:
    """Something breaks `at_ns` after job `since` began to run (0: after the beginning), and works again
    `lasts_ns` later (0: never, or it takes no time).

    worker-kill, worker-pause (`job`, `rank`); link-down (`what`: a direction's two ends, "h1:l1", "l1:s2");
    switch-restart (`what`: a switch, away for so long and empty then); p4runtime-cut (its controller cannot
    reach a switch); controller-restart; session-cut (a worker's session breaks, and it cannot come back);
    disk-full (no write to the controller's database goes through).
    """

    at_ns: int
    kind: str
    what: str = ""
    job: int = 0
    rank: int = 0
    lasts_ns: int = 0
    since: int = 0


@dataclass(frozen=True, kw_only=True)
class Work:
    """One collective, as `simulation.cases.Case` with names, `think_ns` after the one before."""

    module: str
    name: str
    dtype: str
    elements: int
    reduction: str = "SUM"
    root: int = 0
    non_finite: bool = False
    in_place: bool = False
    think_ns: int = 0

    def case(self) -> Case:
        """What it does, and what must come out."""
        return Case(
            self.module,
            self.name,
            DTYPES[self.dtype],
            self.elements,
            Reduction[self.reduction],
            self.root,
            self.non_finite,
        )


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """A job: the host of each rank (by its number), and what all of them run.

    `qpns`: each rank's first QP number, its QP_in's is the next. `adapters`: ranks with NICs that want RNR
    NAKs; `rnr`: agents that do. `starts_ns` and by rank `late_ns`: when a worker joins; `after`: and not
    before that job is over (0: none), whose QP numbers it may have. `backup`: the workers have another
    network.
    """

    hosts: list[int]
    work: list[Work]
    qpns: list[int]
    psns: list[int]
    mode: str = ""
    window: int = 2
    packets: int = 4
    path_mtu: int = 256
    adapters: list[int] = field(default_factory=list)
    rnr: list[int] = field(default_factory=list)
    late_ns: list[int] = field(default_factory=list)
    starts_ns: int = 0
    after: int = 0
    seed: int = 0
    elastic: bool = False
    backup: bool = False
    selective: bool = False


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """All of it. `hosts`: how many there are behind each leaf; no spines: one rack, one switch.

    `slots` on each switch (0: as many as there are); from `calm_ns` on, links do nothing to frames any more.
    """

    seed: int
    spines: int
    hosts: list[int]
    jobs: list[JobPlan]
    host_rates: Rates = Rates()
    uplink_rates: Rates = Rates()
    strikes: list[Strike] | None = None
    mishaps: list[Mishap] = field(default_factory=list)
    spread: str = "jobs"
    slots: int = 0
    calm_ns: int = 10_000_000_000
    latencies: dict[str, int] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """The whole schedule, one fault a line."""
        lines = []
        for name, value in {"p4reduce_schedule": 1, **dataclasses.asdict(self)}.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                items = ",\n".join(f"  {json.dumps(item)}" for item in value)
                lines.append(f' "{name}": [\n{items}\n ]')
            else:
                lines.append(f' "{name}": {json.dumps(value)}')
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """What `to_json` wrote; ScheduleError."""
        try:
            document = json.loads(text)
            if not isinstance(document, dict) or document.pop("p4reduce_schedule", None) != 1:
                raise ScheduleError("this is no schedule of 'p4reduce simulate-faults'")
            return cls(
                **{
                    **document,
                    "jobs": [
                        JobPlan(**{**job, "work": [Work(**work) for work in job["work"]]})
                        for job in document["jobs"]
                    ],
                    "host_rates": Rates(**document["host_rates"]),
                    "uplink_rates": Rates(**document["uplink_rates"]),
                    "strikes": None
                    if document["strikes"] is None
                    else [Strike(**strike) for strike in document["strikes"]],
                    "mishaps": [Mishap(**mishap) for mishap in document["mishaps"]],
                }
            )
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ScheduleError(f"this schedule cannot be read: {error}") from error

    def in_words(self) -> str:
        """For people: a line for each job and each fault."""
        where = f"{self.spines} spines, " if self.spines else ""
        lines = [f"  {where}hosts {'+'.join(map(str, self.hosts))}"]
        for number, job in enumerate(self.jobs, 1):
            work = ", ".join(f"{w.name} of {w.elements} {w.dtype} ({w.module})" for w in job.work)
            lines.append(
                f"  job {number}: hosts {job.hosts}, window {job.window}, {job.packets} packets of "
                f"{job.path_mtu} bytes a message: {work}"
            )
        for mishap in self.mishaps:
            what = f"job {mishap.job}, rank {mishap.rank}" if mishap.job else mishap.what
            lines.append(
                f"  {mishap.at_ns / 1e9:.6f} s: {mishap.kind} {what} for {mishap.lasts_ns / 1e9:.6f} s"
            )
        if self.strikes is None:
            lines.append(f"  links of hosts: {self.host_rates}; between switches: {self.uplink_rates}")
        for strike in self.strikes or []:
            late = (
                f" by {strike.after_ns / 1e6:.3f} ms"
                if strike.kind in ("reorder", "stale", "duplicate")
                else ""
            )
            lines.append(f"  frame {strike.frame} of {strike.link}: {strike.kind}{late}")
        return "\n".join(lines)

    @property
    def faults(self) -> int:
        """How many things go wrong, as far as they are listed."""
        return len(self.mishaps) + len(self.strikes or ())


class StrikesOfLink:
    """What a direction of a link does to its frames, in the order in which they come."""

    def __init__(
        self, name: str, rates: Rates, seed: int, listed: Mapping[int, list[Strike]] | None, log: list[Strike]
    ) -> None:
        self.name = name
        self._rates = rates
        self._listed = listed
        self._log = log
        self._random = random.Random(f"{seed}/{name}")
        bounds, total = [], 0.0
        for kind in ("loss", "duplicate", "reorder", "corrupt", "stale"):
            total += getattr(rates, kind)
            bounds.append((total, kind))
        self._bounds, self._total = bounds, total
        self.quiet = listed is None and total == 0.0

    def at(self, frame: int) -> list[Strike] | None:
        """What happens to a frame; None: nothing."""
        if self._listed is not None:
            struck = self._listed.get(frame)
            if struck:
                self._log.extend(struck)
            return struck
        chance = self._random.random()
        if chance >= self._total:
            return None
        kind = next(kind for bound, kind in self._bounds if chance < bound)
        late = self._rates.stale_ns if kind == "stale" else self._rates.late_ns
        strike = Strike(
            self.name, frame, kind, self._random.randrange(1, late), self._random.randrange(1 << 24)
        )
        self._log.append(strike)
        return [strike]
