"""The entity of P4Runtime that this switch does not have: `ExternEntry`.

A write is refused. A wildcard read truthfully finds nothing (nothing could be written), so that a controller
that reads or clears everything can do so; a read of one named object is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from soft_switch.server.errors import P4RuntimeError, unimplemented
from soft_switch.server.operation import Operation


class Externs:
    """Stands where the handler of the entity would be."""

    def write(self, operation: Operation, message: p4r.ExternEntry) -> None:
        """Always UNIMPLEMENTED."""
        raise _refusal()

    def read(self, request: p4r.ExternEntry) -> Iterator[p4r.Entity]:
        """Nothing for a wildcard, UNIMPLEMENTED for anything named."""
        if request.extern_type_id:
            raise _refusal()
        return iter(())


def _refusal() -> P4RuntimeError:
    return unimplemented("externs are not supported by this switch yet")
