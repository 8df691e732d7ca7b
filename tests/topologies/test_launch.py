"""Commands on somebody's terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

# Its terminal is fd 0: the same call in the foreground, then in the background, as a shell does it.
_PROGRAM = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from tests.topologies.states import cluster_state, myself
from topologies import launch
from topologies.machines import access
from topologies.state import HostKind

def command(cluster, host, words, *, env, directory, terminal):
    reads = "import os; print(os.isatty(0), len(os.read(0, 1)) if not os.isatty(0) else None, flush=True)"
    print("terminal" if terminal else "none", end=" ", flush=True)
    return [sys.executable, "-c", reads]

access.command = command
cluster = cluster_state("c1")
cluster.directory.mkdir(exist_ok=True)
host = replace(cluster.hosts[0], kind=HostKind.ROCE, machine=myself())
assert launch.call(cluster, host, ["true"]) == 0
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    os._exit(launch.call(cluster, host, ["true"]))
_, status = os.waitpid(child, os.WUNTRACED)
if os.WIFSTOPPED(status):
    os.kill(child, signal.SIGKILL)
    print("stopped by", signal.Signals(os.WSTOPSIG(status)).name, flush=True)
"""


def on_a_terminal(program: str, directory: Path) -> str:
    """Return what a program prints on a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "P4REDUCE_STATE_DIR": str(directory)}
        os.execve(sys.executable, [sys.executable, "-c", program], environment)
    said = b""
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the last one has let go of it
            break
        said += more
    os.close(terminal)
    os.waitpid(pid, 0)
    return said.decode().replace("\r", "")


def test_a_terminal_in_the_foreground_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it: in the background, setting up the terminal or reading from it would stop ssh."""
    monkeypatch.chdir(Path(__file__).parents[2])
    assert on_a_terminal(_PROGRAM, tmp_path) == "terminal True None\nnone False 0\n"


def test_no_terminal(tmp_path: Path) -> None:
    """Check that input from a pipe is the command's."""
    program = _PROGRAM.partition("child =")[0]
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="x",
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "P4REDUCE_STATE_DIR": str(tmp_path)},
        start_new_session=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("none False 1\n", "")
