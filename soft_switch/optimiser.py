"""A quickly compiled program runs at once; the optimised one is compiled behind it and takes its place.

The two differ only in speed: they are made from the same source, and work on the same state.
SOFT_SWITCH_COMPILE says what a load does with a program that is not in the cache:

- `tiered`: big programs start with the quick version (the default),
- `wait`: a load ends when the optimised version is there, as for small programs,
- `quick`: there is no optimised version.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from soft_switch.build import OPTIMISED, QUICK, Stop, Stopped, Tier, build_program, find_program
from soft_switch.errors import ProgramError

VARIABLE = "SOFT_SWITCH_COMPILE"
MODES = ("tiered", "wait", "quick")
# Programs with less source are compiled in no time.
BIG = 60_000


def mode() -> str:
    """Return the mode that SOFT_SWITCH_COMPILE names."""
    value = os.environ.get(VARIABLE) or MODES[0]
    if value not in MODES:
        raise ProgramError(f"{VARIABLE} is {value!r}: it has to be one of {', '.join(MODES)}")
    return value


def first_library(source: str, *, wait: bool) -> tuple[Path, Tier]:
    """Return the library to start with, compiled if need be, and its tier."""
    chosen = mode()
    if chosen == "quick" and not wait:
        return build_program(source, QUICK), QUICK
    if chosen == "tiered" and not wait and len(source) >= BIG:
        kept = find_program(source, OPTIMISED)
        return (build_program(source, QUICK), QUICK) if kept is None else (kept, OPTIMISED)
    return build_program(source, OPTIMISED), OPTIMISED


class Optimiser:
    """Compilation of the optimised version of a program, in a thread."""

    def __init__(self, source: str, done: Callable[[Path], None], log: logging.Logger) -> None:
        self._source = source
        self._done = done
        self._log = log
        self._stop = Stop()
        self._thread = threading.Thread(target=self._run, name="soft_switch optimiser", daemon=True)

    def start(self) -> None:
        """Start the thread, which calls `done` with the library."""
        _running.add(self)
        self._thread.start()

    def cancel(self) -> None:
        """End the compiler, if it runs, and wait for the thread."""
        self._stop.requested = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is done (or has given up); return whether it is."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            library = build_program(self._source, OPTIMISED, self._stop)
            self._stop.check()
            self._done(library)
        except Stopped:
            return
        except (ProgramError, OSError) as error:
            self._log.warning("the program stays as it is, not optimised: %s", error)


_running: weakref.WeakSet[Optimiser] = weakref.WeakSet()


@atexit.register
def _cancel_all() -> None:
    """Cancel all compilers, so that a process that leaves data planes open leaves no compiler behind."""
    for optimiser in list(_running):
        optimiser.cancel()
