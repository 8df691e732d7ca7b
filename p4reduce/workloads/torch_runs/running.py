"""A run of a script on a running cluster: what it printed, how it ended, what went over the links."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.api.admin import AdminClient
from controller.api.errors import ControllerError
from p4reduce.workloads import links
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.run_file import LinkBytes
from p4reduce.workloads.sampling import Look, Sampler
from p4reduce.workloads.torch_runs.interpreter import Interpreter
from p4reduce.workloads.torch_runs.ranks import Failure, OnLine, Ranks
from p4reduce.workloads.torch_runs.record import FOR, INSTEAD, RECORD, Record, read
from p4reduce.workloads.torch_runs.script import Meeting, Script, environment
from topologies import state
from topologies.state import ClusterState, HostState

_OFTEN_S: Final = 0.05
_PATIENCE_S: Final = 5.0
_RATE_OVER_S: Final = 1.0
_COMPILED: Final = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class Status:
    """State of a run. `busiest` is the link that carries most now, one way, and its Mbit/s."""

    running: int
    ranks: int
    seconds: float
    busiest: tuple[str, float] | None


@dataclass(frozen=True)
class Ran:
    """A run that is over. `failure`: the rank that failed; `looks`, `record`: where asked for.

    `jobs`: the number of its jobs; None where the controller does not say. `began`: by the record's clock.
    """

    seconds: float
    failure: Failure | None
    links: dict[str, LinkBytes]
    looks: list[Look]
    record: Record
    jobs: int | None = None
    began: float = 0.0


OnStatus = Callable[[Status], None]


def run(
    cluster: ClusterState,
    hosts: Sequence[HostState],
    script: Script,
    *,
    on_line: OnLine,
    on_status: OnStatus,
    recorded: bool = False,
    own_caches: bool = False,
    backend: str = "",
    instead_of: str = "",
    job: str = "",
    interpreter: Interpreter | None = None,
) -> Ran:
    """Run `script` in `hosts` to its end.

    `recorded`: record its steps. `own_caches`: torch.compile's cache is for this run alone. `backend` "gloo":
    a script that asks for p4reduce gets Gloo, on the same links. `instead_of` "gloo": a script that asks for
    Gloo, or for no backend, gets p4reduce. `job`: one that is there already; without it, the run has one of
    its own, which is deleted at the end. `interpreter`: the one to fork ranks from, where that is possible.
    """
    meeting = Meeting.at(hosts[0], run=job)
    told = [environment(cluster, hosts, rank, meeting) for rank in range(len(hosts))]
    if backend:
        told = [{**one, INSTEAD: backend} for one in told]
    if instead_of:
        told = [{**one, FOR: instead_of} for one in told]
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as scratch:
        record = Path(scratch) / "steps.json"
        if recorded:
            told[0][RECORD] = str(record)
        if own_caches and _COMPILED not in os.environ:
            told = [{**one, _COMPILED: str(Path(scratch) / "compiled")} for one in told]
        if interpreter is not None:
            interpreter.ready()
        rates = _Rates(cluster)
        before, began = links.link_bytes(cluster), time.monotonic()
        with contextlib.ExitStack() as stack:
            if not job:
                stack.callback(_delete_jobs, cluster, meeting.run)
            sampler = Sampler(links.link_look(cluster), None, interval_s=_OFTEN_S) if recorded else None
            if sampler is not None:
                stack.enter_context(sampler)
            made = Ranks(cluster, hosts, script, told, on_line=on_line, interpreter=interpreter)
            ranks = stack.enter_context(made)

            def look() -> None:
                seconds = time.monotonic() - began
                on_status(Status(ranks.running, len(hosts), seconds, rates.busiest()))

            failure = ranks.wait(look)
            seconds = time.monotonic() - began
            jobs = _count_jobs(cluster, meeting.run)
        return Ran(
            jobs=jobs,
            seconds=seconds,
            failure=failure,
            links=rates.since(before),
            looks=[] if sampler is None else sampler.looks,
            record=read(record),
            began=began,
        )


class _Rates:
    """Rates of the links, read beside the controller. They are unknown while it is gone; the run goes on."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._look = links.link_look(cluster)
        self._looks: list[tuple[float, dict[str, LinkBytes]]] = []

    def busiest(self) -> tuple[str, float] | None:
        """Return the link that carried most in the last second, and its Mbit/s; None where unknown."""
        now = self._now()
        if now is None:
            self._looks.clear()
            return None
        at = time.monotonic()
        self._looks.append((at, now))
        while len(self._looks) > 2 and self._looks[1][0] <= at - _RATE_OVER_S:
            self._looks.pop(0)
        since_s, before = self._looks[0]
        if since_s == at:
            return None
        carried = links.since(now, before)
        name = max(carried, key=lambda link: max(carried[link].up, carried[link].down))
        return name, max(carried[name].up, carried[name].down) * 8 / (at - since_s) / 1e6

    def since(self, before: dict[str, LinkBytes]) -> dict[str, LinkBytes]:
        """Return the bytes over each link since `before`; empty where they are not known any more."""
        now = self._now()
        return {} if now is None else links.since(now, before)

    def _now(self) -> dict[str, LinkBytes] | None:
        with contextlib.suppress(WorkloadError):
            return self._look()
        newest = state.load(self._cluster.name)
        if newest is None:
            return None
        with contextlib.suppress(WorkloadError):  # it was started again, and is another process
            self._look = links.link_look(newest)
            return self._look()
        return None


def _jobs(admin: AdminClient, run: str) -> list[str]:
    """Return the names of a run's jobs, its groups' too."""
    return [job.spec.name for job in admin.list_jobs() if job.spec.name.startswith(run)]


def _count_jobs(cluster: ClusterState, run: str) -> int | None:
    """Count a run's jobs; None where the controller does not answer."""
    with contextlib.suppress(ControllerError), _admin(cluster) as admin:
        return len(_jobs(admin, run))
    return None


def _delete_jobs(cluster: ClusterState, run: str) -> None:
    """Delete a run's jobs: they have ended, and nobody will ask for them; or they never began."""
    with contextlib.suppress(ControllerError), _admin(cluster) as admin:
        for name in _jobs(admin, run):
            with contextlib.suppress(ControllerError):
                admin.delete_job(name)


def _admin(cluster: ClusterState) -> AdminClient:
    return AdminClient(f"unix:{cluster.control_socket}", timeout_s=_PATIENCE_S)
