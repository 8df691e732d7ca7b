"""Abilities of the p4c on the PATH: tests ask for them, as its versions differ.

1.2.4.17 takes P4_14; 1.2.5.16 takes none any more, and writes other JSON for some programs.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from p4src.compile import COMPILER, compiler_version

P4C: Final = shutil.which(COMPILER)
WITHOUT_P4C: Final = f"{COMPILER} is not on the PATH"
TIMEOUT_S: Final = 120.0
# That of the JSON which is committed beside its source under tests/ and examples/. Whoever compiles with
# another one compiles all of it, and changes this line.
MADE_WITH: Final = "1.2.4.17"

_P4_14: Final = """
header_type byte_t { fields { value : 8; } }
header byte_t byte;
parser start { extract(byte); return ingress; }
control ingress { }
"""


@functools.cache
def version() -> str:
    """Return the version of the p4c on the PATH, which there has to be, such as 1.2.4.17."""
    return compiler_version().split()[0]


@functools.cache
def without_p4_14() -> str | None:
    """Return why no program in P4_14 can be compiled here; None if one can."""
    if P4C is None:
        return WITHOUT_P4C
    with tempfile.TemporaryDirectory(prefix="p4c") as folder:
        source = Path(folder, "byte.p4")
        source.write_text(_P4_14)
        command = [P4C, "--std", "p4-14", "-o", str(Path(folder, "byte.json")), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode == 0:
        return None
    said = next((line for line in (done.stderr + done.stdout).splitlines() if line.strip()), "nothing")
    return f"p4c {version()} takes no P4_14 ({said.strip()[:120]})"


def assert_is_made_of_its_source(what: str, made: Any, kept: Any) -> None:
    """Check that `kept` is what p4c makes, if that p4c made it; another may write it in another way."""
    if made != kept and version() != MADE_WITH:
        pytest.skip(
            f"p4c {version()} writes {what} differently from {MADE_WITH}, which made the committed one"
        )
    assert made == kept


def assert_json_is_made_of_its_source(made: Path, kept: Path) -> None:
    """Check that two JSON files are the same, without regard to spaces."""
    assert_is_made_of_its_source(kept.name, json.loads(made.read_text()), json.loads(kept.read_text()))
