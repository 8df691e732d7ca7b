"""The fabric that a command brings up for itself, and the options that describe it."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated, Any

import typer

from controller.config import Target
from p4reduce.options import parse_host_counts, parse_rate
from p4reduce.runs import is_given
from topologies.options import FabricOptions
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions


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
Switch = Annotated[Target, typer.Option(help="What runs the P4 program.")]

Tls = Annotated[
    bool, typer.Option("--tls", help="TLS with certificates between controller, switches and workers.")
]

OF_ITS_OWN = ("rate", "uplink_rate", "spines", "leaves", "mtu", "switch", "tls")


def of_its_own(context: typer.Context, kind: Kind) -> FabricOptions:
    """The fabric that a command with the options above was asked for; BadParameter where it makes no sense.

    Its name is the command's and this process's where none was said.
    """
    given = context.params
    named = given["cluster"] if is_given(context, "cluster") else None
    common: dict[str, Any] = {
        "name": named or f"{context.info_name}-{os.getpid()}",
        "switch": Target(given["switch"]),
        "path_mtu": given["mtu"],
        "rate_mbit": parse_rate(given["rate"]),
        "tls": given["tls"],
    }
    hosts, uplink_rate = given["hosts"], given["uplink_rate"]
    options: FabricOptions
    if kind is Kind.SPINE_LEAF:
        options = SpineLeafOptions(
            spines=given["spines"],
            leaves=given["leaves"],
            hosts=parse_host_counts(hosts, leaves=given["leaves"]),
            uplink_rate_mbit="rate" if uplink_rate is None else parse_rate(uplink_rate),
            **common,
        )
    elif uplink_rate is not None:
        raise typer.BadParameter("--uplink-rate is of spine-leaf fabrics: a rack has no uplinks")
    elif not hosts.strip().isdigit():
        raise typer.BadParameter(f"{hosts!r} is no number of hosts: a rack has 2 to 32")
    else:
        options = RackOptions(hosts=int(hosts), **common)
    options.validate()
    return options
