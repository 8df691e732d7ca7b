"""Buckets are DDP's: by rule, by what DDP runs reported, and by PyTorch itself where it is installed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_BYTES, buckets
from p4reduce.workloads.traffic.model import GRADIENTS, Layer, Workload
from p4reduce.workloads.traffic.tables import MODELS, bundled

MIB = 2**20


def _workload(sizes: list[int]) -> Workload:
    return Workload("made up", "a test", tuple(Layer(f"l{i}", n, 0, 0) for i, n in enumerate(sizes)))


def test_the_last_layers_come_first() -> None:
    front, middle, back = 7 * MIB, MIB, MIB // 8
    first, second = buckets(_workload([front, middle, back]))
    # 0.5 MiB is not enough for the first bucket's limit of 1 MiB; with 4 MiB more it is full.
    assert first.layers == (2, 1)
    assert (first.first, first.last) == (1, 2)
    assert first.bytes == 4 * (middle + back)
    assert second.layers == (0,)
    assert second.bytes == 4 * front


def test_a_bucket_is_full_at_its_limit_not_above() -> None:
    workload = _workload([1, 1, 1, 1])
    assert [b.layers for b in buckets(workload, first_bytes=4, cap_bytes=8)] == [(3,), (2, 1), (0,)]
    assert [b.layers for b in buckets(workload, first_bytes=5, cap_bytes=9)] == [(3, 2), (1, 0)]


def test_a_given_size_is_for_the_first_bucket_too() -> None:
    """Check that it is as with DDP's bucket_cap_mb: the small first bucket is there by default only."""
    workload = _workload([MIB] * 4)
    assert [len(b.layers) for b in buckets(workload)] == [1, 3]
    assert [len(b.layers) for b in buckets(workload, cap_bytes=8 * MIB)] == [2, 2]
    assert [len(b.layers) for b in buckets(workload, cap_bytes=0)] == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_two_bytes_twice_as_many_elements_fit(dtype: str) -> None:
    workload = replace(_workload([MIB // 4] * 8), dtype=dtype)
    first, second = buckets(workload, first_bytes=MIB, cap_bytes=2 * MIB)[:2]
    assert (first.layers, first.bytes) == ((7, 6), MIB)
    assert (second.layers, second.bytes) == ((5, 4, 3, 2), 2 * MIB)


def test_no_bucket_holds_less_than_nothing() -> None:
    with pytest.raises(WorkloadError, match="cannot hold -1 bytes"):
        buckets(_workload([1]), cap_bytes=-1)


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    first=st.integers(0, 300),
    cap=st.integers(0, 300),
)
def test_every_layer_is_in_one_bucket_and_none_waits_for_more_than_its_limit(
    sizes: list[int], first: int, cap: int
) -> None:
    workload = _workload(sizes)
    made = buckets(workload, first_bytes=first, cap_bytes=cap)
    assert [index for bucket in made for index in bucket.layers] == list(reversed(range(len(sizes))))
    for position, bucket in enumerate(made):
        limit = cap if position else first
        assert bucket.bytes == 4 * sum(sizes[index] for index in bucket.layers)
        assert bucket.bytes >= limit or position == len(made) - 1
        assert len(bucket.layers) == 1 or bucket.bytes - 4 * sizes[bucket.layers[-1]] < limit


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # The all-reduces of a ResNet-50 that was trained with DDP and NCCL, in the sample trace of
        # mlcommons/chakra (tests/data/feeder_tests_trace.tar.gz).
        ("resnet-50", [8196000, 31502336, 26255360, 26550272, 9724160]),
        # rebuilt_bucket_sizes in the logging data of DDP (PyTorch 2.13), after the first iteration.
        ("alexnet", [16388000, 67125248, 151011328, 9878784]),
        ("vgg-16", [16388000, 67125248, 411058176, 28315648, 28320768, 2222336]),
        ("bert-base", [2362368, *[28351488] * 11]),
        ("gpt-2", [9446400, *[28351488] * 11]),
    ],
)
def test_what_real_runs_had(model: str, expected: list[int]) -> None:
    assert [bucket.bytes for bucket in buckets(bundled(model))][: len(expected)] == expected


def test_what_a_real_run_with_smaller_buckets_had() -> None:
    """`rebuilt_bucket_sizes` of DDP(resnet50(), bucket_cap_mb=4)."""
    made = buckets(bundled("resnet-50"), cap_bytes=4 * MIB)
    assert [bucket.bytes for bucket in made][:6] == [8196000, 4210688, 9441280, 4198400, 4210688, 9441280]


@pytest.mark.slow  # importing torch takes seconds
@pytest.mark.parametrize("cap_bytes", [None, 0, 4 * MIB, 100 * MIB])
@pytest.mark.parametrize("dtype", GRADIENTS)
def test_as_pytorch_assigns_them(cap_bytes: int | None, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch's own assignment")
    distributed = pytest.importorskip("torch.distributed", reason="compares with PyTorch's own assignment")
    if not distributed.is_available():
        pytest.skip("this PyTorch was built without torch.distributed")
    limits = [DEFAULT_FIRST_BYTES, DEFAULT_CAP_BYTES] if cap_bytes is None else [cap_bytes]
    for model in MODELS:
        workload = bundled(model, dtype=dtype)
        order = list(reversed(range(len(workload.layers))))
        kind = getattr(torch, dtype)
        tensors = [torch.empty(workload.layers[index].numel, dtype=kind, device="meta") for index in order]
        theirs, _ = distributed._compute_bucket_assignment_by_size(
            tensors, limits, [False] * len(tensors), order
        )
        assert [list(bucket.layers) for bucket in buckets(workload, cap_bytes=cap_bytes)] == theirs
