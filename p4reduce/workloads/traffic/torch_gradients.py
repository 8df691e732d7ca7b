"""Parameters that the gradients of an iteration belong to, in a trace of torch.profiler.

A trace tells when autograd handed a gradient over, its shape, and whether it was added to one that was there;
it does not tell whose it is. So:

- Within one call of the engine, each is another parameter's.
- From call to call, one that was added is the same parameter's as an earlier one of its shape: the one with
  the same shapes before and after it, the first of several. One that was put where none was is another's,
  unless the earlier may have been cleared in between.
- How many parameters of a shape there are, the optimizer's operators tell; where they do not and the above
  leaves it open, the result says so.
- Not all are parameters': re-entrant checkpointing detaches its inputs, and an input may ask for a gradient
  (penalties, adversarial examples). The former are known by `aten::detach`, the latter by the optimizer.
- An undefined gradient (`Input Dims` [[]], `Input type` '') has the shape that the optimizer updated besides
  the others, if there is one.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.torch_events import (
    HOW_TO_RECORD,
    OPTIMIZER_STEP,
    SHARDED,
    ZERO_GRAD,
    Event,
    Trace,
)

Shape = tuple[int, ...] | None
"""A gradient's shape; None of an undefined one."""

_ADDITIONS: Final = frozenset({"aten::add", "aten::add_"})
_NO_UPDATES: Final = frozenset({"aten::copy_", "aten::detach_", "aten::fill_", "aten::zero_"})


@dataclass(eq=False)
class Gradient:
    """A parameter's gradient, the functions that handed it over, and the shapes around it, last time."""

    shape: Shape
    handed_over: list[Event] = field(default_factory=list)
    neighbours: tuple[Shape, Shape] = (None, None)

    @property
    def ready(self) -> float:
        """The end of the last hand-over."""
        return self.handed_over[-1].end


def shape_of(trace: Trace, function: Event, *, where: str) -> Shape:
    """Read the shape of the gradient that a function hands over; None if the gradient is undefined."""
    handed_over = trace.handed_over(function)
    args = {} if handed_over is None else handed_over.args
    match args.get("Input Dims"), args.get("Input type"):
        case [[], *_], ["", *_]:
            return None
        case [[*sizes], *_], _ if all(isinstance(size, int) and size > 0 for size in sizes):
            return tuple(sizes)
        case dims, _:
            raise WorkloadError(
                f"{where}: the gradient handed over at {function.start} us has 'Input Dims' {dims}, "
                f"which is no shape: {HOW_TO_RECORD}"
            )


def by_caller(trace: Trace, gradients: Iterable[Event]) -> dict[Event | None, list[Event]]:
    """Group gradients by the function that called the engine for them (None: no function did)."""
    groups: dict[Event | None, list[Event]] = {}
    for gradient in gradients:
        groups.setdefault(trace.caller(gradient), []).append(gradient)
    return groups


def reentrant_inputs(trace: Trace, caller: Event, gradients: Sequence[Event]) -> set[Event]:
    """Find the gradients of a re-entrant function's own inputs, which it detached before."""
    body = [caller, *(it for it in trace.children.get(caller, ()) if caller.name.endswith(it.name))]
    detached = Counter(
        sign_of(event)
        for outer in body
        for event in trace.children.get(outer, ())
        if event.name == "aten::detach" and event.start < gradients[0].start
    )
    inputs: set[Event] = set()
    for gradient in (it for it in reversed(gradients) if not _added(trace, it)):
        sign = sign_of(trace.handed_over(gradient))
        if detached[sign] > 0:
            detached[sign] -= 1
            inputs.add(gradient)
    return inputs


def sign_of(event: Event | None) -> str:
    """Return the shape and the type of an operator's first argument, as they were recorded."""
    args = {} if event is None else event.args
    first = [value[:1] for key in ("Input Dims", "Input type") if isinstance(value := args.get(key), list)]
    return str(first)


def _added(trace: Trace, gradient: Event) -> bool:
    """Tell whether a gradient was added to one that was there: that comes before what hooks do."""
    handed_over = trace.handed_over(gradient)
    inside = () if handed_over is None else trace.children.get(handed_over, ())
    return any(event.name in _ADDITIONS for event in inside[:1])


class Evidence:
    """Facts about a trace that tell whose gradients are."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.records_additions = any(
            trace.children.get(handed_over)
            for function in trace.gradients
            if (handed_over := trace.handed_over(function)) is not None
        )
        self._cleared = sorted(
            label.start
            for label in trace.labels
            if label.name.startswith((ZERO_GRAD, OPTIMIZER_STEP, SHARDED))
        )
        steps = trace.optimizer_spans(OPTIMIZER_STEP)
        self._updates = list(zip(steps, _updates(trace, steps), strict=True))
        self.ever_updated = frozenset(shape for _, update in self._updates for shape in update)

    def cleared(self, start: float, end: float) -> bool:
        """Tell whether gradients may have been cleared between two moments."""
        first = bisect.bisect_left(self._cleared, start)
        return first < len(self._cleared) and self._cleared[first] < end

    def updates(self, start: float, end: float) -> list[Counter[Shape]]:
        """Count the parameters of each shape that each `Optimizer.step` updated that ended in this time."""
        return [update for step, update in self._updates if start < step[1] <= end]


@dataclass(frozen=True)
class Found:
    """The gradients of an iteration's parameters, and sentences about what was assumed."""

    gradients: tuple[Gradient, ...]
    notes: tuple[str, ...]


def find(
    evidence: Evidence,
    calls: Sequence[Sequence[Event]],
    updates: Sequence[Counter[Shape]],
    *,
    captured: int,
    where: str,
) -> Found:
    """Find whose the gradients of an iteration's calls of the engine are.

    `updates` counts the parameters of each shape that each of its `Optimizer.step` updated, `captured` the
    gradients that `autograd.grad` gave to its caller.
    """
    matching = _Matching(evidence, updates, where=where)
    for call in calls:
        matching.take(call)
    gradients = matching.found
    notes = list(matching.notes())
    defined: Counter[Shape] = Counter(it.shape for it in gradients if it.shape is not None)
    updated = _total(updates)
    undefined = [gradient for gradient in gradients if gradient.shape is None]
    missing = list((updated - defined).elements())
    if len(missing) == len(undefined) and len(set(missing)) == 1:
        for gradient in undefined:
            gradient.shape = missing[0]
        notes.append(f"{len(undefined)} undefined gradients have the size that Optimizer.step updated")
    elif updated and not missing:
        # The optimizer tells all parameters, so that the rest belongs to inputs.
        inputs = [it for it in gradients if it.shape is not None and it.shape not in evidence.ever_updated]
        if len(undefined) <= captured:
            inputs += undefined
        if inputs:
            gradients = [it for it in gradients if it not in inputs]
            notes.append(f"without {len(inputs)} gradients of inputs, which no Optimizer.step used")
    return Found(tuple(sorted(gradients, key=lambda it: it.ready)), tuple(notes))


class _Matching:
    """Gradients as they are found, call by call."""

    def __init__(self, evidence: Evidence, updates: Sequence[Counter[Shape]], *, where: str) -> None:
        self.found: list[Gradient] = []
        self._evidence = evidence
        self._trace = evidence.trace
        self._where = where
        self._updated = _total(updates)
        self._at_once: Counter[Shape] = Counter()  # the most that one step updated
        for update in updates:
            self._at_once |= update
        self._unsure: Counter[Shape] = Counter()
        self._others: Counter[Shape] = Counter()

    def take(self, gradients: Sequence[Event]) -> None:
        """Take the gradients of one call of the engine, with what its functions called it for."""
        before = list(self.found)
        for task in by_caller(self._trace, gradients).values():
            others, own = list(before), [it for it in self.found if it not in before]
            shapes = [None, *(shape_of(self._trace, it, where=self._where) for it in task), None]
            for turn, function in enumerate(task):
                neighbours = shapes[turn], shapes[turn + 2]
                known = self._match(function, shapes[turn + 1], neighbours, others, own)
                known.neighbours = neighbours
                for candidates in (before, others, own):
                    if known in candidates:
                        candidates.remove(known)

    def notes(self) -> Iterator[str]:
        """Say what was assumed of gradients of later passes, and is not confirmed by the optimizer."""
        same, others = (
            sum(number for shape, number in counts.items() if self._count(shape) != self._updated[shape])
            for counts in (self._unsure, self._others)
        )
        if same:
            yield (
                f"{same} gradients of later passes are taken as those of earlier parameters of their shapes, "
                "which the trace does not tell from others"
            )
        if others:
            yield (
                f"{others} gradients of later passes are taken as other parameters' than earlier ones of "
                "their shapes, as nothing recorded had cleared those"
            )

    def _match(
        self,
        function: Event,
        shape: Shape,
        neighbours: tuple[Shape, Shape],
        earlier: Sequence[Gradient],
        own: Sequence[Gradient],
    ) -> Gradient:
        """Find the gradient that was handed over among those of earlier calls; in its own call where sure."""
        possible = [it for it in earlier if it.shape == shape and self._may_be(it, function)] or [
            it
            for it in own
            if it.shape == shape and it.ready <= function.start and self._is_certain(it, function)
        ]
        same = max(possible, key=lambda it: _alike(it.neighbours, neighbours), default=None)
        certain = same is not None and self._is_certain(same, function)
        if same is None and any(it.shape == shape for it in earlier):
            self._others[shape] += 1
        if same is None or (not certain and self._count(shape) < self._at_once[shape]):
            gradient = Gradient(shape, [function])
            self.found.append(gradient)
            return gradient
        same.handed_over.append(function)
        if not certain:
            self._unsure[shape] += 1
        return same

    def _count(self, shape: Shape) -> int:
        return sum(gradient.shape == shape for gradient in self.found)

    def _is_certain(self, earlier: Gradient, function: Event) -> bool:
        """Tell whether one was added, in an iteration that began without gradients."""
        return _added(self._trace, function) and not _added(self._trace, earlier.handed_over[0])

    def _may_be(self, earlier: Gradient, function: Event) -> bool:
        """Tell whether a parameter's gradient may be handed over here again."""
        return (
            not self._evidence.records_additions
            or earlier.shape is None
            or self._count(earlier.shape) == self._updated[earlier.shape]
            or _added(self._trace, function)
            or self._evidence.cleared(earlier.ready, function.start)
        )


def _alike(one: tuple[Shape, Shape], other: tuple[Shape, Shape]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def _total(updates: Iterable[Counter[Shape]]) -> Counter[Shape]:
    total: Counter[Shape] = Counter()
    for update in updates:
        total += update
    return total


def _updates(trace: Trace, steps: Iterable[tuple[float, float]]) -> list[Counter[Shape]]:
    """Count the parameters of each shape that each of these steps of an optimizer updated.

    Each parameter has the same operators. Of those in place, the one that reaches most shapes, and that is
    called least, is called once for each. Operators for many tensors have lists of shapes.
    """
    updates = []
    for start, end in steps:
        counts: dict[str, Counter[Shape]] = {}
        for event in trace.outermost_between(start, end):
            if event.name.endswith("_") and event.name not in _NO_UPDATES:
                counts.setdefault(event.name, Counter()).update(_first_shapes(event))
        most = max((len(set(count) - {()}) for count in counts.values()), default=0)
        reaching = [count for count in counts.values() if len(set(count) - {()}) == most]
        updates.append(min(reaching, key=lambda count: sum(count.values()), default=Counter()))
    return updates


def _first_shapes(event: Event) -> Iterator[tuple[int, ...]]:
    """Yield the shape of the first argument, or those of its tensors."""
    match event.args.get("Input Dims"):
        case [[*first], *_]:
            nested = [shape for shape in first if isinstance(shape, list)]
            for shape in nested or [first]:
                yield tuple(size for size in shape if isinstance(size, int))
