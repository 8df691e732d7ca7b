"""Scopes of an exploration: a job, the values of its counters, and how much may go wrong."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Literal

HALF, WHOLE, LAST_PSN = 2**31, 2**32, 2**24 - 1


@dataclass(frozen=True)
class Call:
    """One operation that all ranks post. `disagrees`: the rank that asks for another reduction."""

    kind: Literal["sum", "pass"]
    messages: int
    disagrees: int | None = None


@dataclass(frozen=True)
class Earlier:
    """A job that was in the same slots with the same flows, all of it, before the explored one came."""

    first_message: int
    generation: int
    first_psn: int = 0x1000


@dataclass(frozen=True)
class Scope:
    """The bounds of an exploration.

    A call is posted when the one before is received, or all at once if they are `queued`.

    `anything`: mishaps of any kind, so many in all. Or by kind: `lost`, `doubled`, `overtaken` frames, on
    any link; what is overtaken, and the second of a doubled frame, comes at any later time. `hasty`: timeouts
    while frames are under way; without any, they are free. `restarts`: the switch comes back and routes,
    without entries. `renewals`: all ranks go on under a new generation from their inputs, while frames of the
    old one are under way; with `qpns_again` under the queue pair numbers and PSNs of before, which no
    controller hands out. `retry_limit`: timeouts in a row after which an endpoint gives up, which is wrong.
    """

    name: str
    about: str
    _: KW_ONLY
    ranks: int = 2
    window: int = 1
    packets: int = 1
    calls: tuple[Call, ...] = (Call("sum", 3),)
    queued: bool = False
    first_message: int = 0
    first_psn: int = 0x1000
    generation: int = 7
    selective: bool = False
    adapters: bool = False
    retry_limit: int = 0
    lost: int = 0
    doubled: int = 0
    overtaken: int = 0
    hasty: int = 0
    anything: int = 0
    restarts: int = 0
    renewals: int = 0
    qpns_again: bool = False
    earlier: Earlier | None = None
    reduced: bool = True

    @property
    def budget(self) -> tuple[int, ...]:
        """The number of times that each may still happen; the last: the first four together."""
        single = (self.lost, self.doubled, self.overtaken, self.hasty)
        if self.anything:
            return (*(self.anything for _ in single), self.restarts, self.renewals, self.anything)
        return (*single, self.restarts, self.renewals, sum(single))

    @property
    def disagrees(self) -> bool:
        """True if a call disagrees: then everybody has to hear of it, and nobody may have a sum."""
        return any(call.disagrees is not None for call in self.calls)

    @property
    def messages(self) -> int:
        return sum(call.messages for call in self.calls)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        """Return its parameters in words, those that are not as usual."""
        plural = "s" if self.packets > 1 else ""
        calls = " then ".join(f"{call.messages} {call.kind}" for call in self.calls)
        words = [f"{self.ranks} ranks, W = {self.window}, {self.packets} packet{plural} a message: {calls}"]
        if self.first_message:
            words.append(f"from message {self.first_message}")
        if self.first_psn != 0x1000:
            words.append(f"from PSN {self.first_psn:#x}")
        words += ["selective"] * self.selective + ["adapters"] * self.adapters
        kinds = ("lost", "doubled", "overtaken", "hasty", "restarts", "renewals")
        words += [f"{kind} {count}" for kind in kinds if (count := getattr(self, kind))]
        words += [f"any {self.anything} lost, doubled, overtaken or hasty"] * (self.anything > 0)
        words += ["every order"] * (not self.reduced)
        return ", ".join(words)


_SUM_PASS_SUM = (Call("sum", 2), Call("pass", 1), Call("sum", 2))

_FIVE = (Call("sum", 5),)

SCOPES = {
    scope.name: scope
    for scope in (
        # Short ones: each is played with the tests.
        Scope("pair", "two ranks", anything=2),
        Scope("pair-every-order", "the same with nothing left out", anything=1, reduced=False),
        Scope("pair-window", "two messages under way at once", window=2, calls=_FIVE, anything=1),
        Scope("pair-packets", "First and Last packets", packets=2, anything=1),
        Scope("pair-selective", "selective retransmission", packets=2, selective=True, anything=1),
        Scope("trio", "three ranks", ranks=3, lost=1),
        Scope(
            "adapters",
            "RDMA adapters, RNR NAKs in their peers' names",
            adapters=True,
            retry_limit=3,
            anything=1,
        ),
        Scope("ring-between", "messages around the ring between sums", calls=_SUM_PASS_SUM, anything=1),
        Scope(
            "half-way",
            "the last sums before 2^31, and message numbers over it; PSNs over 2^24",
            first_message=HALF - 2,
            first_psn=LAST_PSN - 1,
            calls=(Call("sum", 2), Call("pass", 2)),
            anything=1,
        ),
        Scope(
            "all-the-way",
            "message numbers over 2^32, and another kind of message at 0",
            first_message=WHOLE - 1,
            first_psn=LAST_PSN - 1,
            calls=(Call("pass", 1), Call("sum", 2)),
            queued=True,
            anything=1,
        ),
        Scope(
            "long-untouched",
            "slots that were left for as long as a generation may last",
            first_message=HALF - 3,
            earlier=Earlier(0, 7),
            packets=2,
            first_psn=0x800000,
            anything=1,
        ),
        Scope(
            "moved-back",
            "in the switch again, where registers are left; PSNs have come round",
            first_message=4,
            earlier=Earlier(0, 6),
            packets=2,
            selective=True,
            anything=1,
        ),
        Scope(
            "adapters-moved-back",
            "in the switch again, with RNR NAKs",
            first_message=4,
            first_psn=0x2000,
            earlier=Earlier(0, 6),
            adapters=True,
            retry_limit=3,
            anything=1,
        ),
        Scope(
            "disagree",
            "one rank calls something else",
            calls=(Call("sum", 1), Call("sum", 1, disagrees=0), Call("sum", 1)),
            anything=1,
        ),
        Scope(
            "restart",
            "a switch that comes back empty, and a new generation while old frames are under way",
            packets=2,
            calls=(Call("sum", 2),),
            restarts=1,
            renewals=1,
        ),
        Scope(
            "renewed",
            "a new generation in the same slots, while old frames are under way",
            packets=2,
            calls=(Call("sum", 1),),
            renewals=1,
            anything=1,
        ),
        # Long ones: by hand.
        Scope("large-pair", "two messages under way, two losses", window=2, calls=_FIVE, lost=2),
        Scope(
            "large-window",
            "two messages under way of two packets, over the slots once more",
            window=2,
            packets=2,
            calls=_FIVE,
            lost=1,
        ),
        Scope("large-trio", "three ranks, two messages under way", ranks=3, window=2, calls=_FIVE, lost=1),
        Scope("large-trio-packets", "three ranks, First and Last packets", ranks=3, packets=2, anything=1),
        Scope(
            "large-selective",
            "three ranks, selective retransmission",
            ranks=3,
            packets=2,
            selective=True,
            lost=1,
        ),
        Scope(
            "large-restart",
            "a switch that comes back empty, a new generation, and a mishap",
            packets=2,
            calls=(Call("sum", 2),),
            restarts=1,
            renewals=1,
            anything=1,
        ),
        Scope(
            "large-adapters",
            "RDMA adapters, two messages under way",
            window=2,
            adapters=True,
            retry_limit=4,
            calls=_FIVE,
            anything=1,
        ),
    )
}
