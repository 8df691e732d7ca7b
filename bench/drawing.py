"""The benchmarks' figures as SVG: panels with axes, lines, areas and dots, and what the colours mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from p4reduce.pages.markup import Markup, element

COLOURS: Final = ("#0b6bcb", "#0a9396", "#ca6702", "#9b2226", "#6a4c93", "#8c959f")
RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 16.0, 36.0, 46.0  # beside what is drawn
_ROW: Final = 22.0  # of a legend
_LETTER: Final = 7.0
_STYLE: Final = Markup(
    "text{font:12px sans-serif;fill:#1f2328}.grid{stroke:#d0d7de;stroke-width:1}.back{fill:#ffffff}"
    ".line,.hollow{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}.area{fill-opacity:.12}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}.back{fill:#0d1117}}"
)
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """An axis. `ticks`: the words at each value. `ends`: its first and last value (None: the outermost
    ticks).

    `by`: the function of a value to which lengths are proportional.
    """

    title: str
    ticks: Mapping[float, str]
    ends: tuple[float, float] | None = None
    by: Callable[[float], float] = float

    def part(self, value: float) -> float:
        """Return a value's place on the axis, 0 to 1; values beyond an end are drawn there."""
        least, most = self.ends or (min(self.ticks), max(self.ticks))
        low, high = self.by(least), self.by(most)
        return (self.by(min(max(value, least), most)) - low) / ((high - low) or 1)


class Panel:
    """A diagram of `size`, its margins included, in a column and a row of the figure."""

    def __init__(
        self, title: str, across: Axis, up: Axis, *, size: tuple[float, float], column: int = 0, row: int = 0
    ) -> None:
        self.left, self.top = column * size[0], row * size[1]
        self.right, self.bottom = self.left + size[0], self.top + size[1]
        self._across, self._up = across, up
        start, end = self.left + _LEFT, self.right - _RIGHT
        self.parts = [text(title, start, self.top + 20, anchor="start")]
        for value, words in up.ticks.items():
            _, y = self.at(0, value)
            self.parts.append(element("line", class_="grid", x1=start, x2=end, y1=y, y2=y))
            self.parts.append(text(words, start - 6, y + 4, anchor="end"))
        for value, words in across.ticks.items():
            x, _ = self.at(value, 0)
            self.parts.append(text(words, x, self.bottom - _BOTTOM + 18))
        self.parts.append(text(across.title, (start + end) / 2, self.bottom - 10))
        if column == 0 and up.title:
            y = (self.top + _TOP + self.bottom - _BOTTOM) / 2
            self.parts.append(text(up.title, 12, y, transform=f"rotate(-90 12 {y:g})"))

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point in the figure."""
        across = self.right - self.left - _LEFT - _RIGHT
        up = self.bottom - self.top - _TOP - _BOTTOM
        return (
            self.left + _LEFT + across * self._across.part(x),
            self.bottom - _BOTTOM - up * self._up.part(y),
        )

    def line(self, points: Points, colour: str, *, kind: str = "line", style: str | None = None) -> None:
        """Draw a line from one point to the next."""
        if points:
            self.parts.append(element("path", class_=kind, d=self._path(points), stroke=colour, style=style))

    def dots(self, points: Iterable[tuple[float, float]], **more: str) -> None:
        """Draw a dot at each point."""
        for cx, cy in (self.at(*point) for point in points):
            self.parts.append(element("circle", cx=cx, cy=cy, r=3.5, **more))

    def area(self, points: Points, colour: str) -> None:
        """Fill the area that the points enclose."""
        self.parts.append(element("path", class_="area", d=self._path(points) + "Z", fill=colour))

    def write(self, words: str, x: float, y: float, *, above: float = 0.0, anchor: str = "middle") -> None:
        """Write words at a point, or `above` it."""
        across, down = self.at(x, y)
        self.parts.append(text(words, across, down - above, anchor=anchor))

    def _path(self, points: Points) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points))


def figure(title: str, panels: Sequence[Panel], *legends: Mapping[str, str]) -> Markup:
    """Return an SVG document for light and dark pages.

    The n-th legend (colours by name) begins below column n.
    """
    width, below = max(panel.right for panel in panels), max(panel.bottom for panel in panels) + 8
    entries, height = [], below
    for number, legend in enumerate(legends):
        left = panels[number].left + _LEFT
        end = panels[number].right if number + 1 < len(legends) else width
        step = 44 + _LETTER * max(map(len, legend), default=0)
        in_a_row = max(1, int((end - left) // step))
        for place, (name, colour) in enumerate(legend.items()):
            x, y = left + place % in_a_row * step, below + place // in_a_row * _ROW
            entries.append(element("line", x1=x, x2=x + 22, y1=y, y2=y, stroke=colour, stroke_width=3))
            entries.append(text(name, x + 28, y + 4, anchor="start"))
            height = max(height, y + _ROW)
    return element(
        "svg",
        element("title", title),
        element("style", _STYLE),
        element("rect", class_="back", x=0, y=0, width=width, height=height),
        *(element("g", *panel.parts) for panel in panels),
        *entries,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
    )


def text(words: str, x: float, y: float, *, anchor: str = "middle", transform: str | None = None) -> Markup:
    """Return words at a place of the figure."""
    return element("text", words, x=x, y=y, text_anchor=anchor, transform=transform)


def power(base: int, exponent: int) -> str:
    """Format a power as 2⁻⁴."""
    return f"{base}{str(exponent).translate(RAISED)}" if exponent else "1"


def coloured(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name."""
    return dict(zip(dict.fromkeys(names), COLOURS, strict=False))
