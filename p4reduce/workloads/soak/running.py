"""A soak from its beginning to its report."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.machine import machine
from p4reduce.workloads.soak.board import Board
from p4reduce.workloads.soak.fault_runner import FaultRunner
from p4reduce.workloads.soak.looking import Look, delete_ended_jobs, grown, left, look
from p4reduce.workloads.soak.plan import KINDS, PACKETS, FaultPlan, Jobs
from p4reduce.workloads.soak.worker_group import WorkerGroup
from topologies.fabric import Fabric
from topologies.faults import ClusterFaults
from topologies.spine_leaf import SpineLeafOptions

Progress = Callable[[str], None]
_HUSH_S: Final = 240.0
_SETTLE_S: Final = 3.0
# Slots of jobs whose workers did not all hear of the end are kept until those have surely ended.
_SLOTS_GONE_S: Final = 90.0
_EACH: Final = 4  # workers
_GANGS: Final = 1  # the group whose jobs are of machines
_MACHINES: Final = 3
_GPUS: Final = 2


@dataclass(frozen=True, kw_only=True)
class SoakOptions:
    """Duration and seed of a soak, and its kinds of fault (`plan.KINDS`).

    Every `calm_s` all threads come to rest for a look. Periods between two looks alternate: no restarts and
    no killed workers, so that growth shows in processes that live on; and all faults.
    """

    name: str
    seconds: float
    seed: int
    kinds: Sequence[str] = KINDS
    crews: int = 4
    hosts: int = 8
    calm_s: float = 300.0
    slots: int = 768  # three jobs' worth on a switch: others wait
    elastic: bool = True
    selective: bool = True


@dataclass
class Outcome:
    """Result of a soak: `complaints` are what is wrong."""

    options: SoakOptions
    figures: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    interrupted: bool = False  # it says nothing about what was not tried
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the report."""
        return {
            "right": not self.complaints,
            "complaints": self.complaints,
            "interrupted": self.interrupted,
            "seed": self.options.seed,
            "kinds": list(self.options.kinds),
            "seconds": round(self.seconds, 1),
            "figures": dict(sorted(self.figures.items())),
            "faults": dict(sorted(self.faults.items())),
            "looks": [one.as_json() for one in self.looks],
            "machine": machine(),
        }


def soak(options: SoakOptions, *, progress: Progress = lambda text: None) -> Outcome:
    """Run a soak. Its outcome has what went wrong; TopologyError if the cluster cannot be brought up.

    SIGINT, SIGTERM and SIGHUP (in the main thread) end it: by KeyboardInterrupt while the fabric comes up,
    later with an outcome that says so. However many signals come, the fabric is taken down.
    """
    unknown = sorted(set(options.kinds) - set(KINDS))
    if unknown:
        raise WorkloadError(f"{unknown[0]!r} is no kind of fault, there are {', '.join(KINDS)}")
    fabric = SpineLeafOptions(
        name=options.name,
        spines=2,
        leaves=2,
        hosts=options.hosts,
        path_mtu=1024,
        controller_options={
            "quotas": {"tenants": {"default": {"slots": options.slots}}},
            "heartbeat_timeout_s": 15.0,
        },
    )
    progress("bringing up the fabric")
    outcome, board = Outcome(options), Board()
    with _interruptible(board) as up, Fabric(fabric) as running:
        up.set()
        cluster = running.state
        began = time.monotonic()
        with _at_work(running, options, board) as (groups, fault_runners):
            _watch(running, options, board, groups, fault_runners, outcome, progress)
            if board.interrupted:
                progress("interrupted: taking everything down")
            elif board.failure:
                outcome.complaints += [board.failure, *_doctor(running), _kept(running)]
            board.stop.set()
        outcome.seconds = time.monotonic() - began
    outcome.figures, outcome.faults = dict(board.counts), dict(board.faults)
    outcome.interrupted = board.interrupted
    if not board.failure and not board.interrupted:
        outcome.complaints += grown(outcome.looks)
    outcome.complaints += left(cluster, outcome.looks)
    return outcome


@contextlib.contextmanager
def _interruptible(board: Board) -> Iterator[threading.Event]:
    """Let signals end the soak: by KeyboardInterrupt until the event is set, then by the board."""
    up = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if not up.is_set():
            raise KeyboardInterrupt
        board.interrupted = True

    if threading.current_thread() is not threading.main_thread():
        yield up
        return
    old = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield up
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _at_work(
    running: Fabric, options: SoakOptions, board: Board
) -> Iterator[tuple[list[WorkerGroup], list[FaultRunner]]]:
    """Run groups and fault runners, each in a thread; end them on exit."""
    cluster, chance = running.state, random.Random(f"{options.seed} places")
    groups = []
    for number in range(options.crews):
        hosts, gpus = chance.choices(cluster.hosts, k=_EACH), 1
        if number == _GANGS:
            machines = chance.sample(cluster.hosts, k=_MACHINES)
            hosts, gpus = [host for host in machines for _ in range(_GPUS)], _GPUS
        jobs = Jobs(
            options.seed,
            number,
            workers=len(hosts),
            elastic=options.elastic,
            selective=options.selective,
            gpus=gpus,
        )
        groups.append(WorkerGroup(number, cluster, hosts, jobs, board))
    faults = ClusterFaults(cluster)
    fault_runners = []
    for name, kinds in (
        ("packets", [kind for kind in options.kinds if kind in PACKETS]),
        ("others", [kind for kind in options.kinds if kind not in PACKETS]),
    ):
        if kinds:
            plan = FaultPlan(
                options.seed,
                name,
                kinds=kinds,
                hosts=options.hosts,
                links=[link.name for link in cluster.links],
                switches=[switch.name for switch in cluster.switches],
            )
            fault_runners.append(FaultRunner(plan, faults, board))
    threads = [
        threading.Thread(target=run, daemon=True)
        for run in (*(c.run for c in groups), *(w.run for w in fault_runners))
    ]
    for thread in threads:
        thread.start()
    try:
        yield groups, fault_runners
    finally:
        board.stop.set()
        for group in groups if board.failure or board.interrupted else ():
            group.terminate()
        for thread in threads:
            thread.join(_HUSH_S)
        for group in groups:
            group.close()


def _watch(
    running: Fabric,
    options: SoakOptions,
    board: Board,
    groups: Sequence[WorkerGroup],
    fault_runners: Sequence[FaultRunner],
    outcome: Outcome,
    progress: Progress,
) -> None:
    """Look every now and then, until the time is over or something is wrong."""
    turn, next_look = 0, min(options.calm_s, options.seconds) / 4  # the first one when all is warm
    for one in fault_runners:
        one.gentle = True
    while not board.over:
        until = min(next_look, options.seconds)
        while board.elapsed_s < until and not board.over:
            time.sleep(0.2)
        if board.over:
            return
        progress(f"{board.elapsed_s:.0f} s: coming to rest")
        rested = board.hush(_HUSH_S)
        if board.over:
            return
        if not rested:
            board.fail(f"{board.busy} groups or fault runners do not come to rest within {_HUSH_S:g} s")
            return
        outcome.looks.append(_rested(running, groups, board))
        progress(_line(board, outcome.looks[-1]))
        if board.elapsed_s >= options.seconds:
            return
        turn += 1
        for one in fault_runners:
            one.gentle = turn % 2 == 1 and options.seconds > 2 * options.calm_s
        next_look = board.elapsed_s + options.calm_s
        board.resume()


def _rested(running: Fabric, groups: Sequence[WorkerGroup], board: Board) -> Look:
    """Look when all slots are given back, or have had the time for it."""
    workers = {name: process for group in groups for name, process in group.processes.items()}
    time.sleep(_SETTLE_S)
    deadline = time.monotonic() + _SLOTS_GONE_S
    while True:
        found = look(running.state, workers, at_s=board.elapsed_s)
        if found.slots == found.jobs == 0 or board.over:
            return found
        # Deleted while their slots were kept, and back since the controller was restarted.
        board.count(jobs_came_back=delete_ended_jobs(running.state))
        if time.monotonic() > deadline:
            board.fail(f"nobody runs a job, and yet {found.slots} slots and {found.jobs} jobs are left")
            return found
        time.sleep(1.0)


def _line(board: Board, found: Look) -> str:
    counts = board.counts
    memory = ", ".join(
        f"{one.name} {one.rss_mib:.0f} MiB" for one in found.processes if not one.name.startswith("worker")
    )
    return (
        f"{board.elapsed_s:.0f} s: {counts['jobs']} jobs, {counts['sums']} sums, "
        f"{sum(board.faults.values())} faults, {counts['packets_struck']} packets struck; {memory}"
    )


def _kept(running: Fabric) -> str:
    """Copy logs and database to where they outlive the cluster; return where that is."""
    folder = Path(tempfile.mkdtemp(prefix=f"p4reduce-{running.state.name}-"))
    for path in running.state.directory.rglob("*"):
        if path.is_file():
            shutil.copy(path, folder / path.name)
    return f"logs and database are in {folder}"


def _doctor(running: Fabric) -> list[str]:
    """Return the output of `p4reduce doctor` about the cluster."""
    command = [sys.executable, "-m", "p4reduce", "doctor", "--cluster", running.state.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return ["p4reduce doctor does not answer"]
    return [f"p4reduce doctor: {done.stdout}{done.stderr}"]
