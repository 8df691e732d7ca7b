"""The screen of several processes: their lines, with their hosts' names, above a status line."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Final, TextIO

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.reporting.quantities import rate
from p4reduce.workloads.torch_runs.ranks import Line
from p4reduce.workloads.torch_runs.running import Status

_COLOURS: Final = (
    36,
    33,
    32,
    35,
    34,
    31,
    96,
    93,
    92,
    95,
    94,
    91,
)  # SGR: foregrounds, bright ones after the others
_QUIET_MBIT_S: Final = 0.01
_CLEAR_LINE: Final = "\r\x1b[K"


class Screen:
    """The ranks' lines on stdout and stderr, as they sent them, and a status line if stderr is a terminal.

    With `only_stderr`, stdout is for something else.
    """

    def __init__(self, *, ranks: int, width: int, only_stderr: bool = False) -> None:
        self._places = {rank: _COLOURS[rank % len(_COLOURS)] for rank in range(ranks)}
        self._width = width  # of the ranks' names
        self._only_stderr = only_stderr
        self._status = ""
        self._has_status = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def line(self, line: Line) -> None:
        """Print a line that a rank has printed."""
        stream = sys.stderr if line.is_error or self._only_stderr else sys.stdout
        name = f"{line.host:<{self._width}}"
        if stream.isatty() and "NO_COLOR" not in os.environ:
            name = f"\x1b[{self._places[line.rank]}m{name}\x1b[0m"
        self._erase()
        try:
            stream.write(f"{name} | {line.text}\n")
            stream.flush()
        except BrokenPipeError as error:
            _forget(stream)
            raise WorkloadError("nobody reads what the script prints any more: it was ended") from error
        self._draw()

    def status(self, status: Status) -> None:
        """Show how the run goes."""
        words = _words(status)
        if self._has_status and words != self._status:
            self._erase()
            self._status = words
            self._draw()

    def close(self) -> None:
        """Erase the status line: the run is over."""
        self._erase()
        self._status = ""

    def _erase(self) -> None:
        if self._status:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

    def _draw(self) -> None:
        if self._status:
            sys.stderr.write(self._status[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()


def _words(status: Status) -> str:
    minutes, seconds = divmod(int(status.seconds), 60)
    text = f"{status.running} of {status.ranks} processes run, {minutes}:{seconds:02}"
    link, mbit_s = status.busiest or ("", 0.0)
    return f"{text}, {rate(mbit_s)} on {link}" if mbit_s >= _QUIET_MBIT_S else text


def _forget(stream: TextIO) -> None:
    """Point the stream at /dev/null: Python flushes its streams when it ends, and would complain again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
