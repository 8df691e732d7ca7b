"""`p4reduce up`: a rack, a spine-leaf fabric, or what a cluster file describes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from controller.config import Spread, Target
from p4reduce.cli import fabric_options as fabrics
from p4reduce.cli.loading import PlainGroup, group
from p4reduce.cli.options import (
    OtherName,
    P4InfoFile,
    ProgramFile,
    parse_host_counts,
    parse_host_kinds,
    parse_intra_rate,
    parse_rate,
    parse_uplink_rate,
)
from p4reduce.cli.staying import stay
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions
from topologies.state import HostKind

_FILE = "file"
_FILE_ENDINGS = (".yaml", ".yml", ".json")


class UpGroup(PlainGroup):
    """A group in which `up CLUSTER.yaml` is `up file CLUSTER.yaml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0].endswith(_FILE_ENDINGS):
            args = [_FILE, *args]
        return super().resolve_command(ctx, args)


app = group(no_args_is_help=True, cls=UpGroup, help="Bring a cluster up.")

Name = Annotated[str, typer.Option("--cluster", metavar="NAME", help="Name of the cluster.")]
Detach = Annotated[bool, typer.Option("--detach", help="Leave it running and return.")]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The options of both kinds of fabric."""

    mtu: fabrics.PathMtu = 1024
    switch: fabrics.Switch = Target.EMBEDDED
    gpus_per_host: fabrics.GpusPerHost = 1
    intra_rate: fabrics.IntraRate = None
    pcap: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Capture each link into a file in DIR.")
    ] = None
    delay_ms: Annotated[float, typer.Option(help="Delay of each link (needs netem in the kernel).")] = 0.0
    loss: Annotated[float, typer.Option(help="Loss probability of each link (needs netem).")] = 0.0
    switch_loss: Annotated[float, typer.Option(help="Loss probability in the embedded switches' ports.")] = (
        0.0
    )
    fault_wires: Annotated[
        bool,
        typer.Option(
            "--fault-wires", help="Put a wire into each link, so that 'fault packets' works with BMv2 too."
        ),
    ] = False
    host_kind: Annotated[
        str,
        typer.Option(
            "--host-kind",
            metavar="KIND[,KIND...]",
            help="emulated, or roce: a machine with Linux's RoCE v2 stack; one for all, or a list.",
        ),
    ] = HostKind.EMULATED.value
    tls: fabrics.Tls = False
    program: ProgramFile = None
    p4info: P4InfoFile = None
    detach: Detach = False

    def common(self, *, rate: str, hosts: int, spread: Spread | None = None) -> dict[str, Any]:
        """Return what FabricOptions take of these options."""
        return {
            "switch": self.switch,
            "path_mtu": self.mtu,
            "rate_mbit": parse_rate(rate),
            "gpus_per_host": self.gpus_per_host,
            "intra_rate_mbit": parse_intra_rate(self.intra_rate),
            "delay_ms": self.delay_ms,
            "loss": self.loss,
            "switch_loss": self.switch_loss,
            "fault_wires": self.fault_wires,
            "pcap": None if self.pcap is None else self.pcap.absolute(),
            "tls": self.tls,
            "program": self.program,
            "p4info": self.p4info,
            "host_kinds": parse_host_kinds(self.host_kind, hosts=hosts),
            "controller_options": {} if spread is None else {"spread": spread.value},
        }


@app.command("rack")
@fabrics.grouped
def rack(
    context: typer.Context,
    *,
    hosts: Annotated[int, typer.Option(min=2, max=32, help="Hosts on the switch.")] = 4,
    rate: fabrics.Rate = "none",
    cluster: Name = "rack",
    wanted: Wanted,
) -> None:
    """Launch a rack: hosts on one switch, with a controller; it stays up with a prompt until you leave it."""
    options = RackOptions(name=cluster, hosts=hosts, **wanted.common(rate=rate, hosts=hosts))
    stay(options, _commands(context), detach=wanted.detach)


@app.command("spine-leaf")
@fabrics.grouped
def spine_leaf(
    context: typer.Context,
    *,
    spines: Annotated[int, typer.Option(min=1, max=4, help="Spines.")] = 2,
    leaves: Annotated[int, typer.Option(min=1, max=8, help="Leaves: the switches of the racks.")] = 2,
    hosts: Annotated[
        str, typer.Option(metavar="N|N,N...", help="Hosts, 2 to 64: in all, or a number for each leaf.")
    ] = "8",
    rate: fabrics.Rate = "none",
    uplink_rate: fabrics.UplinkRate = None,
    spread: Annotated[
        Spread | None,
        typer.Option(help="What takes turns between the spines: jobs, or the messages of each job."),
    ] = None,
    cluster: Name = "spine-leaf",
    wanted: Wanted,
) -> None:
    """Launch racks with uplinks to each spine; they stay up with a prompt until you leave it."""
    counts = parse_host_counts(hosts, leaves=leaves)
    total = counts if isinstance(counts, int) else sum(counts)
    options = SpineLeafOptions(
        name=cluster,
        spines=spines,
        leaves=leaves,
        hosts=counts,
        uplink_rate_mbit=parse_uplink_rate(uplink_rate),
        **wanted.common(rate=rate, hosts=total, spread=spread),
    )
    stay(options, _commands(context), detach=wanted.detach)


@app.command(_FILE)
def file(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="CLUSTER.yaml", help="A cluster file.")],
    cluster: OtherName = None,
    tls: fabrics.Tls = False,
    detach: Detach = False,
) -> None:
    """Launch the cluster that a cluster file describes, with its jobs; 'up CLUSTER.yaml' for short.

    Workloads are not run: 'p4reduce run' does that.
    """
    from p4reduce.workloads.cluster_reading import read
    from p4reduce.workloads.scenario import create_jobs

    described = read(path)
    options = described.fabric_options(name=cluster, tls=tls)
    stay(
        options,
        _commands(context),
        detach=detach,
        prepare=lambda running: create_jobs(running, described),
    )


def _commands(context: typer.Context) -> Any:
    return context.find_root().command
