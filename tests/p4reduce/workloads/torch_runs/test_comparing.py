"""Two runs in figures: what a step took, what it carried, and what was lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.run_file import LinkBytes
from p4reduce.workloads.sampling import Look
from p4reduce.workloads.torch_runs.comparing import (
    Side,
    bytes_a_step,
    comparison_tables,
    require_gloo,
    sentences,
)
from p4reduce.workloads.torch_runs.ranks import Failure
from p4reduce.workloads.torch_runs.record import Record, read
from p4reduce.workloads.torch_runs.running import Ran


def _look(at: float, up: int) -> Look:
    return Look(at, {"h1:s1": LinkBytes(up=up, down=2 * up)}, 0)


def _ran(record: Record, looks: list[Look] | None = None, failure: Failure | None = None) -> Ran:
    links = {"h1:s1": LinkBytes(up=7_000_000, down=8_000_000)}
    return Ran(9.0, failure, links, looks or [], record, began=-1.0)


def test_bytes_a_step_are_those_between_the_first_and_the_last() -> None:
    looks = [_look(0.0, 0), _look(1.0, 500), _look(2.0, 1500), _look(3.0, 2500), _look(4.0, 9999)]
    record = Record(ended=[1.5, 2.0, 2.5], losses=[None] * 3)
    # By 1.5 half of what came from 1 to 2, by 2.5 half of what came from 2 to 3: 1000 in all.
    assert bytes_a_step(record, looks) == {"h1:s1": LinkBytes(up=500, down=1000)}
    assert bytes_a_step(Record(ended=[1.5], losses=[None]), looks) == {}
    assert bytes_a_step(record, looks[:1]) == {}


def test_steps_beyond_the_looks_are_held_to_them() -> None:
    looks = [_look(1.0, 500), _look(2.0, 1500)]
    record = Record(ended=[0.5, 2.5], losses=[None] * 2)
    assert bytes_a_step(record, looks)["h1:s1"].up == 1000


def test_both_sides_and_what_they_say() -> None:
    looks = [_look(0.0, 0), _look(10.0, 10_000_000)]
    ours = Side.of("p4reduce", _ran(Record([1.0, 2.0, 3.5], [2.5, 2.0, 1.5]), looks))
    gloo = Side.of("gloo", _ran(Record([1.0, 3.0, 5.5], [2.5, 2.25, 1.5]), looks))
    assert (ours.median_s, gloo.median_s, ours.steps) == (1.25, 2.25, 3)
    assert sentences(ours, gloo) == [
        "A step over Gloo takes 1.80 times as long.",
        "Losses of rank 0 are at most 0.25 apart.",
    ]
    console = Console(width=120, record=True)
    console.print(comparison_tables(ours, gloo))
    shown = " ".join(console.export_text().split())
    assert "to the first step's end │ 2.00 s │ 2.00 s" in shown
    assert "a step, median │ 1.25 s │ 2.25 s" in shown
    assert "least to most │ 1.00 to 1.50 s │ 2.00 to 2.50 s" in shown
    assert "h1:s1 │ 1.25 MB / 2.50 MB │ 2.25 MB / 4.50 MB" in shown
    assert "2 │ 2 │ 2.25" in shown
    assert ours.as_json()["losses"] == [2.5, 2.0, 1.5]
    assert ours.as_json()["start_s"] == 2.0


def test_a_start_that_is_slower_for_being_the_first_is_told_apart() -> None:
    """Check that no step's time has it: both medians are of what comes after it."""
    ours = Side.of("p4reduce", _ran(Record([9.0, 10.0, 11.0], [None] * 3)))
    gloo = Side.of("gloo", _ran(Record([3.0, 4.0, 5.0], [None] * 3)))
    first, second, _ = sentences(ours, gloo)
    assert first == "A step over Gloo takes 1.00 times as long."
    assert second.startswith(
        "Up to its first step's end the script took 10.0 s over p4reduce, 4.00 s over Gloo"
    )
    assert not any("first step's end" in one for one in sentences(gloo, ours))


def test_a_script_without_steps_or_losses_is_compared_as_a_whole() -> None:
    ours, gloo = (Side.of(name, _ran(Record())) for name in ("p4reduce", "gloo"))
    assert sentences(ours, gloo) == [
        "No two steps of an optimizer were seen: only the scripts as a whole are compared, and the second "
        "may find cached what the first had to make or read."
    ]
    console = Console(width=120, record=True)
    console.print(comparison_tables(ours, gloo))
    shown = " ".join(console.export_text().split())
    assert "up / down, in all" in shown
    assert "h1:s1 │ 7.00 MB / 8.00 MB" in shown
    other = Side.of("gloo", _ran(Record([1.0, 2.0], [None, None])))
    stepped = Side.of("p4reduce", _ran(Record([1.0, 2.0, 3.0], [None, None, None])))
    said = sentences(stepped, other)
    assert "Careful: the script took 3 steps over p4reduce, 2 over Gloo." in said
    assert said[-1].startswith("No losses were seen")


def test_gloo_has_to_have_been_used() -> None:
    require_gloo(_ran(Record(backend="gloo")))
    require_gloo(_ran(Record(), failure=Failure(0, "h1", 1, ())))  # whose error is what counts
    with pytest.raises(WorkloadError, match="there is nothing to compare"):
        require_gloo(_ran(Record([1.0, 2.0], [None, None])))


def test_a_record_is_a_line_a_step(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    assert read(path) == Record()
    path.write_text('{"backend": "gloo"}\n{"ended": 1.5, "loss": 2.5}\n{"ended": 2.5, "loss": null}\n')
    found = read(path)
    assert found == Record([1.5, 2.5], [2.5, None], "gloo")
    assert found.seconds == [1.0]
