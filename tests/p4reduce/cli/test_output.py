"""Tables and JSON of the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p4reduce.cli.output import Column, progress, require_writable, show_rows, write_json
from topologies.errors import TopologyError

ROWS = [{"name": "a", "qp": 17, "hidden": [1]}, {"name": "b" * 150, "qp": 18, "hidden": []}]
COLUMNS = (Column("name", "who"), Column("qp", "QP", hex, right=True))


def test_a_table_in_a_pipe_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, COLUMNS, title="Things", as_json=False)
    printed = capsys.readouterr().out
    assert "b" * 150 in printed
    assert "0x11" in printed
    assert "hidden" not in printed


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, COLUMNS, title="Things", as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([], COLUMNS, title="Things", as_json=False)
    assert capsys.readouterr().out == "Things: none\n"
    show_rows([], COLUMNS, title="Things", as_json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_write_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "x.json", {"a": 1})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    write_json(Path("-"), {"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    with pytest.raises(TopologyError, match="cannot write"):
        write_json(tmp_path, {})


def test_require_writable(tmp_path: Path) -> None:
    require_writable(None)
    require_writable(Path("-"))
    require_writable(tmp_path / "new.json")
    for path in (tmp_path, tmp_path / "no" / "x.json"):
        with pytest.raises(TopologyError, match="cannot write"):
            require_writable(path)


def test_progress_without_a_terminal_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as tell:
        tell("first: half")
        tell("second")
    assert capsys.readouterr().err == "first: half\nsecond\n"
