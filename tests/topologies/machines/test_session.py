"""The program that holds a command and its ssh session together, without a machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from topologies.machines import access, image
from topologies.processes import ProcessId, wait_until


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled."""
    program = tmp_path_factory.mktemp("session") / "session"
    source = image.FILES / "session.c"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return program


def run(session: Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [session, *words], input=text, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["/no/such/command"], 127),
        (["/"], 126),
    ],
)
def test_exit_codes(session: Path, command: list[str], code: int) -> None:
    assert run(session, "/", "--", *command).returncode == code


def test_directory_environment_and_input(session: Path, tmp_path: Path) -> None:
    script = 'pwd; echo "$A-$B"; cat'
    done = run(session, str(tmp_path), "A=1", "B=x y", "--", "sh", "-c", script, text="in\n")
    assert done.stdout == f"{tmp_path}\n1-x y\nin\n"
    assert run(session, "/no/such/directory", "--", "pwd").stdout == "/\n"


def test_what_the_shell_is_told(session: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(access, "SESSION", str(session))
    monkeypatch.setattr(access, "HOST_FILES", "")
    told = access.remote_command(
        ["printf", "%s|", "a b", "$HOME", "it's"], env={"X": "1"}, directory=tmp_path
    )
    done = subprocess.run(["sh", "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "a b|$HOME|it's|"


@pytest.fixture
def unread(session: Path) -> Iterator[tuple[subprocess.Popen[bytes], ProcessId]]:
    """A session whose command has a child, and that child; nobody will read the session's output."""
    script = "sleep 1000 & echo $!; wait"
    process = subprocess.Popen(
        [session, "/", "--", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    child = ProcessId.of(int(process.stdout.readline()))
    yield process, child
    process.kill()
    process.wait()
    child.signal(signal.SIGKILL)
    process.stdout.close()
    process.stderr.close()


def test_a_command_dies_with_its_session(unread: tuple[subprocess.Popen[bytes], ProcessId]) -> None:
    process, child = unread
    assert child.alive()
    assert os.getpgid(child.pid) != os.getpgid(0)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 128 + signal.SIGKILL
    assert wait_until(lambda: not child.alive(), timeout_s=30)
