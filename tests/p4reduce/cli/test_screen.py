"""Several processes' lines, and the one that says how it goes."""

from __future__ import annotations

import io
import os
import sys

import pytest

from p4reduce.cli.screen import Screen
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.torch_runs.ranks import Line
from p4reduce.workloads.torch_runs.running import Status


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stdout and stderr the same terminal, 60 columns wide, and return it."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return screen


def test_in_files_there_are_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(ranks=2, width=3)
    screen.status(Status(2, 2, 1.0, None))
    screen.line(Line(0, "h1", "[bold]step 1[/bold]", is_error=False))
    screen.line(Line(1, "h10", "oh", is_error=True))
    screen.close()
    told = capsys.readouterr()
    assert told.out == "h1  | [bold]step 1[/bold]\n"
    assert told.err == "h10 | oh\n"


def test_stdout_can_be_for_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(ranks=2, width=2, only_stderr=True).line(Line(0, "h1", "x", is_error=False))
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "h1 | x\n")


def test_on_a_terminal_one_line_stays_below(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    screen = Screen(ranks=2, width=2)
    screen.status(Status(2, 2, 61.5, ("h2:s1", 97.25)))
    below = "2 of 2 processes run, 1:01, 97.2 Mbit/s on h2:s1"
    assert terminal.getvalue() == below
    screen.line(Line(1, "h2", "step 1", is_error=False))
    assert terminal.getvalue() == f"{below}\r\x1b[K\x1b[33mh2\x1b[0m | step 1\n{below}"
    screen.close()
    assert terminal.getvalue().endswith(f"{below}\r\x1b[K")


def test_it_is_drawn_again_only_when_it_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    screen = Screen(ranks=1, width=2)
    for seconds, busiest in ((1.0, None), (1.2, ("h1:s1", 0.0)), (1.4, None)):
        screen.status(Status(1, 1, seconds, busiest))
    assert terminal.getvalue() == "1 of 1 processes run, 0:01"
    screen.status(Status(1, 1, 2.0, None))
    assert terminal.getvalue() == "1 of 1 processes run, 0:01\r\x1b[K1 of 1 processes run, 0:02"


def test_it_stays_one_line_and_colours_can_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "12")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(ranks=1, width=2)
    screen.line(Line(0, "h1", "x", is_error=False))
    screen.status(Status(1, 1, 2.0, None))
    assert terminal.getvalue() == "h1 | x\n1 of 1 proc"


def test_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(WorkloadError, match="nobody reads what the script prints any more"):
            Screen(ranks=1, width=2).line(Line(0, "h1", "x", is_error=False))
