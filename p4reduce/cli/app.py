"""The `p4reduce` command: its groups, and where every error ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from p4reduce.cli.failing import Signalled, guarded
from p4reduce.cli.loading import LazyGroup, Place


def _at(module: str, name: str, **context_settings: Any) -> Place:
    return Place(f"p4reduce.cli.commands.{module}", name, context_settings or None)


class Commands(LazyGroup):
    """All commands, in the order of `--help`: functions, and groups (`app`)."""

    places = {  # noqa: RUF012 (a ClassVar above)
        "demo": _at("demo", "demo"),
        "down": _at("down", "down"),
        "run": _at("headless", "run"),
        "compare": _at("compare", "compare"),
        "report": _at("report", "report"),
        "push": _at("push", "push"),
        "shell": _at("shell", "shell"),
        # Options behind the host's name are the command's own.
        "exec": _at("execute", "execute", ignore_unknown_options=True, allow_interspersed_args=False),
        "top": _at("top", "top"),
        "doctor": _at("doctor", "doctor"),
        "metrics": _at("metrics", "metrics"),
        "allreduce": _at("allreduce", "allreduce"),
        "replay": _at("replay", "replay"),
        "torch": _at("torch", "torch"),
        "scale": _at("scale", "scale"),
        "simulate-faults": _at("simulate_faults", "simulate_faults"),
        "plan": _at("desired", "plan"),
        "apply": _at("desired", "apply"),
        "rollback": _at("desired", "rollback"),
        "revisions": _at("desired", "revisions"),
        "up": _at("up", "app"),
        "job": _at("job", "app"),
        "show": _at("show", "app"),
        "certs": _at("certs", "app"),
        "link": _at("link", "app"),
        "fault": _at("fault", "app"),
    }


app = typer.Typer(
    cls=Commands,
    help="All-reduce inside the network: a P4 switch adds up the gradients of RoCE v2 workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_DEBUG = "--debug"


def _version(asked: bool) -> None:
    if asked:
        import hashlib
        import importlib.metadata

        import p4src

        program = hashlib.sha256(p4src.JSON_PATH.read_bytes()).hexdigest()[:12]
        typer.echo(f"p4reduce {importlib.metadata.version('p4reduce')} (P4 program {program})")
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, _DEBUG, help="Show the traceback of an error."),
    version: bool = typer.Option(
        False,
        "--version",
        callback=_version,
        is_eager=True,
        help="Show the version, and the hash of the P4 program.",
    ),
) -> None:
    """Options of every command."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name); its exit code. `--debug` may stand anywhere."""
    words = [word for word in arguments if word != _DEBUG]
    debug = len(words) < len(arguments)
    try:
        return guarded(lambda: app(args=words, prog_name="p4reduce"), debug=debug)
    except Signalled as end:
        return end.exit_code


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
