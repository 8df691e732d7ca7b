"""Parts that `compare` and `replay` share: the choice of strategies, and the output of a run."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from p4reduce.cli import output

if TYPE_CHECKING:  # it takes pydantic, which other commands need not wait for
    from p4reduce.workloads.run_file import Run

DEFAULT_STRATEGIES: Final = "in-network,ring,gloo"
_OF_SEVERAL_GPUS: Final = "hierarchical,hierarchical-ring,flat-ring"
Strategies = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME...|all",
        help="in-network, in-network-16bit (float32 in half the bytes), ring, halving-doubling, "
        "parameter-server, parameter-server-switch, gloo; "
        f"{DEFAULT_STRATEGIES} if not given (gloo where PyTorch is installed). With several GPUs a host: "
        "hierarchical (in the network, in a pipeline), hierarchical-phases (without), hierarchical-ring, "
        f"flat-ring, reduce-broadcast; {_OF_SEVERAL_GPUS} if not given.",
    ),
]


def choose_strategies(
    given: str | None, dtype: str, *, gpus_per_host: int = 1
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the strategies to run, and why others cannot.

    Raise WorkloadError if a strategy that cannot run was named ("all" names none).
    """
    from p4reduce.workloads.compare import possible
    from p4reduce.workloads.strategies.names import ALL, OF_SEVERAL_GPUS, strategies_of

    named = given is not None and given.strip().lower() != "all"
    usual, there = (DEFAULT_STRATEGIES, ALL) if gpus_per_host == 1 else (_OF_SEVERAL_GPUS, OF_SEVERAL_GPUS)
    chosen = strategies_of(usual if given is None else given, there)
    return possible(chosen, asked=named, dtype=dtype)


def show_run(found: Run, *, json: Path | None, report: Path | None) -> None:
    """Write a run to the files that were asked for, and show a table."""
    from p4reduce.workloads.reporting.page import page
    from p4reduce.workloads.reporting.tables import run_tables

    output.result(found.as_json(), run_tables(found), json_file=json)
    if report is not None:
        output.write_text(report, page(found))


def command_line(context: typer.Context) -> str:
    """Return the command line as it was given.

    It may come from a cluster's prompt, which `sys.argv` does not have.
    """
    words = ["p4reduce", context.info_name or ""]
    for parameter in context.command.params:
        name = parameter.name or ""
        if not is_given(context, name):
            continue
        value = context.params[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0])
            continue
        option = [parameter.opts[0]] if parameter.opts[0].startswith("-") else []
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [*option, str(each.value if isinstance(each, Enum) else each)]
    return shlex.join(words)


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether a parameter was on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_given(context: typer.Context, names: tuple[str, ...], why: str) -> None:
    """Raise BadParameter if one of these parameters was on the command line."""
    for parameter in context.command.params:
        if parameter.name in names and is_given(context, parameter.name):
            raise typer.BadParameter(f"{parameter.opts[0]} {why}")
