"""`p4reduce push HOST:PORT`: onto any running P4Runtime switch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from p4reduce.cli import app as cli
from tests.topologies.states import cluster_state
from topologies.controlling import controller_config

pytestmark = pytest.mark.slow  # the program may have to be compiled


@pytest.fixture
def address() -> Iterator[str]:
    """Yield the address of a switch without a program or ports."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "soft_switch", "--device-id", "1", "--no-p4", "--cpu-port", "255"),
            *("--", "--grpc-server-addr", "127.0.0.1:0"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().removeprefix("listening on ").strip()
    process.terminate()
    process.communicate()


def test_push(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["push", address, "--json"]) == 0
    (first,) = json.loads(capsys.readouterr().out)
    assert first["address"] == address
    assert len(first["program_sha256"]) == 64
    assert first["state"] == "connected; nothing ran there before"
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            controller_config(cluster_state("c1"))
            | {"switches": [{"name": "s1", "device_id": 1, "address": address, "target": "embedded"}]}
        )
    )
    assert cli.run(["push", address, "--config", str(config), "--json"]) == 0
    (second,) = json.loads(capsys.readouterr().out)
    assert second["program_sha256"] == first["program_sha256"]
    assert second["entries"] > 0
    assert second["state"] == "connected; the same program ran there before"


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["push", "127.0.0.1:1"]) == 1
    complaint = capsys.readouterr().err
    assert "switch at 127.0.0.1:1 cannot be reached" in complaint
    assert "Traceback" not in complaint
