"""Asking a cluster: not more than needed, and on when it, or a part of it, goes away."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from controller.api.errors import UnreachableError
from controller.telemetry.server import registry
from host_agent.metrics import AgentMetrics
from p4reduce.live import asking
from p4reduce.live.asking import Asker, ClusterGoneError, decode_agent
from tests.host_agent.exposed import Worker
from tests.p4reduce.live import clusters
from topologies.errors import TopologyError
from topologies.processes import ProcessId
from topologies.state import ClusterState


@dataclass
class World:
    """A cluster's answers, and what was asked. Asking for slots takes `slots_s`."""

    now: float = 100.0
    cluster: ClusterState | None = field(default_factory=clusters.fabric)
    jobs: list[pb.JobInfo] = field(default_factory=lambda: [clusters.job()])
    asked: list[str] = field(default_factory=list)
    dead: bool = False
    away: set[str] = field(default_factory=set)
    slots_s: float = 0.0
    made: int = 0

    def asker(self, **options: Any) -> Asker:
        return Asker(
            "c1",
            find=self.find,
            admin=self.admin,
            interfaces=lambda cluster: {},
            agents=lambda cluster: self.agents(),
            clock=lambda: self.now,
            **options,
        )

    def find(self, name: str) -> ClusterState:
        if self.cluster is None:
            raise TopologyError(f"there is no running cluster {name!r}")
        return replace(self.cluster, links=[])

    def admin(self, target: str) -> Any:
        self.made += 1
        return self

    def agents(self) -> Any:
        self.asked.append("agents")
        return {}

    def close(self) -> None:
        self.asked.append("close")

    def _answer(self, what: str, value: Any) -> Any:
        self.asked.append(what)
        if self.dead:
            raise UnreachableError("the controller has died")
        return value

    def list_jobs(self) -> Any:
        return self._answer("jobs", self.jobs)

    def status(self) -> Any:
        return self._answer("status", pb.Status())

    def counters(self, job: str = "") -> Any:
        if self.away and (not job or job in self.away):
            raise UnreachableError("switch l1 is away")
        return self._answer(
            f"counters {job}".strip(), [clusters.flow("l1", 0, job=job or "train", aggregated=1)]
        )

    def ports(self) -> Any:
        return self._answer("ports", [])

    def links(self) -> Any:
        return self._answer("links", [])

    def slots(self, job: str = "") -> Any:
        self.now += self.slots_s
        return self._answer("slots", [])


def test_what_is_dear_is_not_asked_each_time() -> None:
    world = World(slots_s=0.5)
    with world.asker() as asker:
        for _ in range(30):
            asker.ask()
            world.now += 1.0
    assert world.asked.count("jobs") == world.asked.count("counters") == 30
    assert world.asked.count("ports") == 10
    assert world.asked.count("agents") == 15
    assert world.asked.count("slots") == 2  # 0.5 s each: once in 20 s


def test_one_look_for_all_asks_everything() -> None:
    world = World()
    with world.asker(sparing=False) as asker:
        asker.ask()
        world.now += 0.2
        asker.ask()
    assert {what: world.asked.count(what) for what in ("ports", "agents", "slots")} == dict.fromkeys(
        ("ports", "agents", "slots"), 2
    )


def test_without_jobs_no_switch_is_asked_for_flows_or_slots() -> None:
    world = World(jobs=[])
    with world.asker() as asker:
        asker.ask()
    assert set(world.asked) == {"jobs", "status", "ports", "agents", "close"}


def test_two_answers_make_a_rate() -> None:
    world = World()
    with world.asker() as asker:
        first = asker.ask()
        world.now += 2.0
        second = asker.ask()
    assert first.flows is not None
    assert second.flows is not None
    assert (first.flows.seconds, second.flows.seconds) == (None, 2.0)
    assert second.flows.before is not None
    assert second.flows.before.before is None  # not a chain of all that ever was


def test_a_controller_that_comes_back() -> None:
    world = World()
    with world.asker() as asker:
        asker.ask()
        world.dead = True
        with pytest.raises(UnreachableError):
            asker.ask()
        world.dead = False
        assert asker.ask().jobs
    assert world.made == 2  # not the connection that waits longer and longer


def test_a_cluster_that_goes_and_another_that_comes() -> None:
    world = World()
    with world.asker() as asker:
        asker.ask()
        before, world.cluster = world.cluster, None
        assert before is not None
        with pytest.raises(ClusterGoneError, match="no running cluster 'c1'"):
            asker.ask()
        world.cluster = replace(before, owner=ProcessId(2, 2))
        reading = asker.ask()
        assert reading.flows is not None
        assert reading.flows.before is None  # its counters are not the other's


def test_jobs_on_other_leaves_are_still_counted_where_one_is_away() -> None:
    world = World(jobs=[clusters.job("a"), clusters.job("b")], away={"b"})
    with world.asker() as asker:
        reading = asker.ask()
    assert reading.flows is not None
    assert [flow.job for flow in reading.flows.value] == ["a"]
    assert reading.remarks == ("switch l1 is away",)


def test_what_workers_tell() -> None:
    from prometheus_client import generate_latest

    worker = Worker(rank=3)
    text = generate_latest(registry(AgentMetrics(worker, job="j").collect)).decode()
    agent = decode_agent(text)["j", 3]
    assert agent["retransmitted_packets"] == worker.wire.retransmitted_packets
    assert agent["collectives.ring"] == 2
    assert agent["acknowledgements.received.nak"] == worker.wire.naks_received
    assert agent["dropped_packets.ring_full"] == worker.wire.ring_drops
    assert agent["data_sent_bytes"] == worker.wire.data_bytes_sent
    assert agent["nothing"] == 0


def test_the_names_that_faults_go_by_are_told() -> None:
    from prometheus_client import generate_latest

    from p4reduce.live.faults import AGENT_EVENTS

    told = decode_agent(generate_latest(registry(AgentMetrics(Worker(), job="j").collect)).decode())["j", 2]
    assert set(AGENT_EVENTS) <= set(told.counts)


def test_a_worker_that_is_gone_is_left_out(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    cluster = clusters.fabric()
    cluster.metrics.mkdir(parents=True)
    (cluster.metrics / "agent-1-0.sock").touch()
    assert asking.read_agents(cluster) == {}
