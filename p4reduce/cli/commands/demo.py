"""`p4reduce demo`: the main job."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.config import Target
from p4reduce.cli import output
from p4reduce.cli.fabric_options import Switch, Tls
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.options import JsonFile, parse_bytes


def demo(
    json: JsonFile = None,
    workers: Annotated[int, typer.Option(min=2, max=32, help="Workers, each on a host of its own.")] = 4,
    switch: Switch = Target.EMBEDDED,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 150,
    race_bytes: Annotated[
        str, typer.Option("--bytes", metavar="SIZE", help="Tensor of the race against ring all-reduce.")
    ] = "32M",
    repeat: Annotated[
        int | None, typer.Option(min=1, help="How often to race; the median counts (default: 3, BMv2: 1).")
    ] = None,
    tls: Tls = False,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Name of the rack.")] = "demo",
) -> None:
    """Train a network on an emulated rack whose switch adds up the gradients, then race it against a ring."""
    from p4reduce.workloads.demo import DemoOptions, run
    from p4reduce.workloads.report import demo_tables

    output.require_writable(json)
    options = DemoOptions(
        cluster=cluster,
        switch=switch,
        workers=workers,
        steps=steps,
        race_bytes=parse_bytes(race_bytes),
        repeat=repeat,
        tls=tls,
    )
    with ending_on_signals(), output.progress() as progress:
        report = run(options, progress=progress)
    output.result(report.as_json(), demo_tables(report), json_file=json)
