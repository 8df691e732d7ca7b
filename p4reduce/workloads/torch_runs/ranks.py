"""The processes of a run: started, heard, ended. One that fails ends the others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from p4reduce.workloads.placement import labels_of
from p4reduce.workloads.torch_runs.interpreter import Interpreter, Wanted
from p4reduce.workloads.torch_runs.script import Script
from topologies import launch
from topologies.processes import Child
from topologies.state import ClusterState, HostState

LOOK_S: Final = 0.2
_DYING_S: Final = 10.0  # Python prints a traceback, ends its threads, and only then the process
_GRACE_S: Final = 3.0  # from SIGTERM to SIGKILL
_CHUNK: Final = 1 << 16
_KEPT_LINES: Final = 60
_LAST_LINES: Final = 10
_OURS: Final = re.compile(r"^(?:\[rank\d+\]: )?host_agent\.errors\.\w+: (.+)$")  # an error's sentence
_TRACEBACK: Final = "Traceback (most recent call last)"  # behind "[rank1]: " where PyTorch prints it


@dataclass(frozen=True)
class Line:
    """A line that a rank printed, without its end."""

    rank: int
    host: str
    text: str
    is_error: bool  # of its standard error


@dataclass(frozen=True)
class Failure:
    """The rank that failed first. `code` is negative where a signal ended it; `words`: its last on stderr."""

    rank: int
    host: str
    code: int
    words: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """Exit code as a shell has it: 128 and the signal's number where a signal ended the rank."""
        return 128 - self.code if self.code < 0 else self.code

    def __str__(self) -> str:
        if self.code < 0:
            how = f"was ended by {_signal_name(-self.code)}"
            if self.code == -signal.SIGKILL:
                how += " (the machine may have run out of memory)"
        else:
            how = f"failed with exit code {self.code}"
        said = "".join(f"\n  {line}" for line in self.words) or " it said nothing on its standard error"
        ours = [found[1] for line in self.words if (found := _OURS.search(line))]
        sentence = f" {ours[-1]}" if ours else ""
        return f"{self.host} (rank {self.rank}) {how}:{sentence}{said}"


OnLine = Callable[[Line], None]


@dataclass
class _Rank:
    """A process. `raised_at`: when it began to print the last traceback; `ended_at`: when it ended."""

    number: int
    host: str
    process: Child
    pidfd: int
    code: int | None = None
    raised_at: float | None = None
    ended_at: float | None = None
    words: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))

    @property
    def failed_at(self) -> float:
        """Time of its traceback's start, or else of its end: ranks that fail because of it may end sooner."""
        ended = time.monotonic() if self.ended_at is None else self.ended_at
        raised = self.raised_at
        return ended if raised is None or raised < ended - _DYING_S else raised

    @property
    def is_raising(self) -> bool:
        """True if it is about to end with a traceback."""
        return self.code is None and self.raised_at is not None and self.failed_at == self.raised_at

    def failure(self) -> Failure:
        """Return how it failed, with its last traceback, or else the last lines."""
        lines = list(self.words)
        begins = [place for place, line in enumerate(lines) if _TRACEBACK in line]
        kept = lines[begins[-1] :] if begins else lines[-_LAST_LINES:]
        return Failure(self.number, self.host, self.code or 0, tuple(kept))


class Ranks:
    """A process of `script` in each of `hosts`: rank r in the r-th. A context manager, which ends them."""

    def __init__(
        self,
        cluster: ClusterState,
        hosts: Sequence[HostState],
        script: Script,
        environments: Sequence[Mapping[str, str]],
        *,
        on_line: OnLine,
        interpreter: Interpreter | None = None,
    ) -> None:
        self._interpreter = interpreter
        self._cluster, self._hosts, self._script = cluster, hosts, script
        self._environments = environments
        self._on_line = on_line
        self._ranks: list[_Rank] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Ranks:
        try:
            labels = labels_of(self._cluster, self._hosts)
            for number, (process, label) in enumerate(zip(self._processes(), labels, strict=True)):
                self._add(number, process, label)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> int:
        """Number of ranks that have not ended."""
        return sum(rank.code is None for rank in self._ranks)

    def wait(self, on_look: Callable[[], None]) -> Failure | None:
        """Wait until all have ended well, or one has failed; return the failure. Call `on_look` repeatedly.

        A rank that prints a traceback meanwhile gets the time to end: it may have made the others fail.
        """
        failed: list[_Rank] = []
        while self.running and not (failed and not any(rank.is_raising for rank in self._ranks)):
            self._hear(LOOK_S)
            on_look()
            failed = [rank for rank in self._ranks if rank.code]
        return min(failed, key=lambda rank: rank.failed_at).failure() if failed else None

    def close(self) -> None:
        """End the ranks that still run, and the processes that ranks have started; idempotent."""
        try:
            self._stop()
        finally:
            self._signal(signal.SIGKILL)
            launch.stop(self._cluster, [rank.process for rank in self._ranks])
            for rank in self._ranks:
                if rank.pidfd >= 0:
                    os.close(rank.pidfd)
                    rank.pidfd = -1
            self._selector.close()

    def _processes(self) -> Iterable[Child]:
        """Start all ranks, forked from the interpreter that has PyTorch where there is one that can be."""
        pairs = list(zip(self._hosts, self._environments, strict=True))
        wanted = [Wanted(host, told) for host, told in pairs]
        forked = None if self._interpreter is None else self._interpreter.fork(self._cluster, wanted)
        return (self._start(host, told) for host, told in pairs) if forked is None else forked

    def _start(self, host: HostState, told: Mapping[str, str]) -> Child:
        return launch.start(
            self._cluster,
            host,
            self._script.command,
            env=told,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            directory=self._script.directory,
        )

    def _add(self, number: int, process: Child, label: str) -> None:
        rank = _Rank(number, label, process, os.pidfd_open(process.pid))
        self._ranks.append(rank)
        for pipe, is_error in ((process.stdout, False), (process.stderr, True)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                heard = _Pipe(pipe.fileno(), partial(self._say, rank, is_error=is_error))
                self._selector.register(pipe.fileno(), selectors.EVENT_READ, (rank, heard))
        self._selector.register(rank.pidfd, selectors.EVENT_READ, (rank, None))

    def _say(self, rank: _Rank, text: str, *, is_error: bool) -> None:
        if is_error:
            rank.words.append(text)
            if _TRACEBACK in text:
                rank.raised_at = time.monotonic()
        self._on_line(Line(rank.number, rank.host, text, is_error))

    def _hear(self, timeout_s: float) -> None:
        """Read what was printed, and then which ranks have ended."""
        ready = [key.data for key, _ in self._selector.select(timeout_s)]
        for _, pipe in ready:
            if pipe is not None and not pipe.read():
                self._selector.unregister(pipe.descriptor)
        for rank, pipe in ready:
            if pipe is None:
                self._end(rank)

    def _end(self, rank: _Rank) -> None:
        self._selector.unregister(rank.pidfd)
        rank.code = _code_of(rank.process.pid)
        rank.ended_at = time.monotonic()
        for pipe in self._pipes_of(rank):  # what it has left there; children of its may hold them open
            pipe.drain()
            self._selector.unregister(pipe.descriptor)

    def _pipes_of(self, rank: _Rank) -> Iterator[Any]:
        for key in list(self._selector.get_map().values()):
            owner, pipe = key.data
            if owner is rank and pipe is not None:
                yield pipe

    def _stop(self) -> None:
        """Send SIGTERM to ranks that still run; for some seconds, hear what they print until they end."""
        if not self.running:
            return
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while self.running and (left := deadline - time.monotonic()) > 0:
            self._hear(left)

    def _signal(self, number: signal.Signals) -> None:
        """Signal all processes of ranks that nobody has waited for: their process groups are still theirs."""
        for rank in self._ranks:
            if rank.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.process.pid, number)


class _Pipe:
    """A pipe's lines. Of parts that carriage returns overwrite (progress bars), only the last is left."""

    def __init__(self, descriptor: int, on_line: Callable[[str], None]) -> None:
        self.descriptor = descriptor
        self._on_line = on_line
        self._held = b""

    def read(self) -> bool:
        """Take some of what is there; False where nothing is, now or for good."""
        try:
            more = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        *lines, self._held = (self._held + more).split(b"\n")
        for line in lines:
            self._tell(line)
        if not more or len(self._held) > _CHUNK:
            self._tell_rest()
        return bool(more)

    def drain(self) -> None:
        """Take all that is there now; somebody may go on to write."""
        for _ in range(fcntl.fcntl(self.descriptor, fcntl.F_GETPIPE_SZ) // _CHUNK + 1):
            if not self.read():
                break
        self._tell_rest()

    def _tell_rest(self) -> None:
        """Pass the rest on as a line, although it has no line's end."""
        if self._held:
            held, self._held = self._held, b""
            self._tell(held)

    def _tell(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._on_line(text.rpartition("\r")[2])


def _code_of(pid: int) -> int:
    """Return the exit code of a child that has ended, as Popen has it; it can still be waited for."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is None:
        raise ProcessLookupError(f"process {pid} has not ended")
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
