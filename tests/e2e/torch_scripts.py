"""Parts that tests of scripts in clusters share: where the scripts are, and what is left of a cluster."""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import unique
from topologies import namespaces, state

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"


@pytest.fixture(autouse=True)
def found_by_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch find the backend by its entry point, which an older installation of this checkout lacks."""
    if importlib.metadata.entry_points(group="torch.backends", name="p4reduce"):
        return
    told = tmp_path / "found" / "p4reduce_found-0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: p4reduce-found\nVersion: 0\n")
    (told / "entry_points.txt").write_text("[torch.backends]\np4reduce = p4reduce.torch_autoload:register\n")
    paths = [str(told.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def name() -> str:
    return f"e2e-{unique()}"


def gone(name: str) -> bool:
    """Tell whether nothing of the cluster is left but what belongs to others."""
    return not namespaces.exists(f"p4r-{name}") and not state.directory_of(name).exists()


def losses(printed: str) -> list[float]:
    """Return the losses that rank 0 printed, step by step."""
    return [float(loss) for loss in re.findall(r"^h1 \| step \d+: loss ([\d.]+)$", printed, re.MULTILINE)]
