"""What the benchmarks' figures have in common: the document, texts, lines, entries of a legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from p4reduce.workloads.reporting.markup import Markup, element

_STYLE: Final = (
    "text{font:12px sans-serif;fill:#1f2328}.grid{stroke:#d0d7de;stroke-width:1}"
    "%s.back{fill:#ffffff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}.back{fill:#0d1117}}"
)
LINES: Final = ".line{fill:none;stroke-width:2}"


def document(
    title: str, parts: Iterable[Markup], *, width: float, height: float, style: str = LINES
) -> Markup:
    """An SVG document, for light and dark pages. `style`: of its own lines and areas."""
    return element(
        "svg",
        element("title", title),
        element("style", Markup(_STYLE % style)),
        element("rect", class_="back", x=0, y=0, width=width, height=height),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
    )


def entry(name: str, colour: str, x: float, y: float) -> Markup:
    """One of a legend."""
    return element(
        "g",
        element("line", x1=x, x2=x + 22, y1=y, y2=y, stroke=colour, stroke_width=3),
        text(name, x + 28, y + 4, anchor="start"),
    )


def text(words: str, x: float, y: float, *, anchor: str = "middle", transform: str | None = None) -> Markup:
    """Words at a place."""
    return element("text", words, x=x, y=y, text_anchor=anchor, transform=transform)


def path(places: Sequence[tuple[float, float]]) -> str:
    """From one place to the next, as a path's `d`."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
