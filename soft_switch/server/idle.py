"""Idle timeouts: table entries that no packet has hit for as long as the controller said.

Source: P4Runtime specification, sections "Idle-timeout" and "Table Idle Timeout Notification". Times are
nanoseconds of a clock that never goes back, given by the caller. Instead of scanning the tables, every entry
is looked at when it can have expired at the earliest.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from soft_switch.dataplane import DataPlane

MIN_TIMEOUT_NS = 10_000_000  # smaller ones are taken as this one, as the specification allows


K = TypeVar("K", bound=Hashable)


@dataclass(eq=False)
class Watch(Generic[K]):
    """An entry with a timeout; `reset` is when it was last reported (or first watched)."""

    key: K
    table: str
    handle: int
    timeout: int
    reset: int


class IdleTimeouts(Generic[K]):
    """The entries that can expire, by a key of the caller's. Not for several threads at once."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._watches: dict[K, Watch[K]] = {}
        self._heap: list[tuple[int, int, Watch[K]]] = []  # due, tie-breaker; stale ones stay
        self._numbers = itertools.count()

    def watch(self, key: K, table: str, handle: int, timeout_ns: int, now: int) -> None:
        """Watch an entry, instead of before if it was watched; a timeout of 0 stops that."""
        before = self._watches.pop(key, None)
        if timeout_ns == 0:
            return
        timeout = max(timeout_ns, MIN_TIMEOUT_NS)
        reset = now - timeout if before is None else before.reset
        watch = self._watches[key] = Watch(key, table, handle, timeout, reset)
        self._push(watch, now + timeout - min(timeout, self._plane.idle_ns(table, handle)))

    def drop(self, key: K) -> None:
        """Forget an entry that is gone."""
        self._watches.pop(key, None)

    def expired(self, now: int) -> list[K]:
        """Return the keys of entries that have been idle for their timeout; each starts anew."""
        keys = []
        while self._heap and self._heap[0][0] <= now:
            _, _, watch = heapq.heappop(self._heap)
            if self._watches.get(watch.key) is not watch:
                continue
            idle = min(self._plane.idle_ns(watch.table, watch.handle), now - watch.reset)
            if idle >= watch.timeout:
                keys.append(watch.key)
                watch.reset = now
                idle = 0
            self._push(watch, now + watch.timeout - idle)
        return keys

    def deadline(self) -> int | None:
        """Return when to look again, None: not before an entry is watched."""
        return self._heap[0][0] if self._heap else None

    def _push(self, watch: Watch[K], due: int) -> None:
        if len(self._heap) > 2 * len(self._watches) + 1024:  # entries come and go faster than they expire
            self._heap = [item for item in self._heap if self._watches.get(item[2].key) is item[2]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (due, next(self._numbers), watch))
