"""Starts the processes in a rack's hosts, and again where a check has ended them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.torch_suite.host import LIMIT_S, PROGRESS
from tests.torch_suite.results import Outcome, Result
from topologies import launch
from topologies.fabric import Fabric
from topologies.rack import RackOptions

HOSTS: Final = 4
_ROOT: Final = str(Path(__file__).parents[2])
_PORT: Final = 29500
_STACKS: Final = 6000  # characters of each process's last words


def missing() -> str:
    """Return why the suite cannot run; empty if it can."""
    if os.geteuid() != 0:
        return "a rack takes root: run it with sudo"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed ('make gloo' installs it)"
    if importlib.util.find_spec("expecttest") is None:
        return "PyTorch's tests import expecttest, which is not installed: pip install 'p4reduce[test]'"
    return ""


def rack() -> Fabric:
    """Return hosts for all: an embedded switch, links without a rate."""
    return Fabric(RackOptions(name=f"torch-suite-{os.getpid()}", hosts=HOSTS, path_mtu=4096, rate_mbit=None))


def run(running: Fabric, suite: str, backend: str, *, only: str = "") -> list[Outcome]:
    """Return all outcomes, in order. Raise RuntimeError where the processes end without running anything."""
    outcomes: list[Outcome] = []
    start, starts = 0, 0
    with TemporaryDirectory(prefix="torch-suite-") as scratch:
        while True:
            directory = Path(scratch, str(starts))
            for name in ("barrier", "test_dir", "init_dir", "tmp"):
                (directory / name).mkdir(parents=True)
            (directory / "lockfile").touch()
            _once(running, directory, [suite, backend], start=start, only=only, port=_PORT + starts)
            progress = _progress(directory)
            outcomes += [
                Outcome(**{**line["outcome"], "result": Result(line["outcome"]["result"])})
                for line in progress
                if "outcome" in line
            ]
            if progress and "over" in progress[-1]:
                return outcomes
            if not progress:
                raise RuntimeError(f"the processes ended before any check:\n{_last_words(directory)}")
            last = progress[-1]
            if "outcome" not in last:
                words = _last_words(directory)
                outcomes.append(Outcome(name=last["name"], result=Result.HUNG, reason=words, seconds=LIMIT_S))
            start, starts = last["index"] + 1, starts + 1


def _once(running: Fabric, directory: Path, words: list[str], *, start: int, only: str, port: int) -> None:
    """Run the processes from one start to their end, which their watchdogs see to."""
    hosts = running.state.hosts
    with ExitStack() as files:
        processes: list[subprocess.Popen[str]] = []
        try:
            for rank, host in enumerate(hosts):
                log = files.enter_context((directory / f"rank{rank}.log").open("wb"))
                environment = {
                    "PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(hosts)),
                    "MASTER_ADDR": hosts[0].management_ip,
                    "MASTER_PORT": str(port),  # of the store of all checks
                    "P4REDUCE_CONTROLLER": running.state.controller,
                    "DATA_INTERFACE": host.interface,
                    "TEMP_DIR": str(directory),
                    "TMPDIR": str(directory / "tmp"),
                    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # whether it is on is no matter of these tests
                    "PYTHONWARNINGS": "ignore",
                }
                command = [
                    *(sys.executable, "-m", "tests.torch_suite.host", *words),
                    *("--directory", str(directory), "--start", str(start), "--only", only),
                ]
                processes.append(
                    launch.start(running.state, host, command, env=environment, stdout=log, stderr=log)
                )
            for process in processes:
                process.wait()
        finally:
            launch.stop(running.state, processes)


def _progress(directory: Path) -> list[dict[str, Any]]:
    path = directory / PROGRESS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _last_words(directory: Path) -> str:
    logs = [(path.stem, path.read_text(errors="replace")) for path in sorted(directory.glob("rank*.log"))]
    return "\n".join(f"{name}:\n{text[-_STACKS:]}" for name, text in logs)
