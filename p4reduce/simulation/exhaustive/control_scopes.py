"""Small jobs as their workers and the controller see them: what may happen to them, and how often.

`crashes`: the controller is killed, and started on its database. `kills`: SIGKILL of a worker. `breaks`: a
worker's stream breaks. `aways`: the switch restarts, empty. `stalls`: SIGSTOP of a worker, SIGCONT at any
later time. `moves`: the job is moved out of the switch (and comes back by itself). `renumbers`: it goes on
in the switch under a new generation. `mishaps`: all of these together, but for the last two.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Final

MISHAPS: Final = ("kills", "crashes", "breaks", "aways", "stalls")
WISHES: Final = ("moves", "renumbers")


@dataclass(frozen=True)
class ControlScope:
    """The bounds of an exploration.

    `collectives`: so many, then all leave. `fine`: the switch answers the controller's requests one by one,
    and not all that wait, with those that follow. `anything`: one budget for all of `MISHAPS`. `in_turn`:
    workers join in the order of their ranks. `reduced`: see `control.py`.
    """

    name: str
    about: str
    _: KW_ONLY
    workers: int = 2
    collectives: int = 2
    elastic: bool = False
    kills: int = 0
    crashes: int = 0
    breaks: int = 0
    aways: int = 0
    stalls: int = 0
    moves: int = 0
    renumbers: int = 0
    anything: int = 0
    fine: bool = False
    in_turn: bool = False
    reduced: bool = True

    @property
    def budget(self) -> tuple[int, ...]:
        """The number of times that each may still happen: mishaps, wishes, and mishaps together."""
        each = [self.anything or getattr(self, kind) for kind in MISHAPS]
        wishes = [getattr(self, kind) for kind in WISHES]
        return (*each, *wishes, self.anything or sum(each))

    def as_json(self) -> dict[str, Any]:
        return {"of": "control", **asdict(self)}

    def in_words(self) -> str:
        """Return its parameters in words, those that are not as usual."""
        kind = "elastic, " * self.elastic
        words = [f"{kind}{self.workers} workers, {self.collectives} collectives"]
        words += [f"{kind} {count}" for kind in (*WISHES, *MISHAPS) if (count := getattr(self, kind))]
        words += [f"any {self.anything} of {', '.join(MISHAPS)}"] * (self.anything > 0)
        words += ["every request to the switch"] * self.fine
        words += ["joining in turn"] * self.in_turn
        words += ["every order"] * (not self.reduced)
        return ", ".join(words)


CONTROL_SCOPES = {
    scope.name: scope
    for scope in (
        # Short ones: each is played with the tests.
        ControlScope("control-pair", "two workers join, sum and leave"),
        ControlScope("control-trio", "three do", workers=3),
        ControlScope("control-kill", "a worker dies, and the job with it", kills=1),
        ControlScope("control-elastic", "a worker dies, the other goes on", elastic=True, kills=1),
        ControlScope("control-stall", "a worker is given up, and wakes", elastic=True, stalls=1),
        ControlScope("control-break", "a stream breaks, and is resumed", breaks=1),
        ControlScope("control-crash", "the controller starts on its database", crashes=1),
        ControlScope(
            "control-crash-elastic",
            "the same, and leases are asked for",
            elastic=True,
            collectives=1,
            crashes=1,
        ),
        ControlScope("control-away", "the switch comes back empty: a renewal", aways=1),
        ControlScope("control-move", "out of the switch by a move, back by a renewal", moves=1),
        ControlScope("control-renumber", "a planned renewal", renumbers=1),
        # Long ones: by hand.
        ControlScope("large-control-pair", "one of anything", elastic=True, anything=1),
        ControlScope("large-control-rigid", "one of anything, and nobody may be lost", anything=1),
        ControlScope(
            "large-control-trio", "a worker of three dies, two go on", workers=3, elastic=True, kills=1
        ),
        ControlScope(
            "large-control-away-trio", "the switch restarts below three", workers=3, in_turn=True, aways=1
        ),
        ControlScope(
            "large-control-break-trio", "one stream of three breaks", workers=3, in_turn=True, breaks=1
        ),
        ControlScope(
            "large-control-crash-trio", "the controller of three dies", workers=3, in_turn=True, crashes=1
        ),
        ControlScope("large-control-move-trio", "three are moved", workers=3, in_turn=True, moves=1),
        ControlScope("large-control-move", "a move, and one of anything", elastic=True, moves=1, anything=1),
        ControlScope(
            "large-control-renumber",
            "a planned renewal, and one of anything",
            elastic=True,
            renumbers=1,
            anything=1,
        ),
        ControlScope(
            "large-control-orphans", "a worker and the controller die", elastic=True, kills=1, crashes=1
        ),
        ControlScope(
            "large-control-requests",
            "one of anything between any two requests to the switch",
            elastic=True,
            anything=1,
            fine=True,
        ),
    )
}
