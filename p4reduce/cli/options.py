"""Options that several commands take, and the values that have a syntax of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from p4reduce.workloads import sizes
from p4reduce.workloads.errors import WorkloadError
from topologies import state
from topologies.errors import TopologyError
from topologies.links import parse_rate_mbit
from topologies.state import HostKind


def complete_cluster() -> list[str]:
    """Return the names of clusters, for a shell that completes a word."""
    return [cluster.name for cluster in state.all_clusters()]


def complete_host(ctx: typer.Context) -> list[str]:
    """Return the hosts of the cluster that the command line means."""
    return [host.name for cluster in _meant(ctx) for host in cluster.hosts]


def complete_switch(ctx: typer.Context) -> list[str]:
    """Return the switches of the cluster that the command line means."""
    return [switch.name for cluster in _meant(ctx) for switch in cluster.switches]


def _meant(ctx: typer.Context) -> list[state.ClusterState]:
    name = ctx.params.get("cluster")
    return [cluster for cluster in state.all_clusters() if name in (None, cluster.name)]


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        envvar="P4REDUCE_CLUSTER",
        help="Which cluster; the only one if not given.",
        autocompletion=complete_cluster,
    ),
]
Selective = Annotated[
    bool | None,
    typer.Option(
        "--selective/--no-selective",
        help="Lost packets are sent again alone, or with all behind them. If not given: alone, where no host "
        "has an RDMA device.",
        show_default=False,
    ),
]
Elastic = Annotated[bool, typer.Option("--elastic", help="Jobs go on without workers that die.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON to FILE (-: stdout)."),
]

ProgramFile = Annotated[
    Path | None,
    typer.Option("--program", metavar="FILE.json", help="A P4 program of your own, as p4c-bm2-ss writes it."),
]
P4InfoFile = Annotated[
    Path | None, typer.Option("--p4info", metavar="FILE.txtpb", help="Its P4Info, in text form.")
]
Report = Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a report with charts.")]
Workers = Annotated[
    int | None, typer.Option(min=2, max=512, help="Workers; one on each GPU of each host if not given.")
]
Placement = Annotated[
    str, typer.Option(help="packed (leaf after leaf), spread (leaves take turns), or 3,1: so many a leaf.")
]
OtherName = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Another name than the file's.")
]


def parse_bytes(text: str) -> int:
    """Parse a size in bytes: `4096`, `64K`, `32M`."""
    try:
        return sizes.parse_bytes(text)
    except WorkloadError as error:
        raise typer.BadParameter(str(error)) from error


def parse_rate(text: str) -> float | None:
    """Parse a link rate; return Mbit/s, or None if it is unlimited."""
    try:
        return parse_rate_mbit(text)
    except TopologyError as error:
        raise typer.BadParameter(str(error)) from error


def parse_intra_rate(text: str | None) -> float | None:
    """Parse the rate of the channel between the GPUs of a host; None: unlimited."""
    return None if text is None else parse_rate(text)


def parse_uplink_rate(text: str | None) -> float | Literal["rate"] | None:
    """Parse the rate of the links between switches: as the hosts' if not given."""
    return "rate" if text is None else parse_rate(text)


def parse_host_counts(text: str, *, leaves: int) -> int | tuple[int, ...]:
    """Parse the hosts of a spine-leaf fabric: `8` in all, or `3,3,2` by leaf."""
    if re.fullmatch(r"\d+(\s*,\s*\d+)*", text.strip()) is None:
        raise typer.BadParameter(f"{text!r} is no number of hosts: say 8, or a number for each leaf (3,3,2)")
    counts = tuple(int(word) for word in text.split(","))
    if len(counts) == 1 and leaves != 1:
        return counts[0]
    if len(counts) != leaves:
        raise typer.BadParameter(
            f"{len(counts)} numbers of hosts for {leaves} leaves: say one, or one for each"
        )
    return counts


def parse_host_kinds(text: str, *, hosts: int) -> tuple[str, ...]:
    """Parse the kind of each of `hosts` hosts: one for all, or a list with commas."""
    kinds = tuple(word.strip() for word in text.split(","))
    known = [kind.value for kind in HostKind]
    for kind in kinds:
        if kind not in known:
            raise typer.BadParameter(f"{kind!r} is no kind of host: say {' or '.join(known)}")
    if len(kinds) not in (1, hosts):
        raise typer.BadParameter(f"{len(kinds)} kinds of host for {hosts} hosts: say one, or one for each")
    return kinds * hosts if len(kinds) == 1 else kinds
