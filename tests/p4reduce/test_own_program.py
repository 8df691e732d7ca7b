"""A cluster whose switches run a program of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4reduce.cli import app as cli
from tests.p4reduce.clusters import p4reduce

EXAMPLE = Path(__file__).parents[2] / "examples" / "soft_switch"
FILES = ["--program", str(EXAMPLE / "l2.json"), "--p4info", str(EXAMPLE / "l2.p4info.txtpb")]
ENTRIES = """
group = multicast_group_entry(1)
group.add(1)
group.add(2)
group.insert()
entry = table_entry["addresses"](action="flood")
entry.is_default = True
entry.action["group"] = "1"
entry.modify()
"""


@pytest.mark.emulation
@pytest.mark.slow
@pytest.mark.usefixtures("own_state")
@pytest.mark.parametrize("tls", [[], ["--tls"]], ids=["plain", "tls"])
def test_its_switches_take_entries_and_there_is_no_controller(name: str, tls: list[str]) -> None:
    up = p4reduce("up", "rack", "--hosts", "2", "--cluster", name, *FILES, *tls, "--detach")
    assert up.returncode == 0, up.stderr
    ping = ("exec", "--cluster", name, "h1", "--", "ping", "-c", "1", "-W", "5", "10.0.0.2")
    assert p4reduce(*ping).returncode == 1  # the program drops what it does not know
    shell = p4reduce("shell", "s1", "--cluster", name, "-c", ENTRIES)
    assert shell.returncode == 0, shell.stderr
    assert p4reduce(*ping).returncode == 0
    for words in (["allreduce"], ["job", "list"], ["doctor"], ["top", "--once"]):
        refused = p4reduce(*words, "--cluster", name)
        assert refused.returncode == 1
        assert "and no controller, which this needs" in refused.stderr
    assert p4reduce("down", name).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (FILES[:2], "a program of your own is two files"),
        (["--program", "/nowhere.json", *FILES[2:]], "/nowhere.json cannot be read: No such file"),
        (["--program", str(EXAMPLE / "l2.p4"), *FILES[2:]], "l2.p4 is no JSON"),
        ([*FILES[:3], str(EXAMPLE / "l2.txt")], "l2.txt is no P4Info in text form"),
    ],
)
def test_files_that_are_no_program(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["up", "rack", *words]) == 1
    assert message in capsys.readouterr().err


def test_json_that_is_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.json").write_text("{}")
    assert cli.run(["up", "rack", "--program", str(tmp_path / "some.json"), *FILES[2:]]) == 1
    assert "is no program for BMv2: it lacks parsers and pipelines" in capsys.readouterr().err
