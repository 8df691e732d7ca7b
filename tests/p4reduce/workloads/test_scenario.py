"""Runs of cluster files: how steps are done and judged, errors, ends. No network."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from controller.api import controller_pb2 as pb
from p4reduce.workloads import allreduce, scenario
from p4reduce.workloads.cluster_file import ClusterFile
from p4reduce.workloads.cluster_reading import read, with_jobs
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.scenario import Report, create_jobs, play, require_work
from p4reduce.workloads.steps import exact, run_steps
from p4reduce.workloads.team import Answer, Team
from tests.topologies.states import cluster_state
from topologies import launch
from topologies.state import ClusterState, HostState

pytestmark = pytest.mark.slow

_FILE = """\
name: c1
topology: {kind: rack, hosts: 2}
jobs:
  - {name: a, tenant: red, window: 2, selective: true}
  - {name: b, hosts: [h2, h1], mode: ring, start_after_s: 0.01}
workload:
  - all_reduce: {bytes: [8, 1K], dtype: int32, iterations: 2, late_s: {1: 0.5}, strategy: ring}
timeout_s: 20
"""


class FakeAdmin:
    """Takes jobs."""

    created: ClassVar[list[tuple[str, int, dict[str, Any]]]] = []

    def __init__(self, target: str) -> None:
        assert target == "unix:/nowhere/c1.sock"

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def status(self) -> pb.Status:
        return pb.Status(switches=[pb.SwitchInfo(program_sha256="ab" * 32)])

    def create_job(self, name: str, world_size: int, **settings: Any) -> pb.JobInfo:
        self.created.append((name, world_size, settings))
        return pb.JobInfo()

    def counters(self, job: str) -> list[pb.FlowCounters]:
        return [pb.FlowCounters(counters={"aggregated": pb.CounterValue(packets=3)})]


@pytest.fixture(autouse=True)
def _admin(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeAdmin.created.clear()
    monkeypatch.setattr(scenario, "AdminClient", FakeAdmin)
    monkeypatch.setattr(allreduce, "AdminClient", FakeAdmin)


@pytest.fixture
def file(tmp_path: Path) -> ClusterFile:
    path = tmp_path / "c.yaml"
    path.write_text(_FILE)
    return read(path)


class FakeTeam:
    """Answers as two workers do; `digests` are what their sums look like, one a call."""

    def __init__(
        self, cluster: ClusterState, workers: int = 2, *, hosts: list[HostState] | None = None
    ) -> None:
        self.cluster, self.size = cluster, workers
        self.asked: list[dict[str, Any]] = []
        self.digests: list[tuple[str, str]] = []
        self.check = {"passed": True, "exact": True, "largest_error": 0.0, "bound": 0.0}
        self.lost: dict[int, str] = {}
        self.racks = [[0, 1]]
        self.jobs = ["one"]
        self.ended = threading.Event()

    def __enter__(self) -> FakeTeam:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()

    def terminate(self) -> None:
        self.ended.set()

    def join(self, job: str, **_: Any) -> list[Answer]:
        ready = {"job_id": 1, "generation": 7, "window": 8, "message_packets": 16, "path_mtu": 1024}
        return [{**ready, "mode": "in_network", "mode_reason": ""}] * 2

    def do(self, command: str, **arguments: Any) -> list[Answer]:
        self.asked.append({"do": command, **arguments})
        if command == "statistics":
            wire = {"in_network": 4, "ring": 0, "retransmissions": 1, "bytes_sent": 500, "renewals": 0}
            return [{"statistics": wire | {"ring_reason": "switch s1 is away"}}] * 2
        if command == "all_reduce":
            digests = self.digests.pop(0) if self.digests else ("x", "x")
            both = {"seconds": [0.5], "bytes_sent": 100.2, "retransmissions": 2, "workers": 2}
            first, second = ({**both, "digest": digest} for digest in digests)
            return [{**first, "check": self.check}, {**second, "seconds": [0.75]}]
        return [{}] * 2


def _steps(file: ClusterFile, team: FakeTeam) -> dict[str, Any]:
    job = file.jobs[0]
    return run_steps(
        team,  # type: ignore[arg-type]
        job,
        file.workload_of(job),
        timeout_s=1.0,
        progress=lambda text: None,
    )


def test_each_iteration_is_checked_with_other_numbers(file: ClusterFile) -> None:
    team = FakeTeam(cluster_state("c1"))
    found = _steps(file, team)
    reductions = [words for words in team.asked if words["do"] == "all_reduce"]
    assert [(words["elements"], words["seed"]) for words in reductions] == [
        (2, 1),
        (2, 2),
        (256, 1),
        (256, 2),
    ]
    assert all(words["per_rank"][0] == {"verify": True, "late_s": 0.0} for words in reductions)
    assert all(words["per_rank"][1] == {"verify": False, "late_s": 0.5} for words in reductions)
    assert all(words["strategy"] == "ring" for words in reductions)
    assert all(words["racks"] == [[0, 1]] for words in reductions)  # so that bits are looked at, too
    assert team.asked[-1]["do"] == "leave"
    assert exact(found)
    first, _ = found["steps"]
    assert first["iterations"][0] == {
        "seconds": 0.75,  # the slowest
        "bytes_sent_per_host": 100,
        "retransmissions": 4,
        "ranks_bitwise_equal": True,
        "right": True,
        "workers": 2,
        "exact": True,
        "largest_error": 0.0,
        "bound": 0.0,
    }
    assert (found["mode_at_join"], found["counters"], found["retransmissions"]) == (
        "in-network",
        {"aggregated": 3},
        2,
    )
    assert (found["mode_reason"], found["ring_reason"]) == ("", "switch s1 is away")


def test_one_wrong_sum_is_not_exact(file: ClusterFile) -> None:
    team = FakeTeam(cluster_state("c1"))
    team.digests = [("x", "x"), ("x", "y")]
    found = _steps(file, team)
    assert [one["right"] for step in found["steps"] for one in step["iterations"]] == [
        True,
        False,
        True,
        True,
    ]
    assert not exact(found)
    team = FakeTeam(cluster_state("c1"))
    team.check = {**team.check, "passed": False}
    assert not exact(_steps(file, team))


def test_jobs_are_created_as_the_file_says(file: ClusterFile) -> None:
    create_jobs(cluster_state("c1"), file)
    (a, workers, settings), (b, _, others) = FakeAdmin.created
    assert (a, workers, settings["tenant"], settings["window"], settings["mode"]) == ("a", 2, "red", 2, "")
    assert (b, others["mode"], others["path_mtu"]) == ("b", "ring", None)
    assert (settings["selective"], others["selective"]) == (True, None)


def test_all_jobs_may_be_changed(file: ClusterFile) -> None:
    """Check that they are changed as 'p4reduce run --elastic --selective' does it."""
    create_jobs(cluster_state("c1"), with_jobs(file, elastic=True, selective=True))
    assert [(found["elastic"], found["selective"]) for _, _, found in FakeAdmin.created] == [(True, True)] * 2


def test_a_run(file: ClusterFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "Team", FakeTeam)
    report = Report(file)
    play(cluster_state("c1"), file, report, progress=lambda text: None)
    found = json.loads(json.dumps(report.as_json()))
    assert (found["succeeded"], found["exact"], found["error"]) == (True, True, None)
    assert [(job["name"], job["tenant"], job["hosts"]) for job in found["jobs"]] == [
        ("a", "red", ["h1", "h2"]),
        ("b", "default", ["h2", "h1"]),
    ]
    assert found["versions"]["program_sha256"] == "ab" * 32
    assert found["topology"]["kind"] == "rack"
    assert found["configuration"]["jobs"][1]["start_after_s"] == 0.01
    report.error = "interrupted"
    assert not report.succeeded


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterState]:
    """Yield a cluster whose hosts are this namespace: real worker processes, and no controller."""
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))

    def nowhere(host: HostState) -> list[str]:
        return []

    monkeypatch.setattr(launch, "namespace_command", nowhere)
    cluster = cluster_state("c1", controller="127.0.0.1:1")
    cluster.directory.mkdir()
    yield cluster
    assert list(cluster.workers.iterdir()) == []


@pytest.mark.slow  # workers try to join for most of the time that the run has
def test_the_first_error_ends_all_jobs_and_names_its_own(here: ClusterState, file: ClusterFile) -> None:
    report = Report(file)
    with pytest.raises(WorkloadError, match=r"job [ab]: worker [01]: "):
        play(here, file, report, progress=lambda text: None)
    assert not report.succeeded
    assert report.jobs == {}


def test_a_run_has_to_end_in_time(
    here: ClusterState, file: ClusterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()

    def blocked(team: Team, *_: Any, **__: Any) -> dict[str, Any]:
        waiting.wait(20)
        raise WorkloadError("ended")

    def terminate(team: Team) -> None:
        waiting.set()

    monkeypatch.setattr(scenario, "run_steps", blocked)
    monkeypatch.setattr(Team, "terminate", terminate)
    short = file.model_copy(update={"timeout_s": 0.5})
    with pytest.raises(WorkloadError, match=r"not done after 0\.5 s \(timeout_s\): a, b"):
        play(here, short, Report(short), progress=lambda text: None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_FILE.split("jobs:")[0], "there are no jobs to run: the cluster file needs 'jobs' and 'workload'"),
        (
            _FILE.split("workload:")[0],
            r"line \d+, jobs\[0\]\.name: job a has nothing to do: give it, or all jobs, a 'workload'",
        ),
    ],
)
def test_nothing_to_run(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=message):
        require_work(read(path))
