"""The compiled test programs are those of the sources beside them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.soft_switch.programs import HERE, NAMES

P4C = shutil.which("p4c-bm2-ss")


@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.skipif(P4C is None, reason="p4c-bm2-ss is not on the PATH")
@pytest.mark.parametrize("name", NAMES)
def test_what_p4c_writes(name: str, tmp_path: Path) -> None:
    output = tmp_path / "program.json"
    subprocess.run(
        [str(P4C), "--std", "p4-16", f"{name}.p4", "-o", str(output)],
        cwd=HERE,
        check=True,
        capture_output=True,
    )
    assert json.loads(output.read_text()) == json.loads((HERE / f"{name}.json").read_text())


def test_every_source_is_compiled() -> None:
    for source in HERE.rglob("*.p4"):
        assert source.with_suffix(".json").exists()
