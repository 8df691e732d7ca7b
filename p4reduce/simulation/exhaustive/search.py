"""Breadth-first search through all states of a scope, each once; and one way through them, played again."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from p4reduce.simulation.exhaustive.found import Choice, Explored, Found, Graph

SAY_EVERY = 5000  # states
WIDE = 14
StateT = TypeVar("StateT")


class Broken(AssertionError):
    """An invariant is broken."""


class Search(ABC, Generic[StateT]):
    """A search of one scope. States are values; what a choice does to one follows from the two."""

    def __init__(self, scope: Explored) -> None:
        self.searched = scope
        self.checks: Counter[str] = Counter()

    @abstractmethod
    def first(self) -> StateT:
        """Return the state in which the search begins."""

    @abstractmethod
    def choices(self, state: StateT) -> Iterable[Choice]:
        """Return all that is tried in a state."""

    @abstractmethod
    def after(self, state: StateT, choice: Choice) -> StateT:
        """Return the state that a choice leads to. Raise Broken if an invariant is."""

    @abstractmethod
    def key(self, state: StateT) -> bytes:
        """Return the key of a state, which it shares with those that count as the same."""

    @abstractmethod
    def spell(self, choice: Choice) -> str:
        """Return a choice as `--choices` has it."""

    @abstractmethod
    def explain(self, state: StateT, choice: Choice) -> str:
        """Return a choice in words."""

    @abstractmethod
    def in_words(self, state: StateT) -> str:
        """Return a state in words."""

    @abstractmethod
    def why_bad_end(self, state: StateT) -> str:
        """Return what is wrong with an end; empty: nothing."""

    def is_end(self, state: StateT, choices: list[tuple[Choice, bool]]) -> bool:
        """Return whether nothing more happens in a state.

        `choices`: all that was tried there, and whether it leads to the same state.
        """
        return not choices

    def is_told(self, state: StateT) -> bool:
        """Return whether a state counts as an end though something may happen yet."""
        return False

    def close(self) -> None:
        """End what is asked: the search is over."""

    # All of it.

    def explore(
        self, *, most_states: int | None = None, say: Callable[[Found], None] = lambda found: None
    ) -> Found:
        """Explore all states, until an invariant is broken, or Ctrl-C. `most_states`: a limit for tests."""
        found = Found(self.searched, checks=self.checks)
        started = time.monotonic()
        try:
            self._explore(found, most_states, say, started)
        except KeyboardInterrupt:
            found.interrupted = True
        found.seconds = time.monotonic() - started
        return found

    def _explore(
        self, found: Found, most_states: int | None, say: Callable[[Found], None], started: float
    ) -> None:
        graph = Graph(self.spell)
        try:
            first = self.first()
        except Broken as broken:
            found.wrong = str(broken)
            return
        seen = {self.key(first): 0}
        graph.add(0, Choice("begin"))
        level = [(0, first)]
        while level:
            following = []
            for number, state in level:
                found.states += 1
                if found.states % SAY_EVERY == 0:
                    found.seconds = time.monotonic() - started
                    say(found)
                tried: list[tuple[Choice, bool]] = []
                for choice in self.choices(state):
                    found.transitions += 1
                    try:
                        after = self.after(state, choice)
                    except Broken as broken:
                        found.wrong, found.choices = str(broken), graph.way(number, choice)
                        return
                    key = self.key(after)
                    reached = seen.get(key)
                    if reached is None:
                        reached = seen[key] = len(seen)
                        graph.add(number, choice)
                        following.append((reached, after))
                    graph.edge(number, reached)
                    tried.append((choice, reached == number))
                if self.is_told(state):
                    graph.end(number)
                if self.is_end(state, tried):
                    found.ends += 1
                    graph.end(number)
                    self.checks["ends"] += 1
                    if wrong := self.why_bad_end(state):
                        found.wrong, found.choices = wrong, graph.way(number)
                        return
                if most_states is not None and found.states >= most_states:
                    return
            level = following
            found.depth += bool(level)
        stuck = graph.stuck()
        self.checks["ways to an end"] += found.states
        if stuck is not None:
            found.wrong, found.choices = "from here no end can be reached", graph.way(stuck)

    # One again.

    def play(self, choices: Sequence[str]) -> Iterator[str]:
        """Yield what each choice does, in words, and at the end what is broken, or the state."""
        state = self.first()
        for text in choices:
            possible = {self.spell(choice): choice for choice in self.choices(state)}
            if text not in possible:
                raise ValueError(f"{text!r} is not possible here: {' '.join(possible) or 'nothing is'}")
            yield f"{text:{WIDE}} {self.explain(state, possible[text])}"
            try:
                state = self.after(state, possible[text])
            except Broken as broken:
                yield f"{'':{WIDE}} {broken}"
                return
        yield f"{'':{WIDE}} {self.in_words(state)}"
