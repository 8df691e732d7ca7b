"""Training traffic on a running cluster: the same workload with one strategy after the other, in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from controller.api.admin import AdminClient
from controller.config import Target
from p4reduce.workloads import compare, links, run_file
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.machine import require_free
from p4reduce.workloads.run_file import Result, Run, Sample, Span
from p4reduce.workloads.sampling import Sampler, slot_look, slots_of
from p4reduce.workloads.strategies import names
from p4reduce.workloads.team import Answer, Team
from p4reduce.workloads.traffic.buckets import Bucket, buckets
from p4reduce.workloads.traffic.model import Workload
from topologies.state import ClusterState, HostKind, HostState

Progress = Callable[[str], None]

_LOOK_S: Final = 2.0  # an iteration that is shorter is looked at several times over
_MOST_LOOKS: Final = 50
_ROUNDS: Final = 2  # with priority: iterations run into each other, so that there are few turns
_SLOWEST_MBIT: Final = {Target.EMBEDDED: 100.0, Target.BMV2: 2.0}
_PATIENCE_S: Final = 120.0
_COPIES: Final = 2
_PROGRAM_BYTES: Final = 300 << 20


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Settings of a replay. `bucket_bytes` None: as DDP (25 MiB, the first 1).

    `priority`: front layers go first. `selective`: on our own connections, only lost packets are sent again;
    False: all packets behind them too (None: selective, unless a host has an RDMA device).
    """

    iterations: int = 5
    bucket_bytes: int | None = None
    priority: bool = False
    selective: bool | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise WorkloadError("a replay takes at least one iteration")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The iterations of a strategy before the next has its turn. `warm_up` iterations do not count."""

    iterations: int
    warm_up: int = 0


def turns(options: ReplayOptions) -> list[Turn]:
    """Return the turns of each strategy that count.

    A turn is one iteration. With priority, the iterations of a turn run into each other, as the next begins
    while gradients of the last are still under way. So a turn has several then, behind one that does not
    count.
    """
    if not options.priority:
        return [Turn(iterations=1)] * options.iterations
    number = min(_ROUNDS, options.iterations)
    share, more = divmod(options.iterations, number)
    return [Turn(iterations=share + (place < more), warm_up=1) for place in range(number)]


@dataclass(frozen=True)
class Replayed:
    """Results of a replay; `timelines` and `samples` by strategy."""

    workload: run_file.Workload
    results: list[Result]
    timelines: dict[str, list[Span]]
    samples: dict[str, list[Sample]]


@dataclass
class _Seen(compare.Rounds):
    """Measurements of one strategy; for each iteration that counts, also its turn and place in it."""

    waits: list[float] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # turn, and iteration in it
    answers: list[list[Answer]] = field(default_factory=list)  # by turn and rank


def replay_on(
    cluster: ClusterState,
    team: Team,
    hosts: Sequence[HostState],
    workload: Workload,
    strategies: Sequence[str],
    *,
    options: ReplayOptions,
    progress: Progress,
) -> Replayed:
    """Replay on workers that have all `strategies` open. WorkerFailedError if a sum was wrong.

    Each strategy has a turn first in which the fabric is sampled, and nothing is timed.
    """
    grouped = buckets(workload, cap_bytes=options.bucket_bytes)
    command = {
        "layers": [[layer.numel, layer.forward_ns, layer.backward_ns] for layer in workload.layers],
        "buckets": [list(bucket.layers) for bucket in grouped],
        "priority": options.priority,
        "dtype": workload.dtype,
        "over_16_bits": names.IN_NETWORK_16BIT in strategies,
        "timeout_s": patience_s(workload, cluster, workers=team.size),
    }
    seen = {strategy: _Seen(verified=True) for strategy in strategies}
    samples = {}
    for strategy in strategies:
        progress(f"warming up: {strategy}")
        samples[strategy] = _look(cluster, team, hosts, strategy, command)
    planned = turns(options)
    for number, turn in enumerate(planned, start=1):
        for strategy in strategies:
            progress(f"turn {number} of {len(planned)}: {strategy}")
            _turn(cluster, team, hosts, strategy, turn, command, seen[strategy])
    found = compare.results(cluster, hosts, dict(seen), size=workload.gradient_bytes)
    return Replayed(
        workload=described(workload, grouped, priority=options.priority),
        results=[_with_exposed(result, seen[result.strategy]) for result in found],
        timelines={
            strategy: timeline(one.places, one.answers, one.seconds) for strategy, one in seen.items()
        },
        samples=samples,
    )


def run(
    cluster: ClusterState,
    hosts: Sequence[HostState],
    workload: Workload,
    strategies: Sequence[str],
    *,
    options: ReplayOptions,
    progress: Progress,
    **given: Any,
) -> Run:
    """Start workers in `hosts`, replay, end them; `given` goes into the run."""
    require_memory(workload, options, workers=len(hosts))
    with compare.connected(
        cluster, hosts, strategies, progress=progress, selective=options.selective
    ) as team:
        found = replay_on(cluster, team, hosts, workload, strategies, options=options, progress=progress)
    return compare.new_run(
        cluster,
        hosts,
        kind="replay",
        dtype=workload.dtype,
        workload=found.workload,
        results=found.results,
        timelines=found.timelines,
        samples=found.samples,
        **given,
    )


def resized(workload: Workload, factor: float) -> Workload:
    """Return the workload with `factor` times the elements in each layer (at least one); its name says so."""
    if factor == 1:
        return workload
    if not 0 < factor < float("inf"):
        raise WorkloadError(f"layers cannot be scaled by {factor:g}: take a positive number")
    return replace(
        workload,
        name=f"{workload.name}, {factor:g} times its size",
        layers=tuple(replace(layer, numel=max(1, round(layer.numel * factor))) for layer in workload.layers),
    )


def described(workload: Workload, grouped: Sequence[Bucket], *, priority: bool) -> run_file.Workload:
    """Describe the workload as a run file does."""
    return run_file.Workload(
        name=workload.name,
        source=workload.source,
        layers=len(workload.layers),
        gradient_bytes=workload.gradient_bytes,
        forward_s=workload.forward_ns / 1e9,
        backward_s=workload.backward_ns / 1e9,
        priority=priority,
        buckets=[
            run_file.Bucket(bytes=bucket.bytes, first=bucket.first, last=bucket.last) for bucket in grouped
        ],
    )


def require_memory(workload: Workload, options: ReplayOptions, *, workers: int) -> None:
    """Raise WorkloadError if the gradients of all workers would not fit this machine's memory."""
    require_free(
        memory_bytes(workload, options, workers=workers),
        who=f"{workers} workers with {workload.gradient_bytes / 2**20:.0f} MiB of gradients each",
        remedy="take fewer workers, a smaller model, or a part of this one (--scale-size 0.1)",
    )


def memory_bytes(workload: Workload, options: ReplayOptions, *, workers: int) -> int:
    """Return the bytes of the workers' gradients, the copies of a bucket being summed, and the programs."""
    largest = max(bucket.bytes for bucket in buckets(workload, cap_bytes=options.bucket_bytes))
    return workers * (workload.gradient_bytes + _COPIES * largest + _PROGRAM_BYTES)


def patience_s(workload: Workload, cluster: ClusterState, *, workers: int) -> float:
    """Return an iteration's time limit: a few times what the slowest strategy needs, a parameter server."""
    computing = (workload.forward_ns + workload.backward_ns) / 1e9
    rate_mbit = min(_SLOWEST_MBIT[Target(cluster.target)], cluster.rate_mbit or math.inf)
    return _PATIENCE_S + 4 * (computing + workers * workload.gradient_bytes * 8 / (rate_mbit * 1e6))


def timeline(
    places: Sequence[tuple[int, int]], answers: Sequence[Sequence[Answer]], seconds: Sequence[float]
) -> list[Span]:
    """Return the spans of all ranks in the median iteration, and in the next (or previous) one of its turn.

    Iterations have their numbers among `seconds`; times count from the turn's beginning. With priority, sums
    go on into the next iteration; spans are cut where it begins.
    """
    middle = median_place(seconds)
    turn, within = places[middle]
    own = [place[1] for place in places if place[0] == turn]
    shown = sorted({within, within + 1 if within + 1 in own else within - 1} & set(own))
    began = min(answer["began"] for answer in answers[turn])
    return [
        Span(
            rank=rank,
            iteration=middle + number - within,
            kind=span["kind"],
            what=span["what"],
            start_s=max(span["start_s"], iteration["start_s"]) + answer["began"] - began,
            end_s=min(span["end_s"], iteration["end_s"]) + answer["began"] - began,
        )
        for rank, answer in enumerate(answers[turn])
        for number in shown
        for iteration in [answer["iterations"][number]]
        for span in answer["spans"]
        if span["start_s"] < iteration["end_s"] and span["end_s"] > iteration["start_s"]
    ]


def median_place(seconds: Sequence[float]) -> int:
    """Return the index of the median (of two, the smaller)."""
    median = statistics.median_low(seconds)
    return list(seconds).index(median)


def _look(
    cluster: ClusterState, team: Team, hosts: Sequence[HostState], strategy: str, command: dict[str, Any]
) -> list[Sample]:
    """Replay without timing, and sample the fabric; again with more iterations if that was too short."""
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        switched = strategy in names.IN_THE_SWITCH
        slots = slot_look(admin, team.jobs) if switched else None
        allocated = slots_of(admin, team.jobs) if switched else 0

        def once(iterations: int) -> tuple[float, list[Sample]]:
            with Sampler(links.link_look(cluster), slots) as sampler:
                answers = _play(team, hosts, strategy, Turn(iterations=iterations), command)
            seconds = max(answer["iterations"][-1]["end_s"] for answer in answers)
            began = min(answer["began"] for answer in answers)
            if all(host.kind is HostKind.ROCE for host in hosts):  # nobody has our clock
                began = sampler.looks[-1].at - seconds
            return seconds, sampler.samples(began=began, slots_allocated=allocated)

        seconds, found = once(1)
        if seconds < _LOOK_S:
            _, found = once(min(_MOST_LOOKS, round(_LOOK_S / max(seconds, 1e-3)) + 1))
        return found


def _play(
    team: Team, hosts: Sequence[HostState], strategy: str, turn: Turn, command: dict[str, Any]
) -> list[Answer]:
    """Play one turn; each rank's `began` is by this machine's clock."""
    arguments = {**command, "timeout_s": command["timeout_s"] * (turn.iterations + turn.warm_up)}
    answers = team.do(
        "replay", strategy=strategy, iterations=turn.iterations, warm_up=turn.warm_up, **arguments
    )
    ours = [rank for rank, host in enumerate(hosts) if host.kind is not HostKind.ROCE]
    began = min((answers[rank]["began"] for rank in ours), default=0.0)
    for rank in set(range(len(hosts))) - set(ours):  # machines have clocks of their own
        answers[rank]["began"] = began
    return answers


def _turn(
    cluster: ClusterState,
    team: Team,
    hosts: Sequence[HostState],
    strategy: str,
    turn: Turn,
    command: dict[str, Any],
    seen: _Seen,
) -> None:
    """Play one turn that counts."""
    before = links.settled_link_bytes(cluster)
    answers = _play(team, hosts, strategy, turn, command)
    after = links.settled_link_bytes(cluster)
    for number in range(turn.iterations):
        iterations = [answer["iterations"][number] for answer in answers]
        seen.seconds.append(max(one["end_s"] - one["start_s"] for one in iterations))
        seen.waits.append(max(one["wait_s"] for one in iterations))
        seen.places.append((len(seen.answers), number))
    seen.answers.append(answers)
    # With what each turn has besides: a barrier, and agreeing on the order.
    seen.links.append(links.mean([links.since(after, before)], repeat=turn.iterations + turn.warm_up))
    seen.add_counted(answers, repeat=turn.iterations + turn.warm_up)


def _with_exposed(result: Result, seen: _Seen) -> Result:
    return result.model_copy(update={"exposed_s": exposed_s(seen.seconds, seen.waits)})


def exposed_s(seconds: Sequence[float], waits: Sequence[float]) -> float:
    """Return the wait of the median iteration; if the median is between two, the mean of their waits."""
    by_length = [wait for _, wait in sorted(zip(seconds, waits, strict=True))]
    middle = len(by_length) // 2
    return statistics.fmean(by_length[middle - (len(by_length) % 2 == 0) : middle + 1])
