"""Parts of a system that are brought into any state they were in before, and what a step does to them.

A part is code that ships, and cannot be copied. So a state of it is a number; it is asked once for what it
does with something in a state of its own; and it is reached again by giving a new one all that led there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Given = tuple[Any, ...]
FactsT = TypeVar("FactsT")
FactsCo = TypeVar("FactsCo", covariant=True)


class Part(Protocol[FactsCo]):
    """A part that takes one thing after the other."""

    def apply(self, given: Given) -> tuple[Any, ...]:
        """Make a step; return what comes out, in order. Raise AssertionError if it is wrong."""
        ...

    def facts(self) -> FactsCo:
        """Return what others need to know of its state; equal states have equal facts."""
        ...

    def digest(self) -> bytes:
        """Return the digest of its state."""
        ...

    def close(self) -> None:
        """End it: it is not used any more."""
        ...


@dataclass(frozen=True)
class Step:
    """A part's step: its next state, what comes out, and what is wrong (empty: nothing)."""

    state: int
    out: tuple[Any, ...] = ()
    wrong: str = ""


class Parts(Generic[FactsT]):
    """All states that a part was found in, by number from 0, and the steps that were tried there."""

    def __init__(self, make: Callable[[], Part[FactsT]], *, live: int) -> None:
        self.facts: list[FactsT] = []
        self.replayed = 0
        self._make = make
        self._most_live = live
        self._numbers: dict[bytes, int] = {}
        self._steps: dict[tuple[int, Given], Step] = {}
        self._came: dict[int, tuple[int, Given]] = {}
        self._live: dict[int, Part[FactsT]] = {}
        self._keep(self._number(first := make()), first)

    @property
    def steps(self) -> int:
        """The number of different steps that were made."""
        return len(self._steps)

    def step(self, state: int, given: Given) -> Step:
        """Return the step from a state when it is given something."""
        known = self._steps.get((state, given))
        if known is not None:
            return known
        part = self._live.pop(state, None) or self._again(state)
        try:
            out = part.apply(given)
        except Exception as error:  # noqa: BLE001  whatever breaks is what this is to find out
            part.close()
            step = Step(state, (), str(error) if isinstance(error, AssertionError) else repr(error))
        else:
            number = self._number(part)
            if number and number != state:
                self._came.setdefault(number, (state, given))
            self._keep(number, part)
            step = Step(number, out)
        self._steps[state, given] = step
        return step

    def close(self) -> None:
        """Close all parts: nothing more is asked."""
        for part in self._live.values():
            part.close()
        self._live.clear()

    def _number(self, part: Part[FactsT]) -> int:
        number = self._numbers.setdefault(part.digest(), len(self._numbers))
        if number == len(self.facts):
            self.facts.append(part.facts())
        return number

    def _keep(self, number: int, part: Part[FactsT]) -> None:
        if number in self._live:
            part.close()
            return
        if len(self._live) >= self._most_live:
            oldest = next(iter(self._live))
            self._live.pop(oldest).close()
        self._live[number] = part

    def _again(self, state: int) -> Part[FactsT]:
        """Make a part of this state, by giving it all that led there."""
        self.replayed += 1
        given = []
        while state:
            state, last = self._came[state]
            given.append(last)
        part = self._make()
        for what in reversed(given):
            part.apply(what)
        return part
