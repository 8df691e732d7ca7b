"""Ranks of a script that are forked from one interpreter, which has imported PyTorch once for all of them.

Python runs `sitecustomize` when it is ready but for the script; the one that `p4reduce torch` puts in its
path calls `serve`. That returns in each rank, and Python goes on to run the script as it would have: its
`__main__`, its path, its frames, its exit code and its signals are Python's own doing, not ours. No script
has run before the fork: the interpreter has one thread, and has only imported PyTorch.

Ranks are forked where a script cannot notice it; else `_objection` says why not, and ranks start anew. One
difference is left: hashes of strings, random on each rank otherwise, are equal on all (PYTHONHASHSEED).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from topologies import namespaces

LINE: Final = "P4REDUCE_TORCH_FORK"  # the socket's descriptor, and modules to import, with commas
READY: Final = b"ready"
START: Final = b"start"
STARTED: Final = b"started"
GO: Final = b"."
MESSAGE: Final = 1 << 16
_RECORDING: Final = "p4reduce.torch_recording"
_DESCRIPTORS: Final = 3  # stdout, stderr, and the gate


@dataclass(frozen=True)
class _Rank:
    """A rank to be. It begins when it reads a byte from `gate`, and ends where that is closed."""

    told: Path  # JSON: its namespace, its variables
    stdout: int
    stderr: int
    gate: int

    def close(self) -> None:
        for descriptor in (self.stdout, self.stderr, self.gate):
            os.close(descriptor)


def serve(path: str) -> bool:
    """Fork ranks as they are asked for, and return in each of them alone.

    `path`: the folder of our `sitecustomize`. Return True where there is another, which has been run.
    """
    try:
        descriptor, *modules = os.environ.pop(LINE).split(",")
        line = socket.socket(fileno=int(descriptor))
        _hide(path)
        before = dict(os.environ)
        customised = _customise()
        for module in modules:
            importlib.import_module(module)
        if _RECORDING in sys.modules:  # PyTorch has found our backend, which it will ask for
            importlib.import_module("p4reduce.torch.process_group")
        changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
        objection = _objection(sys.orig_argv)
        if before.keys() & changed.keys():
            objection = "a variable was changed, which may be another on each rank"
        line.send(objection.encode() or READY)
        if objection:
            os._exit(0)
        while True:
            ranks = _asked(line)
            between = os.fork()
            if between == 0:
                break
            _close(ranks)
            os.waitpid(between, 0)
            line.send(STARTED)
    except BaseException:  # noqa: BLE001 (the script is not ours to run: ranks start anew)
        os._exit(1)
    _be_one(line, ranks, changed)
    return customised


def _hide(path: str) -> None:
    """Remove our `sitecustomize` from what the script sees."""
    sys.path.remove(path)
    sys.path_importer_cache.pop(path, None)
    sys.modules.pop("sitecustomize")


def _customise() -> bool:
    """Run the `sitecustomize` that Python would have found, and say whether there is one."""
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return False
    return True


def _objection(words: Sequence[str]) -> str:
    """Say how a script could notice that its rank was forked; empty where it could not."""
    torch = sys.modules["torch"]
    if len(os.listdir("/proc/self/task")) > 1:
        return "there are threads, which forked processes would not have"
    if torch.version.cuda or torch.version.hip:
        return "PyTorch is one for GPUs, of which nobody has tried this"
    if os.fstat(1).st_size or os.fstat(2).st_size:
        return "something was printed, which each rank would have printed"
    if sys.gettrace() or sys.getprofile() or "coverage" in sys.modules:
        return "calls are traced"
    if importlib.util.find_spec("usercustomize") is not None:
        return "there is a usercustomize, which would have to come before PyTorch"
    script = next(word for word in words[1:] if not word.startswith("-"))
    shadow = _shadow(Path(script).resolve().parent)
    return f"{shadow} beside the script has the name of a module that is imported" if shadow else ""


def _shadow(directory: Path) -> str:
    """Name an entry of the script's directory that would have been imported in place of another module."""
    known = {name.partition(".")[0] for name in sys.modules}
    for entry in sorted(os.listdir(directory)):
        name = entry.partition(".")[0]
        module = sys.modules.get(name)
        if name not in known or name == "__main__":
            continue
        if "." not in entry and not (directory / entry / "__init__.py").exists():
            continue  # a directory without one comes behind all others
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
        if not any(place.startswith(f"{directory}{os.sep}") for place in places):
            return entry
    return ""


def _asked(line: socket.socket) -> list[_Rank]:
    """Wait for the ranks that are wanted. EOFError where the other side is gone."""
    ranks: list[_Rank] = []
    while True:
        said, descriptors, _, _ = socket.recv_fds(line, MESSAGE, _DESCRIPTORS)
        if not said:
            raise EOFError
        if said == START:
            return ranks
        ranks.append(_Rank(Path(os.fsdecode(said)), *descriptors))


def _be_one(line: socket.socket, ranks: Sequence[_Rank], added: Mapping[str, str]) -> None:
    """Fork the ranks, send their process ids, and end; return in each rank alone.

    Ranks become children of the process that started the interpreter, as if it had started them itself.
    """
    try:
        rank = _fork(line, ranks)
        os.setsid()
        os.dup2(rank.stdout, 1)
        os.dup2(rank.stderr, 2)
        line.close()
        is_wanted = os.read(rank.gate, 1) == GO
        told = json.loads(rank.told.read_text()) if is_wanted else {}
        _close(ranks)
        if not is_wanted:
            os._exit(1)
        _take(told, added)
    except BaseException as error:  # noqa: BLE001 (the script must not run as another rank)
        with contextlib.suppress(OSError):
            os.write(2, f"p4reduce: a rank could not be started: {error}\n".encode())
        os._exit(1)


def _fork(line: socket.socket, ranks: Sequence[_Rank]) -> _Rank:
    """Return in each rank's process with what it is to be."""
    pids = []
    for rank in ranks:
        pid = os.fork()
        if pid == 0:
            return rank
        pids.append(pid)
    line.send(json.dumps(pids).encode())
    os._exit(0)


def _take(told: dict[str, Any], added: Mapping[str, str]) -> None:
    """Enter the rank's namespace, and give the process the rank's variables and random seeds of its own.

    `added`: variables that imported modules have set, as they would have here.
    """
    namespaces.enter(Path(told["namespace"]))
    os.environ.clear()
    os.environ.update({**added, **told["variables"]})
    # Python's own generator does this by itself.
    sys.modules["torch"].default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if _RECORDING in sys.modules:
        sys.modules[_RECORDING].begin(os.environ)  # rank 0's variables ask for it


def _close(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.close()
