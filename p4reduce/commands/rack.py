"""`p4reduce up rack` and `p4reduce down`."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from p4reduce import output
from p4reduce.detached import let_go, start_detached
from p4reduce.failing import ending_on_signals
from p4reduce.options import ClusterOption, parse_host_kinds, parse_rate
from p4reduce.prompt import Prompt
from topologies import cleanup, state
from topologies.errors import TopologyError
from topologies.rack import Rack, RackOptions
from topologies.state import HostKind
from topologies.switches import SwitchTarget

app = typer.Typer(no_args_is_help=True, help="Bring a cluster up.")


@app.callback()
def group() -> None:
    """Bring a cluster up."""


@app.command("rack")
def rack(
    context: typer.Context,
    hosts: Annotated[int, typer.Option(min=2, max=32, help="Hosts on the switch.")] = 4,
    rate: Annotated[str, typer.Option(help="Link rate: 100mbit, 1gbit, none.")] = "none",
    mtu: Annotated[int, typer.Option(help="RoCE path MTU: 256, 512, 1024, 2048 or 4096.")] = 1024,
    switch: Annotated[SwitchTarget, typer.Option(help="What runs the P4 program.")] = SwitchTarget.EMBEDDED,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Name of the cluster.")] = "rack",
    pcap: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Capture each link into a file in DIR.")
    ] = None,
    delay_ms: Annotated[float, typer.Option(help="Delay of each link (needs netem in the kernel).")] = 0.0,
    loss: Annotated[float, typer.Option(help="Loss probability of each link (needs netem).")] = 0.0,
    switch_loss: Annotated[
        float, typer.Option(help="Loss probability in the embedded switch's ports.")
    ] = 0.0,
    host_kind: Annotated[
        str,
        typer.Option(
            metavar="KIND[,KIND...]",
            help="emulated, or roce: a machine with Linux's RoCE v2 stack; one for all, or a list.",
        ),
    ] = HostKind.EMULATED.value,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running and return.")] = False,
    hold: Annotated[bool, typer.Option("--hold", hidden=True)] = False,
) -> None:
    """A rack: hosts on one switch, with a controller; stays up with a prompt until you leave it."""
    options = RackOptions(
        name=cluster,
        hosts=hosts,
        switch=switch,
        path_mtu=mtu,
        rate_mbit=parse_rate(rate),
        delay_ms=delay_ms,
        loss=loss,
        switch_loss=switch_loss,
        pcap=None if pcap is None else pcap.absolute(),
        host_kinds=parse_host_kinds(host_kind, hosts=hosts),
    )
    if detach:
        options.validate()
        with output.progress() as progress:
            start_detached(options, progress=progress)
        output.say(f"cluster {cluster} is up: 'p4reduce down --cluster {cluster}' takes it down")
        return
    with ending_on_signals(), ExitStack() as stack:
        if hold:
            stack.enter_context(Rack(options, progress=output.note))
            let_go()
            while True:
                signal.pause()
        with output.progress() as progress:
            up = Rack(options, progress=lambda text: progress(f"bringing up cluster {cluster}: {text}"))
            stack.enter_context(up)
        Prompt(up, context.find_root().command).run()


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
