"""Halving-doubling and the parameter server make the right sums, and send what they should."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.collectives.plan import Strategy
from host_agent.wire.aggregation import Reduction
from p4reduce.workloads.strategies.gloo import as_torch, gloo_missing
from p4reduce.workloads.strategies.halving_doubling import HalvingDoubling, plan
from p4reduce.workloads.strategies.opening import pairs_of
from p4reduce.workloads.strategies.parameter_server import ParameterServer
from p4reduce.workloads.strategies.queued import QueuedReducer
from p4reduce.workloads.tensors import check, dtype_of, tensor
from tests.p4reduce.workloads.strategies.local_pairs import LocalPair, as_pairs, local_pairs

pytestmark = pytest.mark.slow

needs_torch = pytest.mark.skipif(bool(gloo_missing()), reason=gloo_missing())
Open = Callable[[dict[int, LocalPair], int, int], QueuedReducer]


def halving_doubling(ends: dict[int, LocalPair], rank: int, size: int) -> QueuedReducer:
    return HalvingDoubling(as_pairs(ends), rank=rank, world_size=size)


def parameter_server(ends: dict[int, LocalPair], rank: int, size: int) -> QueuedReducer:
    return ParameterServer(as_pairs(ends), rank=rank, world_size=size)


def peers_of(opened: Open, size: int) -> list[list[int]]:
    if opened is halving_doubling:
        return [plan(rank, size).peers for rank in range(size)]
    return [list(range(1, size)), *([0] for _ in range(1, size))]


def summed(opened: Open, arrays: list[Any]) -> list[dict[int, LocalPair]]:
    """Sum all ranks' arrays in place, and return the ranks' ends, which have counted."""
    size = len(arrays)
    everybody = local_pairs(peers_of(opened, size))
    reducers = [opened(ends, rank, size) for rank, ends in enumerate(everybody)]
    with ThreadPoolExecutor(max_workers=size) as pool:
        for future in [pool.submit(r.sum, a) for r, a in zip(reducers, arrays, strict=True)]:
            future.result(timeout=30)
    for ends in everybody:
        for end in ends.values():
            end.close()
    return everybody


@pytest.mark.parametrize("opened", [halving_doubling, parameter_server])
@settings(max_examples=15, deadline=None)
@given(size=st.integers(2, 9), elements=st.integers(1, 300), seed=st.integers(0, 1000))
def test_integers_are_summed_exactly(opened: Open, size: int, elements: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = [random.integers(-(2**31), 2**31, elements, dtype=np.int32) for _ in range(size)]
    expected = np.add.reduce(arrays, dtype=np.int32)
    summed(opened, arrays)
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("opened", [halving_doubling, parameter_server])
@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_have_the_same_bits_everywhere(opened: Open, size: int, dtype: str) -> None:
    # More than one piece of the parameter server's, the last one not full.
    elements = 800_004 // dtype_of(dtype).itemsize
    arrays = [tensor(seed=2, rank=rank, elements=elements, dtype=dtype_of(dtype)) for rank in range(size)]
    summed(opened, arrays)
    assert len({array.tobytes() for array in arrays}) == 1
    found = check(arrays[0], seed=2, world_size=size, reduction=Reduction.SUM, strategy=Strategy.RING)
    assert found.passed
    assert not found.exact


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16", "bfloat16"])
def test_bytes_are_the_tensors_own(dtype: str) -> None:
    arrays = [np.ones(1 << 12, dtype_of(dtype)) for _ in range(4)]
    for ends in summed(halving_doubling, arrays):
        assert (
            sum(end.bytes_sent for end in ends.values()) == 2 * 3 * (1 << 12) * dtype_of(dtype).itemsize // 4
        )


@needs_torch
@pytest.mark.slow  # importing torch takes seconds
@pytest.mark.parametrize("dtype", ["int32", "float32", "float16", "bfloat16"])
def test_gloo_sums_in_the_arrays_own_memory_and_type(dtype: str) -> None:
    import torch

    array = tensor(seed=3, rank=0, elements=1000, dtype=dtype_of(dtype))
    values = array.astype(np.float64)
    given = as_torch(array)
    assert given.dtype is getattr(torch, dtype)
    assert given.data_ptr() == array.ctypes.data
    assert given.nbytes == array.nbytes
    np.testing.assert_array_equal(given.double().numpy(), values)
    given[7] = 3
    assert array[7] == 3


class LostPair:
    """An end to a worker that has died."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError("rank 1 has died")


class Aborted(dict[int, Any]):
    """Pairs that hear why they are given up."""

    reason = ""

    def abort(self, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize("opened", [halving_doubling, parameter_server])
@pytest.mark.parametrize(
    "call", [lambda r, a: r.sum(a), lambda r, a: r.start(a).result(), lambda r, a: r.barrier()]
)
def test_what_goes_wrong_on_one_connection_ends_all(opened: Open, call: Any) -> None:
    pairs = Aborted({1: LostPair(), 2: LostPair(), 3: LostPair()})
    with pytest.raises(ConnectionError, match="rank 1 has died"):
        call(opened(pairs, 0, 4), np.ones(8, np.int32))
    assert pairs.reason == "rank 1 has died"


def test_halving_doubling_sends_what_a_ring_does() -> None:
    arrays = [np.ones(1 << 12, np.int32) for _ in range(8)]
    for ends in summed(halving_doubling, arrays):
        assert sum(end.bytes_sent for end in ends.values()) == 2 * 7 * arrays[0].nbytes // 8


def test_a_parameter_server_sends_every_worker_the_sum() -> None:
    arrays = [np.ones(1 << 20, np.int32) for _ in range(3)]
    server, *workers = summed(parameter_server, arrays)
    pieces = arrays[0].nbytes + 2 * 256 * 1024  # two are on their way before the first comes back
    assert sum(end.bytes_sent for end in server.values()) == 2 * pieces
    assert [sum(end.bytes_sent for end in ends.values()) for ends in workers] == [pieces, pieces]


@pytest.mark.parametrize("size", range(1, 18))
def test_partners_are_each_others(size: int) -> None:
    plans = [plan(rank, size) for rank in range(size)]
    for rank, own in enumerate(plans):
        for step, partner in enumerate(own.partners):
            assert plans[partner].partners[step] == rank
        if own.folds_with is not None:
            assert plans[own.folds_with].folds_with == rank
            assert own.lends != plans[own.folds_with].lends
    working = [own for own in plans if not own.lends]
    assert all(1 << len(own.partners) == len(working) for own in working)


def test_pairs_are_named_once() -> None:
    assert pairs_of("halving-doubling", 4) == {(0, 1), (2, 3), (0, 2), (1, 3)}
    assert pairs_of("parameter-server", 4) == {(0, 1), (0, 2), (0, 3)}
    assert pairs_of("ring", 4) == set()
