"""Tables and the summary have what the run has."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.reporting import exports
from tests.p4reduce.workloads.reporting.runs import compared, rack, replayed


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_one_row_a_strategy() -> None:
    run = compared(rack(4))
    rows = list(csv.DictReader(io.StringIO(exports.csv_text(run))))
    assert [row["strategy"] for row in rows] == [result.strategy for result in run.results]
    first, ring = rows[0], rows[1]
    assert tuple(first) == exports.STRATEGIES
    assert float(first["median_s"]) == run.results[0].median_s
    assert float(ring["speedup_over_ring"]) == 1.0
    assert (first["busiest_link"], first["busiest_way"]) == ("h1:s1", "up")
    assert first["exposed_s"] == ""
    assert {row["dtype"] for row in rows} == {"float32"}
    assert first["verified"] == "True"


def test_all_tables(tmp_path: Path) -> None:
    run = replayed(rack(3), iterations=2)
    exports.write_tables(run, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(exports.LAYOUT)
    tables = {name: _rows(tmp_path / "new" / name) for name in exports.LAYOUT}
    for name, heading in exports.LAYOUT.items():
        assert tuple(tables[name][0]) == heading
    assert len(tables["times.csv"]) == 2 * 2
    assert len(tables["links.csv"]) == 2 * 3
    assert len(tables["timeline.csv"]) == sum(map(len, run.timelines.values()))
    assert len(tables["samples.csv"]) == 3 * len(tables["slots.csv"])
    span = run.timelines["in-network"][0]
    assert tables["timeline.csv"][0]["what"] == span.what
    assert float(tables["timeline.csv"][0]["end_s"]) == span.end_s


def test_the_summary_answers() -> None:
    run = compared(rack(8), dtype="bfloat16")
    found = json.loads(json.dumps(exports.summary(run)))
    assert found["pays"] == "yes"
    assert found["textbook_bound"] == 1.75
    assert found["rate_bound"] == pytest.approx(1.75)
    assert found["strategies"][0]["strategy"] == "in-network"
    assert {row["dtype"] for row in found["strategies"]} == {"bfloat16"}
    assert found["run"]["dtype"] == "bfloat16"
    assert found["run"] == run.as_json()


def test_tables_that_cannot_be_written_say_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkloadError, match=r"cannot write .*strategies\.csv"):
        exports.write_tables(compared(rack(2)), tmp_path / "file" / "tables")
