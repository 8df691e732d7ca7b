"""Wires with faults on purpose, for switches that have none: frames go from one interface to another.

    python -m soft_switch.wires --wire w-h1-eth0:w-s1-eth1 --wire ... --faults unix:/PATH

Wire k has port 2k at the first of its interfaces and port 2k + 1 at the second; faults are told as to a
switch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

from soft_switch.build import Stopped
from soft_switch.cli import EXIT_ERROR, until_signal
from soft_switch.dataplane import DataPlane
from soft_switch.errors import FaultError, ProgramError
from soft_switch.fault_control import FaultControl


def main(argv: Sequence[str] | None = None) -> int:
    """Run the wires until SIGTERM or SIGINT; return exit code 0 then, 2 if they could not be set up."""
    options = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    with until_signal() as wait:
        try:
            _run(options, wait)
        except Stopped:
            return 0
        except (OSError, FaultError, ProgramError) as error:
            print(f"wires: {error}", file=sys.stderr)
            return EXIT_ERROR
    return 0


def _run(options: argparse.Namespace, wait: Callable[[], None]) -> None:
    with closing(DataPlane()) as plane:
        plane.be_wires()
        for number, ends in enumerate(options.wire):
            for port, interface in enumerate(ends, start=2 * number):
                plane.attach(port, interface)
        plane.start()
        with FaultControl(options.faults, plane.faults):
            print(f"{len(options.wire)} wires are up", flush=True)
            wait()
        plane.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soft_switch.wires", description="Wires between interfaces, with faults on purpose."
    )
    parser.add_argument(
        "--wire",
        type=_wire,
        action="append",
        required=True,
        metavar="A:B",
        help="two interfaces whose frames come out of the other; may be repeated",
    )
    parser.add_argument(
        "--faults", required=True, metavar="ADDR", help="where faults can be told and listed: unix:/PATH"
    )
    return parser


def _wire(text: str) -> tuple[str, str]:
    a, colon, b = text.partition(":")
    if not (a and colon and b) or a == b:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, two interfaces")
    return a, b


if __name__ == "__main__":
    sys.exit(main())
