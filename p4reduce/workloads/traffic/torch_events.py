"""Events of torch.profiler's traces: what they are called, and which of them ran inside which.

Names and categories have changed. Until 2021 Kineto wrote "Operator", "Kernel", "Runtime", and so on, where
it writes "cpu_op", "kernel", "cuda_runtime" now; labels (`record_function`, `ProfilerStep#`) were operators,
and the engine's `evaluate_function` was not recorded. Everything past this module sees today's names.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from p4reduce.workloads.errors import WorkloadError

EVALUATE: Final = "autograd::engine::evaluate_function: "
ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
PROFILER_STEP: Final = "ProfilerStep#"
OPTIMIZER: Final = "Optimizer."
OPTIMIZER_STEP: Final = "Optimizer.step"
ZERO_GRAD: Final = "Optimizer.zero_grad"
SHARDED: Final = "FSDP::"  # which has gradients of its own, for one pass each

HOW_TO_RECORD: Final = """record it like this, and replay trace.json:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(record_shapes=True, schedule=schedule) as profile:
        for _ in range(5):
            train_one_iteration()  # forward, loss.backward(), optimiser
            profile.step()
    profile.export_chrome_trace("trace.json")"""

Thread = tuple[str, str]
Number = tuple[Thread, int]

# Kineto's until 2021, and PyTorch's own from before it, which tells a processor's events by their process.
_CATEGORIES: Final = {
    "operator": "cpu_op",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "cuda_runtime",
}
_PROCESSES: Final = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
# The engine's functions by their own names: AddmmBackward0, AddmmBackward, torch::autograd::CopyBackwards.
_FUNCTION: Final = re.compile(r"Backwards?\d*$|^torch::autograd::")
_LARGEST_US: Final = 1e18


@dataclass(frozen=True, eq=False)
class Event:
    """An event with a duration; microseconds. Two events are the same only if they are one."""

    category: str
    name: str
    thread: Thread
    start: float
    end: float
    args: dict[str, Any]

    @property
    def sequence(self) -> int | None:
        """The number that a forward operator and its backward function share."""
        return self._number("Sequence number")

    @property
    def correlation(self) -> int | None:
        """The number that a kernel and its launch share."""
        return self._number("correlation")

    @property
    def is_leaf(self) -> bool:
        """True of the engine's function that a gradient's way ends with."""
        return self.name in {ACCUMULATE, EVALUATE + ACCUMULATE}

    def _number(self, name: str) -> int | None:
        number = self.args.get(name)
        return number if isinstance(number, int) and number >= 0 else None


class Trace:
    """A trace's events by start time, outer ones before those inside, as a tree for each thread.

    `functions` are those that autograd's engine evaluated, at any depth: re-entrant checkpointing evaluates
    some inside another one. Of them, `gradients` hand one over, and `captured` give theirs to who called
    `autograd.grad`. `outermost` are the operators and functions that no other one called.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.labels = [
            event
            for event in events
            if event.category in {"user_annotation", "cpu_op"}
            and event.name.startswith((PROFILER_STEP, OPTIMIZER, SHARDED))
        ]
        labels = set(self.labels)
        operators = [event for event in events if event.category == "cpu_op" and event not in labels]
        parents = _parents(operators)
        self.functions = _functions(operators, parents)
        self.evaluated = frozenset(self.functions)
        labels = self._users_labels(parents)
        self.operators = [event for event in operators if event not in labels]
        self.parents = _parents(self.operators)
        self.children: dict[Event, list[Event]] = {}
        for event, parent in self.parents.items():
            if parent is not None:
                self.children.setdefault(parent, []).append(event)
        self.outermost = [event for event in self.operators if self.parents[event] is None]
        self._starts = [event.start for event in self.outermost]
        self._forward_threads = self._threads_of_operators()
        leaves = [function for function in self.functions if function.is_leaf]
        handed_over = [function for function in leaves if self.handed_over(function) is not None]
        self.gradients = frozenset(handed_over or leaves)
        self.captured = frozenset(leaves) - self.gradients

    def _users_labels(self, parents: dict[Event, Event | None]) -> set[Event]:
        """Find labels of `record_function` (operators until 2021), around functions or by their names."""
        labels: set[Event] = set()
        for function in self.functions:
            outer = parents[function]
            between: list[Event] = []
            while outer is not None and outer not in self.evaluated:
                between.append(outer)
                outer = parents[outer]
            if outer is None:
                labels.update(between)
        for outer in parents.values():
            if outer is None or outer in self.evaluated or outer.sequence is not None or "::" in outer.name:
                continue
            above = parents[outer]
            if above is None or above.name != EVALUATE + outer.name:
                labels.add(outer)
        return labels

    def _threads_of_operators(self) -> dict[str, Thread]:
        """Find the trace's name of each thread that functions name as that of their operators."""
        last: dict[int, Thread] = {}
        votes: dict[str, Counter[Thread]] = {}
        for event in self.operators:
            if event.sequence is None:
                continue
            outer = self.parents[event]
            if event not in self.evaluated:
                if outer is None or outer.name != EVALUATE + event.name:
                    last[event.sequence] = event.thread
            elif event.sequence in last:
                votes.setdefault(_forward_thread(event), Counter())[last[event.sequence]] += 1
        return {named: threads.most_common(1)[0][0] for named, threads in votes.items()}

    def number(self, event: Event) -> Number | None:
        """Return the number that a forward operator and its function share; each thread has its own."""
        if event.sequence is None:
            return None
        thread = event.thread
        if event in self.evaluated:
            thread = self._forward_threads.get(_forward_thread(event), thread)
        return thread, event.sequence

    def outermost_between(self, start: float, end: float) -> Sequence[Event]:
        """Find the outermost operators and functions that began from `start` until before `end`."""
        first, last = (bisect.bisect_left(self._starts, moment) for moment in (start, end))
        return self.outermost[first:last]

    def optimizer_spans(self, prefix: str = OPTIMIZER) -> list[tuple[float, float]]:
        """Find when the optimizer computed: of a step with a closure, what follows the last backward pass."""
        starts = [function.start for function in self.functions]
        spans = []
        for label in self.labels:
            if label.name.startswith(prefix):
                first, last = (bisect.bisect_left(starts, moment) for moment in (label.start, label.end))
                closure = max((it.end for it in self.functions[first:last]), default=label.start)
                spans.append((closure, label.end))
        return spans

    def within(self, event: Event) -> Iterator[Event]:
        """Yield an event and all that ran inside it."""
        waiting = [event]
        while waiting:
            event = waiting.pop()
            yield event
            waiting.extend(self.children.get(event, ()))

    def handed_over(self, function: Event) -> Event | None:
        """Find the event that knows a gradient's shape, in the function that hands it over."""
        if function.name == ACCUMULATE:
            return function
        return next((it for it in self.children.get(function, ()) if it.name == ACCUMULATE), None)

    def caller(self, event: Event) -> Event | None:
        """Find the innermost function that called this one, as re-entrant checkpointing does."""
        outer = self.parents[event]
        while outer is not None and outer not in self.evaluated:
            outer = self.parents[outer]
        return outer

    def operator(self, event: Event) -> Event:
        """Find the outermost operator around an event; inside a function, the outermost in there."""
        outer = self.parents[event]
        while outer is not None and outer not in self.evaluated:
            above = self.parents[outer]
            if above in self.evaluated and above is not None and above.name == EVALUATE + outer.name:
                break
            event, outer = outer, above
        return event


def _forward_thread(function: Event) -> str:
    """Return the thread that a function names as that of its operator, by PyTorch's own number."""
    return str(function.args.get("Fwd thread id"))


def _functions(operators: Sequence[Event], parents: dict[Event, Event | None]) -> list[Event]:
    """Find what the engine evaluated; by its own names where `evaluate_function` was not recorded."""
    evaluated = any(event.name.startswith(EVALUATE) for event in operators)
    functions = []
    for event in operators:
        if event.name.startswith(EVALUATE):
            functions.append(event)
        elif event.name == ACCUMULATE if evaluated else _FUNCTION.search(event.name):
            outer = parents[event]
            if outer is None or outer.name != EVALUATE + event.name:
                functions.append(event)
    return functions


def _parents(events: Iterable[Event]) -> dict[Event, Event | None]:
    """Return, for each event, the innermost one of its thread around it."""
    parents: dict[Event, Event | None] = {}
    stacks: dict[Thread, list[Event]] = {}
    for event in events:
        stack = stacks.setdefault(event.thread, [])
        while stack and stack[-1].end <= event.start:
            if (stack[-1].start, stack[-1].end) == (event.start, event.end):
                break  # no time passed: the one that comes first is the outer one
            stack.pop()
        parents[event] = stack[-1] if stack else None
        stack.append(event)
    return parents


def events_of(document: Any, *, where: str) -> list[Event]:
    """Read the complete events of parsed JSON, by start time. WorkloadError where one is malformed."""
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
            if "Input dims" in args:  # until 2021
                args = {"Input Dims": args["Input dims"], **args}
            thread = str(entry.get("pid")), str(entry.get("tid"))
            event = Event(_category(entry), str(entry.get("name", "")), thread, start, start + duration, args)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise WorkloadError(f"{where}: event {number} is no trace event ({error!r})") from error
        events.append(event)
    return sorted(events, key=lambda event: (event.start, -event.end, not event.name.startswith(EVALUATE)))


def _category(entry: dict[str, Any]) -> str:
    """Today's name of an event's category."""
    if "cat" not in entry:
        return _PROCESSES.get(str(entry.get("pid")), "")
    category = str(entry["cat"]).lower()
    return _CATEGORIES.get(category, category)
