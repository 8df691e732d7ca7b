"""docs/own-operation.md: the example's patch fits this checkout, and what it adds works."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p4src.compile import COMPILER, compiler_version
from tests.p4reduce.clusters import P4REDUCE

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "own-operation"
PAGE = REPOSITORY / "docs" / "own-operation.md"
AGAIN = "run 'python examples/own-operation/apply.py FOLDER --compile' (it needs p4c-bm2-ss)"
# What the patch adds to, and what could break by it.
TESTS = (
    "tests/p4src/test_build.py::test_codes_are_the_same_in_p4_and_python",
    "tests/p4src/test_build.py::test_the_committed_output_was_made_from_these_sources",
    "tests/p4src/test_against_model.py::test_every_packet_size_is_combined_and_its_icrc_is_right",
    "tests/p4src/test_against_model.py::test_ranks_that_disagree_get_nothing_of_what_was_in_the_slots_before",
    "tests/p4src/test_rules.py::test_a_header_is_what_has_index_0",
    "tests/host_agent/transport/test_kernels.py::test_folding_is_numpys",
    "tests/host_agent/machine/test_communicator.py::test_bor_is_numpys",
    "tests/host_agent/test_bitwise_or.py",
)


def run(*words: str, cwd: Path, path: str = "") -> str:
    sooner = {"CXXFLAGS": "-O0", "SOFT_SWITCH_COMPILE": "quick"}
    environment = {**os.environ, **sooner, **({"PYTHONPATH": path} if path else {})}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the patched checkout, made as a reader makes it."""
    target = tmp_path_factory.mktemp("own-operation") / "with-or"
    run(sys.executable, str(EXAMPLE / "apply.py"), str(target), cwd=REPOSITORY)
    return target


def kept(name: str) -> bytes:
    return gzip.decompress((EXAMPLE / "compiled" / f"{name}.gz").read_bytes())


def test_the_patch_fits_this_checkout(tmp_path: Path) -> None:
    """Check also that the program beside it was made of what comes out."""
    text = (EXAMPLE / "bitwise-or.patch").read_text()
    for name in re.findall(r"^--- a/(\S+)", text, re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    for path in [
        *REPOSITORY.glob("p4src/*.p4"),
        *REPOSITORY.glob("p4src/*.py"),
        *REPOSITORY.glob("p4src/*/*.p4"),
    ]:
        copy = tmp_path / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    run("git", "init", "-q", cwd=tmp_path)
    run("git", "apply", str(EXAMPLE / "bitwise-or.patch"), cwd=tmp_path)
    made_of = run(sys.executable, "-c", "import p4src; print(p4src.sources_hash())", cwd=tmp_path).strip()
    assert json.loads(kept("sources.json"))["sources_sha256"] == made_of, AGAIN


def test_the_page_shows_lines_of_the_patch() -> None:
    """Check that every line that a diff on the page adds or takes away is one of the patch's."""
    lines = set((EXAMPLE / "bitwise-or.patch").read_text().splitlines())
    shown = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(shown) >= 5
    for line in "".join(shown).splitlines():
        assert line in lines, line


@pytest.mark.slow
def test_what_the_patch_adds_works(patched: Path) -> None:
    """The embedded switch and the oracle alike, and the Communicator by switch and by ring."""
    said = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, cwd=patched)
    assert re.search(r"\d+ passed", said), said
    assert "skipped" not in said, said


@pytest.mark.slow
@pytest.mark.emulation
@pytest.mark.usefixtures("own_state")
def test_workers_in_a_rack_put_their_flags_together(patched: Path, name: str) -> None:
    path = str(patched)
    run(*P4REDUCE, "up", "rack", "--hosts", "3", "--cluster", name, "--detach", cwd=patched, path=path)
    words = [*P4REDUCE, "exec", "--cluster", name]
    workers = [
        subprocess.Popen(
            [*words, f"h{rank + 1}", "--", "python3", str(EXAMPLE / "flags.py"), str(rank), "3"],
            cwd=patched,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    for rank, worker in enumerate(workers):
        said, _ = worker.communicate(timeout=100)
        assert worker.returncode == 0, said
        for strategy in ("in-network", "ring"):
            assert re.search(rf"rank {rank}, {strategy}: \d+ of 1000000 busy, as NumPy has it", said), said
    run(*P4REDUCE, "down", name, cwd=patched, path=path)


@pytest.mark.slow
@pytest.mark.p4c
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on the PATH")
def test_the_program_is_what_p4c_makes_of_it(patched: Path, tmp_path: Path) -> None:
    made_with = json.loads(kept("sources.json"))["p4c_version"]
    if compiler_version() != made_with:
        pytest.skip(f"this p4c is {compiler_version()}; the output was made with {made_with}")
    run(sys.executable, "-m", "p4src.compile", "--output", str(tmp_path), cwd=patched)
    for name in ("p4reduce.json", "p4reduce.p4info.txtpb", "sources.json"):
        assert (tmp_path / name).read_bytes() == kept(name), AGAIN
