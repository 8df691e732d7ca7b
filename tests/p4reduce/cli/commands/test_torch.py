"""`p4reduce torch`: what goes with what, said before anything starts; what is asked for is run."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p4reduce.cli import app as cli
from p4reduce.cli.failing import Signalled
from p4reduce.workloads.torch_runs import running, script
from p4reduce.workloads.torch_runs.interpreter import Interpreter
from p4reduce.workloads.torch_runs.ranks import Failure
from p4reduce.workloads.torch_runs.record import Record
from p4reduce.workloads.torch_runs.running import Ran
from tests.topologies.states import cluster_state
from topologies import state


@pytest.fixture(autouse=True)
def _somewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set up a directory with a script, PyTorch, and no cluster."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(script, "gloo_missing", lambda: "")
    monkeypatch.setattr(Interpreter, "__enter__", lambda self: self)  # which would import it


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument"),
        (["rack", "train.py", "--epochs", "3"], "No such option: --epochs"),
        (
            ["--rate", "1gbit", "--", "train.py"],
            "--rate is of a fabric of its own: say 'rack' or 'spine-leaf' first, then '-- SCRIPT'",
        ),
        (["--tls", "--cluster", "c1", "--", "train.py"], "--tls is of a fabric of its own"),
        (["--path-mtu", "1024", "--", "train.py"], "is of a fabric of its own"),
        (["rack", "--uplink-rate", "1gbit", "--", "train.py"], "a rack has no uplinks"),
        (["rack", "--hosts", "h1,h3", "--", "train.py"], "'h1,h3' is no number of hosts"),
        (["spine-leaf", "--hosts", "1,2,3", "--", "train.py"], "3 numbers of hosts for 2 leaves"),
        (["rack", "--compare", "nccl", "--", "train.py"], "'nccl' is not one of 'gloo'"),
    ],
)
def test_wrong_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["torch", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rack"], "there is no script to run: say '-- train.py ARGS' or '-- -m MODULE ARGS'"),
        (["rack", "--hosts", "4", "--"], "there is no script to run"),
        (["rack", "--", "tain.py"], "there is no script tain.py in "),
        (["ring", "--", "train.py"], "there is no script ring in "),
        (["rack", "--", "-m"], "-m needs the name of a module"),
        (["rack", "--mtu", "1500", "--", "train.py"], "path MTU 1500 is none of RoCE's"),
        (["rack", "--hosts", "99", "--", "train.py"], "99"),
        (["rack", "--json", "/nowhere/x.json", "--", "train.py"], "cannot write /nowhere/x.json"),
        (["--", "train.py"], "there is no running cluster"),
        (["--cluster", "c1", "--", "train.py"], "there is no running cluster 'c1'"),
    ],
)
def test_errors_are_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["torch", *words]) == 1
    complaint = capsys.readouterr().err.strip()
    assert complaint.startswith("p4reduce: ")
    assert message in complaint


def test_without_pytorch_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "gloo_missing", lambda: "it is not there")
    assert cli.run(["torch", "rack", "--", "train.py"]) == 1
    assert "PyTorch is not installed for " in capsys.readouterr().err


class Asked:
    """Runs that were asked for; each comes to what it is told."""

    def __init__(self, *outcomes: Ran) -> None:
        self._outcomes = list(outcomes)
        self.runs: list[tuple[Any, dict[str, Any]]] = []

    def __call__(self, *arguments: Any, **named: Any) -> Ran:
        self.runs.append((arguments, named))
        return self._outcomes.pop(0)


def _ran(failure: Failure | None = None, backend: str = "") -> Ran:
    return Ran(1.0, failure, {}, [], Record(backend=backend))


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set up a running cluster, and runs on it that only seem to be."""

    def expect(*outcomes: Ran) -> Asked:
        asked = Asked(*outcomes)
        monkeypatch.setattr(running, "run", asked)
        monkeypatch.setattr(state, "running", lambda name: cluster_state(name or "only"))
        return asked

    return expect


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [(KeyboardInterrupt(), 130, "interrupted"), (Signalled(signal.SIGTERM), 143, "ended by a signal")],
)
def test_who_ends_it_hears_what_has_ended(
    end: BaseException,
    code: int,
    says: str,
    asks: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*_: Any, **__: Any) -> Ran:
        raise end

    asks()
    monkeypatch.setattr(running, "run", run)
    assert cli.run(["torch", "--", "train.py"]) == code
    assert capsys.readouterr().err.strip() == f"p4reduce: {says}: its processes have ended"


@pytest.mark.parametrize(("jobs", "says"), [(0, True), (1, False), (None, False)])
def test_a_run_without_a_group_of_p4reduce_says_so(
    jobs: int | None, says: bool, asks: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = asks(replace(_ran(), jobs=jobs))
    assert cli.run(["torch", "--instead-of", "gloo", "--", "train.py"]) == 0
    assert ("no process group of p4reduce had a collective" in capsys.readouterr().err) is says
    ((_, named),) = asked.runs
    assert named["instead_of"] == "gloo"


def test_a_part_of_a_running_cluster(asks: Any, tmp_path: Path) -> None:
    asked = asks(_ran())
    assert (
        cli.run(["torch", "--cluster", "c1", "--hosts", "h2, h1", "--", "train.py", "--rate", "2", "-n"]) == 0
    )
    (((cluster, hosts, what), named),) = asked.runs
    assert (cluster.name, [host.name for host in hosts]) == ("c1", ["h2", "h1"])
    assert (what.words, what.directory) == (("train.py", "--rate", "2", "-n"), tmp_path)
    assert (named["recorded"], named["backend"]) == (False, "")


def test_what_is_written_down_is_looked_at(asks: Any, tmp_path: Path) -> None:
    asked = asks(_ran())
    assert cli.run(["torch", "--json", "run.json", "--", "train.py"]) == 0
    assert [named["recorded"] for _, named in asked.runs] == [True]
    assert '"failed": null' in (tmp_path / "run.json").read_text()


def test_a_module_on_all_hosts(asks: Any) -> None:
    asked = asks(_ran())
    assert cli.run(["torch", "--", "-m", "package.train", "--", "x"]) == 0
    (((_, hosts, what), _),) = asked.runs
    assert [host.name for host in hosts] == ["h1", "h2"]
    assert what.words == ("-m", "package.train", "--", "x")


def test_gloo_comes_second(asks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = asks(_ran(), _ran(backend="gloo"))
    assert cli.run(["torch", "--compare", "gloo", "--", "train.py"]) == 0
    assert [(named["recorded"], named["backend"]) for _, named in asked.runs] == [(True, ""), (True, "gloo")]
    # One interpreter for both, and none of the two finds what torch.compile has left for the other.
    assert all(named["own_caches"] for _, named in asked.runs)
    assert len({id(named["interpreter"]) for _, named in asked.runs}) == 1
    assert "The script over p4reduce, and over Gloo" in capsys.readouterr().out


def test_a_script_that_does_not_ask_for_the_backend_is_not_compared(
    asks: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asks(_ran(), _ran())
    assert cli.run(["torch", "--compare", "gloo", "--", "train.py"]) == 1
    assert "there is nothing to compare" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "exit_code"), [(3, 3), (-9, 137)])
def test_the_failed_ranks_exit_code_and_words_are_the_commands(
    asks: Any, capsys: pytest.CaptureFixture[str], code: int, exit_code: int
) -> None:
    asked = asks(_ran(Failure(1, "h2", code, ("ValueError: [red]no[/red]",))))
    assert cli.run(["torch", "--compare", "gloo", "--json", "-", "--", "train.py"]) == exit_code
    assert len(asked.runs) == 1  # and not over Gloo
    told = capsys.readouterr()
    assert told.err.endswith(":\n  ValueError: [red]no[/red]\n")
    assert f'"code": {exit_code}' in told.out
