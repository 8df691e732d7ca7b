"""The figure of `bench.accuracy`: error over magnitude as SVG, a panel a type, a line a way to sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from bench.accuracy_tensors import LAYERS, SPREAD
from bench.drawing import document, entry, path, text
from p4reduce.pages.markup import Markup, element

_COLOURS: Final = ("#0b6bcb", "#0a9396", "#ca6702", "#9b2226")
_WIDTH: Final = 320.0
_HEIGHT: Final = 270.0
_LEFT: Final = 62.0
_RIGHT: Final = 12.0
_TOP: Final = 34.0
_BOTTOM: Final = 46.0
_LEGEND: Final = 26.0
_ENTRY: Final = 200.0
_LOWEST: Final = 1e-10  # what is below is drawn there: a logarithm knows no exact sum
_HIGHEST: Final = 10.0
_TICKS: Final = 8  # powers of two between two
_BANDS: Final = (
    (LAYERS, "tensor", "32 layers"),
    (SPREAD, "block", "1 to 2⁻⁴⁰ in each block"),
)
_WORLD_SIZE: Final = 8
RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Point(Protocol):
    """What a row has to have."""

    @property
    def tensor(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def world_size(self) -> int: ...
    @property
    def method(self) -> str: ...
    @property
    def of(self) -> str: ...
    @property
    def below(self) -> int: ...
    @property
    def rms(self) -> float: ...


def figure(points: Sequence[Point]) -> str:
    """An SVG document. Above, what a tensor's largest does to small elements; below, what a block's does."""
    points = [point for point in points if point.world_size == _WORLD_SIZE]
    types = list(dict.fromkeys(point.dtype for point in points))
    methods = list(dict.fromkeys(p.method for p in sorted(points, key=lambda p: p.dtype == types[0])))
    colours = dict(zip(methods, _COLOURS, strict=False))
    width, height = _WIDTH * len(types), _HEIGHT * len(_BANDS) + _LEGEND
    panels = [
        _panel(
            [p for p in points if (p.tensor, p.of, p.dtype) == (tensor, of, dtype)],
            colours,
            left=column * _WIDTH,
            top=line * _HEIGHT,
            title=f"{dtype}, {title}",
            across_title=f"magnitude relative to the {of}'s largest",
        )
        for line, (tensor, of, title) in enumerate(_BANDS)
        for column, dtype in enumerate(types)
    ]
    legend = [
        entry(name, colour, _LEFT + number * _ENTRY, height - _LEGEND + 8)
        for number, (name, colour) in enumerate(colours.items())
    ]
    return document(
        "Error of all-reduce sums against the magnitude of elements",
        [*panels, *legend],
        width=width,
        height=height,
    )


def _panel(
    points: Sequence[Point],
    colours: dict[str, str],
    *,
    left: float,
    top: float,
    title: str,
    across_title: str,
) -> Markup:
    inner, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    most = max((point.below for point in points), default=1) or 1
    low, high = round(math.log10(_LOWEST)), round(math.log10(_HIGHEST))

    def across(below: float) -> float:
        return left + _LEFT + inner * below / most

    def down(error: float) -> float:
        part = (math.log10(min(max(error, _LOWEST), _HIGHEST)) - low) / (high - low)
        return top + _TOP + (1 - part) * tall

    drawn = [text(title, left + _LEFT, top + 20, anchor="start")]
    for power in range(low, high + 1, 2):
        y = down(10.0**power)
        drawn.append(element("line", class_="grid", x1=left + _LEFT, x2=left + _LEFT + inner, y1=y, y2=y))
        drawn.append(text(_power(10, power), left + _LEFT - 6, y + 4, anchor="end"))
    for below in range(0, most + 1, _TICKS):
        drawn.append(text(_power(2, -below), across(below), top + _HEIGHT - _BOTTOM + 18))
    drawn.append(text(across_title, left + _LEFT + inner / 2, top + _HEIGHT - 10))
    if left == 0:
        middle = top + _TOP + tall / 2
        drawn.append(text("RMS error", 12, middle, transform=f"rotate(-90 12 {middle:g})"))
    for method, colour in colours.items():
        own = sorted((p for p in points if p.method == method), key=lambda point: point.below)
        places = [(across(p.below), down(p.rms)) for p in own]
        if places:
            drawn.append(element("path", class_="line", d=path(places), stroke=colour))
            drawn += [element("circle", cx=x, cy=y, r=3, fill=colour) for x, y in places]
    return element("g", *drawn)


def _power(base: int, exponent: int) -> str:
    return f"{base}{str(exponent).translate(RAISED)}" if exponent else "1"
