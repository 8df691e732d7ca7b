"""Commands whose modules are imported when they are wanted: most import much that the others do without."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Place:
    """Where a command is: a function, or a Typer with commands of its own."""

    module: str
    name: str
    context_settings: dict[str, Any] | None = None


class Commands(Mapping[str, Any]):
    """Commands by name, each made when somebody asks for it. Names alone import nothing."""

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
        """As of every mapping, but a KeyError in an import does not look like a name that there is not."""
        if name not in self:
            return default
        return self[name]


class LazyGroup(TyperGroup):
    """A group whose commands are in `places`."""

    places: ClassVar[Mapping[str, Place]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        made: Any = Commands(self.places)
        self.commands = made


def _make(name: str, place: Place) -> Any:
    """The command as Typer makes it of what stands at `place`."""
    found = getattr(importlib.import_module(place.module), place.name)
    around = typer.Typer()
    around.callback()(_nothing)  # a group, however many commands it has
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name)
    else:
        around.command(name, context_settings=place.context_settings)(found)
    group: Any = typer.main.get_command(around)
    return group.commands[name]


def _nothing() -> None:
    """A group has a callback."""
