"""The steps of a run, and the part of them that a page has room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from p4reduce.oracle.rules import At, Brings, Holds, Rule, Sender
from p4reduce.simulation.sequence.packets import Packet

State = dict[str, Any] | None  # of a slot or a worker; None: as if it had never been used


@dataclass
class Arrow:
    """A frame on its way. `strikes`: what the link did to it; `lost`: why it does not arrive."""

    source: str
    target: str
    sent_ns: int
    arrives_ns: int
    packet: Packet
    strikes: tuple[str, ...] = ()
    late_ns: int = 0
    again: bool = False
    lost: str = ""

    @property
    def is_copy(self) -> bool:
        """True for a copy that the link made."""
        return "duplicate" in self.strikes or "stale" in self.strikes


@dataclass
class Step:
    """A step of the run, at one of its hosts and switches (`where`, "": at none), in one event of the clock.

    `said`: in sentences; `mark`: in a word. `came` and `left` are frames; `rule` and `case`: by which a
    switch took it; `counts`: what it counted; `touched`: its slot. `changes` are slots and workers, by name,
    as they are afterwards.
    """

    now_ns: int
    event: int
    kind: str
    where: str = ""
    mark: str = ""
    said: list[str] = field(default_factory=list)
    came: Arrow | None = None
    left: list[Arrow] = field(default_factory=list)
    rule: Rule | None = None
    case: tuple[At, Brings, Holds, Sender] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    touched: str = ""
    changes: dict[str, State] = field(default_factory=dict)

    @property
    def is_fault(self) -> bool:
        """True if something goes wrong here, and not only because something else did."""
        return self.kind in ("fault", "error") or any(arrow.strikes for arrow in self.left)


@dataclass
class Mark:
    """A fault at a host, at a switch or between two. `until_ns`: its end, None if it lasts for ever."""

    from_ns: int
    until_ns: int | None
    kind: str
    where: tuple[str, ...]


@dataclass
class Part:
    """A run of `most` steps, or fewer.

    While `moves` is true, a full part forgets its first step for the next one; otherwise it takes no more.
    `before` and `after`: how many steps are not in it; `base`: what those before it have changed.
    """

    most: int
    moves: Callable[[Part], bool]
    from_ns: int = 0
    steps: deque[Step] = field(default_factory=deque)
    base: dict[str, State] = field(default_factory=dict)
    before: int = 0
    after: int = 0
    fault: int | None = None  # the place of the first

    def add(self, step: Step) -> None:
        """Add the next step."""
        if self.after:
            self.after += 1
            return
        if step.now_ns < self.from_ns:
            self._forget(step)
            return
        self.steps.append(step)
        if self.fault is None and step.is_fault:
            self.fault = len(self.steps) - 1
        if len(self.steps) <= self.most:
            return
        if self.moves(self):
            self._forget(self.steps.popleft())
        else:
            self.steps.pop()
            self.after = 1

    def _forget(self, step: Step) -> None:
        self.base.update(step.changes)
        self.before += 1
        if self.fault is not None:
            self.fault -= 1


class Parts:
    """The parts that a page can show: the first steps, those around the first fault, the last.

    With `from_ns`, only the part from that time on.
    """

    def __init__(self, most: int, from_ns: int | None) -> None:
        self._wanted = None if from_ns is None else Part(most, lambda part: False, from_ns)
        self._first = Part(most, lambda part: False)
        self._around = Part(most, lambda part: part.fault is None or part.fault > most // 4)
        self._last = Part(most, lambda part: True)

    def add(self, step: Step) -> None:
        """Add the next step."""
        if self._wanted is not None:
            self._wanted.add(step)
            return
        for part in (self._first, self._around, self._last):
            part.add(step)

    def chosen(self, *, failed: bool) -> Part:
        """Return the part worth seeing: the end of a failed run, else the first fault, else the beginning."""
        if self._wanted is not None:
            return self._wanted
        if failed:
            return self._last
        return self._first if self._around.fault is None else self._around
