"""Commands that are imported when they are wanted: most import much that the others do not need."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Place:
    """The module and name of a command: a function, or a Typer with commands of its own.

    `examples`: lines for its help.
    """

    module: str
    name: str
    context_settings: dict[str, Any] | None = None
    examples: tuple[str, ...] = ()


class Commands(Mapping[str, Any]):
    """Commands by name, each made when it is asked for. Names alone import nothing."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, self._places[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def get(self, name: str, default: Any = None) -> Any:
        """Return the command of that name, or `default`.

        Unlike `Mapping.get`, let a KeyError in a command's import pass.
        """
        if name not in self:
            return default
        return self[name]


class PlainGroup(TyperGroup):
    """A group whose help has the whole first paragraph of each command's: Click's stops after 45 letters."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, in the order in which they were given."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, " ".join((command.help or "").partition("\n\n")[0].split()))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class LazyGroup(PlainGroup):
    """A group whose commands are in `places`."""

    places: ClassVar[Mapping[str, Place]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        made: Any = Commands(self.places)
        self.commands = made


def group(**attributes: Any) -> typer.Typer:
    """Make a Typer whose help is plain text, as a man page's: Rich's tables cut what has no room."""
    return typer.Typer(rich_markup_mode=None, **{"cls": PlainGroup, **attributes})


def _make(name: str, place: Place) -> Any:
    """Make the command that Typer builds of what stands at `place`."""
    found = getattr(importlib.import_module(place.module), place.name)
    around = group()
    around.callback()(_nothing)  # a group, however many commands it has
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name, epilog=_epilog(place.examples))
    else:
        around.command(name, context_settings=place.context_settings, epilog=_epilog(place.examples))(found)
    made: Any = typer.main.get_command(around)
    return made.commands[name]


def _epilog(examples: tuple[str, ...]) -> str | None:
    """Return examples as an epilog; Click leaves lines behind its mark as they are."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in examples))) if examples else None


def _nothing() -> None:
    """Do nothing: a group needs a callback."""
