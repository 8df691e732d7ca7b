"""The graph of an exploration, with the ways between its states, and the result of the exploration."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from p4reduce.simulation.exhaustive.control_scopes import ControlScope
from p4reduce.simulation.exhaustive.gang_scopes import GangScope
from p4reduce.simulation.exhaustive.scopes import Scope

Explored: TypeAlias = Scope | ControlScope | GangScope


@dataclass(frozen=True)
class Choice:
    """A thing that may happen. `link`: of a frame, or a worker; `number`: of a late frame, or a rank."""

    verb: str
    link: int = 0
    number: int = 0


@dataclass
class Found:
    """The extent and the result of an exploration. `choices`: the way to the state that is wrong."""

    scope: Explored
    states: int = 0
    transitions: int = 0
    ends: int = 0
    depth: int = 0
    seconds: float = 0.0
    checks: Counter[str] = field(default_factory=Counter)
    wrong: str = ""
    choices: list[str] = field(default_factory=list)
    interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "scope": self.scope.as_json(),
            "states": self.states,
            "transitions": self.transitions,
            "ends": self.ends,
            "depth": self.depth,
            "seconds": round(self.seconds, 3),
            "checks": dict(self.checks),
            "error": self.wrong,
            "choices": self.choices,
            "interrupted": self.interrupted,
        }


class Graph:
    """The states of an exploration: how each was reached first, and all ways between them."""

    def __init__(self, spell: Callable[[Choice], str]) -> None:
        self.spell = spell
        self.parents = array("L")
        self.by: list[Choice] = []
        self.known: dict[Choice, Choice] = {}  # each is kept once
        self.froms, self.tos = array("L"), array("L")
        self.ends = array("L")

    def add(self, parent: int, choice: Choice) -> None:
        self.parents.append(parent)
        self.by.append(self.known.setdefault(choice, choice))

    def edge(self, start: int, end: int) -> None:
        if start != end:
            self.froms.append(start)
            self.tos.append(end)

    def end(self, number: int) -> None:
        self.ends.append(number)

    def way(self, number: int, *more: Choice) -> list[str]:
        """Return the choices that lead to a state, and more."""
        choices = list(reversed(more))
        while number:
            choices.append(self.by[number])
            number = self.parents[number]
        return [self.spell(choice) for choice in reversed(choices)]

    def stuck(self) -> int | None:
        """Return the first state from which no end can be reached; None: there is none."""
        came: list[list[int]] = [[] for _ in self.parents]
        for start, end in zip(self.froms, self.tos, strict=True):
            came[end].append(start)
        reaches = bytearray(len(self.parents))
        waiting = list(self.ends)
        while waiting:
            number = waiting.pop()
            if not reaches[number]:
                reaches[number] = 1
                waiting += came[number]
        return None if all(reaches) else reaches.index(0)


def put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    """Return the values with another one in that place."""
    return (*values[:place], value, *values[place + 1 :])
