"""bench.compare: every race is run in the type that was asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.compare import races
from workloads.tensors import DTYPES, dtype_of


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_races_are_of_one_type(dtype: str) -> None:
    found = list(races(5, dtype))
    assert {race.dtype for race in found} == {dtype}
    assert [race.bytes for race in found] == [32_000_000, 32_000_000, 1024, 1024, 64_000_000]
    assert all(race.bytes % dtype_of(dtype).itemsize == 0 for race in found)


def test_a_type_that_is_not_summed_is_refused() -> None:
    command = [sys.executable, "-m", "bench.compare", "--dtype", "float64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    for name in DTYPES:
        assert name in done.stderr
