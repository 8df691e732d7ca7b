"""`p4reduce metrics`: a running cluster for Prometheus."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from controller.telemetry.address import MetricsError
from p4reduce.cli import output
from p4reduce.cli.failing import ending_on_signals
from p4reduce.cli.options import ClusterOption
from topologies import state
from topologies.errors import TopologyError


def metrics(
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Serve them there until Ctrl-C (127.0.0.1:9464, say), instead of printing them once.",
        ),
    ] = None,
    cluster: ClusterOption = None,
) -> None:
    """Print or serve all metrics of a running cluster, in Prometheus' text format.

    Controller, embedded switches and workers tell their own on Unix sockets; links are the kernel's. All have
    the labels cluster and component.
    """
    # Not before: the other commands do without.
    from prometheus_client import generate_latest

    from controller.telemetry.server import MetricsServer, registry
    from p4reduce.live.gathering import ClusterMetrics

    name = state.controlled(cluster).name
    collect = ClusterMetrics(name).collect
    if listen is None:
        print(generate_latest(registry(collect)).decode(), end="")
        return
    with contextlib.suppress(KeyboardInterrupt), ending_on_signals():
        try:
            server = MetricsServer(listen, collect)
        except MetricsError as error:
            raise TopologyError(str(error)) from error
        with server:
            where = server.address if server.address.path is not None else f"http://{server.address}/metrics"
            output.note(f"metrics of cluster {name} at {where}; Ctrl-C ends it")
            server.wait()
