"""The scopes by name, and the explorer of each."""

from __future__ import annotations

from typing import Any, Final

from p4reduce.simulation.exhaustive.control import ControlExplorer
from p4reduce.simulation.exhaustive.control_scopes import CONTROL_SCOPES
from p4reduce.simulation.exhaustive.explorer import Explorer
from p4reduce.simulation.exhaustive.found import Explored
from p4reduce.simulation.exhaustive.gang import GangExplorer
from p4reduce.simulation.exhaustive.gang_scopes import GANG_SCOPES, GangScope
from p4reduce.simulation.exhaustive.scopes import SCOPES, Scope
from p4reduce.simulation.exhaustive.search import Search

ALL: Final[dict[str, Explored]] = {**SCOPES, **CONTROL_SCOPES, **GANG_SCOPES}


class UnknownScopeError(ValueError):
    """A scope's name is not known."""


def scope_of(name: str) -> Explored:
    """Return the scope of that name. UnknownScopeError names those that there are."""
    if name not in ALL:
        raise UnknownScopeError(f"there is no scope {name!r}: known are {', '.join(ALL)}")
    return ALL[name]


def explorer_of(scope: Explored) -> Search[Any]:
    """Return a scope's explorer."""
    if isinstance(scope, GangScope):
        return GangExplorer(scope)
    return Explorer(scope) if isinstance(scope, Scope) else ControlExplorer(scope)
