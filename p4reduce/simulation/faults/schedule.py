"""The schedule of a run: a cluster, its jobs, and what goes wrong when; as data that JSON can hold.

Packet faults come either from rates, which the seed turns into faults of single frames, or are a list of
such: frame number `frame` (from 0) in a direction of a link. A run notes those that struck, so that a list
of them plays it again. Directions are "h1>l1" and "l1>h1", "l1>s2" and "s2>l1".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from controller.api.errors import InvalidRequestError
from controller.api.messages import Gang, JobSpec, Mode
from controller.config import MAX_LEAVES, MAX_SPINES, Config, ConfigError, Spread
from controller.orchestration.planning import check_qps, check_spec
from host_agent.quantisation import ELEMENT_TYPES
from host_agent.wire.aggregation import Reduction
from host_agent.wire.psn import PSN_MASK
from p4reduce.simulation.cases import Case
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.network import fabric_config
from p4src import MAX_RANKS, MAX_SLOTS, PATH_MTUS

DTYPES = {str(dtype): dtype for dtype in ELEMENT_TYPES}
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
STRIKES = ("loss", "duplicate", "reorder", "corrupt", "stale")
ON_WORKERS = ("worker-kill", "machine-kill", "worker-pause", "worker-suspend", "clock-jump", "session-cut")
ON_SWITCHES = ("switch-restart", "p4runtime-cut")
ON_CONTROLLER = ("controller-restart", "controller-pause", "database-lost")
# Both say less of jobs than there is to say; a restored one says what is no longer so, too.
DATABASE_GONE = ("database-lost", "database-restored")
MISHAPS = (
    *ON_WORKERS,
    *ON_SWITCHES,
    *ON_CONTROLLER,
    "controller-second",
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
_LONGEST_SHOWN = 40  # characters of a value in a message

Count = Annotated[int, Field(ge=0, le=_MANY)]
Time = Annotated[int, Field(ge=0, le=_LONGEST_NS)]
Late = Annotated[int, Field(ge=2, le=_LONGEST_NS)]
Chance = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0.001, le=_LONGEST_NS / NS)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Hosts = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Rank = Annotated[int, Field(ge=0, le=MAX_RANKS - 1)]


class ScheduleError(ValueError):
    """A file is not a schedule; the message says why."""


def _among(known: Iterable[str]) -> AfterValidator:
    """Make a validator that takes one of these words."""
    words = tuple(known)

    def check(value: str) -> str:
        if value not in words:
            raise ValueError(f"it should be one of {', '.join(map(json.dumps, words))}")
        return value

    return AfterValidator(check)


@dataclass(frozen=True)
class Rates:
    """Probabilities of a link's packet faults. `late_ns`, `stale_ns`: how late a frame may come then."""

    loss: Chance = 0.0
    duplicate: Chance = 0.0
    reorder: Chance = 0.0
    corrupt: Chance = 0.0
    stale: Chance = 0.0
    late_ns: Late = 200_000
    stale_ns: Late = 50_000_000


@dataclass(frozen=True)
class Strike:
    """A fault of one frame: "loss", "duplicate", "reorder", "corrupt" or "stale" (a late copy)."""

    link: str
    frame: Count
    kind: Annotated[str, _among(STRIKES)]
    after_ns: Time = 0
    bit: Count = 0


@dataclass(frozen=True)
class Mishap:
    """A fault of a worker, a link, a switch or the controller.

    It begins `at_ns` after job `since` began to run (0: after the beginning), and ends `lasts_ns` later (0:
    never, or it takes no time).

    worker-kill, worker-pause (`job`, `rank`); worker-suspend (as a hypervisor does it: its clock stands still
    meanwhile); clock-jump (a worker's clock goes on by `lasts_ns` at once); machine-kill (all planes' workers
    of that rank); link-down (`what`: a direction's two ends, "h1:l1", "l1:s2"); switch-restart (`what`: a
    switch, away for so long and empty then); p4runtime-cut (its controller cannot reach a switch);
    controller-restart; controller-pause (SIGSTOP and SIGCONT); database-lost (the controller is killed, and
    started on a new one); session-cut (a worker's session breaks, and it cannot come back); disk-full (no
    write to the controller's database goes through); database-backup (takes no time); database-restored (as
    database-lost, with the last backup; its own if there is none); controller-second (another one runs on
    a copy of the database, and takes what switches the first one loses).
    """

    at_ns: Time
    kind: Annotated[str, _among(MISHAPS)]
    what: str = ""
    job: Count = 0
    rank: Count = 0
    lasts_ns: Time = 0
    since: Count = 0


@dataclass(frozen=True, kw_only=True)
class Work:
    """One collective, begun `think_ns` after the one before: a `p4reduce.simulation.cases.Case` by names.

    `strict`: only through switches. `cancelled`, in a gang: by all its users, before its turn.
    """

    module: Annotated[str, _among(("in_network", "ring"))]
    name: Annotated[str, _among(COLLECTIVES)]
    dtype: Annotated[str, _among(DTYPES)]
    elements: Annotated[int, Field(ge=0, le=_MOST_ELEMENTS)]
    reduction: Annotated[str, _among(("SUM", "AVG", "MAX", "MIN"))] = "SUM"
    root: Count = 0
    non_finite: bool = False
    in_place: bool = False
    half: bool = False
    scaled: bool = False
    small: bool = False
    strict: bool = False
    cancelled: bool = False
    think_ns: Time = 0

    @property
    def is_empty(self) -> bool:
        """True if nobody has anything to send in it."""
        return not self.elements and self.name != "barrier"

    @property
    def travels(self) -> bool:
        """True if other machines take part in it; else they do not notice if one does without it."""
        return not self.is_empty or self.strict

    def case(self) -> Case:
        """Return its case, with what it does and what must come out."""
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
            self.small,
        )


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """A job: the host of each rank (by its number), and what all of them run.

    `qpns`: each rank's first QP number, its QP_in's is the next. `adapters`: ranks with NICs that want RNR
    NAKs; `rnr`: agents that do. `starts_ns` and by rank `late_ns`: when a worker joins; `after`: and not
    before that job is over (0: none), whose QP numbers it may have. `backup`: the workers have another
    network. `first_message`: the number that messages of its first generation count from. `gang`: jobs with
    the same number are the planes of one, in their order (0: no plane), with the same machines as hosts.
    `cancels`: pairs of a rank and a call that it cancels, and others do not. `path_mtus`: by rank, what its
    interface carries; then the controller chooses. `window` and `packets`: 0 lets it choose, too.
    """

    hosts: Annotated[list[Count], Field(min_length=1, max_length=MAX_RANKS)]
    work: list[Work]
    qpns: list[Count]
    psns: list[Count]
    mode: Annotated[str, _among(("", *Mode.__members__))] = ""
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
    selective: bool | None = None
    first_message: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    gang: Count = 0
    cancels: list[list[Count]] = field(default_factory=list)
    path_mtus: list[Count] = field(default_factory=list)

    def path_mtu_of(self, rank: int) -> int:
        """Return the path MTU of that rank's interface."""
        return self.path_mtus[rank] if self.path_mtus else self.path_mtu

    def spec(self, name: str, gang: Gang | None = None) -> JobSpec:
        """Return what the controller is asked for."""
        return JobSpec(
            name=name,
            world_size=len(self.hosts),
            mode=Mode[self.mode] if self.mode else None,
            path_mtu=None if self.path_mtus else self.path_mtu,
            window=self.window or None,
            message_packets=self.packets or None,
            elastic=self.elastic,
            selective=self.selective,
            gang=gang,
        )

    def calls(self, rank: int, call: int) -> Work | None:
        """Return the call that a rank's user makes in the end; None: it cancels that one."""
        work = self.work[call]
        return None if work.cancelled or [rank, call] in self.cancels else work


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A whole run, as data. `hosts`: how many there are behind each leaf; no spines: one rack, one switch.

    `about`: what there is to see in it. `slots` on each switch (0: as many as there are); from `calm_ns` on,
    links do nothing to frames any more. `renumber`: after how many messages a job in the network has a new
    generation (0: as usual).
    """

    seed: Seed
    spines: Annotated[int, Field(ge=0, le=MAX_SPINES)]
    hosts: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_RANKS)]], Field(min_length=1, max_length=MAX_LEAVES)
    ]
    jobs: Annotated[list[JobPlan], Field(min_length=1, max_length=64)]
    host_rates: Rates = Rates()
    uplink_rates: Rates = Rates()
    strikes: list[Strike] | None = None
    mishaps: list[Mishap] = field(default_factory=list)
    spread: Annotated[str, _among([spread.value for spread in Spread])] = "jobs"
    slots: Annotated[int, Field(ge=0, le=MAX_SLOTS)] = 0
    calm_ns: Time = 10_000_000_000
    latencies: dict[str, Time] = field(default_factory=dict)
    timing: dict[str, Seconds] = field(default_factory=dict)
    renumber: Annotated[int, Field(ge=0, le=2**30)] = 0
    about: str = ""

    __pydantic_config__ = ConfigDict(extra="forbid")

    def to_json(self) -> str:
        """Return the whole schedule as JSON, one fault a line."""
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
        """Read what `to_json` wrote. Raise ScheduleError if it is something else."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:  # also of numbers that are too long, and brackets
            raise ScheduleError(f"this is no JSON: {error}") from error
        if not isinstance(document, dict) or document.pop("p4reduce_schedule", None) != 1:
            raise ScheduleError("this is no schedule of 'p4reduce simulate-faults'")
        try:
            schedule = _SCHEDULES.validate_json(json.dumps(document), strict=True)
        except ValidationError as error:
            raise ScheduleError(_complaint(error.errors(include_url=False)[0])) from error
        schedule.check()
        return schedule

    def config(self) -> Config:
        """Return what the controller is told of the cluster. Raise ConfigError if it is not possible."""
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

    def planes(self, n: int) -> list[int]:
        """Return the jobs, counted from 0, that are planes of one gang with job `n`; else only that one."""
        gang = self.jobs[n].gang
        return [k for k, job in enumerate(self.jobs) if job.gang == gang] if gang else [n]

    def differs_at(self, n: int) -> int | None:
        """Return the first call that workers of job `n`'s gang make differently; None: there is none."""
        planes = [self.jobs[plane] for plane in self.planes(n)]
        lengths = {len(job.work) for job in planes}
        for call in range(min(lengths)):
            machines = [{job.calls(rank, call) for job in planes} for rank in range(len(planes[0].hosts))]
            called = set().union(*machines)
            travels = any(work is not None and work.travels for work in called)
            if any(len(each) > 1 for each in machines) or (travels and len(called) > 1):
                return call
        return min(lengths) if len(lengths) > 1 else None

    def gang_of(self, n: int) -> Gang | None:
        """Return the gang that job `n` is a plane of, with its plane; None: it is none."""
        gang, planes = self.jobs[n].gang, self.planes(n)
        return Gang(f"gang{gang}", planes.index(n), len(planes)) if gang else None

    def name_of(self, n: int) -> str:
        """Return the name of job `n`."""
        gang = self.gang_of(n)
        return f"job{n + 1}" if gang is None else gang.job_of(gang.plane)

    def check(self) -> None:
        """Check what no field alone can tell. Raise ScheduleError if something is wrong."""
        try:
            self._check_cluster()
            config = self.config()
            for n, job in enumerate(self.jobs):
                self._check_job(config, job, n)
            self._check_faults(config)
        except (ConfigError, InvalidRequestError) as error:
            raise ScheduleError(str(error)) from error

    def _check_cluster(self) -> None:
        _require(self.spines or len(self.hosts) == 1, "without spines, hosts", self.hosts, "a list of one")
        for name in self.timing:
            _require(name in TIMES, "a name in timing", name, f"one of {', '.join(TIMES)}")
        for name, value in self.latencies.items():
            psn = name.startswith("psn/")
            _require(not psn or value <= PSN_MASK, f"latencies.{json.dumps(name)}", value, "a PSN of 24 bits")

    def _check_job(self, config: Config, job: JobPlan, n: int) -> None:
        where, size = f"jobs[{n}]", len(job.hosts)
        for k, host in enumerate(job.hosts):
            _require(host < sum(self.hosts), f"{where}.hosts[{k}]", host, "the number of a host")
        for name in ("qpns", "psns", "late_ns", "path_mtus"):
            given = getattr(job, name)
            as_long = len(given) == size or (name in ("late_ns", "path_mtus") and not given)
            _require(as_long, f"{where}.{name}", given, f"a list of {size}, one for each rank")
        for k, path_mtu in enumerate(job.path_mtus):
            wanted = f"one of {', '.join(map(str, PATH_MTUS))}"
            _require(path_mtu in PATH_MTUS, f"{where}.path_mtus[{k}]", path_mtu, wanted)
        for name in ("adapters", "rnr"):
            for k, rank in enumerate(getattr(job, name)):
                _require(rank < size, f"{where}.{name}[{k}]", rank, f"a rank below {size}")
        _require(job.after <= n, f"{where}.after", job.after, f"an earlier job: {n} at most")
        for k, work in enumerate(job.work):
            divides = job.elastic and work.name == "reduce_scatter"
            wanted = "another: fewer workers cannot divide it"
            _require(not divides, f"{where}.work[{k}].name", work.name, wanted)
        check_spec(config, job.spec(self.name_of(n), self.gang_of(n)))
        first = self.jobs[self.planes(n)[0]]
        wanted = f"those of the gang's first plane, {first.hosts}"
        _require(job.hosts == first.hosts, f"{where}.hosts", job.hosts, wanted)
        for rank, (qpn, psn) in enumerate(zip(job.qpns, job.psns, strict=True)):
            check_qps(f"{where}, rank {rank}", qpn_out=qpn, psn_out=psn, qpn_in=qpn + 1)

    def _check_faults(self, config: Config) -> None:
        links, jobs = directions(config), len(self.jobs)
        for n, strike in enumerate(self.strikes or ()):
            _require(strike.link in links, f"strikes[{n}].link", strike.link, f"one of {', '.join(links)}")
        ends = [link.replace(">", ":") for link in links]
        switches = [switch.name for switch in config.switches]
        known = {**dict.fromkeys(ON_SWITCHES, switches), "link-down": ends}
        for n, mishap in enumerate(self.mishaps):
            where, there = f"mishaps[{n}]", known.get(mishap.kind, [mishap.what])
            _require(mishap.what in there, f"{where}.what", mishap.what, f"one of {', '.join(there)}")
            least = int(mishap.kind in ON_WORKERS)
            _require(least <= mishap.job <= jobs, f"{where}.job", mishap.job, f"{least} to {jobs}")
            suspended = mishap.kind == "worker-suspend" and self.jobs[mishap.job - 1]
            wanted = (
                "one that is not a plane of an elastic gang: docs/protocol.md says what that cannot outlive"
            )
            _require(
                not (suspended and suspended.gang and suspended.elastic), f"{where}.job", mishap.job, wanted
            )
            _require(mishap.since <= jobs, f"{where}.since", mishap.since, f"{jobs} at most")

    def in_words(self) -> str:
        """Return it in words: a line for each job and each fault."""
        where = f"{self.spines} spines, " if self.spines else ""
        lines = [f"  {where}hosts {'+'.join(map(str, self.hosts))}"]
        for number, job in enumerate(self.jobs, 1):
            work = ", ".join(f"{w.name} of {w.elements} {w.dtype} ({w.module})" for w in job.work)
            lines.append(
                f"  job {number} ({self.name_of(number - 1)}): hosts {job.hosts}, window {job.window}, "
                f"{job.packets} packets of {job.path_mtu} bytes a message: {work}"
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
        """The number of things that go wrong, as far as they are listed."""
        return len(self.mishaps) + len(self.strikes or ())


def directions(config: Config) -> list[str]:
    """Return the links of a cluster, each in both directions."""
    ends = [(host.name, host.switch) for host in config.hosts] + [(link.a, link.b) for link in config.links]
    return [name for a, b in ends for name in (f"{a}>{b}", f"{b}>{a}")]


_SCHEDULES: Final = TypeAdapter(Schedule)
_PARTS: Final = {
    **dict.fromkeys(("host_rates", "uplink_rates"), Rates),
    "strikes": Strike,
    "mishaps": Mishap,
    "jobs": JobPlan,
    "work": Work,
}


def _require(holds: object, where: str, value: object, wanted: str) -> None:
    if not holds:
        raise ScheduleError(f"{where} is {_shown(value)}: it should be {wanted}")


def _complaint(found: ErrorDetails) -> str:
    """Return a complaint in words: a field, its value and what would do."""
    kind, *inside = found["type"], *found["loc"]
    where = ""
    for key in inside:
        plain = isinstance(key, str) and key.isidentifier()
        where += f"[{key}]" if isinstance(key, int) else f".{key if plain else json.dumps(key)}"
    where = where.removeprefix(".") or "the schedule"
    if kind == "missing":
        return f"{where} is missing"
    said = found["msg"].removeprefix("Value error, ").replace("Input", "it", 1)
    if kind == "unexpected_keyword_argument":
        part = next((_PARTS[key] for key in reversed(inside[:-1]) if key in _PARTS), Schedule)
        said = f"known here are {', '.join(field.name for field in dataclasses.fields(part))}"
    return f"{where} is {_shown(found['input'])}: {said}"


def _shown(value: object) -> str:
    """Return a value as the file has it, or only its size if that is long."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
