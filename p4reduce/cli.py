"""The `p4reduce` command: its groups, and where every error ends."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

import typer

from p4reduce.commands import (
    allreduce,
    certs,
    compare,
    demo,
    desired,
    doctor,
    down,
    execute,
    fault,
    headless,
    job,
    link,
    metrics,
    push,
    replay,
    report,
    shell,
    show,
    simulate_faults,
    top,
    up,
)
from p4reduce.failing import Signalled, guarded

app = typer.Typer(
    help="All-reduce inside the network: a P4 switch adds up the gradients of RoCE v2 workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.add_typer(up.app, name="up")
app.command("down")(down.down)
app.command("run")(headless.run)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("push")(push.push)
app.command("shell")(shell.shell)
app.command(
    "exec",
    # Options behind the host's name are the command's own.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)(execute.execute)
app.add_typer(job.app, name="job")
app.add_typer(show.app, name="show")
app.add_typer(certs.app, name="certs")
app.add_typer(link.app, name="link")
app.add_typer(fault.app, name="fault")
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("metrics")(metrics.metrics)
app.command("allreduce")(allreduce.allreduce)
app.command("replay")(replay.replay)
app.command("simulate-faults")(simulate_faults.simulate_faults)
app.command("plan")(desired.plan)
app.command("apply")(desired.apply)
app.command("rollback")(desired.rollback)
app.command("revisions")(desired.revisions)

_DEBUG = "--debug"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"p4reduce {importlib.metadata.version('p4reduce')}")
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, _DEBUG, help="Show the traceback of an error."),
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
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
