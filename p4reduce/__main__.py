"""`python -m p4reduce` is `p4reduce`."""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130  # as shells report SIGINT


def main() -> None:
    """The console script. Ctrl-C ends it without a traceback, also while modules are being imported."""
    try:
        from p4reduce.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("p4reduce: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
