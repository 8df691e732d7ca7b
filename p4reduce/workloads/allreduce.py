"""One timed all-reduce of random data on a running cluster."""

from __future__ import annotations

import contextlib
import secrets
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Final

from controller.api.admin import AdminClient
from controller.api.errors import ControllerError
from p4reduce.workloads.bounds import ring_to_in_network
from p4reduce.workloads.errors import VerificationError, WorkloadError
from p4reduce.workloads.machine import require_free
from p4reduce.workloads.placement import place
from p4reduce.workloads.team import Answer, Team
from p4reduce.workloads.tensors import complaint, dtype_of, elements_of, require_wire
from topologies import wires
from topologies.state import ClusterState, HostState

Counters = dict[str, int]
STALL_S: Final = 60.0  # all workers call at once: who sees no progress for longer has lost its way
_TENSORS_A_WORKER = 3  # the tensor, its parts while it is made, the result


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All-reduces of one kind: the tensor's size, the slowest worker's median, a host's bytes on the wire."""

    bytes: int
    median_s: float
    goodput_mbit_s: float
    bytes_sent_per_host: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Measurements of a team: `checks` of the ranks that verified; `equal`: all ranks have the same bits."""

    timing: Timing
    equal: bool
    checks: list[dict[str, Any]]
    retransmissions: int
    duplicates: int
    by_ring: int = 0  # of the sums
    ring_reason: str = ""

    @property
    def passed(self) -> bool | None:
        """True if the result was right; None if no rank verified it."""
        return all(check["passed"] for check in self.checks) if self.checks else None

    @property
    def exact(self) -> bool | None:
        """True if the result was equal to NumPy's; None if no rank verified it."""
        return all(check["exact"] for check in self.checks) if self.checks else None


@dataclass(frozen=True, kw_only=True)
class Request:
    """An all-reduce to run. `strategy` is "in-network", "ring" or "both" (one after the other).

    `wire`: "16bit" sends float32 through the switch in half precision. `selective`: only lost packets are
    sent again; False: all packets behind them too (None: selective, unless a host has an RDMA device).
    `elastic`: the job goes on without workers that die.
    """

    bytes: int
    dtype: str = "float32"
    op: str = "sum"
    strategy: str = "in-network"
    wire: str = "full"
    repeat: int = 1
    verify: bool = False
    selective: bool | None = None
    elastic: bool = False
    seed: int = 1

    @property
    def strategies(self) -> tuple[str, ...]:
        """Strategies to run."""
        return ("in-network", "ring") if self.strategy == "both" else (self.strategy,)

    def elements(self) -> int:
        """Return the number of elements; WorkloadError if it is zero or not whole."""
        require_wire(self.wire, dtype_of(self.dtype), self.op)
        elements = elements_of(self.bytes, self.dtype)
        if self.repeat < 1:
            raise WorkloadError("an all-reduce has to run at least once")
        return elements


def require_memory(size: int, workers: int) -> None:
    """Raise WorkloadError if the tensors of `workers`, all on this machine, would not fit its memory."""
    require_free(
        _TENSORS_A_WORKER * size * workers,
        who=f"{workers} workers with tensors of {size} bytes",
        remedy="ask for fewer bytes",
    )


def measure(team: Team, request: Request) -> Outcome:
    """Run the request on a team that has joined a job.

    Rank 0 verifies; the others' bits are compared with its bits. In an elastic job all ranks verify.
    """
    answers = team.do(
        "all_reduce",
        per_rank=[{"verify": request.verify and (rank == 0 or request.elastic)} for rank in range(team.size)],
        elements=request.elements(),
        dtype=request.dtype,
        op=request.op,
        strategy=request.strategy,
        wire=request.wire,
        seed=request.seed,
        repeat=request.repeat,
        racks=None if request.elastic else team.racks,
        timeout_s=900.0,
    )
    return outcome(answers, request)


def outcome(answers: list[Answer], request: Request) -> Outcome:
    """Combine the workers' answers."""
    slowest = [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]
    median = statistics.median(slowest)
    return Outcome(
        timing=Timing(
            bytes=request.bytes,
            median_s=median,
            goodput_mbit_s=request.bytes * 8 / median / 1e6,
            bytes_sent_per_host=round(max(answer["bytes_sent"] for answer in answers)),
        ),
        equal=len({answer["digest"] for answer in answers}) == 1,
        checks=[answer["check"] for answer in answers if "check" in answer],
        retransmissions=sum(answer["retransmissions"] for answer in answers),
        duplicates=sum(answer["duplicates"] for answer in answers),
        by_ring=max(answer["by_ring"] for answer in answers),
        ring_reason=answers[0]["ring_reason"],
    )


def require_right(result: Outcome, what: str) -> None:
    """Raise VerificationError if the result was wrong."""
    if not result.equal:
        raise VerificationError(f"{what}: the workers' results differ from each other")
    for check in result.checks:
        if not check["passed"]:
            raise VerificationError(f"{what}: {complaint(check)}")


def switch_counters(cluster: ClusterState, jobs: Sequence[str]) -> Counters:
    """Return the switches' counters for a job or its planes, in packets, summed over its flows."""
    total: Counters = {}
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        for flow in chain.from_iterable(admin.counters(job) for job in jobs):
            for name, value in flow.counters.items():
                total[name] = total.get(name, 0) + value.packets
    return dict(sorted(total.items()))


@contextlib.contextmanager
def _workers(
    cluster: ClusterState, request: Request, hosts: Sequence[HostState]
) -> Iterator[tuple[Team, Answer]]:
    """Start workers in `hosts`, let them join a job, and delete it at the end.

    Yields the team and rank 0's answer to join.
    """
    if len({host.name for host in hosts}) < 2:
        raise WorkloadError("an all-reduce needs two hosts or more: name more")
    require_memory(request.bytes, len(hosts))
    team, job = Team(cluster, len(hosts), hosts=hosts), f"allreduce-{secrets.token_hex(4)}"
    try:
        with team:
            yield (
                team,
                team.join(job, timeout_s=STALL_S, selective=request.selective, elastic=request.elastic)[0],
            )
            team.do("leave")
    finally:
        # It has ended, and nobody will ask for it; or it never began.
        with contextlib.suppress(ControllerError), AdminClient(f"unix:{cluster.control_socket}") as admin:
            for name in team.jobs:
                admin.delete_job(name)


def sizes_of(begin: int, end: int, factor: float) -> list[int]:
    """Return sizes from `begin` to `end` bytes, each `factor` times the one before."""
    if end < begin:
        raise WorkloadError(f"a sweep from {begin} to {end} bytes has no size: --end is the largest")
    if not factor > 1:
        raise WorkloadError(f"a sweep by a factor of {factor:g} does not grow: take 2, say")
    sizes = [begin]
    while sizes[-1] * factor <= end:
        sizes.append(round(sizes[-1] * factor))
    return sizes


def sweep(
    cluster: ClusterState,
    request: Request,
    *,
    sizes: Sequence[int],
    warm_up: int = 1,
    hosts: Sequence[HostState] | None = None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Run all-reduces of each of `sizes`, one after the other on the same workers, in nccl-tests' terms.

    A row has `time_us` (the median of the slowest worker's times), `algbw_mb_s` (bytes over time) and
    `busbw_mb_s`, which is algbw · 2(N-1)/N: the rate that each link of a ring would carry. `wrong` is None
    if no rank verified.
    """
    for size in sizes:
        replace(request, bytes=size).elements()
    chosen = place(cluster) if hosts is None else list(hosts)
    rows: list[dict[str, Any]] = []
    with _workers(cluster, replace(request, bytes=max(sizes)), chosen) as (team, joined):
        for size in sizes:
            for strategy in request.strategies:
                progress(f"{size} bytes, {strategy}")
                one = replace(request, bytes=size, strategy=strategy)
                for _ in range(warm_up):
                    measure(team, replace(one, repeat=1, verify=False))
                found = measure(team, one)
                require_right(found, f"all-reduce of {size} bytes, {strategy}")
                algbw = size / found.timing.median_s / 1e6
                rows.append(
                    {
                        "bytes": size,
                        "count": one.elements(),
                        "strategy": "ring" if found.by_ring == one.repeat else strategy,
                        "time_us": found.timing.median_s * 1e6,
                        "algbw_mb_s": algbw,
                        "busbw_mb_s": algbw * ring_to_in_network(team.size),
                        "wrong": None if found.passed is None else int(not found.passed),
                        "retransmissions": found.retransmissions,
                    }
                )
    return {
        "switch": cluster.target,
        "topology": cluster.topology,
        "workers": len(chosen),
        "gpus_per_host": team.gpus_per_host,
        "dtype": request.dtype,
        "op": request.op,
        "wire": request.wire,
        "path_mtu": joined["path_mtu"],
        "repeat": request.repeat,
        "sweep": rows,
    }


def run(
    cluster: ClusterState, request: Request, *, hosts: Sequence[HostState] | None = None
) -> dict[str, Any]:
    """Start workers in `hosts` (all), join, reduce and leave; return the JSON of 'p4reduce allreduce'."""
    request.elements()
    chosen = place(cluster) if hosts is None else list(hosts)
    outcomes: dict[str, Outcome] = {}
    links: dict[str, list[dict[str, Any]]] = {}
    with _workers(cluster, request, chosen) as (team, joined):
        for strategy in request.strategies:
            before = wires.wires(cluster)
            outcomes[strategy] = measure(team, replace(request, strategy=strategy))
            links[strategy] = link_rows(wires.since(wires.wires(cluster), before), repeat=request.repeat)
        counters = switch_counters(cluster, team.jobs)
    workers, lost = team.size, team.lost
    for strategy, outcome_ in outcomes.items():
        require_right(outcome_, f"all-reduce of {request.bytes} bytes, {strategy}")
    return {
        "switch": cluster.target,
        "topology": cluster.topology,
        "workers": workers,
        "gpus_per_host": team.gpus_per_host,
        "workers_left": workers - len(lost),
        "lost": {f"rank {rank}": words for rank, words in sorted(lost.items())},
        "hosts": list(dict.fromkeys(host.name for host in chosen)),
        "dtype": request.dtype,
        "op": request.op,
        "strategy": request.strategy,
        "wire": request.wire,
        "path_mtu": joined["path_mtu"],
        "accuracy": None,
        "reference_accuracy": None,
        **_summary(outcomes, integers=request.dtype.startswith("int")),
        "links": {strategy.replace("-", "_"): rows for strategy, rows in links.items() if rows},
        "counters": {
            **counters,
            "retransmissions": sum(found.retransmissions for found in outcomes.values()),
            "duplicates_received": sum(found.duplicates for found in outcomes.values()),
        },
    }


def link_rows(traffic: Sequence[wires.Wire], *, repeat: int = 1) -> list[dict[str, Any]]:
    """Return the traffic of each link between switches for JSON, on average of `repeat` times."""
    return [
        {
            "link": wire.link.name,
            "leaf": wire.link.a,
            "spine": wire.link.b,
            "bytes_up": round(wire.upward.bytes / repeat),
            "bytes_down": round(wire.downward.bytes / repeat),
            "packets_up": round(wire.upward.packets / repeat),
            "packets_down": round(wire.downward.packets / repeat),
        }
        for wire in traffic
    ]


def _summary(outcomes: dict[str, Outcome], *, integers: bool) -> dict[str, Any]:
    found = list(outcomes.values())
    switched, ringed = outcomes.get("in-network"), outcomes.get("ring")
    looked = [one for one in found if one.passed is not None]
    return {
        "ranks_bitwise_equal": all(one.equal for one in found),
        "integer_sum_exact": all(one.exact for one in looked) if integers and looked else None,
        "verified": all(one.passed for one in looked) if looked else None,
        "checks": [check for one in found for check in one.checks],
        "in_network": None if switched is None else asdict(switched.timing),
        "ring": None if ringed is None else asdict(ringed.timing),
        "by_ring_meanwhile": 0 if switched is None else switched.by_ring,
        "ring_reason": "" if switched is None else switched.ring_reason,
        "ratio": (
            None if switched is None or ringed is None else ringed.timing.median_s / switched.timing.median_s
        ),
    }
