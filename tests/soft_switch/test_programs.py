"""The compiled test programs are those of the sources beside them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.p4c import P4C, WITHOUT_P4C, assert_json_is_made_of_its_source
from tests.soft_switch.programs import HERE, NAMES


@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.skipif(P4C is None, reason=WITHOUT_P4C)
@pytest.mark.parametrize("name", NAMES)
def test_what_p4c_writes(name: str, tmp_path: Path) -> None:
    output = tmp_path / "program.json"
    subprocess.run(
        [str(P4C), "--std", "p4-16", f"{name}.p4", "-o", str(output)],
        cwd=HERE,
        check=True,
        capture_output=True,
    )
    assert_json_is_made_of_its_source(output, HERE / f"{name}.json")


def test_every_source_is_compiled() -> None:
    for source in HERE.rglob("*.p4"):
        assert source.with_suffix(".json").exists()
