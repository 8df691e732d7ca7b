"""The demo: train on an emulated rack, compare with one process, then race the switch against a ring."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from controller.config import Target
from p4reduce.workloads.allreduce import STALL_S, Outcome, Request, measure, require_right, switch_counters
from p4reduce.workloads.errors import VerificationError, WorkloadError
from p4reduce.workloads.team import Team
from p4reduce.workloads.training import Reference, compare
from topologies.fabric import Fabric
from topologies.rack import RackOptions
from topologies.state import ClusterState

WORKERS: Final = 4
RATE_MBIT: Final = 100.0
PATH_MTU: Final = 1024
RACE_BYTES: Final = 32 * 2**20
_SEED: Final = 1
_INTEGERS: Final = Request(bytes=400_004, dtype="int32", verify=True, seed=7)
_JOB: Final = "digits"

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Settings of the demo. `race_bytes` is the tensor of the race, `steps` are those of training.

    `repeat`: how often to race; None: as often as three minutes allow.
    """

    cluster: str = "demo"
    switch: Target = Target.EMBEDDED
    workers: int = WORKERS
    steps: int = 150
    race_bytes: int = RACE_BYTES
    repeat: int | None = None
    tls: bool = False

    @property
    def races(self) -> int:
        """Number of runs of each race; BMv2 takes a minute for one."""
        if self.repeat is not None:
            return self.repeat
        return 1 if self.switch is Target.BMV2 else 3


@dataclass(frozen=True, kw_only=True)
class Training:
    """Results of the training, and the reference."""

    steps: int
    accuracy: float
    equal: bool
    reference: Reference
    step_s: float
    bytes: int
    bytes_sent_per_host: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """All results of the demo."""

    switch: str
    workers: int
    rate_mbit: float
    path_mtu: int
    training: Training
    integers: Outcome
    in_network: Outcome
    ring: Outcome
    counters: dict[str, int]

    @property
    def ratio(self) -> float:
        """Time of the ring over the time in the network."""
        return self.ring.timing.median_s / self.in_network.timing.median_s

    @property
    def equal(self) -> bool:
        """True if all ranks had the same bits every time."""
        return all((self.training.equal, self.integers.equal, self.in_network.equal, self.ring.equal))

    def as_json(self) -> dict[str, Any]:
        """Return the object that 'p4reduce demo --json' writes."""
        training = self.training
        return {
            "switch": self.switch,
            "workers": self.workers,
            "path_mtu": self.path_mtu,
            "rate_mbit": self.rate_mbit,
            "accuracy": training.accuracy,
            "reference_accuracy": training.reference.accuracy,
            "ranks_bitwise_equal": self.equal,
            "integer_sum_exact": bool(self.integers.exact),
            "in_network": asdict(self.in_network.timing),
            "ring": asdict(self.ring.timing),
            "ratio": self.ratio,
            "counters": self.counters,
            "training": {
                "steps": training.steps,
                "gradient_bytes": training.bytes,
                "all_reduce_median_s": training.step_s,
                "bytes_sent_per_host": training.bytes_sent_per_host,
                "within_bound": training.reference.within_bound,
                "largest_error_share_of_bound": training.reference.worst_share,
                "parameter_distance": training.reference.parameter_distance,
            },
        }


def run(options: DemoOptions, *, progress: Progress = lambda text: None) -> Report:
    """Bring a rack up, run everything, take it down. VerificationError if a result is not as promised."""
    rack = RackOptions(
        name=options.cluster,
        hosts=options.workers,
        switch=options.switch,
        path_mtu=PATH_MTU,
        rate_mbit=RATE_MBIT,
        tls=options.tls,
    )
    progress("bringing up the rack")
    with Fabric(rack, progress=lambda text: progress(f"bringing up the rack: {text}")) as cluster:
        report = _on(cluster.state, options, progress)
    if not report.training.reference.within_bound:
        raise VerificationError(
            "a summed gradient was off by "
            f"{report.training.reference.worst_share:.3g} times what quantisation can do"
        )
    return report


def _on(cluster: ClusterState, options: DemoOptions, progress: Progress) -> Report:
    with Team(cluster, options.workers) as team, tempfile.TemporaryDirectory() as scratch:
        progress("workers join the job")
        joined = team.join(_JOB, timeout_s=STALL_S)[0]
        if joined["mode"] != "in_network":
            raise WorkloadError(f"the switch takes no part in the job: {joined['mode_reason']}")
        progress("summing integers")
        integers = measure(team, _INTEGERS)
        require_right(integers, "sum of integers")
        training = _train(team, options, Path(scratch) / "sums.npy", progress)
        races = []
        for strategy, where in (("in-network", "in the switch"), ("ring", "by ring all-reduce")):
            progress(f"{options.race_bytes >> 20} MB {where}")
            request = Request(bytes=options.race_bytes, strategy=strategy, repeat=options.races, verify=True)
            races.append(measure(team, request))
            require_right(races[-1], f"{options.race_bytes} bytes {where}")
        wire = [answer["statistics"] for answer in team.do("statistics")]
        counters = switch_counters(cluster, team.jobs)
        team.do("leave")
    counters["retransmissions"] = sum(worker["retransmissions"] for worker in wire)
    counters["duplicates_received"] = sum(worker["duplicates"] for worker in wire)
    return Report(
        switch=cluster.target,
        workers=options.workers,
        rate_mbit=RATE_MBIT,
        path_mtu=joined["path_mtu"],
        training=training,
        integers=integers,
        in_network=races[0],
        ring=races[1],
        counters=counters,
    )


def _train(team: Team, options: DemoOptions, record: Path, progress: Progress) -> Training:
    progress(f"training: {options.steps} steps")
    answers = team.do("train", steps=options.steps, seed=_SEED, record=str(record))
    progress("the same training in one process")
    reference = compare(record, world_size=team.size, seed=_SEED)
    slowest = [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]
    return Training(
        steps=options.steps,
        accuracy=answers[0]["accuracy"],
        equal=len({answer["digest"] for answer in answers}) == 1,
        reference=reference,
        step_s=statistics.median(slowest),
        bytes=answers[0]["bytes"],
        bytes_sent_per_host=round(max(answer["bytes_sent"] for answer in answers)),
    )
