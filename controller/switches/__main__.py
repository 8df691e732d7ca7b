"""Puts a program into a switch: python -m controller.switches HOST:PORT --program FILE --p4info FILE."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from controller.api.errors import ControllerError
from controller.security.files import tls_for_switches
from controller.switches.pipeline import Program, push_to


def main() -> None:
    """Push the program; print an error to stderr in one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--device-id", type=int, default=1)
    parser.add_argument("--program", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--p4info", type=Path, required=True, metavar="FILE.txtpb")
    given = parser.parse_args()
    try:
        program = Program.read(given.program, given.p4info)
        asyncio.run(
            push_to(given.address, device_id=given.device_id, program=program, tls=tls_for_switches())
        )
    except ControllerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
