"""This worker's calls by number, to tell the others when workers have called different collectives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from controller.api.messages import Called

_REMEMBERED: Final = 16  # collectives that are over


class Calls:
    """The latest calls, put in words when somebody asks; `tell` is called with what was asked for."""

    def __init__(self, tell: Callable[[Called], None]) -> None:
        self._tell = tell
        self._words: dict[int, Callable[[], str]] = {}
        self._over: deque[int] = deque()
        self._asked: int | None = None

    def made(self, number: int, words: Callable[[], str]) -> None:
        """The user has called it; or it runs, or runs again, and now it is known how it travels."""
        self._words[number] = words
        if number == self._asked:
            self._tell(self.of(number))

    def is_over(self, number: int) -> None:
        """It does not run any more."""
        self._over.append(number)
        if len(self._over) > _REMEMBERED:
            self._words.pop(self._over.popleft(), None)

    def cancelled(self, number: int) -> None:
        """It will never run."""
        del self._words[number]

    def asked(self, number: int) -> None:
        """Somebody wants to know what this worker has called as that collective, now or later."""
        self._asked = number
        self._tell(self.of(number))

    def of(self, number: int) -> Called:
        """What is known of a collective now."""
        words = self._words.get(number)
        return Called(number, "" if words is None else words())
