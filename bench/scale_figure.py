"""The figure of `bench.scale`: what an iteration gains by its share of sums, and rings beside the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from bench.drawing import LINES, document, entry, path, text
from p4reduce.pages.markup import Markup, element
from p4reduce.workloads.hierarchy import speedup_of_iteration
from p4reduce.workloads.reporting.quantities import size

_COLOURS: Final = ("#0b6bcb", "#0a9396", "#ca6702", "#9b2226", "#6a4c93")
_WIDTH: Final = 430.0
_HEIGHT: Final = 340.0
_LEFT: Final = 54.0
_RIGHT: Final = 18.0
_TOP: Final = 40.0
_BOTTOM: Final = 48.0
_LEGEND: Final = 60.0
_STYLE: Final = LINES + ".dashed{stroke-dasharray:5 4}.hollow{fill:none;stroke-width:2}"
_LEAST, _MOST = 0.9, 1.9  # of the first panel
_STEPS: Final = 40


class Trained(Protocol):
    """A point of the first panel."""

    @property
    def model(self) -> str: ...
    @property
    def overlap(self) -> bool: ...
    @property
    def share(self) -> float: ...
    @property
    def speedup(self) -> float: ...


class Summed(Protocol):
    """A point of the others."""

    @property
    def gpus(self) -> int: ...
    @property
    def gpus_per_host(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def ratio(self) -> float: ...


def figure(
    trained: Sequence[Trained], summed: Sequence[Summed], *, machines: int, claims: Mapping[str, float]
) -> str:
    """An SVG document: S(f) with its points; then ring over in-network by the number of GPUs."""
    per_host = list(dict.fromkeys(one.gpus_per_host for one in summed))
    panels = [_gains(trained, machines, claims)]
    for number, gpus in enumerate(per_host, start=1):
        panels.append(_ratios([one for one in summed if one.gpus_per_host == gpus], left=number * _WIDTH))
    models = list(dict.fromkeys(one.model for one in trained))
    sizes = list(dict.fromkeys(one.bytes for one in summed))
    legends = [
        entry(model, _COLOURS[number], _LEFT + number % 3 * 120.0, _HEIGHT + 8 + 22 * (number // 3))
        for number, model in enumerate(models)
    ] + [
        entry(size(bytes_), _COLOURS[number], _WIDTH + _LEFT + number * 110.0, _HEIGHT + 8)
        for number, bytes_ in enumerate(sizes)
    ]
    return document(
        "Simulated: what in-network sums give training, and rings over sums in the network",
        [*panels, *legends],
        width=_WIDTH * (1 + len(per_host)),
        height=_HEIGHT + _LEGEND,
        style=_STYLE,
    )


def _scale(least: float, most: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - least) / (most - least) * (end - start)


def _gains(trained: Sequence[Trained], machines: int, claims: Mapping[str, float]) -> Markup:
    across = _scale(0, 1, _LEFT, _WIDTH - _RIGHT)
    down = _scale(_LEAST, _MOST, _HEIGHT - _BOTTOM, _TOP)
    drawn = [
        text(f"Simulated: an iteration on {machines} machines, times as fast", _LEFT, 20, anchor="start")
    ]
    for tick in range(10, 20, 2):
        drawn += _across_line(down(tick / 10), f"{tick / 10:.1f}", 0.0)
    for tick in range(0, 11, 2):
        drawn.append(text(f"{tick / 10:g}", across(tick / 10), _HEIGHT - _BOTTOM + 18))
    drawn.append(text("f, the share of the ring's sums in an iteration", across(0.5), _HEIGHT - 10))
    shares = [step / _STEPS for step in range(_STEPS + 1)]
    curve = path([(across(share), down(speedup_of_iteration(share, machines))) for share in shares])
    drawn.append(element("path", class_="line", d=curve, stroke="#8b949e"))
    drawn.append(text("S(f)", across(0.5), down(speedup_of_iteration(0.5, machines)) - 10))
    colours = dict(zip(dict.fromkeys(one.model for one in trained), _COLOURS, strict=False))
    for model, claim in claims.items():
        y = down(claim)
        drawn.append(
            element(
                "path", class_="line dashed", d=path([(across(0), y), (across(1), y)]), stroke=colours[model]
            )
        )
        drawn.append(text(f"{claim:g} ({model})", across(0.01), y - 5, anchor="start"))
    for one in trained:
        at = {"cx": across(one.share), "cy": down(one.speedup), "r": 4}
        if one.overlap:
            drawn.append(element("circle", class_="hollow", stroke=colours[one.model], **at))
        else:
            drawn.append(element("circle", fill=colours[one.model], **at))
    drawn.append(text("full: nothing overlaps; hollow: as DDP", across(1), down(0.93), anchor="end"))
    return element("g", *drawn)


def _ratios(summed: Sequence[Summed], *, left: float) -> Markup:
    gpus = sorted({one.gpus for one in summed})
    top = max(1, math.ceil(math.log10(max(one.ratio for one in summed))))
    across = _scale(0, max(1, len(gpus) - 1), left + _LEFT, left + _WIDTH - _RIGHT)
    down = _scale(0, top, _HEIGHT - _BOTTOM, _TOP)
    per_host = summed[0].gpus_per_host
    machine = "one GPU a machine" if per_host == 1 else f"{per_host} GPUs a machine"
    drawn = [text(f"Simulated: flat ring over in-network, {machine}", left + _LEFT, 20, anchor="start")]
    for power in range(top + 1):
        drawn += _across_line(down(power), f"{10**power}", left)
    for number, many in enumerate(gpus):
        drawn.append(text(f"{many:,}", across(number), _HEIGHT - _BOTTOM + 18))
    drawn.append(text("GPUs", left + _WIDTH / 2, _HEIGHT - 10))
    for bytes_, colour in zip(dict.fromkeys(one.bytes for one in summed), _COLOURS, strict=False):
        own = sorted((one for one in summed if one.bytes == bytes_), key=lambda one: one.gpus)
        places = [(across(gpus.index(one.gpus)), down(math.log10(one.ratio))) for one in own]
        drawn.append(element("path", class_="line", d=path(places), stroke=colour))
        drawn += [element("circle", cx=x, cy=y, r=3.5, fill=colour) for x, y in places]
    return element("g", *drawn)


def _across_line(y: float, label: str, left: float) -> list[Markup]:
    return [
        element("line", class_="grid", x1=left + _LEFT, x2=left + _WIDTH - _RIGHT, y1=y, y2=y),
        text(label, left + _LEFT - 6, y + 4, anchor="end"),
    ]
