"""What the simulation may import, who may import it, and that chance and time are passed in."""

from __future__ import annotations

from pathlib import Path

import pytest

import simulation
from tests.imports import imported

ROOT = Path(simulation.__file__).parent
TOP = ROOT.parent
MODULES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_simulation_imports_nothing_of_the_rooms_above_it(path: Path) -> None:
    above = {"topologies", "workloads", "p4reduce", "bench", "tests", "pytest", "hypothesis"}
    assert {name.split(".")[0] for name in imported(path)} & above == set()


@pytest.mark.parametrize("path", sorted(ROOT.glob("switch/*.py")), ids=lambda path: path.name)
def test_the_model_is_pure(path: Path) -> None:
    """What it does follows from the frame, the entries and what it has seen."""
    outside = {"random", "secrets", "time", "os", "socket", "threading", "asyncio", "subprocess"}
    assert {name.split(".")[0] for name in imported(path)} & outside == set()


@pytest.mark.parametrize(
    "room", ["p4src", "telemetry", "soft_switch", "controller", "host_agent", "topologies", "workloads"]
)
def test_what_runs_does_not_import_the_simulation(room: str) -> None:
    for path in sorted((TOP / room).rglob("*.py")):
        assert "simulation" not in {name.split(".")[0] for name in imported(path)}, path
