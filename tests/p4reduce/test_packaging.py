"""The source distribution has all that git has; the wheel made of it, installed elsewhere, works."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
_IMPORTS = """
import p4src, p4reduce.workloads.demo, host_agent.transport.native, soft_switch.dataplane, controller.service
from pathlib import Path
assert Path(p4reduce.__file__).is_relative_to({environment!r}), p4reduce.__file__
assert p4src.JSON_PATH.exists() and p4src.P4INFO_PATH.exists()
assert p4src.built_from()["sources_sha256"] == p4src.sources_hash()
"""


def _run(*command: str, cwd: Path, **environment: str) -> str:
    # The new environment must not see this one, nor the working copy.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=env | environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution, of the working copy as it is."""
    directory = tmp_path_factory.mktemp("sdist")
    source = directory / "source"
    listed = _run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=REPOSITORY)
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(directory)!r})"
    _run(sys.executable, "-c", build, cwd=source)
    (built,) = directory.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Return the wheel, built from the source distribution."""
    words = ("-m", "pip", "wheel", "-q", "--no-deps", "-w", str(sdist.parent), str(sdist))
    _run(sys.executable, *words, cwd=sdist.parent, CXXFLAGS="-O0")  # built sooner
    (built,) = sdist.parent.glob("*.whl")
    return built


# What an environment with the base alone is to a process of this one.
_BASE_ALONE = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {extras!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusing())
"""
_IMPORTED_AS = {"PyYAML": "yaml", "scikit-learn": "sklearn"}


def _base_alone() -> str:
    """Return the beginning of a program that finds none of the packages that extras alone bring."""
    options = ConfigParser()
    options.read(REPOSITORY / "setup.cfg")
    declared = options["options.extras_require"]
    required = [
        Requirement(line).name
        for extra in ("emulation", "reports", "dask")
        for line in declared[extra].split("\n")
        if line
    ]
    extras = {_IMPORTED_AS.get(name, name) for name in required}
    assert {"mininet", "sklearn", "plotly", "textual", "typer", "cypcap"} <= extras
    return _BASE_ALONE.format(extras=extras)


def test_the_agent_needs_the_base_alone() -> None:
    code = "import host_agent, p4reduce; p4reduce.Communicator, p4reduce.MachineCommunicator"
    _run(sys.executable, "-c", _base_alone() + code, cwd=REPOSITORY, PYTHONPATH=str(REPOSITORY))


def test_the_pytorch_backend_needs_the_base_alone() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo'")
    code = "import p4reduce.torch, torch.distributed as d; assert d.is_backend_available('p4reduce')"
    _run(sys.executable, "-c", _base_alone() + code, cwd=REPOSITORY, PYTHONPATH=str(REPOSITORY))


@pytest.mark.parametrize(
    ("program", "call"), [("p4reduce", "main()"), ("p4reduce-switch", "sys.exit(switch())")]
)
def test_commands_without_their_extra_name_it(program: str, call: str) -> None:
    code = f"{_base_alone()}\nfrom p4reduce.__main__ import main, switch\nsys.argv = ['x', '--help']\n{call}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 69
    assert done.stderr.startswith(f"{program}: this command needs ")
    assert done.stderr.endswith(", which is not installed: pip install 'p4reduce[all]'\n")


@pytest.mark.slow
def test_what_is_in_the_source_distribution(sdist: Path) -> None:
    """Check that it has all that git has, and so the tests, the README's pages, and what those name."""
    top = f"p4reduce-{importlib.metadata.version('p4reduce')}/"
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(top) for name in archive.getnames()}
    listed = _run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=REPOSITORY)
    there = {name for name in listed.split("\0") if name and (REPOSITORY / name).is_file()}
    assert sorted(there - names - {".gitignore"}) == []
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.mark.slow
def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "p4src/build/p4reduce.json",
        "p4src/build/p4reduce.p4info.txtpb",
        "p4src/build/sources.json",
        "p4src/p4reduce.p4",
        "p4src/include/headers.p4",
        "host_agent/_native.so",
        "p4reduce/workloads/capture/_player.so",
        "soft_switch/_engine.so",
        "soft_switch/native/engine.cpp",
        "controller/api/controller.proto",
        "p4reduce/cli/commands/demo.py",
        "p4reduce/workloads/traffic/models/resnet-50.csv",
        "p4reduce/pages/assets/page.css",
        "p4reduce/simulation/sequence/assets/sequence.js",
        "p4reduce/workloads/reporting/assets/report.js",
        "p4reduce/workloads/worker.py",
        "p4reduce/py.typed",
        "topologies/machines/files/init",
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "docs/"))]
    assert wheel.name.startswith("p4reduce-")
    assert "-py3-none-linux" in wheel.name  # one wheel for every Python 3


@pytest.mark.slow
@pytest.mark.emulation
@pytest.mark.timeout(600)
def test_installed_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment), cwd=tmp_path)
    python, command = environment / "bin" / "python", environment / "bin" / "p4reduce"
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    _run(*pip, "install", "-q", "--no-compile", str(wheel), cwd=tmp_path)
    _run(str(python), "-c", "import p4reduce; p4reduce.Communicator, p4reduce.Statistics", cwd=tmp_path)
    _run(*pip, "install", "-q", "--no-compile", f"{wheel}[all]", cwd=tmp_path)
    _run(str(python), "-c", _IMPORTS.format(environment=str(environment)), cwd=tmp_path)
    assert "demo" in _run(str(command), "--help", cwd=tmp_path)
    number = importlib.metadata.version("p4reduce")
    assert _run(str(command), "--version", cwd=tmp_path).startswith(f"p4reduce {number} (P4 program ")
    assert "0 failed" in _run(str(command), "simulate-faults", "--seeds", "1..3", cwd=tmp_path)
    state = tmp_path / "s"
    printed = _run(
        *(str(command), "demo", "--cluster", f"w{os.getpid()}", "--workers", "2", "--steps", "3"),
        *("--bytes", "1M", "--repeat", "1"),
        cwd=tmp_path,
        P4REDUCE_STATE_DIR=str(state),
    )
    assert "all ranks bitwise equal" in printed
    assert os.listdir(state) == []
