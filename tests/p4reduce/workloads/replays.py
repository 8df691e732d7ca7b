"""Tools to test replays: a clock that jumps, a network on paper, and ranks that are threads."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.gradients import PERIOD, summands
from p4reduce.workloads.references import Racks
from p4reduce.workloads.replaying import Clock


class FakeClock(Clock):
    """Time goes on only where somebody waits for it."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sleeps = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self.time

    def at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), event))

    def sleep_until(self, due: float) -> None:
        self.sleeps += 1
        while self._events and self._events[0][0] <= due:
            self._next()
        self.time = max(self.time, due)

    def wait(self, future: Future[None]) -> None:
        while not future.done():
            self._next()
        future.result()

    def _next(self) -> None:
        self.time, _, event = heapq.heappop(self._events)
        event()


class FakeReducer:
    """Rank 0 of `world_size` on a link that carries an element in `element_s`, after `latency_s`."""

    rank = 0

    def __init__(
        self, clock: FakeClock, *, world_size: int = 4, element_s: float = 0.0, latency_s: float = 0.0
    ) -> None:
        self.world_size = world_size
        self.sizes: list[int] = []  # of gradients, in the order in which they were summed
        self.masks = 0
        self.spoil: Callable[[NDArray[Any]], None] = lambda array: None
        self.fail_at: int | None = None
        self._clock = clock
        self._element_s = element_s
        self._latency_s = latency_s
        self._free_at = 0.0

    def start(self, array: NDArray[Any]) -> Future[None]:
        future: Future[None] = Future()

        def arrive() -> None:
            if array.dtype == np.int32:  # all are equally fast
                self.masks += 1
                np.multiply(array, self.world_size, out=array)
            else:
                if self.fail_at == len(self.sizes):
                    future.set_exception(ConnectionError("the cable is out"))
                    return
                self.sizes.append(array.size)
                self._add_others(array)
                self.spoil(array)
            future.set_result(None)

        seconds = 0.0 if array.dtype == np.int32 else array.size * self._element_s + self._latency_s
        self._free_at = max(self._free_at, self._clock.now()) + seconds
        self._clock.at(self._free_at, arrive)
        return future

    def _add_others(self, array: NDArray[Any]) -> None:
        """Add what the other ranks have, where this one has what is in `array`."""
        own, *others = (
            summands(rank, world_size=self.world_size, dtype=array.dtype) for rank in range(self.world_size)
        )
        (phase,) = np.flatnonzero(own == array[0])
        for other in others:
            array += other[(phase + np.arange(array.size)) % PERIOD].astype(array.dtype)

    def sum(self, array: NDArray[Any]) -> None:
        self._clock.wait(self.start(array))

    def barrier(self) -> None:
        """Do nothing: the others are there already."""

    def reference(self, racks: Racks, dtype: Any) -> None:
        """Do nothing: nobody asks."""

    def retransmissions(self) -> int | None:
        return 7 * len(self.sizes)

    def close(self) -> None:
        """Do nothing."""


class Meeting:
    """Sums of `size` threads: all have to come before any goes on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=20.0)
        self._arrays: list[NDArray[Any] | None] = [None] * size

    def sum(self, rank: int, array: NDArray[Any]) -> None:
        self._arrays[rank] = array
        self._barrier.wait()
        arrays = [other for other in self._arrays if other is not None]
        assert len({(other.size, other.dtype) for other in arrays}) == 1, "ranks sum different buckets"
        total = sum(other.astype(np.float64) for other in arrays)
        self._barrier.wait()
        array[...] = total
        self._barrier.wait()

    def give_up(self) -> None:
        self._barrier.abort()


class ThreadReducer:
    """A rank whose sums are made in a thread of its own, in order."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self.world_size = meeting.size
        self.sizes: list[int] = []
        self.types: set[np.dtype[Any]] = set()
        self._meeting = meeting
        self._queue = ThreadPoolExecutor(max_workers=1)

    def start(self, array: NDArray[Any]) -> Future[None]:
        return self._queue.submit(self.sum, array)

    def sum(self, array: NDArray[Any]) -> None:
        self._meeting.sum(self.rank, array)
        if array.dtype != np.int32:
            self.sizes.append(array.size)
            self.types.add(array.dtype)

    def barrier(self) -> None:
        self._queue.submit(self._meeting.sum, self.rank, np.zeros(1, np.int32)).result()

    def reference(self, racks: Racks, dtype: Any) -> None:
        """Do nothing: nobody asks."""

    def retransmissions(self) -> int | None:
        return None

    def close(self) -> None:
        self._queue.shutdown()
