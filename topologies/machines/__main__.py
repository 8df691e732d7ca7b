"""`python -m topologies.machines`: build the image, unless it is in the cache.

Exit code 69 (EX_UNAVAILABLE of sysexits.h): RoCE hosts cannot run here, or a package registry cannot be
reached. 130: it was interrupted.
"""

from __future__ import annotations

import os
import signal
import sys

from topologies.errors import TopologyError, UnsupportedError
from topologies.machines import image, machine


def main() -> int:
    """Build the image; print an error in one sentence, and return the exit code."""
    try:
        machine.require_programs()
        built = image.build(progress=lambda text: print(f"== {text}", flush=True))
    except TopologyError as error:
        print(f"p4reduce: {error}", file=sys.stderr)
        return os.EX_UNAVAILABLE if isinstance(error, UnsupportedError) else 1
    except KeyboardInterrupt:
        print("p4reduce: interrupted; nothing of the image is left", file=sys.stderr)
        return 128 + signal.SIGINT
    print(f"== the image of the RoCE hosts is {built.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
