"""The figure of `bench.convergence`: test error by epoch as SVG, a panel a training, a line a way to sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from bench.drawing import document, entry, path, text
from p4reduce.pages.markup import Markup, element

_COLOURS: Final = ("#0b6bcb", "#9b2226", "#ca6702", "#0a9396", "#6a4c93", "#8c959f")
_COLUMNS: Final = 2
_PANEL_WIDTH: Final = 400.0
_HEIGHT: Final = 290.0
_LEFT: Final = 58.0
_RIGHT: Final = 16.0
_TOP: Final = 34.0
_BOTTOM: Final = 46.0
_ENTRY: Final = 245.0
_ENTRIES: Final = 3  # in a row of the legend
_LEGEND: Final = 22.0  # a row
_TICKS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_THICKEST: Final = 10.0  # where lines lie on each other, all are seen: the later, the thinner
_THINNER: Final = 2.0
_STYLE: Final = ".line{fill:none}.band{fill-opacity:.12}"


class Curve(Protocol):
    """What a row has to have: by epoch, the mean of all seeds and their standard deviation."""

    @property
    def setting(self) -> str: ...
    @property
    def way(self) -> str: ...
    @property
    def mean(self) -> Sequence[float]: ...
    @property
    def spread(self) -> Sequence[float]: ...


def figure(curves: Sequence[Curve]) -> str:
    """An SVG document. What is named wrong is on a logarithmic scale; bands are a standard deviation wide."""
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    ways = list(dict.fromkeys(curve.way for curve in curves))
    colours = dict(zip(ways, _COLOURS, strict=False))
    lines = -(-len(settings) // _COLUMNS)
    width = _PANEL_WIDTH * min(_COLUMNS, len(settings))
    height = _HEIGHT * lines + _LEGEND * -(-len(ways) // _ENTRIES) + 4
    panels = [
        _panel(
            [curve for curve in curves if curve.setting == setting],
            colours,
            left=number % _COLUMNS * _PANEL_WIDTH,
            top=number // _COLUMNS * _HEIGHT,
        )
        for number, setting in enumerate(settings)
    ]
    legend = [
        entry(
            way,
            colour,
            _LEFT + number % _ENTRIES * _ENTRY,
            _HEIGHT * lines + 8 + number // _ENTRIES * _LEGEND,
        )
        for number, (way, colour) in enumerate(colours.items())
    ]
    return document(
        "Test error of trainings by epoch, for several ways to sum gradients",
        [*panels, *legend],
        width=width,
        height=height,
        style=_STYLE,
    )


def _panel(curves: Sequence[Curve], colours: dict[str, str], *, left: float, top: float) -> Markup:
    inner, tall = _PANEL_WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    epochs = len(curves[0].mean)
    lowest, highest = math.log(_TICKS[0]), math.log(_TICKS[-1])

    def across(epoch: int) -> float:
        return left + _LEFT + inner * (epoch - 1) / max(1, epochs - 1)

    def down(accuracy: float) -> float:
        wrong = min(max(1 - accuracy, _TICKS[0]), _TICKS[-1])
        return top + _TOP + tall * (highest - math.log(wrong)) / (highest - lowest)

    drawn = [text(curves[0].setting, left + _LEFT, top + 20, anchor="start")]
    for wrong in _TICKS:
        y = down(1 - wrong)
        drawn.append(element("line", class_="grid", x1=left + _LEFT, x2=left + _LEFT + inner, y1=y, y2=y))
        drawn.append(text(f"{wrong * 100:g} %", left + _LEFT - 6, y + 4, anchor="end"))
    for epoch in range(1, epochs + 1):
        if epoch in (1, epochs) or epoch % 5 == 0:
            drawn.append(text(f"{epoch}", across(epoch), top + _HEIGHT - _BOTTOM + 18))
    drawn.append(text("epoch", left + _LEFT + inner / 2, top + _HEIGHT - 10))
    if left == 0:
        middle = top + _TOP + tall / 2
        drawn.append(text("test samples named wrong", 12, middle, transform=f"rotate(-90 12 {middle:g})"))
    bands, lines = [], []
    for number, curve in enumerate(curves):
        colour, own = colours[curve.way], list(enumerate(zip(curve.mean, curve.spread, strict=True), 1))
        upper = [(across(epoch), down(mean + spread)) for epoch, (mean, spread) in own]
        lower = [(across(epoch), down(mean - spread)) for epoch, (mean, spread) in reversed(own)]
        bands.append(element("path", class_="band", d=path([*upper, *lower]) + "Z", fill=colour))
        means = path([(across(epoch), down(mean)) for epoch, (mean, _) in own])
        width = _THICKEST - number * _THINNER
        lines.append(element("path", class_="line", d=means, stroke=colour, stroke_width=width))
    return element("g", *drawn, *bands, *lines)
