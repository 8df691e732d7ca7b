"""Gloo adds 16-bit floats in their own type: each addition is rounded to it, and none is widened."""

from __future__ import annotations

import itertools
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from p4reduce.workloads.strategies.gloo import Gloo, gloo_missing
from p4reduce.workloads.tensors import dtype_of

pytestmark = [
    pytest.mark.slow,  # importing torch takes seconds
    pytest.mark.skipif(bool(gloo_missing()), reason=gloo_missing()),
]
RANKS = 3
ELEMENTS = 100_003
TYPES = ("float16", "bfloat16")


def values(rank: int, dtype: str, *, subnormal: bool) -> NDArray[Any]:
    """Return finite bit patterns of all magnitudes, or of subnormal numbers alone."""
    mask = {"float16": 0x83FF, "bfloat16": 0x807F}[dtype] if subnormal else 0xBFFF
    bits = np.random.default_rng([9, rank]).integers(0, 1 << 16, ELEMENTS, dtype=np.uint16)
    found: NDArray[Any] = (bits & np.uint16(mask)).view(dtype_of(dtype))
    return found


def worker(rank: int, meeting_place: Path, results: Any) -> None:
    gloo = Gloo(meeting_place, controller="127.0.0.1:1", rank=rank, world_size=RANKS)
    found = {}
    for dtype, subnormal in itertools.product(TYPES, (False, True)):
        array = values(rank, dtype, subnormal=subnormal)
        gloo.sum(array)
        found[dtype, subnormal] = array.view(np.uint16)
    gloo.barrier()
    gloo.close()
    results.put(found)


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, bool], Any]]:
    """Return what each of three processes got, over the loopback interface."""
    context = multiprocessing.get_context("spawn")
    meeting_place, results = tmp_path_factory.mktemp("gloo") / "meeting", context.Queue()
    workers = [context.Process(target=worker, args=(rank, meeting_place, results)) for rank in range(RANKS)]
    for process in workers:
        process.start()
    try:
        return [results.get(timeout=120) for _ in workers]
    finally:
        for process in workers:
            process.join(timeout=30)
            process.kill()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("subnormal", [False, True])
def test_each_sum_is_one_of_the_types_own(sums: Any, dtype: str, subnormal: bool) -> None:
    assert len({found[dtype, subnormal].tobytes() for found in sums}) == 1
    result = sums[0][dtype, subnormal].view(dtype_of(dtype))
    inputs = [values(rank, dtype, subnormal=subnormal) for rank in range(RANKS)]
    right = [(inputs[a] + inputs[b]) + inputs[c] for a, b, c in itertools.permutations(range(RANKS))]
    assert np.isfinite(inputs).all()
    assert np.logical_or.reduce([result == one for one in right]).all()
    once = np.add.reduce([one.astype(np.float64) for one in inputs]).astype(dtype_of(dtype))
    assert np.count_nonzero(once != result) == 0 if subnormal else np.count_nonzero(once != result) > 0
