"""The core does no I/O, starts no thread, reads no clock and no randomness: all of it is passed in."""

from __future__ import annotations

from pathlib import Path

import pytest

import host_agent
from tests.imports import imported

ROOT = Path(host_agent.__file__).parent
CORE = [
    *sorted(ROOT.glob("wire/*.py")),
    *sorted(ROOT.glob("collectives/*.py")),
    ROOT / "quantisation.py",
    ROOT / "member.py",
    ROOT / "recovery.py",
    ROOT / "session.py",
]
OUTSIDE = {
    "socket",
    "threading",
    "time",
    "random",
    "secrets",
    "asyncio",
    "concurrent",
    "os",
    "subprocess",
    "grpc",
}


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_is_pure(path: Path) -> None:
    assert {name.split(".")[0] for name in imported(path)} & OUTSIDE == set()


@pytest.mark.parametrize("path", sorted(ROOT.glob("wire/*.py")), ids=lambda path: path.name)
def test_the_wire_formats_know_nothing_of_the_layers_above(path: Path) -> None:
    ours = {name for name in imported(path) if name.startswith("host_agent")}
    assert all(name == "host_agent.wire" or name.startswith("host_agent.wire.") for name in ours), ours


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_agent_imports_nothing_of_the_rooms_above_it(path: Path) -> None:
    above = ("topologies", "workloads", "p4reduce", "soft_switch", "simulation", "bench", "tests", "p4src")
    assert not any(name.split(".")[0] in above for name in imported(path))
    others = {name for name in imported(path) if name.split(".")[0] == "controller"}
    assert all(name == "controller" or name.startswith("controller.api") for name in others), others
