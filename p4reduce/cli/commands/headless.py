"""`p4reduce run`: a cluster file from bring-up to results, without a prompt."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from p4reduce.cli import fabric_options as fabrics
from p4reduce.cli import output
from p4reduce.cli.detached import start_detached
from p4reduce.cli.failing import Signalled, ending_on_signals
from p4reduce.cli.options import Elastic, OtherName, Selective
from p4reduce.workloads.errors import VerificationError
from topologies import state
from topologies.options import FabricOptions
from topologies.state import ClusterState


def run(
    path: Annotated[Path, typer.Argument(metavar="CLUSTER.yaml", help="A cluster file with jobs.")],
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Where the results go, as JSON (-: stdout); else where the file says, or NAME.results.json.",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running.")] = False,
    cluster: OtherName = None,
    elastic: Elastic = False,
    selective: Selective = None,
    tls: fabrics.Tls = False,
) -> None:
    """Bring a cluster up, run its jobs, check every sum, write results, take it down.

    Exits with 0 only where everything ran and every sum was right.
    """
    from p4reduce.workloads.cluster_reading import read, with_jobs
    from p4reduce.workloads.report import run_tables
    from p4reduce.workloads.scenario import Report, play, require_work

    wanted = {"elastic": True} if elastic else {}
    if selective is not None:
        wanted["selective"] = selective
    described = with_jobs(read(path), **wanted)
    require_work(described)
    options = described.fabric_options(name=cluster, tls=tls)
    target = _target(results or described.results, name=options.name)
    output.require_writable(target)
    report = Report(described)
    try:
        with ending_on_signals(), output.progress() as progress, ExitStack() as stack:
            started = time.monotonic()
            running = _bring_up(options, stack, keep=keep, progress=progress)
            report.up_s = time.monotonic() - started
            play(running, described, report, progress=progress)
            progress("taking the cluster down" if not keep else "done")
    except BaseException as error:
        report.error = _words(error)
        raise
    finally:
        output.write_json(target, report.as_json())
        if str(target) != "-":
            if report.jobs:
                output.show(run_tables(report.as_json()))
            output.note(f"results: {target}")
        if keep and report.up_s is not None:
            output.note(f"cluster {options.name} is still up: 'p4reduce down {options.name}'")
    if not report.exact:
        raise VerificationError(f"not every sum was right: {target} has which")


def _bring_up(options: FabricOptions, stack: ExitStack, *, keep: bool, progress: output.Say) -> ClusterState:
    if keep:
        start_detached(options, progress=progress)
        return state.running(options.name)
    return stack.enter_context(fabrics.running(options, None, progress))


def _target(given: Path | None, *, name: str) -> Path:
    """Return the file to write: in a directory, it is called after the cluster."""
    if given is None:
        return Path(f"{name}.results.json")
    return given / f"{name}.results.json" if given.is_dir() else given


def _words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | Signalled):
        return "interrupted"
    return str(error) or type(error).__name__
