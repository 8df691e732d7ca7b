"""The compiled programs are those of the sources beside them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conformance.programs import HERE, NAMES
from tests.conformance.samples import COMPILER


@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="p4c-bm2-ss is not on the PATH")
@pytest.mark.parametrize("name", NAMES)
def test_what_p4c_writes(name: str, tmp_path: Path) -> None:
    output, info = tmp_path / "program.json", tmp_path / "p4info.txtpb"
    command = [str(COMPILER), "--std", "p4-16", f"{name}.p4", "-o", str(output)]
    subprocess.run(
        [*command, "--p4runtime-files", str(info)], cwd=HERE, check=True, capture_output=True, timeout=120
    )
    assert json.loads(output.read_text()) == json.loads((HERE / f"{name}.json").read_text())
    assert info.read_text() == (HERE / f"{name}.p4info.txtpb").read_text()


def test_every_source_is_compiled() -> None:
    assert sorted(path.stem for path in HERE.glob("*.p4")) == list(NAMES)
    assert sorted(path.stem for path in HERE.glob("*.json")) == list(NAMES)
