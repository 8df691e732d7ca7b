"""`p4reduce report`: which files it writes, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from p4reduce.cli import app as cli
from p4reduce.workloads.reporting.exports import LAYOUT
from tests.p4reduce.workloads.reporting.runs import compared, rack


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run.json"
    run.write_text(json.dumps(compared(rack(4)).as_json()))
    return run


def test_a_page_beside_the_run_and_the_verdict(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", str(path)]) == 0
    assert path.with_suffix(".html").read_text().startswith("<!doctype html>")
    captured = capsys.readouterr()
    assert "In-network aggregation pays here" in captured.out
    assert "run.html" in captured.err


def test_tables_and_the_summary_without_a_page(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", str(path), "--csv", "tables", "--json", "-"]) == 0
    assert not path.with_suffix(".html").exists()
    assert {table.name for table in Path("tables").iterdir()} == set(LAYOUT)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["pays"] == "yes"
    assert "pays here" in captured.err


def test_one_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", str(path), "--csv", "strategies.csv", "--html", "x.html"]) == 0
    assert Path("strategies.csv").read_text().startswith("strategy,workers,bytes,dtype,median_s")
    assert Path("x.html").exists()
    capsys.readouterr()
    assert cli.run(["report", str(path), "--csv", "-"]) == 0
    assert capsys.readouterr().out == Path("strategies.csv").read_text()


def test_a_browser_is_opened_if_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def pretended(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", pretended)
    assert cli.run(["report", str(path), "--open"]) == 0
    assert opened == [path.with_suffix(".html").as_uri()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["missing.json"], "missing.json cannot be read: No such file"),
        (["not.json"], "not.json is no JSON"),
        (["other.json"], "other.json is no run of 'p4reduce compare' or 'p4reduce replay'"),
        (["."], "cannot be read: Is a directory"),
        (["run.json", "--json", "run.json"], "run.json is the run itself"),
        (["run.json", "--html", "no/where.html"], "cannot write no/where.html"),
        (["run.json", "--html", "a.html", "--json", "no/where"], "cannot write no/where"),
        (["run.json", "--csv", "no/where.csv"], "cannot write no/where.csv"),
    ],
)
@pytest.mark.usefixtures("path")
def test_mistakes(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("not.json").write_bytes(b"\xff\xfe")
    Path("other.json").write_text('{"format": "p4reduce-run/1"}')
    assert cli.run(["report", *words]) == 1
    assert says in capsys.readouterr().err
    assert not Path("a.html").exists()  # nothing is written before everything can be


@pytest.mark.usefixtures("path")
def test_standard_output_takes_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "run.json", "--csv", "-", "--json", "-"]) == 2
    assert "takes one of" in capsys.readouterr().err


@pytest.mark.slow
def test_other_commands_do_not_load_plotly() -> None:
    program = "import sys, p4reduce.cli.app as cli; cli.run(['--help']); assert 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
