"""Iterations of torch.profiler's traces: where one begins and ends, and which gradients it leaves.

A pass is one call of the engine (`loss.backward()`, `autograd.grad`). A trace does not say where one ends,
but the engine evaluates the functions of a thread's operators newest first: a function that is newer than the
one before, or an operator of a forward pass in between, begins the next pass. A pass that leaves no gradient
(`autograd.grad`, for a gradient penalty) belongs to the forward pass.

An iteration is a `ProfilerStep#`, if such labels are there and each has an `Optimizer.step`. Otherwise it
ends at an `Optimizer.step`, or at several whose gradients repeat in turn (a GAN's). Where nothing bounds
iterations, each backward pass is one, or several that repeat.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.spans import Spans
from p4reduce.workloads.traffic.torch_events import (
    HOW_TO_RECORD,
    OPTIMIZER,
    OPTIMIZER_STEP,
    PROFILER_STEP,
    Event,
    Number,
    Thread,
    Trace,
)
from p4reduce.workloads.traffic.torch_gradients import (
    Evidence,
    Gradient,
    by_caller,
    find,
    reentrant_inputs,
    sign_of,
)


@dataclass(frozen=True)
class Pass:
    """One call of the engine: the functions that it evaluated, by start time, nested ones too.

    `gradients` are those of them that hand over one of a parameter.
    """

    functions: tuple[Event, ...]
    gradients: tuple[Event, ...]

    @property
    def start(self) -> float:
        return self.functions[0].start

    @property
    def end(self) -> float:
        return max(function.end for function in self.functions)


@dataclass(frozen=True)
class Iteration:
    """A span of time, the passes in it that leave gradients, and those gradients by the time of readiness."""

    start: float
    end: float
    passes: tuple[Pass, ...]
    gradients: tuple[Gradient, ...]
    notes: tuple[str, ...]
    """Sentences about what was assumed."""


@dataclass(frozen=True)
class _Unit:
    """A span that ends at a label or with a backward pass; one or several make an iteration."""

    start: float
    end: float
    passes: tuple[Pass, ...]

    @property
    def gradients(self) -> list[Event]:
        return [gradient for each in self.passes for gradient in each.gradients]


def last_iteration(trace: Trace, *, where: str) -> Iteration:
    """Find the last complete iteration. WorkloadError where a trace does not tell what that is."""
    passes = _passes(trace)
    units, notes = _units(trace, passes, where=where)
    evidence = Evidence(trace)
    iterations = [_iteration(evidence, unit, notes, where=where) for unit in units]
    begun = [iteration for iteration in iterations if _has_forward(trace, iteration)] or iterations
    most = max(len(iteration.gradients) for iteration in begun)
    return next(iteration for iteration in reversed(begun) if len(iteration.gradients) == most)


def _passes(trace: Trace) -> list[Pass]:
    passes: list[list[Event]] = []
    differentiated = {trace.number(function) for function in trace.functions} - {None}
    spans = Spans(trace.optimizer_spans())
    caller = _calling_thread(trace, differentiated)
    newest: dict[tuple[object, ...], int] = {}
    open_pass = False
    for event in trace.outermost:
        if event in trace.evaluated:
            sequence, thread = event.sequence, (event.thread, event.args.get("Fwd thread id"))
            if not open_pass or (sequence is not None and sequence >= newest.get(thread, math.inf)):
                passes.append([])
                newest.clear()
                open_pass = True
            if sequence is not None:
                newest[thread] = sequence
            passes[-1].extend(it for it in trace.within(event) if it in trace.evaluated)
        elif open_pass and event.thread == caller and event.start not in spans:
            open_pass = not any(trace.number(it) in differentiated for it in trace.within(event))
    return [_pass(trace, functions) for functions in passes]


def _pass(trace: Trace, functions: Iterable[Event]) -> Pass:
    ordered = tuple(sorted(functions, key=lambda it: it.start))
    inputs: set[Event] = set()
    for caller, gradients in by_caller(trace, (it for it in ordered if it in trace.gradients)).items():
        if caller is not None:
            inputs |= reentrant_inputs(trace, caller, gradients)
    return Pass(ordered, tuple(it for it in ordered if it in trace.gradients and it not in inputs))


def _calling_thread(trace: Trace, differentiated: set[Number | None]) -> Thread | None:
    """Return the thread of forward passes. Others, as a loader's, have sequence numbers of their own."""
    labels = (it for it in trace.labels if it.name.startswith((PROFILER_STEP, OPTIMIZER)))
    threads = Counter(label.thread for label in labels) or Counter(
        event.thread
        for event in trace.outermost
        if event not in trace.evaluated and trace.number(event) in differentiated
    )
    return max(threads, key=lambda thread: threads[thread], default=None)


def _units(trace: Trace, passes: Sequence[Pass], *, where: str) -> tuple[list[_Unit], tuple[str, ...]]:
    """Iterations that may be taken, and what was assumed."""
    steps = [label for label in trace.labels if label.name.startswith(OPTIMIZER_STEP)]
    in_function = Spans((it.start, it.end) for it in trace.outermost if it in trace.evaluated)
    steps = [step for step in steps if step.start not in in_function]  # not one that a hook takes
    profiled = [label for label in trace.labels if label.name.startswith(PROFILER_STEP)]
    bounded = [it for it in _between([(p.start, p.end) for p in profiled], passes) if it.gradients]
    with_step = [unit for unit in bounded if any(unit.start <= step.end <= unit.end for step in steps)]
    if bounded and (not steps or bounded[:-1] == with_step[: len(bounded) - 1]):
        return with_step or bounded, ("bounded by ProfilerStep#",)
    units = _ended(sorted(step.end for step in steps), passes)
    if units:
        named = "Optimizer.step"
        notes = ["bounded by Optimizer.step"]
        if bounded:
            notes.append("as not every ProfilerStep# has one")
    else:
        units = _ended([each.end for each in passes if each.gradients], passes)
        named = "backward pass"
        notes = [
            "each backward pass is taken as an iteration, as neither ProfilerStep# nor Optimizer.step tells "
            "which are accumulated"
        ]
    if len(units) > 1 and not _has_forward(trace, units[0]):
        units = units[1:]
    signs = [sorted(sign_of(trace.handed_over(it)) for it in unit.gradients) for unit in units]
    period = _period(signs)
    if period is None:
        raise WorkloadError(
            f"{where} has {len(units)} times {named} with different gradients, which do not repeat, so that "
            "it does not tell where an iteration ends: ProfilerStep# does, of a schedule and profile.step(): "
            f"{HOW_TO_RECORD}"
        )
    first, length = period
    if first:
        notes.append(f"without the first {first}, whose gradients are others")
    if length > 1:
        notes.append(f"{length} times {named} with different gradients are an iteration, as they repeat")
    joined = []
    for index in range(first, len(units) - length + 1, length):
        group = units[index : index + length]
        joined.append(
            _Unit(group[0].start, group[-1].end, tuple(each for unit in group for each in unit.passes))
        )
    return joined, tuple(notes)


def _period(signs: Sequence[object]) -> tuple[int, int] | None:
    """Find the first of those that repeat, and after how many they do. The last may be cut off."""
    count = len(signs)
    if count == 1:
        return 0, 1

    def repeats(first: int, length: int) -> bool:
        return all(signs[index] == signs[index - length] for index in range(first + length, count))

    lengths = [(0, length) for length in range(1, count)]
    lengths += [(first, length) for first in range(1, count) for length in range(1, (count - first) // 2 + 1)]
    return next((each for each in lengths if repeats(*each)), None)


def _between(spans: Iterable[tuple[float, float]], passes: Sequence[Pass]) -> list[_Unit]:
    return [
        _Unit(start, end, tuple(each for each in passes if start <= each.start < end))
        for start, end in sorted(spans)
    ]


def _ended(ends: Iterable[float], passes: Sequence[Pass]) -> list[_Unit]:
    """Cut at ends; where no gradient came since the one before, the earlier unit goes on."""
    units: list[_Unit] = []
    for unit in _between(pairwise([-math.inf, *ends]), passes):
        if unit.gradients:
            units.append(unit)
        elif units:
            units[-1] = _Unit(units[-1].start, unit.end, units[-1].passes + unit.passes)
    return units


def _has_forward(trace: Trace, span: _Unit | Iteration) -> bool:
    """Tell whether the first pass of gradients has operators of a forward pass before it."""
    first = next(each for each in span.passes if each.gradients)
    numbers = {trace.number(function) for function in first.functions} - {None}
    return not numbers or any(
        trace.number(event) in numbers
        for outer in trace.outermost_between(span.start, first.start)
        if outer not in trace.evaluated
        for event in trace.within(outer)
    )


def _iteration(evidence: Evidence, unit: _Unit, notes: Sequence[str], *, where: str) -> Iteration:
    passes = tuple(each for each in unit.passes if each.gradients)
    captured = sum(it in evidence.trace.captured for each in unit.passes for it in each.functions)
    found = find(
        evidence,
        [each.gradients for each in passes],
        evidence.updates(unit.start, unit.end),
        captured=captured,
        where=where,
    )
    more = [f"{len(passes)} backward passes"] if len(passes) > 1 else []
    return Iteration(unit.start, unit.end, passes, found.gradients, (*notes, *more, *found.notes))
