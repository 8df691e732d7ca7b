"""Network namespaces: making and removing named ones, entering them, finding the processes in one."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from topologies.errors import TopologyError
from topologies.processes import ProcessId

NETNS_DIRECTORY: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000
_OWN: Final = Path("/proc/thread-self/ns/net")


def run(*command: str, stdin: str = "") -> str:
    """Run a command and return its output. Raise TopologyError with its complaint if it fails."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise TopologyError(f"{command[0]} is not installed: run 'make setup'") from error
    if done.returncode != 0:
        raise TopologyError(f"'{' '.join(command)}' failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def run_inside(pid: int, *command: str, stdin: str = "") -> str:
    """Run a command as `run`, in the network namespace of the process `pid`."""
    return run("nsenter", f"--net=/proc/{pid}/ns/net", "--", *command, stdin=stdin)


def create(name: str) -> None:
    """Make the namespace `name`, with its loopback up and without IPv6."""
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")


def delete(name: str) -> None:
    """Remove the namespace `name` if there is one."""
    if exists(name):
        run("ip", "netns", "delete", name)


def exists(name: str) -> bool:
    """Tell whether there is a namespace of that name."""
    return (NETNS_DIRECTORY / name).exists()


def enter(path: Path) -> None:
    """Move the calling thread, and what it starts from now on, into the namespace behind `path`.

    Python has os.setns only since 3.12.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise TopologyError(f"cannot enter the network namespace {path.name}: {reason} (are you root?)")


@contextmanager
def entered(path: Path) -> Iterator[Path]:
    """Put the calling thread in the namespace behind `path`, and back in its own (as given) afterwards."""
    with _OWN.open() as own:
        home = Path(f"/proc/self/fd/{own.fileno()}")
        enter(path)
        try:
            yield home
        finally:
            enter(home)


def inhabitants(namespace: Path) -> list[ProcessId]:
    """Return the processes in the namespace behind `namespace` (a named one, or /proc/PID/ns/net).

    Return none for our own namespace: the processes there are not the cluster's.
    """
    try:
        wanted = namespace.stat().st_ino
    except (FileNotFoundError, ProcessLookupError):
        return []
    if wanted == _OWN.stat().st_ino:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/net").stat().st_ino == wanted:
                    found.append(ProcessId.of(int(entry.name)))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended while we looked, or is somebody else's
    return found
