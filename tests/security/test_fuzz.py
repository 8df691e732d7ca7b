"""A few hundred mutated inputs for each fuzz target; `python -m tests.security.fuzz` runs more."""

from __future__ import annotations

import os

import pytest

from tests.security.fuzz.__main__ import at_random, mutations
from tests.security.fuzz.targets import TARGETS

RUNS = int(os.environ.get("P4REDUCE_FUZZ_RUNS", "300"))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_unexpected_comes_out(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = at_random(target, mutations(target, RUNS, 7))
    assert code == 0, capsys.readouterr().out
