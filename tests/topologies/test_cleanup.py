"""Cleaning up: only what was recorded, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.topologies.states import GONE
from topologies import cleanup, namespaces
from topologies.processes import ProcessId
from topologies.state import ClusterState

Saved = Callable[..., ClusterState]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def _no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "exists", lambda name: False)


def _record(cluster: ClusterState, process: ProcessId) -> None:
    cluster.workers.mkdir()
    (cluster.workers / f"{process.pid}.json").write_text(json.dumps(asdict(process)))


def test_recorded_workers_end_with_their_cluster(saved: Saved, bystander: subprocess.Popen[bytes]) -> None:
    cluster = saved(owner=GONE)
    _record(cluster, ProcessId.of(bystander.pid))
    assert cleanup.remove_dead() == ["c1"]
    assert bystander.wait() == -15
    assert not cluster.directory.exists()


def test_a_pid_that_was_given_away_is_left_alone(saved: Saved, bystander: subprocess.Popen[bytes]) -> None:
    found = ProcessId.of(bystander.pid)
    cluster = saved(owner=GONE)
    _record(cluster, ProcessId(found.pid, found.started - 5))
    cleanup.remove_dead()
    assert found.alive()
    assert not cluster.directory.exists()


def test_running_clusters_stay(saved: Saved) -> None:
    cluster = saved()  # this process owns it
    assert cleanup.remove_dead() == []
    assert cluster.directory.exists()


def test_half_written_records_do_no_harm(saved: Saved, state_directory: Path) -> None:
    cluster = saved(owner=GONE)
    cluster.workers.mkdir()
    (cluster.workers / "7.json").write_text("{")
    cleanup.remove(cluster)
    assert list(state_directory.iterdir()) == []


def test_nothing_of_our_own_namespace_is_ever_a_clusters() -> None:
    assert namespaces.inhabitants(Path("/proc/self/ns/net")) == []
