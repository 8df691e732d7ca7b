"""Gathering facts of what is not there: nothing fails, what is missing is a fact, and it takes no time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from controller.api.errors import TimedOutError, UnreachableError
from host_agent.metrics import WHOSE
from p4reduce.doctor import counting, machine, probing
from p4reduce.doctor.diagnosis import diagnose
from p4reduce.doctor.facts import Echo, Ends, ProcessState
from p4reduce.doctor.observations import gather
from p4reduce.live import reading
from p4reduce.live.reading import Line
from tests.p4reduce.doctor import made
from tests.topologies.states import GONE
from topologies import disk
from topologies.processes import ProcessId, wait_until
from topologies.state import ClusterState

LONG_S = 20.0


class Admin:
    """A controller that answers with what it is given, or with an error."""

    def __init__(self, error: Exception | None = None, **answers: Any) -> None:
        self._error = error
        self._answers = answers
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        def ask() -> Any:
            if self._error is not None:
                raise self._error
            return self._answers.get(name, [])

        return ask

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    """Return a cluster of which nothing runs but its owner; its files are in `tmp_path`."""
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    (tmp_path / "c1" / "metrics").mkdir(parents=True)
    disk.directory(tmp_path / "c1").mkdir()
    return made.cluster()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that does nothing, and has been loaded: it waits for no disk any more."""
    code = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def no_interfaces(_: ClusterState) -> dict[str, Any]:
    return {}


def test_nothing_answers_and_that_is_said(cluster: ClusterState) -> None:
    (cluster.directory / "controller.log").write_text("a\nTraceback:\n  File x\nMemoryError: no\n")
    admin = Admin(UnreachableError("nobody there"))
    started = time.monotonic()
    found = gather(cluster, interval_s=0.01, admin=lambda target: admin, interfaces=no_interfaces)
    assert time.monotonic() - started < LONG_S
    assert admin.is_closed
    assert found.now.jobs.why == "nobody there"
    assert found.last_words["controller"] == "a / Traceback: / MemoryError: no"
    diagnosis = diagnose(found)
    assert {"controller-dead", "switch-dead"} <= set(diagnosis.codes)
    assert not diagnosis.is_healthy


def test_the_disk_of_a_controller_that_does_not_answer(cluster: ClusterState) -> None:
    """Check that the disk of its database is looked at; that of the cluster's other files has room."""
    database = disk.database(cluster.directory)
    database.touch()
    admin = Admin(UnreachableError("nobody there"))
    found = gather(cluster, interval_s=0.01, admin=lambda target: admin, interfaces=no_interfaces)
    assert found.disk is not None
    assert found.disk.path == str(database)


def test_a_controller_that_is_late(cluster: ClusterState) -> None:
    found = gather(
        cluster,
        interval_s=0.01,
        admin=lambda target: Admin(TimedOutError("deadline exceeded")),
        interfaces=no_interfaces,
    )
    assert found.now.jobs.is_late


def test_what_the_controller_says(cluster: ClusterState) -> None:
    admin = Admin(list_jobs=[made.job()], status=made.status(), plan=pb.PlanReport(), slots=[made.slot([2])])
    found = gather(cluster, interval_s=0.01, admin=lambda target: admin, interfaces=no_interfaces)
    assert found.now.jobs.value is not None
    assert [job.spec.name for job in found.now.jobs.value] == ["train"]
    assert found.slots.value is not None
    assert list(found.slots.value[0].missing) == [2]
    assert found.disk is not None
    assert found.disk.free_bytes > 0


@pytest.mark.parametrize(("lost", "turns"), [(0, 1), (50, 2)])
def test_links_whose_ends_disagree_are_counted_again(
    cluster: ClusterState, monkeypatch: pytest.MonkeyPatch, lost: int, turns: int
) -> None:
    reads: list[int] = []

    def host_ends(_: ClusterState) -> dict[str, Ends]:
        reads.append(len(reads) // 2)  # the same before and after the switch
        return {"h2": Ends(up=100 * reads[-1], down=0)}

    class Ports(Admin):
        def ports(self) -> list[pb.Port]:
            port = pb.Port(switch="s1", port=2, host="h2")
            port.received.packets = (100 - lost) * (len(reads) // 2)
            return [port]

    monkeypatch.setattr(machine, "host_ends", host_ends)
    found = gather(
        cluster, interval_s=0.01, admin=lambda target: Ports(status=made.status()), interfaces=no_interfaces
    )
    assert len(found.samples) == turns
    assert counting.to_switch("h2", found.samples).lost == 10 * lost


def whose(directory: Path, process: ProcessId, **changes: Any) -> Path:
    """Write the file that a worker leaves beside its socket, and return its path."""
    path = directory / f"agent-{process.pid}-0{WHOSE}"
    said = {"job": "train", "rank": 1, "pid": process.pid, "started": process.started, "namespace": 0}
    path.write_text(json.dumps({**said, **changes}))
    return path


@pytest.mark.parametrize(
    ("answered", "down", "turns"),
    [
        pytest.param((8,), (), 1, id="answered"),
        pytest.param((0, 8), (), 2, id="late"),
        pytest.param((0, 0), (), 2, id="silent"),
        pytest.param((0,), ("h2:s1", "h4:s1"), 1, id="links-down"),
    ],
)
def test_pings_of_which_none_comes_back_are_sent_again(
    cluster: ClusterState,
    monkeypatch: pytest.MonkeyPatch,
    answered: tuple[int, ...],
    down: tuple[str, ...],
    turns: int,
) -> None:
    waited: list[float] = []
    observations: list[int] = []

    def probe(
        cluster: ClusterState, *, patience_s: float = probing.PATIENCE_S
    ) -> tuple[dict[tuple[str, str], Echo], dict[str, str]]:
        waited.append(patience_s)
        echo = Echo(sent=8, received=answered[len(waited) - 1])
        return {("h1", "h2"): echo, ("h3", "h4"): echo}, {}

    def lines(*_: Any) -> dict[str, Line]:
        observations.append(len(waited))
        return made.lines(*down)

    monkeypatch.setattr(probing, "probe", probe)
    monkeypatch.setattr(reading, "lines", lines)
    monkeypatch.setattr(machine, "processes", lambda cluster: made.processes())
    admin = Admin(status=made.status(), plan=pb.PlanReport())
    found = gather(cluster, interval_s=0.01, admin=lambda target: admin, interfaces=no_interfaces)
    assert waited == [probing.PATIENCE_S, probing.LONG_PATIENCE_S][:turns]
    assert found.echo_turns == turns
    assert found.echoes["h1", "h2"].received == answered[-1]
    assert turns == 1 or observations[-1] == turns, "whether a switch is away is looked at after the pings"
    assert ("fabric-silent" in diagnose(found).codes) == (answered == (0, 0))


@pytest.mark.slow
def test_workers_that_do_not_answer(cluster: ClusterState, sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    path = whose(cluster.metrics, process)
    with socket.socket(socket.AF_UNIX) as listener:  # that nobody serves
        listener.bind(str(path.with_suffix(".sock")))
        listener.listen()
        (silent,) = machine.workers(cluster)
    assert (silent.job, silent.rank, silent.status) == ("train", 1, None)
    assert silent.process.is_well
    assert "timed out" in silent.why
    sleeper.send_signal(19)  # SIGSTOP
    assert wait_until(process.paused, timeout_s=LONG_S)
    (stopped,) = machine.workers(cluster)
    assert stopped.process.state is ProcessState.STOPPED
    sleeper.kill()
    sleeper.wait()
    (gone,) = machine.workers(cluster)
    assert gone.process.state is ProcessState.GONE


def test_a_pid_that_is_somebody_elses_now(cluster: ClusterState) -> None:
    whose(cluster.metrics, ProcessId(os.getpid(), 1))
    (worker,) = machine.workers(cluster)
    assert worker.process.state is ProcessState.GONE
    assert machine.process(GONE).state is ProcessState.GONE


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"job": 1}', '{"pid": "x"}', "null"])
def test_files_that_are_something_else_are_passed_over(cluster: ClusterState, text: str) -> None:
    (cluster.metrics / f"agent-1-0{WHOSE}").write_text(text)
    assert machine.workers(cluster) == []


def test_what_a_switchs_port_has_lost() -> None:
    text = (
        "# TYPE p4reduce_switch_port_lost_packets_total counter\n"
        'p4reduce_switch_port_lost_packets_total{port="3",direction="receive",reason="ring_full"} 7\n'
        "# TYPE p4reduce_switch_port_up gauge\n"
        'p4reduce_switch_port_up{port="3"} 0\n'
    )
    assert machine._losses(text) == {3: {"receive.ring_full": 7}}
