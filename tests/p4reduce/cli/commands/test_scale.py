"""`p4reduce scale`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from p4reduce.cli.app import run

SMALL = ("--gpus", "8,16,...,64", "--gpus-per-host", "4", "--leaf-hosts", "4", "--workers", "1")


def simulated(tmp_path: Path, *words: str) -> dict[str, Any]:
    path = tmp_path / "scale.json"
    assert run(["scale", *words, "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = simulated(tmp_path, "--bytes", "64K,32M", *SMALL)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for title in ("65,536 bytes, simulated:", "33,554,432 bytes, simulated:"):
        assert title in said
    assert "Simulated: hierarchical is the fastest at 8 to 64 GPUs." in said
    assert "hierarchical-phases beats flat-ring from k = 2.00 (8 GPUs)" in said
    assert "Here k = 12." in said
    assert "Careful" not in said
    assert found["simulated"] == "flow"
    assert found["fabric"]["k"] == 12
    assert [row["gpus"] for row in found["results"]] == [
        g for _ in range(2) for g in (8, 16, 32, 64) for _ in range(6)
    ]
    large = [row for row in found["results"] if row["bytes"] == 32 << 20 and row["gpus"] == 64]
    for row in large:
        assert row["seconds"] == pytest.approx(row["formula_s"], rel=0.2)
        assert row["racks"] == 4
        assert row["nic_bytes"] > row["bytes"]
        assert row["bus_gbit_s"] > 0
        assert row["waiting_s"] is None
    assert found["fastest"][-1] == {"what": "33,554,432 bytes", "gpus": 64, "strategy": "hierarchical"}
    assert found["thresholds"][0]["k_in_sequence"] == pytest.approx(2.0)


def test_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "resnet-50,bert-base", "--dtype", "bfloat16")
    found = simulated(tmp_path, *words, *SMALL, "--strategies", "hierarchical,flat-ring")
    said = capsys.readouterr().out
    assert "bert-base, simulated: 4 GPUs a machine, 100 Gbit/s, k = 12" in said
    assert "iteration" in said
    rows = [row for row in found["results"] if row["what"] == "bert-base"]
    assert {row["dtype"] for row in rows} == {"bfloat16"}
    assert all(row["seconds"] >= row["waiting_s"] > 0 for row in rows)
    assert all(row["overlap"] for row in rows)
    later = simulated(tmp_path, "--model", "bert-base", "--dtype", "bfloat16", *SMALL, "--no-overlap")
    times = {(row["gpus"], row["strategy"]): row["seconds"] for row in later["results"]}
    assert all(row["seconds"] < times[row["gpus"], row["strategy"]] for row in rows)


def test_json_on_stdout_has_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "--bytes", "1M", *SMALL, "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["command"].startswith("p4reduce scale --bytes 1M --gpus 8,16,...,64")
    assert "simulating: 24 cells" in said.err


def test_processes_give_the_same(tmp_path: Path) -> None:
    words = ("--bytes", "1M", *SMALL[:-1])
    assert simulated(tmp_path, *words, "1")["results"] == simulated(tmp_path, *words, "2")["results"]


def test_without_a_pipeline_and_with_thin_uplinks(tmp_path: Path) -> None:
    words = ("--bytes", "64M", *SMALL, "--intra-rate", "200gbit", "--strategies", "hierarchical")

    def last(*more: str) -> float:
        found: float = simulated(tmp_path, *words, *more)["results"][-1]["seconds"]
        return found

    assert last("--pipeline", "off") == pytest.approx(1.75 * last("--pipeline", "1M"), rel=0.1)
    phases = simulated(tmp_path, "--bytes", "64M", *SMALL, "--pipeline", "off")["results"]
    chosen = ["hierarchical-phases", "hierarchical-ring", "flat-ring", "reduce-broadcast", "in-network"]
    assert [row["strategy"] for row in phases[:5]] == chosen
    # 16 planes' bytes are one tensor over a rack's four uplinks, which together had room for four.
    assert last("--oversubscription", "16") > 3 * last("--oversubscription", "4")


def test_more_workers_than_todays_switch_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulated(tmp_path, "--bytes", "1M", "--gpus", "1024", "--strategies", "hierarchical,in-network")
    assert found["cautions"] == [
        "in-network has up to 128 workers of a job behind a leaf; today's switch program takes 32, so this "
        "is of a larger one."
    ]
    assert "Careful: in-network has up to 128 workers" in capsys.readouterr().out


def test_two_gpus_have_no_threshold(tmp_path: Path) -> None:
    found = simulated(tmp_path, "--bytes", "1M", "--gpus", "2", "--gpus-per-host", "1")
    assert found["thresholds"] == [{"gpus": 2, "k_in_sequence": None, "k_in_a_pipeline": None}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "bert-base", "--gpus", "30"], "30 GPUs do not fill machines of 8: take 32"),
        (["--bytes", "1M", "--gpus", "8"], "8 GPUs are one machine of 8"),
        (["--gpus", "32"], "give one of --model bert-base and --bytes"),
        (["--model", "bert-base", "--bytes", "1M"], "give one of --model bert-base and --bytes"),
        (["--model", "bert"], "'bert' is no workload: take a bundled model (alexnet,"),
        (["--model", "resnet-50,ResNet50"], "names one twice"),
        (["--model", "bert-base", "--teraflops", "0"], "TFLOP/s"),
        (["--bytes", "2048G"], "bytes to sum: take 1 to 1099511627776"),
        (["--bytes", "1024G", "--pipeline", "64K"], "pieces of a plane are too many to simulate"),
        (["--bytes", "1M", "--gpus", "9" * 5000], "is no list of numbers"),
        (["--bytes", "1M", "--workers", "9" * 5000], "say how many processes"),
        (["--bytes", "1M", "--strategies", "ring"], "'ring' is no strategy; there are hierarchical,"),
        (["--bytes", "1M", "--rate", "0"], "--rate 0: a simulated link has a rate, say 100gbit"),
        (["--bytes", "1M", "--rate", "0gbit"], "--rate 0gbit: a simulated link has a rate"),
        (["--bytes", "1M", "--rate", "none"], "--rate none: a simulated link has a rate"),
        (["--bytes", "1M", "--intra-rate", "0"], "--intra-rate 0: a simulated link has a rate"),
        (["--bytes", "1M", "--rate", "fast"], "'fast' is no rate"),
        (["--bytes", "1M", "--alpha", "3"], "--alpha '3' is no time: say 3us"),
        (["--bytes", "1M", "--alpha", "2s"], "take a latency below 1s"),
        (["--bytes", "0"], "name each size once, and none of 0"),
        (["--bytes", "big"], "'big' is no size"),
        (["--bytes", "1M", "--batch", "3"], "--batch is of a --model"),
        (["--bytes", "1M", "--no-overlap"], "--overlap is of a --model"),
        (["--bytes", "1M", "--dtype", "float16"], "--dtype is of a --model"),
        (["--bytes", "1M", "--mtu", "1500"], "take 256, 512, 1024, 2048 or 4096"),
        (["--bytes", "1M", "--window", "3"], "take 1, 2, 4 or 8"),
        (["--bytes", "1M", "--pipeline", "1K"], "less than a message: take 65536 or more"),
        (["--bytes", "1M", "--pipeline", "0"], "--pipeline 0 is no piece: say off"),
        (["--bytes", "1M", "--oversubscription", "0"], "--oversubscription 0 is none: take 1"),
        (["--bytes", "1M", "--gpus", "64,32"], "name each number once, the smallest first"),
        (["--bytes", "1M", "--gpus", "32,...,64"], "say 32,64 or 32,64,...,1024"),
        (["--bytes", "1M", "--gpus", "32,48,...,1000"], "32,48,... does not come to 1000"),
        (["--bytes", "1M", "--gpus", "8000000"], "8000000 GPUs are too many: take at most"),
        (["--bytes", "1M", "--workers", "0"], "say how many processes"),
        (["--bytes", "1M", "--workers", "dask://here"], "'dask://here' is no scheduler's address"),
        (["--bytes", "1M", "--json", "/nowhere/at/all.json"], "cannot write /nowhere/at/all.json"),
    ],
)  # fmt: skip
def test_what_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["scale", *words]) in (1, 2)
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4", [4]), ("4,8,12", [4, 8, 12]), ("4,8,…,32", [4, 8, 16, 32]), ("4,8,...,20", [4, 8, 12, 16, 20])],
)
def test_lists_of_gpus(tmp_path: Path, text: str, numbers: list[int]) -> None:
    """Check that a list goes on by a factor where that reaches its last number, else by a step."""
    words = ("--bytes", "1M", "--gpus-per-host", "2", "--workers", "1", "--strategies", "in-network")
    found = simulated(tmp_path, *words, "--gpus", text)
    assert [row["gpus"] for row in found["results"]] == numbers
