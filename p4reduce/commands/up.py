"""`p4reduce up`: a rack, a spine-leaf fabric, or what a cluster file describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from controller.config import Spread, Target
from p4reduce.fabric_options import PathMtu, Rate, Switch, Tls, UplinkRate
from p4reduce.options import parse_host_counts, parse_host_kinds, parse_rate
from p4reduce.staying import stay
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions
from topologies.state import HostKind

_FILE = "file"
_FILE_ENDINGS = (".yaml", ".yml", ".json")


class UpGroup(TyperGroup):
    """`up CLUSTER.yaml` is `up file CLUSTER.yaml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0].endswith(_FILE_ENDINGS):
            args = [_FILE, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(no_args_is_help=True, cls=UpGroup, help="Bring a cluster up.")

Name = Annotated[str, typer.Option("--cluster", metavar="NAME", help="Name of the cluster.")]
Pcap = Annotated[Path | None, typer.Option(metavar="DIR", help="Capture each link into a file in DIR.")]
DelayMs = Annotated[float, typer.Option(help="Delay of each link (needs netem in the kernel).")]
Loss = Annotated[float, typer.Option(help="Loss probability of each link (needs netem).")]
SwitchLoss = Annotated[float, typer.Option(help="Loss probability in the embedded switches' ports.")]
FaultWires = Annotated[
    bool,
    typer.Option(
        "--fault-wires", help="Put a wire into each link, so that 'fault packets' works with BMv2 too."
    ),
]
Kinds = Annotated[
    str,
    typer.Option(
        "--host-kind",
        metavar="KIND[,KIND...]",
        help="emulated, or roce: a machine with Linux's RoCE v2 stack; one for all, or a list.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Leave it running and return.")]
Hold = Annotated[bool, typer.Option("--hold", hidden=True)]
ControllerOptions = Annotated[str, typer.Option("--controller-options", hidden=True)]


@app.callback()
def group() -> None:
    """Bring a cluster up: 'up rack', 'up spine-leaf', or 'up CLUSTER.yaml'."""


@app.command("rack")
def rack(
    context: typer.Context,
    hosts: Annotated[int, typer.Option(min=2, max=32, help="Hosts on the switch.")] = 4,
    rate: Rate = "none",
    mtu: PathMtu = 1024,
    switch: Switch = Target.EMBEDDED,
    cluster: Name = "rack",
    pcap: Pcap = None,
    delay_ms: DelayMs = 0.0,
    loss: Loss = 0.0,
    switch_loss: SwitchLoss = 0.0,
    fault_wires: FaultWires = False,
    host_kind: Kinds = HostKind.EMULATED.value,
    tls: Tls = False,
    detach: Detach = False,
    hold: Hold = False,
    controller_options: ControllerOptions = "{}",
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
        fault_wires=fault_wires,
        pcap=_absolute(pcap),
        tls=tls,
        host_kinds=parse_host_kinds(host_kind, hosts=hosts),
        controller_options=json.loads(controller_options),
    )
    stay(options, _commands(context), detach=detach, hold=hold)


@app.command("spine-leaf")
def spine_leaf(
    context: typer.Context,
    spines: Annotated[int, typer.Option(min=1, max=4, help="Spines.")] = 2,
    leaves: Annotated[int, typer.Option(min=1, max=8, help="Leaves: the switches of the racks.")] = 2,
    hosts: Annotated[
        str, typer.Option(metavar="N|N,N...", help="Hosts, 2 to 64: in all, or a number for each leaf.")
    ] = "8",
    rate: Rate = "none",
    uplink_rate: UplinkRate = None,
    spread_over: Annotated[
        Spread | None,
        typer.Option(
            "--spread", help="What takes turns between the spines: jobs, or the messages of each job."
        ),
    ] = None,
    mtu: PathMtu = 1024,
    switch: Switch = Target.EMBEDDED,
    cluster: Name = "spine-leaf",
    pcap: Pcap = None,
    delay_ms: DelayMs = 0.0,
    loss: Loss = 0.0,
    switch_loss: SwitchLoss = 0.0,
    fault_wires: FaultWires = False,
    host_kind: Kinds = HostKind.EMULATED.value,
    tls: Tls = False,
    detach: Detach = False,
    hold: Hold = False,
    controller_options: ControllerOptions = "{}",
) -> None:
    """Racks whose switches have an uplink to each spine; stays up with a prompt until you leave it."""
    counts = parse_host_counts(hosts, leaves=leaves)
    total = counts if isinstance(counts, int) else sum(counts)
    options = SpineLeafOptions(
        name=cluster,
        spines=spines,
        leaves=leaves,
        hosts=counts,
        switch=switch,
        path_mtu=mtu,
        rate_mbit=parse_rate(rate),
        uplink_rate_mbit="rate" if uplink_rate is None else parse_rate(uplink_rate),
        delay_ms=delay_ms,
        loss=loss,
        switch_loss=switch_loss,
        fault_wires=fault_wires,
        pcap=_absolute(pcap),
        tls=tls,
        host_kinds=parse_host_kinds(host_kind, hosts=total),
        controller_options={
            **json.loads(controller_options),
            **({} if spread_over is None else {"spread": spread_over.value}),
        },
    )
    stay(options, _commands(context), detach=detach, hold=hold)


@app.command(_FILE)
def file(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CLUSTER.yaml", help="A cluster file.")],
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Another name than the file's.")
    ] = None,
    tls: Tls = False,
    detach: Detach = False,
) -> None:
    """What a cluster file describes, with its jobs created; 'up CLUSTER.yaml' for short.

    Workloads are not run: 'p4reduce run' does that.
    """
    from workloads.cluster_reading import read
    from workloads.scenario import create_jobs

    described = read(path)
    options = described.fabric_options(name=cluster, tls=tls)
    stay(
        options,
        _commands(context),
        detach=detach,
        hold=False,
        prepare=lambda running: create_jobs(running, described),
    )


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _commands(context: typer.Context) -> Any:
    return context.find_root().command
