"""Processes in the hosts of a running cluster, started from anywhere on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

from controller.telemetry.address import VARIABLE as METRICS_VARIABLE
from topologies.errors import CommandError, TopologyError
from topologies.machines import access
from topologies.processes import Child, ProcessId, end
from topologies.state import ClusterState, HostKind, HostState

_LOOK_S: Final = 1.0
_SSH_FAILED: Final = 255
# One thread a worker: a rack shares the machine's cores, and sums must not depend on their number.
_SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def namespace(host: HostState) -> Path:
    """Return the network namespace of `host`, which is there."""
    if not host.process.alive():
        raise TopologyError(f"host {host.name} is gone: take the cluster down ('p4reduce down') and up again")
    return Path(f"/proc/{host.process.pid}/ns/net")


def namespace_command(host: HostState) -> list[str]:
    """Return the command line that runs what follows in the network namespace of `host`."""
    return ["nsenter", f"--net={namespace(host)}", "--"]


def python(host: HostState) -> str:
    """Return the Python in `host` that has this project's packages."""
    return access.PYTHON if host.kind is HostKind.ROCE else sys.executable


def call(cluster: ClusterState, host: HostState, command: Sequence[str]) -> int:
    """Run `command` in `host`, on our own terminal and in our directory. Return its exit code.

    In hosts of every kind `python3` has this project's packages. Raise CommandError if the command cannot be
    run, TopologyError if a machine ends before the command.
    """
    if host.kind is not HostKind.ROCE:
        path = programs()
        told = {METRICS_VARIABLE: str(cluster.metrics), **cluster.environment_of(host)}
        env = {**told, **os.environ, "PATH": path}
        _require_command(command[0], path)
        return subprocess.call([*namespace_command(host), *command], env=env)
    foreground = _foreground()
    terminal = foreground is True and sys.stdout.isatty()
    words = access.command(
        cluster,
        host,
        command,
        env=_machine_environment(cluster, host),
        directory=_directory(),
        terminal=terminal,
    )
    stdin = subprocess.DEVNULL if foreground is False else None  # else ssh reads it, and is stopped
    with subprocess.Popen(words, cwd=cluster.directory, stdin=stdin) as client:
        try:
            return _wait(client, host)
        except BaseException:
            client.kill()
            raise


def programs() -> str:
    """Return the PATH of what runs in a host: our Python's programs, as torchrun is one, come first."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


def _require_command(name: str, path: str) -> None:
    """Raise CommandError if there is no such command; nsenter would only report itself."""
    if shutil.which(name, path=path) is not None:
        return
    if "/" in name and Path(name).exists():
        raise CommandError(f"{name} cannot be run: it is no program, or not executable", exit_code=126)
    where = "file" if "/" in name else "command"
    raise CommandError(
        f"there is no {where} {name!r}: hosts have the programs of this machine", exit_code=127
    )


def _machine_environment(cluster: ClusterState, host: HostState) -> dict[str, str]:
    """Return a cluster's environment for a machine, which sees our files at another path."""
    return {name: f"{access.HOST_FILES}{path}" for name, path in cluster.environment_of(host).items()}


def _wait(client: subprocess.Popen[bytes], host: HostState) -> int:
    """Return the exit code of an ssh client, which itself would notice a machine's end only after a minute.

    Raise TopologyError if the machine has ended.
    """
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = client.wait(timeout=_LOOK_S)
            if code != _SSH_FAILED:
                return code
        if host.machine is None or not host.machine.alive():
            raise TopologyError(f"the machine of host {host.name} has ended, and the command with it")
        if client.returncode is not None:
            return client.returncode


def _directory() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return None


def _foreground() -> bool | None:
    """Tell whether our standard input is our terminal and listens to us; None if it is no terminal."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return None


def start(
    cluster: ClusterState,
    host: HostState,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    directory: Path | None = None,
) -> subprocess.Popen[str]:
    """Start `command` in `host`, with text pipes. 'p4reduce down' ends it with the cluster.

    It starts in `directory` (None: the cluster's, where nothing shadows a module), a leader of its own group.

    In a RoCE host the process is its ssh client: when that ends, for whatever reason, the command is killed.
    If a signal ended the command, its exit code is 128 + signal. It has `env`, not our environment.
    """
    if host.kind is HostKind.ROCE:
        told = _machine_environment(cluster, host)
        words = access.command(cluster, host, command, env={**_SINGLE_THREADED, **told, **(env or {})})
    else:
        words = [*namespace_command(host), *command]
    process = subprocess.Popen(
        words,
        env=environment(cluster, host, env or {}),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        cwd=directory or cluster.directory,  # `python -m` looks for modules where it starts
        start_new_session=True,
    )
    remember(cluster, process.pid)
    return process


def environment(cluster: ClusterState, host: HostState, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process in a host that is no machine: ours, the cluster's, and `env`."""
    return {
        METRICS_VARIABLE: str(cluster.metrics),
        **os.environ,
        **cluster.environment_of(host),
        **_SINGLE_THREADED,
        **env,
    }


def remember(cluster: ClusterState, pid: int) -> None:
    """Have 'p4reduce down' end a process with the cluster."""
    cluster.workers.mkdir(exist_ok=True)
    with contextlib.suppress(ProcessLookupError):  # it ended at once: nothing to remember
        (cluster.workers / f"{pid}.json").write_text(json.dumps(asdict(ProcessId.of(pid))))


def stop(cluster: ClusterState, processes: Sequence[Child]) -> None:
    """End the processes that still run, and forget all."""
    end(processes)
    for process in processes:
        (cluster.workers / f"{process.pid}.json").unlink(missing_ok=True)


def recorded(directory: Path) -> Iterator[ProcessId]:
    """Yield the processes that were started in hosts and not stopped."""
    if directory.is_dir():
        for path in directory.glob("*.json"):
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                yield ProcessId(**json.loads(path.read_text()))
