"""A worker's metrics: what they say, and that no worker fails for them or has a thread it did not want."""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from controller.telemetry.address import STATE_PATH, VARIABLE, Address, MetricsError
from controller.telemetry.client import fetch
from controller.telemetry.server import registry
from host_agent import joining, metrics
from host_agent.adapters import UserspaceAdapter
from host_agent.communicator import Communicator
from host_agent.errors import UsageError
from host_agent.joining import Place, QueuePairs
from host_agent.metrics import AgentMetrics
from host_agent.runner import Alone
from host_agent.transport.events import Counters
from p4reduce.simulation.rack import configs
from tests.host_agent.exposed import NUMBERED, Worker
from tests.host_agent.fakes import FakeController, FakeMembership, SimulatedFabric, SimulatedLink, ready_of
from tests.host_agent.rack import Simulation
from tests.host_agent.requests import INTERFACE, request
from topologies.processes import ProcessId


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_what_a_worker_says() -> None:
    made = AgentMetrics(Worker(), job='a "job"')
    found = families(generate_latest(registry(made.collect)).decode())
    for family in found.values():
        assert family.name.startswith("p4reduce_agent_")
        assert family.documentation.endswith(".")
        assert all(s.labels["job"] == 'a "job"' and s.labels["rank"] == "2" for s in family.samples)
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
    by_strategy = {s.labels["strategy"]: s.value for s in found["p4reduce_agent_collectives"].samples}
    assert by_strategy == {"in_network": 3, "ring": 2}
    assert found["p4reduce_agent_busy_seconds"].samples[0].value == 1.5
    resent = found["p4reduce_agent_retransmitted_packets"].samples[0]
    assert resent.value == NUMBERED.retransmitted_packets


def test_every_count_of_the_connection_is_told_once() -> None:
    untold = {f.name for f in fields(Counters) if f.name.endswith("_ns")} | {"implied_acks", "early_messages"}
    text = generate_latest(registry(AgentMetrics(Worker(), job="j").collect)).decode()
    values = [s.value for name, f in families(text).items() for s in f.samples if "collectives" not in name]
    for field in fields(Counters):
        number = getattr(NUMBERED, field.name)
        if field.name not in untold and number not in (1, 2):  # others say 1 and 2 too
            assert values.count(number) == 1, field.name


def test_a_socket_in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    place = metrics.where(None)
    assert place is not None
    (tmp_path / "agent-4194305-0.sock").touch()  # no pid is as large: its worker was killed
    exposed = [place.expose(Worker(rank=rank), job="j") for rank in range(2)]
    paths = sorted(tmp_path.glob(metrics.SOCKETS))
    assert len(paths) == 2
    assert 'rank="1"' in fetch(Address(path=paths[1]))
    assert json.loads(fetch(Address(path=paths[1]), path=STATE_PATH)) == {"job": "j", "rank": 1}
    whose = json.loads(paths[1].with_suffix(metrics.WHOSE).read_text())
    assert (whose["job"], whose["rank"]) == ("j", 1)
    assert ProcessId(whose["pid"], whose["started"]) == ProcessId.of(os.getpid())
    for one in exposed:
        assert one is not None
        one.close()
        one.close()
    assert list(tmp_path.iterdir()) == []


def test_without_it_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = threading.active_count()
    assert metrics.where(None) is None
    monkeypatch.setenv(VARIABLE, "/somewhere")
    assert metrics.where("") is None
    assert threading.active_count() == before


def test_who_asked_is_refused_and_who_did_not_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = metrics.where(f"unix:{tmp_path}/none/m.sock")
    assert wanted is not None
    with pytest.raises(UsageError, match=r"cannot serve metrics on unix:.*No such file"):
        wanted.expose(Worker(), job="j")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    place = metrics.where(None)
    assert place is not None
    with caplog.at_level(logging.WARNING):
        assert place.expose(Worker(), job="j") is None
    assert "cannot serve metrics" in caplog.text
    with pytest.raises(UsageError, match="'9464' is no address for metrics"):
        metrics.where("9464")
    monkeypatch.setenv(VARIABLE, "9464")
    with pytest.raises(UsageError, match=r"\$P4REDUCE_METRICS: '9464' is no address"):
        metrics.where(None)


def test_a_worker_that_is_refused_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = configs(2, path_mtu=1024)
    fabric, controller = SimulatedFabric(Simulation(workers, seed=1)), FakeController(2)
    membership = FakeMembership(controller, 0)
    pairs = QueuePairs(request(), UserspaceAdapter(INTERFACE), INTERFACE, retry_limit=0)
    place = Place(ready_of(workers[0]), SimulatedLink(fabric, 0), membership, pairs)
    monkeypatch.setattr(joining, "join", lambda *arguments, **named: place)
    with pytest.raises(UsageError, match="cannot serve metrics on unix:"):
        Communicator.join("c", job="j", rank=0, world_size=2, metrics_address=f"unix:{tmp_path}/none/m.sock")
    assert controller.ended is not None  # its peer waits for nobody
    assert "cannot serve metrics" in controller.ended.reason
    assert membership.closed


def test_sockets_that_may_not_be_removed_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    left = tmp_path / "agent-4194305-0.sock"
    left.mkdir()  # which nobody can unlink, not even root
    place = metrics.where(None)
    assert place is not None
    exposed = place.expose(Worker(), job="j")
    assert exposed is not None
    exposed.close()
    assert left.exists()


def test_after_the_end_nobody_is_asked() -> None:
    made = AgentMetrics(Worker(wire=Alone().counters()), job="j")
    made.close()
    with pytest.raises(MetricsError, match="leaving"):
        made.collect()
