"""Links: one direction each, with a delay, a rate, and faults that a seed or a list decides."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping

from p4reduce.simulation.faults.loop import Clock
from p4reduce.simulation.faults.schedule import STRIKES, Rates, Strike


class StrikesOfLink:
    """The faults of a direction of a link, for its frames in the order in which they come."""

    def __init__(
        self, name: str, rates: Rates, seed: int, listed: Mapping[int, list[Strike]] | None, log: list[Strike]
    ) -> None:
        self.name = name
        self._rates = rates
        self._listed = listed
        self._log = log
        self._random = random.Random(f"{seed}/{name}")
        bounds, total = [], 0.0
        for kind in STRIKES:
            total += getattr(rates, kind)
            bounds.append((total, kind))
        self._bounds, self._total = bounds, total
        self.quiet = listed is None and total == 0.0

    def at(self, frame: int) -> list[Strike] | None:
        """Return what happens to a frame; None: nothing."""
        if self._listed is not None:
            struck = self._listed.get(frame)
            if struck:
                self._log.extend(struck)
            return struck
        chance = self._random.random()
        if chance >= self._total:
            return None
        kind = next(kind for bound, kind in self._bounds if chance < bound)
        late = self._rates.stale_ns if kind == "stale" else self._rates.late_ns
        strike = Strike(
            self.name, frame, kind, self._random.randrange(1, late), self._random.randrange(1 << 24)
        )
        self._log.append(strike)
        return [strike]


class Wire:
    """One direction of a link. `down`: the number of reasons for which it loses everything."""

    def __init__(
        self,
        clock: Clock,
        faults: StrikesOfLink,
        arrive: Callable[[bytes], None],
        *,
        delay_ns: int,
        gap_ns: int,
    ) -> None:
        self.clock = clock
        self.faults = faults
        self.arrive = arrive
        self.delay_ns = delay_ns
        self.gap_ns = gap_ns
        self.down = 0
        self.sent = 0
        self._free_ns = 0

    def send(self, frame: bytes) -> None:
        """Put a frame on the link, and let the link do its worst."""
        number = self.sent
        self.sent = number + 1
        clock = self.clock
        start = self._free_ns
        if start < clock.now_ns:
            start = clock.now_ns
        self._free_ns = start + self.gap_ns
        arrives = start + self.delay_ns
        strikes = None if self.faults.quiet else self.faults.at(number)
        if strikes is None:
            self._under_way(frame, arrives)
        else:
            self._struck(frame, arrives, strikes)

    def _struck(self, frame: bytes, arrives: int, strikes: list[Strike]) -> None:
        if any(strike.kind == "loss" for strike in strikes):
            return
        for strike in strikes:
            if strike.kind == "corrupt":
                damaged = bytearray(frame)
                bit = strike.bit % (8 * (len(frame) - 42))  # of what the ICRC covers and no router changes
                damaged[42 + bit // 8] ^= 1 << bit % 8
                frame = bytes(damaged)
            elif strike.kind == "reorder":
                arrives += strike.after_ns
            else:
                self._under_way(frame, arrives + strike.after_ns)
        self._under_way(frame, arrives)

    def _under_way(self, frame: bytes, arrives: int) -> None:
        self.clock.at(arrives, self._arrive, frame)

    def _arrive(self, frame: bytes) -> None:
        if not self.down:
            clock = self.clock
            clock.trace = zlib.crc32(frame, clock.trace ^ clock.now_ns & 0xFFFFFFFF)
            self.arrive(frame)
