"""Racks for the end-to-end tests: real namespaces, real switches, a worker process a host."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.config import Target
from p4reduce.workloads.team import Team
from topologies.fabric import Fabric
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions
from topologies.switches import BMV2

TARGETS = [
    pytest.param(Target.EMBEDDED, id="embedded"),
    pytest.param(
        Target.BMV2,
        id="bmv2",
        marks=[
            pytest.mark.bmv2,
            pytest.mark.skipif(shutil.which(BMV2) is None, reason=f"{BMV2} is not on the PATH"),
        ],
    ),
]
PATH_MTU = 1024
_NUMBERS = itertools.count()


def unique() -> str:
    """Return a word that no other cluster's name ends with."""
    return f"{os.getpid()}-{next(_NUMBERS)}"


@contextmanager
def rack(
    hosts: int, *, target: Target = Target.EMBEDDED, path_mtu: int = PATH_MTU, **options: Any
) -> Iterator[Fabric]:
    """Yield a running rack with a name of its own."""
    name = f"e2e-{unique()}"
    with Fabric(RackOptions(name=name, hosts=hosts, switch=target, path_mtu=path_mtu, **options)) as running:
        yield running


@contextmanager
def spine_leaf(*, path_mtu: int = PATH_MTU, **options: Any) -> Iterator[Fabric]:
    """Yield a running spine-leaf fabric with a name of its own."""
    name = f"e2e-{unique()}"
    with Fabric(SpineLeafOptions(name=name, path_mtu=path_mtu, **options)) as running:
        yield running


@contextmanager
def joined(running: Fabric, workers: int, *, job: str = "e2e", **arguments: Any) -> Iterator[Team]:
    """Yield a team of `workers` in a job that the switch sums, which leaves at the end."""
    with Team(running.state, workers) as team:
        for answer in team.join(job, **arguments):
            assert (answer["mode"], answer["mode_reason"]) == ("in_network", "")
        yield team
        team.do("leave")


def all_reduce(team: Team, **request: Any) -> list[dict[str, Any]]:
    """Reduce, and assert what a user relies on: right at rank 0, the same bits everywhere."""
    answers = team.do("all_reduce", verify=True, **request)
    assert len({answer["digest"] for answer in answers}) == 1, "ranks differ"
    for answer in answers:
        assert answer["check"]["passed"], f"{request}: {answer['check']}"
    return answers


@pytest.fixture(scope="module", params=TARGETS)
def four(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    """Yield four hosts, on each target."""
    with rack(4, target=request.param) as running:
        yield running


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """Return a directory for captures."""
    directory = tmp_path / "captures"
    directory.mkdir()
    return directory
