"""Small jobs as their workers and the controller see them: what may happen to them, and how often.

`crashes`: the controller is killed, and started on its database. `kills`: SIGKILL of a worker. `breaks`: a
worker's stream breaks. `aways`: the switch restarts, empty. `stalls`: SIGSTOP of a worker, SIGCONT at any
later time. `moves`: the job is moved out of the switch (and comes back by itself). `renumbers`: it goes on
in the switch under a new generation. `mishaps`: of these, but for the last two, together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

MISHAPS: Final = ("kills", "crashes", "breaks", "aways", "stalls")
WISHES: Final = ("moves", "renumbers")


@dataclass(frozen=True, kw_only=True)
class ControlScope:
    """`collectives`: so many, then all leave. `fine`: the switch answers the controller's requests one by
    one, and not all that wait, with those that follow. `anything`: one budget for all of `MISHAPS`.
    `in_turn`: workers join in the order of their ranks. `reduced`: see `control.py`.
    """

    name: str
    about: str
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
        """How often each may happen yet: mishaps, wishes, and mishaps together."""
        each = [self.anything or getattr(self, kind) for kind in MISHAPS]
        wishes = [getattr(self, kind) for kind in WISHES]
        return (*each, *wishes, self.anything or sum(each))

    def as_json(self) -> dict[str, Any]:
        return {"of": "control", **asdict(self)}

    def in_words(self) -> str:
        """Its parameters, those that are not as usual."""
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
        ControlScope(name="control-pair", about="two workers join, sum and leave"),
        ControlScope(name="control-trio", about="three do", workers=3),
        ControlScope(name="control-kill", about="a worker dies, and the job with it", kills=1),
        ControlScope(name="control-elastic", about="a worker dies, the other goes on", elastic=True, kills=1),
        ControlScope(name="control-stall", about="a worker is given up, and wakes", elastic=True, stalls=1),
        ControlScope(name="control-break", about="a stream breaks, and is resumed", breaks=1),
        ControlScope(name="control-crash", about="the controller starts on its database", crashes=1),
        ControlScope(
            name="control-crash-elastic",
            about="the same, and leases are asked for",
            elastic=True,
            collectives=1,
            crashes=1,
        ),
        ControlScope(name="control-away", about="the switch comes back empty: a renewal", aways=1),
        ControlScope(name="control-move", about="out of the switch by a move, back by a renewal", moves=1),
        ControlScope(name="control-renumber", about="a planned renewal", renumbers=1),
        # Long ones: by hand.
        ControlScope(name="large-control-pair", about="one of anything", elastic=True, anything=1),
        ControlScope(name="large-control-rigid", about="one of anything, and nobody may be lost", anything=1),
        ControlScope(
            name="large-control-trio",
            about="a worker of three dies, two go on",
            workers=3,
            elastic=True,
            kills=1,
        ),
        ControlScope(
            name="large-control-away-trio",
            about="the switch restarts below three",
            workers=3,
            in_turn=True,
            aways=1,
        ),
        ControlScope(
            name="large-control-break-trio",
            about="one stream of three breaks",
            workers=3,
            in_turn=True,
            breaks=1,
        ),
        ControlScope(
            name="large-control-crash-trio",
            about="the controller of three dies",
            workers=3,
            in_turn=True,
            crashes=1,
        ),
        ControlScope(
            name="large-control-move-trio", about="three are moved", workers=3, in_turn=True, moves=1
        ),
        ControlScope(
            name="large-control-move", about="a move, and one of anything", elastic=True, moves=1, anything=1
        ),
        ControlScope(
            name="large-control-renumber",
            about="a planned renewal, and one of anything",
            elastic=True,
            renumbers=1,
            anything=1,
        ),
        ControlScope(
            name="large-control-orphans",
            about="a worker and the controller die",
            elastic=True,
            kills=1,
            crashes=1,
        ),
        ControlScope(
            name="large-control-requests",
            about="one of anything between any two requests to the switch",
            elastic=True,
            anything=1,
            fine=True,
        ),
    )
}
