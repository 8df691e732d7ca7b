"""`p4reduce top`: a running cluster, live."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.options import ClusterOption, JsonFlag
from topologies import state
from topologies.errors import TopologyError

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 3600.0


def top(
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            "-i",
            min=MIN_INTERVAL_S,
            max=MAX_INTERVAL_S,
            metavar="SECONDS",
            help="From one reading to the next.",
        ),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one reading as plain text, and end.")] = False,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """Show a running cluster live: jobs, flows, slots, links, hosts, and what goes wrong.

    With --once or --json it reads twice, --interval apart, since rates need two readings.
    """
    # Not before: the other commands do without Textual.
    from p4reduce.live.asking import Asker

    name = state.controlled(cluster).name
    if once or json:
        from p4reduce.live.columns import frame
        from p4reduce.live.view import view

        with Asker(name, sparing=False) as asker:
            asker.ask()
            time.sleep(interval)
            seen = view(asker.ask())
        if json:
            output.say_json({"interval_s": interval, **seen.to_json()})
        else:
            print(frame(seen))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise TopologyError("'p4reduce top' needs a terminal: use --once or --json where there is none")
    from p4reduce.live.app import Top

    with Asker(name) as asker:
        Top(asker, interval_s=interval).run()
