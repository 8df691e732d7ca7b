"""`p4reduce down`: clusters are taken down, what killed ones left is removed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.options import ClusterOption, complete_cluster
from topologies import cleanup, processes, state
from topologies.errors import TopologyError
from topologies.state import ClusterState


def down(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The cluster's name.", autocompletion=complete_cluster),
    ] = None,
    cluster: ClusterOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All clusters, whoever brought them up.")] = False,
) -> None:
    """Take a cluster down, and remove what killed ones left: processes, namespaces, veths, files.

    Without a name: the one that this terminal or script has brought up. Of another one it asks first.
    """
    if state.all_clusters():
        state.require_root()
    dead = cleanup.remove_dead()
    for one in dead:
        output.say(f"cluster {one}: removed what was left")
    chosen = _chosen(name or cluster, everything=everything, dead=dead)
    for found in chosen:
        cleanup.take_down(found)
        output.say(f"cluster {found.name}: down")


def _chosen(name: str | None, *, everything: bool, dead: list[str]) -> list[ClusterState]:
    running = state.all_clusters()
    if name is not None:
        found = state.load(name)
        if found is None and name not in dead:
            there = ", ".join(one.name for one in running)
            raise TopologyError(
                f"there is no cluster {name!r} to take down{f': there is {there}' if there else ''}"
            )
        return [] if found is None else [found]
    if not running and not dead:
        output.say("no cluster is running")
    if everything:
        return running
    here = processes.session()
    own = [one for one in running if one.session == here]
    if len(own) == 1:
        return own
    if len(running) > 1:
        listed = ", ".join(one.name for one in own or running)
        raise TopologyError(
            f"more than one cluster is running ({listed}): say 'p4reduce down NAME', or --all"
        )
    return [one for one in running if _agreed(one)]


def _agreed(cluster: ClusterState) -> bool:
    """Ask whether to take down a cluster that was brought up elsewhere.

    Raise TopologyError if nobody can be asked.
    """
    elsewhere = (
        f"cluster {cluster.name} was brought up in another terminal, by {cluster.started_by or 'somebody'}"
    )
    if not sys.stdin.isatty():
        raise TopologyError(f"{elsewhere}: 'p4reduce down {cluster.name}' takes it down all the same")
    return typer.confirm(f"{elsewhere}. Take it down?", err=True)
