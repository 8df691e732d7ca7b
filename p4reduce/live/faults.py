"""Faults in a cluster, present or past: what is down or away, what was dropped and why, what came again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

from controller.api import controller_pb2 as pb
from p4reduce.live.reading import Reading, counted

Row = dict[str, Any]


class Severity(IntEnum):
    """ERROR: something waits or is broken. WARNING: it goes on, but badly. NOTE: good to know."""

    ERROR = 0
    WARNING = 1
    NOTE = 2


# Flow counters (docs/p4-program.md) that something is behind.
EVENTS: Final[Mapping[str, tuple[Severity, str]]] = {
    "mismatch": (Severity.ERROR, "the workers' calls disagree about size, type or operation"),
    "no_uplink": (Severity.ERROR, "dropped: no spine to send a rack's sum to"),
    "bad_icrc": (Severity.WARNING, "dropped: damaged on the way (ICRC)"),
    "unplaced": (Severity.WARNING, "dropped: belongs to no message that the flow may be at"),
    "foreign": (Severity.WARNING, "dropped: aimed at a worker's queue pair, but not from its peer"),
    "stale": (Severity.NOTE, "of a message that is over; its sender gets no sum for it"),
    "late": (Severity.NOTE, "dropped: a result or question that its slot has nothing for"),
    "duplicate": (Severity.NOTE, "dropped: came again before its sum was complete"),
    "replayed": (Severity.NOTE, "came again after its sum was complete: answered again"),
    "not_ready": (Severity.NOTE, "came again too early: asked to wait (RNR NAK)"),
}
PORT_EVENTS: Final[Mapping[str, tuple[Severity, str]]] = {
    "unnamed": (Severity.WARNING, "dropped: the configuration names no host or switch at that port"),
    "spoofed": (
        Severity.WARNING,
        "dropped: not from the address of the host at that port, or marked as a sum",
    ),
    "no_job": (Severity.WARNING, "dropped: between switches, but of no job there"),
    "bad_echo": (Severity.WARNING, "dropped: a probe that does not fit its link"),
    "no_route": (Severity.NOTE, "dropped: its destination is nowhere in the fabric"),
}
AGENT_EVENTS: Final[Mapping[str, tuple[Severity, str]]] = {
    "dropped_packets.bad_icrc": (Severity.WARNING, "dropped by the worker: damaged on the way (ICRC)"),
    "dropped_packets.malformed": (Severity.WARNING, "dropped by the worker: no packet of the protocol"),
    "dropped_packets.ring_full": (Severity.WARNING, "dropped by the worker's machine: it is too slow"),
    "send_errors": (Severity.WARNING, "not sent: the worker's interface was down"),
    "retransmitted_packets": (Severity.NOTE, "sent again by the worker"),
    "timeouts": (Severity.NOTE, "no acknowledgement in time"),
}


def faults(reading: Reading) -> list[Row]:
    """Return the faults, the worst first, present ones before past ones. `per_s` None: not a count."""
    rows = [*_states(reading), *_counts(reading)]
    rows.sort(
        key=lambda row: (Severity[row["severity"].upper()], not row["per_s"], row["what"], row["where"])
    )
    return rows


def _row(
    severity: Severity,
    what: str,
    where: str,
    why: str,
    total: float | None = None,
    per_s: float | None = None,
) -> Row:
    return {
        "severity": severity.name.lower(),
        "what": what,
        "where": where,
        "total": None if total is None else int(total),
        "per_s": per_s,
        "explanation": why,
    }


def _states(reading: Reading) -> Iterator[Row]:
    for switch in reading.status.switches:
        if not switch.connected:
            yield _row(Severity.ERROR, "switch away", switch.name, switch.state)
    said = {f"{link.a}:{link.b}": link for link in reading.links}
    for name, line in (reading.lines.value if reading.lines is not None else {}).items():
        link = said.get(name)
        if not line.is_up:
            yield _row(Severity.ERROR, "link down", name, "the kernel says that it is down")
        elif link is not None and (not link.up or link.state != "up"):
            severity = Severity.NOTE if "drained" in link.state else Severity.ERROR
            yield _row(severity, "link not used", name, link.state)
    for job in reading.jobs:
        if job.phase in (pb.CREATED, pb.ENDED):
            continue
        for worker in job.workers:
            if not worker.connected:
                yield _row(
                    Severity.WARNING,
                    "worker away",
                    f"{job.spec.name} rank {worker.worker.rank} ({worker.host or worker.worker.hostname})",
                    f"no connection with the controller, heard {worker.heard_s_ago:.1f} s ago",
                )
        if job.HasField("waitlisted"):
            waits = job.waitlisted
            yield _row(
                Severity.NOTE,
                "waits for slots",
                job.spec.name,
                f"number {waits.position} in the queue for {waits.waiting_s:.0f} s: {waits.reason}",
            )


def _counts(reading: Reading) -> Iterator[Row]:
    flows, ports, agents = reading.flows, reading.ports, reading.agents
    if flows is not None:
        before: dict[tuple[str, str, int, str], int] = {}
        totals: dict[tuple[str, str, int, str], int] = {}
        for answer, into in ((flows, totals), (flows.before, before)):
            for flow in answer.value if answer is not None else ():
                for event, count in flow.counters.items():
                    key = (event, flow.job, flow.generation, flow.switch)
                    into[key] = into.get(key, 0) + count.packets
        for (event, job, generation, switch), total in totals.items():
            if event in EVENTS and total:
                severity, why = EVENTS[event]
                old = before.get((event, job, generation, switch))
                yield _row(severity, event, f"{job} on {switch}", why, total, rate(total, old, flows.seconds))
    if ports is not None:
        before_ports = ports.before.value if ports.before is not None else ()
        old_ports = {(port.switch, port.port): port.drops for port in before_ports}
        for port in ports.value:
            for event, (severity, why) in PORT_EVENTS.items():
                if total := counted(port.drops, event):
                    drops = old_ports.get((port.switch, port.port))
                    old = None if drops is None else counted(drops, event)
                    behind = f" ({port.host or port.peer or 'nobody that is known'})"
                    where = f"{port.switch} port {port.port}{behind}"
                    yield _row(severity, event, where, why, total, rate(total, old, ports.seconds))
    if agents is not None:
        for (job, rank), agent in agents.value.items():
            old_agent = agents.before.value.get((job, rank)) if agents.before is not None else None
            for event, (severity, why) in AGENT_EVENTS.items():
                if agent[event]:
                    past = old_agent[event] if old_agent is not None else None
                    per_s = rate(agent[event], past, agents.seconds)
                    yield _row(severity, _short(event), f"{job} rank {rank}", why, agent[event], per_s)


def rate(total: float, before: float | None, seconds: float | None) -> float | None:
    """Return the growth per second; None if it is unknown, as after a counter began anew."""
    if before is None or seconds is None or total < before:
        return None
    return (total - before) / seconds


def _short(event: str) -> str:
    return {"retransmitted_packets": "sent again"}.get(event, event.rpartition(".")[2])
