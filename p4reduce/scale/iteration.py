"""An iteration of training on a simulated clock.

`replaying.Player` plays it, as on every worker; its sums only take time. All ranks are alike, so one stands
for all. Gradients have a size and no memory.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.gradients import Gradients
from p4reduce.workloads.references import Racks
from p4reduce.workloads.replaying import Clock, Player
from p4reduce.workloads.traffic.buckets import buckets
from p4reduce.workloads.traffic.model import Workload


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Duration of an iteration, the time that workers wait for sums, and the sum of all sums' durations."""

    seconds: float
    waiting_s: float
    summing_s: float


def iterate(workload: Workload, sum_s: Callable[[int], float], *, overlap: bool = True) -> Iteration:
    """Simulate one iteration with DDP's buckets; `sum_s` returns a sum's seconds by its bytes.

    Without `overlap`, no bucket is summed before all gradients are there.
    """
    played = workload if overlap else _ready_at_the_end(workload)
    clock = SimulatedClock()
    reducer = SimulatedReducer(clock, sum_s)
    answer = Player(clock, make_buffers=SizesAlone).replay(
        reducer,
        layers=[[layer.numel, layer.forward_ns, layer.backward_ns] for layer in played.layers],
        buckets=[bucket.layers for bucket in buckets(played)],
        iterations=1,
        dtype=played.dtype,
    )
    (one,) = answer["iterations"]
    return Iteration(
        seconds=one["end_s"] - one["start_s"], waiting_s=one["wait_s"], summing_s=reducer.summing_s
    )


def _ready_at_the_end(workload: Workload) -> Workload:
    """Move all of the backward pass before the first gradient."""
    *others, last = (replace(layer, backward_ns=0) for layer in workload.layers)
    return replace(workload, layers=(*others, replace(last, backward_ns=workload.backward_ns)))


class SimulatedClock(Clock):
    """Time that advances only when somebody waits for it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, Future[None]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        """Return the seconds since the clock was made."""
        return self._now

    def at(self, moment: float, future: Future[None]) -> None:
        """Schedule `future` to be done at `moment`."""
        heapq.heappush(self._events, (moment, next(self._numbers), future))

    def sleep_until(self, due: float) -> None:
        """Play all events until `due`."""
        while self._events and self._events[0][0] <= due:
            self._next()
        self._now = max(self._now, due)

    def wait(self, future: Future[None]) -> None:
        """Play events until `future` is done."""
        while not future.done():
            self._next()
        future.result()

    def _next(self) -> None:
        self._now, _, future = heapq.heappop(self._events)
        future.set_result(None)


class SimulatedReducer:
    """Rank 0 of all. Sums are made one after the other, each in the time that its size takes."""

    rank = 0
    world_size = 2  # nobody adds anything up

    def __init__(self, clock: SimulatedClock, sum_s: Callable[[int], float]) -> None:
        self.summing_s = 0.0
        self._clock = clock
        self._sum_s = sum_s
        self._free_at = 0.0

    def start(self, array: NDArray[Any]) -> Future[None]:
        """Schedule a sum of the array's size; the array does not change."""
        future: Future[None] = Future()
        seconds = self._sum_s(array.nbytes)
        self.summing_s += seconds
        self._free_at = max(self._free_at, self._clock.now()) + seconds
        self._clock.at(self._free_at, future)
        return future

    def sum(self, array: NDArray[Any]) -> None:
        """Do as `start` does, and wait."""
        self._clock.wait(self.start(array))

    def barrier(self) -> None:
        """Do nothing: all ranks are in step."""

    def reference(self, racks: Racks, dtype: Any) -> None:
        """Return None: there are no values to compare."""

    def retransmissions(self) -> None:
        """Return None: nothing is lost."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SizesAlone(Gradients):
    """Buffers without memory: every element of one is the same."""

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        rank: int,
        world_size: int,
        dtype: np.dtype[Any],
        over_16_bits: bool = False,
    ) -> None:
        self._buffers = [np.broadcast_to(np.zeros((), dtype), (size,)) for size in sizes]

    def fits(self, sizes: Sequence[int], dtype: np.dtype[Any], *, over_16_bits: bool = False) -> bool:
        """Return False: buffers are made anew each time."""
        return False

    def buffer(self, bucket: int) -> NDArray[Any]:
        """Return an array of that size, which is not to be written to."""
        return self._buffers[bucket]

    def renew(self, bucket: int, iteration: int) -> None:
        """Do nothing: there is nothing to write."""

    def check_all(self) -> None:
        """Do nothing: there are no values that could be wrong."""
