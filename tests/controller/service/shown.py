"""Flows and jobs to show."""

from __future__ import annotations

from typing import Any

from controller.api import controller_pb2 as pb


def job(name: str, phase: Any = pb.RUNNING, **fields: Any) -> pb.JobInfo:
    return pb.JobInfo(spec=pb.JobSpec(name=name, world_size=2), phase=phase, **fields)


FLOWS = [
    pb.FlowCounters(
        job="a", rank=rank, switch="s1", counters={"aggregated": pb.CounterValue(packets=3, bytes=300)}
    )
    for rank in range(2)
]
