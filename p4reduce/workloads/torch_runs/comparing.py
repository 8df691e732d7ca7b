"""The same script twice on the same links, over p4reduce and over Gloo, in figures."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.reporting.quantities import seconds, size, spread, times
from p4reduce.workloads.run_file import LinkBytes
from p4reduce.workloads.sampling import Look
from p4reduce.workloads.torch_runs.record import GLOO, Record
from p4reduce.workloads.torch_runs.running import Ran

OURS: Final = "p4reduce"
_LOSSES_SHOWN: Final = 8
_SLOWER: Final = 1.2  # a start that is worth a sentence
_MIN_WIDTH: Final = 60  # titles wrap at a table's width


@dataclass(frozen=True)
class Side:
    """A run in figures. `bytes_a_step` is over each link, and empty where there are too few steps.

    `start_s`: until the first step's end, which counts as no step's time; None where there is no step.
    """

    backend: str
    seconds: float
    steps: int
    seconds_a_step: list[float]
    losses: list[float | None]
    bytes_in_all: dict[str, LinkBytes]
    bytes_a_step: dict[str, LinkBytes]
    start_s: float | None = None

    @classmethod
    def of(cls, backend: str, ran: Ran) -> Side:
        """Return the figures of a run."""
        return cls(
            backend=backend,
            seconds=ran.seconds,
            steps=len(ran.record.ended),
            seconds_a_step=ran.record.seconds,
            losses=ran.record.losses,
            bytes_in_all=ran.links,
            bytes_a_step=bytes_a_step(ran.record, ran.looks),
            start_s=ran.record.ended[0] - ran.began if ran.record.ended else None,
        )

    @property
    def median_s(self) -> float | None:
        """Median time of a step; None where there are fewer than two steps."""
        return statistics.median(self.seconds_a_step) if self.seconds_a_step else None

    def as_json(self) -> dict[str, Any]:
        """Return the figures for JSON, which has None for a loss that is not finite."""
        return {
            "backend": self.backend,
            "seconds": self.seconds,
            "start_s": self.start_s,
            "steps": self.steps,
            "median_s": self.median_s,
            "seconds_a_step": self.seconds_a_step,
            "losses": [one if one is not None and math.isfinite(one) else None for one in self.losses],
            "bytes_per_link": _plain(self.bytes_in_all),
            "bytes_per_link_a_step": _plain(self.bytes_a_step),
        }


def require_gloo(ran: Ran) -> None:
    """Raise WorkloadError where Gloo was asked for and the script did not use it: nothing can be compared."""
    if ran.failure is None and ran.record.backend != GLOO:
        raise WorkloadError(
            "there is nothing to compare: the script made no process group of backend p4reduce, which "
            'would have been one of Gloo now. It has to say init_process_group("p4reduce")'
        )


def bytes_a_step(record: Record, looks: Sequence[Look]) -> dict[str, LinkBytes]:
    """Return the bytes over each link from the first step's end to the last one's, per step in between."""
    steps = len(record.ended) - 1
    if steps < 1 or len(looks) < 2:
        return {}
    first, last = (_at(looks, moment) for moment in (record.ended[0], record.ended[-1]))
    return {
        name: LinkBytes(
            up=round((last[name][0] - first[name][0]) / steps),
            down=round((last[name][1] - first[name][1]) / steps),
        )
        for name in looks[0].links
    }


def _at(looks: Sequence[Look], moment: float) -> dict[str, tuple[float, float]]:
    """Return the bytes over each link until `moment`, up and down, interpolated between two looks."""
    after = min(max(bisect_right([look.at for look in looks], moment), 1), len(looks) - 1)
    early, late = looks[after - 1], looks[after]
    share = min(max((moment - early.at) / (late.at - early.at), 0.0), 1.0)
    return {
        name: (
            begun.up + share * (late.links[name].up - begun.up),
            begun.down + share * (late.links[name].down - begun.down),
        )
        for name, begun in early.links.items()
    }


def comparison_tables(ours: Side, gloo: Side) -> RenderableType:
    """Return tables of both side by side, for a terminal."""
    parts: list[RenderableType] = [_times(ours, gloo), _links(ours, gloo)]
    losses = _losses(ours, gloo)
    if losses is not None:
        parts.append(losses)
    return Group(*parts, *(Text(sentence) for sentence in sentences(ours, gloo)))


def sentences(ours: Side, gloo: Side) -> list[str]:
    """Say in words what the figures show, and what they cannot."""
    if ours.median_s is None or gloo.median_s is None:
        found = [
            "No two steps of an optimizer were seen: only the scripts as a whole are compared, and the "
            "second may find cached what the first had to make or read."
        ]
    else:
        found = [f"A step over Gloo takes {times(gloo.median_s / ours.median_s)} times as long."]
        if ours.steps != gloo.steps:
            found.append(
                f"Careful: the script took {ours.steps} steps over p4reduce, {gloo.steps} over Gloo."
            )
        found += _starts(ours, gloo)
        pairs = _pairs(ours, gloo)
        if pairs:
            apart = max(abs(one - other) for _, one, other in pairs)
            found.append(f"Losses of rank 0 are at most {apart:.3g} apart.")
        else:
            found.append(
                "No losses were seen: they are single numbers that modules return (nn.CrossEntropyLoss())."
            )
    return found


def _starts(ours: Side, gloo: Side) -> list[str]:
    if ours.start_s is None or gloo.start_s is None or ours.start_s < _SLOWER * gloo.start_s:
        return []
    return [
        f"Up to its first step's end the script took {seconds(ours.start_s)} over p4reduce, "
        f"{seconds(gloo.start_s)} over Gloo, which came second and may have found cached what the first had "
        "to make or read. No step's time has that in it."
    ]


def _times(ours: Side, gloo: Side) -> Table:
    table = _table("The script over p4reduce, and over Gloo on the same links", "", "p4reduce", "Gloo")
    table.add_row("to the first step's end", *(_time(side.start_s) for side in (ours, gloo)))
    table.add_row("steps", *(str(side.steps) for side in (ours, gloo)))
    table.add_row("a step, median", *(_time(side.median_s) for side in (ours, gloo)))
    table.add_row(
        "least to most",
        *(
            spread(min(side.seconds_a_step), max(side.seconds_a_step)) if side.seconds_a_step else ""
            for side in (ours, gloo)
        ),
    )
    table.add_row("the whole script", *(seconds(side.seconds) for side in (ours, gloo)))
    return table


def _links(ours: Side, gloo: Side) -> Table:
    stepped = bool(ours.bytes_a_step and gloo.bytes_a_step)
    table = _table(
        f"Bytes over each link, up / down, {'a step' if stepped else 'in all'}", "", "p4reduce", "Gloo"
    )
    sides = [side.bytes_a_step if stepped else side.bytes_in_all for side in (ours, gloo)]
    for name in sides[0]:
        table.add_row(name, *(f"{size(side[name].up)} / {size(side[name].down)}" for side in sides))
    return table


def _losses(ours: Side, gloo: Side) -> Table | None:
    pairs = _pairs(ours, gloo)
    if not pairs:
        return None
    shown = min(_LOSSES_SHOWN, len(pairs))
    last = len(pairs) - 1
    places = sorted({round(place * last / max(shown - 1, 1)) for place in range(shown)})
    table = _table("Loss at rank 0", "step", "p4reduce", "Gloo")
    for step, one, other in (pairs[place] for place in places):
        table.add_row(str(step), f"{one:.4g}", f"{other:.4g}")
    return table


def _pairs(ours: Side, gloo: Side) -> list[tuple[int, float, float]]:
    """Return the steps, from 1, for which both have a loss, with both losses."""
    return [
        (step, one, other)
        for step, (one, other) in enumerate(zip(ours.losses, gloo.losses, strict=False), start=1)
        if one is not None and other is not None
    ]


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", min_width=_MIN_WIDTH)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "" else "right")
    return table


def _time(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _plain(links: dict[str, LinkBytes]) -> dict[str, Any]:
    return {name: bytes_.model_dump() for name, bytes_ in links.items()}
