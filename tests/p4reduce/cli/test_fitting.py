"""Tables on terminals of any width."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from p4reduce.cli.fitting import Column, fitted

COLUMNS = (
    Column("switch", "switch"),
    Column("tenant", "tenant", spare=2),
    Column("peer", "peer"),
    Column("generation", "generation", right=True, spare=1),
    Column("bitmap", "bitmap", spare=3),
    Column("missing", "missing"),
)


def row(index: int, **other: Any) -> dict[str, Any]:
    return {
        "switch": f"s{index}",
        "tenant": "default",
        "peer": "",
        "generation": 1795647210,
        "bitmap": f"{1 << index:#x}",
        "missing": f"{index}-31",
        **other,
    }


def printed(rows: list[dict[str, Any]], width: int) -> tuple[str, str, tuple[str, ...]]:
    console = Console(width=width, file=io.StringIO())
    found = fitted("Slots", COLUMNS, rows, console)
    console.print(found.table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), found.shared, found.left_out


def test_all_where_there_is_room() -> None:
    text, shared, left_out = printed([row(1), row(2)], 80)
    assert "peer" in text
    assert (shared, left_out) == ("", ())


def test_what_all_rows_share_is_said_once() -> None:
    text, shared, left_out = printed([row(1), row(2)], 50)
    assert "peer" not in text
    assert "default" not in text
    assert "1795647210" in text
    assert (shared, left_out) == ("tenant default", ())
    text, shared, left_out = printed([row(1), row(2)], 40)
    assert shared == "tenant default, generation 1795647210"
    assert left_out == ()
    assert "0x2" in text


def test_of_less_use_goes_where_there_is_no_room() -> None:
    rows = [row(1), row(2, tenant="red", generation=7)]
    text, shared, left_out = printed(rows, 36)
    assert shared == ""
    assert left_out == ("bitmap",)
    assert "1795647210" in text


@pytest.mark.slow
@pytest.mark.parametrize("width", range(18, 90))
@pytest.mark.parametrize("other", [{}, {"tenant": "red", "generation": 7, "peer": "l1"}])
def test_no_value_is_cut_and_nothing_is_lost(width: int, other: dict[str, Any]) -> None:
    rows = [row(1), row(2, **other)]
    text, shared, left_out = printed(rows, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("\n") <= 8  # a line each
    for column in COLUMNS:
        for value in {str(one[column.key]) for one in rows}:
            assert value in text or value in shared or column.heading in left_out
