"""Ranks that are forked of an interpreter with PyTorch: nobody can tell them from those started anew."""

from __future__ import annotations

import json
import re
import signal
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p4reduce.workloads.torch_runs.interpreter import Interpreter, needs
from p4reduce.workloads.torch_runs.ranks import Failure, Line, Ranks
from p4reduce.workloads.torch_runs.script import Script, environment_of_all
from tests.topologies.states import cluster_state
from topologies import launch

DYNAMO = ["torch", "torch._dynamo"]


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("import torch", ["torch"]),
        ('"""Says."""\nfrom __future__ import annotations\nimport os, sys\nfrom torch import nn', ["torch"]),
        ("import os\nimport numpy as np\nimport torch.distributed as dist\nimport sklearn", ["torch"]),
        ("import torch\nwhere = os.environ['RANK']; os.environ.get('A')", ["torch"]),
        ("import torch\ntorch.optim.SGD", DYNAMO),
        ("from torch.nn.parallel import DistributedDataParallel", DYNAMO),
        ("import sklearn\nimport torch", None),  # it may change anything
        ("from . import models\nimport torch", None),
        ("import os\nprint('first')\nimport torch", None),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", None),
        ("import os, torch\nos.environ['TORCHDYNAMO_DISABLE'] = '1'", None),
        ("import torch\nfrom os import environ\ndef main():\n    environ.update(A='1')", None),
        ("import os, torch\nos.putenv('A', '1')", None),
        ("import os, torch\ndel os.environ['A']", None),
        ("def main():\n    import torch", None),
        ("print('no PyTorch')", None),
        ("import torch\n)", None),
    ],
)
def test_scripts_that_could_tell_have_ranks_of_their_own(
    program: str, found: list[str] | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program)
    assert needs(Script(("train.py", "--steps", "3"), tmp_path)) == found


@pytest.mark.parametrize("words", [("-m", "train"), ("train",), ("gone.py",)])
def test_what_is_no_file_of_python_is_started_anew(words: tuple[str, ...], tmp_path: Path) -> None:
    assert needs(Script(words, tmp_path)) is None


PROGRAM = """
import atexit, inspect, json, os, random, resource, signal, sys, threading, warnings
import numpy as np
import torch

def links(directory):
    found = {}
    for name in os.listdir(directory):
        try:
            found[name] = os.readlink(f"{directory}/{name}").partition(":")[0]
        except OSError:
            pass
    return found

import multiprocessing
alike = {
    "words": [sys.argv, sys.orig_argv, sys.path, str(sys.flags), sys.executable, sys.warnoptions],
    "main": [__name__, __file__, __spec__ is None, __package__, sorted(k for k in globals() if k < "a")],
    "frames": len(inspect.stack()),
    "limits": [sys.getrecursionlimit(), resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0o22)],
    "variables": dict(os.environ),
    "customised": "sitecustomize" in sys.modules,
    "directory": os.getcwd(),
    "parent": os.getppid(),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "descriptors": links("/proc/self/fd"),
    "streams": [repr(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "command": open("/proc/self/cmdline").read(),
    "name": open("/proc/self/comm").read(),
    "threads": [threading.active_count(), len(os.listdir("/proc/self/task")), torch.get_num_threads()],
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.meta_path[-1].__name__],
}
chance = [random.random(), np.random.rand(), torch.rand(1).item(), torch.initial_seed()]
chance += [multiprocessing.current_process().authkey.hex()]
print(json.dumps([alike, chance]))
atexit.register(print, "at exit")
warnings.warn("careful")
ending = os.environ["ENDING"]
if ending == "raises":
    def deep():
        raise ValueError("wrong")
    deep()
if ending == "exits":
    sys.exit(3)
if ending == "says":
    sys.exit("said")
if ending == "interrupted":
    signal.raise_signal(signal.SIGINT)
if ending == "killed":
    signal.raise_signal(signal.SIGTERM)
"""


class Run:
    """A script in two hosts that are here, by an interpreter or anew; what its ranks said."""

    def __init__(self, script: Script) -> None:
        self.script, self.cluster = script, cluster_state("c1")
        self.cluster.directory.mkdir(exist_ok=True)

    def ended(self, ending: str, interpreter: Interpreter | None) -> tuple[list[Line], Failure | None]:
        """Run to that ending; return what was said, and the failure."""
        lines: list[Line] = []
        told = [{**environment_of_all(), "ENDING": ending} for _ in self.cluster.hosts]
        ranks = Ranks(
            *(self.cluster, self.cluster.hosts, self.script, told),
            on_line=lines.append,
            interpreter=interpreter,
        )
        with ranks:
            failure = ranks.wait(lambda: None)
        assert list(launch.recorded(self.cluster.workers)) == []
        return lines, failure


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(launch, "namespace_command", lambda host: [])
    monkeypatch.setattr(launch, "namespace", lambda host: Path("/proc/self/ns/net"))
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    return Run(Script(("train.py", "--steps", "3"), tmp_path))


@pytest.fixture
def interpreter(run: Run) -> Iterator[Interpreter]:
    pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
    with Interpreter(run.script, environment_of_all()) as made:
        yield made


def _facts(lines: list[Line], rank: int) -> list[Any]:
    return list(json.loads(next(line.text for line in lines if line.rank == rank and not line.is_error)))


@pytest.mark.emulation
@pytest.mark.long
def test_a_forked_rank_is_as_one_started_anew(run: Run, interpreter: Interpreter) -> None:
    """Compare what each finds, and check that what is by chance differs."""
    (forked, failure), (anew, expected) = (run.ended("well", how) for how in (interpreter, None))
    assert interpreter.ready()
    assert failure is None
    assert expected is None
    facts = [_facts(lines, rank) for lines in (forked, anew) for rank in range(2)]
    for alike, _ in facts:  # our backend sets it when PyTorch asks for it, which this script does not
        alike["variables"].pop("GRPC_ENABLE_FORK_SUPPORT", None)
    assert all(alike == facts[0][0] for alike, _ in facts)
    chance = [value for _, chance in facts for value in chance]
    assert len(set(chance)) == len(chance)
    assert sorted(line.text for line in forked if line.is_error) == sorted(
        line.text for line in anew if line.is_error
    )
    assert [line.text for line in forked if line.text == "at exit"] == ["at exit"] * 2


@pytest.mark.emulation
@pytest.mark.long
def test_a_forked_rank_ends_as_one_started_anew(run: Run, interpreter: Interpreter) -> None:
    """Check Python's own words and exit codes, and that no frames but the script's are shown."""
    run.cluster = replace(run.cluster, hosts=run.cluster.hosts[:1])
    where = str(run.script.directory / "train.py")
    expected = {
        "raises": (1, [f'  File "{where}", line N, in <module>', f'  File "{where}", line N, in deep']),
        "exits": (3, []),
        "says": (1, ["said"]),
        "interrupted": (-signal.SIGINT, [f'  File "{where}", line N, in <module>']),
        "killed": (-signal.SIGTERM, []),
    }
    for ending, (code, said) in expected.items():
        lines, failure = run.ended(ending, interpreter)
        assert failure is not None
        assert failure.code == code
        words = [re.sub(r"line \d+", "line N", line.text) for line in lines if line.is_error]
        assert [word for word in words if word.startswith("  File") or word == "said"] == said
        assert ("at exit" in [line.text for line in lines]) == (ending != "killed")
    assert interpreter.ready()


@pytest.mark.emulation
@pytest.mark.long
def test_where_a_file_beside_the_script_would_be_imported_ranks_start_anew(
    run: Run, interpreter: Interpreter, tmp_path: Path
) -> None:
    (tmp_path / "queue.py").write_text("")  # PyTorch imports Python's
    (tmp_path / "calendar").mkdir()
    assert not interpreter.ready()
    assert interpreter.fork(run.cluster, []) is None


@pytest.mark.long
def test_pytorch_is_read_before_runs_that_are_compared(tmp_path: Path) -> None:
    """Check that it is, also where no interpreter that has imported it can be forked."""
    pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
    (tmp_path / "train.py").write_text("print('no PyTorch')")
    with Interpreter(Script(("train.py",), tmp_path), environment_of_all()) as idle:
        assert not idle.imports
    with Interpreter(Script(("train.py",), tmp_path), environment_of_all(), warms=True) as warming:
        assert warming.imports
        assert not warming.ready()
        process = warming._process
        assert process is not None
        assert process.returncode == 0
