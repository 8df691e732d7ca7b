"""Which collective may start, and in which mode: where a job that moves between ring and switch is held.

    Pause ──► nothing starts ──► HoldAt(K) ──► what comes before K runs ──► Held ──► Moved ──► K starts

A collective's mode is decided when it starts, by its number. No collective before K runs in the new mode and
none from K on in the old one, on any worker: so all workers run each one alike, whenever it was called.

A renewal interrupts: nothing starts, and the collective that runs parks here, until the job goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial

from controller.api.messages import Mode

_NUMBERS = 1 << 32


class Parked(Enum):
    """How the wait of a collective that was cut ended."""

    GO_ON = "go on"
    STALLED = "nothing has happened for as long as it was to wait"
    BROKEN = "the job is over"


class Gate:
    """Every collective passes through `turn`, in order of number; one at a time. Safe from any thread."""

    def __init__(self, mode: Mode, reason: str) -> None:
        self.ring_reason = ""  # why the job went by ring, now or the last time
        self.ring_moves = 0  # how often it has gone over to the ring
        self.mode = mode
        self._set_mode(mode, reason)
        self._changed = threading.Condition()
        self._next = 0  # the first collective that has not started
        self._running = False
        self._held_from: int | None = None  # these and all later ones wait
        self._move: int | None = None  # which move holds them
        self._broken = False
        self._renewing = False
        self._parked = False  # what runs, while the job is renewed
        self._marks = 0  # of progress while it is

    @property
    def next_collective(self) -> int:
        """The first that has not started."""
        return self._next

    @property
    def is_holding(self) -> bool:
        """Whether the next collective would have to wait."""
        return self._holds(self._next)

    @property
    def is_moving(self) -> bool:
        """Whether a move holds collectives."""
        return self._move is not None

    @contextmanager
    def turn(self, collective: int) -> Iterator[None]:
        """Wait until this collective may start, in `mode`. What leaves ends its turn."""
        with self._changed:
            # Those between will never start: their futures were cancelled.
            if _ahead(collective, self._next) > 0:
                self._next = collective
                self._changed.notify_all()
            self._changed.wait_for(lambda: not self._holds(collective))
            self._next = (collective + 1) % _NUMBERS
            self._running = True
        try:
            yield
        finally:
            with self._changed:
                self._running = False
                self._changed.notify_all()

    def pause(self, move: int) -> int:
        """Start nothing until `hold_at`; the first collective that has not started."""
        with self._changed:
            self._move, self._held_from = move, self._next
            self._changed.notify_all()
            return self._next

    def hold_at(self, move: int, collective: int) -> None:
        """Let what comes before `collective` start."""
        with self._changed:
            self._move, self._held_from = move, collective
            self._changed.notify_all()

    def wait_held(self, move: int) -> bool:
        """Wait until all before the one that `move` holds have run; False: it holds nothing any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_for(move) or self._is_held())
            return self.is_for(move)

    def is_for(self, move: int) -> bool:
        """Whether this move is under way."""
        return self._move == move and not self._broken

    def moved(self, mode: Mode, reason: str) -> int:
        """Go on, in this mode; the first collective to do so."""
        with self._changed:
            self._set_mode(mode, reason)
            self._move = self._held_from = None
            self._changed.notify_all()
            return self._next

    def interrupt(self) -> None:
        """The job is renewed: start nothing until `go_on`. A move that was under way is over."""
        with self._changed:
            self._renewing = True
            self._move = self._held_from = None
            self._changed.notify_all()

    def wait_quiet(self, is_wanted: Callable[[], bool]) -> bool:
        """Wait until nothing runs, or what runs is parked; False: it is not wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: not is_wanted() or self._broken or self._is_quiet())
            return is_wanted() and not self._broken

    def park(self, patience_s: float) -> Parked:
        """What runs was cut: wait until the job goes on, or nothing happens for `patience_s`."""
        with self._changed:
            self._parked = True
            self._changed.notify_all()
            try:
                while self._renewing and not self._broken:
                    if not self._changed.wait_for(partial(self._has_moved, self._marks), timeout=patience_s):
                        return Parked.STALLED
                return Parked.BROKEN if self._broken else Parked.GO_ON
            finally:
                self._parked = False

    def progress(self) -> None:
        """The renewal has come a step further."""
        with self._changed:
            self._marks += 1
            self._changed.notify_all()

    def go_on(self, mode: Mode, reason: str) -> None:
        """The renewal is over: go on in this mode."""
        with self._changed:
            self._set_mode(mode, reason)
            self._renewing = False
            self._changed.notify_all()

    def is_renewing(self) -> bool:
        """Whether what runs shall park."""
        return self._renewing

    def give_up(self) -> None:
        """Hold nothing any more: the job is over, and what waits here shall learn of it."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    def _set_mode(self, mode: Mode, reason: str) -> None:
        before = self.mode
        self.mode, self.mode_reason = mode, reason
        if mode is Mode.RING:
            self.ring_reason = reason
            self.ring_moves += before is not Mode.RING

    def _holds(self, collective: int) -> bool:
        if self._broken:
            return False
        if self._renewing:
            return True
        if self._held_from is None:
            return False
        return _ahead(collective, self._held_from) >= 0

    def _is_held(self) -> bool:
        if self._running or self._renewing or self._held_from is None:
            return False
        return _ahead(self._next, self._held_from) >= 0

    def _has_moved(self, marks: int) -> bool:
        return self._broken or not self._renewing or self._marks != marks

    def _is_quiet(self) -> bool:
        return self._parked or not self._running


def _ahead(number: int, of: int) -> int:
    """How far a collective's number is ahead of another; they are 32-bit serial numbers."""
    return (number - of + _NUMBERS // 2) % _NUMBERS - _NUMBERS // 2
