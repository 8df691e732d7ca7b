"""The fabric that a command brings up for itself, and the options that describe it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from p4reduce.options import parse_host_counts, parse_rate
from topologies.options import FabricOptions
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions
from topologies.switches import SwitchTarget


class Kind(str, Enum):
    """Kinds of fabric."""

    RACK = "rack"
    SPINE_LEAF = "spine-leaf"


Hosts = Annotated[
    str,
    typer.Option(metavar="N|N,N...", help="Hosts, a worker on each; on spine-leaf also a number a leaf."),
]
Rate = Annotated[str, typer.Option(help="Rate of the hosts' links: 100mbit, 1gbit, none.")]
UplinkRate = Annotated[
    str | None, typer.Option(help="Rate of the links between switches; as --rate if not given.")
]
Spines = Annotated[int, typer.Option(min=1, max=4, help="Spines (spine-leaf).")]
Leaves = Annotated[int, typer.Option(min=1, max=8, help="Leaves: the switches of the racks (spine-leaf).")]
PathMtu = Annotated[
    int, typer.Option("--mtu", "--path-mtu", help="RoCE path MTU: 256, 512, 1024, 2048 or 4096.")
]
Name = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Name of the fabric.")]
NameOrCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        envvar="P4REDUCE_CLUSTER",
        help="Which cluster, or the name of the fabric of its own.",
    ),
]
Switch = Annotated[SwitchTarget, typer.Option(help="What runs the P4 program.")]

Tls = Annotated[
    bool, typer.Option("--tls", help="TLS with certificates between controller, switches and workers.")
]


def fabric_options(
    kind: Kind,
    *,
    name: str,
    hosts: str,
    rate: str,
    uplink_rate: str | None,
    spines: int,
    leaves: int,
    mtu: int,
    switch: SwitchTarget,
    tls: bool = False,
) -> FabricOptions:
    """What was asked for; BadParameter where it makes no sense."""
    rate_mbit = parse_rate(rate)
    if kind is Kind.SPINE_LEAF:
        return SpineLeafOptions(
            name=name,
            spines=spines,
            leaves=leaves,
            hosts=parse_host_counts(hosts, leaves=leaves),
            switch=switch,
            path_mtu=mtu,
            rate_mbit=rate_mbit,
            uplink_rate_mbit="rate" if uplink_rate is None else parse_rate(uplink_rate),
            tls=tls,
        )
    if uplink_rate is not None:
        raise typer.BadParameter("--uplink-rate is of spine-leaf fabrics: a rack has no uplinks")
    if not hosts.strip().isdigit():
        raise typer.BadParameter(f"{hosts!r} is no number of hosts: a rack has 2 to 32")
    return RackOptions(name=name, hosts=int(hosts), switch=switch, path_mtu=mtu, rate_mbit=rate_mbit, tls=tls)
