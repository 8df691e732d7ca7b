"""PyTorch finds the backend by itself, and can be imported whatever is wrong with ours."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")

_ROOT = Path(__file__).parents[2]


def run(code: str, **environment: str) -> str:
    """What a new interpreter prints, without PyTorch's autoload but for what `code` does."""
    found = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return found.stdout + found.stderr


def test_the_package_says_where_it_is() -> None:
    (found,) = (point for point in entry_points(group="torch.backends") if point.name == "p4reduce")
    assert found.value == "p4reduce.torch_autoload:register"


@pytest.mark.slow
def test_it_imports_little() -> None:
    """Every import of PyTorch on the machine pays for it."""
    said = run(
        "import torch, sys; before = set(sys.modules)\n"
        "from p4reduce.torch_autoload import register; register()\n"
        "print(sorted(name for name in set(sys.modules) - before))\n"
        "print(torch.distributed.Backend('p4reduce'))\n"
    )
    modules, backend = said.splitlines()[-2:]
    assert backend == "p4reduce"
    assert "numpy" not in modules
    assert "grpc" not in modules
    assert "p4reduce.torch." not in modules


@pytest.mark.slow
def test_launchers_variables_are_taken_in_a_job_of_ours_alone() -> None:
    code = (
        "import torch, os\nfrom p4reduce.torch_autoload import register; register()\n"
        "print(os.environ.get('RANK'), os.environ.get('WORLD_SIZE'))"
    )
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    assert run(code, **slurm).split()[-2:] == ["None", "None"]
    assert run(code, **slurm, P4REDUCE_CONTROLLER="h:1").split()[-2:] == ["3", "4"]


@pytest.mark.slow
def test_what_goes_wrong_is_a_warning() -> None:
    said = run(
        "import torch, torch.distributed as dist\n"
        "def refuse(*args, **kwargs): raise RuntimeError('another interface')\n"
        "dist.Backend.register_backend = refuse\n"
        "from p4reduce.torch_autoload import register; register()\n"
    )
    assert "p4reduce is no backend of torch.distributed here: another interface" in said


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import p4reduce.torch, torch", "import torch, p4reduce.torch"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    assert run(f"{first}\nprint(torch.distributed.Backend('p4reduce'))").split()[-1] == "p4reduce"
    assert run(first, TORCH_DEVICE_BACKEND_AUTOLOAD="1") == ""
