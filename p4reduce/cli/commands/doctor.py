"""`p4reduce doctor`: what a job waits for, and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.options import ClusterOption, JsonFlag
from topologies import cleanup, state
from topologies.errors import TopologyError
from topologies.state import ClusterState

EXIT_FOUND = 1


def doctor(
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Only this job, and what it may suffer from.")
    ] = None,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """Say in plain words what waits for whom, why, and what to do: for a job that is stuck or slow.

    Looks twice, within some tenths of a second, at workers, switches, links and controller, whatever of them
    still answers. Exits with 0 where all is well, 1 where something was found.
    """
    from p4reduce.doctor import words
    from p4reduce.doctor.diagnosis import diagnose
    from p4reduce.doctor.observations import gather

    known = _find(cluster)
    found = diagnose(gather(known), job)
    if json:
        output.say_json({"cluster": known.name, **found.to_json()})
    else:
        for line, style in words.lines(found):
            output.say(line, style=style or None)
        if not found.is_healthy and sum(other.alive() for other in state.all_clusters()) > 1:
            output.say(f"More than one cluster is running: these commands take --cluster {known.name}.")
    if not found.is_healthy:
        raise typer.Exit(EXIT_FOUND)


def _find(name: str | None) -> ClusterState:
    """Return the running cluster. Raise TopologyError with what is left of one that was killed."""
    try:
        return state.controlled(name)
    except TopologyError:
        dead = [c for c in state.all_clusters() if not c.alive() and name in (None, c.name)]
        if len(dead) != 1:
            raise
        left = sum(process.alive() for process in cleanup.processes(dead[0]))
        raise TopologyError(
            f"cluster {dead[0].name} does not run any more: its process ({dead[0].owner.pid}) was killed, "
            f"and {left} that it had started still run. 'p4reduce down {dead[0].name}' "
            "ends them and removes what is left"
        ) from None
