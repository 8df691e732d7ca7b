"""The meaning of a reading: rows for people and programs alike. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.api import controller_pb2 as pb
from p4reduce.live.faults import Row, faults, rate
from p4reduce.live.reading import PlaceKey, Reading, SlotUse, WorkerKey, counted, flow_key

ENDED_SHOWN: Final = 5
_BITS: Final = 8
_MEGA: Final = 1e6
_MODES: Final = {pb.MODE_UNSPECIFIED: "?", pb.IN_NETWORK: "network", pb.RING: "ring"}
_SENT: Final = ("aggregated", "duplicate", "not_ready", "replayed", "stale", "passed", "mismatch")
_AGAIN: Final = ("duplicate", "not_ready", "replayed", "stale")
_DROPPED: Final = ("bad_icrc", "unplaced", "foreign", "no_uplink", "mismatch")


@dataclass(frozen=True, kw_only=True)
class View:
    """All rows that are shown, by table, as in JSON. Unknown rates are None."""

    cluster: Row
    jobs: list[Row]
    flows: list[Row]
    links: list[Row]
    switches: list[Row]
    hosts: list[Row]
    faults: list[Row]
    remarks: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the view for programs."""
        return dict(vars(self))


def view(reading: Reading) -> View:
    """Make the view of a reading."""
    flows = _flows(reading)
    return View(
        cluster=_cluster(reading),
        jobs=_jobs(reading, flows),
        flows=flows,
        links=_links(reading),
        switches=_switches(reading),
        hosts=_hosts(reading),
        faults=faults(reading),
        remarks=list(reading.remarks),
    )


def _cluster(reading: Reading) -> Row:
    cluster, slots = reading.cluster, reading.slots
    live = [job for job in reading.jobs if _live(job)]
    leaves = [switch.name for switch in cluster.leaves()]
    return {
        "name": cluster.name,
        "topology": cluster.topology,
        "target": cluster.target,
        "path_mtu": cluster.path_mtu,
        "rate_mbit": cluster.rate_mbit,
        "uplink_rate_mbit": cluster.uplink_rate_mbit,
        "leaves": len(leaves),
        "spines": len(cluster.switches) - len(leaves),
        "hosts": len(cluster.hosts),
        "live_jobs": len(live),
        "workers": sum(len(job.workers) for job in live),
        "slots_allocated": sum(switch.slots_used for switch in reading.status.switches),
        "slots": sum(switch.slots for switch in reading.status.switches),
        "slots_asked_s_ago": None if slots is None else max(0.0, reading.at - slots.at),
        "asked_s": reading.asked_s,
    }


def _live(job: pb.JobInfo) -> bool:
    return job.phase not in (pb.CREATED, pb.ENDED)


def _jobs(reading: Reading, flows: Sequence[Row]) -> list[Row]:
    live = [job for job in reading.jobs if job.phase != pb.ENDED]
    ended = sorted((job for job in reading.jobs if job.phase == pb.ENDED), key=lambda job: -job.generation)
    return [_job(reading, job, flows) for job in (*live, *ended[:ENDED_SHOWN])]


def _job(reading: Reading, job: pb.JobInfo, flows: Sequence[Row]) -> Row:
    name, live = job.spec.name, _live(job)
    workers = [(name, worker.worker.rank) for worker in job.workers]
    use = _slots(reading)
    opened = [use[name, place.switch].open for place in job.places if (name, place.switch) in use]
    leaf_flows = [flow for flow in flows if flow["job"] == name and flow["role"] == "leaf"]
    mbit = _mean(flow["mbit_s"] for flow in leaf_flows)
    if mbit is None and live:
        sent = [_agent_rate(reading.agents, worker, "data_sent_bytes") for worker in workers]
        mbit = _scaled(_mean(sent), _BITS / _MEGA)
    return {
        "job": name,
        "state": pb.Phase.Name(job.phase).lower(),
        "sums_by": _MODES[job.mode or job.spec.mode],
        "workers": sum(worker.connected for worker in job.workers) if live else 0,
        "world_size": job.spec.world_size,
        "tenant": job.spec.tenant or "default",
        "switches": [place.switch for place in job.places],
        "slots_open": sum(opened) if opened and live else None,
        "slots": sum(place.slots for place in job.places),
        "mbit_s_per_worker": mbit if live else None,
        "packets_again_s": _sum(flow["packets_again_s"] for flow in leaf_flows),
        "retransmissions": _agents_total(reading.agents, workers, "retransmitted_packets"),
        "retransmissions_s": _sum(_agent_rate(reading.agents, w, "retransmitted_packets") for w in workers),
        "collectives": _agents_total(reading.agents, workers, "collectives.in_network", "collectives.ring"),
        "queue": job.waitlisted.position if job.HasField("waitlisted") else None,
        "why": job.ended.reason if job.HasField("ended") else job.waitlisted.reason or job.mode_reason,
    }


def _slots(reading: Reading) -> dict[PlaceKey, SlotUse]:
    """Return the use of slots of jobs that still have them: slots are not asked about each time."""
    held = {(job.spec.name, place.switch) for job in reading.jobs for place in job.places}
    found = reading.slots.value if reading.slots is not None else {}
    return {key: used for key, used in found.items() if key in held}


def _flows(reading: Reading) -> list[Row]:
    if reading.flows is None:
        return []
    hosts = {(job.spec.name, w.worker.rank): w.host for job in reading.jobs for w in job.workers}
    roles = {switch.name: switch.role.value for switch in reading.cluster.switches}
    before = reading.flows.before
    old = {flow_key(flow): flow.counters for flow in (before.value if before is not None else ())}
    seconds = reading.flows.seconds
    rows = []
    for flow in reading.flows.value:
        counters, past = flow.counters, old.get(flow_key(flow))
        role = roles.get(flow.switch, "leaf")

        def per_s(names: Sequence[str], unit: str, now: Any = counters, past: Any = past) -> float | None:
            total = counted(now, *names, unit=unit)
            return rate(total, None if past is None else counted(past, *names, unit=unit), seconds)

        rows.append(
            {
                "job": flow.job,
                "rank": flow.rank,
                "host": hosts.get((flow.job, flow.rank), "") if role == "leaf" else "",
                "switch": flow.switch,
                "role": role,
                "mbit_s": _scaled(per_s(_SENT, "bytes"), _BITS / _MEGA),
                "packets_s": per_s(_SENT, "packets"),
                "packets_again_s": per_s(_AGAIN, "packets"),
                "dropped_s": per_s(_DROPPED, "packets"),
                "packets": counted(counters, *_SENT),
                "packets_again": counted(counters, *_AGAIN),
                "dropped": counted(counters, *_DROPPED),
            }
        )
    return rows


def _links(reading: Reading) -> list[Row]:
    if reading.lines is None:
        return []
    said = {f"{link.a}:{link.b}": link for link in reading.links}
    before = reading.lines.before.value if reading.lines.before is not None else {}
    rows = []
    for name, line in reading.lines.value.items():
        old, link = before.get(name), said.get(name)
        row: Row = {
            "link": name,
            "kind": "uplink" if line.uplink else "host",
            "is_up": line.is_up,
            "state": ("up" if line.is_up else "DOWN") if link is None or not line.is_up else link.state,
            "rate_mbit": line.rate_mbit,
        }
        for way in ("up", "down"):
            now, past = getattr(line, way), None if old is None else getattr(old, way)
            octets = rate(now.bytes, None if past is None else past.bytes, reading.lines.seconds)
            mbit = _scaled(octets, _BITS / _MEGA)
            row[f"{way}_mbit_s"] = mbit
            row[f"{way}_utilisation"] = _scaled(mbit, 1 / line.rate_mbit) if line.rate_mbit else None
            row[f"{way}_packets_s"] = rate(
                now.packets, None if past is None else past.packets, reading.lines.seconds
            )
        rows.append(row)
    return rows


def _switches(reading: Reading) -> list[Row]:
    roles = {switch.name: switch.role.value for switch in reading.cluster.switches}
    use = _slots(reading)
    incoming: dict[str, list[float | None]] = {}
    for row in _links(reading):
        near, _, far = row["link"].partition(":")
        incoming.setdefault(far, []).append(row["up_packets_s"])
        if row["kind"] == "uplink":
            incoming.setdefault(near, []).append(row["down_packets_s"])
    dropped: dict[str, int] = {}
    dropped_before: dict[str, int] = {}
    if reading.ports is not None:
        for answer, into in ((reading.ports, dropped), (reading.ports.before, dropped_before)):
            for port in answer.value if answer is not None else ():
                total = sum(value.packets for value in port.drops.values())
                into[port.switch] = into.get(port.switch, 0) + total
    rows = []
    for switch in reading.status.switches:
        name = switch.name
        opened = [used.open for (_, at), used in use.items() if at == name]
        seconds = None if reading.ports is None else reading.ports.seconds
        rows.append(
            {
                "switch": name,
                "role": roles.get(name, ""),
                "target": switch.target,
                "connected": switch.connected,
                "state": switch.state,
                "jobs": switch.jobs,
                "slots_open": sum(opened) if opened else None,
                "slots_allocated": switch.slots_used,
                "slots": switch.slots,
                "packets_s": _sum(incoming.get(name, [])),
                "dropped": dropped.get(name),
                "dropped_s": rate(dropped.get(name, 0), dropped_before.get(name), seconds),
            }
        )
    return rows


def _hosts(reading: Reading) -> list[Row]:
    on: dict[str, list[tuple[WorkerKey, Any]]] = {host.name: [] for host in reading.cluster.hosts}
    for job in reading.jobs:
        for worker in job.workers if _live(job) else ():
            on.setdefault(worker.host, []).append(((job.spec.name, worker.worker.rank), worker))
    rows = []
    for host in reading.cluster.hosts:
        workers = [key for key, _ in on[host.name]]
        rows.append(
            {
                "host": host.name,
                "ip": host.ip,
                "switch": host.switch,
                "kind": host.kind.value,
                "workers": [f"{job}/{rank}" for job, rank in workers],
                "connected": all(worker.connected for _, worker in on[host.name]) if workers else None,
                "heard_s_ago": max((worker.heard_s_ago for _, worker in on[host.name]), default=None),
                "collectives": _agents_total(
                    reading.agents, workers, "collectives.in_network", "collectives.ring"
                ),
                "sent_mbit_s": _scaled(
                    _sum(_agent_rate(reading.agents, worker, "data_sent_bytes") for worker in workers),
                    _BITS / _MEGA,
                ),
                "retransmissions": _agents_total(reading.agents, workers, "retransmitted_packets"),
                "retransmissions_s": _sum(
                    _agent_rate(reading.agents, worker, "retransmitted_packets") for worker in workers
                ),
                "timeouts": _agents_total(reading.agents, workers, "timeouts"),
                "naks": _agents_total(reading.agents, workers, "acknowledgements.received.nak"),
            }
        )
    return rows


def _agents_total(agents: Any, workers: Iterable[WorkerKey], *names: str) -> int | None:
    """Add up counters of workers; None if no worker tells its counters."""
    if agents is None:
        return None
    found = [agents.value[worker] for worker in workers if worker in agents.value]
    return int(sum(agent[name] for agent in found for name in names)) if found else None


def _agent_rate(agents: Any, worker: WorkerKey, name: str) -> float | None:
    if agents is None or worker not in agents.value or agents.before is None:
        return None
    old = agents.before.value.get(worker)
    return rate(agents.value[worker][name], None if old is None else old[name], agents.seconds)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
