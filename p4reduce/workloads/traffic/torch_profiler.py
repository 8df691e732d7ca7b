"""Traces of torch.profiler (Chrome trace JSON, as Kineto writes it) as workloads.

Autograd tells all that is needed, in operators' events:

- `torch::autograd::AccumulateGrad` ends the way of each parameter's gradient; `Input Dims` (record_shapes) is
  its shape, `Input type` its type. The order of these events is the order in which gradients become ready.
- `autograd::engine::evaluate_function: ...Backward0` has the `Sequence number` of the forward operator that
  it is the backward of. So the operators of the forward pass find the gradient that their backward is before.

A layer is a gradient of the iteration that `torch_iterations` found, however many passes handed it over. Its
backward time goes from the gradient before to its own, in its last pass; the first one's has the earlier
passes' backward time, too. Its forward time is that of the operators whose backward falls into that time, in
the first pass that has them. Those of later passes come after all layers' first use, so they go to the last
layer. Operators of a forward pass after a gradient was ready count until the next gradient is. In this way
each gradient is ready after as much computing as it was when it was recorded.

Times are those of the processor; where the trace has kernels of a GPU, they are the sums of the kernels that
were launched in the meantime, without those of communication. The optimiser's time is not part of it.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.model import Layer, Workload, type_of_trace
from p4reduce.workloads.traffic.spans import Spans
from p4reduce.workloads.traffic.torch_events import (
    ACCUMULATE,
    EVALUATE,
    HOW_TO_RECORD,
    Event,
    Number,
    Trace,
    events_of,
)
from p4reduce.workloads.traffic.torch_iterations import Iteration, Pass, last_iteration

_DEVICE_WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset")
# Between iterations: a loss that is looked at, data that are made. They have the next operator's number.
_READS: Final = frozenset({"aten::item", "aten::is_nonzero", "aten::detach", "aten::detach_"})
_TYPES: Final = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}


def is_trace(document: object) -> bool:
    """Tell whether a JSON document is a Chrome trace: an object with traceEvents, or a list of events."""
    if isinstance(document, list):
        return bool(document) and isinstance(document[0], dict) and "ph" in document[0]
    return isinstance(document, dict) and "traceEvents" in document


def from_text(text: str, *, name: str, where: str, dtype: str | None = None) -> Workload:
    """Return the workload of a trace; `where` names it in errors.

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
    """Return the workload of parsed JSON for which `is_trace` holds."""
    trace = Trace(events_of(document, where=where))
    handed_over = _handed_over(trace, where=where)
    iteration = last_iteration(trace, where=where)
    _refuse_sampled(trace, iteration, where=where)
    operators = _operators(trace, iteration)
    _refuse_undefined(iteration, operators, where=where)
    clock = _Clock(trace)
    layers = _layers(trace, iteration, operators, clock)
    recorded = _types(handed_over)
    played = type_of_trace(recorded, dtype, where=where)
    notes = [
        f"torch.profiler trace {where}, an iteration of {len(layers)} gradients, timed on the "
        f"{'GPU' if clock.has_kernels else 'processor'}",
        *iteration.notes,
        *_scalars(trace, iteration),
        *([] if recorded else [f"gradients are taken as {played}"]),
    ]
    return Workload(name, "; ".join(notes), tuple(layers), played)


def _handed_over(trace: Trace, *, where: str) -> list[Event]:
    """Find the events that know gradients' shapes, in all iterations. WorkloadError if there are none."""
    handed_over = [it for function in trace.gradients if (it := trace.handed_over(function)) is not None]
    if not trace.gradients and trace.functions:
        raise WorkloadError(
            f"{where} has {len(trace.functions)} functions of backward passes, {trace.functions[0].name!r} "
            f"the first, and no {ACCUMULATE}: gradients were computed, and not recorded (events were sampled "
            "or filtered, the backward pass was compiled as a whole), or they were not left to parameters "
            f"(autograd.grad, torch.func.grad): {HOW_TO_RECORD}"
        )
    if not trace.gradients and not trace.operators and trace.events:
        kinds = ", ".join(sorted({repr(event.category) for event in trace.events})[:6])
        raise WorkloadError(
            f"{where} has no operators of the processor among its {len(trace.events)} events (cat is "
            f"{kinds}), so it does not tell gradients: record with ProfilerActivity.CPU: {HOW_TO_RECORD}"
        )
    if not trace.gradients:
        raise WorkloadError(
            f"{where} has no {ACCUMULATE} among its {len(trace.events)} events, nor another function of a "
            f"backward pass, so no gradient was computed while it was recorded: {HOW_TO_RECORD}"
        )
    if not handed_over:
        raise WorkloadError(
            f"{where} has {EVALUATE}{ACCUMULATE} and not the {ACCUMULATE} inside, which knows the shape: "
            f"gradients were given to who called autograd.grad, or events were sampled or filtered: "
            f"{HOW_TO_RECORD}"
        )
    if not any("Input Dims" in event.args for event in handed_over):
        raise WorkloadError(f"{where} was recorded without shapes (record_shapes=True): {HOW_TO_RECORD}")
    return handed_over


def _refuse_sampled(trace: Trace, iteration: Iteration, *, where: str) -> None:
    """Raise WorkloadError where events are missing: a call of the engine hands over all gradients or none."""
    for each in iteration.passes:
        lost = [it for it in each.functions if it in trace.captured and trace.caller(it) is None]
        if lost and any(trace.caller(it) is None for it in each.gradients):
            raise WorkloadError(
                f"{where} has no {ACCUMULATE} inside {len(lost)} of its functions {lost[0].name!r}, the "
                f"first at {lost[0].start} us, though others of the same backward pass have: events were "
                f"sampled or filtered, and gradients are missing: {HOW_TO_RECORD}"
            )


def _refuse_undefined(iteration: Iteration, operators: Sequence[str], *, where: str) -> None:
    """Raise WorkloadError for a gradient of which nothing tells the size."""
    for gradient, operator in zip(iteration.gradients, operators, strict=True):
        if gradient.shape is None:
            at = gradient.handed_over[-1].start
            raise WorkloadError(
                f"{where}: the gradient that {operator!r} hands over at {at} us is undefined (Input Dims "
                "[[]], Input type ''), so that its size is not recorded, nor do Optimizer.step's operators "
                "tell it: have that function return zeros in place of None, or set requires_grad = False "
                "where a parameter takes no part, and record again"
            )


def _scalars(trace: Trace, iteration: Iteration) -> list[str]:
    """Say where a scalar may be an undefined gradient, as types were not recorded."""
    scalars = (gradient.handed_over[-1] for gradient in iteration.gradients if gradient.shape == ())
    handed_over = (trace.handed_over(function) for function in scalars)
    if any(event is not None and "Input type" not in event.args for event in handed_over):
        return ["gradients without dimensions are taken as scalars, as their types are not recorded"]
    return []


def _layers(trace: Trace, iteration: Iteration, operators: Sequence[str], clock: _Clock) -> list[Layer]:
    """Make layers in forward order: the last gradient's comes first."""
    count = len(iteration.gradients)
    forward_ns, backward_ns = _Times(trace, iteration, clock).spread()
    layers = []
    for index, (gradient, operator) in enumerate(zip(iteration.gradients, operators, strict=True)):
        size = "x".join(map(str, gradient.shape or ())) or "scalar"
        name = f"{count - 1 - index} {operator} {size}"
        numel = math.prod(gradient.shape or ())
        layers.append(Layer(name, numel, forward_ns[index], backward_ns[index]))
    return layers[::-1]


class _Times:
    """The time of an iteration, spread over its gradients in the order in which they are ready."""

    def __init__(self, trace: Trace, iteration: Iteration, clock: _Clock) -> None:
        self._trace = trace
        self._iteration = iteration
        self._clock = clock
        self._next = _next_gradients(trace, iteration)
        self._first_pass: dict[int, int] = {}  # by gradient: the pass before which it is first needed

    def spread(self) -> tuple[list[int], list[int]]:
        """Return forward and backward times."""
        ready = [gradient.ready for gradient in self._iteration.gradients]
        forward_ns = [0] * len(ready)
        backward_ns = [0, *(self._clock.ns(*span) for span in pairwise(ready))]
        starts = [each.start for each in self._iteration.passes]
        # What nothing backward belongs to (casts, views of data) goes with what ran before it.
        current, before = len(ready) - 1, 0
        items = self._items(ready[0])
        boundaries = [*(event.start for event in items), ready[0]]
        for event, span in zip(items, pairwise(boundaries), strict=True):
            index = bisect.bisect_right(starts, event.start)  # of the pass that follows
            if index and self._is_backward(event, self._iteration.passes[index - 1]):
                backward_ns[0] += self._clock.ns(*span)
                continue
            if index != before:
                current, before = 0, index
            numbers = (self._trace.number(it) for it in self._trace.within(event))
            needed = [self._next[number] for number in numbers if number in self._next]
            if needed:
                current = min(needed)
            first = self._first_pass.setdefault(current, index) == index
            forward_ns[current if first else 0] += self._clock.ns(*span)
        return forward_ns, backward_ns

    def _items(self, until: float) -> list[Event]:
        """Find what ran one after the other, from the first operator of a forward pass on."""
        items: list[Event] = []
        for event in self._trace.outermost_between(self._iteration.start, until):
            if event.start in self._clock.optimizer:
                continue
            if (
                items
                or event in self._trace.evaluated
                or (
                    event.name not in _READS
                    and any(it.sequence is not None for it in self._trace.within(event))
                )
            ):
                items.append(event)
        return items

    def _is_backward(self, event: Event, last: Pass) -> bool:
        """Tell whether a function belongs to the pass that began last; so does what ran between two of it."""
        if event in self._trace.evaluated:
            return event in last.functions
        return event.start < last.functions[-1].start


def _next_gradients(trace: Trace, iteration: Iteration) -> dict[Number | None, int]:
    """Return, by number of a forward operator, the gradient that its function precedes, in its first pass."""
    index_of = {
        function: index
        for index, gradient in enumerate(iteration.gradients)
        for function in gradient.handed_over
    }
    following: dict[Number | None, int] = {}
    for each in iteration.passes:
        index = None
        in_pass: dict[Number | None, int] = {}
        for function in reversed(each.functions):
            index = index_of.get(function, index)
            number = trace.number(function)
            if number is not None and index is not None:
                in_pass[number] = index
        following = in_pass | following
    return following


def _operators(trace: Trace, iteration: Iteration) -> list[str]:
    """Return, by gradient, the operator whose backward computed it last."""
    by_number: dict[Number, list[Event]] = {}
    for event in trace.operators:
        number = trace.number(event)
        if number is not None and iteration.start <= event.start and event not in trace.evaluated:
            by_number.setdefault(number, []).append(event)
    names: dict[Event, str] = {}
    for each in iteration.passes:
        last: Event | None = None
        for function in each.functions:
            if function.sequence is not None:
                last = function
            elif function.is_leaf and last is not None and (number := trace.number(last)) is not None:
                started = (it for it in reversed(by_number.get(number, ())) if it.start < last.start)
                if (operator := next(started, None)) is not None:
                    names[function] = trace.operator(operator).name.removeprefix("aten::")
    return [names.get(gradient.handed_over[-1], "parameter") for gradient in iteration.gradients]


def _types(handed_over: Iterable[Event]) -> set[str]:
    """Collect the types of all gradients; what has no name here has the trace's."""
    kinds: set[str] = set()
    for event in handed_over:
        match event.args.get("Input type"):
            case [str(kind), *_] if kind:
                kinds.add(_TYPES.get(kind, kind))
    return kinds


class _Clock:
    """Time of computing between two moments: that which passed, or that of the kernels launched.

    `optimizer` are the spans that do not count.
    """

    def __init__(self, trace: Trace) -> None:
        self.optimizer = Spans(trace.optimizer_spans())
        kernels = [event for event in trace.events if event.category in _DEVICE_WORK]
        launched = {
            event.correlation: event.start
            for event in trace.events
            if event.category.endswith(("_runtime", "_driver")) and event.correlation is not None
        }
        launches = sorted(
            (launched[kernel.correlation], kernel.end - kernel.start)
            for kernel in kernels
            if kernel.correlation in launched and "nccl" not in kernel.name.lower()
        )
        self.has_kernels = bool(launches)
        launches = [launch for launch in launches if launch[0] not in self.optimizer]
        self._launches = [at for at, _ in launches]
        self._busy = [0.0]
        for _, duration in launches:
            self._busy.append(self._busy[-1] + duration)

    def ns(self, start: float, end: float) -> int:
        """Add up the time from `start` until before `end` (microseconds)."""
        if not self.has_kernels:
            inside = self.optimizer.before(end) - self.optimizer.before(start)
            return max(0, round((end - start - inside) * 1000))
        first, last = (bisect.bisect_left(self._launches, moment) for moment in (start, end))
        return max(0, round((self._busy[last] - self._busy[first]) * 1000))
