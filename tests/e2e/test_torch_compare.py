"""`p4reduce torch --compare gloo`: the same unmodified script twice on the same links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.torch_scripts import EXAMPLES, found_by_pytorch, gone, losses, name
from tests.p4reduce.clusters import p4reduce

__all__ = ["found_by_pytorch", "name"]  # fixtures

pytestmark = [pytest.mark.emulation, pytest.mark.long]
pytest.importorskip("torch", reason="PyTorch is not installed ('make gloo' installs it)")


def test_an_example_over_both(name: str, tmp_path: Path) -> None:
    file, steps, workers = tmp_path / "run.json", 30, 3
    words = f"torch rack --hosts {workers} --rate none --cluster {name} --compare gloo --json {file} --"
    done = p4reduce(*words.split(), str(EXAMPLES / "cnn.py"), "--steps", str(steps))
    assert done.returncode == 0, done.stderr
    found = losses(done.stdout)
    assert len(found) == 6  # three of each
    ours, gloo = json.loads(file.read_text())["runs"]
    assert (ours["backend"], gloo["backend"]) == ("p4reduce", "gloo")
    for run in (ours, gloo):
        assert run["steps"] == len(run["losses"]) == steps
        assert len(run["seconds_a_step"]) == steps - 1
        assert run["losses"][-1] < run["losses"][0]
    assert ours["losses"] == pytest.approx(gloo["losses"], abs=1e-3)
    assert ours["losses"][9::10] == pytest.approx(found[:3], abs=1e-4)  # what the script printed
    # Once in the network, 2(N-1)/N times by Gloo's ring, for 100,000 to 200,000 parameters.
    gradient = 4 * (32 * 9 + 32 + 64 * 32 * 9 + 64 + 1024 * 128 + 128 + 128 * 10 + 10)
    for way in ("up", "down"):
        carried = [run["bytes_per_link_a_step"]["h2:s1"][way] for run in (ours, gloo)]
        assert 0.9 * gradient < carried[0] < 1.25 * gradient
        assert 0.9 * gradient * 4 / 3 < carried[1]
    assert "A step over Gloo takes " in done.stdout
    assert "Losses of rank 0 are at most " in done.stdout
    assert gone(name)


def test_a_script_that_does_not_ask_for_the_backend_is_not_compared(name: str, tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    torch.nn.MSELoss()(model(torch.ones(4, 3)), torch.zeros(4, 1)).backward()\n"
        "    optimizer.step()\n"
    )
    words = f"torch rack --hosts 2 --rate none --cluster {name} --compare gloo --"
    done = p4reduce(*words.split(), str(script))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("p4reduce: there is nothing to compare: ")
    assert gone(name)
