"""Strategies side by side on a running cluster: same hosts, same links, same tensors, in turns."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import platform
import secrets
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from controller.api.admin import AdminClient
from controller.api.errors import ControllerError
from p4reduce.workloads import bounds, hierarchy, links
from p4reduce.workloads.allreduce import STALL_S, require_memory
from p4reduce.workloads.errors import VerificationError, WorkloadError
from p4reduce.workloads.machine import describe
from p4reduce.workloads.placement import gpus_of, planes_of
from p4reduce.workloads.run_file import Host, LinkBytes, Result, Run, Sample, Switch, Topology
from p4reduce.workloads.sampling import INTERVAL_S, Sampler, slot_look, slots_of
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.gloo import gloo_missing
from p4reduce.workloads.strategies.opening import pairs_of
from p4reduce.workloads.strategies.pairs import job_of
from p4reduce.workloads.team import Answer, Team
from p4reduce.workloads.tensors import added_by_switches, complaint, elements_of
from topologies.state import ClusterState, HostKind, HostState

Progress = Callable[[str], None]
_SMALL_BYTES: Final = 1 << 20
_OFTEN: Final = 20  # small sums a round: one alone is as short as the clock's and the scheduler's noise
_TIMEOUT_S: Final = 900.0
_PACKAGES: Final = ("p4reduce", "numpy", "torch")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Tensors of `bytes`, `rounds` times for each strategy, in turns, after one round to warm up.

    `selective`: on our own connections, only lost packets are sent again; False: all packets behind them too
    (None: selective, unless a host has an RDMA device).
    """

    bytes: int
    strategies: tuple[str, ...]
    rounds: int = 5
    dtype: str = "float32"
    selective: bool | None = None
    seed: int = 1

    def elements(self) -> int:
        """Return the number of elements; WorkloadError if it is zero or not whole."""
        elements = elements_of(self.bytes, self.dtype)
        if self.rounds < 1:
            raise WorkloadError("a comparison takes at least one round")
        return elements

    @property
    def repeat(self) -> int:
        """Number of sums in a round."""
        return _OFTEN if self.bytes <= _SMALL_BYTES else 1


@dataclass(frozen=True)
class Compared:
    """Results of a comparison; `samples` by strategy, from the warm-up."""

    results: list[Result]
    samples: dict[str, list[Sample]]


@dataclass
class Rounds:
    """Measurements of one strategy."""

    seconds: list[float] = field(default_factory=list)
    links: list[dict[str, LinkBytes]] = field(default_factory=list)
    retransmissions: int | None = 0
    verified: bool | None = None
    inside: list[int] = field(default_factory=list)

    def add_counted(self, answers: Sequence[Answer], *, repeat: int = 1) -> None:
        """Add the bytes between the GPUs of a host in a sum, and the workers' retransmissions.

        `repeat`: number of sums that were counted. Retransmissions stay unknown once a worker does not know
        its own.
        """
        self.inside += [
            round(answer["bytes_inside"] / repeat) for answer in answers if "bytes_inside" in answer
        ]
        resent = [answer["retransmissions"] for answer in answers]
        if self.retransmissions is None or None in resent:
            self.retransmissions = None
        else:
            self.retransmissions += sum(resent)


def possible(
    strategies: Sequence[str], *, asked: bool, dtype: str = "float32"
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the strategies that can sum `dtype` here, and for each of the others why it cannot.

    WorkloadError if one of the others was `asked` for.
    """
    missing = {names.GLOO: gloo_missing()}
    if not added_by_switches(dtype, "sum"):
        missing |= dict.fromkeys(names.IN_THE_SWITCH, f"no switch adds {dtype}")
    if dtype != "float32":
        missing[names.IN_NETWORK_16BIT] = f"it is for float32, and {dtype} was asked for"
    missing = {strategy: why for strategy, why in missing.items() if why and strategy in strategies}
    if asked and missing:
        raise WorkloadError("; ".join(f"strategy {strategy}: {why}" for strategy, why in missing.items()))
    return tuple(strategy for strategy in strategies if strategy not in missing), missing


@contextmanager
def connected(
    cluster: ClusterState,
    hosts: Sequence[HostState],
    strategies: Sequence[str],
    *,
    progress: Progress,
    selective: bool | None = None,
) -> Iterator[Team]:
    """Start a worker in each of `hosts`, connected for all of `strategies`; undo everything at the end."""
    if len({host.name for host in hosts}) < 2:
        raise WorkloadError("a comparison needs two hosts or more")
    if names.GLOO in strategies and any(host.kind is HostKind.ROCE for host in hosts):
        raise WorkloadError(f"strategy {names.GLOO} needs PyTorch in the hosts, which RoCE machines have not")
    job = f"compare-{secrets.token_hex(4)}"
    jobs = planes_of(job, gpus_of(cluster, hosts))
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as scratch:
        meeting_place = str(Path(scratch) / "gloo")
        try:
            with Team(cluster, len(hosts), hosts=hosts) as team:
                progress("workers join")
                joined = team.join(job, timeout_s=STALL_S, selective=selective)
                _require_mode(strategies, joined)
                for strategy in strategies:
                    progress(f"connecting for {strategy}")
                    pairs = sorted(pairs_of(strategy, len(hosts)))
                    own = [job_of(f"{job}-{strategy}", *pair) for pair in pairs]
                    jobs += own
                    _create_pairs(cluster, own, selective=selective)
                    team.do(
                        "open",
                        strategy=strategy,
                        controller=cluster.controller,
                        job=job,
                        meeting_place=meeting_place,
                    )
                yield team
                team.do("leave")
        finally:
            # They have ended, and nobody will ask for them; or they never began.
            with AdminClient(f"unix:{cluster.control_socket}") as admin:
                for name in jobs:
                    with contextlib.suppress(ControllerError):
                        admin.delete_job(name)


def compare_on(
    cluster: ClusterState,
    hosts: Sequence[HostState],
    comparison: Comparison,
    *,
    progress: Progress,
) -> Compared:
    """Run the strategies in turns, and return the results. VerificationError if a sum was wrong."""
    comparison.elements()
    require_memory(comparison.bytes * comparison.repeat, len(hosts))
    seen = {strategy: Rounds() for strategy in comparison.strategies}
    with connected(
        cluster, hosts, comparison.strategies, progress=progress, selective=comparison.selective
    ) as team:
        samples = {}
        for strategy, rounds in seen.items():
            progress(f"warming up: {strategy}")
            samples[strategy] = _warm_up(cluster, team, comparison, strategy)
            rounds.verified = True
        for number in range(1, comparison.rounds + 1):
            for strategy, rounds in seen.items():
                progress(f"round {number} of {comparison.rounds}: {strategy}")
                _round(cluster, team, comparison, strategy, rounds, number=number)
    return Compared(results(cluster, hosts, seen, size=comparison.bytes), samples)


def results(
    cluster: ClusterState, hosts: Sequence[HostState], seen: dict[str, Rounds], *, size: int
) -> list[Result]:
    """Compute the results of the measurements. `size`: bytes a worker that were summed each time."""
    rings = [statistics.median(seen[name].seconds) for name in (names.RING, names.FLAT_RING) if name in seen]
    ring = rings[0] if rings else None
    found = []
    for strategy, rounds in seen.items():
        median = statistics.median(rounds.seconds)
        bound = _bound_s(cluster, hosts, strategy, size)
        found.append(
            Result(
                strategy=strategy,
                workers=len(hosts),
                bytes=size,
                median_s=median,
                min_s=min(rounds.seconds),
                max_s=max(rounds.seconds),
                goodput_mbit_s=size * 8 / median / 1e6,
                bytes_per_link=links.mean(rounds.links),
                fraction_of_link_bound=None if bound is None else bound / median,
                link_bound_s=bound,
                speedup_over_ring=None if ring is None else ring / median,
                seconds=rounds.seconds,
                retransmissions=rounds.retransmissions,
                verified=rounds.verified,
                bytes_inside=max(rounds.inside, default=None),
            )
        )
    return found


def new_run(cluster: ClusterState, hosts: Sequence[HostState], **given: Any) -> Run:
    """Make a run on a cluster, with its machine, versions and topology; `given` is the rest of it."""
    ranks = {host.name: rank for rank, host in reversed(list(enumerate(hosts)))}
    gpus = gpus_of(cluster, hosts)
    return Run(
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        machine=describe(),
        versions=_versions(),
        topology=Topology(
            kind="rack" if cluster.topology == "rack" else "spine-leaf",
            target=cluster.target,
            path_mtu=cluster.path_mtu,
            rate_mbit=cluster.rate_mbit,
            uplink_rate_mbit=cluster.uplink_rate_mbit if cluster.links else None,
            gpus_per_host=gpus,
            intra_rate_mbit=cluster.intra_rate_mbit if gpus > 1 else None,
            switches=[Switch(name=s.name, role=s.role.value) for s in cluster.switches],
            hosts=[Host(name=h.name, switch=h.switch, rank=ranks.get(h.name)) for h in cluster.hosts],
            links=links.link_names(cluster),
        ),
        **given,
    )


def _round(
    cluster: ClusterState,
    team: Team,
    comparison: Comparison,
    strategy: str,
    rounds: Rounds,
    *,
    number: int,
) -> None:
    """Run one strategy's turn that counts."""
    before = links.settled_link_bytes(cluster)
    answers = _sums(team, comparison, strategy, number=number, verify=False)
    after = links.settled_link_bytes(cluster)
    rounds.seconds.append(max(answer["seconds"] for answer in answers))
    rounds.links.append(links.mean([links.since(after, before)], repeat=comparison.repeat))
    rounds.add_counted(answers, repeat=comparison.repeat)


def _warm_up(cluster: ClusterState, team: Team, comparison: Comparison, strategy: str) -> list[Sample]:
    """Run a turn that does not count: compare sums with NumPy's, and sample links and slots."""
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        switched = strategy in names.IN_THE_SWITCH
        look_at_slots = slot_look(admin, team.jobs) if switched else None
        with Sampler(links.link_look(cluster), look_at_slots) as sampler:
            answers = _sums(team, comparison, strategy, number=0, verify=True)
        allocated = slots_of(admin, team.jobs) if switched else 0
    check = answers[0]["check"]
    if not check["passed"]:
        raise VerificationError(f"{strategy}: a sum of {comparison.dtype} is {complaint(check)}")
    if comparison.bytes <= _SMALL_BYTES or any(host.kind is HostKind.ROCE for host in cluster.hosts):
        return []  # nothing to see, or machines with clocks of their own
    began = min(answer["began"] for answer in answers)
    ended = max(answer["began"] + answer["seconds"] * comparison.repeat for answer in answers)
    found = sampler.samples(began=began, slots_allocated=allocated)
    # What follows is the workers comparing sums.
    return [sample for sample in found if sample.at_s <= ended - began + INTERVAL_S]


def _sums(team: Team, comparison: Comparison, strategy: str, *, number: int, verify: bool) -> list[Answer]:
    """Sum, and return the workers' answers. With `verify`, rank 0's answer has a check.

    VerificationError if the workers' sums differ.
    """
    answers = team.do(
        "time_sums",
        per_rank=[{"verify": verify and rank == 0} for rank in range(team.size)],
        strategy=strategy,
        elements=comparison.elements(),
        dtype=comparison.dtype,
        seed=comparison.seed + number,
        repeat=comparison.repeat,
        racks=team.racks,
        timeout_s=_TIMEOUT_S,
    )
    if len({digest for answer in answers for digest in answer["digests"]}) != 1:
        raise VerificationError(f"{strategy}: the workers' sums of {comparison.bytes} bytes differ")
    return answers


def _require_mode(strategies: Sequence[str], joined: Sequence[Answer]) -> None:
    """Raise WorkloadError if a strategy needs the switches and they have no room for the job."""
    needing = [strategy for strategy in strategies if strategy in names.IN_THE_SWITCH]
    ringed = next((answer for answer in joined if answer["mode"] != "in_network"), None)
    if needing and ringed is not None:
        raise WorkloadError(
            f"{' and '.join(needing)}: the switches do not sum for this job: {ringed['mode_reason']}"
        )


def _create_pairs(cluster: ClusterState, jobs: Sequence[str], *, selective: bool | None) -> None:
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        for name in jobs:
            admin.create_job(name, 2, mode="ring", path_mtu=cluster.path_mtu, selective=selective)


def _bound_s(cluster: ClusterState, hosts: Sequence[HostState], strategy: str, size: int) -> float | None:
    if cluster.rate_mbit is None:
        return None
    fabric = bounds.Fabric(
        leaves=[host.switch for host in hosts],
        rate_mbit=cluster.rate_mbit,
        uplink_rate_mbit=cluster.uplink_rate_mbit if cluster.links else None,
        uplinks=len({link.b for link in cluster.links}),
    )
    if (gpus := gpus_of(cluster, hosts)) > 1:
        return hierarchy.link_bound_s(
            strategy, size=size, fabric=fabric, gpus_per_host=gpus, intra_rate_mbit=cluster.intra_rate_mbit
        )
    return bounds.link_bound_s(strategy, size=size, fabric=fabric)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
