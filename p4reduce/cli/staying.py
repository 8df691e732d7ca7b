"""A cluster that a command brings up: it stays with a prompt, or runs on in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from p4reduce.cli import output
from p4reduce.cli.detached import start_detached
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.prompt import Prompt
from topologies import cleanup
from topologies.fabric import Fabric
from topologies.options import FabricOptions
from topologies.state import ClusterState, running

Prepare = Callable[[ClusterState], None]


def stay(
    options: FabricOptions, commands: Any, *, detach: bool, prepare: Prepare = lambda cluster: None
) -> None:
    """Bring a cluster up, `prepare` it, and keep it until its prompt, which takes `commands`, is left.

    `detach`: leave it running in a process of its own instead, without a prompt.
    """
    name = options.name
    if detach:
        options.validate()
        with ending_on_signals(), output.progress() as progress:
            start_detached(options, progress=progress)
        try:
            prepare(running(name))
        except BaseException:
            cleanup.take_down(running(name))  # as it is without `detach`
            raise
        output.say(f"cluster {name} is up: 'p4reduce down {name}' takes it down")
        return
    with ending_on_signals(), ExitStack() as stack:
        with output.progress() as progress:
            fabric = Fabric(options, progress=lambda text: progress(f"bringing up cluster {name}: {text}"))
            stack.enter_context(fabric)
        prepare(fabric.state)
        Prompt(fabric, commands).run()
