"""The scopes by name, and who explores which."""

from __future__ import annotations

from typing import Any, Final

from p4reduce.simulation.exhaustive.control import ControlExplorer
from p4reduce.simulation.exhaustive.control_scopes import CONTROL_SCOPES, ControlScope
from p4reduce.simulation.exhaustive.explorer import Explorer
from p4reduce.simulation.exhaustive.scopes import SCOPES, Scope, named
from p4reduce.simulation.exhaustive.search import Search

ALL: Final[dict[str, Scope | ControlScope]] = {**SCOPES, **CONTROL_SCOPES}


def any_scope(name: str) -> Scope | ControlScope:
    """UnknownScopeError names those that there are."""
    return named(name, ALL)


def explorer_of(scope: Scope | ControlScope) -> Search[Any]:
    """Whoever explores that."""
    return Explorer(scope) if isinstance(scope, Scope) else ControlExplorer(scope)
