"""Short runs of the fuzzer; `python -m tests.soft_switch.fuzz` makes long ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.soft_switch.fuzz.build import available, build, run
from tests.soft_switch.fuzz.targets import any_program
from tests.soft_switch.programs import HERE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FRAMES = 20_000


@pytest.mark.parametrize("name", ["stacks", pytest.param("tables", marks=pytest.mark.long)])
def test_no_frame_makes_generated_code_err(name: str, tmp_path: Path) -> None:
    target = any_program(HERE / f"{name}.json", seed=7)
    outcome = run(build(target, "g++", tmp_path, optimise=False), frames=FRAMES, seed=7, timeout_s=200)
    assert outcome.exit_code == 0, outcome.log[-4000:]
    _, frames, _, left, *_ = outcome.report.split()
    assert int(frames) >= FRAMES
    assert int(left) > FRAMES // 20  # they do come through


def test_a_byte_too_far_is_found(tmp_path: Path) -> None:
    """Check that a sanitizer finds a program that takes frames for a byte longer than they are."""
    target = any_program(HERE / "stacks.json", seed=7)
    one_more = replace(
        target, source=target.source.replace("Context c(frame, length);", "Context c(frame, length + 1);")
    )
    assert one_more.source != target.source
    outcome = run(build(one_more, "g++", tmp_path, optimise=False), frames=FRAMES, seed=7, timeout_s=200)
    assert outcome.exit_code != 0
    assert "heap-buffer-overflow" in outcome.log
    assert (tmp_path / "crash-input").stat().st_size > 0


@pytest.mark.skipif(not available("valgrind"), reason="valgrind is not installed")
def test_no_byte_leaves_that_nobody_wrote(tmp_path: Path) -> None:
    target = any_program(HERE / "stacks.json", seed=3)
    outcome = run(build(target, "valgrind", tmp_path), frames=1500, seed=3, timeout_s=250)
    assert outcome.exit_code == 0, outcome.log[-4000:]
