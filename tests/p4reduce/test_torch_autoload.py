"""PyTorch finds the backend by itself, and can be imported whatever is wrong with ours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")

_ROOT = Path(__file__).parents[2]


def run(code: str, **environment: str) -> str:
    """Return what a new interpreter prints; PyTorch loads no backend but what `code` loads."""
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
    """Check that it does, as every import of PyTorch on the machine pays for it."""
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", ["gloo", "", "GLOO", "cpu:gloo", "cpu:gloo,cuda:gloo", "cuda:nccl,cpu:gloo", "init_device_mesh"]
)
def test_who_asks_for_gloo_or_nothing_gets_p4reduce_where_the_launcher_says_so(asked: str) -> None:
    """Libraries that import the functions before or after; groups of the first one's."""
    begin = {
        "": "dist.init_process_group(**one)",
        "init_device_mesh": "dist.device_mesh.init_device_mesh('cpu', (1,))",
    }.get(asked, f"dist.init_process_group({asked!r}, **one)")
    code = (
        "import torch, torch.distributed as dist\nfrom p4reduce.torch_autoload import register; register()\n"
        f"one = dict(rank=0, world_size=1, store=dist.HashStore())\n{begin}\n"
        "names = [dist.get_backend(), *(dist.get_backend(dist.new_group(**how)) for how in"
        " ({}, {'backend': 'gloo'}))]\n"
        "tensor = torch.ones(3); dist.all_reduce(tensor); dist.destroy_process_group()\nprint(*names)"
    )
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    with_us = run(code, P4REDUCE_TORCH_FOR="gloo", P4REDUCE_CONTROLLER="127.0.0.1:1", **told)
    assert with_us.split()[-3:] == ["p4reduce"] * 3
    if "nccl" not in asked:  # which this PyTorch may not have
        assert "p4reduce" not in run(code, **told).split()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
