"""Small gangs as the workers of their machines see them: what their users call, and what may happen.

A call is one of `CALLS`. `odd`: calls of some workers that differ from `calls`, by worker and number; `LEAVE`
is no call, and ends the worker's calls. `kills`: a worker dies, and with it its machine, or the job.
`restarts`: the switch loses its sums, and all planes are renewed. `moves`: one plane goes over to the ring
before others.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Final

from p4reduce.simulation.faults.schedule import Work

LEAVE: Final = "leave"
CANCEL: Final = "cancel"
_SUM: Final = Work(module="in_network", name="all_reduce", dtype="int32", elements=40)
CALLS: Final = {
    "sum": _SUM,
    "maximum": Work(module="in_network", name="all_reduce", dtype="int32", elements=40, reduction="MAX"),
    "empty": Work(module="in_network", name="all_reduce", dtype="int32", elements=0),
    "strict": Work(module="in_network", name="all_reduce", dtype="int32", elements=40, strict=True),
    "broadcast": Work(module="in_network", name="broadcast", dtype="int32", elements=40, root=1),
    CANCEL: _SUM,
}
MISHAPS: Final = ("kills", "restarts", "moves")


@dataclass(frozen=True)
class GangScope:
    """The bounds of an exploration: `machines` of `gpus` workers each, numbered machine by machine."""

    name: str
    about: str
    calls: tuple[str, ...]
    _: KW_ONLY
    machines: int = 1
    gpus: int = 2
    elastic: bool = False
    odd: tuple[tuple[int, int, str], ...] = ()
    kills: int = 0
    restarts: int = 0
    moves: int = 0

    @property
    def budget(self) -> tuple[int, ...]:
        """The number of times that each of `MISHAPS` may still happen."""
        return self.kills, self.restarts, self.moves

    def call(self, worker: int, number: int) -> str:
        """Return what a worker's user calls under that number; LEAVE: nothing more."""
        usual = self.calls[number] if number < len(self.calls) else LEAVE
        return next((call for who, when, call in self.odd if (who, when) == (worker, number)), usual)

    def are_alike(self, number: int) -> bool:
        """Tell whether all users make the same call under that number."""
        return len({self.call(worker, number) for worker in range(self.machines * self.gpus)}) == 1

    def as_json(self) -> dict[str, Any]:
        """Return its parameters."""
        return {"of": "gang", **asdict(self)}

    def in_words(self) -> str:
        """Return its parameters in words, those that are not as usual."""
        kind = "elastic, " * self.elastic
        words = [f"{kind}{self.machines} x {self.gpus} workers, {', '.join(self.calls)}"]
        words += [f"worker {who}: {call} as call {number}" for who, number, call in self.odd]
        words += [f"{kind} {count}" for kind in MISHAPS if (count := getattr(self, kind))]
        return ", ".join(words)


GANG_SCOPES: Final = {
    scope.name: scope
    for scope in (
        # Short ones: each is played with the tests.
        GangScope("gang-pair", "two machines add up", ("sum", "sum"), machines=2),
        GangScope("gang-trio", "three GPUs of a machine do", ("sum", "empty", "sum"), gpus=3),
        GangScope("gang-empty", "a call of no elements takes a step", ("sum", "empty", "sum"), machines=2),
        GangScope("gang-cancel", "all cancel a call", ("sum", CANCEL, "sum"), machines=2),
        GangScope("gang-cancel-one", "a GPU alone does", ("sum", "sum"), odd=((0, 0, CANCEL),)),
        GangScope(
            "gang-cancel-machine",
            "a machine alone does",
            ("sum", "sum", "sum"),
            machines=2,
            odd=((0, 1, CANCEL), (1, 1, CANCEL)),
        ),
        GangScope(
            "gang-differ", "a GPU calls something else", ("sum", "sum"), machines=2, odd=((3, 1, "maximum"),)
        ),
        GangScope("gang-differ-trio", "one of three does", ("sum", "sum"), gpus=3, odd=((2, 1, "empty"),)),
        GangScope(
            "gang-differ-machines",
            "a machine calls something else",
            ("sum", "sum"),
            machines=2,
            odd=((2, 1, "maximum"), (3, 1, "maximum")),
        ),
        GangScope("gang-leave", "a mate makes fewer calls", ("sum", "sum"), machines=2, odd=((1, 1, LEAVE),)),
        GangScope("gang-strict", "a plane goes by ring", ("strict", "strict"), machines=2, moves=1),
        GangScope("gang-strict-trio", "one of three does", ("strict", "strict"), gpus=3, moves=1),
        GangScope("gang-kill", "a worker dies, and the job with it", ("sum", "sum"), machines=2, kills=1),
        GangScope(
            "gang-elastic-kill",
            "a worker dies, the other machine goes on",
            ("broadcast",),
            machines=2,
            elastic=True,
            kills=1,
        ),
        GangScope("gang-elastic-restart", "calls are begun anew", ("sum", "empty"), elastic=True, restarts=1),
        GangScope(
            "gang-elastic-cancel",
            "a cancelled call, then one begun anew",
            (CANCEL, "sum"),
            elastic=True,
            restarts=1,
        ),
        GangScope(
            "gang-elastic-differ",
            "a GPU calls something else during a renewal",
            ("sum", "sum"),
            elastic=True,
            restarts=1,
            odd=((0, 1, "maximum"),),
        ),
        GangScope("gang-restart", "planes are renewed", ("sum", "strict"), restarts=1, moves=1),
        # Long ones: by hand.
        GangScope("large-gang-quad", "four GPUs of a machine", ("sum", "empty"), gpus=4),
        GangScope("large-gang-restart", "planes are renewed", ("sum",), machines=2, restarts=1),
        GangScope(
            "large-gang-elastic-kill",
            "a worker dies in either of two calls",
            ("sum", "broadcast"),
            machines=2,
            elastic=True,
            kills=1,
        ),
        GangScope(
            "large-gang-elastic-restart",
            "what one machine has the other gets, or all begin anew",
            ("sum",),
            machines=2,
            elastic=True,
            restarts=1,
        ),
        GangScope(
            "large-gang-elastic-twice", "begun anew, and again", ("sum", "sum"), elastic=True, restarts=2
        ),
        GangScope(
            "large-gang-elastic-strict",
            "strict calls are begun anew, one plane goes by ring",
            ("strict", "sum"),
            elastic=True,
            restarts=1,
            moves=1,
        ),
    )
}
