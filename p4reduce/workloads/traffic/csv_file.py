"""Workloads as people write them: a CSV file with a line for each layer, in forward order.

    name,numel,forward_ns,backward_ns
    conv1,9408,1200000,2400000
    fc,2048000,300000,600000

The name may be left out, and the header too: then the columns are as above, or the last three. Empty lines
and what follows a `#` do not count.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.model import GRADIENTS, Layer, Workload

_COLUMNS: Final = ("name", "numel", "forward_ns", "backward_ns")
_FORMAT: Final = "each line is numel,forward_ns,backward_ns, or name,numel,forward_ns,backward_ns"


def from_text(text: str, *, name: str, where: str, dtype: str = GRADIENTS[0]) -> Workload:
    """Return the workload of a file's text; `where` names it in errors, `dtype` is the gradients'."""
    columns: list[str] | None = None
    layers: list[Layer] = []
    for at, cells in _lines(text, where=where):
        if columns is None:
            columns = _columns(cells, at=f"{where}, line {at}")
            if "numel" in (cell.lower() for cell in cells):
                continue
        layers.append(_layer(cells, columns, index=len(layers), at=f"{where}, line {at}"))
    if not layers:
        raise WorkloadError(f"{where} has no layers: {_FORMAT}")
    return Workload(name, f"CSV file {where}", tuple(layers), dtype)


def _lines(text: str, *, where: str) -> Iterator[tuple[int, list[str]]]:
    """Lines that say something: number and cells."""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        try:
            cells = next(csv.reader([content]))
        except csv.Error as error:
            raise WorkloadError(f"{where}, line {number}: {error}: {_FORMAT}") from error
        yield number, [cell.strip() for cell in cells]


def _columns(cells: list[str], *, at: str) -> list[str]:
    """Return the columns' names, in their order, from the first line."""
    names = [cell.lower() for cell in cells]
    if "numel" in names:
        unknown = [cell for cell in names if cell not in _COLUMNS]
        missing = [column for column in _COLUMNS[1:] if column not in names]
        if unknown or missing or len(set(names)) < len(names):
            raise WorkloadError(
                f"{at}: columns are {', '.join(names)}, not {', '.join(_COLUMNS[1:])} (and name)"
            )
        return names
    if len(cells) not in (3, 4):
        raise WorkloadError(f"{at}: {len(cells)} columns: {_FORMAT}")
    return list(_COLUMNS[-len(cells) :])


def _layer(cells: list[str], columns: list[str], *, index: int, at: str) -> Layer:
    if len(cells) != len(columns):
        raise WorkloadError(f"{at}: {len(cells)} columns instead of {len(columns)}: {', '.join(columns)}")
    row = dict(zip(columns, cells, strict=True))
    numel, forward_ns, backward_ns = (_number(row[column], column, at=at) for column in _COLUMNS[1:])
    try:
        return Layer(row.get("name") or f"layer-{index}", numel, forward_ns, backward_ns)
    except WorkloadError as error:
        raise WorkloadError(f"{at}: {error}") from error


def _number(text: str, column: str, *, at: str) -> int:
    """Read a whole number; times may have fractions (`1.5e6`), which are rounded."""
    try:
        value = float(text)
        if math.isfinite(value) and (column != "numel" or value == int(value)):
            return int(text) if text.lstrip("+-").isdecimal() else round(value)
    except ValueError:
        pass
    raise WorkloadError(f"{at}: {column} is {text!r}, which is no {'whole ' * (column == 'numel')}number")
