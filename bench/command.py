"""What the benchmarks' command lines have in common: where figures are shown, and what is written."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from p4reduce.workloads.machine import machine


def parser(doc: str | None, *, draws: bool = False) -> argparse.ArgumentParser:
    """With --json; with --table and --figure as well where a benchmark `draws`. `doc`: the module's."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    if draws:
        made.add_argument("--table", type=Path, metavar="FILE", help="write them as Markdown")
        made.add_argument("--figure", type=Path, metavar="FILE.svg", help="draw them")
    return made


def console(width: int) -> Console:
    """The terminal; a pipe has no width."""
    return Console(width=None if sys.stdout.isatty() else width)


def write(path: Path | None, found: Mapping[str, Any]) -> None:
    """What was found, if that is wanted, behind the machine and the command that it is of."""
    if path is not None:
        command = " ".join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
        whole = {"machine": machine(), "command": command, **found}
        path.write_text(json.dumps(whole, indent=1) + "\n")


def write_text(path: Path | None, text: Callable[[], str]) -> None:
    """A table or a drawing, if it is wanted."""
    if path is not None:
        path.write_text(text())
