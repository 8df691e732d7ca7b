"""`p4reduce simulate-faults`: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from p4reduce.cli.app import run
from p4reduce.oracle.rules import Writes
from p4reduce.simulation.exhaustive.explorer import Explorer
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.schedule import MAX_SEED, Schedule
from p4reduce.simulation.faults.targets import Targeted
from tests.p4reduce.simulation.planted import change_rule


@pytest.mark.slow
def test_many_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate-faults", "--seeds", "1..12", "--json", str(tmp_path / "s.json")]) == 0
    assert "12 of 12 seeds" in capsys.readouterr().out
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["seeds"] == 12
    assert summary["failures"] == []
    assert summary["packets"] > 0
    assert not summary["interrupted"]


@pytest.mark.slow
def test_more_seeds_than_fit_into_memory(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--workers", "1"], ["--workers", "2"], ["--jobs", "2"]):
        assert run(["simulate-faults", "--seeds", f"0..{MAX_SEED}", "--seconds", "0", *words]) == 0
        assert "of 18,446,744,073,709,551,616 seeds" in capsys.readouterr().out


def test_one_seeds_json_is_that_of_many(tmp_path: Path) -> None:
    """Check that all three options write the same, but for the time that it took."""
    path, schedule = tmp_path / "s.json", tmp_path / "schedule.json"
    schedule.write_text(draw(7).to_json())
    written = []
    for words in (["--seeds", "7"], ["--seed", "7"], ["--replay", str(schedule)]):
        path.unlink(missing_ok=True)
        assert run(["simulate-faults", *words, "--json", str(path)]) == 0
        written.append(json.loads(path.read_text()))
        assert written[-1].pop("seconds") > 0
        assert written[-1].pop("seeds_per_s") > 0
    assert written[0]["first_seed"] == 7
    assert written[0] == written[1] == written[2]


@pytest.mark.parametrize("words", [["--seeds", "7..8"], ["--seed", "7", "--trace"]], ids=" ".join)
def test_json_on_stdout_has_it_alone(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate-faults", *words, "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["first_seed"] == 7
    assert "simulated time" in said.err


@pytest.mark.slow
def test_ctrl_c_says_what_was_found_so_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that seeds not yet handed over are reported too, and that failures are not made short."""
    one, path = Targeted.one, tmp_path / "s.json"

    def fails_then_ends(self: Targeted, schedule: Schedule, **options: Any) -> Any:
        if schedule.seed == 14:
            raise KeyboardInterrupt
        outcome = one(self, schedule, **options)
        outcome.error = "broken" if schedule.seed == 12 else ""
        return outcome

    monkeypatch.setattr(Targeted, "one", fails_then_ends)
    words = ["simulate-faults", "--seeds", "1..1000", "--json", str(path), "--save", str(tmp_path)]
    assert run(words) == 130
    said = capsys.readouterr()
    assert "13 of 1,000 seeds" in said.out
    assert "seed 12: broken" in said.out
    assert said.err.splitlines()[-1] == "p4reduce: interrupted after 13 of 1,000 seeds"
    summary = json.loads(path.read_text())
    assert summary["interrupted"]
    assert summary["seeds"] == 13
    assert summary["failures"] == [{"seed": 12, "error": "broken"}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_ctrl_c_with_several_processes() -> None:
    """Check it as a terminal does it, which sends it to all of them."""
    code = """if True:
        import os, signal, sys
        from p4reduce.cli.app import run
        from p4reduce.simulation.faults.running import Tally

        merge, sent = Tally.merge, []

        def merge_and_end(self, other):
            merge(self, other)
            if self.seeds >= 20 and not sent:
                sent.append(self.seeds)
                os.killpg(0, signal.SIGINT)

        Tally.merge = merge_and_end
        sys.exit(run(["simulate-faults", "--seeds", "1..100000", "--workers", "2"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "p4reduce: interrupted after 20 of 100,000 seeds"
    assert "Traceback" not in done.stderr
    assert "20 of 100,000 seeds" in done.stdout
    assert done.returncode == 130


def test_one_seed_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate-faults", "--seed", "7", "--trace"]) == 0
    said = capsys.readouterr().out
    assert "hears Ready" in said
    assert "trace " in said


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_failure_is_kept_and_played_again(
    workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_rule(monkeypatch, "3 duplicate", writes=Writes.ADD, counts=("aggregated",))
    words = ["simulate-faults", "--seeds", "1..20", "--shrink-s", "2", "--save", str(tmp_path)]
    assert run([*words, "--workers", workers]) == 1
    said = capsys.readouterr().out
    files = sorted(tmp_path.glob("p4reduce-seed-*.json"))
    assert files
    assert f"--replay {files[0]}" in said.replace("\n", "")
    assert Schedule.from_json(files[0].read_text()).seed in range(1, 21)
    assert run(["simulate-faults", "--replay", str(files[0])]) == 1
    monkeypatch.undo()
    assert run(["simulate-faults", "--replay", str(files[0])]) == 0


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--seeds", "1..2", "--seed", "3"],
        ["--seeds", "5..2"],
        ["--seeds", "many"],
        ["--seeds", "1..99999999999999999999", "--seconds", "1"],
        ["--seeds", f"1..{'9' * 5000}"],
        ["--seed", str(MAX_SEED + 1)],
        ["--seed", "-1"],
        ["--seed", "1", "--target", "tofino"],
        ["--seeds", "1..2", "--workers", "0"],
        ["--seeds", "1..2", "--workers", "many"],
        ["--seeds", "1..2", "--workers", "dask://here"],
        ["--seed", "1", "--workers", "dask://here:8786"],
        ["--replay", "/nonexistent.json"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_what_makes_no_sense_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate-faults", *words]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("p4reduce: ")
    assert len(said.err.splitlines()) == 1


def test_a_file_that_is_no_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert run(["simulate-faults", "--replay", str(path)]) == 1
    assert "no schedule" in capsys.readouterr().err
    path.write_text(draw(7).to_json().replace('"spines": 0', '"spines": "x"'))
    assert run(["simulate-faults", "--replay", str(path)]) == 1
    wrong = 'spines is "x": it should be a valid integer'
    assert capsys.readouterr().err == f"p4reduce: cannot read {path}: {wrong}\n"
    path.write_text(draw(7).to_json())
    assert run(["simulate-faults", "--replay", str(path)]) == 0


def test_bmv2_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert run(["simulate-faults", "--seed", "1", "--target", "bmv2"]) == 1
    assert "simple_switch_grpc is not on the PATH" in capsys.readouterr().err


def test_bmv2_is_for_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("topologies.switches.require_bmv2", lambda: "simple_switch_grpc")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run(["simulate-faults", "--seed", "1", "--target", "bmv2"]) == 1
    assert "only root can make" in capsys.readouterr().err


def test_the_scopes_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["simulate-faults", "--exhaustive", "list", "--json", str(tmp_path / "l.json")]) == 0
    listed = json.loads((tmp_path / "l.json").read_text())["scopes"]
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == [scope["name"] for scope in listed]
    assert "trio" in said


def test_a_scope_is_explored(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["simulate-faults", "--exhaustive", "trio", "--json", str(tmp_path / "s.json")]) == 0
    summary = json.loads((tmp_path / "s.json").read_text())
    said = capsys.readouterr().out
    assert f"{summary['states']:,} states, {summary['transitions']:,} transitions" in said
    assert "checked: " in said
    assert "nothing is wrong" in said
    assert summary["scope"]["ranks"] == 3
    assert summary["scope"]["lost"] == 1
    assert (summary["error"], summary["choices"], summary["interrupted"]) == ("", [], False)
    assert summary["checks"]["ends"] == summary["ends"] > 0


def test_what_is_wrong_in_a_scope_is_printed_and_can_be_played(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    change_rule(monkeypatch, "3 duplicate", writes=Writes.ADD)
    words = ["simulate-faults", "--exhaustive", "pair"]
    assert run([*words, "--json", str(tmp_path / "s.json")]) == 1
    found = json.loads((tmp_path / "s.json").read_text())
    said = capsys.readouterr().out
    assert "is no sum of ranks [0]" in found["error"]
    assert f"after {len(found['choices'])} choices, the fewest: {found['error']}" in said
    played = said.split("play it again: p4reduce ")[1]
    assert played == f"simulate-faults --exhaustive pair --choices '{' '.join(found['choices'])}'\n"
    assert run([*words, "--choices", " ".join(found["choices"])]) == 0
    assert found["error"] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--exhaustive", "none"], "there is no scope 'none': known are pair, "),
        (["--exhaustive", "trio", "--seed", "1"], "give one of"),
        (["--exhaustive", "trio", "--target", "embedded"], "leave out --target embedded"),
        (["--exhaustive", "trio", "--choices", "arrive:7"], "'arrive:7' is not possible here: arrive:0 "),
        (["--seed", "1", "--choices", "arrive:0"], "give --exhaustive SCOPE as well"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_no_scope_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate-faults", *words]) != 0
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_scope_that_is_interrupted_says_how_far_it_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    after, seen = Explorer.after, []

    def interrupted(self: Explorer, *words: Any) -> Any:
        seen.append(words)
        if len(seen) == 100:
            raise KeyboardInterrupt
        return after(self, *words)

    monkeypatch.setattr(Explorer, "after", interrupted)
    assert run(["simulate-faults", "--exhaustive", "trio", "--json", str(tmp_path / "s.json")]) == 130
    assert json.loads((tmp_path / "s.json").read_text())["interrupted"]
    said = capsys.readouterr()
    assert "states, 100 transitions" in said.out
    assert "nothing is wrong" not in said.out
    assert "interrupted after" in said.err


def test_a_page_of_a_seed_and_of_a_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, schedule = tmp_path / "page.html", tmp_path / "a-short-one.json"
    schedule.write_text(draw(42).to_json())
    assert run(["simulate-faults", "--seed", "42", "--page", str(page)]) == 0
    assert re.search(rf"{re.escape(str(page))}: \d+ steps", capsys.readouterr().out)
    of_the_seed = page.read_text()
    assert "<title>Seed 42 – p4reduce</title>" in of_the_seed
    assert run(["simulate-faults", "--replay", str(schedule), "--page", str(page)]) == 0
    assert page.read_text() == of_the_seed.replace("Seed 42", "A short one")


def test_a_page_that_begins_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    words = ["simulate-faults", "--seed", "42", "--page", str(page), "--page-from"]
    assert run([*words, "0.1"]) == 0
    assert "--page-from SECONDS begins elsewhere" in capsys.readouterr().out
    page.unlink()
    assert run([*words, "3600"]) == 1
    assert "--page-from 3600: the last that happens is at 0." in capsys.readouterr().err
    assert not page.exists()


def test_a_page_of_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_rule(monkeypatch, "3 duplicate", writes=Writes.ADD)
    page = tmp_path / "page.html"
    example = Path(__file__).parents[4] / "examples" / "protocol" / "straggler.json"
    assert run(["simulate-faults", "--replay", str(example), "--page", str(page)]) == 1
    assert "went wrong" in page.read_text()
    assert "is wrong at 64 of 64 elements" in page.read_text()
    assert "steps" in capsys.readouterr().out


def test_json_on_stdout_beside_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", "42", "--json", "-", "--page", str(tmp_path / "page.html")]
    assert run(["simulate-faults", *words]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["first_seed"] == 42
    assert "page.html: " in said.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--page", "p.html"], "give one of --seeds"),
        (["--seeds", "1..2", "--page", "p.html"], "--page shows one run: give --seed N or --replay FILE"),
        (["--exhaustive", "pair", "--page", "p.html"], "--page shows one run"),
        (["--seed", "1", "--page", "-"], "--page is a file that a browser opens"),
        (["--seed", "1", "--page", "none/such/p.html"], "cannot write none/such/p.html"),
        (["--seed", "1", "--page", "."], "cannot write .: give the name of a file"),
        (["--seed", "1", "--page-from", "1"], "give --page FILE.html as well"),
        (["--seed", "1", "--page", "p.html", "--page-from", "inf"], "--page-from inf: give the seconds"),
        (["--seed", "1", "--page", "p.html", "--json", "p.html"], "--page and --json are the same file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_no_page_is_refused(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["simulate-faults", *words]) == 1
    assert says in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
