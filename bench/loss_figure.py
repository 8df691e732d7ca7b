"""The figure of `bench.loss`: goodput over loss as SVG, a panel for each link rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from bench.drawing import document, entry, path, text
from p4reduce.pages.markup import Markup, element

_COLOURS: Final = ("#0b6bcb", "#0a9396", "#ca6702", "#9b2226", "#6a4c93")
_PANEL_WIDTH: Final = 380.0
_HEIGHT: Final = 300.0
_LEFT: Final = 58.0
_RIGHT: Final = 16.0
_TOP: Final = 34.0
_BOTTOM: Final = 46.0
_LEGEND: Final = 26.0


class Point(Protocol):
    """What a row has to have."""

    strategy: str
    loss: float
    rate_mbit: float | None

    @property
    def goodput_mbit_s(self) -> float | None: ...


def figure(points: Sequence[Point]) -> str:
    """An SVG document. Losses are evenly spaced, goodput is on a logarithmic scale."""
    strategies = list(dict.fromkeys(point.strategy for point in points))
    rates = list(dict.fromkeys(point.rate_mbit for point in points))
    colours = dict(zip(strategies, _COLOURS, strict=False))
    width, height = _PANEL_WIDTH * len(rates), _HEIGHT + _LEGEND
    panels = [
        _panel([point for point in points if point.rate_mbit == rate], colours, left=number * _PANEL_WIDTH)
        for number, rate in enumerate(rates)
    ]
    legend = [
        entry(name, colour, _LEFT + number * 170.0, _HEIGHT + 8)
        for number, (name, colour) in enumerate(colours.items())
    ]
    return document(
        "Goodput of all-reduce against packet loss", [*panels, *legend], width=width, height=height
    )


def _panel(points: Sequence[Point], colours: dict[str, str], *, left: float) -> Markup:
    losses = sorted({point.loss for point in points})
    known = [point.goodput_mbit_s for point in points if point.goodput_mbit_s]
    if not known:
        return Markup("")
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    high = max(high, low + 1)
    inner = _PANEL_WIDTH - _LEFT - _RIGHT
    step = inner / max(1, len(losses) - 1)

    def across(loss: float) -> float:
        return left + _LEFT + step * losses.index(loss)

    def down(goodput: float) -> float:
        part = (math.log10(goodput) - low) / (high - low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    rate = points[0].rate_mbit
    title = "links without a rate" if rate is None else f"links of {rate:g} Mbit/s"
    drawn = [text(title, left + _LEFT, 20, anchor="start")]
    for power in range(low, high + 1):
        y = down(10.0**power)
        drawn.append(element("line", class_="grid", x1=left + _LEFT, x2=left + _LEFT + inner, y1=y, y2=y))
        drawn.append(text(f"{10.0**power:g}", left + _LEFT - 6, y + 4, anchor="end"))
    for loss in losses:
        drawn.append(text(f"{loss * 100:g} %", across(loss), _HEIGHT - _BOTTOM + 18))
    drawn.append(text("loss at each port, both directions", left + _LEFT + inner / 2, _HEIGHT - 10))
    if left == 0:
        middle = _TOP + (_HEIGHT - _TOP - _BOTTOM) / 2
        turned = f"rotate(-90 14 {middle:g})"
        drawn.append(text("Mbit/s per worker", 14, middle, transform=turned))
    for strategy, colour in colours.items():
        own = sorted((p for p in points if p.strategy == strategy), key=lambda point: point.loss)
        places = [(across(p.loss), down(p.goodput_mbit_s)) for p in own if p.goodput_mbit_s]
        if places:
            drawn.append(element("path", class_="line", d=path(places), stroke=colour))
            drawn += [element("circle", cx=x, cy=y, r=3.5, fill=colour) for x, y in places]
    return element("g", *drawn)
