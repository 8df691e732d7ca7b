"""Racks whose hosts are machines with Linux's own RoCE v2 stack (rdma_rxe)."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from p4reduce.workloads.team import Team
from tests.e2e.captures import captured_in, require_roce_v2
from tests.e2e.conftest import TARGETS, rack
from topologies import launch
from topologies.fabric import Fabric

MACHINES = 4
EMULATED = 2


@pytest.fixture(scope="module", params=TARGETS)
def mixed_rack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """Four machines (h1 to h4) and two emulated hosts behind one switch, on each target.

    At the end, every packet that came to a port or left by one has to be right.
    """
    captures = tmp_path_factory.mktemp("captures")
    kinds = ("roce",) * MACHINES + ("emulated",) * EMULATED
    with rack(MACHINES + EMULATED, target=request.param, host_kinds=kinds, pcap=captures) as running:
        yield running
    assert sum((require_roce_v2(path, scapy_every=500) for path in captured_in(captures)), Counter()).total()


@contextmanager
def joined_machines(
    running: Fabric,
    workers: int,
    *,
    first_host: int = 0,
    kinds: Sequence[str] = (),
    first_psns: Sequence[int] = (),
    **arguments: Any,
) -> Iterator[Team]:
    """Yield a team in a job that the switch sums, over the verbs transport unless `kinds` says otherwise."""
    with Team(running.state, workers, hosts=running.state.hosts[first_host:]) as team:
        own: list[dict[str, Any]] = [{"rank": rank} for rank in range(workers)]
        for rank, psn in enumerate(first_psns):
            own[rank]["first_psn"] = psn
        answers = team.do(
            "join",
            per_rank=own,
            controller=running.state.controller,
            job="machines",
            world_size=workers,
            **arguments,
        )
        assert [answer["mode"] for answer in answers] == ["in_network"] * workers, answers[0]["mode_reason"]
        assert [answer["transport"] for answer in answers] == list(kinds or ("verbs",) * workers)
        yield team
        team.do("leave")


def run_in(running: Fabric, host: str, *command: str, timeout_s: float = 60.0) -> str:
    """Return what `command` printed in a host; it has to succeed."""
    process = launch.start(
        running.state, running.state.host(host), command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    finally:
        launch.stop(running.state, [process])
    assert process.returncode == 0, f"{host}: {' '.join(command)}: {output}"
    return output


def queue_pairs(running: Fabric, host: str) -> int:
    """Return the number of queue pairs that a machine's RDMA device has."""
    return len(
        [line for line in run_in(running, host, "rdma", "resource", "show", "qp").splitlines() if line]
    )


def hardware_counters(running: Fabric, host: str) -> dict[str, int]:
    """Return the RDMA device's own counters: what the NIC did without asking us."""
    lines = run_in(running, host, "sh", "-c", "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *")
    return {name: int(value) for name, _, value in (line.partition(":") for line in lines.split())}


def total_of(counters: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sum of counters, by name."""
    total: Counter[str] = Counter()
    for one in counters:
        total.update(one)
    return total


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """A directory for captures."""
    directory = tmp_path / "captures"
    directory.mkdir()
    return directory
