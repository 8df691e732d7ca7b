"""Fixtures that keep the tester's terminal from changing results, and give a test its own clusters."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.p4reduce.clusters import clusters_interfaces, p4reduce


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "P4REDUCE_CLUSTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep this test's clusters apart, and let none be left. Not tmp_path: a socket's path is short."""
    directory = tempfile.mkdtemp(prefix="p4r-")
    monkeypatch.setenv("P4REDUCE_STATE_DIR", directory)
    yield
    p4reduce("down", "--all")
    assert os.listdir(directory) == []
    assert clusters_interfaces() == set()
    shutil.rmtree(directory)


@pytest.fixture
def name() -> str:
    """Return a cluster name that nobody else has."""
    return f"t{os.getpid()}"
