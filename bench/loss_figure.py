"""The figure of `bench.loss`: goodput over loss as SVG, a panel for each link rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from workloads.reporting.markup import Markup, element

_COLOURS: Final = ("#0b6bcb", "#0a9396", "#ca6702", "#9b2226", "#6a4c93")
_PANEL_WIDTH: Final = 380.0
_HEIGHT: Final = 300.0
_LEFT: Final = 58.0
_RIGHT: Final = 16.0
_TOP: Final = 34.0
_BOTTOM: Final = 46.0
_LEGEND: Final = 26.0
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#1f2328}.grid{stroke:#d0d7de;stroke-width:1}"
    ".line{fill:none;stroke-width:2}.back{fill:#ffffff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}.back{fill:#0d1117}}"
)


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
    legend = [_entry(name, colour, number) for number, (name, colour) in enumerate(colours.items())]
    return element(
        "svg",
        element("title", "Goodput of all-reduce against packet loss"),
        element("style", Markup(_STYLE)),
        element("rect", class_="back", x=0, y=0, width=width, height=height),
        *panels,
        *legend,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
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
    drawn = [_text(title, left + _LEFT, 20, anchor="start")]
    for power in range(low, high + 1):
        y = down(10.0**power)
        drawn.append(element("line", class_="grid", x1=left + _LEFT, x2=left + _LEFT + inner, y1=y, y2=y))
        drawn.append(_text(f"{10.0**power:g}", left + _LEFT - 6, y + 4, anchor="end"))
    for loss in losses:
        drawn.append(_text(f"{loss * 100:g} %", across(loss), _HEIGHT - _BOTTOM + 18))
    drawn.append(_text("loss at each port, both directions", left + _LEFT + inner / 2, _HEIGHT - 10))
    if left == 0:
        middle = _TOP + (_HEIGHT - _TOP - _BOTTOM) / 2
        turned = f"rotate(-90 14 {middle:g})"
        drawn.append(_text("Mbit/s per worker", 14, middle, transform=turned))
    for strategy, colour in colours.items():
        own = sorted((p for p in points if p.strategy == strategy), key=lambda point: point.loss)
        places = [(across(p.loss), down(p.goodput_mbit_s)) for p in own if p.goodput_mbit_s]
        if places:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            drawn.append(element("path", class_="line", d=path, stroke=colour))
            drawn += [element("circle", cx=x, cy=y, r=3.5, fill=colour) for x, y in places]
    return element("g", *drawn)


def _entry(name: str, colour: str, number: int) -> Markup:
    """One line of the legend."""
    x, y = _LEFT + number * 170.0, _HEIGHT + 8
    return element(
        "g",
        element("line", x1=x, x2=x + 22, y1=y, y2=y, stroke=colour, stroke_width=3),
        _text(name, x + 28, y + 4, anchor="start"),
    )


def _text(text: str, x: float, y: float, *, anchor: str = "middle", transform: str | None = None) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor, transform=transform)
