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
    """Return an iteration whose gradients, in turn, are recorded as of these types."""
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
    """Return two linear layers: 10 and 20 us forward, 30 and 60 us until their gradients are there."""
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


def _step(at: float, name: str = "Optimizer.step#SGD.step", duration: float = 10) -> dict[str, Any]:
    return event(name, at, duration, category="user_annotation")


def _backward_pass(
    at: float, number: int, *shapes: list[int], added: bool | None = None
) -> list[dict[str, Any]]:
    """Return 10 us forward, and 10 us for each gradient, which is handed over in the last half of these."""
    events = [event("aten::linear", at, 10)]
    events += [
        event("aten::addmm", at + 1 + turn, 1, Sequence_number=number - turn) for turn in range(len(shapes))
    ]
    for turn, shape in enumerate(shapes):
        start = at + 10 + 10 * turn
        events += backward("AddmmBackward0", start, 5, number - turn)
        events += gradient(start + 5, 5, shape)
        if added is not None:
            name = "aten::add_" if added else "aten::detach"
            events.append(event(name, start + 7, 1, thread=2))
    return events


def test_accumulated_gradients_count_once_when_the_last_pass_has_them() -> None:
    events = [
        *_backward_pass(0, 9, [4], [5]), *_backward_pass(100, 19, [4], [5]), _step(150),
        *_backward_pass(200, 29, [4], [5]), *_backward_pass(300, 39, [4], [5]), _step(350),
    ]  # fmt: skip
    workload = _read(*events)
    assert [layer.numel for layer in workload.layers] == [5, 4]
    # From 200 to 300 there are a forward pass of 10 us, and a backward pass with what follows it.
    assert workload.forward_ns == 20_000
    assert [layer.backward_ns for layer in workload.layers] == [10_000, 90_000 + 10_000]
    assert "2 backward passes" in workload.source
    assert "bounded by Optimizer.step" in workload.source


def test_labels_of_the_profiler_bound_an_iteration_unless_the_optimizer_says_otherwise() -> None:
    passes = [_backward_pass(100 * turn, 10 * turn + 9, [4], [5]) for turn in range(4)]
    labels = [_step(100 * turn, f"ProfilerStep#{turn}", 90) for turn in range(4)]
    events = [entry for each in passes for entry in each]
    whole = _read(*events, *labels)
    assert "bounded by ProfilerStep#" in whole.source
    assert whole.forward_ns + whole.backward_ns == 30_000
    accumulated = _read(*events, *labels, _step(140), _step(340))
    assert "bounded by Optimizer.step; as not every ProfilerStep# has one" in accumulated.source
    assert accumulated.forward_ns + accumulated.backward_ns == 130_000
    cut = _read(*events, *labels, _step(40), _step(140), _step(240))
    assert "bounded by ProfilerStep#" in cut.source
    assert cut.layers == whole.layers


def _gan(at: float, number: int) -> list[dict[str, Any]]:
    """Return two passes; the second leaves gradients of the first one's parameter, too."""
    return [
        *_backward_pass(at, number + 9, [4]), _step(at + 50),
        *_backward_pass(at + 100, number + 19, [4], [5]), _step(at + 150),
    ]  # fmt: skip


def test_optimizers_in_turn_make_one_iteration() -> None:
    workload = _read(*_gan(0, 0), *_gan(1000, 100))
    assert [layer.numel for layer in workload.layers] == [5, 4]
    assert (
        "2 times Optimizer.step with different gradients are an iteration, as they repeat" in workload.source
    )
    # A forward pass and a backward pass, a gap of 70 us without the step's 10, and the second one's.
    assert workload.forward_ns == 20_000
    assert workload.backward_ns == 10_000 + 70_000 + 20_000
    labels = [_step(0, "ProfilerStep#0", 900), _step(1000, "ProfilerStep#1", 900)]
    assert _read(*_gan(0, 0), *_gan(1000, 100), *labels).layers == workload.layers
    with pytest.raises(
        WorkloadError, match=r"2 times Optimizer.step with different gradients, .* ProfilerStep# does"
    ):
        _read(*_gan(0, 0))


def test_a_pass_that_leaves_no_gradient_belongs_to_the_forward_pass() -> None:
    events = [
        event("aten::linear", 0, 10, Sequence_number=1),
        *backward("AddmmBackward0", 10, 20, 1),
        event(f"autograd::engine::evaluate_function: {ACCUMULATE}", 30, 1, thread=2),  # it is captured
        event("aten::norm", 40, 10, Sequence_number=2),
        *backward("NormBackward0", 50, 5, 2),
        *backward("AddmmBackward0", 55, 5, 1),
        *gradient(60, 10, [4]),
    ]
    workload = _read(*events)
    assert [(layer.name, layer.forward_ns, layer.backward_ns) for layer in workload.layers] == [
        ("0 linear 4", 50_000, 20_000)
    ]


def test_functions_that_run_inside_others_hand_over_gradients_too() -> None:
    events = [
        event("aten::linear", 0, 10, Sequence_number=1),
        event("CheckpointFunction", 10, 10, Sequence_number=2),
        *backward("CheckpointFunctionBackward", 20, 60, 2),
        event("aten::detach", 22, 1, thread=2, Input_Dims=[[3, 5]], Input_type=["float"]),
        # Each thread counts for itself; functions name it by a number of PyTorch's.
        event("aten::mm", 25, 5, thread=2, Sequence_number=1),
        {**(inner := backward("MmBackward0", 30, 10, 1)[0]), "args": {**inner["args"], "Fwd thread id": 2}},
        *gradient(40, 10, [5, 4]),
        *gradient(50, 5, [3, 5]),  # of its input, which is no parameter
        *gradient(60, 10, [5, 4]),
        *backward("AddmmBackward0", 80, 10, 1),
        *gradient(90, 10, [4]),
    ]
    for entry in events:
        if entry["name"] == ACCUMULATE:
            entry["args"]["Input type"] = ["float"]
    workload = _read(*events)
    assert [layer.name for layer in workload.layers] == ["0 linear 4", "1 mm 5x4", "2 mm 5x4"]
    assert [layer.backward_ns for layer in workload.layers] == [30_000, 20_000, 30_000]
    assert [layer.forward_ns for layer in workload.layers] == [10_000, 0, 10_000]


def test_gradients_that_may_be_others_are_told() -> None:
    zero = _step(70, "Optimizer.zero_grad#SGD.zero_grad")
    passes = [*_backward_pass(0, 9, [4], added=False), *_backward_pass(100, 19, [4], added=False)]
    label = _step(0, "ProfilerStep#0", 900)
    cleared = _read(*passes, zero, label)
    assert [layer.numel for layer in cleared.layers] == [4]
    assert "1 gradients of later passes are taken as those of earlier parameters" in cleared.source
    twins = _read(*passes, label)
    assert [layer.numel for layer in twins.layers] == [4, 4]
    assert "1 gradients of later passes are taken as other parameters'" in twins.source


def _with_undefined(at: float, *updated: list[int], times: int = 1) -> list[dict[str, Any]]:
    """Return a scalar, a gradient of 4, undefined ones, and what the optimizer updates."""
    shapes: list[list[int]] = [[], [4], *([] for _ in range(times))]
    events = [*_backward_pass(at, round(at) + 9, *shapes), _step(at + 100, duration=50)]
    for turn, entry in enumerate(entry for entry in events if entry["name"] == ACCUMULATE):
        entry["args"]["Input type"] = ["float" if turn < 2 else ""]
    events += [
        event("aten::add_", at + 101 + turn, 1, Input_Dims=[shape, shape, []])
        for turn, shape in enumerate(updated)
    ]
    return events


def test_an_undefined_gradient_is_refused_by_name_unless_the_optimizer_tells_its_size() -> None:
    for updated in ([], [[], [4]], [[], [4], [6], [7]]):
        with pytest.raises(
            WorkloadError, match=r"the gradient that 'linear' hands over at 35.0 us is undefined"
        ):
            _read(*_with_undefined(0, *updated))
    workload = _read(*_with_undefined(0, [], [4], [5000]))
    assert [layer.numel for layer in workload.layers] == [5000, 4, 1]
    assert "1 undefined gradients have the size that Optimizer.step updated" in workload.source
    workload = _read(*_with_undefined(0, [], [4], [6], [6], times=2))
    assert [layer.numel for layer in workload.layers] == [6, 6, 4, 1]
    with pytest.raises(WorkloadError, match="is undefined"):  # which of them is which?
        _read(*_with_undefined(0, [], [4], [6], [7], times=2))


def test_scalars_without_a_type_are_told() -> None:
    workload = _read(*_backward_pass(0, 9, []))
    assert [layer.name for layer in workload.layers] == ["0 linear scalar"]
    assert "gradients without dimensions are taken as scalars" in workload.source
    typed = _with_undefined(0, times=0)
    assert "taken as scalars" not in _read(*typed).source


def _older(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events as Kineto recorded them until 2021.

    Categories are others, labels are operators, and no name has evaluate_function in front.
    """
    names = {
        "cpu_op": "Operator",
        "user_annotation": "Operator",
        "kernel": "Kernel",
        "cuda_runtime": "Runtime",
    }
    older = []
    for entry in events:
        name = entry["name"].removeprefix("autograd::engine::evaluate_function: ")
        if name != entry["name"] and name == ACCUMULATE:
            continue
        args = {key.replace("Dims", "dims"): value for key, value in entry["args"].items()}
        older.append({**entry, "name": name, "cat": names[entry["cat"]], "args": args})
    return older


def test_traces_of_before_2021_are_read() -> None:
    events = _iteration(1000) + _iteration(2000)
    label = event("## all ##", 900, 2000)
    workload = _read(*_older(events), *_older([label]))
    assert [(layer.name, layer.numel) for layer in workload.layers] == [
        ("0 linear 4", 4), ("1 linear 4x3", 12), ("2 linear 5x4", 20),
    ]  # fmt: skip
    # Each is ready when the function ends that hands it over, not when the engine is done with it.
    assert workload.forward_ns == 30_000
    assert [layer.backward_ns for layer in workload.layers] == [13_500, 46_500, 29_500]
    assert "bounded by Optimizer.step" in workload.source
    launched = [
        event("cudaLaunchKernel", 2050, 1, category="cuda_runtime", correlation=7),
        event("gemm", 9000, 70, category="kernel", thread=7, correlation=7),
    ]
    assert _read(*_older(events + launched)).backward_ns == 70_000
    alone = [entry for entry in _older(_backward_pass(0, 9, [1000])) if entry["name"] != "aten::linear"]
    for entry in alone:
        entry["args"].pop("Sequence number", None)
    assert [(layer.numel, layer.forward_ns) for layer in _read(*alone).layers] == [(1000, 0)]


def test_traces_that_lack_events_are_refused_for_that() -> None:
    whole = _iteration(0)
    functions = [entry for entry in whole if not entry["name"].endswith(ACCUMULATE)]
    for events in (functions, _older(functions)):
        with pytest.raises(WorkloadError, match=r"4 functions of backward passes, .*MseLossBackward0'"):
            _read(*events)
    empty = [entry for entry in whole if entry["name"] != ACCUMULATE]
    with pytest.raises(WorkloadError, match=f"not the {ACCUMULATE} inside, which knows the shape"):
        _read(*empty)
    sampled = [entry for entry in whole if entry["name"] != ACCUMULATE or entry["ts"] != 102]
    with pytest.raises(
        WorkloadError, match=rf"no {ACCUMULATE} inside 1 of its functions .* at 100.0 us, though"
    ):
        _read(*sampled)
    kernels = [event("gemm", 0, 9, category="kernel"), event("Memset", 9, 9, category="gpu_memset")]
    with pytest.raises(WorkloadError, match=r"no operators of the processor among its 2 events .*'kernel'"):
        _read(*kernels)
    plain = [{**entry, "pid": "CPU functions", "args": {}} for entry in _older(whole)]
    for entry in plain:
        del entry["cat"]  # as torch.autograd.profiler wrote them
    with pytest.raises(WorkloadError, match="recorded without shapes"):
        _read(*plain)


def test_a_step_with_a_closure_has_forward_and_backward_passes_inside() -> None:
    events = [*_backward_pass(10, 9, [4], [5]), event("aten::add_", 60, 20, Sequence_number=99)]
    workload = _read(*events, _step(0, duration=100))
    assert workload.forward_ns == 10_000
    assert workload.backward_ns == 20_000
    assert "bounded by Optimizer.step" in workload.source


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
