"""Spans of time, in which somebody computed: how long they are together until a moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Spans:
    """Spans of time, joined where they meet. Results have the unit and the type of the times."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._before: list[float] = []  # of each: the time in those before it
        passed: float = 0
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                more = max(end - self._ends[-1], 0)
                self._ends[-1] += more
                passed += more
                continue
            self._starts.append(start)
            self._ends.append(end)
            self._before.append(passed)
            passed += end - start

    def __contains__(self, moment: float) -> bool:
        at = bisect_right(self._starts, moment) - 1
        return at >= 0 and moment < self._ends[at]

    def before(self, moment: float) -> float:
        """Add up the time in the spans until a moment."""
        at = bisect_right(self._starts, moment) - 1
        return 0 if at < 0 else self._before[at] + min(moment, self._ends[at]) - self._starts[at]

    def between(self, passed: float) -> float:
        """Add up the time between the spans, until that much has passed in them."""
        at = bisect_right(self._before, max(passed - 1, 0)) - 1
        return 0 if at < 0 else self._starts[at] - self._before[at] - self._starts[0]
