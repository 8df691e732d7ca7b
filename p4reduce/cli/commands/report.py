"""`p4reduce report`: what a run says, as a page and as tables."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.options import JsonFile
from topologies.errors import TopologyError


def report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="What compare or replay wrote with --json.")],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; without --csv and --json, RUN's name with .html."),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="A row a strategy into FILE.csv (-: stdout); all tables into DIR (has no dot).",
        ),
    ] = None,
    json_file: JsonFile = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write a run as one HTML page that needs no network, as CSV and JSON; say whether in-network pays."""
    from p4reduce.workloads import run_file
    from p4reduce.workloads.reporting import exports
    from p4reduce.workloads.reporting.page import page
    from p4reduce.workloads.reporting.reading import checked
    from p4reduce.workloads.reporting.verdict import verdict

    if [str(target) for target in (html, csv, json_file)].count("-") > 1:
        raise typer.BadParameter("standard output takes one of --html, --csv and --json")
    run = checked(run_file.read(path))
    if html is None and (show or (csv is None and json_file is None)):
        html = path.with_suffix(".html")
    targets = [target for target in (html, csv, json_file) if target is not None]
    for target in targets:
        _require(target, source=path, directory=target is csv and _is_directory(csv))
    if html is not None:
        output.write_text(html, page(run))
    if csv is not None and _is_directory(csv):
        exports.write_tables(run, csv)
    elif csv is not None:
        output.write_text(csv, exports.csv_text(run))
    if json_file is not None:
        output.write_json(json_file, exports.summary(run))
    found = verdict(run)
    say = output.note if Path("-") in targets else output.say
    say(found.headline)
    for text in (*found.reasons, *found.cautions):
        say(f"  {text}")
    for target in targets:
        if str(target) != "-":
            output.note(f"written: {target}")
    if show and html is not None and str(html) != "-" and not webbrowser.open(html.absolute().as_uri()):
        output.note(f"no browser was found here: open {html} yourself")


def _require(target: Path, *, source: Path, directory: bool) -> None:
    """Raise TopologyError if a target cannot be written, before any of them is."""
    if target.resolve() == source.resolve():
        raise TopologyError(f"{target} is the run itself: give the report another name")
    if not directory:
        output.require_writable(target)


def _is_directory(path: Path) -> bool:
    """Return whether a path is a directory, or is to be one: a name without a suffix is no file's."""
    return path.is_dir() or (str(path) != "-" and not path.suffix)
