"""`p4reduce allreduce`: one timed all-reduce on the running cluster."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from controller.api.messages import MAX_PLANES
from p4reduce.cli import output
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.options import ClusterOption, Elastic, JsonFile, Placement, Selective, Workers, parse_bytes
from topologies import state


class Summing(str, Enum):
    """Where the sums are made."""

    IN_NETWORK = "in-network"
    RING = "ring"
    BOTH = "both"


def allreduce(
    size: Annotated[
        str, typer.Option("--bytes", "-b", metavar="SIZE", help="Tensor: 4096, 64K, 32M.")
    ] = "1M",
    dtype: Annotated[str, typer.Option(help="int32, float32, float16 or bfloat16.")] = "float32",
    op: Annotated[str, typer.Option(help="sum, avg, max or min.")] = "sum",
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
    selective: Selective = False,
    elastic: Elastic = False,
    repeat: Annotated[int, typer.Option(min=1, help="How often; the median counts.")] = 1,
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
    from p4reduce.workloads.allreduce import Request, run
    from p4reduce.workloads.errors import WorkloadError
    from p4reduce.workloads.placement import place
    from p4reduce.workloads.report import allreduce_table
    from p4reduce.workloads.tensors import dtype_of, require_wire

    output.require_writable(json)
    try:
        require_wire(wire, dtype_of(dtype), op)
    except WorkloadError as error:
        raise typer.BadParameter(str(error)) from error
    request = Request(
        bytes=parse_bytes(size),
        dtype=dtype,
        op=op,
        strategy=strategy.value,
        wire=wire.lower(),
        repeat=repeat,
        verify=verify,
        selective=selective,
        elastic=elastic,
    )
    running = state.running(cluster)
    names = [name.strip() for name in hosts.split(",") if name.strip()]
    chosen = place(running, workers=workers, placement=placement, hosts=names, gpus_per_host=gpus_per_host)
    with ending_on_signals(), output.progress() as progress:
        progress(f"all-reduce on cluster {running.name}")
        result = run(running, request, hosts=chosen)
    output.result(result, allreduce_table(result), json_file=json)
