"""What this worker has called, by number: for the others, where workers have called different things."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controller.api.messages import Called
from host_agent.collectives.plan import Strategy
from host_agent.errors import UsageError

_REMEMBERED: Final = 16  # collectives that are over


@dataclass
class _Known:
    """`way`: how it travels, or would now."""

    what: str
    way: Callable[[], Strategy]

    @property
    def words(self) -> str:
        """The whole call."""
        try:
            way = self.way()
        except UsageError:  # which is what it will end with
            return self.what
        return f"{self.what} {'by ring' if way is Strategy.RING else 'in-network'}"


class Calls:
    """The latest calls. `tell`, which must not block, is called for the one that somebody has asked for."""

    def __init__(self, tell: Callable[[Called], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()  # not held while telling
        self._known: dict[int, _Known] = {}
        self._over: list[int] = []
        self._asked: int | None = None

    def made(self, number: int, what: str, way: Callable[[], Strategy]) -> None:
        """The user has called it; it runs when those before it are over."""
        with self._lock:
            self._known[number] = _Known(what, way)
        self._perhaps_tell(number)

    def begins(self, number: int, way: Strategy) -> None:
        """It runs, or runs again."""
        with self._lock:
            self._known[number].way = lambda: way
        self._perhaps_tell(number)

    def is_over(self, number: int) -> None:
        """It has its result, or nothing was sent."""
        with self._lock:
            self._over.append(number)
            if len(self._over) > _REMEMBERED:
                self._known.pop(self._over.pop(0), None)

    def cancelled(self, number: int) -> None:
        """It will never run."""
        with self._lock:
            del self._known[number]

    def asked(self, number: int) -> None:
        """Somebody wants to know what this worker has called as that collective, now or later."""
        self._asked = number
        self._tell(self.of(number))

    def of(self, number: int) -> Called:
        """What is known of a collective now."""
        with self._lock:
            known = self._known.get(number)
            if known is None:
                return Called(number, "")
            return Called(number, known.words)

    def _perhaps_tell(self, number: int) -> None:
        if number == self._asked:
            self._tell(self.of(number))
