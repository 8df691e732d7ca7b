"""Cluster states for tests, in a directory of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.states import cluster_state
from topologies.state import ClusterState


@pytest.fixture
def state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Clusters of this test keep their state here."""
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    yield tmp_path
    assert os.environ["P4REDUCE_STATE_DIR"] == str(tmp_path)


@pytest.fixture
def saved(state_directory: Path) -> Callable[..., ClusterState]:
    """Makes states that are recorded."""

    def make(name: str = "c1", **changes: Any) -> ClusterState:
        made = cluster_state(name, **changes)
        made.directory.mkdir(parents=True, exist_ok=True)
        made.save()
        return made

    return make
