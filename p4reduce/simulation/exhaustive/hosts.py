"""The hosts: endpoints that are brought into any state they were in before, and what a step does to them.

An endpoint has a clock of its own, which stands still but for its timers: the explorer chooses when one is
due, and then the clock jumps there. Nothing in a frame tells of time, so no other endpoint can see the
difference. A state is reached again by giving a new endpoint all that led there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from host_agent.transport import Endpoint, FailureCode, TransportConfig
from p4reduce.oracle.state import serial_age
from p4reduce.simulation.exhaustive.scopes import Call, Scope
from p4reduce.simulation.exhaustive.values import NOTHING, Array, Meanings, configs_of, expected, operation
from p4reduce.simulation.nic import AnyEndpoint, NicEndpoint

START_NS = 1_000_000
TIMER, RENEWAL = -1, -2  # what a host is given, where it is no frame
LIVE: Final = 4000  # endpoints kept as they are


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A host's state, as far as others' invariants need it."""

    generation: int
    sent: int
    acked: int
    received: int
    expected_psn: int
    timer: bool
    complete: bool
    failed: FailureCode | None


@dataclass(frozen=True)
class Step:
    """A host's step: its next state, the meanings of the frames that it sends, and what is wrong."""

    state: int
    sends: tuple[int, ...]
    wrong: str
    failure: str


class Host:
    """One rank's endpoint and its program."""

    def __init__(self, scope: Scope, rank: int) -> None:
        self.scope, self.rank = scope, rank
        self.now_ns = START_NS
        firsts = accumulate((call.messages for call in scope.calls), initial=scope.first_message)
        self.turns = [  # messages that are of another kind than those before
            first & 0xFFFFFFFF
            for first, (before, call) in zip(list(firsts)[1:], pairwise(scope.calls), strict=False)
            if before.kind != call.kind
        ]
        self.renewed = 0
        self.begin()

    def begin(self) -> None:
        """Make the connections of this generation, with nothing posted."""
        self.config: TransportConfig = configs_of(self.scope, self.renewed)[self.rank]
        self.endpoint: AnyEndpoint = (NicEndpoint if self.scope.adapters else Endpoint)(self.config)
        self.posted: list[tuple[Call, Array, Array]] = []  # with what is received, and has to be
        self.received = 0
        self.failed: FailureCode | None = None
        self.failure = ""

    def apply(self, given: int, frame: bytes) -> tuple[list[bytes], str]:
        """Make a step; return the frames that it sends, and what is wrong (empty: nothing)."""
        if given == RENEWAL:
            self.renewed += 1
            self.begin()
        elif given == TIMER:
            due = self.endpoint.next_timeout_ns()
            assert due is not None
            self.now_ns = max(self.now_ns, due)
        else:
            self.endpoint.receive(frame, self.now_ns)
        return self.run()

    def run(self) -> tuple[list[bytes], str]:
        """Do all that the host does by itself now; return its frames, and what is wrong."""
        frames: list[bytes] = []
        self.post()
        while True:
            frames += (more := self.endpoint.poll(self.now_ns))
            self.note()
            if not self.post() and not more:
                return frames, self.wrong()

    def post(self) -> bool:
        """Post the next call, if the one before has been received; return whether one was posted."""
        calls = self.scope.calls
        before = len(self.posted)
        while len(self.posted) < len(calls) and self.failed is None:
            if len(self.posted) > self.received and not self.scope.queued:
                break
            call, number = calls[len(self.posted)], len(self.posted)
            first = self.scope.first_message + sum(c.messages for c in calls[:number])
            posted = operation(self.scope, call, number + 1, self.config, first)
            self.endpoint.post(posted, self.now_ns)
            assert posted.receive is not None
            self.posted.append((call, posted.receive, expected(self.scope, call, self.config, first)))
        return len(self.posted) > before

    def note(self) -> None:
        for event in self.endpoint.events():
            if event.failure is not None:
                self.failed, self.failure = event.failure.code, event.failure.text
            else:
                self.received = max(self.received, event.op_id)

    def wrong(self) -> str:
        """Return what is wrong; empty: nothing.

        All that has reached a buffer has to be right, and a received call whole.
        """
        for number, (call, array, right) in enumerate(self.posted, 1):
            same = array == right
            if not np.all(same | (array == NOTHING)):
                at = int(np.flatnonzero(~(same | (array == NOTHING)))[0])
                return f"rank {self.rank}: call {number} has {array[at]} for {right[at]}"
            if number <= self.received and not same.all():
                return f"rank {self.rank}: call {number} is received, and not whole"
            if number <= self.received and call.disagrees is not None:
                return f"rank {self.rank}: call {number} has a sum, and the ranks do not agree"
        place = self.endpoint.progress()
        ahead = serial_age(place.received_messages, place.sent_messages)
        if ahead > self.scope.window:
            return f"rank {self.rank} is {ahead} messages ahead of what it has received"
        for turn in self.turns:
            begun = serial_age(turn, place.sent_messages) > 0
            if (
                begun
                and min(serial_age(turn, n) for n in (place.received_messages, place.acked_messages)) < 0
            ):
                return f"rank {self.rank} has sent {turn}, of another kind than before, and is not drained"
        return ""

    def facts(self) -> Facts:
        place = self.endpoint.progress()
        done = self.received == len(self.scope.calls) and place.operations == 0
        return Facts(
            generation=self.config.generation,
            sent=place.sent_messages,
            acked=place.acked_messages,
            received=place.received_messages,
            expected_psn=place.expected_psn,
            timer=self.failed is None and self.endpoint.next_timeout_ns() is not None,
            complete=done and self.failed is None,
            failed=self.failed,
        )

    def state(self) -> bytes:
        """Return its state in bytes that do not depend on the rank."""
        own = (self.renewed, len(self.posted), self.received, self.failed)
        return repr(own).encode() + self.endpoint.state(self.now_ns)


class Hosts:
    """All states that hosts were found in, by number, and the steps that were tried there."""

    def __init__(self, scope: Scope, meanings: Meanings) -> None:
        self.scope, self.meanings = scope, meanings
        self.numbers: dict[bytes, int] = {}
        self.facts: list[Facts] = []
        self.meant: dict[bytes, int] = {}  # of all links
        self.frames: list[dict[int, bytes]] = [{} for _ in range(2 * scope.ranks)]  # by link and meaning
        self.steps: list[dict[tuple[int, int], Step]] = [{} for _ in range(scope.ranks)]
        self.came: list[dict[int, tuple[int, int]]] = [{} for _ in range(scope.ranks)]  # from, by what
        self.live: list[dict[int, Host]] = [{} for _ in range(scope.ranks)]
        self.first: list[Step] = []
        for rank in range(scope.ranks):
            host = Host(scope, rank)
            frames, wrong = host.run()
            self.first.append(self._took(host, frames, wrong))
            self.live[rank][self.first[rank].state] = host

    def meaning(self, link: int, frame: bytes) -> int:
        """Return the number of a frame's meaning, and keep the frame under it."""
        meant = self.meanings.of(frame, link % self.scope.ranks)
        number = self.meant.setdefault(meant, len(self.meant))
        self.frames[link].setdefault(number, frame)
        return number

    def step(self, rank: int, state: int, given: int) -> Step:
        """Return the step from a state when a frame arrives there, or something else is `given`."""
        known = self.steps[rank].get((state, given))
        if known is not None:
            return known
        host = self.live[rank].pop(state, None) or self._again(rank, state)
        step = self._took(host, *host.apply(given, self._frame(rank, given)))
        self.steps[rank][state, given] = step
        if step.state != self.first[rank].state:
            self.came[rank].setdefault(step.state, (state, given))
        if len(self.live[rank]) >= LIVE:
            self.live[rank].clear()
        self.live[rank].setdefault(step.state, host)
        return step

    def _frame(self, rank: int, given: int) -> bytes:
        return self.frames[self.scope.ranks + rank][given] if given >= 0 else b""

    def _took(self, host: Host, frames: list[bytes], wrong: str) -> Step:
        state = host.state()
        number = self.numbers.setdefault(state, len(self.numbers))
        if number == len(self.facts):
            self.facts.append(host.facts())
        sends = tuple(self.meaning(host.rank, frame) for frame in frames)
        return Step(number, sends, wrong, host.failure)

    def _again(self, rank: int, state: int) -> Host:
        """Make a host of this state, by giving it all that led there."""
        given = []
        first = self.first[rank].state
        while state != first:
            state, last = self.came[rank][state]
            given.append(last)
        host = Host(self.scope, rank)
        host.run()
        for what in reversed(given):
            host.apply(what, self._frame(rank, what))
        return host
