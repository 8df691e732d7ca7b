"""`p4reduce replay`: training traffic by several strategies, or a capture packet for packet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from p4reduce.cli import fabric_options as fabrics
from p4reduce.cli import output
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.options import JsonFile, Placement, Report, Selective, Workers
from p4reduce.cli.runs import Strategies, choose_strategies, command_line, refuse_given, show_run
from topologies.options import FabricOptions

_OF_A_WORKLOAD = (
    "strategies",
    "iterations",
    "compute_scale",
    "scale_size",
    "batch",
    "teraflops",
    "bucket_mb",
    "dtype",
    "priority",
    "selective",
    "workers",
    "placement",
    "report",
)
_OF_A_CAPTURE = ("speed", "mapping")
_MIB = 1 << 20


@fabrics.grouped
def replay(
    context: typer.Context,
    *,
    what: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="alexnet, vgg-16, resnet-50, bert-base, gpt-2, or a file: layers as CSV, a trace of "
            "torch.profiler, a Chakra execution trace, a capture (pcap, pcapng) of RoCE v2 packets.",
        ),
    ],
    kind: Annotated[
        fabrics.Kind | None,
        typer.Argument(
            metavar="[rack|spine-leaf]", help="A fabric of its own; without, the running cluster."
        ),
    ] = None,
    strategies: Strategies = None,
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=1, help="How many of each strategy count.")
    ] = 5,
    compute_scale: Annotated[
        float, typer.Option(min=0.0, help="Computing takes so many times as long; 0: none at all.")
    ] = 1.0,
    batch: Annotated[int | None, typer.Option(min=1, help="Of a bundled model: samples a worker.")] = None,
    teraflops: Annotated[
        float | None, typer.Option(help="Of a bundled model: 10^12 operations a second that a worker does.")
    ] = None,
    scale_size: Annotated[
        float, typer.Option(help="Layers have so many times their elements; times stay as they are.")
    ] = 1.0,
    bucket_mb: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Gradients are summed in buckets of so many MiB; as PyTorch DDP (25, the first 1) if not "
            "given; 0: each layer by itself.",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Gradients are float32 (if not given), float16 or bfloat16. A trace that tells its own "
            "type has that, and no other.",
        ),
    ] = None,
    priority: Annotated[
        bool, typer.Option("--priority", help="Front layers first, instead of the order of readiness.")
    ] = False,
    selective: Selective = None,
    workers: Workers = None,
    placement: Placement = "packed",
    hosts: fabrics.Hosts = "4",
    own: fabrics.ItsOwn,
    cluster: fabrics.NameOrCluster = None,
    speed: Annotated[
        float, typer.Option(min=0.0, help="Of a capture: so many times as fast; 0: as fast as possible.")
    ] = 1.0,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="IP=HOST", help="Of a capture: the host that an address becomes."),
    ] = None,
    json: JsonFile = None,
    report: Report = None,
) -> None:
    """Replay a training job's traffic by each strategy in turns; or a capture, packet for packet."""
    from p4reduce.workloads.traffic.source import is_capture

    for path in (json, report):
        output.require_writable(path)
    if kind is None:
        refuse_given(
            context,
            ("hosts", *fabrics.OF_ITS_OWN),
            "is of a fabric of its own: say 'rack' or 'spine-leaf' behind WORKLOAD",
        )
    captured = is_capture(Path(what))
    if captured:
        refuse_given(context, _OF_A_WORKLOAD, f"does not go with a capture, and {what} is one")
    else:
        refuse_given(context, _OF_A_CAPTURE, f"is of captures, and {what} is none")
    options = None if kind is None else own.options(context, kind, hosts)
    if captured:
        _capture(Path(what), options, cluster, speed=speed, mapping=mapping or [], json=json)
        return
    from p4reduce.workloads.placement import place
    from p4reduce.workloads.replay import ReplayOptions, require_memory, resized, run
    from p4reduce.workloads.traffic.source import workload_of

    loaded = workload_of(what, batch=batch, teraflops=teraflops, dtype=dtype)
    workload = resized(loaded.scaled(compute_scale), scale_size)
    gpus = fabrics.gpus_per_host(options, cluster)
    chosen, skipped = choose_strategies(strategies, workload.dtype, gpus_per_host=gpus)
    how = ReplayOptions(
        iterations=iterations,
        bucket_bytes=None if bucket_mb is None else _bytes(bucket_mb),
        priority=priority,
        selective=selective,
    )
    if options is not None:
        require_memory(workload, how, workers=workers or len(options.layout().hosts) * gpus)
    with (
        ending_on_signals(),
        output.progress() as progress,
        fabrics.running(options, cluster, progress) as running,
    ):
        found = run(
            running,
            place(running, workers=workers, placement=placement),
            workload,
            chosen,
            options=how,
            progress=progress,
            command=command_line(context),
            skipped=skipped,
        )
        if options is not None:
            progress("taking the fabric down")
    show_run(found, json=json, report=report)


def _capture(
    path: Path,
    options: FabricOptions | None,
    cluster: str | None,
    *,
    speed: float,
    mapping: list[str],
    json: Path | None,
) -> None:
    """Play a capture."""
    from p4reduce.workloads.capture import capture_tables, parse_mapping, play

    places = parse_mapping(mapping)
    with (
        ending_on_signals(),
        output.progress() as progress,
        fabrics.running(options, cluster, progress) as running,
    ):
        found = play(running, path, speed=speed, mapping=places, progress=progress)
    output.result(found.as_json(), capture_tables(found), json_file=json)


def _bytes(mib: float) -> int:
    if not math.isfinite(mib):
        raise typer.BadParameter(f"--bucket-mb {mib:g} is no size")
    return round(mib * _MIB)
