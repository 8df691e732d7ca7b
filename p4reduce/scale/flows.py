"""Flows over links on a simulated clock. Events are flows' starts and ends; rates are constant between them.

Rates are max-min fair, found by progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): all rates
grow alike until a link is full or a flow is at its limit. That settles these flows, and the others grow on.
A flow may load several links, and one link several times over: a sum in the network is one flow (a coflow)
that has the same rate on all links of its tree.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Link = Hashable
_FULL: Final = 1e-9  # what is left of a link or a limit, as a share of it, and counts as nothing


@dataclass(frozen=True, eq=False, kw_only=True)
class Flow:
    """`size` bytes. `loads`: bytes that each link carries for each of them; `limit` in bytes per second."""

    size: float
    loads: Mapping[Link, float]
    limit: float = math.inf

    def __post_init__(self) -> None:
        if self.size < 0 or self.limit <= 0 or any(load <= 0 for load in self.loads.values()):
            raise ValueError(f"{self} has no rate")
        if not self.loads and math.isinf(self.limit):
            raise ValueError(f"nothing bounds the rate of {self}")


def max_min(flows: Sequence[Flow], capacities: Mapping[Link, float]) -> NDArray[np.float64]:
    """Return each flow's rate in bytes per second, given the links' `capacities`."""
    links = {link: place for place, link in enumerate({link: None for flow in flows for link in flow.loads})}
    loads = np.zeros((len(links), len(flows)))
    for number, flow in enumerate(flows):
        for link, load in flow.loads.items():
            loads[links[link], number] = load
    capacity = np.array([capacities[link] for link in links], dtype=float)
    limits = np.array([flow.limit for flow in flows], dtype=float)
    rates = np.zeros(len(flows))
    growing = np.ones(len(flows), dtype=bool)
    while growing.any():
        free = capacity - loads @ rates
        wanted = loads @ growing
        grows = np.min(
            np.divide(free, wanted, out=np.full(len(links), np.inf), where=wanted > 0), initial=np.inf
        )
        grows = min(grows, np.min((limits - rates)[growing]))
        rates[growing] += max(0.0, grows)
        full = (capacity - loads @ rates <= _FULL * capacity) & (wanted > 0)
        settled = (loads[full] > 0).any(axis=0) | (rates >= limits * (1 - _FULL))
        growing &= ~settled
    return rates


@dataclass
class _Running:
    flow: Flow
    left: float
    sent: Callable[[], None]
    alike: Hashable  # flows that are have the same rate beside the same others
    rate: float = 0.0


class Network:
    """Links, the flows on them, and timers."""

    def __init__(self, capacities: Mapping[Link, float]) -> None:
        self.now = 0.0
        self.carried: dict[Link, float] = dict.fromkeys(capacities, 0.0)
        self._capacities = capacities
        self._running: list[_Running] = []
        self._stale = False  # flows have come or gone since rates were found
        self._known: dict[tuple[Hashable, ...], list[float]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def start(self, flow: Flow, sent: Callable[[], None]) -> None:
        """Start a flow now; call `sent` when its last byte is on the wire."""
        for link, load in flow.loads.items():
            self.carried[link] += flow.size * load
        alike = (frozenset(flow.loads.items()), flow.limit)
        self._running.append(_Running(flow, flow.size, sent, alike))
        self._stale = True

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after so many simulated seconds."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), call))

    def run(self) -> float:
        """Play all flows and timers to their end; return the time of the last event."""
        while self._running or self._timers:
            if self._stale:
                self._share()
            ends = min((one.left / one.rate for one in self._running), default=math.inf)
            timer = self._timers[0][0] - self.now if self._timers else math.inf
            self._pass(min(ends, timer))
            if timer <= ends:
                _, _, call = heapq.heappop(self._timers)
                call()
            else:
                self._end()
        return self.now

    def _share(self) -> None:
        """Set the rates of the present flows; rates of a set of flows seen before are remembered."""
        beside = tuple(one.alike for one in self._running)
        if beside not in self._known:
            self._known[beside] = max_min([one.flow for one in self._running], self._capacities).tolist()
        for one, rate in zip(self._running, self._known[beside], strict=True):
            one.rate = rate
        self._stale = False

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        for one in self._running:
            one.left -= one.rate * seconds

    def _end(self) -> None:
        """Remove the flows that have sent everything, in the order in which they started."""
        over = [one for one in self._running if one.left <= _FULL * one.flow.size]
        self._running = [one for one in self._running if one.left > _FULL * one.flow.size]
        self._stale = True
        for one in over:
            one.sent()
