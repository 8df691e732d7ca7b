"""Findings about each job: the oldest open slot, the ranks that have not contributed, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from controller.api import controller_pb2 as pb
from controller.api.codec import from_proto
from controller.api.messages import EndCause, Ended
from p4reduce.doctor import words
from p4reduce.doctor.facts import Facts
from p4reduce.doctor.findings import Finding, Severity, error, note, warning
from p4reduce.doctor.ranks import Cause, Rank, cause, ranks_of, ranks_told
from p4reduce.live.reading import counted

PATIENCE_S = 1.0  # who is later than that keeps the others waiting
_LATELY_S = 600.0  # what did not begin, or ended early, since then is worth a warning
_NAMED = 5  # of the jobs that have ended
_BY_A_WORKER = (EndCause.WORKER_LOST, EndCause.WORKER_ABORTED)
_LOG_HINT = "the workers' own output has the error that each of them got"
# Findings about a switch that a job cannot do without.
_SWITCH_CODES = (
    "switch-dead",
    "switch-stopped",
    "switch-restarting",
    "switch-away",
    "program-replaced",
)
# Findings about links that are not one rank's.
_LINK_CODES = ("fabric-silent", "loss", "corruption", "uplink-down", "uplink-silent", "delay")


@dataclass(frozen=True, kw_only=True)
class Open:
    """The oldest message whose sum is not complete, according to the switches' slots."""

    message: int
    switch: str
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    age_s: float

    def words(self) -> str:
        """Describe which ranks have contributed, which have not, and for how long the slot is open."""
        total = len(self.ranks) + len(self.missing)
        return (
            f"{len(self.ranks)} of {total} ranks have contributed to message {self.message} on "
            f"{self.switch}, "
            f"{words.ranks(self.missing)} {'has' if len(self.missing) == 1 else 'have'} not; it is open for "
            f"{words.seconds(self.age_s)}"
        )


def jobs(facts: Facts, infra: Sequence[Finding], wanted: str | None) -> Iterator[Finding]:
    """Yield findings about live jobs, at least one for each; `infra`: findings about everything else."""
    if facts.now.jobs.value is None:
        for name in sorted(
            {worker.job for worker in facts.now.workers} & {wanted or w.job for w in facts.now.workers}
        ):
            yield from _of(name, _running(facts, name, None, ranks_told(facts, name), infra))
        return
    known = [job for job in facts.now.jobs.value if _is_wanted(job, wanted)]
    live = [job for job in known if job.phase != pb.ENDED]
    gathering = dict.fromkeys(job.spec.gang.name for job in live if _gathers(job))
    for job in live:
        if job.spec.gang.name not in gathering:
            yield from _of(job.spec.name, _live(facts, job, infra))
    for name in gathering:
        planes = [job for job in live if job.spec.gang.name == name]
        yield from _of(name, [_gathering(facts, name, planes)])


def _of(name: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Set the job's name in its findings."""
    return (replace(finding, job=name) for finding in findings)


def _is_wanted(job: pb.JobInfo, wanted: str | None) -> bool:
    """Return whether the user asked for the job, by its name or its gang's; None asks for all jobs."""
    return wanted in (None, job.spec.name, job.spec.gang.name)


def ended(facts: Facts, wanted: str | None) -> Iterator[Finding]:
    """Yield findings about ended jobs; several that are only notes become one."""
    jobs = facts.now.jobs.value or ()
    is_alone = all(job.phase == pb.ENDED for job in jobs)
    found = [
        replace(_ended(job, is_asked=wanted is not None, is_alone=is_alone), job=job.spec.name)
        for job in jobs
        if _is_wanted(job, wanted) and job.phase == pb.ENDED
    ]
    yield from (finding for finding in found if finding.severity is not Severity.NOTE)
    past = [finding for finding in found if finding.severity is Severity.NOTE]
    if len(past) <= 1:
        yield from past
        return
    names = [finding.job for finding in past]
    shown = [*names[:_NAMED], f"{len(names) - _NAMED} more"][: _NAMED + 1]
    yield note(
        code="ended-jobs",
        says=f"{len(names)} jobs have ended: {words.listed(names if len(names) <= _NAMED else shown)}",
        do=("p4reduce doctor --job JOB   (why one of them has ended)", "p4reduce job clear   (forgets them)"),
    )


def _gathers(job: pb.JobInfo) -> bool:
    """Return whether the job is a plane whose gang waits for workers to join."""
    return job.spec.HasField("gang") and job.phase in (pb.CREATED, pb.JOINING)


def _gathering(facts: Facts, name: str, planes: Sequence[pb.JobInfo]) -> Finding:
    """Report a gang that waits for workers; some of its planes may have begun."""
    size, count = planes[0].spec.world_size, planes[0].spec.gang.planes
    hosts = {info.worker.rank: info.host or info.worker.hostname for job in planes for info in job.workers}
    joined = {(info.worker.rank, job.spec.gang.plane) for job in planes for info in job.workers}
    missing = {n: [g for g in range(count) if (n, g) not in joined] for n in range(size)}
    who = [words.gpus(machine, gpus, hosts.get(machine, "")) for machine, gpus in missing.items() if gpus]
    first = next((machine * count + gpus[0] for machine, gpus in missing.items() if gpus), None)
    return Finding(
        code="joining",
        severity=Severity.WARNING if joined else Severity.NOTE,
        says=f"gang {name}: waits for {words.listed(who)} to join, {len(joined)} of {size * count} have"
        if joined
        else f"gang {name}: nobody has joined yet, it has {count} planes of {size} machines",
        rank=first if joined else None,
        do=(
            f"start those workers, with job {name!r}, world size {size * count}, {count} GPUs a machine and "
            f"the controller's address {facts.cluster.controller}",
            "if they run: each has to reach the controller over the management network",
        )
        if joined
        else (),
    )


def _live(facts: Facts, job: pb.JobInfo, infra: Sequence[Finding]) -> Iterator[Finding]:
    name, phase = job.spec.name, job.phase
    if phase in (pb.CREATED, pb.JOINING):
        yield _joining(facts, job)
    elif phase == pb.RUNNING:
        yield from _running(facts, name, job, ranks_of(facts, job), infra)
    else:
        yield _setting_up(facts, job, infra)
    yield from _by_ring(job)


def _joining(facts: Facts, job: pb.JobInfo) -> Finding:
    name, size = job.spec.name, job.spec.world_size
    joined = {info.worker.rank: info.host or info.worker.hostname for info in job.workers}
    missing = [number for number in range(size) if number not in joined]
    shut_out = [
        f"{host} does not reach the controller: {why}" for host, why in facts.management.items() if why
    ]
    here = ", ".join(words.rank(number, host) for number, host in sorted(joined.items()))
    if not joined:
        return note(
            code="nobody-joined",
            says=f"job {name}: nobody has joined yet, it has a world size of {size}",
        )
    return warning(
        code="joining",
        says=f"job {name}: waits for {words.ranks(missing)} to join, {len(joined)} of {size} have",
        rank=missing[0] if missing else None,
        evidence=(f"there: {here}", *shut_out),
        do=(
            f"start the workers of {words.ranks(missing)}, with job {name!r}, world size {size} and the "
            f"controller's "
            f"address {facts.cluster.controller}",
            "if they run: each needs its own rank, and has to reach the controller over the management "
            "network",
        ),
    )


def _setting_up(facts: Facts, job: pb.JobInfo, infra: Sequence[Finding]) -> Finding:
    name = job.spec.name
    blocked = next((f for f in infra if f.code in _SWITCH_CODES), None)
    if job.phase == pb.INSTALLING:
        says = f"job {name}: all have joined, the switches are being written"
        if blocked is not None:
            says += f"; {blocked.says}"
    else:
        says = f"job {name}: waits for its workers to bring up their queue pairs"
    ill = [
        found
        for rank in ranks_of(facts, job)  # of their processes nothing is known yet
        if (found := cause(replace(rank, worker=None), (), infra, set())) is not None
    ]
    if ill:
        says += f"; {ill[0].rank.name}: {ill[0].says}"
    return Finding(
        code="setting-up",
        severity=Severity.ERROR if blocked is not None or ill else Severity.NOTE,
        says=says,
        do=(blocked.do if blocked is not None else ill[0].do if ill else ()),
    )


def _ended(job: pb.JobInfo, *, is_asked: bool, is_alone: bool) -> Finding:
    """Report an ended job. `is_alone`: no job lives, so this one may interest the user more."""
    name, ended = job.spec.name, from_proto(Ended, job.ended)
    if ended.cause is EndCause.ALL_LEFT:
        return note(code="ended", says=f"job {name} has ended: {ended.reason}")
    was_lately = not job.HasField("ended_s_ago") or job.ended_s_ago < _LATELY_S
    if job.generation == 0 and job.HasField("ended_s_ago") and was_lately:
        return _not_begun(job, is_asked=is_asked)
    return Finding(
        code="mismatch" if ended.cause is EndCause.MISMATCH else "ended-early",
        severity=Severity.ERROR
        if is_asked
        else Severity.WARNING
        if is_alone and was_lately
        else Severity.NOTE,
        says=f"job {name} has ended: {ended.reason}",
        rank=ended.rank,
        do=(
            "all ranks have to call the same collectives in the same order, with the same sizes, types and "
            "operations"
            if ended.cause is EndCause.MISMATCH
            else _LOG_HINT,
            "start its workers again; '--elastic' lets a job go on without workers that die"
            if ended.cause in _BY_A_WORKER and not job.spec.HasField("gang")
            else "start its workers again",
        ),
    )


def _not_begun(job: pb.JobInfo, *, is_asked: bool) -> Finding:
    """Report a job that ended before all of its workers had joined."""
    name, size = job.spec.name, job.spec.world_size
    joined = {info.worker.rank: info.host or info.worker.hostname for info in job.workers}
    missing = [number for number in range(size) if number not in joined]
    says = f"job {name} ended {words.seconds(job.ended_s_ago)} ago before it had begun"
    says += f", as {words.ranks(missing)} did not join" if missing else f": {job.ended.reason}"
    return Finding(
        code="not-begun",
        severity=Severity.ERROR if is_asked else Severity.WARNING,
        says=says,
        rank=missing[0] if missing else None,
        evidence=(
            job.ended.reason,
            f"there: {', '.join(words.rank(number, host) for number, host in sorted(joined.items()))}",
        ),
        do=(f"the output of {words.ranks(missing)} says why; start all {size} workers again",)
        if missing
        else (_LOG_HINT, "start its workers again"),
    )


def _running(
    facts: Facts, name: str, job: pb.JobInfo | None, ranks: Sequence[Rank], infra: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield the finding that says how the job stands, with the causes that keep it waiting."""
    opened = _oldest_open(facts, job) if job is not None else None
    missing_flows = _missing_flows(facts, name)
    is_elastic = job is not None and job.spec.elastic
    causes = sorted(
        (
            found
            for rank in ranks
            if (found := cause(rank, ranks, infra, missing_flows, is_elastic=is_elastic)) is not None
        ),
        key=lambda found: found.weight,
    )
    failures = [rank.status.failure for rank in ranks if rank.status is not None and rank.status.failure]
    if job is None and failures:  # there is no controller that would say it
        yield error(
            code="ended-early",
            says=f"job {name} has ended: {failures[0]}",
            do=(_LOG_HINT,),
        )
        return
    needed = {*_leaves(facts, ranks), *_only_spine(job)}
    broken = [f for f in infra if f.code in _SWITCH_CODES and f.where in needed]
    if job is not None and job.mode == pb.RING and not job.places and any(rank.has_moved for rank in ranks):
        broken = []  # it goes on over the management network
    if job is not None and (job.renewing or job.awaited):
        yield _changing(job, ranks, causes, broken)
        return
    moved = any(rank.has_moved for rank in ranks) or _counted(facts, name)
    waited = max((r.status.for_s for r in ranks if r.status is not None and r.status.collective), default=0.0)
    if opened is not None and not moved:
        waited = max(waited, opened.age_s)
    dead = [found for found in causes if found.weight == 0]
    if moved and not dead and not broken:
        yield _moving(facts, name, ranks)
        yield from (_as_finding(name, c, Severity.WARNING) for c in causes if c.weight == 1)
        return
    is_waiting = bool(dead or broken) or (waited >= PATIENCE_S and not moved)
    if not is_waiting:
        yield _idle(name, ranks)
        yield from (_as_finding(name, c, Severity.WARNING) for c in causes if c.code == "worker-silent")
        return
    yield _waiting(name, ranks, opened, causes, broken, waited, infra)


def _waiting(
    name: str,
    ranks: Sequence[Rank],
    opened: Open | None,
    causes: Sequence[Cause],
    broken: Sequence[Finding],
    waited: float,
    infra: Sequence[Finding],
) -> Finding:
    """Report whom the job waits for, why, how far the others are, and what to do."""
    status = _activities(ranks)
    so_far = (opened.words(),) if opened is not None else ()
    if broken:
        first = broken[0]
        also = [f"{c.rank.name}: {c.says}" for c in causes if c.weight == 0]
        return error(
            code=f"waits:{first.code}",
            says=f"job {name} waits: {first.says}",
            where=first.where,
            evidence=(*first.evidence, *also, *so_far, *status),
            do=first.do,
        )
    if causes:
        # Ranks that the open slot lacks are surer to be it than others with the same trouble.
        lacking = set(opened.missing) if opened is not None else set()
        first_cause = min(causes, key=lambda c: (c.weight, c.rank.number not in lacking))
        alike = [c for c in causes if c.code == first_cause.code and c is not first_cause]
        whom = words.listed([c.rank.name for c in (first_cause, *alike)])
        says = f"job {name}: waits for {whom}: {first_cause.says}"
        if opened is not None:
            says += f". {words.capital(opened.words())}"
        others = [f"{c.rank.name}: {c.says}" for c in causes if c is not first_cause]
        do = tuple(dict.fromkeys(line for c in (first_cause, *alike) for line in c.do))
        return Finding(
            code=f"waits:{first_cause.code}",
            severity=Severity.WARNING if first_cause.code == "straggler" else Severity.ERROR,
            says=says,
            rank=first_cause.rank.number,
            where=first_cause.rank.host,
            evidence=(*first_cause.evidence, *others, *status),
            do=do,
        )
    return _unexplained(name, ranks, opened, waited, infra, status)


def _unexplained(
    name: str,
    ranks: Sequence[Rank],
    opened: Open | None,
    waited: float,
    infra: Sequence[Finding],
    status: tuple[str, ...],
) -> Finding:
    """Report a wait without a known cause: packets do not get through, or a rank gives no status."""
    by_number = {rank.number: rank for rank in ranks}
    bad_links = [f for f in infra if f.code in _LINK_CODES]
    behind = _behind(ranks)
    # A rank that lacks a sum which others have has not contributed to later ones: that is not its doing.
    deaf = behind and opened is not None and set(opened.missing) <= {r.number for r in behind if r.status}
    if opened is not None and opened.missing and not deaf:
        names = words.listed([by_number[n].name if n in by_number else f"rank {n}" for n in opened.missing])
        sent = [n for n in opened.missing if n in by_number and _has_sent(by_number[n], opened.message)]
        says = f"job {name}: waits for {names}. {words.capital(opened.words())}"
        if sent:
            says += f"; {words.ranks(sent)} sent it, but it did not arrive"
        rank: int | None = opened.missing[0]
    else:
        who = words.listed([r.name for r in behind])
        says = f"job {name}: nothing has moved for {words.seconds(waited)}"
        if behind:
            first = min(r.status.received for r in behind if r.status is not None)
            says += f"; the sum of message {first} does not reach {who}, while the others have it"
        rank = behind[0].number if behind else None
    code = "waits:path"
    do: tuple[str, ...] = ("p4reduce show counters", "p4reduce show ports  (twice: which counter moves?)")
    if bad_links:
        says += f"; {bad_links[0].says}"
        code, do = f"waits:{bad_links[0].code}", bad_links[0].do
    return error(code=code, says=says, rank=rank, evidence=status, do=do)


def _moving(facts: Facts, name: str, ranks: Sequence[Rank]) -> Finding:
    """Report that the job makes progress."""
    told = [rank for rank in ranks if rank.status is not None and rank.earlier is not None]
    says = f"job {name} runs"
    if told:
        messages = max(r.status.received - r.earlier.received for r in told if r.status and r.earlier)
        calls = max((r.call or 0) for r in told)
        if messages > 0:
            says += f": {messages / facts.seconds:.0f} messages a second, at collective {calls}"
        again = sum(
            r.status.counters.get("retransmitted_packets", 0)
            - r.earlier.counters.get("retransmitted_packets", 0)
            for r in told
            if r.status is not None and r.earlier is not None
        )
        if again > 0:
            says += f", {words.count(again, 'packet')} sent again in {words.seconds(facts.seconds)}"
    return note(code="runs", says=says)


def _idle(name: str, ranks: Sequence[Rank]) -> Finding:
    """Report that no collective runs, or only one that has just begun."""
    told = [rank.status for rank in ranks if rank.status is not None]
    busy = [s for s in told if s.collective]
    if busy:
        says = f"job {name} runs: in {busy[0].collective} since {words.seconds(max(s.for_s for s in busy))}"
    elif told:
        idle = min(s.idle_s or 0.0 for s in told)
        says = (
            f"job {name} is idle: no rank is in a collective, for {words.seconds(idle)} now; the next is "
            f"{min(s.next_collective for s in told)}"
        )
    else:
        says = f"job {name} runs, nothing is open in its slots; its workers do not say where they stand"
    return note(
        code="idle" if not busy else "runs",
        says=says,
        evidence=tuple(f"{r.name}: {r.activity()}" for r in ranks if r.status is not None),
    )


def _changing(
    job: pb.JobInfo, ranks: Sequence[Rank], causes: Sequence[Cause], broken: Sequence[Finding]
) -> Finding:
    """Report a job that is being renewed or moved between ring and switch, and awaits answers from ranks."""
    name = job.spec.name
    by_number = {rank.number: rank for rank in ranks}
    awaited = [by_number[n].name if n in by_number else f"rank {n}" for n in job.awaited]
    what = (
        f"is being renewed ({job.renewal_reason or 'a new generation'})"
        if job.renewing
        else "is being moved between ring and switch"
    )
    says = f"job {name}: {what}"
    says += (
        f", waits for {words.listed(awaited)} to answer" if awaited else ", the switches are being written"
    )
    why = [c for c in causes if c.rank.number in job.awaited] or [c for c in causes if c.weight == 0]
    if why:
        says += f": {why[0].says}"
    elif broken:
        says += f": {broken[0].says}"
    return warning(
        code="renewing" if job.renewing else "moving",
        says=says,
        rank=why[0].rank.number if why else None,
        where=why[0].rank.host if why else broken[0].where if broken else "",
        evidence=_activities(ranks),
        do=why[0].do
        if why
        else broken[0].do
        if broken
        else ("wait: this takes a moment, and says so if not",),
    )


def _by_ring(job: pb.JobInfo) -> Iterator[Finding]:
    """Yield findings about a job that runs by ring but asked for the network, and about its renewals."""
    name = job.spec.name
    if job.mode == pb.RING and job.spec.mode != pb.RING and job.spec.world_size > 1:
        queue = job.waitlisted
        if job.HasField("waitlisted"):
            yield warning(
                code="waits-for-slots",
                says=f"job {name} runs by ring: it is number {queue.position} in the queue for slots, for "
                f"{words.seconds(queue.waiting_s)}: {queue.reason}",
                do=(
                    "p4reduce job list  shows who has the slots; it moves into the switch when there is room",
                    "less at once: p4reduce job create ... --window 2 --message-packets 4",
                ),
            )
        else:
            yield warning(
                code="ring-fallback",
                says=f"job {name} runs by ring all-reduce, not in the network: "
                f"{job.mode_reason or 'nobody says why'}",
            )
    if job.renewals and not job.renewing:
        yield note(
            code="renewed",
            says=f"job {name} went on under a new generation {words.count(job.renewals, 'time')}, last "
            f"because: "
            f"{job.renewal_reason}",
        )
    elif job.renewal_reason and not job.renewing:
        yield warning(
            code="waits-for-renewal",
            says=f"job {name}: {job.renewal_reason}",
        )


def _as_finding(job: str, found: Cause, severity: Severity) -> Finding:
    return Finding(
        code=found.code,
        severity=severity,
        says=f"job {job} {found.rank.name}: {found.says}",
        rank=found.rank.number,
        where=found.rank.host,
        evidence=found.evidence,
        do=found.do,
    )


def _oldest_open(facts: Facts, job: pb.JobInfo) -> Open | None:
    """Return the oldest of the job's slots that lack a rank; None if there is none.

    For the same message, a leaf's slot is preferred to a spine's, which only knows racks.
    """
    of_job = (job.spec.name, job.generation, "adding")
    slots = [
        slot
        for slot in facts.slots.value or ()
        if (slot.job, slot.generation, slot.state) == of_job and slot.missing
    ]
    if not slots:
        return None
    oldest = min(slots, key=lambda slot: (slot.message, slot.role != "leaf", -slot.age_s))
    return Open(
        message=oldest.message,
        switch=oldest.switch,
        ranks=tuple(sorted(oldest.ranks)),
        missing=tuple(sorted(oldest.missing)),
        age_s=oldest.age_s,
    )


def _missing_flows(facts: Facts, job: str) -> set[int]:
    return {flow.rank for flow in facts.flows.value or () if flow.job == job and not flow.on_switch}


def _counted(facts: Facts, job: str) -> bool:
    """Return whether the switches completed a sum of the job between the two observations."""
    completed = []
    for observation in (facts.before, facts.now):
        flows = [flow for flow in observation.counters.value or () if flow.job == job]
        completed.append(sum(counted(flow.counters, "completed") for flow in flows))
    return completed[1] > completed[0]


def _leaves(facts: Facts, ranks: Sequence[Rank]) -> set[str]:
    """Return the switches that a job's hosts are connected to; the job needs all of them."""
    hosts = {rank.host for rank in ranks}
    return {host.switch for host in facts.cluster.hosts if host.name in hosts}


def _only_spine(job: pb.JobInfo | None) -> set[str]:
    if job is None:
        return set()
    spines = {place.switch for place in job.places if place.role == "spine"}
    return spines if len(spines) == 1 else set()


def _has_sent(rank: Rank, message: int) -> bool:
    return rank.status is not None and rank.status.sent > message


def _behind(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks that have received less than others; none if all have the same."""
    told = [(rank.status.received, rank) for rank in ranks if rank.status is not None]
    most = max((received for received, _ in told), default=0)
    return [rank for received, rank in told if received < most]


def _activities(ranks: Sequence[Rank]) -> tuple[str, ...]:
    return tuple(rank.line() for rank in ranks)
