"""`p4reduce compare`: strategies side by side on a fabric of their own, from bring-up to figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p4reduce.cli import fabric_options as fabrics
from p4reduce.cli import output
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.options import JsonFile, Report, Selective, parse_bytes
from p4reduce.cli.runs import Strategies, choose_strategies, command_line, show_run
from topologies.fabric import Fabric
from topologies.state import ClusterState

if TYPE_CHECKING:  # it takes pydantic, which other commands need not wait for
    from p4reduce.workloads.run_file import Run
    from p4reduce.workloads.traffic.model import Workload

Measure = Callable[[ClusterState, output.Say, dict[str, Any]], "Run"]
_BYTES = "32000000"


@fabrics.grouped
def compare(
    context: typer.Context,
    *,
    kind: Annotated[fabrics.Kind, typer.Argument(metavar="rack|spine-leaf", help="The fabric.")],
    hosts: fabrics.Hosts = "4",
    own: fabrics.ItsOwn,
    size: Annotated[
        str | None,
        typer.Option("--bytes", "-b", metavar="SIZE", help="Tensor: 1000, 64K, 32M; 32000000 if not given."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="WORKLOAD",
            help="Instead of single tensors iterations of this, as 'p4reduce replay' takes it: resnet-50.",
        ),
    ] = None,
    compute_scale: Annotated[
        float, typer.Option(min=0.0, help="Of a workload: computing takes so many times as long.")
    ] = 1.0,
    strategies: Strategies = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each, in turns, after one to warm up.")] = 5,
    selective: Selective = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Elements are float32 (if not given), float16 or bfloat16; of single tensors also int32. "
            "With a --workload as in 'p4reduce replay'.",
        ),
    ] = None,
    cluster: fabrics.Name = None,
    json: JsonFile = None,
    report: Report = None,
) -> None:
    """Bring a fabric up, sum the same tensors by each strategy in turns, report, take it down."""

    for path in (json, report):
        output.require_writable(path)
    played = None if workload is None else _workload(workload, dtype=dtype, compute_scale=compute_scale)
    kind_of = played.dtype if played is not None else "float32" if dtype is None else dtype.lower()
    chosen, skipped = choose_strategies(strategies, kind_of, gpus_per_host=own.gpus_per_host)
    options = own.options(context, kind, hosts)
    if played is None:
        measure = _of_tensors(
            parse_bytes(size or _BYTES),
            chosen,
            rounds=rounds,
            dtype=kind_of,
            selective=selective,
        )
    elif size is None:
        measure = _of_a_workload(
            played,
            chosen,
            rounds=rounds,
            workers=len(options.layout().hosts) * options.gpus_per_host,
            selective=selective,
        )
    else:
        raise typer.BadParameter("--bytes is of single tensors: a --workload has its own")
    with ending_on_signals(), output.progress() as progress, Fabric(options, progress=progress) as fabric:
        given = {"command": command_line(context), "skipped": skipped}
        found = measure(fabric.state, progress, given)
        progress("taking the fabric down")
    show_run(found, json=json, report=report)


def _of_tensors(
    size: int, strategies: tuple[str, ...], *, rounds: int, dtype: str, selective: bool | None
) -> Measure:
    """Return the measurement of single tensors; raise what is wrong with them at once."""
    from p4reduce.workloads.compare import Comparison, compare_on, new_run
    from p4reduce.workloads.placement import place

    comparison = Comparison(
        bytes=size, strategies=strategies, rounds=rounds, dtype=dtype, selective=selective
    )
    comparison.elements()

    def measure(cluster: ClusterState, progress: output.Say, given: dict[str, Any]) -> Run:
        hosts = place(cluster)
        found = compare_on(cluster, hosts, comparison, progress=progress)
        return new_run(
            cluster,
            hosts,
            kind="compare",
            dtype=comparison.dtype,
            results=found.results,
            samples={strategy: looks for strategy, looks in found.samples.items() if looks},
            **given,
        )

    return measure


def _workload(name: str, *, dtype: str | None, compute_scale: float) -> Workload:
    from p4reduce.workloads.traffic.source import workload_of

    return workload_of(name, dtype=dtype).scaled(compute_scale)


def _of_a_workload(
    workload: Workload,
    strategies: tuple[str, ...],
    *,
    rounds: int,
    workers: int,
    selective: bool | None,
) -> Measure:
    """Return the measurement of a workload; raise at once if it does not fit this machine."""
    from p4reduce.workloads.placement import place
    from p4reduce.workloads.replay import ReplayOptions, require_memory, run

    options = ReplayOptions(iterations=rounds, selective=selective)
    require_memory(workload, options, workers=workers)

    def measure(cluster: ClusterState, progress: output.Say, given: dict[str, Any]) -> Run:
        return run(cluster, place(cluster), workload, strategies, options=options, progress=progress, **given)

    return measure
