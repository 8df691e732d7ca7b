"""The recipes of docs/frameworks.md have the same losses under torchrun over Gloo, and over p4reduce."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.torch_scripts import EXAMPLES, found_by_pytorch, gone, name
from tests.p4reduce.clusters import p4reduce
from topologies import launch

__all__ = ["found_by_pytorch", "name"]  # fixtures

pytestmark = [pytest.mark.emulation, pytest.mark.slow]
pytest.importorskip("torch", reason="PyTorch is not installed ('make gloo' installs it)")

RECIPES = EXAMPLES.parent / "frameworks"
_STEPS = 6
_LIMIT_S = 900.0  # DeepSpeed compiles a part of its own when it is first used
_NOBODY = "no process group of p4reduce had a collective"


def over_gloo(script: Path, *arguments: str, processes: int) -> str:
    """Run a script under torchrun, which knows nothing of p4reduce, and return what it prints."""
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), str(script)]
    done = subprocess.run(
        [sys.executable, "-m", *words, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": launch.programs()},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(printed: str) -> dict[str, float]:
    """Return rank 0's loss at each step, by its words (`step 3`, `fsdp step 3`)."""
    found = re.findall(r"^(?:h1 \| )?((?:\w+ )?step \d+): loss ([\d.]+)$", printed, re.MULTILINE)
    return {step: float(loss) for step, loss in found}


def are_gloos(script: Path, *arguments: str, hosts: int, cluster: str, trainings: int = 1) -> None:
    """Assert that a script's losses over p4reduce are those over Gloo, and fall."""
    expected = losses(over_gloo(script, *arguments, processes=hosts))
    words = f"torch rack --hosts {hosts} --rate none --cluster {cluster} --instead-of gloo --"
    done = p4reduce(*words.split(), str(script), *arguments, timeout_s=_LIMIT_S)
    assert done.returncode == 0, done.stderr
    found = losses(done.stdout)
    assert len(found) == trainings * _STEPS
    assert found == pytest.approx(expected, abs=1e-4)
    values = list(found.values())
    for first in range(0, len(values), _STEPS):
        assert values[first + _STEPS - 1] < values[first]
    assert _NOBODY not in done.stderr
    assert gone(cluster)


def test_meshes_of_p4reduce_train_as_those_of_gloo(name: str) -> None:
    """DDP, FSDP2 and tensor parallelism over device meshes that name no backend."""
    script = RECIPES / "meshes.py"
    are_gloos(script, "--steps", str(_STEPS), hosts=4, cluster=name, trainings=3)


@pytest.mark.long
@pytest.mark.timeout(2 * _LIMIT_S)
@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "lightning", "transformers"])
def test_a_framework_trains_as_over_gloo(framework: str, name: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed ('make frameworks' installs it)")
    script = RECIPES / f"with_{framework}.py"
    are_gloos(script, "--steps", str(_STEPS), hosts=2, cluster=name)


def test_a_script_that_uses_gloo_unasked_is_told_so_at_its_end(name: str, tmp_path: Path) -> None:
    """Frameworks choose Gloo on CPUs by themselves: that nothing went by the switches has to be said."""
    script = tmp_path / "unasked.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group()\n"
        "tensor = torch.ones(10)\n"
        "dist.all_reduce(tensor)\n"
        "print('summed', tensor[0].item())\n"
        "dist.destroy_process_group()\n"
    )
    words = f"torch rack --hosts 2 --rate none --cluster {name} --"
    done = p4reduce(*words.split(), str(script), timeout_s=_LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "h1 | summed 2.0" in done.stdout
    assert _NOBODY in done.stderr
    assert "--instead-of gloo" in done.stderr
    assert gone(name)


def test_a_script_that_asks_for_nccl_hears_what_it_lacks(name: str, tmp_path: Path) -> None:
    """--instead-of gloo is for who asks for Gloo: NCCL is for GPUs."""
    script = tmp_path / "nccl.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    words = f"torch rack --hosts 2 --rate none --cluster {name} --instead-of gloo --"
    done = p4reduce(*words.split(), str(script), timeout_s=_LIMIT_S)
    assert done.returncode == 1
    assert "NCCL" in done.stderr.splitlines()[-1]
    assert gone(name)
