"""Clusters whose jobs cannot be created. No network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p4reduce.cli import staying
from p4reduce.cli.commands import headless
from p4reduce.workloads import scenario
from p4reduce.workloads.errors import WorkloadError
from tests.topologies.states import cluster_state
from topologies import cleanup
from topologies.rack import RackOptions
from topologies.state import ClusterState

_FILE = "name: c1\ntopology: {kind: rack, hosts: 2}\njobs: [{name: a}]\nworkload: [{train: {steps: 1}}]\n"


def refuse(*_: Any, **__: Any) -> None:
    raise WorkloadError("no room")


def test_a_detached_cluster_that_cannot_be_prepared_is_taken_down(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_state("c1")
    ended: list[ClusterState] = []
    monkeypatch.setattr(staying, "start_detached", lambda options, *, progress: None)
    monkeypatch.setattr(staying, "running", lambda name: cluster)
    monkeypatch.setattr(cleanup, "take_down", ended.append)
    with pytest.raises(WorkloadError, match="no room"):
        staying.stay(RackOptions(name="c1", hosts=2), None, detach=True, prepare=refuse)
    assert ended == [cluster]


def test_a_kept_cluster_is_named_when_the_run_fails_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(_FILE)
    monkeypatch.setattr(headless, "_bring_up", lambda *_, **__: cluster_state("c1"))
    monkeypatch.setattr(scenario, "play", refuse)
    with pytest.raises(WorkloadError, match="no room"):
        headless.run(path, results=tmp_path, keep=True)
    assert "'p4reduce down c1'" in capsys.readouterr().err
