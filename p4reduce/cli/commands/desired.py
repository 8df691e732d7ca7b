"""`p4reduce plan`, `apply`, `rollback`, `revisions`: what the switches shall hold beyond what jobs need."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from controller.api import controller_pb2 as pb
from controller.api.errors import InvalidRequestError
from p4reduce.cli import output
from p4reduce.cli.commands.job import client
from p4reduce.cli.failing import EXIT_ERROR
from p4reduce.cli.options import ClusterOption, JsonFlag
from p4reduce.cli.output import Column, Row, named
from topologies.errors import TopologyError

EXIT_CHANGES = 2  # terraform plan's

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]", help="YAML or JSON; - is standard input. Without: what was applied last."
    ),
]

_SIGNS = {"add": ("+", "green"), "change": ("~", "yellow"), "delete": ("-", "red")}
_SETTINGS = ("drain", "quota")  # the controller's own
_REVISIONS = (
    Column("number", "revision", right=True),
    Column("applied_at", "applied", lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))),
    Column("current", "in force", lambda yes: "yes" if yes else ""),
    Column("document", "document", lambda text: _digest(text)),
)


def plan(
    file: File = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit with 2 where something would change.")
    ] = False,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """Show how the switches differ from a document, or from what was applied last (drift)."""
    document = _read(file)
    with client(cluster) as admin:
        report = _ask(file, lambda: admin.plan(document))
    row = report_row(report)
    if json:
        output.say_json(row)
    else:
        _show_changes(row)
        output.say(_planned(row))
    if detailed_exitcode and _has_changes(row):
        sys.exit(EXIT_CHANGES)


def apply(file: File = None, cluster: ClusterOption = None, json: JsonFlag = False) -> None:
    """Make the switches hold what a document says, and record it as a revision; again, it is a no-op."""
    document = _read(file)
    with client(cluster) as admin:
        report = _ask(file, lambda: admin.apply(document))
    _show_done(report_row(report), as_json=json)


def rollback(
    revision: Annotated[
        int | None,
        typer.Argument(
            metavar="[REVISION]", min=0, help="0: as before the first. Without: the one applied last."
        ),
    ] = None,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """Undo what was changed by hand, or a half-failed apply; with a number, go back to that revision."""
    with client(cluster) as admin:
        report = admin.rollback(revision)
    _show_done(report_row(report), as_json=json)


def revisions(
    number: Annotated[
        int | None, typer.Argument(metavar="[REVISION]", min=1, help="Show this one's document.")
    ] = None,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """List the revisions that were applied, and when; with a number, print that revision's document."""
    with client(cluster) as admin:
        rows = [
            named(revision, "number", "applied_at", "current", "document") for revision in admin.revisions()
        ]
    if number is None:
        output.show_rows(rows, _REVISIONS, title="Revisions", as_json=json)
        return
    chosen = next((row for row in rows if row["number"] == number), None)
    if chosen is None:
        raise TopologyError(f"there is no revision {number}: 'p4reduce revisions' lists them")
    if json:
        output.say_json(chosen)
    else:
        print(chosen["document"], end="" if chosen["document"].endswith("\n") else "\n")


def report_row(report: pb.PlanReport) -> Row:
    """Return a PlanReport as JSON has it."""
    switches: list[Row] = [
        {
            **named(switch, "name", "connected", "state", "unchanged"),
            "error": switch.error or None,
            "changes": [_change_row(change) for change in switch.changes],
        }
        for switch in report.switches
    ]
    settings = [_change_row(change) for change in report.settings]
    changes = [*settings, *(change for switch in switches for change in switch["changes"])]
    kinds = Counter(change["kind"] for change in changes)
    return {
        "revision": report.revision,
        "applied": report.applied,
        "summary": {
            **{kind: kinds[kind] for kind in _SIGNS},
            "drift": sum(change["drift"] for change in changes),
        },
        "settings": settings,
        "switches": switches,
    }


def _change_row(change: pb.Change) -> Row:
    return {
        "kind": pb.Change.Kind.Name(change.kind).lower(),
        **named(change, "what", "key"),
        "before": change.before or None,
        "after": change.after or None,
        **named(change, "drift", "applied"),
        "error": change.error or None,
    }


def _read(file: Path | None) -> str:
    """Read the document. An empty file wants nothing; no file means what was applied last."""
    if file is None:
        return ""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"cannot read {file}: it is not text in UTF-8") from error
    return text if text.strip() else "{}"


def _ask(file: Path | None, request: Callable[[], pb.PlanReport]) -> pb.PlanReport:
    """Return the answer; name the file in an error about the document."""
    try:
        return request()
    except InvalidRequestError as error:
        if file is None:
            raise
        name = "standard input" if str(file) == "-" else str(file)
        lines = str(error).splitlines()
        text = f"{name}, {lines[0]}" if len(lines) == 1 else "\n  ".join([f"{name} is wrong:", *lines])
        raise InvalidRequestError(text) from error


def _has_changes(row: Row) -> bool:
    return any(row["summary"][kind] for kind in _SIGNS)


def _show_changes(row: Row, *, done: bool = False) -> None:
    if row["settings"]:
        output.say("controller")
        for change in row["settings"]:
            _show_change(change, done=done)
    for switch in row["switches"]:
        if not switch["connected"]:
            output.note(
                f"{switch['name']} cannot be written now ({switch['state']}): it gets its part when it can"
            )
        if switch["changes"] or switch["error"]:
            output.say(switch["name"])
            for change in switch["changes"]:
                _show_change(change, done=done and switch["connected"])


def _show_change(change: Row, *, done: bool) -> None:
    sign, style = _SIGNS[change["kind"]]
    hand = "  (changed by hand)" if change["drift"] else ""
    missed = "" if not done or change["applied"] else f"  NOT DONE{_because(change['error'])}"
    values = [value for value in (change["before"], change["after"]) if value is not None]
    head = f"  {sign} {change['what']} {change['key']}"
    if change["what"] in _SETTINGS:
        output.say(f"{head}: {' => '.join(values)}{missed}", style=style)
        return
    output.say(f"{head}{hand}{missed}", style=style)
    output.say("      " + "\n      => ".join(values), style=style)


def _because(error: str | None) -> str:
    return f": {error}" if error else ""


def _planned(row: Row) -> str:
    if not _has_changes(row):
        return f"No changes: {_all(row)} as wanted. {_revision(row)}"
    count = row["summary"]
    drift = f" {count['drift']} of them because of changes by hand." if count["drift"] else ""
    return (
        f"Plan: {count['add']} to add, {count['change']} to change, {count['delete']} to delete.{drift} "
        f"{_revision(row)}"
    )


def _applied(row: Row) -> str:
    if not _has_changes(row):
        return _planned(row)
    count = row["summary"]
    return (
        f"Applied: {count['add']} added, {count['change']} changed, {count['delete']} deleted. "
        f"{_revision(row)}"
    )


def _show_done(row: Row, *, as_json: bool) -> None:
    if as_json:
        output.say_json(row)
    else:
        _show_changes(row, done=not row["applied"])
        if row["applied"]:
            output.say(_applied(row))
    for switch in row["switches"]:
        if switch["error"]:
            output.complain(switch["error"])
    if not row["applied"]:
        output.complain(
            f"not all of it was applied. {_revision(row)} 'p4reduce rollback' makes the switches hold "
            "that again"
        )
        sys.exit(EXIT_ERROR)


def _all(row: Row) -> str:
    away = sum(not switch["connected"] for switch in row["switches"])
    return "all switches that are there are" if away else "all switches are"


def _revision(row: Row) -> str:
    number = row["revision"]
    return f"Revision {number} is in force." if number else "Nothing has been applied so far."


def _digest(text: str) -> str:
    """Return the first line that says something."""
    lines = [line for line in text.splitlines() if line.strip()]
    return (lines[0] if len(lines) == 1 else f"{lines[0]} ... ({len(lines)} lines)") if lines else "(empty)"
