"""`p4reduce simulate-faults --exhaustive`: all states of a small scope."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from p4reduce.cli import output
from p4reduce.cli.failing import EXIT_INTERRUPTED
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from p4reduce.simulation.exhaustive.found import Explored, Found
    from p4reduce.simulation.exhaustive.search import Search

_LIST = "list"


class Tell(Protocol):
    """A function that prints a sentence: output.say, or output.note if JSON has stdout."""

    def __call__(self, text: str, *, style: str | None = None) -> None: ...


def explore(name: str, choices: str | None, json_file: Path | None, tell: Tell) -> None:
    """Explore the scope of that name, list all scopes, or play one order of its choices."""
    from p4reduce.simulation.exhaustive.catalogue import ALL, UnknownScopeError, explorer_of, scope_of

    if name == _LIST:
        for scope in ALL.values():
            tell(f"{scope.name:24} {scope.about}: {scope.in_words()}")
        if json_file is not None:
            output.write_json(json_file, {"scopes": [scope.as_json() for scope in ALL.values()]})
        return
    try:
        explorer = explorer_of(scope_of(name))
    except UnknownScopeError as error:
        raise TopologyError(f"--exhaustive: {error}") from error
    if choices is not None:
        _play(explorer, choices.split(), tell)
    else:
        _explore(explorer, json_file, tell)


def _play(explorer: Search[Any], choices: list[str], tell: Tell) -> None:
    try:
        for line in explorer.play(choices):
            tell(line)
    except ValueError as error:
        raise TopologyError(f"--choices: {error}") from error


def _explore(explorer: Search[Any], json_file: Path | None, tell: Tell) -> None:
    scope = explorer.searched
    tell(f"{scope.name}: {scope.in_words()}")
    said = time.monotonic()

    def say(found: Found) -> None:
        nonlocal said
        if time.monotonic() - said >= 10:
            said = time.monotonic()
            output.note(f"{found.states:,} states, depth {found.depth}, {found.seconds:.0f} s")

    found = explorer.explore(say=say)
    if json_file is not None:
        output.write_json(json_file, found.as_json())
    tell(
        f"{found.states:,} states, {found.transitions:,} transitions, {found.ends:,} ends, "
        f"depth {found.depth} in {found.seconds:.1f} s"
    )
    tell("checked: " + ", ".join(f"{n:,} {what}" for what, n in sorted(found.checks.items())))
    if found.wrong:
        _tell_failure(explorer, scope, found, tell)
        raise typer.Exit(1)
    if found.interrupted:
        output.complain(
            f"interrupted after {found.states:,} states: this is a part, and nothing was wrong in it"
        )
        raise typer.Exit(EXIT_INTERRUPTED)
    tell("nothing is wrong in any of them")


def _tell_failure(explorer: Search[Any], scope: Explored, found: Found, tell: Tell) -> None:
    tell(f"after {len(found.choices)} choices, the fewest: {found.wrong}", style="red")
    for line in explorer.play(found.choices):
        tell(f"  {line}")
    tell(
        f"  play it again: p4reduce simulate-faults --exhaustive {scope.name} --choices "
        f"'{' '.join(found.choices)}'"
    )
