"""`p4reduce compare`: strategies side by side on a fabric of their own, from bring-up to figures."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

import typer

from p4reduce import fabric_options as fabrics
from p4reduce import output
from p4reduce.failing import ending_on_signals
from p4reduce.options import JsonFile, parse_bytes
from topologies.fabric import Fabric
from topologies.switches import SwitchTarget

_DEFAULT = "in-network,ring,gloo"


def compare(
    kind: Annotated[fabrics.Kind, typer.Argument(metavar="rack|spine-leaf", help="The fabric.")],
    hosts: fabrics.Hosts = "4",
    rate: fabrics.Rate = "100mbit",
    uplink_rate: fabrics.UplinkRate = None,
    spines: fabrics.Spines = 2,
    leaves: fabrics.Leaves = 2,
    mtu: fabrics.PathMtu = 4096,
    switch: fabrics.Switch = SwitchTarget.EMBEDDED,
    size: Annotated[
        str, typer.Option("--bytes", "-b", metavar="SIZE", help="Tensor: 1000, 64K, 32M.")
    ] = "32000000",
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME...|all",
            help=f"in-network, ring, halving-doubling, parameter-server, parameter-server-switch, gloo; "
            f"{_DEFAULT} if not given (gloo where PyTorch is installed).",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each, in turns, after one to warm up.")] = 5,
    dtype: Annotated[str, typer.Option(help="float32 or int32.")] = "float32",
    cluster: fabrics.Name = None,
    json: JsonFile = None,
) -> None:
    """Bring a fabric up, sum the same tensors by each strategy in turns, report, take it down."""
    from workloads.compare import Comparison, compare_on, new_run, possible
    from workloads.reporting.tables import run_tables
    from workloads.strategies.names import strategies_of

    output.require_writable(json)
    chosen, skipped = possible(strategies_of(strategies or _DEFAULT), asked=strategies is not None)
    comparison = Comparison(bytes=parse_bytes(size), strategies=chosen, rounds=rounds, dtype=dtype)
    comparison.elements()
    options = fabrics.fabric_options(
        kind,
        name=cluster or f"compare-{os.getpid()}",
        hosts=hosts,
        rate=rate,
        uplink_rate=uplink_rate,
        spines=spines,
        leaves=leaves,
        mtu=mtu,
        switch=switch,
    )
    options.validate()
    with ending_on_signals(), output.progress() as progress, Fabric(options, progress=progress) as fabric:
        found = compare_on(fabric.state, fabric.state.hosts, comparison, progress=progress)
        run = new_run(
            fabric.state,
            fabric.state.hosts,
            kind="compare",
            command=shlex.join(["p4reduce", *sys.argv[1:]]),
            results=found,
            skipped=skipped,
        )
        progress("taking the fabric down")
    if json is not None:
        output.write_json(json, run.as_json())
    if str(json) != "-":
        output.show(run_tables(run))
