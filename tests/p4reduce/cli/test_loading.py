"""Modules that a command imports: its own, and none that only others need."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import p4reduce
from p4reduce.cli import app as cli
from p4reduce.cli import commands, loading

# What each takes a tenth of a second or so to import.
HEAVY = {"finsy", "grpc", "mininet.node", "numpy", "plotly", "prometheus_client", "sklearn", "textual"}


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def _heavy(code: str) -> set[str]:
    done = _run(f"import sys\n{code}\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return HEAVY & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("import p4reduce, p4reduce.cli.app", set()),
        ("from p4reduce.cli.app import run; assert run(['--version']) == 0", set()),
        ("from p4reduce.cli.app import run; assert run(['down', '--help']) == 0", set()),
        ("from p4reduce.cli.app import run; assert run(['dance']) == 2", set()),
        ("from p4reduce.cli.app import run; assert run(['job', 'list', '--help']) == 0", {"grpc"}),
        ("import p4reduce; p4reduce.WorkerLostError", set()),
        ("import p4reduce; p4reduce.Communicator", {"grpc", "numpy"}),
    ],
)
def test_what_is_imported(code: str, needed: set[str]) -> None:
    assert _heavy(code) <= needed


def test_every_module_of_commands_has_one() -> None:
    places = cli.Commands.places.values()
    assert {place.module for place in places} == {
        module.name for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}.")
    }
    made = loading.Commands(cli.Commands.places)
    assert [made[name].name for name in made] == list(cli.Commands.places)


def test_a_name_like_a_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["dem"]) == 2
    assert "Did you mean 'demo'?" in capsys.readouterr().err


def test_a_command_that_cannot_be_imported_is_not_one_that_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_command.py").write_text("{}['a']")
    monkeypatch.syspath_prepend(tmp_path)
    found = loading.Commands({"broken": loading.Place("broken_command", "run")})
    assert found.get("whole") is None
    assert "broken" in found
    with pytest.raises(KeyError, match="a"):
        found.get("broken")


@pytest.mark.parametrize("module", ["p4reduce.cli.app", "p4reduce.cli.commands.job", "grpc"])
def test_ctrl_c_while_modules_are_imported(module: str) -> None:
    code = f"""
import sys
from p4reduce import __main__

class Impatient:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Impatient())
sys.argv[1:] = ["job", "list"]
__main__.main()
"""
    done = _run(code)
    assert done.returncode == 130
    assert done.stderr in ("", "p4reduce: interrupted\n")  # the former inside Typer


def test_the_names_a_user_imports() -> None:
    for name in p4reduce.__all__:
        assert getattr(p4reduce, name).__name__ == name
    assert set(p4reduce.__all__) <= set(dir(p4reduce))
    with pytest.raises(AttributeError, match="'p4reduce' has no attribute 'nothing'"):
        getattr(p4reduce, "nothing")  # noqa: B009 (types say so too)
