"""Numbered calls of this worker, to tell the others when workers have called different collectives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from controller.api.messages import Called

_REMEMBERED: Final = 16  # collectives that are over


class Calls:
    """The latest calls, put into words on demand. `tell` is called with the call that was asked for."""

    def __init__(self, tell: Callable[[Called], None]) -> None:
        self._tell = tell
        self._words: dict[int, Callable[[], str]] = {}
        self._over: deque[int] = deque()
        self._asked: int | None = None

    def made(self, number: int, words: Callable[[], str]) -> None:
        """Note the call's words: the user has made it, or it runs and its way is known."""
        self._words[number] = words
        if number == self._asked:
            self._tell(self.of(number))

    def is_over(self, number: int) -> None:
        """Note that the collective no longer runs."""
        self._over.append(number)
        if len(self._over) > _REMEMBERED:
            self._words.pop(self._over.popleft(), None)

    def cancelled(self, number: int) -> None:
        """Forget a collective that will never run."""
        del self._words[number]

    def asked(self, number: int) -> None:
        """Tell, now or later, what this worker has called as that collective."""
        self._asked = number
        self._tell(self.of(number))

    def of(self, number: int) -> Called:
        """Return what is known of a collective now."""
        words = self._words.get(number)
        return Called(number, "" if words is None else words())
