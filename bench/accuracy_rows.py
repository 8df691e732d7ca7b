"""Rows of `bench.accuracy`, one for a sum; and their tables and figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.table import Table

from bench import command, drawing
from bench.accuracy_tensors import CONSTRUCTED, LAYERS, SPREAD
from bench.drawing import RAISED, Axis, Panel, power
from host_agent.quantisation import BFLOAT16

DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
IN_NETWORK: Final = "in-network"
TWO_RACKS: Final = "in-network, two racks"
RING: Final = "ring"
ONE_SCALE: Final = "one scale a tensor"
METHODS: Final = (IN_NETWORK, TWO_RACKS, RING, ONE_SCALE)
REAL: Final = "all gradients"  # of networks and models, together
STEP: Final = 4  # powers of two that a row by magnitude covers
_WORSE: Final = 1.05  # than a ring: by more than what is chance
_LAST: Final = 24  # tables leave out what is below 2^-24
_SHOWN: Final = 8  # workers, in tables for the docs
_BANDS: Final = ((LAYERS, "tensor", "32 layers"), (SPREAD, "block", "1 to 2⁻⁴⁰ in each block"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """Errors of one way to sum one tensor, of all elements or those of one magnitude.

    An element's magnitude is its largest contribution's. `of` says what that is set against: the largest in
    the "tensor" or in the "block"; `below` k are those in 2^-k · (2^-STEP, 1] of it. `rms` and `largest` are
    relative to the element's own magnitude, `rms_of_tensor` and `largest_of_tensor` to the tensor's largest.
    `nearer` and `farther` are shares of the elements: than in the ring's sum.
    """

    tensor: str
    dtype: str
    world_size: int
    method: str
    of: str
    below: int
    elements: int
    rms: float
    largest: float
    rms_of_tensor: float
    largest_of_tensor: float
    nearer: float
    farther: float


def worse(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return rows of sums in the network with a larger error than the ring's; the ring's row is second."""
    rings = {_place(row): row for row in rows if row.method == RING}
    pairs = [(row, rings[_place(row)]) for row in rows if row.method in (IN_NETWORK, TWO_RACKS)]
    return [(row, ring) for row, ring in pairs if row.rms > _WORSE * ring.rms]


def _place(row: Row) -> tuple[str, str, int, str, int]:
    return row.tensor, row.dtype, row.world_size, row.of, row.below


def power_of_ten(value: float, *, digits: int = 1) -> str:
    """Format a number as 4.1·10⁻⁸."""
    if value == 0:
        return "0"
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(RAISED)}" if int(exponent) else mantissa


def markdown(rows: Sequence[Row]) -> str:
    """Return the tables of docs/accuracy.md, of `_SHOWN` workers unless they name the number."""
    shown = [row for row in rows if row.world_size == _SHOWN]
    everything = [row for row in rows if row.tensor == REAL]
    made = [row for row in shown if row.tensor in CONSTRUCTED]
    trained = [row for row in shown if row.tensor not in CONSTRUCTED]
    return "\n".join(
        [
            *_beside_ring([row for row in everything if row.of == "all"]),
            *_by_tensor([row for row in made if row.of == "all"], lambda row: (row.rms, row.largest)),
            *_by_tensor(
                [row for row in trained if row.of == "all"],
                lambda row: (row.rms_of_tensor, row.largest_of_tensor),
            ),
            *_by_magnitude([row for row in trained if (row.tensor, row.of) == (REAL, "tensor")]),
            *_by_magnitude([row for row in trained if (row.tensor, row.of) == (REAL, "block")]),
            *_by_workers([row for row in everything if row.of == "block"]),
        ]
    )


def _beside_ring(rows: Sequence[Row]) -> list[str]:
    found = []
    for dtype, size in dict.fromkeys((row.dtype, row.world_size) for row in rows):
        own = {r.method: r for r in rows if (r.dtype, r.world_size) == (dtype, size)}
        shares = [
            f"{share:.2%}"
            for method in (IN_NETWORK, TWO_RACKS)
            if method in own
            for share in (own[method].nearer, own[method].farther)
        ]
        found.append([dtype, str(size), *shares, *[""] * (4 - len(shares))])
    figures = ("workers", "nearer than by ring", "farther", "two racks: nearer", "farther")
    return [*command.markdown(["type"], figures, found), ""]


def _by_tensor(rows: Sequence[Row], figures: Callable[[Row], tuple[float, float]]) -> list[str]:
    found = []
    for dtype, name in dict.fromkeys((row.dtype, row.tensor) for row in rows):
        own = {row.method: row for row in rows if (row.dtype, row.tensor) == (dtype, name)}
        found.append([dtype, name, *(_cell(own.get(method), own[RING], figures) for method in METHODS)])
    return [*command.markdown(["type", "tensor"], METHODS, found), ""]


def _by_magnitude(rows: Sequence[Row]) -> list[str]:
    found = []
    for dtype, below in dict.fromkeys((row.dtype, row.below) for row in _upper(rows)):
        own = {row.method: row for row in rows if (row.dtype, row.below) == (dtype, below)}
        cells = [_cell(own.get(method), own[RING]) for method in METHODS]
        found.append([dtype, _magnitude(below), _share(own[RING], rows), *cells])
    of = f"of the {rows[0].of}'s largest" if rows else ""
    return [*command.markdown(["type", of], ["elements", *METHODS], found), ""]


def _by_workers(rows: Sequence[Row]) -> list[str]:
    sizes = sorted({row.world_size for row in rows} - {_SHOWN})
    found = []
    for dtype, below in dict.fromkeys((row.dtype, row.below) for row in _upper(rows)):
        own = {(r.world_size, r.method): r for r in rows if (r.dtype, r.below) == (dtype, below)}
        cells = []
        for size in sizes:
            ring, ours = own.get((size, RING)), own.get((size, IN_NETWORK))
            if ring is None or ours is None:
                cells += ["", "", ""]
            else:
                cells += [_share(ring, rows), _cell(ours, ring), _cell(ring, ring)]
        found.append([dtype, _magnitude(below), *cells])
    figures = [f"{size} workers: {what}" for size in sizes for what in ("elements", IN_NETWORK, RING)]
    return [*command.markdown(["type", "of the block's largest"], figures, found), ""]


def _upper(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are worth a line, by magnitude."""
    return sorted((row for row in rows if row.below < _LAST), key=lambda row: (_order(row.dtype), row.below))


def _order(dtype: str) -> int:
    return [str(one) for one in DTYPES].index(dtype)


def _share(row: Row, rows: Sequence[Row]) -> str:
    place = (row.dtype, row.world_size, row.method)
    total = sum(one.elements for one in rows if (one.dtype, one.world_size, one.method) == place)
    return f"{row.elements / total:.2%}"


def _magnitude(below: int) -> str:
    return " to ".join(power(2, -edge) for edge in (below, below + STEP))


def _cell(
    row: Row | None,
    ring: Row,
    figures: Callable[[Row], tuple[float, float]] = lambda row: (row.rms, row.largest),
) -> str:
    """Return the RMS and, in brackets, the largest. The RMS is bold if it is larger than the ring's."""
    if row is None:
        return ""
    (rms, largest), (limit, _) = figures(row), figures(ring)
    text = f"**{power_of_ten(rms)}**" if rms > _WORSE * limit else power_of_ten(rms)
    return f"{text} ({power_of_ten(largest, digits=0)})"


def show(rows: Sequence[Row]) -> Table:
    """Return a table for a terminal: all elements of each tensor."""
    whole = {(r.dtype, r.world_size, r.tensor, r.method): r for r in rows if r.of == "all"}

    def error(*place: Any) -> str:
        return f"{whole[place].rms:.1e}" if place in whole else ""

    return command.table(
        "RMS error relative to an element's largest contribution, float64 is exact",
        ("type", "workers", "tensor"),
        METHODS,
        (
            (dtype, str(size), name, *(error(dtype, size, name, method) for method in METHODS))
            for dtype, size, name in dict.fromkeys(place[:3] for place in whole)
        ),
    )


def figure(rows: Sequence[Row]) -> str:
    """Draw error over magnitude: above, relative to a tensor's largest element; below, to a block's.

    There is a panel for each type, and a line for each way to sum. An exact sum is drawn at the lowest error.
    """
    rows = [row for row in rows if row.world_size == _SHOWN]
    types = list(dict.fromkeys(row.dtype for row in rows))
    colours = drawing.coloured(row.method for row in sorted(rows, key=lambda row: row.dtype == types[0]))
    errors = Axis("RMS error", {10.0**n: power(10, n) for n in range(-10, 2, 2)}, (1e-10, 10), math.log10)
    panels = []
    for line, (tensor, of, title) in enumerate(_BANDS):
        for column, dtype in enumerate(types):
            own = [row for row in rows if (row.tensor, row.of, row.dtype) == (tensor, of, dtype)]
            most = max((row.below for row in own), default=1) or 1
            ticks = {float(below): power(2, -below) for below in range(0, most + 1, 8)}
            across = Axis(f"magnitude relative to the {of}'s largest", ticks, (0, most))
            panel = Panel(f"{dtype}, {title}", across, errors, size=(320.0, 270.0), column=column, row=line)
            for method, colour in colours.items():
                points = sorted((float(row.below), row.rms) for row in own if row.method == method)
                panel.line(points, colour)
                panel.dots(points, fill=colour)
            panels.append(panel)
    return drawing.figure("Error of all-reduce sums against the magnitude of elements", panels, colours)
