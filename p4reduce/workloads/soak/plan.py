"""The work of a soak, drawn from a seed: jobs with their collectives, and faults in sequence. No I/O."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

DTYPES: Final = ("int32", "float32", "float16", "bfloat16")
REDUCTIONS: Final = ("sum", "sum", "sum", "avg", "max", "min")
COLLECTIVES: Final = (
    *("all_reduce",) * 6,
    *("reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"),
)
PACKETS: Final = ("loss", "duplicate", "reorder", "delay", "corrupt")
RESTARTS: Final = ("switch", "controller")
OTHERS: Final = ("pause-worker", "kill-worker", "pause-switch", "pause-controller", "link", "disk")
KINDS: Final = (*PACKETS, *RESTARTS, *OTHERS)
_LARGEST: Final = 120_000  # elements
_HOSTS_LINK: Final = "h"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One collective, the same on all ranks."""

    collective: str
    elements: int
    dtype: str
    reduction: str
    strategy: str | None
    seed: int

    def as_json(self) -> dict[str, Any]:
        """Return the case as a worker takes it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job: the workers of its group that are its ranks 0, 1, ..., and its rounds of collectives.

    `gpus`: so many consecutive ranks are of one machine.
    """

    workers: tuple[int, ...]
    gpus: int
    path_mtu: int
    elastic: bool
    selective: bool
    rounds: tuple[tuple[Case, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A fault: its kind, target, arguments and duration. `pause_s`: how long nothing new happens after it."""

    number: int
    kind: str
    target: str = ""
    arguments: dict[str, Any]
    hold_s: float
    pause_s: float

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.arguments.items()]
        return " ".join([f"{self.number}:", self.kind, self.target, *words, f"for {self.hold_s:.1f} s"])


class Jobs:
    """Draws the jobs of one group, which has `workers` workers, `gpus` in each of its machines."""

    def __init__(
        self, seed: int, group: int, *, workers: int, elastic: bool, selective: bool, gpus: int = 1
    ) -> None:
        self._chance = random.Random(f"{seed} crew {group}")  # the name by which seeds are known
        self._machines, self._gpus = workers // gpus, gpus
        self._elastic = elastic
        self._selective = selective

    def next(self) -> Job:
        """Draw the next job."""
        chance = self._chance
        size = chance.randint(2, self._machines)
        elastic = self._elastic and size > 2 and chance.random() < 0.5
        machines = chance.sample(range(self._machines), size)
        return Job(
            workers=tuple(one * self._gpus + gpu for one in machines for gpu in range(self._gpus)),
            gpus=self._gpus,
            path_mtu=chance.choice((256, 512, 1024, 1024)),
            elastic=elastic,
            selective=self._selective and chance.random() < 0.5,
            rounds=tuple(self._round(elastic=elastic) for _ in range(chance.randint(1, 4))),
        )

    def _round(self, *, elastic: bool) -> tuple[Case, ...]:
        chance = self._chance
        return tuple(
            Case(
                # Who is left out of an interrupted one is told apart by sums only.
                collective="all_reduce" if elastic else chance.choice(COLLECTIVES),
                elements=int(10 ** chance.uniform(0, 5.08)) % _LARGEST + 1,
                dtype=chance.choice(DTYPES),
                reduction="sum" if elastic else chance.choice(REDUCTIONS),
                strategy=chance.choice((None, None, None, "ring")),
                seed=chance.randrange(1 << 30),
            )
            for _ in range(chance.randint(1, 12))
        )


class FaultPlan:
    """Draws faults; `links` are those between switches."""

    def __init__(
        self,
        seed: int,
        name: str,
        *,
        kinds: Sequence[str],
        hosts: int,
        links: Sequence[str],
        switches: Sequence[str],
    ) -> None:
        self.name = name
        self._chance = random.Random(f"{seed} storm {name}")
        self._kinds = list(kinds)
        self._hosts = [f"{_HOSTS_LINK}{number + 1}" for number in range(hosts)]
        self._links = list(links)
        self._switches = list(switches)
        self._number = 0

    def next(self, *, but: Container[str] = ()) -> Step:
        """Draw the next fault, of a kind that is not in `but`."""
        chance = self._chance
        kind = chance.choice([kind for kind in self._kinds if kind not in but])
        self._number += 1
        target, arguments, hold_s = self._drawn(kind)
        return Step(
            number=self._number,
            kind=kind,
            target=target,
            arguments=arguments,
            hold_s=hold_s,
            pause_s=chance.choice((0.0, 0.5, 2.0)),
        )

    def _drawn(self, kind: str) -> tuple[str, dict[str, Any], float]:
        chance = self._chance
        if kind in PACKETS:
            return (
                chance.choice(("*", "*", chance.choice(self._hosts))),
                self._packets(kind),
                chance.uniform(1, 6),
            )
        if kind == "link":
            return chance.choice(self._hosts + self._links), {}, chance.choice((0.2, 1.0, 3.0))
        if kind == "switch":
            return chance.choice(self._switches), {}, chance.choice((0.0, 1.0, 4.0))
        if kind == "pause-switch":
            return chance.choice(self._switches), {}, chance.choice((0.2, 1.0, 3.0))
        if kind in ("pause-worker", "kill-worker"):
            hold_s = chance.choice((0.2, 1.0, 5.0, 10.0)) if kind == "pause-worker" else 0.0
            return "", {"choice": chance.random()}, hold_s
        return "", {}, chance.choice((0.0, 1.0, 4.0))  # controller, pause-controller, disk

    def _packets(self, kind: str) -> dict[str, Any]:
        chance = self._chance
        arguments: dict[str, Any] = {
            "probability": chance.choice((0.0001, 0.001, 0.01, 0.01, 0.05, 0.05)),
            "direction": chance.choice(("both", "both", "to-switch", "to-host")),
            "packets": chance.choice(("any", "any", "any", "first", "last", "ack", "nak", "result")),
            "seed": chance.randrange(1 << 30),
        }
        if arguments["packets"] == "result":
            arguments["direction"] = "to-host"  # they go nowhere else
        if kind in ("delay", "reorder"):
            arguments["delay_ms"] = chance.choice((0.5, 2.0, 20.0))
        if kind == "duplicate":
            arguments |= {"copies": chance.randint(1, 3), "delay_ms": chance.choice((0.0, 1.0, 50.0))}
        if kind == "corrupt":
            arguments["bits"] = chance.randint(1, 3)
        return arguments
