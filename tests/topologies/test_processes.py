"""Processes by pid and start time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from topologies.processes import ProcessId, session, terminate, wait_until

_STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); sys.stdin.read()"
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that waits for the end of its input and takes no SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STUBBORN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


_SESSION = "from topologies.processes import session; print(session())"


def test_a_session_is_its_leader() -> None:
    """Check a detached process, whose session is its caller's, and a shell with a session of its own."""
    here = subprocess.run(
        [sys.executable, "-c", _SESSION],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
    )
    assert here.stdout == f"{session()}\n"
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1"; exit 0', sys.executable, _SESSION],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert f"pid={shell.pid}," in shell.communicate()[0]


def test_a_running_process(child: subprocess.Popen[str]) -> None:
    assert ProcessId.of(child.pid).alive()


def test_another_process_with_the_same_pid(child: subprocess.Popen[str]) -> None:
    found = ProcessId.of(child.pid)
    other = replace(found, started=found.started - 1)
    assert not other.alive()
    terminate([other])
    assert found.alive()  # it was not touched


def test_a_zombie_is_not_alive(child: subprocess.Popen[str]) -> None:
    found = ProcessId.of(child.pid)
    child.kill()
    assert wait_until(lambda: not found.alive(), timeout_s=10)
    assert child.returncode is None  # nobody has waited for it yet


def test_no_such_process(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    with pytest.raises(ProcessLookupError, match=f"no process {child.pid}"):
        ProcessId.of(child.pid)


def test_terminate_kills_what_does_not_listen(child: subprocess.Popen[str]) -> None:
    terminate([ProcessId.of(child.pid)], grace_s=0.05)
    assert child.wait() == -9


def test_wait_until_gives_up() -> None:
    assert not wait_until(lambda: False, timeout_s=0.0)
