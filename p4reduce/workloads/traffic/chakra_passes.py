"""Passes of a Chakra trace's iteration: where each begins, and whose gradients come in several of them.

With gradient accumulation, forward and backward passes alternate before the optimiser's step. The names of
operators tell of backward passes. A later forward pass is told by an operator's name (`..._FWD`,
`DistributedDataParallel.forward`), or by autograd's sequence number (`seq_id`): it is above all that were
there before, as functions get theirs in the forward pass. An operator that one of the backward pass called
(`ctrl_deps`) is of the backward pass, whatever its number: activation checkpointing computes anew.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from p4reduce.workloads.traffic.chakra_device import Clock, is_on_device
from p4reduce.workloads.traffic.chakra_pb2 import COMM_COLL_NODE
from p4reduce.workloads.traffic.chakra_schema import Collective, Node

BACKWARD: Final = re.compile(r"backward|_BWD|autograd::engine", re.IGNORECASE)
STEP: Final = re.compile(r"Optimizer\.step")
_FORWARD: Final = re.compile(r"_FWD$|\.forward$")
_SUM_OF_LAYER: Final = re.compile(r"COMM_COLL_NODE_")


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce of the backward pass, and how much had been computed when it could start.

    `group` names the process group, "" where that is not recorded.
    """

    name: str
    bytes: int
    ready_us: int
    group: str

    @property
    def gradient(self) -> tuple[str, int, str]:
        """Marks of the gradient, which it has in every pass: names tell only where they are of layers."""
        return self.name if _SUM_OF_LAYER.match(self.name) else "", self.bytes, self.group


@dataclass
class Pass:
    """A forward and a backward pass: how much was computed when each began to be launched, and what it sums.

    Kernels of the main stream tell when they began to run, by their starts.
    """

    forward_us: int = 0
    backward_us: int | None = None
    forward_starts_us: list[int] = field(default_factory=list)
    backward_starts_us: list[int] = field(default_factory=list)
    reduces: list[AllReduce] = field(default_factory=list)

    def forward_span(self, clock: Clock) -> tuple[int, int]:
        """Give how much was computed when its forward pass began, and when its backward pass did."""
        if not clock.timed:
            return self.forward_us, self.backward_us or 0
        if not self.forward_starts_us or not self.backward_starts_us:
            return 0, 0
        begin_us = clock.until(min(self.forward_starts_us))
        # What forward operators launched on other streams may still run.
        return begin_us, max(begin_us, clock.until(min(self.backward_starts_us)))


class Turns:
    """Turns from a backward pass to a later forward pass, met in the order of launching."""

    def __init__(self) -> None:
        self._last_number = -1
        self._of_backward: set[int] = set()
        self.numbered = False
        """True once an operator had a sequence number."""

    def is_forward(self, node: Node) -> bool:
        """Tell if a node says that a forward pass has begun; every node has to be shown once."""
        if is_on_device(node):
            return False
        if BACKWARD.search(node.name) or not self._of_backward.isdisjoint(node.callers):
            self._of_backward.add(node.id)
        number = node.attributes.get("seq_id", -1)
        number = number if isinstance(number, int) else -1
        is_new = number > self._last_number
        self._last_number = max(number, self._last_number)
        self.numbered = self.numbered or number >= 0
        if node.id in self._of_backward:
            return False
        return is_new or _FORWARD.search(node.name) is not None


def counted_once(passes: Iterable[Sequence[AllReduce]]) -> list[AllReduce]:
    """Give the gradients of several backward passes, each as it is in its last one.

    A pass that sums as much as a later one has the same gradients, though DDP's buckets may be others: it
    chooses them anew after its first iteration.
    """
    kept: list[AllReduce] = []
    totals: set[int] = set()
    for reduces in reversed(list(passes)):
        total = sum(reduce.bytes for reduce in reduces)
        if total in totals:
            continue
        totals.add(total)
        known = Counter(reduce.gradient for reduce in kept)
        for reduce in reduces:
            if known[reduce.gradient]:
                known[reduce.gradient] -= 1
            else:
                kept.append(reduce)
    return kept


def note_on_repeats(reduces: Sequence[AllReduce]) -> list[str]:
    """Say that all-reduces may be those of several passes, where nothing tells passes apart."""
    sizes = [reduce.bytes for reduce in reduces]
    for length in range(2, len(sizes) // 2 + 1):
        times, rest = divmod(len(sizes), length)
        if not rest and sizes == sizes[:length] * times and len(set(sizes)) > 1:
            return [
                f"the sizes of all-reduces repeat {times} times: if these are passes of one step, which "
                f"nothing tells, each gradient is counted {times} times"
            ]
    return []


def note_on_next_step(nodes: Iterable[Node], first_bytes: int) -> list[str]:
    """Say that the optimiser's next step is of other gradients than the `first_bytes` of this one."""
    begun, next_bytes = False, 0
    for node in nodes:
        begun = begun or BACKWARD.search(node.name) is not None
        next_bytes += reduced_bytes(node) if begun else 0
        if next_bytes and STEP.search(node.name):
            break
    else:
        return []
    if next_bytes == first_bytes:
        return []
    return [
        f"the optimiser's next step is of {next_bytes} bytes of gradients in place of {first_bytes}, and is "
        "left out: if several optimisers make one iteration, the others' gradients are not in here"
    ]


def reduced_bytes(node: Node) -> int:
    """Count what an all-reduce sums; 0 of any other node."""
    size = node.attributes.get("comm_size", 0)
    if (
        node.type != COMM_COLL_NODE
        or node.attributes.get("comm_type", -1) != Collective.ALL_REDUCE
        or not isinstance(size, int | float)
        or (isinstance(size, float) and not math.isfinite(size))
    ):
        return 0
    return int(size)
