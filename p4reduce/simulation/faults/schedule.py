"""What a run is: a cluster, its jobs, and what goes wrong when; as data that JSON can hold.

Packet faults come either from rates, which the seed turns into faults of single frames, or are a list of
such: frame number `frame` (from 0) in a direction of a link. A run notes those that struck, so that a list
of them plays it again. Directions are "h1>l1" and "l1>h1", "l1>s2" and "s2>l1".
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from controller.api.errors import InvalidRequestError
from controller.api.messages import JobSpec, Mode
from controller.config import MAX_LEAVES, MAX_SPINES, Config, ConfigError, Spread
from controller.orchestration.planning import check_qps, check_spec
from host_agent.quantisation import BFLOAT16
from host_agent.wire.aggregation import Reduction
from host_agent.wire.psn import PSN_MASK
from p4reduce.simulation.cases import Case
from p4reduce.simulation.faults.fields import FieldError, Length, OneOf, Within, built, require
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.network import fabric_config
from p4src import MAX_RANKS, MAX_SLOTS

DTYPES: dict[str, np.dtype[Any]] = {
    "int32": np.dtype(np.int32),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
STRIKES = ("loss", "duplicate", "reorder", "corrupt", "stale")
ON_WORKERS = ("worker-kill", "worker-pause", "session-cut")
ON_SWITCHES = ("switch-restart", "p4runtime-cut")
ON_CONTROLLER = ("controller-restart", "controller-pause", "database-lost")
# Both say less of jobs than there is to say; a restored one says what is no longer so, too.
DATABASE_GONE = ("database-lost", "database-restored")
MISHAPS = (
    *ON_WORKERS,
    *ON_SWITCHES,
    *ON_CONTROLLER,
    "link-down",
    "disk-full",
    "database-backup",
    "database-restored",
)
# What a controller waits for, which `Schedule.timing` may change.
TIMES = tuple(f.name for f in dataclasses.fields(Config) if f.name.endswith("_s"))

MAX_SEED = 2**64 - 1
_LONGEST_NS = 3600 * NS  # of simulated time: heartbeats and probes are events all the while
_MOST_ELEMENTS = 1 << 13  # of a rank: what 32 ranks gather stays small, and a run does not take minutes
_MANY = 1 << 62  # of what no run gets to

Count = Annotated[int, Within(0, _MANY)]
Time = Annotated[int, Within(0, _LONGEST_NS)]
Late = Annotated[int, Within(2, _LONGEST_NS)]
Chance = Annotated[float, Within(0, 1)]
Seconds = Annotated[float, Within(0.001, _LONGEST_NS / NS)]
Seed = Annotated[int, Within(0, MAX_SEED)]
Rank = Annotated[int, Within(0, MAX_RANKS - 1)]


class ScheduleError(ValueError):
    """A file is no schedule; the message says why."""


@dataclass(frozen=True)
class Rates:
    """How often a link does what to a frame; `late_ns` and `stale_ns`: how far behind it may come then."""

    loss: Chance = 0.0
    duplicate: Chance = 0.0
    reorder: Chance = 0.0
    corrupt: Chance = 0.0
    stale: Chance = 0.0
    late_ns: Late = 200_000
    stale_ns: Late = 50_000_000


@dataclass(frozen=True)
class Strike:
    """What happened to one frame: "loss", "duplicate", "reorder", "corrupt" or "stale" (a late copy)."""

    link: str
    frame: Count
    kind: Annotated[str, OneOf(STRIKES)]
    after_ns: Time = 0
    bit: Count = 0


@dataclass(frozen=True)
class Mishap:
    """Something breaks `at_ns` after job `since` began to run (0: after the beginning), and works again
    `lasts_ns` later (0: never, or it takes no time).

    worker-kill, worker-pause (`job`, `rank`); link-down (`what`: a direction's two ends, "h1:l1", "l1:s2");
    switch-restart (`what`: a switch, away for so long and empty then); p4runtime-cut (its controller cannot
    reach a switch); controller-restart; controller-pause (SIGSTOP and SIGCONT); database-lost (the
    controller is killed, and started on a new one); session-cut (a worker's session breaks, and it cannot
    come back); disk-full (no write to the controller's database goes through); database-backup (takes no
    time); database-restored (as database-lost, with the last backup; its own where there is none).
    """

    at_ns: Time
    kind: Annotated[str, OneOf(MISHAPS)]
    what: str = ""
    job: Count = 0
    rank: Count = 0
    lasts_ns: Time = 0
    since: Count = 0


@dataclass(frozen=True, kw_only=True)
class Work:
    """One collective, as `p4reduce.simulation.cases.Case` with names, `think_ns` after the one before."""

    module: Annotated[str, OneOf(("in_network", "ring"))]
    name: Annotated[str, OneOf(COLLECTIVES)]
    dtype: Annotated[str, OneOf(DTYPES)]
    elements: Annotated[int, Within(0, _MOST_ELEMENTS)]
    reduction: Annotated[str, OneOf(("SUM", "AVG", "MAX", "MIN"))] = "SUM"
    root: Count = 0
    non_finite: bool = False
    in_place: bool = False
    half: bool = False
    scaled: bool = False
    think_ns: Time = 0

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
            self.half,
            self.scaled,
        )


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """A job: the host of each rank (by its number), and what all of them run.

    `qpns`: each rank's first QP number, its QP_in's is the next. `adapters`: ranks with NICs that want RNR
    NAKs; `rnr`: agents that do. `starts_ns` and by rank `late_ns`: when a worker joins; `after`: and not
    before that job is over (0: none), whose QP numbers it may have. `backup`: the workers have another
    network. `first_message`: what messages of its first generation count from.
    """

    hosts: Annotated[list[Count], Length(1, MAX_RANKS)]
    work: list[Work]
    qpns: list[Count]
    psns: list[Count]
    mode: Annotated[str, OneOf(("", *Mode.__members__))] = ""
    window: Count = 2
    packets: Count = 4
    path_mtu: Count = 256
    adapters: list[Rank] = field(default_factory=list)
    rnr: list[Rank] = field(default_factory=list)
    late_ns: list[Time] = field(default_factory=list)
    starts_ns: Time = 0
    after: Count = 0
    seed: Seed = 0
    elastic: bool = False
    backup: bool = False
    selective: bool = False
    first_message: Annotated[int, Within(0, 2**32 - 1)] = 0

    def spec(self, name: str) -> JobSpec:
        """What the controller is asked for."""
        return JobSpec(
            name=name,
            world_size=len(self.hosts),
            mode=Mode[self.mode] if self.mode else None,
            path_mtu=self.path_mtu,
            window=self.window,
            message_packets=self.packets,
            elastic=self.elastic,
            selective=self.selective,
        )


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """All of it. `hosts`: how many there are behind each leaf; no spines: one rack, one switch.

    `slots` on each switch (0: as many as there are); from `calm_ns` on, links do nothing to frames any more.
    `renumber`: after how many messages a job in the network has a new generation (0: as usual).
    """

    seed: Seed
    spines: Annotated[int, Within(0, MAX_SPINES)]
    hosts: Annotated[list[Annotated[int, Within(1, MAX_RANKS)]], Length(1, MAX_LEAVES)]
    jobs: Annotated[list[JobPlan], Length(1, 64)]
    host_rates: Rates = Rates()
    uplink_rates: Rates = Rates()
    strikes: list[Strike] | None = None
    mishaps: list[Mishap] = field(default_factory=list)
    spread: Annotated[str, OneOf([spread.value for spread in Spread])] = "jobs"
    slots: Annotated[int, Within(0, MAX_SLOTS)] = 0
    calm_ns: Time = 10_000_000_000
    latencies: dict[str, Time] = field(default_factory=dict)
    timing: dict[str, Seconds] = field(default_factory=dict)
    renumber: Annotated[int, Within(0, 2**30)] = 0

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
        except (ValueError, RecursionError) as error:  # also of numbers that are too long, and brackets
            raise ScheduleError(f"this is no JSON: {error}") from error
        if not isinstance(document, dict) or document.pop("p4reduce_schedule", None) != 1:
            raise ScheduleError("this is no schedule of 'p4reduce simulate-faults'")
        try:
            schedule = built(cls, document)
        except FieldError as error:
            raise ScheduleError(str(error)) from error
        schedule.check()
        return schedule

    def config(self) -> Config:
        """What the controller is told of the cluster; ConfigError."""
        config = fabric_config(self.spines, self.hosts, Spread(self.spread))
        timing: dict[str, Any] = {
            "heartbeat_interval_s": 0.5,
            "heartbeat_timeout_s": 2.0,
            "lost_timeout_s": 1.5,
            "resume_timeout_s": 4.0,
            "switch_timeout_s": 3.0,
            **self.timing,
        }
        if self.renumber:
            timing["renumber_messages"] = self.renumber
        return dataclasses.replace(config, path_mtu=4096, **timing)

    def check(self) -> None:
        """What no field alone can tell; ScheduleError."""
        try:
            self._check_cluster()
            config = self.config()
            for n, job in enumerate(self.jobs):
                self._check_job(config, job, n)
            self._check_faults(config)
        except (FieldError, ConfigError, InvalidRequestError) as error:
            raise ScheduleError(str(error)) from error

    def _check_cluster(self) -> None:
        if not self.spines:
            require(Length(1, 1), self.hosts, "without spines, hosts")
        for name in self.timing:
            require(OneOf(TIMES), name, "a name in timing")
        for name, value in self.latencies.items():
            if name.startswith("psn/"):
                require(Within(0, PSN_MASK), value, f"latencies.{json.dumps(name)}")

    def _check_job(self, config: Config, job: JobPlan, n: int) -> None:
        where, size = f"jobs[{n}]", len(job.hosts)
        for k, host in enumerate(job.hosts):
            require(Within(0, sum(self.hosts) - 1), host, f"{where}.hosts[{k}]")
        for name in ("qpns", "psns", "late_ns"):
            if name != "late_ns" or job.late_ns:
                require(Length(size, size), getattr(job, name), f"{where}.{name}")
        for name in ("adapters", "rnr"):
            for k, rank in enumerate(getattr(job, name)):
                require(Within(0, size - 1), rank, f"{where}.{name}[{k}]")
        require(Within(0, n), job.after, f"{where}.after")
        for k, work in enumerate(job.work):
            if job.elastic and work.name == "reduce_scatter":
                raise FieldError(
                    f"{where}.work[{k}].name", work.name, "another: fewer workers cannot divide it"
                )
        check_spec(config, job.spec(f"job{n + 1}"))
        for rank, (qpn, psn) in enumerate(zip(job.qpns, job.psns, strict=True)):
            check_qps(f"{where}, rank {rank}", qpn_out=qpn, psn_out=psn, qpn_in=qpn + 1)

    def _check_faults(self, config: Config) -> None:
        links, jobs = directions(config), len(self.jobs)
        for n, strike in enumerate(self.strikes or ()):
            require(OneOf(links), strike.link, f"strikes[{n}].link")
        ends = [link.replace(">", ":") for link in links]
        for n, mishap in enumerate(self.mishaps):
            where = f"mishaps[{n}]"
            if mishap.kind in ON_SWITCHES:
                require(OneOf([switch.name for switch in config.switches]), mishap.what, f"{where}.what")
            elif mishap.kind == "link-down":
                require(OneOf(ends), mishap.what, f"{where}.what")
            require(Within(int(mishap.kind in ON_WORKERS), jobs), mishap.job, f"{where}.job")
            require(Within(0, jobs), mishap.since, f"{where}.since")

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


def directions(config: Config) -> list[str]:
    """The links of a cluster, each in both directions."""
    ends = [(host.name, host.switch) for host in config.hosts] + [(link.a, link.b) for link in config.links]
    return [name for a, b in ends for name in (f"{a}>{b}", f"{b}>{a}")]
