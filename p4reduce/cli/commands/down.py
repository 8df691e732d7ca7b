"""`p4reduce down`: clusters are taken down, what killed ones left is removed."""

from __future__ import annotations

from typing import Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.options import ClusterOption
from topologies import cleanup, state
from topologies.errors import TopologyError


def down(
    cluster: ClusterOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All clusters.")] = False,
) -> None:
    """Take a cluster down, and remove what killed ones left: processes, namespaces, veths, files."""
    if state.all_clusters():
        state.require_root()
    dead = cleanup.remove_dead()
    for name in dead:
        output.say(f"cluster {name}: removed what was left")
    if cluster is not None:
        found = state.load(cluster)
        if found is None and cluster not in dead:
            raise TopologyError(f"there is no cluster {cluster!r} to take down")
        chosen = [] if found is None else [found]
    else:
        chosen = state.all_clusters()
        if len(chosen) > 1 and not everything:
            names = ", ".join(one.name for one in chosen)
            raise TopologyError(f"more than one cluster is running ({names}): say --cluster NAME or --all")
    for one in chosen:
        cleanup.take_down(one)
        output.say(f"cluster {one.name}: down")
    if not chosen and not dead:
        output.say("no cluster is running")
