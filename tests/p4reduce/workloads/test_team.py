"""Workers as processes, without a network: commands, errors, deaths."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p4reduce.workloads import team as team_module
from p4reduce.workloads.errors import WorkerFailedError, WorkloadError
from p4reduce.workloads.team import Team
from tests.topologies.states import cluster_state, host_state
from topologies import launch
from topologies.state import HostState

pytestmark = pytest.mark.slow


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """Yield two workers that run in this namespace."""

    def nowhere(host: HostState) -> list[str]:
        return []

    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "namespace_command", nowhere)
    cluster = cluster_state("c1")
    cluster.directory.mkdir()
    with Team(cluster, 2) as workers:
        assert len(list(cluster.workers.iterdir())) == 2
        yield workers
    assert list(cluster.workers.iterdir()) == []


def test_a_worker_that_has_not_joined(team: Team) -> None:
    with pytest.raises(WorkerFailedError, match="worker 0: this worker has not joined a job") as caught:
        team.do("statistics")
    assert (caught.value.rank, caught.value.kind) == (0, "WorkloadError")


def test_errors_are_answers(team: Team) -> None:
    (answer,) = team.try_("dance", ranks=[1])
    assert answer["error"]["text"] == "there is no command 'dance'"


def test_leaving_without_having_joined(team: Team) -> None:
    assert team.do("leave") == [{}, {}]


def test_ranks_are_behind_the_leaves_of_their_hosts() -> None:
    hosts = [
        replace(host_state(place), switch=leaf) for place, leaf in enumerate(("l2", "l1", "l2", "l1"), 1)
    ]
    cluster = cluster_state("c1", hosts=hosts)
    assert Team(cluster, 4).racks == [[0, 2], [1, 3]]
    assert Team(cluster, 2, hosts=[hosts[3], hosts[1]]).racks == [[0, 1]]
    assert Team(cluster, 2, hosts=hosts[1:]).racks == [[0], [1]]


def test_a_killed_worker(team: Team) -> None:
    team.kill(1)
    with pytest.raises(WorkloadError, match=r"worker 1 (has )?ended"):
        team.do("leave")


def test_an_elastic_job_goes_on_without_who_has_ended(team: Team) -> None:
    team._elastic = True  # as `join` has it, which there is no controller for
    team.kill(0)
    assert team.do("leave") == [{}]
    assert team.do("leave", per_rank=[{"never": "sent"}, {}]) == [{}]
    assert list(team.lost) == [0]
    assert "SIGKILL" in team.lost[0]
    with pytest.raises(WorkloadError, match="'leave': worker 0 ended: it was killed"):
        team.try_("leave", ranks=[0])
    team.kill(1)
    with pytest.raises(WorkloadError, match=r"worker 1 (has )?ended"):
        team.do("leave")


def test_an_elastic_gang_goes_on_without_who_was_left_out_with_its_machine(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it where the process lives, and has heard which GPU of its machine died."""
    team._elastic, team.gpus_per_host = True, 2
    heard = '{"error": {"kind": "WorkerLostError", "text": "GPU 1 of machine 0 (h1) died"}}'
    monkeypatch.setattr(team._processes[0], "stdout", said := _Said(team._processes[0].stdout, heard))
    assert team.do("leave") == [{}]
    assert team.lost == {0: "GPU 1 of machine 0 (h1) died"}
    assert said.lines == 1


class _Said:
    """A worker's output, of which each line is that one."""

    def __init__(self, pipe: Any, line: str) -> None:
        self.pipe, self.line, self.lines = pipe, line, 0

    def fileno(self) -> int:
        return int(self.pipe.fileno())

    def readline(self) -> str:
        self.lines += 1
        return self.line

    def close(self) -> None:
        self.pipe.close()


def test_a_silent_worker(team: Team) -> None:
    with pytest.raises(WorkloadError, match="'leave': no answer from worker 0, 1 in time"):
        team.do("leave", timeout_s=0.0)


def test_a_failed_worker_is_named_where_others_wait_for_it(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_module, "_GRACE_S", 0.0)
    waiting = team._processes[1]
    waiting.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(WorkerFailedError, match="worker 0: there is no command 'dance'"):
            team.do("dance")
    finally:
        waiting.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("workers", [0, 3])
def test_workers_that_do_not_fit(workers: int) -> None:
    with pytest.raises(WorkloadError, match=f"{workers} workers do not fit cluster c1, which has 2 hosts"):
        Team(cluster_state("c1"), workers)


def test_a_worker_that_the_kernel_kills_is_said_to_be(team: Team) -> None:
    team.kill(1)
    with pytest.raises(WorkloadError, match="may have run out of memory"):
        team.do("statistics")
