"""MLCommons Chakra execution traces (https://github.com/mlcommons/chakra) as workloads.

A trace is a graph: nodes that compute, with a duration, and collectives, with a type and a size in bytes. All
that a replay needs is how much was computed before each all-reduce of the backward pass could start:

- computing nodes run one after the other, in an order that the dependencies allow (by start times and ids).
  Where there are kernels (`is_cpu_op` false), the time is theirs, and operators only launch them;
- the forward pass ends at the first node whose name tells of the backward pass; the iteration ends, after
  all-reduces, at the optimiser or the next forward pass: a trace of several gives its first;
- an all-reduce becomes a layer, with its bytes as recorded; the names of NCCL's kernels tell of which type
  they were. What was computed since the one before is the layer's backward time;
- the forward time of a layer is that of the nodes of its name (what chakra_converter makes of text files);
  elsewhere forward time is spread over the layers as backward time is, which `Workload.source` says.

What was bucketed when it was recorded is bucketed: replay such traces with a bucket size of 0.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.tensors import dtype_of
from p4reduce.workloads.traffic.chakra_pb2 import COMM_COLL_NODE, COMP_NODE
from p4reduce.workloads.traffic.chakra_schema import Collective, Node, nodes_of_binary, nodes_of_json
from p4reduce.workloads.traffic.model import Layer, Workload, type_of_trace

_BACKWARD: Final = re.compile(r"backward|_BWD|autograd::engine", re.IGNORECASE)
_END: Final = re.compile(r"_FWD$|Optimizer\.(step|zero_grad)|^ProfilerStep#")
_LAYER_OF_COMPUTING: Final = re.compile(r"COMP_NODE_(.+)_FWD$")
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


@dataclass(frozen=True)
class _AllReduce:
    """An all-reduce of the backward pass, and how much had been computed when it could start."""

    name: str
    bytes: int
    ready_us: int


def from_binary(content: bytes, *, name: str, where: str, dtype: str | None = None) -> Workload:
    """The workload of a trace's (uncompressed) content; `where` names it in errors.

    `dtype` is what its bytes were, where it does not tell; float32 if not given.
    """
    return _workload(nodes_of_binary(content, where=where), name=name, where=where, dtype=dtype)


def from_json(text: str, *, name: str, where: str, dtype: str | None = None) -> Workload:
    """The same of a trace as JSON."""
    return _workload(nodes_of_json(text, where=where), name=name, where=where, dtype=dtype)


def _workload(nodes: Sequence[Node], *, name: str, where: str, dtype: str | None) -> Workload:
    forward_us, reduces, by_name = _iteration(_ordered(nodes))
    if not reduces:
        raise WorkloadError(
            f"{where} has no all-reduce with a size (comm_type 0, comm_size above 0) among its {len(nodes)} "
            "nodes: what can be replayed is data-parallel training that sums its gradients with all-reduce"
        )
    recorded = {_TYPES[match[1]] for reduce in reduces if (match := _TYPE_OF_KERNEL.search(reduce.name))}
    played = type_of_trace(recorded, dtype, where=where)
    element_bytes = dtype_of(played).itemsize
    notes = []
    if not recorded:
        notes.append(f"gradients are taken as {played}")
    if forward_us is None:
        # Nothing tells where the backward pass begins: it takes about two thirds of an iteration's computing.
        total_us = max(reduce.ready_us for reduce in reduces)
        forward_us = total_us // 3
        notes.append("no node is marked as backward: a third of the computing is taken as forward")
    reduces.sort(key=lambda reduce: reduce.ready_us)
    ready_us = [max(reduce.ready_us, forward_us) for reduce in reduces]
    backward_us = [after - before for before, after in pairwise([forward_us, *ready_us])]
    named = [_layer_name(reduce.name) for reduce in reduces]
    if by_name and all(layer in by_name for layer in named):
        forwards_us = [by_name[layer] for layer in named]
    else:
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


def _iteration(
    nodes: Iterable[Node],
) -> tuple[int | None, list[_AllReduce], dict[str | None, int]]:
    """The first iteration: microseconds of the forward pass, all-reduces, forward microseconds by layer.

    The first is None where nothing says what is forward.
    """
    ordered = list(nodes)
    kernels = any(node.type == COMP_NODE and _is_kernel(node) for node in ordered)
    marked = any(_BACKWARD.search(node.name) for node in ordered)
    clock_us = 0
    forward_us: int | None = None
    finished_us: dict[int, int] = {}
    reduces: list[_AllReduce] = []
    by_name: dict[str | None, int] = {}
    for node in ordered:
        if reduces and (forward_us is not None or not marked) and _END.search(node.name):
            break
        if forward_us is None and _BACKWARD.search(node.name):
            forward_us = clock_us
            # What is summed before are no gradients: statistics, or layers that are split over workers.
            reduces.clear()
        waited_for = [finished_us[parent] for parent in node.parents if parent in finished_us]
        if node.type == COMP_NODE:
            if not kernels or _is_kernel(node):
                clock_us += node.duration_us
                if match := _LAYER_OF_COMPUTING.match(node.name):
                    by_name[match[1]] = by_name.get(match[1], 0) + node.duration_us
            finished_us[node.id] = clock_us
        else:
            finished_us[node.id] = max(waited_for, default=clock_us)
        if size := _reduced_bytes(node):
            reduces.append(_AllReduce(node.name, size, finished_us[node.id]))
    gradients = [reduce for reduce in reduces if forward_us is None or reduce.ready_us >= forward_us]
    return forward_us, gradients, by_name


def _ordered(nodes: Sequence[Node]) -> Iterable[Node]:
    """Every node after those it depends on; among free ones by start time, then id.

    Dependencies on what is not in the file (or on themselves) are ignored, as in Chakra's feeder; nodes of a
    circle come when nothing else is left.
    """
    by_id = {node.id: node for node in nodes}
    missing = {node.id: len({p for p in node.parents if p in by_id and p != node.id}) for node in nodes}
    children: dict[int, list[int]] = {}
    for node in by_id.values():
        for parent in {p for p in node.parents if p in by_id and p != node.id}:
            children.setdefault(parent, []).append(node.id)

    def key(identity: int) -> tuple[int, int]:
        return by_id[identity].start_us, identity

    everything = [key(identity) for identity in by_id]
    heapq.heapify(everything)
    free = [key(identity) for identity in by_id if missing[identity] == 0]
    heapq.heapify(free)
    done: set[int] = set()
    while len(done) < len(by_id):
        _, identity = heapq.heappop(free if free else everything)
        if identity in done:
            continue
        done.add(identity)
        yield by_id[identity]
        for child in children.get(identity, ()):
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(free, key(child))


def _is_kernel(node: Node) -> bool:
    return node.attributes.get("is_cpu_op") is False


def _reduced_bytes(node: Node) -> int:
    """What an all-reduce sums; 0 of any other node."""
    size = node.attributes.get("comm_size", 0)
    if (
        node.type != COMM_COLL_NODE
        or node.attributes.get("comm_type", -1) != Collective.ALL_REDUCE
        or not isinstance(size, int | float)
        or (isinstance(size, float) and not math.isfinite(size))
    ):
        return 0
    return int(size)


def _layer_name(name: str) -> str | None:
    match = _LAYER_OF_COLLECTIVE.match(name)
    return match[1] if match else None


def _spread(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts that are as the weights are; equal parts if all weights are 0."""
    if not any(weights):
        weights = [1] * len(weights)
    bounds = [total * weight // sum(weights) for weight in accumulate(weights, initial=0)]
    return [after - before for before, after in pairwise(bounds)]
