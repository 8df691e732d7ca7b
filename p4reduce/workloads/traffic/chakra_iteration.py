"""The first iteration of a Chakra trace: how much was computed before each all-reduce could start.

- Time is that of the kernels (`is_cpu_op` false), as `chakra_device.Clock` has it. Operators take time only
  where there are no kernels at all.
- The first node whose name tells of the backward pass ends the forward pass. The optimiser's step, after
  all-reduces, ends the iteration; where no step is named, the next forward pass does. A kernel belongs where
  its operator does. `chakra_passes` has more of iterations with several backward passes.
- An all-reduce is ready when the kernels that it depends on are, or else all that were launched before it;
  and when its own kernel starts, at the latest, as streams run side by side.

Where kernels depend on no operator of the backward pass, the device alone tells: that pass has begun before
the first gradient is ready. `Iteration.notes` says so, and all else that a trace leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.chakra_device import (
    Clock,
    Launches,
    is_kernel,
    is_on_device,
    ordered,
    own_place,
)
from p4reduce.workloads.traffic.chakra_passes import (
    BACKWARD,
    STEP,
    AllReduce,
    Pass,
    Turns,
    counted_once,
    note_on_next_step,
    note_on_repeats,
    reduced_bytes,
)
from p4reduce.workloads.traffic.chakra_pb2 import COMP_NODE
from p4reduce.workloads.traffic.chakra_schema import Node

_END: Final = re.compile(r"_FWD$|Optimizer\.(step|zero_grad)|^ProfilerStep#")
_LAYER_OF_COMPUTING: Final = re.compile(r"COMP_NODE_(.+)_FWD$")
# What chakra_converter calls input gradients: their sums are of layers that are split over workers.
_OF_INPUTS: Final = re.compile(r"_BWD_IG$|_IG_COMM_*ALLREDUCE$")
# Start times and durations are whole microseconds: the gaps that rounding leaves are no idle time. A few
# small kernels run after the last gradient of every iteration.
_WORTH_A_NOTE: Final = 0.01


@dataclass(frozen=True)
class Iteration:
    """Times of an iteration; `forward_us` is None where no node is marked as backward."""

    forward_us: int | None
    reduces: tuple[AllReduce, ...]
    forward_by_layer: Mapping[str | None, int]
    notes: tuple[str, ...] = ()


def first_iteration(nodes: Sequence[Node], *, where: str) -> Iteration:
    """Find the first iteration. WorkloadError, with `where`, if nothing tells it from the next one."""
    kernels = [node for node in nodes if is_kernel(node)]
    if not kernels:
        clock = Clock([node for node in nodes if node.type == COMP_NODE], timed=False)
        return _walk(ordered(nodes, own_place), clock, marked=_is_marked(nodes))
    without_start = sum(node.start_us == 0 for node in kernels)
    # One of them may start at 0.
    clock = Clock(kernels, timed=without_start <= 1 and any(node.start_us for node in kernels))
    launches = Launches(nodes)
    launched = list(ordered(nodes, launches.place))
    notes = _notes_on_times(kernels, without_start, clock)
    if _passes_are_told(launched, launches.linked):
        iteration = _walk(launched, clock, marked=_is_marked(nodes), alone=launches.alone)
        if alone := sum(kernel.id in launches.alone for kernel in kernels):
            told_by = "starts" if clock.timed else "ids"
            notes.append(f"{told_by} tell when kernels were launched that depend on no operator ({alone})")
    else:
        if _are_several_iterations(launched):
            raise WorkloadError(
                f"{where} has several iterations, and its kernels depend on no operator of a backward pass: "
                "nothing tells which iteration a kernel belongs to. Record one iteration, or convert the "
                "trace so that kernels depend on the operators that launched them"
            )
        iteration = _by_device(launched, clock, launches.linked)
    if clock.timed and iteration.reduces:
        computed_us = max(reduce.ready_us for reduce in iteration.reduces)
        if (idle_us := clock.idle_until(computed_us)) > _WORTH_A_NOTE * computed_us:
            notes.append(f"{idle_us / 1000:g} ms in which the device computed nothing are left out")
    return replace(iteration, notes=(*iteration.notes, *notes))


def _notes_on_times(kernels: Sequence[Node], without_start: int, clock: Clock) -> list[str]:
    """Say where kernels are taken one after the other, and need not have been."""
    if clock.timed:
        return []
    if without_start < len(kernels):
        return [f"kernels are taken one after the other: {without_start} have no start time"]
    streams = {stream for node in kernels if (stream := node.attributes.get("stream")) is not None}
    if len(streams) > 1:
        return [f"kernels of {len(streams)} streams are taken one after the other: they have no start times"]
    return []


def _is_marked(nodes: Iterable[Node]) -> bool:
    return any(BACKWARD.search(node.name) for node in nodes)


def _passes_are_told(launched: Sequence[Node], linked: set[int]) -> bool:
    """Tell if names tell the kernels' passes: if kernels depend on operators of the backward pass.

    That is not needed if no operator is marked as backward, or only after a kernel is.
    """
    kernels = [node for node in launched if is_kernel(node)]
    first = next((at for at, node in enumerate(launched) if BACKWARD.search(node.name)), None)
    if first is None or is_on_device(launched[first]) or all(kernel.id in linked for kernel in kernels):
        return True
    return any(is_kernel(node) and node.id in linked for node in launched[first:])


def _are_several_iterations(launched: Iterable[Node]) -> bool:
    """Tell if a backward pass follows after the end of the one before, by the operators' names."""
    begun = ended = False
    for node in launched:
        if is_on_device(node):
            continue
        if BACKWARD.search(node.name):
            if ended:
                return True
            begun = True
        ended = ended or (begun and _END.search(node.name) is not None)
    return False


def _walk(
    launched: Iterable[Node], clock: Clock, *, marked: bool, alone: Set[int] = frozenset()
) -> Iteration:
    """Go through nodes in the order of launching, to the end of the first iteration.

    Nodes are `marked` if the names of some tell of the backward pass. Kernels that depend on no operator,
    those in `alone`, do not tell when it begins on the device.
    """
    nodes = list(launched)
    # Without a step, nothing tells several passes of an iteration from several iterations.
    end = STEP if any(STEP.search(node.name) for node in nodes) else _END
    walk = _Walk(clock, marked=marked, alone=alone)
    notes: list[str] = []
    left = iter(nodes)
    for node in left:
        if walk.may_end() and end.search(node.name):
            if end is not STEP:
                notes.append("no step of an optimiser is named: each backward pass is taken as an iteration")
            break
        walk.visit(node)
    if end is STEP:
        notes += note_on_next_step(left, walk.summed_bytes())
    iteration = walk.iteration()
    return replace(iteration, notes=(*iteration.notes, *notes))


class _Walk:
    """An iteration as far as its nodes were visited."""

    def __init__(self, clock: Clock, *, marked: bool, alone: Set[int]) -> None:
        self._clock = clock
        self._marked = marked
        self._alone = alone
        self._clock_us = 0
        self._turns = Turns()
        self._passes = [Pass()]
        self._coming: Pass | None = self._passes[0]
        """The pass whose forward part is being launched; None in a backward pass."""
        self._finished_us: dict[int, int] = {}
        self._computed: set[int] = set()
        self._of_inputs: set[int] = set()
        self._before: list[AllReduce] = []
        self._by_name: dict[str | None, int] = {}

    def may_end(self) -> bool:
        """Tell if gradients were summed."""
        begun = self._passes[0].backward_us is not None or not self._marked
        return begun and self.summed_bytes() > 0

    def summed_bytes(self) -> int:
        """Count what all backward passes have summed."""
        return sum(reduce.bytes for each in self._passes for reduce in each.reduces)

    def visit(self, node: Node) -> None:
        """Take the next node in the order of launching."""
        self._turn(node)
        if self._clock.computes(node):
            self._compute(node)
            self._finished_us[node.id] = self._clock_us
        elif node.type == COMP_NODE:
            self._finished_us[node.id] = self._clock_us
        else:
            ready_us = _ready(node, self._clock, self._clock_us, self._finished_us, self._computed)
            self._finished_us[node.id] = ready_us
        if _OF_INPUTS.search(node.name):
            self._of_inputs.add(node.id)
        elif (size := reduced_bytes(node)) and self._of_inputs.isdisjoint(node.parents):
            group = str(node.attributes.get("pg_name", ""))
            self._sum(AllReduce(node.name, size, self._finished_us[node.id], group))

    def _turn(self, node: Node) -> None:
        """See if a node begins a pass."""
        is_forward = self._turns.is_forward(node)
        if self._marked and self._coming is not None and BACKWARD.search(node.name):
            self._coming.backward_us = self._clock_us
            if self._coming is self._passes[0]:
                # What is summed before are no gradients: statistics, or layers that are split over workers.
                self._before, self._coming.reduces = self._coming.reduces, []
            else:
                self._passes.append(self._coming)
            self._coming = None
        elif is_forward and self._coming is None:
            self._coming = Pass(forward_us=self._clock_us)

    def _compute(self, node: Node) -> None:
        if self._clock.is_of_main_stream(node) and node.id not in self._alone:
            coming = self._coming
            starts_us = self._passes[-1].backward_starts_us if coming is None else coming.forward_starts_us
            starts_us.append(node.start_us)
        self._clock_us = self._clock.after(node, self._clock_us)
        self._computed.add(node.id)
        if self._coming is not None and (match := _LAYER_OF_COMPUTING.match(node.name)):
            self._by_name[match[1]] = self._by_name.get(match[1], 0) + node.duration_us

    def _sum(self, reduce: AllReduce) -> None:
        # Gradients may be summed when the processor is back from the backward pass.
        again = self._coming is not None and reduce.gradient in {other.gradient for other in self._before}
        (self._before if again else self._passes[-1].reduces).append(reduce)

    def iteration(self) -> Iteration:
        """Give what was found."""
        clock, first = self._clock, self._passes[0]
        first_us = first.backward_us
        if first_us is not None and clock.timed and first.backward_starts_us:
            # What forward operators launched on other streams may still run.
            first_us = clock.until(min(first.backward_starts_us))
        reduces = counted_once(each.reduces for each in self._passes)
        gradients = [reduce for reduce in reduces if first_us is None or reduce.ready_us >= first_us]
        forward_us = first_us
        if first_us is not None:
            ready_us = min((reduce.ready_us for reduce in gradients), default=self._clock_us)
            spans = [each.forward_span(clock) for each in self._passes[1:]]
            forward_us = first_us + sum(until - since for since, until in spans if until <= ready_us)
        notes = _notes_on_sums(gradients, self._before)
        if early := len(reduces) - len(gradients):
            notes.append(f"all-reduces that were ready before the backward pass are left out ({early})")
        notes += _notes_on_passes(self._passes, reduces, self._turns)
        behind_us = self._clock_us - max((reduce.ready_us for reduce in gradients), default=self._clock_us)
        if behind_us > _WORTH_A_NOTE * self._clock_us:
            notes.append(f"{behind_us / 1000:g} ms of computing behind the last gradient are left out")
        return Iteration(forward_us, tuple(gradients), self._by_name, tuple(notes))


def _notes_on_passes(passes: Sequence[Pass], kept: Sequence[AllReduce], turns: Turns) -> list[str]:
    """Say how many passes there are, and where more of them would not be seen."""
    if len(passes) == 1:
        return [] if turns.numbered else note_on_repeats(kept)
    notes = [f"the iteration has {len(passes)} backward passes"]
    if twice := sum(len(each.reduces) for each in passes) - len(kept):
        notes.append(f"all-reduces of gradients that a later pass sums are left out ({twice})")
    return notes


def _notes_on_sums(gradients: Sequence[AllReduce], before: Sequence[AllReduce]) -> list[str]:
    """Say where all-reduces of the backward pass need not be gradients."""
    notes = []
    groups = {reduce.group for reduce in gradients}
    if before:
        note = f"all-reduces of the forward pass are left out ({len(before)})"
        both = groups & {reduce.group for reduce in before}
        if both:
            note += ": if layers are split over workers, some of the backward pass are no gradients either"
        if both and len(groups) > 1:
            note += f", of process group {', '.join(sorted(both))}"
        notes.append(note)
    if len(groups) > 1:
        notes.append(f"all-reduces of process groups {', '.join(sorted(groups))} are taken as gradients")
    return notes


def _ready(
    node: Node, clock: Clock, clock_us: int, finished_us: Mapping[int, int], computed: set[int]
) -> int:
    """Tell how much is computed when what does not compute can start.

    All that was launched before it ends at `clock_us`.
    """
    waited_for = [parent for parent in node.parents if parent in finished_us]
    if kernels := [parent for parent in waited_for if parent in computed]:
        waited_for = kernels
    ready_us = max((finished_us[parent] for parent in waited_for), default=clock_us)
    if clock.timed and node.start_us and is_on_device(node):
        ready_us = min(ready_us, clock.until(node.start_us))
    return ready_us


def _by_device(launched: Sequence[Node], clock: Clock, linked: set[int]) -> Iteration:
    """Read an iteration whose kernels depend on no operator of its backward pass.

    That pass begins between two times. What depends on an operator before it, or started before the processor
    came to it, is of the forward pass; the first gradient is of the backward pass.
    """
    first = next(at for at, node in enumerate(launched) if BACKWARD.search(node.name))
    after = (at for at, node in enumerate(launched) if at > first and _END.search(node.name))
    end = next(after, len(launched))
    begins_us = launched[first].start_us if clock.timed else 0
    forward_us = 0
    of_device: list[Node] = []
    for at, node in enumerate(launched):
        if not is_on_device(node) or (node.id in linked and at > end):
            continue
        if (node.id in linked and at < first) or node.start_us < begins_us:
            if not is_kernel(node):
                continue
            forward_us = clock.after(node, forward_us)
        of_device.append(node)
    iteration = _walk(ordered(of_device, own_place), clock, marked=False)
    if not iteration.reduces:
        return iteration
    ready_us = [reduce.ready_us for reduce in iteration.reduces]
    least_us, most_us = min(forward_us, *ready_us), min(ready_us)
    forward_us = min(max(max(ready_us) // 3, least_us), most_us)
    note = (
        f"kernels depend on no operator of the backward pass, which begins after {least_us / 1000:g} to "
        f"{most_us / 1000:g} ms of computing: {forward_us / 1000:g} ms are taken as forward"
    )
    return Iteration(forward_us, iteration.reduces, {}, (*iteration.notes, note))
