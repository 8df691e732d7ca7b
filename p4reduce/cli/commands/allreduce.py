"""`p4reduce allreduce`: one timed all-reduce on the running cluster."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from controller.api.messages import MAX_PLANES
from p4reduce.cli import output
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.options import ClusterOption, Elastic, JsonFile, Placement, Selective, Workers, parse_bytes
from p4reduce.cli.runs import is_given, refuse_given
from topologies import state


class Summing(str, Enum):
    """The place where sums are made."""

    IN_NETWORK = "in-network"
    RING = "ring"
    BOTH = "both"


def allreduce(
    context: typer.Context,
    *,
    size: Annotated[
        str,
        typer.Option("--bytes", "-b", metavar="SIZE", help="Tensor: 4096, 64K, 32M; of a sweep, the first."),
    ] = "1M",
    end: Annotated[
        str | None,
        typer.Option("--end", "-e", metavar="SIZE", help="A sweep: all sizes from --bytes to this one."),
    ] = None,
    factor: Annotated[
        float, typer.Option("--factor", "-f", help="Of a sweep: each size is so many times the one before.")
    ] = 2.0,
    dtype: Annotated[
        str,
        typer.Option(help="int32, float32, float16 or bfloat16; by ring also int64 and float64."),
    ] = "float32",
    op: Annotated[str, typer.Option(help="sum, avg, max or min; by ring also prod.")] = "sum",
    verify: Annotated[bool, typer.Option("--verify", help="Compare the result with NumPy's.")] = False,
    strategy: Annotated[
        Summing,
        typer.Option(
            help="Sums by the switches, by ring all-reduce between the workers, or first one, then the other."
        ),
    ] = Summing.IN_NETWORK,
    wire: Annotated[
        str, typer.Option(help="full, or 16bit: float32 goes through the switches in half the bytes.")
    ] = "full",
    selective: Selective = None,
    elastic: Elastic = False,
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", "-n", min=1, help="How often; the median counts. 1, of a sweep 5."),
    ] = None,
    warm_up: Annotated[
        int, typer.Option("--warmup", "-w", min=0, help="Of a sweep: so many of each size do not count.")
    ] = 1,
    workers: Workers = None,
    hosts: Annotated[
        str, typer.Option(metavar="HOST,HOST...", help="The workers' hosts; rank 0 is in the first.")
    ] = "",
    placement: Placement = "packed",
    gpus_per_host: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_PLANES, help="Workers on each host; one on each GPU if not given."),
    ] = None,
    cluster: ClusterOption = None,
    json: JsonFile = None,
) -> None:
    """Reduce random data over all workers of the running cluster, and time it."""
    from p4reduce.workloads.allreduce import Request, run, sizes_of, sweep
    from p4reduce.workloads.errors import WorkloadError
    from p4reduce.workloads.placement import place
    from p4reduce.workloads.report import allreduce_table, sweep_table
    from p4reduce.workloads.tensors import added_by_switches, dtype_of, require_wire

    output.require_writable(json)
    if end is None:
        refuse_given(context, ("factor", "warm_up"), "is of a sweep: say where it ends (--end 64M)")
    try:
        require_wire(wire, dtype_of(dtype), op)
        sizes = None if end is None else sizes_of(parse_bytes(size), parse_bytes(end), factor)
        if not added_by_switches(dtype, op):
            if is_given(context, "strategy") and strategy is not Summing.RING:
                raise WorkloadError(f"no switch makes the {op} of {dtype}: it goes by ring (--strategy ring)")
            strategy = Summing.RING
    except WorkloadError as error:
        raise typer.BadParameter(str(error)) from error
    request = Request(
        bytes=parse_bytes(size),
        dtype=dtype,
        op=op,
        strategy=strategy.value,
        wire=wire.lower(),
        repeat=repeat or (1 if sizes is None else 5),
        verify=verify,
        selective=selective,
        elastic=elastic,
    )
    running = state.controlled(cluster)
    names = [name.strip() for name in hosts.split(",") if name.strip()]
    chosen = place(running, workers=workers, placement=placement, hosts=names, gpus_per_host=gpus_per_host)
    with ending_on_signals(), output.progress() as progress:
        progress(f"all-reduce on cluster {running.name}")
        if sizes is None:
            result = run(running, request, hosts=chosen)
        else:
            result = sweep(running, request, sizes=sizes, warm_up=warm_up, hosts=chosen, progress=progress)
    table = allreduce_table(result) if sizes is None else sweep_table(result)
    output.result(result, table, json_file=json)
