"""`p4reduce torch`: a PyTorch script in the hosts of a cluster, as torchrun would start it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p4reduce.cli import fabric_options as fabrics
from p4reduce.cli import output
from p4reduce.cli.failing import EXIT_INTERRUPTED, Signalled, ending_on_signals
from p4reduce.cli.options import JsonFile
from p4reduce.cli.runs import is_given, refuse_given
from topologies.state import ClusterState, HostKind, HostState

if TYPE_CHECKING:  # with rich and pydantic, which a mistake need not wait for
    from p4reduce.workloads.torch_runs.comparing import Side
    from p4reduce.workloads.torch_runs.interpreter import Interpreter
    from p4reduce.workloads.torch_runs.ranks import Failure
    from p4reduce.workloads.torch_runs.running import Ran
    from p4reduce.workloads.torch_runs.script import Script

_KINDS = [kind.value for kind in fabrics.Kind]


class Other(str, Enum):
    """The backend that a script can be run over as well."""

    GLOO = "gloo"


@fabrics.grouped
def torch(
    context: typer.Context,
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[rack|spine-leaf] -- SCRIPT [ARG]...",
            help="A fabric of its own (without: the running cluster); behind '--' what Python runs on each "
            "host: a script, or -m MODULE, and its arguments.",
        ),
    ],
    hosts: Annotated[
        str,
        typer.Option(
            metavar="N|N,N...|HOST,HOST...",
            help="Hosts, a process on each GPU; on spine-leaf also a number a leaf. In the running cluster: "
            "their names, rank 0's first; all if not given.",
        ),
    ] = "4",
    own: fabrics.ItsOwn,
    cluster: fabrics.NameOrCluster = None,
    compare: Annotated[
        Other | None, typer.Option(help="Run it again over Gloo on the same links, and show both.")
    ] = None,
    instead_of: Annotated[
        Other | None,
        typer.Option(help="Give p4reduce to a script or library that asks for Gloo, or for no backend."),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Run a PyTorch script on all hosts, where init_process_group("p4reduce") sums in the network.

    Each process has what torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR, ...) and where the controller is. When
    one fails, the others are ended; its error comes last, its exit code is the command's.
    """
    from p4reduce.workloads.torch_runs.interpreter import Interpreter
    from p4reduce.workloads.torch_runs.record import FOR
    from p4reduce.workloads.torch_runs.script import Script, environment_of_all, require_torch

    output.require_writable(json)
    kind = fabrics.Kind(words[0]) if words[0] in _KINDS else None
    if kind is None:
        why = "is of a fabric of its own: say 'rack' or 'spine-leaf' first, then '-- SCRIPT'"
        refuse_given(context, fabrics.OF_ITS_OWN, why)
    script = Script.of(words if kind is None else words[1:])
    require_torch()
    options = None if kind is None else own.options(context, kind, hosts)
    names = hosts if is_given(context, "hosts") else ""
    backends = [""] if compare is None else ["", compare.value]
    recorded = json is not None or compare is not None
    known = {**environment_of_all(), **({} if instead_of is None else {FOR: instead_of.value})}
    try:
        with (
            ending_on_signals(),
            Interpreter(script, known, warms=compare is not None) as interpreter,  # while the fabric comes up
            contextlib.ExitStack() as stack,
        ):
            with output.progress() as progress:
                running = stack.enter_context(fabrics.running(options, cluster, progress))
                if interpreter.imports:
                    progress("importing PyTorch")
                    interpreter.ready()
            chosen = _chosen(running, "" if options is not None else names)
            require_torch([host.name for host in chosen if host.kind is HostKind.ROCE])
            only_stderr = str(json) == "-"
            rans = _run_all(
                *(running, chosen, script, backends),
                recorded=recorded,
                only_stderr=only_stderr,
                instead_of="" if instead_of is None else instead_of.value,
                interpreter=interpreter,
            )
            if options is not None:
                with output.progress() as progress:
                    progress("taking the fabric down")
                    stack.close()
    except (KeyboardInterrupt, Signalled) as end:
        what = "interrupted" if isinstance(end, KeyboardInterrupt) else "ended by a signal"
        gone = "its processes have ended, and the fabric is down" if options else "its processes have ended"
        output.complain(f"{what}: {gone}")
        sys.exit(EXIT_INTERRUPTED if isinstance(end, KeyboardInterrupt) else end.exit_code)
    _report(rans, json=json)


def _chosen(running: ClusterState, names: str) -> list[HostState]:
    from p4reduce.workloads.placement import place

    return place(running, hosts=[name.strip() for name in names.split(",") if name.strip()])


def _run_all(
    running: ClusterState,
    hosts: Sequence[HostState],
    script: Script,
    backends: Sequence[str],
    *,
    recorded: bool,
    only_stderr: bool,
    instead_of: str,
    interpreter: Interpreter,
) -> list[Ran]:
    """Run the script over each backend, until one run fails."""
    from p4reduce.cli.screen import Screen
    from p4reduce.workloads.placement import labels_of
    from p4reduce.workloads.torch_runs.comparing import require_gloo
    from p4reduce.workloads.torch_runs.running import run

    rans: list[Ran] = []
    for backend in backends:
        if len(backends) > 1:
            output.note(f"over {backend or 'p4reduce'}:", style="bold")
        width = max(map(len, labels_of(running, hosts)))
        screen = Screen(ranks=len(hosts), width=width, only_stderr=only_stderr)
        with contextlib.closing(screen):
            ran = run(
                running,
                hosts,
                script,
                on_line=screen.line,
                on_status=screen.status,
                recorded=recorded,
                own_caches=len(backends) > 1,
                backend=backend,
                instead_of=instead_of,
                interpreter=interpreter,
            )
        rans.append(ran)
        if ran.failure is not None:
            break
        if ran.jobs == 0 and not backend and len(hosts) > 1:
            output.note(
                "no process group of p4reduce had a collective: ask for "
                'init_process_group("p4reduce"), or say --instead-of gloo',
                style="yellow",
            )
        if backend:
            require_gloo(ran)
    return rans


def _report(rans: Sequence[Ran], *, json: Path | None) -> None:
    """Write figures as JSON, and show those of two runs as tables.

    If a rank failed, print its error and exit with its exit code instead.
    """
    from p4reduce.workloads.torch_runs.comparing import OURS, Side, comparison_tables

    failure = rans[-1].failure
    sides = [Side.of(backend, ran) for backend, ran in zip((OURS, Other.GLOO.value), rans, strict=False)]
    if json is not None:
        output.write_json(json, _as_json(sides, failure))
    if failure is not None:
        output.complain(str(failure))
        sys.exit(failure.exit_code)
    if len(sides) > 1 and str(json) != "-":
        output.show(comparison_tables(*sides))


def _as_json(sides: Sequence[Side], failure: Failure | None) -> dict[str, object]:
    failed = (
        None if failure is None else {"rank": failure.rank, "host": failure.host, "code": failure.exit_code}
    )
    return {"runs": [side.as_json() for side in sides], "failed": failed}
