"""Output of commands: tables and progress for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from p4reduce.cli.fitting import Column as Column  # commands have it from here
from p4reduce.cli.fitting import fitted
from topologies.errors import TopologyError

_PIPE_WIDTH = 200  # a pipe has no width: tables are not to be cut at 80 columns

Row = dict[str, Any]
Say = Callable[[str], None]


def named(source: object, *names: str) -> Row:
    """Return these attributes of `source` as a row with the same names."""
    return {name: getattr(source, name) for name in names}


def complain(text: str) -> None:
    """Print an error on stderr."""
    _console(stderr=True).print(
        f"p4reduce: {text}", style="red", markup=False, highlight=False, soft_wrap=True
    )


def say(text: str, *, style: str | None = None) -> None:
    """Print a sentence on stdout."""
    _console().print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def say_line(text: str) -> None:
    """Print a sentence on stdout, of which a terminal shows as much as fits a line."""
    _console().print(text, markup=False, highlight=False, no_wrap=True, overflow="ellipsis")


def note(text: str, *, style: str | None = None) -> None:
    """Print on stderr a remark that is not what was asked for."""
    _console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show(renderable: RenderableType) -> None:
    """Print something of Rich on stdout."""
    _console().print(renderable)


def show_rows(
    rows: Sequence[Row],
    columns: Sequence[Column],
    *,
    title: str,
    as_json: bool,
    hint: str = "",
    instead: Callable[[], Iterable[str]] | None = None,
) -> None:
    """Print a table that fits, or as JSON the list of its rows with all their keys.

    `hint`: why there may be no rows. `instead`: lines in place of a table that has too many columns to fit.
    """
    if as_json:
        say_json(list(rows))
        return
    if not rows:
        say(f"{title}: none{hint}")
        return
    console = _console()
    found = fitted(title, columns, rows, console)
    if instead is not None and (found.left_out or not found.fits):
        say(title)
        for line in instead():
            say(line)
        return
    console.print(found.table)
    if found.shared:
        say(found.shared if len(rows) == 1 else f"in all rows: {found.shared}")
    if found.left_out:
        say(f"no room for {', '.join(found.left_out)}: a wider terminal or --json shows them")


def say_json(value: Any) -> None:
    """Print JSON on stdout."""
    print(json.dumps(value, indent=2))


def write_json(path: Path, value: Any) -> None:
    """Write JSON into a file; `-` is stdout."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text into a file; `-` is stdout. Raise TopologyError if it cannot be written."""
    if str(path) == "-":
        print(text, end="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"cannot write {path}: {error.strerror}") from error


def result(value: Any, shown: RenderableType, *, json_file: Path | None) -> None:
    """Write JSON into a file if one is given, and print a table on stdout unless the JSON is there."""
    if json_file is not None:
        write_json(json_file, value)
    if str(json_file) != "-":
        show(shown)


def require_writable(path: Path | None) -> None:
    """Raise TopologyError before a long run whose result could not be written."""
    if path is None or str(path) == "-":
        return
    directory = path.absolute().parent
    if path.is_dir() or not directory.is_dir() or not os.access(directory, os.W_OK):
        raise TopologyError(f"cannot write {path}: give the name of a file in a directory that exists")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on stderr what is going on: a line a phase.

    "phase: detail" stays one line.
    """
    console = _console(stderr=True)
    if not console.is_terminal:
        yield note
        return
    with Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
    ) as bar:
        phases = _Phases(bar)
        yield phases.enter
        phases.finish()


class _Phases:
    """Phases one after the other, a task each."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._phase = ""
        self._task: TaskID | None = None

    def enter(self, text: str) -> None:
        phase = text.partition(":")[0]
        if self._task is not None and phase == self._phase:
            self._bar.update(self._task, description=text)
            return
        self.finish()
        self._phase = phase
        self._task = self._bar.add_task(text, total=1)

    def finish(self) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=1, description=self._phase)


def _console(*, stderr: bool = False) -> Console:
    """Make a console anew, so that it writes to what is stdout now."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH)
