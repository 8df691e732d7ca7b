"""A worker's part of a replay: it sleeps while the model would compute, and sums gradients once ready.

An iteration goes forward through the layers and back. A bucket is summed as soon as all of its layers have
their gradients, while the layers before them still compute. As in PyTorch's DDP, the next iteration begins
when all buckets are summed. With front layers first, it begins when the first layer's bucket is summed, and
each other layer waits only for its own.

Computing is a clock that runs on: `due` is when the layers so far have computed. The worker does not sleep
layer by layer, but only until the next thing is to be done. It sleeps until a moment, not for a time, so
delays of a busy machine do not add up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.front_first import FrontFirst
from p4reduce.workloads.gradients import Gradients
from p4reduce.workloads.strategies.reducer import Reducer
from p4reduce.workloads.tensors import dtype_of

_NS: Final = 1e-9
_TOUCHING_S: Final = 50e-6  # waits that are no further apart are one


class Clock:
    """The machine's monotonic clock, which all its processes share; a simulated clock may replace it."""

    def now(self) -> float:
        """Return the seconds since the machine started."""
        return time.monotonic()

    def sleep_until(self, due: float) -> None:
        """Sleep until `due`."""
        while (left := due - time.monotonic()) > 0:
            time.sleep(left)

    def wait(self, future: Future[None]) -> None:
        """Wait for the future, and raise its error."""
        future.result()


@dataclass(frozen=True)
class Layer:
    """A layer's number of elements, and its computing times."""

    numel: int
    forward_ns: int
    backward_ns: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A replay. `buckets` are layers' indexes, in the order in which their gradients get ready.

    `warm_up` iterations precede those that count.
    """

    layers: tuple[Layer, ...]
    buckets: tuple[tuple[int, ...], ...]
    iterations: int
    warm_up: int = 0
    priority: bool = False

    def __post_init__(self) -> None:
        backwards = [layer for bucket in self.buckets for layer in bucket]
        if backwards != list(reversed(range(len(self.layers)))):
            raise WorkloadError("the buckets do not have every layer once, from the last to the first")
        if self.iterations < 0 or self.warm_up < 0 or self.iterations + self.warm_up < 1:
            raise WorkloadError("a replay has at least one iteration")

    @property
    def sizes(self) -> list[int]:
        """Each bucket's number of elements."""
        return [sum(self.layers[index].numel for index in bucket) for bucket in self.buckets]


@dataclass
class Span:
    """A piece of this worker's time, in seconds since the replay began."""

    iteration: int
    kind: Literal["compute", "communicate", "wait"]
    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Iteration:
    """An iteration's beginning and end on this worker, and the time that it only waited for sums."""

    start_s: float
    end_s: float
    wait_s: float


class Player:
    """Replays on one worker. The memory of its gradients stays for the next replay.

    On a simulated clock, `make_buffers` may make buffers that take no memory.
    """

    def __init__(self, clock: Clock | None = None, *, make_buffers: type[Gradients] = Gradients) -> None:
        self._clock = clock or Clock()
        self._make_buffers = make_buffers
        self._gradients: Gradients | None = None
        self._iteration = 0  # over all replays: each has gradients of its own

    def replay(
        self,
        reducer: Reducer,
        *,
        layers: Sequence[Sequence[int]],
        buckets: Sequence[Sequence[int]],
        iterations: int,
        warm_up: int = 0,
        priority: bool = False,
        dtype: str = "float32",
        over_16_bits: bool = False,
    ) -> dict[str, Any]:
        """Replay with a strategy; all ranks make the same call. Every element of the sums is checked.

        `layers` are (elements, forward_ns, backward_ns). `dtype` is the gradients' type; `over_16_bits`:
        their sums may take 16 bits on the wire. The answer has `began` by this machine's monotonic clock,
        `iterations` and `spans` (warm-up has negative numbers) counting from there, and `retransmissions`.
        """
        plan = Plan(
            layers=tuple(Layer(*layer) for layer in layers),
            buckets=tuple(tuple(bucket) for bucket in buckets),
            iterations=iterations,
            warm_up=warm_up,
            priority=priority,
        )
        gradients = self._prepared(plan, reducer, dtype_of(dtype), over_16_bits=over_16_bits)
        for bucket in range(len(plan.buckets)):
            gradients.renew(bucket, self._iteration)
        reducer.barrier()
        resent = reducer.retransmissions()
        play = _Play(plan, reducer, gradients, self._clock, first_iteration=self._iteration)
        self._iteration += plan.warm_up + plan.iterations
        play.run()
        gradients.check_all()
        resent_after = reducer.retransmissions()
        return {
            "began": play.began,
            "iterations": [asdict(iteration) for iteration in play.iterations[plan.warm_up :]],
            "spans": [asdict(span) for span in play.spans],
            "retransmissions": None if resent is None or resent_after is None else resent_after - resent,
        }

    def _prepared(
        self, plan: Plan, reducer: Reducer, dtype: np.dtype[Any], *, over_16_bits: bool
    ) -> Gradients:
        found = self._gradients
        if found is None or not found.fits(plan.sizes, dtype, over_16_bits=over_16_bits):
            found = self._gradients = None  # there is no room for both
            found = self._gradients = self._make_buffers(
                plan.sizes,
                rank=reducer.rank,
                world_size=reducer.world_size,
                dtype=dtype,
                over_16_bits=over_16_bits,
            )
        return found


class _Play:
    """One replay."""

    def __init__(
        self, plan: Plan, reducer: Reducer, gradients: Gradients, clock: Clock, *, first_iteration: int
    ) -> None:
        self.spans: list[Span] = []
        self.iterations: list[Iteration] = []
        self._plan = plan
        self._reducer = reducer
        self._gradients = gradients
        self._clock = clock
        self._first_iteration = first_iteration
        self._forward_s = [_NS * sum(plan.layers[i].forward_ns for i in bucket) for bucket in plan.buckets]
        self._backward_s = [_NS * sum(plan.layers[i].backward_ns for i in bucket) for bucket in plan.buckets]
        self._sums: list[Future[None]] = []  # of the iteration that was last on its way back
        self._summing = -plan.warm_up  # its number
        self._current = -plan.warm_up
        self._waited_s = 0.0
        self._last_wait: Span | None = None
        self._last_sum_at = 0.0
        self._order: FrontFirst | None = None
        if plan.priority:
            self._order = FrontFirst(
                [bucket[-1] for bucket in plan.buckets],
                world_size=reducer.world_size,
                start=reducer.start,
                go=self._sum,
                failed=self._fail,
            )
        self.began = self._due = self._computing_since = clock.now()

    def run(self) -> None:
        """Play all iterations, and wait for the sums of the last."""
        plan = self._plan
        begins = 0.0
        for number in range(-plan.warm_up, plan.iterations):
            self._current, self._waited_s = number, 0.0
            self._forward()
            self._backward()
            if plan.priority:
                self._wait_for(len(plan.buckets) - 1)
            else:
                for bucket in range(len(plan.buckets)):
                    self._wait_for(bucket)
            ends = max(self._due, self._clock.now()) - self.began
            self.iterations.append(Iteration(begins, ends, self._waited_s))
            begins = ends
        for future in self._sums:
            self._clock.wait(future)

    def _forward(self) -> None:
        for bucket in reversed(range(len(self._plan.buckets))):
            if self._sums:
                self._wait_for(bucket)
            self._due += self._forward_s[bucket]
        self._computed("forward")

    def _backward(self) -> None:
        self._sums, self._summing = [Future() for _ in self._plan.buckets], self._current
        for bucket, seconds in enumerate(self._backward_s):
            self._due += seconds
            # As part of the computing, which writes gradients too.
            self._gradients.renew(bucket, self._first_iteration + self._plan.warm_up + self._current)
            self._clock.sleep_until(self._due)
            if self._order is None:
                self._sum(bucket)
            else:
                self._order.ready(bucket)
        self._computed("backward")

    def _computed(self, what: str) -> None:
        """Note that the layers up to `due` have computed."""
        if self._due > self._computing_since:
            self._span("compute", what, self._computing_since, self._due)
        self._computing_since = self._due

    def _wait_for(self, bucket: int) -> None:
        """Wait until a bucket is summed; computing stands still meanwhile."""
        future = self._sums[bucket]
        if not future.done():
            self._clock.sleep_until(self._due)
        if future.done():
            future.result()
            return
        self._computed("forward")  # else nothing: the backward pass has been noted
        started = max(self._due, self._clock.now())
        self._clock.wait(future)
        now = self._clock.now()
        self._waited_s += now - started
        last, since = self._last_wait, started - self.began
        if last is not None and last.iteration == self._current and since - last.end_s < _TOUCHING_S:
            last.end_s = now - self.began
        else:
            self._last_wait = self._span("wait", "gradients", started, now)
        self._due = self._computing_since = now

    # In futures' callbacks as well

    def _sum(self, bucket: int) -> None:
        started = self._clock.now()
        summing = self._reducer.start(self._gradients.buffer(bucket))
        summing.add_done_callback(partial(self._summed, bucket, self._sums[bucket], self._summing, started))

    def _summed(
        self, bucket: int, sum_: Future[None], iteration: int, started: float, summing: Future[None]
    ) -> None:
        now = self._clock.now()
        begun, self._last_sum_at = max(started, self._last_sum_at), now  # they go one after the other
        error = summing.exception()
        if error is not None:
            self._fail(error)
            return
        self._span("communicate", f"bucket {bucket}", begun, now, iteration=iteration)
        with contextlib.suppress(InvalidStateError):  # something else has failed
            sum_.set_result(None)
        if self._order is not None:
            self._order.done()

    def _fail(self, error: BaseException) -> None:
        """Give the error to all waiting sums."""
        for future in self._sums:
            with contextlib.suppress(InvalidStateError):  # it is done
                future.set_exception(error)

    def _span(
        self,
        kind: Literal["compute", "communicate", "wait"],
        what: str,
        start: float,
        end: float,
        *,
        iteration: int | None = None,
    ) -> Span:
        number = self._current if iteration is None else iteration
        span = Span(number, kind, what, start - self.began, end - self.began)
        self.spans.append(span)
        return span
