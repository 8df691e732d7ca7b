"""One rank of a job, as seen by the controller, by the rank itself and by the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from controller.api import controller_pb2 as pb
from p4reduce.doctor import words
from p4reduce.doctor.control import stopped_do
from p4reduce.doctor.facts import Facts, Observation, Process, ProcessState, Worker, WorkerStatus
from p4reduce.doctor.findings import Finding

BUSY: Final = 0.5  # of a core
SILENT_S: Final = 2.5  # heartbeats come every second


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank's present state, and its earlier status."""

    number: int
    host: str = ""
    plane: int | None = None  # of a gang: its GPU's local rank
    info: pb.WorkerInfo | None = None
    worker: Worker | None = None
    earlier: WorkerStatus | None = None
    cpu: float = 0.0  # of one core, between the two observations

    @property
    def name(self) -> str:
        """Name for messages: rank 2 (h3)."""
        return words.rank(self.number, self.host, self.plane)

    @property
    def status(self) -> WorkerStatus | None:
        """The worker's own status; None if it gives none."""
        return self.worker.status if self.worker is not None else None

    @property
    def process(self) -> Process | None:
        """The rank's process, if it runs on this machine."""
        return self.worker.process if self.worker is not None else None

    @property
    def has_moved(self) -> bool:
        """True if anything useful happened between the two observations."""
        return (
            self.status is not None
            and self.earlier is not None
            and self.status.position != self.earlier.position
        )

    @property
    def call(self) -> int | None:
        """Number of the collective that the rank is in, or was in last."""
        return None if self.status is None else self.status.next_collective - 1

    def line(self) -> str:
        """Describe where the rank stands, in one line."""
        if self.status is None:
            why = f": {self.worker.why}" if self.worker is not None and self.worker.why else ""
            heard = ""
            if self.info is not None:
                connected = "connected" if self.info.connected else "not connected"
                heard = f", {connected} with the controller, heard {words.ago(self.info.heard_s_ago)}"
            return f"{self.name}: does not say where it stands{why}{heard}"
        s = self.status
        if s.collective:
            held = ", held by the controller" if s.is_held else ""
            at = f"in {s.collective} for {words.seconds(s.for_s)}{held}"
        elif s.is_leaving:
            at = "is leaving the job"
        else:
            at = f"in no collective for {words.seconds(s.idle_s or 0.0)}, the next is {s.next_collective}"
        again = f", {s.timeouts_in_a_row} timeouts in a row" if s.timeouts_in_a_row else ""
        return (
            f"{self.name}: {at}; messages: {s.posted} posted, {s.sent} sent, {s.acked} acknowledged, "
            f"{s.received} received; last sent {words.ago(s.sent_s_ago)}, last received "
            f"{words.ago(s.received_s_ago)}{again}"
        )

    def activity(self) -> str:
        """Describe what the rank's process does, as far as can be seen from outside, and where."""
        s = self.status
        at = f", at {s.where}" if s is not None and s.where else ""
        return f"{'it computes' if self.cpu >= BUSY else 'it sleeps'} ({100 * self.cpu:.0f}% of a core){at}"


def ranks_of(facts: Facts, job: pb.JobInfo) -> list[Rank]:
    """Return all ranks of a job that the controller knows, in order."""
    plane = job.spec.gang.plane if job.spec.HasField("gang") else None
    return [
        replace(
            rank(facts, job.spec.name, info.worker.rank, host=info.host or info.worker.hostname, info=info),
            plane=plane,
        )
        for info in job.workers
    ]


def ranks_told(facts: Facts, job: str) -> list[Rank]:
    """Return the ranks of a job that only its workers tell of."""
    hosts = {worker.rank: worker.host for worker in facts.now.workers if worker.job == job}
    return [rank(facts, job, number, host=hosts[number], info=None) for number in sorted(hosts)]


def rank(facts: Facts, job: str, number: int, *, host: str, info: pb.WorkerInfo | None) -> Rank:
    """Find a rank by number and host: a worker that does not answer may have been renumbered meanwhile."""
    now, before = _worker(facts.now, job, number, host), _worker(facts.before, job, number, host)
    cpu = 0.0
    if now is not None and before is not None and now.process.pid == before.process.pid:
        cpu = max(0.0, now.process.cpu_s - before.process.cpu_s) / facts.seconds
    status = None if now is None else now.status
    return Rank(
        number=number,
        plane=None if status is None else status.local_rank,
        host=host or (now.host if now is not None else ""),
        info=info,
        worker=now,
        earlier=before.status if before is not None else None,
        cpu=cpu,
    )


def _worker(observation: Observation, job: str, number: int, host: str) -> Worker | None:
    mine = [worker for worker in observation.workers if worker.job == job]
    for worker in mine:
        if worker.status is not None and worker.rank == number:
            return worker
    silent = [worker for worker in mine if worker.status is None]
    on_host = [worker for worker in silent if host and worker.host == host]
    here = on_host or [worker for worker in silent if worker.rank == number and not worker.host]
    # Of one that was killed and its successor, the one that lives.
    return min(here, key=lambda worker: worker.process.state is ProcessState.GONE, default=None)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A reason why a rank keeps the others waiting. The lower the `weight`, the surer it is the root."""

    code: str
    rank: Rank
    says: str
    weight: int
    do: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


def cause(
    rank: Rank,
    ranks: Sequence[Rank],
    infra: Sequence[Finding],
    missing_flows: set[int],
    *,
    is_elastic: bool = False,
) -> Cause | None:
    """Return why a rank keeps the others waiting; None if nothing is wrong with it, as far as can be seen."""
    process, s, info, because = rank.process, rank.status, rank.info, partial(Cause, rank=rank)
    if process is not None and process.state is ProcessState.GONE and _is_heard(info):
        process = None  # that was its predecessor, of an earlier run
    if process is not None and process.state is ProcessState.GONE:
        return because(
            code="worker-gone",
            says=f"its process ({process.pid}) is gone: it was killed, or has crashed",
            weight=0,
            evidence=_heard(info),
            do=(
                "its own output says why; if nothing does: dmesg | grep -i -e oom -e killed",
                "nothing: the job is elastic, and goes on without it in a moment"
                if is_elastic
                else "nothing to wait for: all planes end by themselves soon"
                if rank.plane is not None
                else "nothing to wait for: the job ends by itself soon; '--elastic' lets one go on without "
                "it",
            ),
        )
    if process is not None and process.state is ProcessState.STOPPED:
        return because(
            code="worker-stopped",
            says=f"its process ({process.pid}) is stopped (SIGSTOP)",
            weight=0,
            evidence=_heard(info),
            do=stopped_do(process),
        )
    if process is not None and process.state is ProcessState.STUCK:
        return because(
            code="worker-in-kernel",
            says=f"its process ({process.pid}) is stuck in the kernel, mostly for a disk or a file server",
            weight=1,
            do=(f"cat /proc/{process.pid}/stack /proc/{process.pid}/wchan", "dmesg | tail"),
        )
    for finding in infra:
        if finding.code in ("link-down", "cut-off") and finding.where.startswith(f"{rank.host}:"):
            return because(code=finding.code, says=finding.says, weight=0, do=finding.do)
    if rank.number in missing_flows:
        return because(
            code="flow-missing",
            says="the entries of its flow are not on its switch: somebody deleted or changed them",
            weight=1,
            do=("p4reduce rollback", "p4reduce plan  shows what else was changed by hand"),
        )
    if s is not None and s.failure:
        return because(code="worker-failed", says=f"it has failed: {s.failure}", weight=1)
    if process is not None and s is None:
        return because(
            code="worker-silent",
            says=f"its process ({process.pid}) runs but does not answer: {rank.activity()}; some thread of "
            f"it "
            f"may hold Python's lock",
            weight=2,
            evidence=_heard(info),
            do=(f"py-spy dump --pid {process.pid}  (or gdb -p {process.pid})",),
        )
    if s is not None and s.waits_for:
        return because(
            code="waits-on-its-machine",
            says=f"it waits for {words.ranks(s.waits_for, 'GPU')} of its own machine, of which the findings "
            "about the other planes tell",
            weight=3,
        )
    if (late := _late(rank, ranks)) is not None:
        return late
    if info is not None and not info.connected:
        return because(
            code="worker-away",
            says=f"it has no connection with the controller, and was heard {words.ago(info.heard_s_ago)}",
            weight=3,
            do=(f"see whether its process still runs, and reaches the controller, on {rank.host}",),
        )
    if info is not None and s is None and info.heard_s_ago > SILENT_S:
        return because(
            code="worker-mute",
            says=f"it is connected with the controller, but has sent no heartbeat for "
            f"{words.seconds(info.heard_s_ago)}: it is stopped, or hangs",
            weight=3,
            do=(f"look at its process on {rank.host}: ps -o pid,stat,cmd (T is stopped)",),
        )
    return None


def _late(rank: Rank, ranks: Sequence[Rank]) -> Cause | None:
    """Return the cause if others are in a collective that this rank has not called; else None."""
    s, because = rank.status, partial(Cause, rank=rank)
    if s is None or s.collective:
        return None
    ahead = [o for o in ranks if o.status is not None and o.status.collective]
    ahead = [o for o in ahead if o.call is not None and o.call >= s.next_collective]
    if not ahead:
        return None
    waited = max(o.status.for_s for o in ahead if o.status is not None)
    what = min((o.call, o.status.collective) for o in ahead if o.status is not None and o.call is not None)
    who = "the other rank is" if len(ahead) == 1 else f"the {len(ahead)} others are"
    if s.is_leaving:
        return because(
            code="worker-left",
            says=f"it has left the job ('leave'), while {who} in {what[1]}: it made fewer calls",
            weight=1,
            do=(
                "all ranks have to call the same collectives as often: uneven shares of the data are the "
                "usual "
                "reason (drop the last batch, or let each rank do as many steps as the one with the fewest)",
            ),
        )
    pid = rank.process.pid if rank.process is not None else 0
    return because(
        code="straggler",
        says=f"it has not called {what[1]}, which {who} in for {words.seconds(waited)}: {rank.activity()}",
        weight=2,
        evidence=tuple(f"its main thread: {line}" for line in s.stack[-3:]),
        do=(
            f"look what it does there: py-spy dump --pid {pid}",
            "if it is only slow, nothing: the others wait for as long as it sends heartbeats",
        ),
    )


def _is_heard(info: pb.WorkerInfo | None) -> bool:
    """Return whether the controller has just heard the rank; a dead process loses its session at once."""
    return info is not None and info.connected and info.heard_s_ago < SILENT_S


def _heard(info: pb.WorkerInfo | None) -> tuple[str, ...]:
    if info is None:
        return ()
    return (f"the controller heard it last {words.ago(info.heard_s_ago)}",)
