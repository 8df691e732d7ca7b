"""Iterations on a simulated clock: what overlaps, what they gain, and that nothing is allocated."""

from __future__ import annotations

import tracemalloc

import pytest

from p4reduce.scale.iteration import SizesAlone, iterate
from p4reduce.scale.sweep import Cell, run
from p4reduce.workloads.hierarchy import speedup_of_iteration
from p4reduce.workloads.strategies.names import FLAT_RING, IN_NETWORK
from p4reduce.workloads.tensors import dtype_of
from p4reduce.workloads.traffic.buckets import buckets
from p4reduce.workloads.traffic.model import Layer, Workload
from p4reduce.workloads.traffic.tables import MODELS, bundled
from tests.p4reduce.scale.fabrics import fabric

MIB = 1 << 20
# Three buckets of DDP: 1 MiB and a layer each of 25, of 1 s forward and 2 s backward.
LAYERS = tuple(
    Layer(name, size * MIB // 4, 10**9, 2 * 10**9) for name, size in (("a", 25), ("b", 25), ("c", 1))
)
WORKLOAD = Workload("three", "a test", LAYERS)


def a_second_a_mib(size: int) -> float:
    return size / MIB


def test_sums_overlap_the_backward_pass() -> None:
    found = iterate(WORKLOAD, a_second_a_mib)
    # Ready at 5, 7 and 9 s: 5 to 6, 7 to 32, 32 to 57.
    assert (found.seconds, found.waiting_s, found.summing_s) == pytest.approx((57, 48, 51))


def test_without_overlap_all_comes_after_it() -> None:
    found = iterate(WORKLOAD, a_second_a_mib, overlap=False)
    assert (found.seconds, found.waiting_s, found.summing_s) == pytest.approx((9 + 51, 51, 51))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_buckets_are_ddps(model: str, dtype: str) -> None:
    workload, sizes = bundled(model, dtype=dtype), []

    def free(size: int) -> float:
        sizes.append(size)
        return 0.0

    found = iterate(workload, free)
    assert sizes == [bucket.bytes for bucket in buckets(workload)]
    assert found.seconds == pytest.approx((workload.forward_ns + workload.backward_ns) / 1e9)
    assert found.waiting_s == 0


def test_gradients_take_no_memory() -> None:
    tracemalloc.start()
    try:
        iterate(bundled("gpt-2"), lambda size: 0.0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 * MIB  # of 498 MB
    sizes = SizesAlone([1 << 40], rank=0, world_size=2, dtype=dtype_of("bfloat16"))
    assert sizes.buffer(0).nbytes == 2 << 40


@pytest.mark.parametrize("hosts", [6, 8])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 1.0])
def test_the_speedup_of_an_iteration_is_s_of_f(hosts: int, share: float) -> None:
    """Check it without overlap: computing takes what makes a ring's sums that share of the iteration."""
    on, size = fabric(hosts=hosts, gpus_per_host=1), 512 * MIB
    ring = run(Cell(what=size, strategy=FLAT_RING, fabric=on)).seconds
    computing = round(1e9 * ring * (1 - share) / share)
    workload = Workload("one", "a test", (Layer("w", size // 4, 0, computing),))
    seconds = [
        run(Cell(what=workload, strategy=strategy, fabric=on, overlap=False)).seconds
        for strategy in (FLAT_RING, IN_NETWORK)
    ]
    assert ring / seconds[0] == pytest.approx(share, rel=0.01)
    assert seconds[0] / seconds[1] == pytest.approx(speedup_of_iteration(share, hosts), rel=0.01)
