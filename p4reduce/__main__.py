"""The console scripts: `p4reduce`, which is `python -m p4reduce` too, and `p4reduce-switch`."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

EXIT_INTERRUPTED = 130  # as shells report SIGINT
_EXIT_NOT_INSTALLED: Final = 69  # EX_UNAVAILABLE of sysexits.h
_OURS: Final = ("controller", "host_agent", "p4reduce", "p4src", "soft_switch", "topologies")


def main() -> None:
    """Run a command. Ctrl-C ends it without a traceback, also while modules are being imported."""
    try:
        try:
            from p4reduce.cli.app import main as run
        except ModuleNotFoundError as error:
            _end_without(error, "p4reduce")
        run()
    except KeyboardInterrupt:
        print("p4reduce: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def switch() -> int:
    """Run the embedded switch; return its exit status."""
    try:
        from soft_switch.cli import main as run
    except ModuleNotFoundError as error:
        _end_without(error, "p4reduce-switch")
    return run()


def _end_without(error: ModuleNotFoundError, program: str) -> NoReturn:
    """End the process with advice: without extras, only the agent and the PyTorch backend are installed.

    A missing module of ours is a bug, and is raised again.
    """
    if error.name is None or error.name.partition(".")[0] in _OURS:
        raise error
    print(
        f"{program}: this command needs {error.name}, which is not installed: pip install 'p4reduce[all]'",
        file=sys.stderr,
    )
    sys.exit(_EXIT_NOT_INSTALLED)


if __name__ == "__main__":
    main()
