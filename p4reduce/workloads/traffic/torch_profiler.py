"""Traces of torch.profiler (Chrome trace JSON, as Kineto writes it) as workloads.

Autograd tells all that is needed, in operators' events (`cat` "cpu_op"):

- `torch::autograd::AccumulateGrad` ends the way of each parameter's gradient; `Input Dims` (record_shapes) is
  its shape, `Input type` its type. The order of these events is the order in which gradients become ready.
- `autograd::engine::evaluate_function: ...Backward0` has the `Sequence number` of the forward operator that
  it is the backward of. So the operators of the forward pass find the gradient that their backward is before.

A layer is a gradient. Its backward time goes from the gradient before to its own; its forward time is that of
the operators whose backward falls into that time. Times are those of the processor; where the trace has
kernels of a GPU, they are the sums of the kernels that were launched in the meantime, without those of
communication. Of several iterations, the last complete one is taken. The optimiser's time is not part of it.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.model import Layer, Workload, type_of_trace

HOW_TO_RECORD: Final = """record it like this, and replay trace.json:
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(3):
            train_one_iteration()  # forward, loss.backward(), optimiser
    profile.export_chrome_trace("trace.json")"""
_EVALUATE: Final = "autograd::engine::evaluate_function: "
_ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
_DEVICE_WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_TYPES: Final = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_LARGEST_US: Final = 1e18


@dataclass(frozen=True)
class _Event:
    """An event with a duration; microseconds."""

    category: str
    name: str
    thread: tuple[str, str]
    start: float
    end: float
    args: dict[str, Any]

    @property
    def sequence(self) -> int | None:
        """What joins a forward operator and its backward."""
        return self._number("Sequence number")

    @property
    def correlation(self) -> int | None:
        """What joins a kernel and its launch."""
        return self._number("correlation")

    def _number(self, name: str) -> int | None:
        number = self.args.get(name)
        return number if isinstance(number, int) and number >= 0 else None


@dataclass(frozen=True)
class _Iteration:
    """A forward pass's operators, and the functions of the backward pass that followed."""

    forward: Sequence[_Event]
    backward: Sequence[_Event]

    @property
    def gradients(self) -> list[int]:
        """Which of the functions hand over a gradient."""
        return [index for index, event in enumerate(self.backward) if event.name == _EVALUATE + _ACCUMULATE]


def is_trace(document: object) -> bool:
    """Whether a JSON document is a Chrome trace: an object with traceEvents, or a list of events."""
    if isinstance(document, list):
        return bool(document) and isinstance(document[0], dict) and "ph" in document[0]
    return isinstance(document, dict) and "traceEvents" in document


def from_text(text: str, *, name: str, where: str, dtype: str | None = None) -> Workload:
    """The workload of a trace; `where` names it in errors.

    `dtype` is the gradients', where it does not tell; float32 if not given.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{where} is no JSON: {error}") from error
    if not is_trace(document):
        raise WorkloadError(
            f"{where} has no traceEvents, so it is no trace of torch.profiler: {HOW_TO_RECORD}"
        )
    return from_document(document, name=name, where=where, dtype=dtype)


def from_document(document: Any, *, name: str, where: str, dtype: str | None = None) -> Workload:
    """The same of parsed JSON for which `is_trace` holds."""
    events = _events(document, where=where)
    operators = [event for event in events if event.category == "cpu_op"]
    shapes = [event for event in operators if event.name == _ACCUMULATE]
    if not shapes:
        raise WorkloadError(
            f"{where} has no {_ACCUMULATE} among its {len(events)} events, so no gradient was computed while "
            f"it was recorded: {HOW_TO_RECORD}"
        )
    if not any("Input Dims" in event.args for event in shapes):
        raise WorkloadError(f"{where} was recorded without shapes (record_shapes=True): {HOW_TO_RECORD}")
    iteration = _last_complete(_iterations(events, operators))
    if iteration is None:
        raise WorkloadError(
            f"{where} has no {_EVALUATE}{_ACCUMULATE}, so it does not tell when gradients were ready: "
            f"{HOW_TO_RECORD}"
        )
    clock = _Clock(events)
    layers = _layers(iteration, shapes, clock, where=where)
    recorded = _types(shapes)
    played = type_of_trace(recorded, dtype, where=where)
    return Workload(
        name,
        f"torch.profiler trace {where}, an iteration of {len(iteration.gradients)} gradients, timed on the "
        f"{'GPU' if clock.has_kernels else 'processor'}"
        f"{'' if recorded else f'; gradients are taken as {played}'}",
        tuple(layers),
        played,
    )


def _layers(iteration: _Iteration, shapes: Sequence[_Event], clock: _Clock, *, where: str) -> list[Layer]:
    """In forward order: the last gradient's layer comes first."""
    gradients = iteration.gradients
    count = len(gradients)
    ends = [iteration.backward[index].end for index in gradients]
    backward_ns = [clock.ns(*span) for span in pairwise([iteration.backward[0].start, *ends])]
    layer_of: dict[int, int] = {}  # by sequence number: which gradient comes next
    last_function: list[int | None] = [None] * count  # by gradient: the sequence number of what computed it
    for index, event in enumerate(iteration.backward):
        gradient = bisect.bisect_left(gradients, index)
        if event.sequence is not None and gradient < count:
            layer_of[event.sequence] = gradient
            last_function[gradient:] = [event.sequence] * (count - gradient)
    forward_ns = [0] * count
    operator_of: dict[int | None, str] = {}
    # What nothing backward belongs to (casts, views of data) goes with what ran before it.
    current = count - 1
    boundaries = [event.start for event in iteration.forward] + [iteration.backward[0].start]
    for event, span in zip(iteration.forward, pairwise(boundaries), strict=True):
        sequences = [number for number in clock.sequences_in(event) if number in layer_of]
        if sequences:
            current = min(layer_of[number] for number in sequences)
            operator_of.update(dict.fromkeys(sequences, event.name))
        forward_ns[current] += clock.ns(*span)
    layers = []
    for gradient, shape in enumerate(_shapes(iteration, shapes, where=where)):
        operator = operator_of.get(last_function[gradient], "parameter").removeprefix("aten::")
        size = "x".join(map(str, shape)) or "scalar"
        name = f"{count - 1 - gradient} {operator} {size}"
        layers.append(Layer(name, math.prod(shape), forward_ns[gradient], backward_ns[gradient]))
    return layers[::-1]


def _types(handed_over: Sequence[_Event]) -> set[str]:
    """Those of all gradients; what has no name here has the trace's."""
    kinds: set[str] = set()
    for event in handed_over:
        match event.args.get("Input type"):
            case [str(kind), *_] if kind:
                kinds.add(_TYPES.get(kind, kind))
    return kinds


def _shapes(iteration: _Iteration, handed_over: Sequence[_Event], *, where: str) -> list[list[int]]:
    """Those of an iteration's gradients. The function that hands one over calls what knows its shape."""
    starts = [event.start for event in handed_over]
    shapes = []
    for function in (iteration.backward[index] for index in iteration.gradients):
        first, last = bisect.bisect_left(starts, function.start), bisect.bisect_right(starts, function.end)
        inside = (event for event in handed_over[first:last] if event.thread == function.thread)
        match next((event.args.get("Input Dims") for event in inside), None):
            case [[*sizes], *_] if all(isinstance(size, int) and size > 0 for size in sizes):
                shapes.append(sizes)
            case dims:
                raise WorkloadError(
                    f"{where}: the gradient handed over at {function.start} us has 'Input Dims' {dims}, "
                    f"which is no shape: {HOW_TO_RECORD}"
                )
    return shapes


def _iterations(events: Sequence[_Event], operators: Sequence[_Event]) -> list[_Iteration]:
    """Cut at the operators of a forward pass that come after functions of a backward pass."""
    optimiser = [event for event in events if event.name.startswith("Optimizer.")]
    iterations: list[_Iteration] = []
    forward: list[_Event] = []
    backward: list[_Event] = []
    for event in _outermost(operators):
        if event.name.startswith(_EVALUATE):
            backward.append(event)
        elif any(_inside(event, step) for step in optimiser):
            continue
        elif event.sequence is not None and backward:
            iterations.append(_Iteration(forward, backward))
            forward, backward = [event], []
        elif not backward and (forward or event.sequence is not None):
            forward.append(event)
    if backward:
        iterations.append(_Iteration(forward, backward))
    return iterations


def _last_complete(iterations: Sequence[_Iteration]) -> _Iteration | None:
    """The last of those that computed the most gradients, with a forward pass if any has one."""
    candidates = [iteration for iteration in iterations if iteration.forward] or iterations
    most = max((len(iteration.gradients) for iteration in candidates), default=0)
    return next((i for i in reversed(candidates) if most and len(i.gradients) == most), None)


def _outermost(operators: Sequence[_Event]) -> list[_Event]:
    """Operators that no other operator of their thread called."""
    outermost: list[_Event] = []
    busy_until: dict[tuple[str, str], float] = {}
    for event in operators:
        if event.start >= busy_until.get(event.thread, -math.inf):
            outermost.append(event)
            busy_until[event.thread] = event.end
    return outermost


def _inside(event: _Event, outer: _Event) -> bool:
    return event.thread == outer.thread and outer.start <= event.start <= outer.end


class _Clock:
    """How much was computed between two moments: the time itself, or that of the kernels launched."""

    def __init__(self, events: Sequence[_Event]) -> None:
        self._operators = [event for event in events if event.category == "cpu_op"]
        self._starts = [event.start for event in self._operators]
        kernels = [event for event in events if event.category in _DEVICE_WORK]
        launched = {
            event.correlation: event.start
            for event in events
            if event.category.endswith(("_runtime", "_driver")) and event.correlation is not None
        }
        launches = sorted(
            (launched[kernel.correlation], kernel.end - kernel.start)
            for kernel in kernels
            if kernel.correlation in launched and "nccl" not in kernel.name.lower()
        )
        self.has_kernels = bool(launches)
        self._launches = [at for at, _ in launches]
        self._busy = [0.0]
        for _, duration in launches:
            self._busy.append(self._busy[-1] + duration)

    def ns(self, start: float, end: float) -> int:
        """From `start` until before `end` (microseconds)."""
        if not self.has_kernels:
            return max(0, round((end - start) * 1000))
        first, last = (bisect.bisect_left(self._launches, moment) for moment in (start, end))
        return max(0, round((self._busy[last] - self._busy[first]) * 1000))

    def sequences_in(self, outer: _Event) -> list[int]:
        """Sequence numbers of an operator and of those that it called."""
        first = bisect.bisect_left(self._starts, outer.start)
        last = bisect.bisect_right(self._starts, outer.end)
        return [
            event.sequence
            for event in self._operators[first:last]
            if event.sequence is not None and event.thread == outer.thread
        ]


def _events(document: Any, *, where: str) -> list[_Event]:
    """Complete events by start time, outer ones before those inside."""
    entries = document if isinstance(document, list) else document["traceEvents"]
    if not isinstance(entries, list):
        raise WorkloadError(f"{where}: traceEvents is no list: {HOW_TO_RECORD}")
    events = []
    for number, entry in enumerate(entries):
        try:
            if entry["ph"] != "X" or not isinstance(entry["ts"], int | float):
                continue
            start, duration = float(entry["ts"]), float(entry.get("dur", 0))
            args = entry.get("args") or {}
            if not isinstance(args, dict):
                raise TypeError("args are no object")
            if not (abs(start) < _LARGEST_US and abs(duration) < _LARGEST_US):  # nor NaN
                raise ValueError("ts and dur are no times")
            event = _Event(
                str(entry.get("cat", "")),
                str(entry.get("name", "")),
                (str(entry.get("pid")), str(entry.get("tid"))),
                start,
                start + duration,
                args,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise WorkloadError(f"{where}: event {number} is no trace event ({error!r})") from error
        events.append(event)
    return sorted(events, key=lambda event: (event.start, -event.end))
