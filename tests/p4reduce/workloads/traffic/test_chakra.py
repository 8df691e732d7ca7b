"""Chakra execution traces: the bytes, the order of nodes, and which time goes where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.chakra import from_binary, from_json
from p4reduce.workloads.traffic.model import Workload
from tests.p4reduce.workloads.traffic.traces import (
    ALL_GATHER,
    COMM_COLL_NODE,
    all_reduce,
    delimited,
    metadata,
    node,
    varint,
)


def _read(*messages: bytes) -> Workload:
    return from_binary(delimited(metadata(), *messages), name="made", where="made.et")


def _seen(workload: Workload) -> list[tuple[str, int, int, int]]:
    return [(layer.name, layer.numel, layer.forward_ns, layer.backward_ns) for layer in workload.layers]


# What chakra_converter makes of a text file of two data-parallel layers, for two passes.
TEXT = [
    node(0, "COMP_NODE_conv_FWD", duration_us=100),
    node(1, "COMP_NODE_fc_FWD", duration_us=40, after=(0,)),
    node(2, "COMP_NODE_fc_BWD_WG", duration_us=30, after=(1,)),
    all_reduce(3, "COMM_COLL_NODE_fc_ALLREDUCE", 4000, after=(2,)),
    node(4, "COMP_NODE_fc_BWD_IG", duration_us=20, after=(2,)),
    node(5, "COMP_NODE_conv_BWD_WG", duration_us=150, after=(4,)),
    all_reduce(6, "COMM_COLL_NODE_conv_ALLREDUCE", 801, after=(5,)),
]
SECOND = [
    node(7, "COMP_NODE_conv_FWD", duration_us=9999, after=(6,)),
    node(8, "COMP_NODE_fc_BWD_WG", duration_us=9999, after=(7,)),
    all_reduce(9, "COMM_COLL_NODE_fc_ALLREDUCE", 4000, after=(8,)),
]


def test_a_trace_of_layers() -> None:
    """Sizes are bytes (801 need 201 floats); the gradient of fc is ready before its inputs' is."""
    workload = _read(*TEXT)
    assert _seen(workload) == [("conv", 201, 100_000, 170_000), ("fc", 1000, 40_000, 30_000)]
    assert workload.source == "Chakra execution trace made.et; gradients are taken as float32"


def test_sizes_are_bytes_of_whatever_type() -> None:
    """801 need 401 elements of two bytes; times are the same."""
    content = delimited(metadata(), *TEXT)
    workload = from_binary(content, name="made", where="made.et", dtype="bfloat16")
    assert _seen(workload) == [("conv", 401, 100_000, 170_000), ("fc", 2000, 40_000, 30_000)]
    assert workload.dtype == "bfloat16"
    assert workload.gradient_bytes == 802 + 4000
    assert workload.source.endswith("gradients are taken as bfloat16")


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork)", "float32"),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL", "float32"),
        ("ncclKernel_AllReduce_TREE_LL128_Sum_half", "float16"),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long)", "float16"),
        ("ncclKernel_AllReduce_RING_LL_Sum___nv_bfloat16", "bfloat16"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE", "bfloat16"),
    ],
)
def test_kernels_tell_the_type(kernel: str, dtype: str) -> None:
    content = delimited(
        metadata(), node(1, "x_backward", duration_us=9), all_reduce(2, kernel, 64, after=(1,))
    )
    workload = from_binary(content, name="made", where="made.et")
    assert (workload.dtype, workload.gradient_bytes) == (dtype, 64)
    assert "taken as" not in workload.source
    assert from_binary(content, name="made", where="made.et", dtype=dtype) == workload
    other = "bfloat16" if dtype == "float32" else "float32"
    with pytest.raises(WorkloadError, match=f"made.et recorded gradients of {dtype}, not {other}"):
        from_binary(content, name="made", where="made.et", dtype=other)


def test_kernels_of_two_types() -> None:
    content = delimited(
        metadata(),
        node(1, "x_backward", duration_us=9),
        all_reduce(2, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 64, after=(1,)),
        all_reduce(3, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 64, after=(1,)),
    )
    with pytest.raises(WorkloadError, match="has gradients of bfloat16 and float32: a replay has one"):
        from_binary(content, name="made", where="made.et")
    assert from_binary(content, name="made", where="made.et", dtype="bfloat16").numel == 64
    with pytest.raises(WorkloadError, match="recorded gradients of bfloat16 and float32, not float16"):
        from_binary(content, name="made", where="made.et", dtype="float16")


def test_layers_that_are_split_over_workers_sum_in_the_forward_pass_too() -> None:
    """Check that those sums are no gradients, and do not end the iteration."""
    split = all_reduce(20, "COMM_COLL_NODE_conv_ALLREDUCE", 64, after=(0,))
    assert _read(TEXT[0], split, *TEXT[1:]).layers == _read(*TEXT).layers


def test_sums_of_several_process_groups_are_said() -> None:
    """Check the note: tensor parallelism's sums in the backward pass cannot be told from gradients."""
    nodes = [
        node(1, "f", duration_us=10),
        all_reduce(2, "activations", 64, after=(1,), group="5"),
        node(3, "a_backward", duration_us=20, after=(2,)),
        all_reduce(4, "activations", 64, after=(3,), group="5"),
        all_reduce(5, "gradients", 800, after=(3,), group="0"),
    ]
    workload = _read(*nodes)
    assert workload.gradient_bytes == 864
    assert (
        "all-reduces of the forward pass are left out (1): if layers are split over workers, some of the "
        "backward pass are no gradients either, of process group 5; "
        "all-reduces of process groups 0, 5 are taken as gradients"
    ) in workload.source
    assert "all-reduces" not in _read(nodes[0], nodes[2], nodes[4]).source


def test_sums_of_input_gradients_are_told_by_name() -> None:
    """Check that they are not taken for gradients: their layers are split over workers."""
    for after, name in [(2, "COMM_COLL_NODE_fc_IG_COMM__ALLREDUCE"), (4, "COMM_COLL_NODE_fc_ALLREDUCE")]:
        split = all_reduce(20, name, 64, after=(after,))
        assert _read(*TEXT, split).layers == _read(*TEXT).layers
    with pytest.raises(WorkloadError, match="no all-reduce of gradients in its backward pass, and 1 others"):
        _read(*TEXT[:3], TEXT[4], split)


def test_layers_without_a_gradient_have_their_forward_time() -> None:
    """Check that it counts with the layer before: that one's parameters are needed when both begin."""
    text = [
        node(0, "COMP_NODE_stem_FWD", duration_us=7),
        node(1, "COMP_NODE_conv_FWD", duration_us=100, after=(0,)),
        node(2, "COMP_NODE_pool_FWD", duration_us=9, after=(1,)),
        node(3, "COMP_NODE_fc_FWD", duration_us=40, after=(2,)),
        node(4, "COMP_NODE_fc_BWD_WG", duration_us=30, after=(3,)),
        all_reduce(5, "COMM_COLL_NODE_fc_ALLREDUCE", 4000, after=(4,)),
        node(6, "COMP_NODE_conv_BWD_WG", duration_us=170, after=(4,)),
        all_reduce(7, "COMM_COLL_NODE_conv_ALLREDUCE", 800, after=(6,)),
    ]
    assert _seen(_read(*text)) == [("conv", 200, 116_000, 170_000), ("fc", 1000, 40_000, 30_000)]


def test_computing_behind_the_last_gradient_is_said() -> None:
    """An embedding, for instance, whose gradient is not summed."""
    workload = _read(*TEXT, node(7, "COMP_NODE_embedding_BWD_WG", duration_us=50, after=(5,)))
    assert workload.layers == _read(*TEXT).layers
    assert "0.05 ms of computing behind the last gradient are left out" in workload.source


def test_two_gradients_of_a_layer_have_its_forward_time_once() -> None:
    another = all_reduce(20, "COMM_COLL_NODE_fc_ALLREDUCE", 64, after=(5,))
    assert _seen(_read(*TEXT, another)) == [
        ("fc", 16, 0, 0),
        ("conv", 201, 100_000, 170_000),
        ("fc", 1000, 40_000, 30_000),
    ]


def test_of_several_iterations_the_first() -> None:
    workload = _read(*TEXT, *SECOND)
    assert workload.layers == _read(*TEXT).layers
    assert "no step of an optimiser is named: each backward pass is taken as an iteration" in workload.source


def test_passes_before_a_step_are_one_iteration() -> None:
    """The step tells; forward time is that of both passes, and each gradient has its layer's."""
    second = [
        node(7, "COMP_NODE_conv_FWD", duration_us=100, after=(6,)),
        node(8, "COMP_NODE_fc_FWD", duration_us=40, after=(7,)),
        node(9, "COMP_NODE_fc_BWD_WG", duration_us=30, after=(8,)),
        all_reduce(10, "COMM_COLL_NODE_fc_ALLREDUCE", 4000, after=(9,)),
        node(11, "COMP_NODE_conv_BWD_WG", duration_us=170, after=(9,)),
        all_reduce(12, "COMM_COLL_NODE_conv_ALLREDUCE", 801, after=(11,)),
        node(13, "Optimizer.step#SGD.step", duration_us=5, after=(11,)),
    ]
    assert _seen(_read(*TEXT, *second)) == [("conv", 201, 200_000, 170_000), ("fc", 1000, 80_000, 230_000)]


def test_nodes_may_come_in_any_order_and_unpacked() -> None:
    shuffled = [TEXT[index] for index in (6, 2, 0, 5, 1, 4, 3)]
    assert _read(*shuffled).layers == _read(*TEXT).layers
    unpacked = node(2, "COMP_NODE_fc_BWD_WG", duration_us=30, after=(1,), packed=False)
    assert _read(*TEXT[:2], unpacked, *TEXT[3:]).layers == _read(*TEXT).layers


def _recorded() -> list[bytes]:
    """Return nodes like those of PyTorch and NCCL: operators launch kernels, buckets are summed."""
    return [
        node(1, "aten::conv2d", duration_us=500, is_cpu_op=True),
        node(2, "implicit_gemm", duration_us=300, after=(1,), is_cpu_op=False),
        all_reduce(3, "ncclKernel_AllReduce (of batch statistics)", 64, after=(2,), duration_us=70),
        node(4, "autograd::engine::evaluate_function: ConvolutionBackward0", duration_us=800, is_cpu_op=True),
        node(5, "wgrad", duration_us=100, after=(4,), is_cpu_op=False),
        node(6, "c10d::allreduce_", COMM_COLL_NODE, after=(5,), duration_us=90, is_cpu_op=True),
        all_reduce(7, "ncclKernel_AllReduce_RING_LL_Sum_float", 400, after=(6,), duration_us=5000),
        node(8, "broadcast", COMM_COLL_NODE, after=(6,), comm_type=ALL_GATHER, comm_size=4),
        node(9, "wgrad", duration_us=500, after=(5,), is_cpu_op=False),
        all_reduce(10, "ncclKernel_AllReduce_RING_LL_Sum_float", 800, after=(9,), duration_us=5000),
        node(11, "Optimizer.step#SGD.step", duration_us=1000, after=(10,), is_cpu_op=True),
        all_reduce(12, "ncclKernel_AllReduce (of the loss)", 4, after=(11,)),
    ]


def test_a_recorded_trace_has_buckets_and_kernels() -> None:
    """The kernels' time counts; without layers' names, forward time is as backward time is (1 to 5)."""
    workload = _read(*_recorded())
    assert _seen(workload) == [
        ("all-reduce-1", 200, 250_000, 500_000),
        ("all-reduce-0", 100, 50_000, 100_000),
    ]
    assert "forward time spread over the layers" in workload.source


def test_an_all_reduce_is_ready_when_what_it_waits_for_is() -> None:
    """Check that its place in the file says nothing, and that parents may be missing in the file."""
    late = [
        node(1, "fwd", duration_us=10, after=(99, 1)),
        node(2, "a_backward", duration_us=20, after=(1,)),
        node(3, "b_backward", duration_us=40, after=(2,)),
        all_reduce(50, "b", 4, after=(3,)),
        all_reduce(60, "a", 8, after=(2,)),
    ]
    assert [(layer.numel, layer.backward_ns) for layer in _read(*late).layers] == [(1, 40_000), (2, 20_000)]


def test_start_times_decide_where_dependencies_do_not() -> None:
    nodes = [
        node(1, "b_backward", duration_us=40, start_us=300),
        node(2, "a_backward", duration_us=20, start_us=200),
        node(3, "f", duration_us=10, start_us=100),
        all_reduce(4, "x", 4, after=(2,)),
        all_reduce(5, "y", 8, after=(1,)),
    ]
    workload = _read(*nodes)
    assert workload.forward_ns == 10_000
    assert [(layer.numel, layer.backward_ns) for layer in workload.layers] == [(2, 40_000), (1, 20_000)]


def test_a_circle_ends() -> None:
    nodes = [node(1, "backward", after=(2,), duration_us=5), node(2, "x", after=(1,), duration_us=6)]
    assert _read(*nodes, all_reduce(3, "y", 4, after=(2,))).backward_ns == 11_000


def test_what_waits_for_a_circle_is_in_the_iteration() -> None:
    """Converters of 2023 let an all-reduce's operators depend on each other: they come in their places."""
    nodes = [
        node(1, "f", duration_us=10),
        node(2, "a_backward", duration_us=20, after=(1,)),
        all_reduce(3, "a", 400, after=(2,)),
        node(4, "b_backward", duration_us=40, after=(2,)),
        node(5, "c10d::allreduce_(0)", COMM_COLL_NODE, after=(6, 4)),
        node(6, "c10d::allreduce_(1)", COMM_COLL_NODE, after=(5,)),
        all_reduce(7, "b", 800, after=(5,)),
        node(8, "Optimizer.step#SGD.step", duration_us=9, after=(4,)),
        node(9, "f", duration_us=10, after=(8,)),
    ]
    assert [(layer.numel, layer.backward_ns) for layer in _read(*nodes).layers] == [
        (200, 40_000),
        (100, 20_000),
    ]


def test_a_long_chain_is_read() -> None:
    chain = [node(at, "x_backward", duration_us=1, after=(at + 1,)) for at in range(1, 5000)]
    workload = _read(*chain, node(5000, "f", duration_us=5), all_reduce(5001, "sum", 4, after=(1,)))
    assert (workload.forward_ns, workload.backward_ns) == (5000, 4_999_000)


def test_without_a_mark_a_third_is_forward() -> None:
    workload = _read(node(1, "k", duration_us=300), all_reduce(2, "x", 4, after=(1,)))
    assert (workload.forward_ns, workload.backward_ns) == (100_000, 200_000)
    assert "a third of the computing is taken as forward" in workload.source


def test_the_jsonizers_form() -> None:
    """MessageToJson's names: 64-bit numbers are strings, enumerations names; objects follow each other."""

    def attribute(name: str, value: int) -> dict[str, Any]:
        return {"name": name, "int64Val": str(value)}

    objects = [
        {"version": "0.0.4"},
        {"id": "1", "name": "f", "type": "COMP_NODE", "durationMicros": "10"},
        {"id": "2", "name": "f_backward", "type": "COMP_NODE", "dataDeps": ["1"], "durationMicros": "30"},
        {
            "id": "3", "name": "sum", "type": "COMM_COLL_NODE", "ctrlDeps": ["2"], "unheardOf": 1,
            "attr": [attribute("comm_type", 0), attribute("comm_size", 40)],
        },
    ]  # fmt: skip
    text = "".join(json.dumps(entry, indent=2) for entry in objects)
    assert _seen(from_json(text, name="made", where="made.json")) == [("all-reduce-0", 10, 10_000, 30_000)]


def test_the_feeders_json_form() -> None:
    graph = [
        {"Id": 1, "Name": "f", "NodeType": 4, "data_deps": [], "runtime": 10, "is_cpu_op": False},
        {"Id": 2, "Name": "f_backward", "NodeType": 4, "ctrlDeps": [1], "runtime": 30, "is_cpu_op": False},
        {"Id": 3, "Name": "sum", "NodeType": 7, "data_deps": [2], "comm_type": 0, "comm_size": 40},
    ]
    text = json.dumps({"workload_graph": graph})
    assert _seen(from_json(text, name="made", where="made.json")) == [("all-reduce-0", 10, 10_000, 30_000)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (delimited(metadata()), "made.et has no all-reduce with a size .* among its 0 nodes"),
        (
            delimited(metadata(), node(1, "x", COMM_COLL_NODE, comm_type=2, comm_size=8)),
            "has no all-reduce with a size .* of which 1 are collectives, 0 of them without comm_size",
        ),
        (
            delimited(metadata(), node(1, "x", COMM_COLL_NODE, is_cpu_op=False)),
            "of which 1 are collectives, 1 of them without comm_size: .* with all-reduce$",
        ),
        (delimited(metadata(), all_reduce(1, "x", 0)), "has no all-reduce with a size"),
        (
            delimited(metadata(), all_reduce(1, "x", 8), node(2, "x_backward", after=(1,))),
            "made.et has no all-reduce of gradients in its backward pass, and 1 others",
        ),
        # Before version 0.0.4, what a node is had other numbers, and no attributes.
        (
            delimited(node(0, "comp", 3), node(1, "sum", 6, after=(0,))),
            "message 0 is no GlobalMetadata .* has written since version 0.0.4",
        ),
        (delimited(metadata(), node(1, "a"), node(1, "b")), "made.et: 'a' and 'b' both have the id 1"),
        (delimited(metadata(), node(1, "sum", 6)), "as Chakra wrote them before version 0.0.4"),
        (delimited(metadata(), *TEXT)[:-1], "made.et: message 7, at byte .* the file ends before"),
        (delimited(metadata(), *TEXT) + b"\x80", "there is no length of a message"),
        (delimited(metadata(), b"\x0a\x05abc"), "message 1 is no Node of a Chakra execution trace"),
        (varint(2**60), "there is no length of a message"),
    ],
)
def test_malformed_bytes(content: bytes, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        from_binary(content, name="made", where="made.et")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"version": "1"} {"id": ', "made.json is no JSON"),
        ('{"version": "1"} [1]', "an object is expected, not list"),
        ('{"version": "1"} {"id": "one"}', "object 1 is no Chakra node"),
        ('{"workload_graph": [{"Id": 1}]}', "entry 0 of workload_graph is no Chakra node"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4, "runtime": 1e999}]}', "entry 0 of workload_graph"),
        ('{"version": "1"} {"id": 1e999}', "object 1 is no Chakra node"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 7, "comm_type": 0, "comm_size": NaN}]}', "no all-reduce"),
        ('{"a":' * 100_000, "made.json is no JSON"),
        ('{"workload_graph": 3}', "workload_graph is no list"),
        ('{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "without durations: join it with the profiler's"),
        ("", "has no all-reduce"),
    ],
)
def test_malformed_json(text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        from_json(text, name="made", where="made.json")
