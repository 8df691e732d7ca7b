"""`p4reduce shell`: p4runtime-shell on a running switch."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.options import ClusterOption, complete_switch
from topologies import p4runtime_shell, state


def shell(
    switch: Annotated[
        str,
        typer.Argument(
            metavar="SWITCH", help="The switch's name, s1 for instance.", autocompletion=complete_switch
        ),
    ],
    election_id: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**64 - 1,
            help="Above the controller's: takes its place. If not given, a free one: reads beside it.",
        ),
    ] = None,
    script: Annotated[
        str | None, typer.Option("--command", "-c", help="Run this Python code in the shell, then exit.")
    ] = None,
    cluster: ClusterOption = None,
) -> None:
    """Open p4runtime-shell on a running switch (installed in an environment of its own on first use)."""
    running = state.running(cluster)
    chosen = running.switch(switch)
    with output.progress() as progress:
        python = p4runtime_shell.environment(progress=progress)
    with ending_on_signals():
        sys.exit(p4runtime_shell.run(python, running, chosen, election_id=election_id, script=script))
