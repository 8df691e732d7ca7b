"""Errors for people: one sentence on stderr and an exit code; a traceback only with --debug."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from p4reduce.cli.output import complain

EXIT_ERROR = 1
EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130  # as shells report SIGINT


class Signalled(BaseException):
    """The arrival of SIGTERM or SIGHUP: everything is to be cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def guarded(command: Callable[[], object], *, debug: bool) -> int:
    """Run `command`, turn whatever it raises (but Signalled) into a sentence, and return its exit code."""
    try:
        command()
    except SystemExit as end:
        return _exit_code(end)
    except KeyboardInterrupt:
        complain("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the outermost frame; --debug shows where it comes from)
        _trace(debug)
        if isinstance(error, _expected()):
            complain(str(error))
            return EXIT_ERROR
        complain(f"this is a bug: {type(error).__name__}: {error} (--debug shows where)")
        return EXIT_BUG
    return 0


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise Signalled on SIGTERM and SIGHUP while the block runs."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Signalled(number)

    old = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _expected() -> tuple[type[Exception], ...]:
    """Return the errors whose sentence is for people.

    They are imported late: a command that succeeds does not need their modules.
    """
    from controller.api.errors import ControllerError
    from controller.config import ConfigError
    from controller.security.files import TlsError
    from host_agent.errors import CommunicatorError
    from p4reduce.workloads.errors import WorkloadError
    from topologies.errors import TopologyError

    return TopologyError, WorkloadError, ControllerError, ConfigError, CommunicatorError, TlsError


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc()


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    complain(str(end.code))
    return EXIT_ERROR
