"""Facts made by hand: a rack of four hosts that runs the job `train`, and what may happen to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from controller.api import controller_pb2 as pb
from p4reduce.doctor.facts import (
    Echo,
    Ends,
    Facts,
    Observation,
    Process,
    ProcessState,
    Said,
    Sample,
    Worker,
    WorkerStatus,
)
from p4reduce.live.reading import Line
from tests.topologies.states import cluster_state, host_state
from topologies.state import ClusterState, SwitchState
from topologies.wires import Traffic

RANKS = range(4)
HOSTS = ("h1", "h2", "h3", "h4")
CALL = "all_reduce(SUM) of 1000 float32 (collective 17)"


def cluster() -> ClusterState:
    """Return a rack of four hosts."""
    rack = cluster_state("c1", hosts=[host_state(index) for index in range(1, 5)])
    switch: SwitchState = dataclasses.replace(
        rack.switches[0], interfaces={port: f"s1-eth{port}" for port in range(1, 5)}
    )
    return dataclasses.replace(rack, switches=[switch])


def processes(**states: ProcessState) -> dict[str, Process]:
    """Return processes that are all well, but for those given (`switch_s1=...`)."""
    names = ["owner", "controller", "switch s1", *(f"host {host}" for host in HOSTS)]
    return {
        name: Process(100 + number, states.get(name.replace(" ", "_"), ProcessState.SLEEPS))
        for number, name in enumerate(names)
    }


def worker_status(rank: int, **changes: Any) -> WorkerStatus:
    """Return a worker between two collectives: 17 are done, 18 messages each way."""
    fields: dict[str, Any] = {
        "job": "train",
        "rank": rank,
        "generation": 7,
        "next_collective": 17,
        "idle_s": 0.2,
        "mode": "in_network",
        "posted": 18,
        "sent": 18,
        "acked": 18,
        "received": 18,
        "sent_s_ago": 0.2,
        "received_s_ago": 0.2,
        "where": "train.py:83 in load_batch",
        "stack": ("train.py:12 in main", "train.py:83 in load_batch"),
    }
    return WorkerStatus(**{**fields, **changes})


def in_call(rank: int, for_s: float = 12.0, **changes: Any) -> WorkerStatus:
    """Return a worker that waits in collective 17, whose only message is 18."""
    fields: dict[str, Any] = {
        "collective": CALL,
        "for_s": for_s,
        "next_collective": 18,
        "idle_s": None,
        "posted": 19,
        "sent": 19,
        "sent_s_ago": 0.4,
        "received_s_ago": for_s,
    }
    return worker_status(rank, **{**fields, **changes})


def worker(
    said: WorkerStatus | int, *, state: ProcessState = ProcessState.SLEEPS, cpu_s: float = 1.0, **changes: Any
) -> Worker:
    """Return a worker on the host of its rank; with a rank only, it says nothing."""
    rank = said if isinstance(said, int) else said.rank
    fields: dict[str, Any] = {
        "job": "train",
        "rank": rank,
        "host": HOSTS[rank],
        "process": Process(200 + rank, state, cpu_s),
        "status": None if isinstance(said, int) else said,
        "why": "timed out" if isinstance(said, int) else "",
    }
    return Worker(**{**fields, **changes})


def job(name: str = "train", *, ranks: Sequence[int] = RANKS, **fields: Any) -> pb.JobInfo:
    """Return a job that runs in the network, with all `ranks` connected."""
    given: dict[str, Any] = {
        "spec": pb.JobSpec(name=name, world_size=4),
        "phase": pb.RUNNING,
        "mode": pb.IN_NETWORK,
        "generation": 7,
    }
    info = pb.JobInfo(**{**given, **fields})
    for rank in ranks:
        info.workers.add(worker=pb.Worker(rank=rank), host=HOSTS[rank], connected=True, heard_s_ago=0.4)
    info.places.add(switch="s1", role="leaf", slots=256, ranks=RANKS)
    return info


def slot(missing: Sequence[int], *, message: int = 18, age_s: float = 12.0, **fields: Any) -> pb.Slot:
    """Return an open slot."""
    given: dict[str, Any] = {
        "job": "train",
        "switch": "s1",
        "generation": 7,
        "role": "leaf",
        "state": "adding",
    }
    return pb.Slot(
        **{**given, **fields},
        message=message,
        age_s=age_s,
        missing=missing,
        ranks=[rank for rank in RANKS if rank not in missing],
    )


def status(**away: str) -> pb.Status:
    """Return a status: the switch is connected, or why it is not."""
    return pb.Status(
        switches=[pb.SwitchInfo(name="s1", connected="s1" not in away, state=away.get("s1", "connected"))]
    )


def flow(rank: int, **packets: int) -> pb.FlowCounters:
    """Return a flow's counters on s1."""
    found = pb.FlowCounters(job="train", generation=7, rank=rank, switch="s1")
    for name, number in packets.items():
        found.counters[name].packets = number
    return found


def lines(*down: str) -> dict[str, Line]:
    """Return the hosts' links."""
    names = [f"{host}:s1" for host in HOSTS]
    return {
        name: Line(name=name, is_up=name not in down, up=Traffic(), down=Traffic(), rate_mbit=None)
        for name in names
    }


def observation(at: float, workers: Sequence[Worker], **changes: Any) -> Observation:
    """Return what is seen at one time; `changes` replace fields."""
    fields: dict[str, Any] = {
        "at": at,
        "processes": processes(),
        "workers": workers,
        "jobs": Said([job()], ""),
        "status": Said(status(), ""),
        "counters": Said([flow(rank, completed=10) for rank in RANKS], ""),
        "ports": Said([], ""),
        "links": Said([], ""),
        "lines": lines(),
        "losses": {("s1", port): {"receive.on_request": 0} for port in range(1, 5)},
    }
    return Observation(**{**fields, **changes})


def facts(
    workers: Sequence[Worker],
    *,
    before: Sequence[Worker] | None = None,
    then: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
    both: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Facts:
    """Return two observations, 0.6 s apart; `then`, `now`, `both`: what the first, the second, both saw."""
    common = dict(both or {})
    fields: dict[str, Any] = {
        "cluster": cluster(),
        "before": observation(10.0, workers if before is None else before, **{**common, **(then or {})}),
        "now": observation(10.6, workers, **{**common, **(now or {})}),
        "slots": Said([], ""),
        "flows": Said([], ""),
        "plan": Said(pb.PlanReport(), ""),
        "management": dict.fromkeys(HOSTS, ""),
        "echoes": {
            (a, b): Echo(sent=8, received=8, fastest_ms=0.3)
            for a, b in zip(HOSTS, (*HOSTS[1:], HOSTS[0]), strict=True)
        },
    }
    return Facts(**{**fields, **changes})


def idle() -> list[Worker]:
    """Return workers that are all between two collectives."""
    return [worker(worker_status(rank)) for rank in RANKS]


def waiting_for(rank: int, that: Worker) -> list[Worker]:
    """Return workers that are all in collective 17, but for `rank`, which is `that`."""
    return [that if number == rank else worker(in_call(number)) for number in RANKS]


def samples(*, lost_up: int = 0, lost_down: int = 0, host: str = "h2", busy: int = 0) -> list[Sample]:
    """Return three samples; one host's link loses frames on the way. `busy`: frames under way at each."""
    found = []
    for number in range(3):
        sent = 1000 * number
        switches, hosts, again = {}, {}, {}
        for name in HOSTS:
            up, down = (lost_up, lost_down) if name == host else (0, 0)
            hosts[name] = Ends(up=sent, down=sent - down * number)
            again[name] = Ends(up=sent + busy, down=sent - down * number + busy)
            switches[name] = Ends(up=sent - up * number + busy // 2, down=sent + busy // 2)
        found.append(Sample(hosts=hosts, switches=switches, hosts_again=again))
    return found
