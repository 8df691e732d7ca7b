"""Tables that a terminal shows of a run."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from p4reduce.workloads.reporting.tables import run_tables
from p4reduce.workloads.run_file import Run
from tests.p4reduce.workloads.reporting.runs import compared, rack, replayed


def _text(run: Run) -> str:
    console = Console(width=200, file=StringIO(), record=True)
    console.print(run_tables(run))
    return console.export_text()


def test_strategies_and_the_verdict() -> None:
    text = _text(compared(rack(4), strategies=("in-network", "ring", "parameter-server-switch")))
    for part in (
        "all-reduce of 32.0 MB, float32 · 4 workers in a rack · links of 100 Mbit/s",
        "parameter server + switch",
        "1.50×",
        "32.6 MB, h1:s1 up",
        "In-network aggregation pays here for float32: 1.5",
        "Gloo over TCP did not run: PyTorch is not installed",
    ):
        assert part in text
    assert "waiting" not in text


def test_the_type_is_told() -> None:
    assert "all-reduce of 32.0 MB, bfloat16 · 4 workers" in _text(compared(rack(4), dtype="bfloat16"))
    text = _text(replayed(rack(4), dtype="float16"))
    assert "resnet-50: 102 MB of gradients in 161 layers, float16 ·" in text
    assert "pays here for float16" in text


def test_runs_from_before_the_type_was_noted() -> None:
    document = compared(rack(4)).as_json()
    del document["dtype"]
    text = _text(Run.model_validate(document))
    assert "all-reduce of 32.0 MB · 4 workers" in text
    assert "pays here: 1.5" in text


def test_of_a_replay_also_the_waiting() -> None:
    run = replayed(rack(4), name="[red]model[/red]")
    text = _text(run)
    assert "waiting" in text
    assert "11.2 s" in text
    assert "[red]model[/red]" in text  # not in red


def test_cautions() -> None:
    run = compared(rack(4))
    run.results[1] = run.results[1].model_copy(update={"retransmissions": 7})
    text = " ".join(_text(run).split())
    assert "Careful: Packets were sent again: ring 7. Nothing has to be lost for packets to be sent" in text
