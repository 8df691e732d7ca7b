"""Processes by pid and start time: a pid that the kernel gave away again is never mistaken."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

_STARTTIME = 22 - 3  # field 22 of /proc/PID/stat (proc(5)), counted from the one behind the command
_STATE = 0
_PARENT = 4 - 3
_THREADS = 20 - 3
_POLL_S = 0.02


@dataclass(frozen=True)
class ProcessId:
    """A process for good: `started` is in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the running process `pid`. Raise ProcessLookupError if there is none."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, int(fields[_STARTTIME]))

    def alive(self) -> bool:
        """Tell whether it still runs (a zombie does not, once its threads have ended too)."""
        fields = _stat(self.pid)
        if fields is None or int(fields[_STARTTIME]) != self.started:
            return False
        return fields[_STATE] not in "ZX" or int(fields[_THREADS]) > 1

    def paused(self) -> bool:
        """Tell whether it was stopped by a signal and not continued."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[_STARTTIME]) == self.started and fields[_STATE] in "Tt"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it ended by itself meanwhile


def session() -> ProcessId:
    """Return the leader of the session that this process was called from: of a terminal, its shell.

    Skip a session that this process has to itself (`setsid`), and one that sudo opened for it.
    """
    leader = os.getsid(0)
    while leader == os.getpid() or _is_sudo(leader):
        fields = _stat(leader)
        parent = 0 if fields is None else int(fields[_PARENT])
        leader = os.getsid(parent) if parent > 0 else 0
    try:
        return ProcessId.of(leader)
    except ProcessLookupError:  # it has ended, or is none of this container's
        return ProcessId(leader, 0)


def terminate(processes: Iterable[ProcessId], *, grace_s: float = 3.0) -> None:
    """End processes: SIGTERM, and SIGKILL for those still there after `grace_s`."""
    wanted = [process for process in processes if process.pid != os.getpid()]
    for process in wanted:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # one that was paused hears it now
    if not wait_until(lambda: not any(p.alive() for p in wanted), timeout_s=grace_s):
        for process in wanted:
            process.signal(signal.SIGKILL)
        wait_until(lambda: not any(p.alive() for p in wanted), timeout_s=grace_s)


class Child(Protocol):
    """Part of a Popen that ending one takes."""

    pid: int
    returncode: Any
    stdin: IO[Any] | None
    stdout: IO[Any] | None
    stderr: IO[Any] | None

    def poll(self) -> int | None:
        """Return its exit code, if it has ended."""

    def wait(self) -> int:
        """Wait for its exit code."""


def end(children: Iterable[Child]) -> None:
    """`terminate` processes that we started, take their exit codes, and close their pipes; idempotent."""
    children = list(children)
    running = []
    for child in children:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                running.append(ProcessId.of(child.pid))
    terminate(running)
    for child in children:
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def wait_until(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    """Wait until `condition` is true, at most `timeout_s`; tell whether it came true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _is_sudo(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sudo\n"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()
