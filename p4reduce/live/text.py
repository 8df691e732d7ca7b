"""One frame as plain text, for pipes and terminals that can nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.live.columns import TABLES, Table, headline, second_line
from p4reduce.live.faults import Row
from p4reduce.live.view import View


def frame(view: View) -> str:
    """All tables."""
    parts = [f"{headline(view)}\n{second_line(view)}"]
    parts += [f"{table.title}\n{_table(table, table.rows(view))}" for table in TABLES]
    if view.remarks:
        parts.append("\n".join(view.remarks))
    return "\n\n".join(parts)


def _table(table: Table, rows: Sequence[Row]) -> str:
    if not rows:
        return f"  {table.empty}"
    cells = [[column.heading for column in table.columns], *(table.cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(table.columns))]
    lines = []
    for line in cells:
        words = [
            word.rjust(width) if column.right else word.ljust(width)
            for word, width, column in zip(line, widths, table.columns, strict=True)
        ]
        lines.append("  " + "  ".join(words).rstrip())
    return "\n".join(lines)
