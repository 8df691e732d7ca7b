"""bench.switch: a short run, whose hosts compare every packet that comes out, gives its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.emulation, pytest.mark.timeout(300)]

SHORT = ("--rounds", "1", "--seconds", "0.5", "--chunks", "1,4", "--ports", "4")


def run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.switch", *SHORT, "--json", str(tmp_path / "figures"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_figures(tmp_path: Path) -> None:
    done = run(tmp_path, "--parts", "ceiling,l3,aggregate")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures").read_text())
    assert figures["ceiling_pps"] > 0
    assert figures["l3_pps"] > 0
    assert {chunks: set(by_ports) for chunks, by_ports in figures["aggregate_pps"].items()} == {
        "1": {"4"},
        "4": {"4"},
    }
    assert figures["bmv2_pps"] is None
    assert all(case["cpu_ns_per_packet"] > 0 for case in figures["cases"])


def test_a_switch_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "--parts", "bmv2", "--bmv2", "/no/such/simple_switch_grpc")
    assert done.returncode == 0, done.stderr
    assert "/no/such/simple_switch_grpc is not here: BMv2 is left out" in done.stdout
