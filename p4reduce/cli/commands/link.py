"""`p4reduce link`: taking links between switches down, and up again."""

from __future__ import annotations

from typing import Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.loading import group
from p4reduce.cli.options import ClusterOption
from topologies import state, wires
from topologies.errors import TopologyError

app = group(
    no_args_is_help=True,
    help="Take links between switches down, and up again; 'p4reduce show links' has them.",
)

Link = Annotated[str, typer.Argument(metavar="LINK", help="The link of two switches: l1:s2.")]


@app.command("down")
def down(link: Link, cluster: ClusterOption = None) -> None:
    """Take a link down, both ends: it carries nothing until it is up again."""
    _set(link, cluster, up=False)


@app.command("up")
def up(link: Link, cluster: ClusterOption = None) -> None:
    """Take a link up again."""
    _set(link, cluster, up=True)


def _set(name: str, cluster: str | None, *, up: bool) -> None:
    running = state.running(cluster)
    if host := running.host_link(name):
        what = "up" if up else "down"
        raise TopologyError(f"{name} is a host's link: 'p4reduce fault link {what} {host}' takes it {what}")
    link = running.link(name)
    wires.set_link(running, link, up=up)
    output.say(f"link {link.name}: {'up' if up else 'down'}")
