"""`p4reduce exec`: a command in a host of a running cluster."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.options import ClusterOption, complete_host
from topologies import launch, state
from topologies.errors import CommandError


def execute(
    host: Annotated[
        str,
        typer.Argument(
            metavar="HOST", help="The host's name, h1 for instance.", autocompletion=complete_host
        ),
    ],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to run there.")],
    cluster: ClusterOption = None,
) -> None:
    """Run a command in a host of the running cluster (a worker of your own, ip, tcpdump); its exit code."""
    cluster, words = _behind_the_host(cluster, command)
    running = state.running(cluster)
    try:
        sys.exit(launch.call(running, running.host(host), words))
    except CommandError as error:
        output.complain(f"{host}: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # the command had it too, and has ended
        sys.exit(130)


def _behind_the_host(cluster: str | None, words: list[str]) -> tuple[str | None, list[str]]:
    """Return the cluster, which may stand behind the host, and the command with all its own options."""
    if words[0] == "--cluster":
        cluster, words = (words[1] if len(words) > 1 else ""), words[2:]
    elif words[0].startswith("--cluster="):
        cluster, words = words[0].partition("=")[2], words[1:]
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise typer.BadParameter("there is no command: say what to run there", param_hint="COMMAND...")
    return cluster, words
