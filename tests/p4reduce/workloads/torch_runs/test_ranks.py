"""Processes that run side by side: what is heard of them, whose failure counts, that none is left."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from p4reduce.workloads.torch_runs.ranks import Failure, Line, Ranks
from p4reduce.workloads.torch_runs.script import Script
from tests.topologies.states import cluster_state
from topologies import launch
from topologies.processes import ProcessId, wait_until

pytestmark = pytest.mark.slow

_LIMIT_S = 60.0
Runs = Callable[..., "Heard"]


class Heard:
    """A run of a script in two hosts, and all that was heard of it."""

    def __init__(self, directory: Path, program: str) -> None:
        path = directory / "script.py"
        path.write_text("import os, sys, time\nrank = os.environ['RANK']\n" + textwrap.dedent(program))
        self.script = Script((str(path),), directory)
        self.cluster = cluster_state("c1")
        self.cluster.directory.mkdir(exist_ok=True)
        self.lines: list[Line] = []
        self.on_line: Callable[[Line], None] = lambda line: None

    def run(self, on_look: Callable[[], None] = lambda: None) -> Failure | None:
        """Run to the end, check that nobody is left, and return the failure if there was one."""
        told = [{"RANK": str(rank)} for rank in range(2)]
        try:
            with Ranks(
                self.cluster, self.cluster.hosts, self.script, told, on_line=self._heard
            ) as self.ranks:
                return self.ranks.wait(on_look)
        finally:
            assert list(launch.recorded(self.cluster.workers)) == []

    def _heard(self, line: Line) -> None:
        self.lines.append(line)
        self.on_line(line)

    def said(self, rank: int, *, is_error: bool = False) -> list[str]:
        """Return a rank's lines."""
        return [line.text for line in self.lines if (line.rank, line.is_error) == (rank, is_error)]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Heard]:
    """Return a function that runs a script in processes here, as there are no hosts."""
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(launch, "namespace_command", lambda host: [])
    return lambda program: Heard(tmp_path, program)


def test_what_is_printed_is_told_with_its_host(runs: Runs) -> None:
    heard = runs(
        """
        print("one", rank)
        print("two")
        print("wrong", file=sys.stderr)
        sys.stdout.write("no end")
        """
    )
    assert heard.run() is None
    for rank in range(2):
        assert heard.said(rank) == [f"one {rank}", "two", "no end"]
        assert heard.said(rank, is_error=True) == ["wrong"]
    assert {(line.rank, line.host) for line in heard.lines} == {(0, "h1"), (1, "h2")}


def test_of_a_progress_bar_the_last_is_left_and_bytes_that_are_no_text_stop_nothing(runs: Runs) -> None:
    heard = runs(
        r"""
        sys.stdout.buffer.write(b"10%\r50%\r100%\ndos\r\n\xff\n")
        """
    )
    assert heard.run() is None
    assert heard.said(0) == ["100%", "dos", "\ufffd"]


def test_more_than_a_pipe_holds(runs: Runs) -> None:
    heard = runs(
        """
        for number in range(50_000):
            print(number)
        """
    )
    assert heard.run() is None
    assert heard.said(1) == [str(number) for number in range(50_000)]


def test_what_a_rank_has_left_behind_may_go_on_to_print(runs: Runs) -> None:
    heard = runs(
        """
        import subprocess
        if rank == "0":
            subprocess.Popen(["yes"])
        else:
            time.sleep(1)
            print("over")
        """
    )
    assert heard.run() is None
    assert heard.said(1) == ["over"]


def test_one_that_fails_ends_the_others(runs: Runs) -> None:
    heard = runs(
        """
        if rank == "1":
            raise ValueError("no such thing")
        time.sleep(1000)
        """
    )
    failure = heard.run()
    assert failure is not None
    assert (failure.rank, failure.host, failure.code, failure.exit_code) == (1, "h2", 1, 1)
    assert failure.words[0].startswith("Traceback")
    assert failure.words[-1] == "ValueError: no such thing"
    assert str(failure).startswith("h2 (rank 1) failed with exit code 1:\n  Traceback")


def test_who_went_wrong_first_counts_though_another_ended_first(runs: Runs, tmp_path: Path) -> None:
    seen, over = tmp_path / "seen", tmp_path / "over"
    heard = runs(
        f"""
        import atexit
        seen, over = {str(seen)!r}, {str(over)!r}
        def wait(path):
            while not os.path.exists(path):
                time.sleep(0.01)
        if rank == "0":
            atexit.register(wait, over)
            raise ValueError("the cause")
        wait(seen)
        raise RuntimeError("the other is gone")
        """
    )

    def on_line(line: Line) -> None:
        if line.rank == 0:
            seen.touch()  # so the other's comes later

    def on_look() -> None:
        if heard.ranks.running == 1:
            over.touch()

    heard.on_line = on_line
    failure = heard.run(on_look)
    assert "RuntimeError: the other is gone" in heard.said(1, is_error=True)
    assert failure is not None
    assert (failure.rank, failure.words[-1]) == (0, "ValueError: the cause")


def test_an_exit_code_and_a_signal_without_words(runs: Runs) -> None:
    failure = runs("if rank == '0': sys.exit(7)\ntime.sleep(1000)").run()
    assert failure == Failure(0, "h1", 7, ())
    assert str(failure) == "h1 (rank 0) failed with exit code 7: it said nothing on its standard error"
    killed = runs("if rank == '1': os.kill(os.getpid(), 9)\ntime.sleep(1000)").run()
    assert killed == Failure(1, "h2", -signal.SIGKILL, ())
    assert killed.exit_code == 137
    assert "h2 (rank 1) was ended by SIGKILL (the machine may have run out of memory)" in str(killed)


def test_of_many_lines_the_last_are_kept(runs: Runs) -> None:
    failure = runs("for n in range(500): print(n, file=sys.stderr)\nsys.exit(1)").run()
    assert failure is not None
    assert failure.words == tuple(str(number) for number in range(490, 500))


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_rank_has_started_ends_with_the_run(runs: Runs, code: int) -> None:
    heard = runs(
        f"""
        import subprocess
        print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
        sys.exit({code})
        """
    )
    started: list[ProcessId] = []
    heard.on_line = lambda line: started.append(ProcessId.of(int(line.text)))
    failure = heard.run()
    assert (failure is not None) == bool(code)
    assert started
    assert wait_until(lambda: not any(child.alive() for child in started), timeout_s=_LIMIT_S)


def test_one_that_does_not_hear_is_killed(runs: Runs) -> None:
    heard = runs(
        """
        import signal
        if rank == "0":
            signal.signal(signal.SIGTERM, lambda *_: print("heard it", flush=True))
            print("ready", flush=True)
            while True:
                time.sleep(0.1)
        sys.stdin.read()
        while not os.path.exists("ready"):
            time.sleep(0.01)
        sys.exit(2)
        """
    )

    def on_line(line: Line) -> None:
        if line.text == "ready":
            (heard.script.directory / "ready").touch()

    heard.on_line = on_line
    failure = heard.run()
    assert failure == Failure(1, "h2", 2, ())
    assert heard.said(0) == ["ready", "heard it"]  # and what it said meanwhile was heard


def test_an_interruption_ends_all(runs: Runs) -> None:
    heard = runs("print(os.getpid(), flush=True)\ntime.sleep(1000)")
    processes: list[ProcessId] = []
    heard.on_line = lambda line: processes.append(ProcessId.of(int(line.text)))

    def interrupt() -> None:
        if len(processes) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        heard.run(interrupt)
    assert not any(process.alive() for process in processes)


def test_it_starts_where_the_user_is_with_its_environment(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_USER", "yes")
    heard = runs("print(os.getcwd(), os.environ['OF_THE_USER'])")
    assert heard.run() is None
    assert heard.said(0) == [f"{heard.script.directory} yes"]
    assert os.getcwd() != str(heard.script.directory)


def test_what_an_error_of_ours_says_comes_first() -> None:
    words = (
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "train.py", line 5, in <module>',
        "[rank1]: host_agent.errors.MismatchError: the workers disagree about collective 0: ...",
    )
    first, *others = str(Failure(1, "h2", 1, words)).splitlines()
    assert first == "h2 (rank 1) failed with exit code 1: the workers disagree about collective 0: ..."
    assert others == [f"  {word}" for word in words]
    assert str(Failure(1, "h2", 1, words[:2])).splitlines()[0] == "h2 (rank 1) failed with exit code 1:"
