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
from topologies.errors import TopologyError
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


def test_the_state_is_removed_last(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a process while it removes a cluster: the next one still knows of it."""
    cluster = saved(owner=GONE)
    (cluster.directory / "machines").mkdir()
    (cluster.directory / "ssh_key").write_text("")
    with monkeypatch.context() as patch:

        def killed(path: Path, ignore_errors: bool) -> None:
            raise KeyboardInterrupt

        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            cleanup.remove(cluster)
    assert (cluster.directory / "cluster.json").exists()
    assert cleanup.remove_dead() == ["c1"]
    assert not cluster.directory.exists()


def test_what_is_left_without_a_state_is_removed(state_directory: Path) -> None:
    left = state_directory / "c1"
    (left / "machines" / "h1").mkdir(parents=True)
    (left / "workers").mkdir()
    for name in ("ssh_key", "ssh_host_key.pub", "controller.db-wal", "h1.console", "s1.log", "cluster.new"):
        (left / name).write_text("")
    cleanup.remove_leftover(left)
    cleanup.remove_leftover(left)
    assert list(state_directory.iterdir()) == []


def test_what_is_no_clusters_is_left_alone(state_directory: Path) -> None:
    """Use somebody's directory: $P4REDUCE_STATE_DIR could name any, and a cluster one that is in it."""
    somebody = state_directory / "c1"
    somebody.mkdir()
    for name in ("ssh_key", "thesis.tex"):
        (somebody / name).write_text("")
    with pytest.raises(TopologyError, match=r"c1/thesis.tex is no cluster's: remove .*/c1, or give"):
        cleanup.remove_leftover(somebody)
    link = state_directory / "c2"
    link.symlink_to(somebody)
    with pytest.raises(TopologyError, match="c2 is no directory"):
        cleanup.remove_leftover(link)
    assert len(list(somebody.iterdir())) == 2


def test_nothing_of_our_own_namespace_is_ever_a_clusters() -> None:
    assert namespaces.inhabitants(Path("/proc/self/ns/net")) == []
