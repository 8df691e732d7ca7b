"""Entities of P4Runtime that this switch does not have yet.

A write is refused. A wildcard read truthfully finds nothing (nothing could be written), so that a controller
that reads or clears everything can do so; a read of one named object is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finsy.proto import p4r

from soft_switch.server.errors import unimplemented
from soft_switch.server.operation import Operation

# What it is called, and the fields that are all zero in a wildcard read.
REFUSED = {
    "extern_entry": ("externs", ("extern_type_id",)),
}


class Refused:
    """Stands where the handler of an entity will be."""

    def __init__(self, entity: str) -> None:
        self._name, self._ids = REFUSED[entity]

    def write(self, operation: Operation, message: Any) -> None:
        """Always UNIMPLEMENTED."""
        raise unimplemented(f"{self._name} are not supported by this switch yet")

    def read(self, request: Any) -> Iterator[p4r.Entity]:
        """Nothing for a wildcard, UNIMPLEMENTED for anything named."""
        named = any(getattr(request, name) for name in self._ids)
        if named:
            raise unimplemented(f"{self._name} are not supported by this switch yet")
        return iter(())
