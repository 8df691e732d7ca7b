"""An interpreter that imports PyTorch while the fabric comes up, and from which a run's ranks are forked.

Its other side is `forking`. A rank is as `launch.start` would have started it, but need not import PyTorch.
Where a script could notice the difference, its ranks start anew.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from p4reduce.workloads.torch_runs.forking import GO, LINE, MESSAGE, READY, START, STARTED
from p4reduce.workloads.torch_runs.script import MODULE, Script
from topologies import launch
from topologies.processes import Child
from topologies.state import ClusterState, HostState

ANEW: Final = "P4REDUCE_TORCH_ANEW"  # "1": no rank is forked
_CUSTOMISED: Final = """\
import os

try:
    from p4reduce.workloads.torch_runs.forking import serve
except BaseException:
    os._exit(1)
if not serve(os.path.dirname(__file__)):
    raise ImportError(name="sitecustomize")  # as where there is none
"""
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_BEFORE_PYTORCH: Final = sys.stdlib_module_names | {"numpy"}  # what PyTorch itself imports as well
# What trainings import late, and what their scripts say: optimizers ask Dynamo not to trace into their steps.
_DYNAMO: Final = "torch._dynamo"
_USE_DYNAMO: Final = ("optim", "DistributedDataParallel")
_CHANGES: Final = ("update", "setdefault", "pop", "popitem", "clear")


@dataclass
class Forked:
    """A forked rank. It becomes a child of ours when the process that has forked it ends."""

    pid: int
    stdout: IO[Any] | None
    stderr: IO[Any] | None
    stdin: IO[Any] | None = None
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, as Popen has it, if it has ended."""
        return self._ended(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its exit code."""
        code = self._ended(0)
        assert code is not None
        return code

    def _ended(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


@dataclass(frozen=True)
class Wanted:
    """A rank to be: its host, and its variables besides those of the host's environment."""

    host: HostState
    told: Mapping[str, str]


class Interpreter:
    """A context manager. It begins to import at once; runs may fork their ranks from it one after the other.

    `warms`: import PyTorch even where no rank can be forked, so that the first of several runs finds its
    files in memory as the others do, and need not read them from the disk.
    """

    def __init__(self, script: Script, variables: Mapping[str, str], *, warms: bool = False) -> None:
        self._script, self._variables, self._warms = script, variables, warms
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._is_ready = False

    def __enter__(self) -> Interpreter:
        modules = needs(self._script)
        if modules is not None and os.environ.get(ANEW) != "1":
            self._start(modules)
        elif self._warms:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"import {_DYNAMO}"],
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; ranks go on. Idempotent."""
        self._line = None
        with self._stack:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None

    def fork(self, cluster: ClusterState, wanted: Sequence[Wanted]) -> list[Child] | None:
        """Start ranks, with pipes at their stdout and stderr; None where they have to be started anew."""
        if not self.ready():
            return None
        with contextlib.ExitStack() as ours:
            pipes = [[_pipe(ours) for _ in range(2)] for _ in wanted]
            gate_out, gate_in = _pipe(ours)
            pids = self._ask(cluster, wanted, [[into for _, into in pair] + [gate_out] for pair in pipes])
            if pids is None:
                return None
            for pid in pids:
                launch.remember(cluster, pid)
            os.write(gate_in, GO * len(pids))
            opened = [[os.fdopen(os.dup(out)) for out, _ in pair] for pair in pipes]
            return [Forked(pid, out, err) for pid, (out, err) in zip(pids, opened, strict=True)]

    def _start(self, modules: Sequence[str]) -> None:
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-"))
        (Path(directory) / "sitecustomize.py").write_text(_CUSTOMISED)
        printed = self._stack.enter_context((Path(directory) / "printed").open("wb"))
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.enter_context(self._line)
        self._directory = Path(directory)
        path = filter(None, [directory, os.environ.get("PYTHONPATH")])
        with theirs:
            self._process = subprocess.Popen(
                self._script.command,
                env={
                    **os.environ,
                    **self._variables,
                    "PYTHONPATH": os.pathsep.join(path),
                    LINE: ",".join([str(theirs.fileno()), *modules]),
                },
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                cwd=self._script.directory,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )

    @property
    def imports(self) -> bool:
        """True while `ready` would wait for an import."""
        return self._process is not None and not self._is_ready

    def ready(self) -> bool:
        """Wait until it has imported all; return False where it cannot be forked, and ranks start anew.

        However long it takes on a busy machine, each rank by itself would take longer.
        """
        if self._line is not None and not self._is_ready:
            with contextlib.suppress(OSError):
                self._is_ready = self._line.recv(MESSAGE) == READY
            if not self._is_ready:
                self.close()
        elif self._line is None and self._process is not None:
            self._process.wait()
        return self._line is not None

    def _ask(
        self, cluster: ClusterState, wanted: Sequence[Wanted], descriptors: Sequence[Sequence[int]]
    ) -> list[int] | None:
        """Have ranks forked that wait at their gates; return the pids of these children, None on failure."""
        line, pids, said = self._line, None, b""
        assert line is not None
        with _adopting(), contextlib.suppress(OSError):
            for number, (one, given) in enumerate(zip(wanted, descriptors, strict=True)):
                told = self._directory / f"{number}.json"
                namespace = launch.namespace(one.host)
                variables = launch.environment(cluster, one.host, one.told)
                told.write_text(json.dumps({"namespace": str(namespace), "variables": variables}))
                socket.send_fds(line, [os.fsencode(told)], given)
            line.send(START)
            while (said := line.recv(MESSAGE)) not in (STARTED, b""):
                pids = json.loads(said)
        if said != STARTED or pids is None:  # none begins, as nobody says so
            self.close()
            return None
        return list(pids)


def needs(script: Script) -> list[str] | None:
    """List the modules that `script` will import; None where it could notice that they were there before.

    It cannot where its first statements are imports of Python's own modules and then of PyTorch, and where
    it changes no environment variables, which PyTorch reads when it is imported.
    """
    if script.words[0] == MODULE or not script.words[0].endswith(".py"):
        return None
    try:
        source = (script.directory / script.words[0]).read_bytes()
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return None
    if not _begins_with_pytorch(tree) or any(_changes_variables(node) for node in ast.walk(tree)):
        return None
    return ["torch", *([_DYNAMO] if any(word.encode() in source for word in _USE_DYNAMO) else [])]


def _begins_with_pytorch(tree: ast.Module) -> bool:
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        for name in _imported(statement):
            if name.partition(".")[0] == "torch":
                return True
            if name.partition(".")[0] not in _BEFORE_PYTORCH:
                return False
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            return False
    return False


def _imported(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [statement.module or ""]
    return []


def _changes_variables(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_environ(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr == "putenv" or (node.attr in _CHANGES and _is_environ(node.value))
    return isinstance(node, ast.Name) and node.id == "putenv"


def _is_environ(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of grandchildren whose parent ends meanwhile."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    made = os.pipe()
    for descriptor in made:
        stack.callback(os.close, descriptor)
    return made
