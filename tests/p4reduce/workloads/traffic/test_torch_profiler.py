"""Traces of torch.profiler: a recorded one, and made ones for what a CPU without DDP does not show.

data/torch-profiler.json.gz is two training iterations (SGD, cross entropy) on a processor with PyTorch 2.13,
with `record_shapes=True` and a schedule, of a batch of 8 on Sequential(Conv2d(3, 16, 3), BatchNorm2d(16),
ReLU, MaxPool2d(2), Conv2d(16, 32, 3), ReLU, Flatten, Linear(6272, 64), ReLU, Linear(64, 10)). Only operators
and annotations were kept of it, and of their arguments shapes and sequence numbers.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.model import GRADIENTS, Workload
from p4reduce.workloads.traffic.torch_profiler import from_document, from_text
from tests.p4reduce.workloads.traffic.traces import ACCUMULATE, backward, event, gradient

RECORDED = Path(__file__).parent / "data" / "torch-profiler.json.gz"


def _recorded() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return document


def _read(*events: dict[str, Any], dtype: str | None = None) -> Workload:
    return from_document({"traceEvents": list(events)}, name="made", where="made.json", dtype=dtype)


def test_a_recorded_trace() -> None:
    workload = from_document(_recorded(), name="small", where="small.json")
    assert [layer.name for layer in workload.layers] == [
        "0 conv2d 16", "1 conv2d 16x3x3x3", "2 batch_norm 16", "3 batch_norm 16", "4 conv2d 32",
        "5 conv2d 32x16x3x3", "6 linear 64x6272", "7 linear 64", "8 linear 10x64", "9 linear 10",
    ]  # fmt: skip
    assert workload.numel == 16 + 432 + 16 + 16 + 32 + 4608 + 401408 + 64 + 640 + 10
    assert "10 gradients, timed on the processor" in workload.source
    assert workload.source.endswith("gradients are taken as float32")  # this one does not tell
    halved = from_document(_recorded(), name="small", where="small.json", dtype="float16")
    assert halved.layers == workload.layers
    assert 2 * halved.gradient_bytes == workload.gradient_bytes


def _typed(*kinds: Any) -> list[dict[str, Any]]:
    """An iteration whose gradients, in turn, are recorded as of these types."""
    events, turn = _iteration(0), 0
    for entry in events:
        if entry["name"] == ACCUMULATE:
            entry["args"]["Input type"] = kinds[turn % len(kinds)]
            turn += 1
    return events


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float", "float32"), ("c10::Half", "float16"), ("c10::BFloat16", "bfloat16")]
)
def test_gradients_have_the_type_that_was_recorded(kind: str, dtype: str) -> None:
    workload = _read(*_typed([kind]))
    assert workload.dtype == dtype
    assert workload.gradient_bytes == 36 * (4 if dtype == "float32" else 2)
    assert "taken as" not in workload.source
    assert _read(*_typed([kind]), dtype=dtype) == workload
    other = "float16" if dtype == "bfloat16" else "bfloat16"
    with pytest.raises(
        WorkloadError, match=f"made.json recorded gradients of {dtype}, not {other}: leave --dtype out"
    ):
        _read(*_typed([kind]), dtype=other)


def test_gradients_of_several_types_or_of_others() -> None:
    mixed = _typed(["float"], ["c10::BFloat16"])
    with pytest.raises(
        WorkloadError, match=r"has gradients of bfloat16 and float32: .* say which \(--dtype\)"
    ):
        _read(*mixed)
    assert _read(*mixed, dtype="bfloat16").dtype == "bfloat16"
    with pytest.raises(WorkloadError, match="not float16"):
        _read(*mixed, dtype="float16")
    with pytest.raises(WorkloadError, match="has gradients of double: a replay has one of float32, float16"):
        _read(*_typed(["double"]))
    assert _read(*_typed(["double"]), dtype="float32").dtype == "float32"
    for odd in ([], [""], [4], "float", None):
        assert _read(*_typed(odd)).dtype == "float32"


def test_the_last_iteration_is_taken_without_the_optimiser() -> None:
    events = _recorded()["traceEvents"]
    step = max((e for e in events if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])
    inside = [e for e in events if e["cat"] == "cpu_op" and step["ts"] <= e["ts"] <= step["ts"] + step["dur"]]
    begin = min(e["ts"] for e in inside if e["name"] == "aten::conv2d")
    handed = [e for e in inside if e["name"].endswith("evaluate_function: torch::autograd::AccumulateGrad")]
    end = max(e["ts"] + e["dur"] for e in handed)
    workload = from_document(_recorded(), name="small", where="small.json")
    assert workload.forward_ns + workload.backward_ns == pytest.approx((end - begin) * 1000, abs=100)
    assert end < step["ts"] + step["dur"]


def _iteration(at: float, *, shape: list[int] | None = None) -> list[dict[str, Any]]:
    """Two linear layers: 10 and 20 us forward, 30 and 60 us until their gradients are there."""
    return [
        event("aten::rand", at - 5, 1),  # data: before the forward pass
        event("aten::linear", at, 8, Sequence_number=10),
        event("aten::addmm", at + 1, 5, Sequence_number=11),  # inside, and what is differentiated
        event("aten::dropout", at + 8, 1),  # nothing backward: the time is linear's
        event("aten::linear", at + 10, 12, Sequence_number=12),
        event("aten::mse_loss", at + 22, 6, Sequence_number=13),
        *backward("MseLossBackward0", at + 30, 10, 13),
        *backward("AddmmBackward0", at + 40, 18, 12),
        *gradient(at + 58, 2, shape or [5, 4]),
        *backward("AddmmBackward0", at + 60, 40, 11),
        *gradient(at + 100, 8, [4, 3]),
        *backward("TBackward0", at + 108, 10, 10),
        *gradient(at + 118, 2, [4]),
        event("Optimizer.step#SGD.step", at + 130, 40, category="user_annotation"),
        event("aten::add_", at + 131, 30, Sequence_number=14),
    ]


def test_times_go_to_the_gradient_whose_backward_they_are() -> None:
    workload = _read(*_iteration(1000), *_iteration(2000))
    assert [(layer.name, layer.numel) for layer in workload.layers] == [
        ("0 linear 4", 4), ("1 linear 4x3", 12), ("2 linear 5x4", 20),
    ]  # fmt: skip
    # The last gradient to come (sequence number 10) is needed first; the operator needs both.
    assert [layer.forward_ns for layer in workload.layers] == [0, 10_000, 20_000]
    assert [layer.backward_ns for layer in workload.layers] == [12_000, 48_000, 30_000]


def test_an_iteration_that_was_cut_off_is_not_taken() -> None:
    cut = [entry for entry in _iteration(5000, shape=[7]) if entry["ts"] < 5090]
    assert _read(*_iteration(1000), *cut).layers == _read(*_iteration(1000)).layers


def test_on_a_gpu_the_kernels_time_counts() -> None:
    def launched(at: float, duration: float, name: str = "gemm") -> list[dict[str, Any]]:
        correlation = int(at)
        return [
            event("cudaLaunchKernel", at, 1, category="cuda_runtime", correlation=correlation),
            event(name, at + 5000, duration, category="kernel", thread=7, correlation=correlation),
        ]

    workload = _read(
        *_iteration(1000),
        *launched(1002, 100),
        *launched(1011, 300),
        *launched(1041, 1000),
        *launched(1059, 9999, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        *launched(1070, 500),
        *launched(1075, 50, "Memset"),
        *launched(1140, 77),  # the optimiser's
    )
    assert [layer.forward_ns for layer in workload.layers] == [0, 100_000, 300_000]
    assert [layer.backward_ns for layer in workload.layers] == [0, 550_000, 1_000_000]
    assert "on the GPU" in workload.source


def test_odd_threads_and_correlations_are_no_mistake() -> None:
    odd = [{**entry, "tid": [1]} for entry in _iteration(0)]
    kernel = event("gemm", 5000, 9, category="kernel", correlation=[1])
    launch = event("cudaLaunchKernel", 2, 1, category="cuda_runtime", correlation=[1])
    assert _read(*odd, kernel, launch).layers == _read(*_iteration(0)).layers


def test_a_list_of_events_is_a_trace_too() -> None:
    listed = from_text(json.dumps(_iteration(0)), name="made", where="made.json")
    assert listed.layers == _read(*_iteration(0)).layers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "made.json is no JSON"),
        ('{"events": []}', "made.json has no traceEvents"),
        ('{"traceEvents": 4}', "traceEvents is no list"),
        ('{"traceEvents": []}', "no torch::autograd::AccumulateGrad among its 0 events"),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": "long"}]}', "event 0 is no trace event"),
        ('[{"ph": "X", "ts": 1, "args": [1]}]', "event 0 is no trace event"),
        ('[{"ph": "X", "ts": NaN}]', "event 0 is no trace event"),
        ('[{"ph": "X", "ts": 1, "dur": NaN}]', "event 0 is no trace event"),
        ('[{"ph": "X", "ts": 1, "dur": 1e999}]', "event 0 is no trace event"),
        ("[" * 100_000, "made.json is no JSON"),
        (json.dumps(_iteration(0)[:6]), "no gradient was computed"),
        (
            json.dumps([e for e in _iteration(0) if not e["name"].endswith("function: " + ACCUMULATE)]),
            "does not tell when gradients were ready",
        ),
        (json.dumps(gradient(0, 4, None)), "recorded without shapes"),
        (json.dumps(gradient(0, 4, [4]) + gradient(8, 4, [0])), r"'Input Dims' \[\[0\]\], which is no shape"),
    ],
)  # fmt: skip
def test_mistakes_say_how_to_record(text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        from_text(text, name="made", where="made.json")
    if "no JSON" not in says and "event 0" not in says:
        with pytest.raises(WorkloadError, match="record_shapes=True"):
            from_text(text, name="made", where="made.json")


@pytest.mark.slow  # importing torch takes seconds
@pytest.mark.parametrize("dtype", GRADIENTS)
def test_what_the_installed_pytorch_records(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="records a trace with the PyTorch that is installed")
    layers = torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)
    model = torch.nn.Sequential(*layers).to(getattr(torch, dtype))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        for _ in range(2):
            model(torch.ones(3, 6, dtype=getattr(torch, dtype))).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    workload = from_text((tmp_path / "trace.json").read_text(), name="trace", where="trace.json")
    assert sorted(layer.numel for layer in workload.layers) == [2, 5, 10, 30]
    assert workload.dtype == dtype
    assert workload.forward_ns > 0
    assert workload.backward_ns > 0
