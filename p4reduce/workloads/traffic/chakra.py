"""MLCommons Chakra execution traces (https://github.com/mlcommons/chakra) as workloads.

A trace is a graph: nodes that compute, with a duration, and collectives, with a type and a size in bytes. All
that a replay needs is how much was computed before each all-reduce of the backward pass could start:

- `chakra_iteration` finds the first iteration, its forward pass, and how much was computed before each;
- an all-reduce becomes a layer, with its bytes as recorded; the names of NCCL's kernels tell of which type
  they were. What was computed since the one before is the layer's backward time;
- the forward time of a layer is that of the nodes of its name (what chakra_converter makes of text files);
  elsewhere forward time is spread over the layers as backward time is, which `Workload.source` says.

What was bucketed when it was recorded is bucketed: replay such traces with a bucket size of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.tensors import dtype_of
from p4reduce.workloads.traffic.chakra_iteration import first_iteration
from p4reduce.workloads.traffic.chakra_passes import reduced_bytes
from p4reduce.workloads.traffic.chakra_pb2 import COMM_COLL_NODE, COMP_NODE
from p4reduce.workloads.traffic.chakra_schema import Node, nodes_of_binary, nodes_of_json
from p4reduce.workloads.traffic.model import Layer, Workload, type_of_trace

# ncclKernel_AllReduce_RING_LL_Sum_half, ncclDevKernel_AllReduce_Sum_bf16_RING_LL
_TYPE_OF_KERNEL: Final = re.compile(
    r"AllReduce_(?:\w+?_)?Sum_(float|f32|half|f16|__nv_bfloat16|bf16)(?![a-z0-9])"
)
_TYPES: Final = {
    "float": "float32", "f32": "float32",
    "half": "float16", "f16": "float16",
    "__nv_bfloat16": "bfloat16", "bf16": "bfloat16",
}  # fmt: skip
_LAYER_OF_COLLECTIVE: Final = re.compile(r"COMM_COLL_NODE_(.+?)_*(?:ALLREDUCE|ALL_REDUCE)$")


def from_binary(content: bytes, *, name: str, where: str, dtype: str | None = None) -> Workload:
    """Return the workload of a trace's (uncompressed) content; `where` names it in errors.

    `dtype` is what its bytes were, where it does not tell; float32 if not given.
    """
    return _workload(nodes_of_binary(content, where=where), name=name, where=where, dtype=dtype)


def from_json(text: str, *, name: str, where: str, dtype: str | None = None) -> Workload:
    """Return the workload of a trace as JSON; see `from_binary`."""
    return _workload(nodes_of_json(text, where=where), name=name, where=where, dtype=dtype)


def _workload(nodes: Sequence[Node], *, name: str, where: str, dtype: str | None) -> Workload:
    iteration = first_iteration(nodes, where=where)
    forward_us, by_name = iteration.forward_us, iteration.forward_by_layer
    reduces = sorted(iteration.reduces, key=lambda reduce: reduce.ready_us)
    if not reduces:
        raise WorkloadError(_without_gradients(nodes, where=where))
    recorded = {_TYPES[match[1]] for reduce in reduces if (match := _TYPE_OF_KERNEL.search(reduce.name))}
    played = type_of_trace(recorded, dtype, where=where)
    element_bytes = dtype_of(played).itemsize
    notes = list(iteration.notes)
    if not recorded:
        notes.append(f"gradients are taken as {played}")
    if any(node.type == COMP_NODE for node in nodes) and not any(node.duration_us for node in nodes):
        notes.append("no node has a duration: computing takes no time")
    if forward_us is None:
        # Nothing tells where the backward pass begins: it takes about two thirds of an iteration's computing.
        total_us = max(reduce.ready_us for reduce in reduces)
        forward_us = total_us // 3
        notes.append("no node is marked as backward: a third of the computing is taken as forward")
    ready_us = [max(reduce.ready_us, forward_us) for reduce in reduces]
    backward_us = [after - before for before, after in pairwise([forward_us, *ready_us])]
    named = [_layer_name(reduce.name) for reduce in reduces]
    forwards_us = _by_layer(forward_us, by_name, named)
    if forwards_us is None:
        forwards_us = _spread(forward_us, backward_us)
        if len(reduces) > 1:
            notes.append("forward time spread over the layers as backward time is")
    layers = [
        Layer(
            layer if layer is not None else f"all-reduce-{index}",
            -(-reduce.bytes // element_bytes),
            forward * 1000,
            backward * 1000,
        )
        for index, (layer, reduce, forward, backward) in enumerate(
            zip(named, reduces, forwards_us, backward_us, strict=True)
        )
    ]
    source = "; ".join([f"Chakra execution trace {where}", *notes])
    return Workload(name, source, tuple(reversed(layers)), played)


def _without_gradients(nodes: Sequence[Node], *, where: str) -> str:
    """Say why there is nothing to replay."""
    wanted = "what can be replayed is data-parallel training that sums its gradients with all-reduce"
    if sums := sum(reduced_bytes(node) > 0 for node in nodes):
        return f"{where} has no all-reduce of gradients in its backward pass, and {sums} others: {wanted}"
    collectives = [node for node in nodes if node.type == COMM_COLL_NODE]
    without_size = sum("comm_size" not in node.attributes for node in collectives)
    said = (
        f"{where} has no all-reduce with a size (comm_type 0, comm_size above 0) among its {len(nodes)} "
        f"nodes, of which {len(collectives)} are collectives, {without_size} of them without comm_size: "
        f"{wanted}"
    )
    if nodes and not any(node.attributes for node in nodes):
        said += (
            ". No node has attributes, as Chakra wrote them before version 0.0.4 (October 2023): convert the "
            "trace again"
        )
    return said


def _layer_name(name: str) -> str | None:
    match = _LAYER_OF_COLLECTIVE.match(name)
    return match[1] if match else None


def _by_layer(
    forward_us: int, by_name: Mapping[str | None, int], named: Sequence[str | None]
) -> list[int] | None:
    """Forward times of layers by their names, the last layer first; None where names do not tell all of it.

    Layers without a gradient count with the one before, whose parameters are needed first. Of several
    gradients of a layer, the first that is ready has its time: the last in forward order.
    """
    if sum(by_name.values()) != forward_us or not all(layer in by_name for layer in named):
        return None
    times = dict.fromkeys(named, 0)
    holder = next(layer for layer in by_name if layer in times)
    for layer, took_us in by_name.items():
        holder = layer if layer in times else holder
        times[holder] += took_us
    return [times.pop(layer, 0) for layer in named]


def _spread(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts that are as the weights are; equal parts if all weights are 0."""
    if not any(weights):
        weights = [1] * len(weights)
    bounds = [total * weight // sum(weights) for weight in accumulate(weights, initial=0)]
    return [after - before for before, after in pairwise(bounds)]
