"""Findings about the parts that jobs rely on: the controller, its database, switches and who holds them."""

from __future__ import annotations

from collections.abc import Iterator

from controller.api import controller_pb2 as pb
from p4reduce.doctor import words
from p4reduce.doctor.facts import Facts, Process, ProcessState
from p4reduce.doctor.findings import Finding, Severity, error, note, warning
from topologies.state import ClusterState

DISK_FULL_BYTES = 1 << 20


def control(facts: Facts) -> Iterator[Finding]:
    """Yield all findings about the control plane."""
    yield from controller(facts)
    for switch in facts.cluster.switches:
        yield from _switch(facts, switch.name)
    yield from _disk(facts)
    yield from _management(facts)
    yield from _drift(facts)
    for rule in facts.rules:
        yield note(
            code="faults-injected",
            says=f"a fault is injected on purpose: {rule}",
            do=("'p4reduce fault list' shows all, 'p4reduce fault clear' ends them",),
        )
    for name in facts.left_behind:
        yield note(
            code="left-behind",
            says=f"cluster {name} was killed, and what it started may still run",
            do=(f"p4reduce down {name}",),
        )


def stopped_do(process: Process) -> tuple[str, ...]:
    """Return the commands that let a stopped process go on."""
    return (f"kill -CONT {process.pid}", f"if a debugger holds it: grep TracerPid /proc/{process.pid}/status")


_GOES_ON = "sums in the network go on, but nobody can join, and a worker that dies is not noticed"


def away(cluster: ClusterState, process: Process | None, last_words: str = "") -> Finding | None:
    """Return a finding if the controller's process is dead or stopped; None if it runs."""
    if process is None or process.state is ProcessState.GONE:
        return error(
            code="controller-dead",
            says=f"the controller is dead: {_GOES_ON}",
            where="controller",
            evidence=(f"the end of its log: {last_words}",) if last_words else (),
            do=(
                "start it again: p4reduce fault controller restart  (workers come back to it by themselves)",
                f"its log: {cluster.directory / 'controller.log'}",
            ),
        )
    if process.state is ProcessState.STOPPED:
        return error(
            code="controller-stopped",
            says=f"the controller (process {process.pid}) is stopped (SIGSTOP): {_GOES_ON}",
            where="controller",
            do=stopped_do(process),
        )
    return None


def controller(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the controller's process is dead or stopped, or does not answer."""
    process, jobs = facts.now.processes.get("controller"), facts.now.jobs
    finding = away(facts.cluster, process, facts.last_words.get("controller", ""))
    if finding is not None:
        yield finding
    elif jobs.value is None and process is not None:
        how = "does not answer in time" if jobs.is_late else "does not answer"
        yield error(
            code="controller-silent",
            says=f"the controller (process {process.pid}) runs but {how}: {_GOES_ON}",
            where="controller",
            evidence=(jobs.why, f"its process {process.state.value}"),
            do=(
                f"its log: {facts.cluster.directory / 'controller.log'}",
                f"what it is at: py-spy dump --pid {process.pid}",
            ),
        )


# What the controller says of a switch that it cannot use (switches/switch.py), and what that means.
_STATES = (
    (
        "another controller is primary",
        "p4runtime-taken",
        "switch {0} is taken by another P4Runtime controller: its jobs go on, but nothing can be written",
        (
            "end the other client (a p4runtime-shell, 'p4reduce shell'?); ours takes over by itself",
            "p4reduce plan  shows what was changed meanwhile",
        ),
    ),
    (
        "somebody has replaced its program",
        "program-replaced",
        "somebody has replaced the P4 program of switch {0}: it adds up nothing",
        ("it is loaded again by itself; if not: p4reduce push {0} --force",),
    ),
    (
        "restarted",
        "switch-restarting",
        "switch {0} was restarted with nothing in it, and is being given its program again",
        ("nothing: jobs there go on under a new generation when it is ready",),
    ),
    (
        "loading the program",
        "switch-restarting",
        "switch {0} is being given its program",
        ("nothing: it takes some seconds where the program has to be compiled",),
    ),
)


def _switch(facts: Facts, name: str) -> Iterator[Finding]:
    process = facts.now.processes.get(f"switch {name}")
    info = _info(facts, name)
    said = "" if info is None or info.connected else info.state
    effect = _effect(facts, name)
    if process is None or process.state is ProcessState.GONE:
        last = facts.last_words.get(f"switch {name}", "")
        yield error(
            code="switch-dead",
            says=f"switch {name} is dead, its process has ended{effect}",
            where=name,
            evidence=(
                *((f"the controller says: {said}",) if said else ()),
                *((f"the end of its log: {last}",) if last else ()),
            ),
            do=(f"p4reduce fault switch restart {name}", f"its log: {facts.cluster.switch(name).log}"),
        )
    elif process.state is ProcessState.STOPPED:
        yield error(
            code="switch-stopped",
            says=f"switch {name} is stopped (process {process.pid}, SIGSTOP){effect}",
            where=name,
            do=stopped_do(process),
        )
    elif said:
        for start, code, sentence, do in _STATES:
            if said.startswith(start):
                yield Finding(
                    code=code,
                    severity=Severity.WARNING if code == "p4runtime-taken" else Severity.ERROR,
                    says=sentence.format(name),
                    where=name,
                    evidence=(f"the controller says: {said}",),
                    do=tuple(line.format(name) for line in do),
                )
                return
        yield error(
            code="switch-away",
            says=f"the controller has no connection with switch {name}, whose process runs",
            where=name,
            evidence=(f"the controller says: {said}",),
            do=(
                f"its log: {facts.cluster.switch(name).log}",
                f"if it hangs: p4reduce fault switch restart {name}",
            ),
        )


def _info(facts: Facts, name: str) -> pb.SwitchInfo | None:
    status = facts.now.status.value
    return next((info for info in status.switches if info.name == name), None) if status is not None else None


def _effect(facts: Facts, name: str) -> str:
    if facts.cluster.switch(name).role.value == "leaf":
        hosts = [host.name for host in facts.cluster.hosts_of(name)]
        return f": nothing gets through for its hosts ({', '.join(hosts)})"
    return ": racks' sums go over the other spines, if there are any"


def _disk(facts: Facts) -> Iterator[Finding]:
    disk = facts.disk
    if disk is None or (disk.free_bytes >= DISK_FULL_BYTES and disk.free_inodes > 0):
        return
    what = f"{disk.free_bytes} bytes are free" if disk.free_inodes else "no inode is free"
    yield error(
        code="disk-full",
        says="the disk under the controller's database is full: jobs that run go on, new ones are refused",
        where="controller",
        evidence=(f"{disk.path}: {what}",),
        do=(
            f"make room: df -h {disk.path}  (p4reduce fault disk free, where it was filled on purpose)",
            "nothing has to be started again",
        ),
    )


def _management(facts: Facts) -> Iterator[Finding]:
    process = facts.now.processes.get("controller")
    if process is None or not process.is_well or facts.now.jobs.value is None:
        return  # nobody reaches it, for another reason
    for host, why in facts.management.items():
        if why:
            yield error(
                code="no-way-to-controller",
                says=f"{host} does not reach the controller at {facts.cluster.controller}: {why}",
                where=host,
                evidence=("workers there cannot join, and their jobs will miss their heartbeats",),
                do=(
                    f"p4reduce exec {host} ip address show dev {host}-mgmt",
                    f"p4reduce exec {host} ip route get {facts.cluster.controller.rpartition(':')[0]}",
                ),
            )


def _drift(facts: Facts) -> Iterator[Finding]:
    report = facts.plan.value
    for plan in report.switches if report is not None else ():
        changed = [change for change in plan.changes if change.drift]
        if not changed:
            continue
        shown = [f"{_KINDS[change.kind]} {change.what} {change.key}" for change in changed[:4]]
        if len(changed) > len(shown):
            shown.append(f"and {len(changed) - len(shown)} more")
        yield warning(
            code="drift",
            says=f"switch {plan.name} was changed by hand: {words.count(len(changed), 'difference')} to what "
            f"the controller wrote",
            where=plan.name,
            evidence=tuple(shown),
            do=("p4reduce plan  shows all of it, 'p4reduce rollback' puts it right",),
        )


# What would have to be done is the opposite of what somebody did.
_KINDS = {pb.Change.ADD: "missing:", pb.Change.CHANGE: "changed:", pb.Change.DELETE: "added:"}
