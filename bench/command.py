"""Common parts of the benchmarks: command lines, switches on this machine, tables, results."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from controller.config import Target
from p4reduce.workloads.machine import machine
from topologies import launch
from topologies.state import ClusterState
from topologies.switches import BMV2


def parser(doc: str | None, *, draws: bool = False) -> argparse.ArgumentParser:
    """Make a parser with --json, and with --table and --figure if a benchmark `draws`.

    `doc`: the module's docstring, whose first line describes the command.
    """
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    if draws:
        made.add_argument("--table", type=Path, metavar="FILE", help="write them as Markdown")
        made.add_argument("--figure", type=Path, metavar="FILE.svg", help="draw them")
    return made


def add_parts(parser: argparse.ArgumentParser, known: Iterable[str]) -> None:
    """Add --parts, whose names are `known`; the default is all of them."""
    there = tuple(known)

    def parts(text: str) -> list[str]:
        asked = text.split(",")
        for name in asked:
            if name not in there:
                raise argparse.ArgumentTypeError(f"there is no part {name!r}; there are {', '.join(there)}")
        return asked

    parser.add_argument("--parts", type=parts, default=list(there), help="comma-separated")


def targets(console: Console) -> list[Target]:
    """Return the switches that are here; say so if BMv2 is not."""
    if shutil.which(BMV2):
        return [Target.EMBEDDED, Target.BMV2]
    console.print(f"{BMV2} is not on the PATH: BMv2 is left out")
    return [Target.EMBEDDED]


def on_hosts(cluster: ClusterState, *words: str, **environment: str) -> list[Any]:
    """Run this benchmark with these words in each host, which has RANK and WORLD_SIZE; return their JSON."""
    module = f"bench.{Path(sys.argv[0]).stem}"
    common = {"PYTHONPATH": str(Path(__file__).parents[1]), "WORLD_SIZE": str(len(cluster.hosts))}
    processes = [
        launch.start(
            cluster,
            host,
            [sys.executable, "-m", module, *words],
            env={**common, "RANK": str(rank), **environment},  # bench is not installed
            stdout=subprocess.PIPE,
        )
        for rank, host in enumerate(cluster.hosts)
    ]
    try:
        said = [process.communicate()[0] for process in processes]
    finally:
        launch.stop(cluster, processes)
    if any(process.returncode for process in processes):
        raise SystemExit("a worker failed; what it said is above")
    return [json.loads(one) for one in said]


def table(title: str, words: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table for a terminal: columns of words, then of figures."""
    made = Table(title=title, title_justify="left")
    for heading in words:
        made.add_column(heading)
    for heading in figures:
        made.add_column(heading, justify="right")
    for row in rows:
        made.add_row(*row)
    return made


def markdown(words: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the same as Markdown for the docs, one line each."""
    ruler = ["---"] * len(words) + ["---:"] * len(figures)
    return [f"| {' | '.join(row)} |" for row in ([*words, *figures], ruler, *rows)]


def console(width: int) -> Console:
    """Return the terminal's console; a pipe has no width of its own."""
    return Console(width=None if sys.stdout.isatty() else width)


def write(path: Path | None, found: Mapping[str, Any]) -> None:
    """Write the results to `path`, if given, behind the machine and the command."""
    if path is not None:
        command = " ".join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
        whole = {"machine": machine(), "command": command, **found}
        path.write_text(json.dumps(whole, indent=1) + "\n")


def write_text(path: Path | None, text: Callable[[], str]) -> None:
    """Write a table or a drawing to `path`, if given."""
    if path is not None:
        path.write_text(text())
