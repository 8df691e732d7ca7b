"""Kernels of a Chakra trace: in which order they were launched, and how much the device has computed when.

Processor and device have clocks that cannot be compared: the processor launches kernels long before they run.
So nodes come in the order of launching, by the processor's clock, and times are the device's.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Final, TypeAlias

from p4reduce.workloads.traffic.chakra_pb2 import COMM_COLL_NODE, COMM_RECV_NODE, COMM_SEND_NODE, COMP_NODE
from p4reduce.workloads.traffic.chakra_schema import Node
from p4reduce.workloads.traffic.spans import Spans

# ncclDevKernel_AllReduce_..., ncclSymkDevKernel_..., mscclKernel_...
_COLLECTIVE: Final = re.compile(r"(void )?(nccl|rccl|msccl)", re.IGNORECASE)

Place: TypeAlias = tuple[int, int, int, int]
"""A place in the order of launching: start and id of the operator, then of the kernel that it launched."""


def is_kernel(node: Node) -> bool:
    """Tell kernels that compute from operators, and from what does not compute.

    Collectives may be recorded as computing: converters know the names of some only.
    """
    return node.type == COMP_NODE and node.on_processor is False and _COLLECTIVE.match(node.name) is None


def is_on_device(node: Node) -> bool:
    """Tell what runs on the device from operators; communication does unless it says otherwise."""
    if node.on_processor is None:
        return node.type in (COMM_COLL_NODE, COMM_SEND_NODE, COMM_RECV_NODE)
    return not node.on_processor


def own_place(node: Node, _before: Mapping[int, Place]) -> Place:
    """Give a node its place among nodes of one clock."""
    return node.start_us, node.id, -1, -1


class Clock:
    """Time of computing: how much was computed, in microseconds.

    Where kernels have start times, this is the time in which at least one of them ran: what runs at once
    counts once, and idle time does not count. Elsewhere nodes compute one after the other, in the order of
    launching.
    """

    def __init__(self, computing: Sequence[Node], *, timed: bool) -> None:
        self._computing = {node.id for node in computing}
        self.timed = timed
        spans = ((node.start_us, node.start_us + node.duration_us) for node in computing)
        self._spans = Spans(spans if timed else ())
        streams: Counter[object] = Counter()
        for node in computing:
            streams[node.attributes.get("stream")] += node.duration_us
        self._main_stream = max(streams, key=streams.__getitem__, default=None)

    def computes(self, node: Node) -> bool:
        return node.id in self._computing

    def is_of_main_stream(self, kernel: Node) -> bool:
        """Tell if a kernel ran where most computing ran: copies and the like have streams of their own."""
        return kernel.attributes.get("stream") == self._main_stream

    def after(self, node: Node, before_us: int) -> int:
        """Tell how much is computed when `node` ends, after `before_us` that were launched before it."""
        if not self.timed:
            return before_us + node.duration_us
        return max(before_us, self.until(node.start_us + node.duration_us))

    def until(self, at_us: int) -> int:
        """Tell how much was computed until a time of the device's."""
        return int(self._spans.before(at_us))

    def idle_until(self, computed_us: int) -> int:
        """Tell how long the device paused until it had computed that much."""
        return int(self._spans.between(computed_us))


class Launches:
    """The operators that launched what runs on the device, by what that depends on."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.id: node for node in nodes}
        operators = [node for node in nodes if not is_on_device(node)]
        self._operators = bool(operators)
        self._operators_timed = any(node.start_us > 0 for node in operators)
        self.linked: set[int] = set()
        """Ids of nodes that depend on an operator themselves, as far as nodes have a place."""
        self.alone: set[int] = set()
        """Ids of nodes that depend on no operator, not by way of kernels either."""

    def place(self, node: Node, before: Mapping[int, Place]) -> Place:
        """Give a node its place, once what it depends on has one in `before`.

        It is that of its operator, the last one that it depends on. What depends on kernels alone was
        launched with the last of them. What depends on none was launched when it started, at the latest.
        Where operators have no start times, ids tell.
        """
        if not is_on_device(node):
            return node.start_us, node.id, -1, -1
        parents = [self._nodes[parent] for parent in node.parents if parent in before]
        came_with = [before[parent.id] for parent in parents if not is_on_device(parent)]
        if came_with:
            self.linked.add(node.id)
        elif kernels := [parent for parent in parents if is_kernel(parent) and parent.id not in self.alone]:
            came_with = [before[kernel.id] for kernel in kernels] if self._operators_timed else []
        elif self._operators:
            self.alone.add(node.id)
        if came_with:
            start_us, operator = max(came_with)[:2]
            return start_us, operator, node.start_us, node.id
        if self._operators and not self._operators_timed:
            return 0, node.id, node.start_us, node.id
        return node.start_us, node.id, node.start_us, node.id


def ordered(nodes: Sequence[Node], place: Callable[[Node, Mapping[int, Place]], Place]) -> Iterator[Node]:
    """Yield every node after those it depends on; among free ones by their `place`.

    Dependencies on what is not in the file (or on themselves) are ignored, as in Chakra's feeder. Nodes of a
    circle, which converters of 2023 make of an all-reduce's operators, come by start times and ids.
    """
    by_id = {node.id: node for node in nodes}
    waits_for = {node.id: {p for p in node.parents if p in by_id and p != node.id} for node in by_id.values()}
    circles = _circles(waits_for)
    children: dict[int, list[int]] = {}
    missing: dict[int, int] = {}
    for node in by_id.values():
        earlier = {
            parent
            for parent in waits_for[node.id]
            if circles[parent] != circles[node.id]
            or (by_id[parent].start_us, parent) < (node.start_us, node.id)
        }
        missing[node.id] = len(earlier)
        for parent in earlier:
            children.setdefault(parent, []).append(node.id)
    places: dict[int, Place] = {}
    free = [(place(by_id[identity], places), identity) for identity, count in missing.items() if not count]
    heapq.heapify(free)
    while free:
        at, identity = heapq.heappop(free)
        places[identity] = at
        yield by_id[identity]
        for child in children.get(identity, ()):
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(free, (place(by_id[child], places), child))


def _circles(waits_for: Mapping[int, Set[int]]) -> dict[int, int]:
    """Find the circle that each node is in, by a node of it; most are in one of their own (Tarjan, 1972)."""
    found: dict[int, int] = {}
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    for root in waits_for:
        if root in order:
            continue
        order[root] = lowest[root] = len(order)
        path.append(root)
        work = [(root, iter(waits_for[root]))]
        while work:
            node, parents = work[-1]
            for parent in parents:
                if parent not in order:
                    order[parent] = lowest[parent] = len(order)
                    path.append(parent)
                    work.append((parent, iter(waits_for[parent])))
                    break
                if parent not in found:
                    lowest[node] = min(lowest[node], order[parent])
            else:
                work.pop()
                if work:
                    below = work[-1][0]
                    lowest[below] = min(lowest[below], lowest[node])
                if lowest[node] == order[node]:
                    while node not in found:
                        found[path.pop()] = node
    return found
