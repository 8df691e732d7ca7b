"""The fabric drawn as SVG: spines above leaves above hosts, links as wide as the bytes over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from p4reduce.pages.markup import Markup, element, joined
from p4reduce.workloads.reporting.quantities import size
from p4reduce.workloads.run_file import Host, LinkBytes, Switch, Topology

_HOST_PITCH: Final = 86.0
_LEAF_GAP: Final = 16.0
_SWITCH_WIDTH: Final = 92.0
_BOX: Final = 34.0
_MARGIN: Final = 14.0
_LABEL: Final = 84.0  # wide, behind bytes on a line
_BETWEEN: Final = 140.0  # from the middle of one level to the next
_WIDEST: Final = 12.0
_THINNEST: Final = 1.0
_MOST_LABELS: Final = 8  # of links between switches; more would lie on each other


@dataclass(frozen=True)
class _Places:
    """The middles of all boxes, and the size of the picture."""

    at: dict[str, tuple[float, float]]
    width: float
    height: float


def most_bytes(links: Sequence[dict[str, LinkBytes]]) -> int:
    """Return the bytes that the widest line stands for: the same in all drawings of a run."""
    return max((max(each.up, each.down) for one in links for each in one.values()), default=0)


def drawing(topology: Topology, links: dict[str, LinkBytes], *, title: str, most: int) -> Markup:
    """Draw the fabric as SVG; the widest line stands for `most` bytes."""
    places = _placed(topology)
    switches = {switch.name for switch in topology.switches}
    between = [link for link in topology.links if link.partition(":")[0] in switches]
    lines = [_link(places, link, links.get(link), most) for link in topology.links]
    labels: list[Markup] = []
    if len(between) <= _MOST_LABELS:
        labels = [
            _on_line(places, link, links[link], _place_on_line(between, link))
            for link in between
            if link in links
        ]
    boxes = [*(_switch(places, switch) for switch in topology.switches)]
    boxes += [_host(places, host, links.get(f"{host.name}:{host.switch}")) for host in topology.hosts]
    return element(
        "svg",
        element("title", title),
        *lines,
        *boxes,
        *labels,
        class_="fabric",
        role="img",
        viewBox=f"0 0 {places.width:g} {places.height:g}",
        style=f"min-width:{0.72 * places.width:.0f}px;max-width:{1.35 * places.width:.0f}px",
    )


def _placed(topology: Topology) -> _Places:
    levels = [level for level in (_of(topology, "spine"), _of(topology, "leaf")) if level]
    leaves = levels[-1]
    # Bytes on links to neighbouring spines must not lie on each other.
    least = _LABEL * (len(levels[0]) + 1) if len(levels) == 2 else _SWITCH_WIDTH
    at: dict[str, tuple[float, float]] = {}
    height = _MARGIN + _BOX / 2 + _BETWEEN * len(levels)
    x = _MARGIN
    for leaf in leaves:
        own = [host for host in topology.hosts if host.switch == leaf.name]
        wide = max(_HOST_PITCH * len(own), least)
        step = wide / max(len(own), 1)
        for place, host in enumerate(own):
            at[host.name] = (x + step * (place + 0.5), height)
        at[leaf.name] = (x + wide / 2, height - _BETWEEN)
        x += wide + _LEAF_GAP
    width = max(x - _LEAF_GAP, (_SWITCH_WIDTH + _LEAF_GAP) * len(levels[0]) + _MARGIN) + _MARGIN
    if len(levels) == 2:
        for place, spine in enumerate(levels[0]):
            above = at[leaves[place].name][0] if len(leaves) == len(levels[0]) else None
            middle = width * (place + 0.5) / len(levels[0])
            at[spine.name] = (middle if above is None else above, _MARGIN + _BOX / 2)
    return _Places(at, width, height + _BOX / 2 + 42)


def _of(topology: Topology, role: str) -> list[Switch]:
    return [switch for switch in topology.switches if switch.role == role]


def _link(places: _Places, link: str, moved: LinkBytes | None, most: int) -> Markup:
    """Draw two lines beside each other, the bytes upwards on the left."""
    lower, upper = _ends(places, link)
    if moved is None:
        return element("line", **_line(lower, upper, 0.0), class_="idle")
    wide = {way: _THINNEST + (_WIDEST - _THINNEST) * value / max(most, 1) for way, value in _ways(moved)}
    apart = {way: value / 2 + 0.6 for way, value in wide.items()}
    return joined(
        element("line", **_line(lower, upper, -apart["up"]), class_="up", stroke_width=f"{wide['up']:.2f}"),
        element(
            "line", **_line(lower, upper, apart["down"]), class_="down", stroke_width=f"{wide['down']:.2f}"
        ),
    )


def _ways(moved: LinkBytes) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("up", moved.up), ("down", moved.down)


def _ends(places: _Places, link: str) -> tuple[tuple[float, float], tuple[float, float]]:
    lower, _, upper = link.partition(":")
    return places.at[lower], places.at[upper]


def _line(lower: tuple[float, float], upper: tuple[float, float], aside: float) -> dict[str, float]:
    """Return the line between two points, moved to its right by `aside`."""
    (x1, y1), (x2, y2) = lower, upper
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    right, down = aside * (y1 - y2) / length, aside * (x2 - x1) / length
    return {"x1": x1 + right, "y1": y1 + down, "x2": x2 + right, "y2": y2 + down}


def _place_on_line(between: Sequence[str], link: str) -> float:
    """Return the label's place on its link, such that labels of links that cross have different heights."""
    leaf = link.partition(":")[0]
    own = [other for other in between if other.partition(":")[0] == leaf]
    return 0.3 + (0.38 * own.index(link) / (len(own) - 1) if len(own) > 1 else 0.2)


def _on_line(places: _Places, link: str, moved: LinkBytes, part: float) -> Markup:
    (x1, y1), (x2, y2) = _ends(places, link)
    x, y = x1 + (x2 - x1) * part, y1 + (y2 - y1) * part
    return joined(
        element("rect", x=x - _LABEL / 2, y=y - 17, width=_LABEL, height=34, rx=5, class_="ground"),
        element("text", f"↑ {size(moved.up)}", x=x, y=y - 3, class_="bytes"),
        element("text", f"↓ {size(moved.down)}", x=x, y=y + 12, class_="bytes"),
    )


def _switch(places: _Places, switch: Switch) -> Markup:
    x, y = places.at[switch.name]
    return joined(
        element(
            "rect",
            x=x - _SWITCH_WIDTH / 2,
            y=y - _BOX / 2,
            width=_SWITCH_WIDTH,
            height=_BOX,
            rx=6,
            class_="switch",
        ),
        element("text", _short(switch.name, 10), x=x, y=y + 5, class_="name"),
    )


def _host(places: _Places, host: Host, moved: LinkBytes | None) -> Markup:
    x, y = places.at[host.name]
    wide = _HOST_PITCH - 12
    name = _short(host.name, 8) if host.rank is None else f"{_short(host.name, 6)} · {host.rank}"
    texts = [element("text", name, x=x, y=y + 5, class_="name")]
    if moved is not None:
        under = y + _BOX / 2
        texts.append(element("text", f"↑ {size(moved.up)}", x=x, y=under + 16, class_="bytes"))
        texts.append(element("text", f"↓ {size(moved.down)}", x=x, y=under + 31, class_="bytes"))
    classes = "host" if host.rank is not None else "host unused"
    return joined(
        element("rect", x=x - wide / 2, y=y - _BOX / 2, width=wide, height=_BOX, rx=4, class_=classes), *texts
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
