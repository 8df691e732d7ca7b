"""The controller's metrics: names and types as Prometheus wants them, values as they are, series bounded."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from controller.api import controller_pb2 as pb
from controller.service.metrics import ControllerMetrics, Snapshot, families
from controller.service.service import ControllerService
from controller.telemetry.address import MetricsError
from controller.telemetry.server import registry
from tests.controller.service.served import Served, Workers, served, workers
from tests.controller.service.shown import FLOWS, job

__all__ = ["served", "workers"]  # fixtures


def parsed(found: Snapshot, unread: int = 0) -> dict[str, Metric]:
    text = generate_latest(registry(lambda: families(found, unread=unread))).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(family: Metric, *names: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels[name] for name in names): sample.value for sample in family.samples}


def test_names_types_and_help_are_as_prometheus_wants_them() -> None:
    found = parsed(Snapshot(flows=FLOWS, jobs=[job("a")]), unread=2)
    for family in found.values():
        assert family.name.startswith("p4reduce_")
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge")
        assert not family.name.endswith(("_total", "_count"))
        for sample in family.samples:
            assert sample.name == family.name + ("_total" if family.type == "counter" else "")
    assert samples(found["p4reduce_controller_unanswered_reads"]) == {(): 2}


def test_flows_are_sums_over_ranks() -> None:
    found = parsed(Snapshot(flows=FLOWS))
    labels = ("switch", "job", "event")
    assert samples(found["p4reduce_flow_packets"], *labels) == {("s1", "a", "aggregated"): 6}
    assert samples(found["p4reduce_flow_bytes"], *labels) == {("s1", "a", "aggregated"): 600}


def test_jobs_that_ended_are_only_counted() -> None:
    place = pb.JobAllocation(switch="s1", slots=256)
    running = job('with "quotes"\n', mode=pb.IN_NETWORK, places=[place])
    found = parsed(Snapshot(jobs=[running, *(job(f"old{n}", pb.ENDED, mode=pb.RING) for n in range(100))]))
    assert samples(found["p4reduce_jobs"], "phase", "mode") == {
        ("running", "in_network"): 1,
        ("ended", "ring"): 100,
    }
    assert samples(found["p4reduce_job_slots"], "job", "tenant", "switch") == {
        ('with "quotes"\n', "default", "s1"): 256
    }
    assert sum(len(family.samples) for family in found.values()) < 15


def test_drops_are_by_port_and_reason() -> None:
    port = pb.Port(switch="l1", port=101, peer="s1 port 1")
    port.drops["spoofed"].packets = 4
    found = parsed(Snapshot(ports=[port], links=[pb.Link(a="l1", b="s1", up=False)]))
    dropped = samples(found["p4reduce_port_dropped_packets"], "switch", "port", "peer", "reason")
    assert dropped["l1", "101", "s1 port 1", "spoofed"] == 4
    assert len(dropped) == 5
    assert samples(found["p4reduce_link_up"], "link") == {("l1:s1",): 0}


def test_a_running_controller(workers: Workers, served: Served) -> None:
    workers.run(3)
    assert served.registry is not None
    made = ControllerMetrics(ControllerService(served.registry), served.loop)
    found = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(registry(made.collect)).decode())
    }
    assert samples(found["p4reduce_job_workers_connected"], "job") == {("train",): 3}
    assert samples(found["p4reduce_job_in_network"], "job") == {("train",): 1}
    assert samples(found["p4reduce_switch_slots_allocated"], "switch") == {("s1",): 256}
    assert samples(found["p4reduce_flow_packets"], "switch", "job", "event")["s1", "train", "aggregated"] == 3
    assert samples(found["p4reduce_port_received_bytes"], "switch", "port")["s1", "1"] == 300
    served.switch.connected = False
    again = generate_latest(registry(made.collect)).decode()
    assert "p4reduce_controller_unanswered_reads_total 2.0" in again
    assert 'p4reduce_switch_connected{switch="s1"} 0.0' in again


def test_a_controller_that_has_stopped(served: Served) -> None:
    assert served.registry is not None
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(MetricsError, match="being stopped"):
        ControllerMetrics(ControllerService(served.registry), loop).collect()
