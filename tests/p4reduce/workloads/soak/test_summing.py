"""Comparison of two ways to the same sum by a soak's workers."""

from __future__ import annotations

import numpy as np
import pytest

from p4reduce.workloads.errors import VerificationError
from p4reduce.workloads.soak.board import Running
from p4reduce.workloads.soak.summing import _require_close, _subsets
from p4reduce.workloads.tensors import dtype_of

CASE = {"reduction": "sum"}


def test_machines_are_left_out_whole() -> None:
    assert [*_subsets([0, 1, 2, 3, 4, 5], 2, 2)] == [
        (0, 1, 2, 3, 4, 5),
        (2, 3, 4, 5),
        (0, 1, 2, 3),
        (2, 3),
    ]
    assert [*_subsets([0, 1, 3], 1, 1)] == [(0, 1, 3), (1, 3), (0, 1), (1,)]


def test_who_is_killed_takes_its_machine_along() -> None:
    job = Running("train", {0, 1, 2, 3}, 2)
    job.kill(3)
    assert (job.ranks, job.killed) == ({0, 1}, {2, 3})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 100.0])
def test_sums_that_are_apart(dtype: str, value: float) -> None:
    expected = np.ones(8, dtype_of(dtype))
    found = expected.copy()
    _require_close(found, expected, CASE, size=4)
    found[3] = value
    with pytest.raises(VerificationError, match="apart"):
        _require_close(found, expected, CASE, size=4)
