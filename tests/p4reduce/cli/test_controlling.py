"""Commands tell a controller that is stopped from one that is dead, at once, and say what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from controller.api.errors import UnreachableError
from p4reduce.cli.controlling import ClusterAdmin
from p4reduce.doctor import machine
from p4reduce.doctor.facts import ProcessState
from tests.topologies.states import cluster_state
from topologies.processes import ProcessId


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that the cluster takes for its controller; nobody listens at its socket."""
    with subprocess.Popen(["sleep", "600"]) as sleeping:
        yield sleeping
        sleeping.kill()


def why(known: ProcessId) -> str:
    admin = ClusterAdmin(cluster_state("c1", controller_process=known), timeout_s=20.0)
    with admin, pytest.raises(UnreachableError) as told:
        admin.list_jobs()
    return str(told.value)


def test_a_stopped_controller_is_told_from_a_dead_one(process: subprocess.Popen[bytes]) -> None:
    known = ProcessId.of(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    while machine.process(known).state is not ProcessState.STOPPED:
        time.sleep(0.01)
    stopped = why(known)
    assert (
        f"the controller (process {process.pid}) is stopped (SIGSTOP): sums in the network go on" in stopped
    )
    assert stopped.endswith(f"; kill -CONT {process.pid}")
    process.kill()
    process.wait()
    dead = why(known)
    assert "the controller is dead: sums in the network go on" in dead
    assert "start it again: p4reduce fault controller restart" in dead


def test_one_that_runs_and_is_not_there_is_neither(process: subprocess.Popen[bytes]) -> None:
    said = why(ProcessId.of(process.pid))
    assert "is stopped" not in said
    assert "the controller is dead" not in said
    assert "/nowhere/c1.sock" in said
