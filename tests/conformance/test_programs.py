"""The compiled programs are those of the sources beside them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conformance.programs import HERE, NAMES
from tests.p4c import P4C, WITHOUT_P4C, assert_is_made_of_its_source, assert_json_is_made_of_its_source


@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.skipif(P4C is None, reason=WITHOUT_P4C)
@pytest.mark.parametrize("name", NAMES)
def test_what_p4c_writes(name: str, tmp_path: Path) -> None:
    output, info = tmp_path / "program.json", tmp_path / "p4info.txtpb"
    command = [str(P4C), "--std", "p4-16", f"{name}.p4", "-o", str(output)]
    subprocess.run(
        [*command, "--p4runtime-files", str(info)], cwd=HERE, check=True, capture_output=True, timeout=120
    )
    kept = HERE / f"{name}.p4info.txtpb"
    assert_is_made_of_its_source(kept.name, info.read_text(), kept.read_text())
    assert_json_is_made_of_its_source(output, HERE / f"{name}.json")


def test_every_source_is_compiled() -> None:
    assert sorted(path.stem for path in HERE.glob("*.p4")) == list(NAMES)
    assert sorted(path.stem for path in HERE.glob("*.json")) == list(NAMES)
