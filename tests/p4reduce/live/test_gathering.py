"""All of a cluster's metrics in one: valid for Prometheus, labelled, and without anything twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from controller.service.metrics import families as of_controller
from controller.telemetry.address import MetricsError
from controller.telemetry.server import registry
from host_agent.metrics import AgentMetrics
from p4reduce.live.gathering import ClusterMetrics
from soft_switch.dataplane import DataPlane, GlobalStats, PortStats
from soft_switch.faults import FaultKind
from soft_switch.metrics import SwitchMetrics
from tests.controller.service.shown import FLOWS, job
from tests.host_agent.exposed import Worker
from tests.p4reduce.live import clusters
from topologies.errors import TopologyError
from topologies.state import ClusterState


class Plane:
    """A data plane with two ports."""

    program = object()

    def ports(self) -> dict[int, PortStats]:
        return {number: PortStats(f"l1-eth{number}", *range(1, 13)) for number in (1, 2)}

    def struck(self, port: int) -> dict[tuple[str, FaultKind], int]:
        return {("in", FaultKind.LOSS): port}

    def stats(self) -> GlobalStats:
        return GlobalStats(1, 2, 3, 4, 5)


def text_of(collected: Iterator[Metric]) -> str:
    return generate_latest(registry(lambda: collected)).decode()


def fetch(path: Path) -> str:
    from controller.service.metrics import Snapshot

    if path.name == "controller.sock":
        return text_of(of_controller(Snapshot(flows=FLOWS, jobs=[job("a")]), unread=0))
    if path.name == "switch-l1.sock":
        return text_of(SwitchMetrics(cast(DataPlane, Plane())).collect())
    if path.name.startswith("agent"):
        return text_of(AgentMetrics(Worker(rank=0), job="a").collect())
    raise MetricsError(f"no metrics from {path}")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    made = replace(clusters.fabric(), links=[])
    made.metrics.mkdir(parents=True)
    return made


def interface(received: int) -> dict[str, object]:
    counted = {"packets": 1, "bytes": received}
    return {"flags": ["UP", "LOWER_UP"], "stats64": {"rx": counted, "tx": {"packets": 0, "bytes": 0}}}


def gathered(cluster: ClusterState) -> dict[str, Metric]:
    for switch in cluster.switches:
        switch.interfaces.update({1: f"{switch.name}-eth1"})
    made = ClusterMetrics(
        "c1", find=lambda name: cluster, fetch=fetch, interfaces=lambda c: {"l1-eth1": interface(77)}
    )
    text = generate_latest(registry(made.collect)).decode()
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def test_prometheus_takes_all_of_it(cluster: ClusterState) -> None:
    (cluster.metrics / "agent-1-0.sock").touch()
    seen = set()
    for family in gathered(cluster).values():
        assert family.name.startswith("p4reduce_")
        assert family.type in ("counter", "gauge")
        assert family.documentation
        for sample in family.samples:
            assert sample.name == family.name + ("_total" if family.type == "counter" else "")
            assert sample.labels["cluster"] == "c1"
            assert sample.labels["component"] in ("controller", "switch", "agent", "cluster")
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in seen
            seen.add(key)


def test_who_does_not_answer_is_not_up(cluster: ClusterState) -> None:
    up = {
        (sample.labels["component"], sample.labels.get("switch")): sample.value
        for sample in gathered(cluster)["p4reduce_up"].samples
    }
    assert up == {
        ("cluster", None): 1,
        ("controller", None): 1,
        ("switch", "l1"): 1,
        ("switch", "l2"): 0,
        ("switch", "s1"): 0,
        ("switch", "s2"): 0,
    }


def test_workers_of_the_same_place_are_one(cluster: ClusterState) -> None:
    for number in range(2):
        (cluster.metrics / f"agent-{number}-0.sock").touch()
    family = gathered(cluster)["p4reduce_agent_timeouts"]
    assert [sample.labels["rank"] for sample in family.samples] == ["0"]


def test_switches_are_told_apart_and_bmv2_tells_nothing(cluster: ClusterState) -> None:
    family = gathered(cluster)["p4reduce_switch_port_receive_bytes"]
    assert [(s.labels["switch"], s.labels["port"], s.value) for s in family.samples] == [
        ("l1", "1", 2),
        ("l1", "2", 2),
    ]
    bmv2 = replace(cluster, switches=[replace(switch, target="bmv2") for switch in cluster.switches])
    up = gathered(bmv2)["p4reduce_up"]
    assert [sample.labels["component"] for sample in up.samples] == ["cluster", "controller"]


def test_links_are_the_kernels(cluster: ClusterState) -> None:
    found = gathered(cluster)
    values = {
        (s.labels["link"], s.labels["direction"]): s.value for s in found["p4reduce_link_bytes"].samples
    }
    assert values == {("h1:l1", "up"): 77, ("h1:l1", "down"): 0}
    assert found["p4reduce_link_rate_bytes_per_second"].samples[0].value == 12.5e6


def test_a_cluster_that_is_gone() -> None:
    def gone(name: str) -> ClusterState:
        raise TopologyError("it is gone")

    (family,) = ClusterMetrics("c1", find=gone).collect()
    assert isinstance(family, GaugeMetricFamily)
    assert [(s.name, s.labels, s.value) for s in family.samples] == [
        ("p4reduce_up", {"cluster": "c1", "component": "cluster"}, 0)
    ]
