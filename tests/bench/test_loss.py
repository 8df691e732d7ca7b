"""bench.loss: a short run gives its rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.loss import SELECTIVE
from p4reduce.workloads.strategies import names

pytestmark = [pytest.mark.emulation, pytest.mark.timeout(300)]

STRATEGIES = (names.IN_NETWORK, SELECTIVE, names.RING)


def test_figures(tmp_path: Path) -> None:
    short = ["--workers", "3", "--rounds", "1", "--bytes", "65536", "--losses", "0.01"]
    chosen = ["--strategies", ",".join(STRATEGIES)]
    command = [sys.executable, "-m", "bench.loss", *short, *chosen, "--json", str(tmp_path / "figures")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "figures").read_text())["rows"]
    assert {(row["loss"], row["strategy"]) for row in rows} == {(0.01, strategy) for strategy in STRATEGIES}
    assert all(row["median_s"] > 0 for row in rows)
