"""Tables that fit the terminal: no value is cut, and columns without room are said below, or named.

In this order: columns without a value go; values that all rows share are said once; lines between columns
go; columns of less use go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Column:
    """A column: the key of a row's value, its heading, and how people see the value.

    `spare`: if there is no room for all, columns with the largest go first; those with 0 stay.
    """

    key: str
    heading: str
    show: Callable[[Any], str] = str
    right: bool = False
    spare: int = 0


@dataclass(frozen=True)
class Fitted:
    """A table that fits. `shared`: values that all rows share, in words. `left_out`: columns without room."""

    table: Table
    shared: str = ""
    left_out: tuple[str, ...] = ()
    fits: bool = True


def fitted(title: str, columns: Sequence[Column], rows: Sequence[dict[str, Any]], console: Console) -> Fitted:
    """Make a table of the rows, of which there is at least one, that fits the console if possible."""
    shown = list(columns)
    cells = {id(column): [column.show(row[column.key]) for row in rows] for column in columns}

    def made(*, slim: bool = False) -> Table:
        return _table(title, shown, [cells[id(column)] for column in shown], slim=slim)

    if _fits(table := made(), console):
        return Fitted(table)
    shown = [column for column in shown if any(cells[id(column)])]
    shared: list[Column] = []
    spare = sorted((column for column in shown if column.spare), key=lambda column: -column.spare)
    for column in spare:
        if _fits(table := made(), console):
            break
        if len(set(cells[id(column)])) == 1:
            shown.remove(column)
            shared.append(column)
    slim = not _fits(made(), console)
    left_out: list[str] = []
    for column in spare:
        if _fits(made(slim=slim), console):
            break
        if column in shown:
            shown.remove(column)
            left_out.append(column.heading)
    table = made(slim=slim)
    ordered = sorted(shared, key=columns.index)
    return Fitted(
        table,
        ", ".join(f"{column.heading} {cells[id(column)][0]}" for column in ordered),
        tuple(left_out),
        _fits(table, console),
    )


def _fits(table: Table, console: Console) -> bool:
    return Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width


def _table(title: str, columns: Iterable[Column], cells: Sequence[Sequence[str]], *, slim: bool) -> Table:
    lines = box.SIMPLE_HEAD if slim else box.HEAVY_HEAD
    table = Table(title=title, title_justify="left", box=lines, show_edge=not slim, pad_edge=not slim)
    if slim:
        table.padding = (0, 0)
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold")
    for row in zip(*cells, strict=True):
        table.add_row(*(Text(cell) for cell in row))  # no markup
    return table
