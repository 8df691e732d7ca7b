"""Operation of an update on an entity: `p4.v1.Update.Type` without its zero."""

from __future__ import annotations

from enum import IntEnum

from finsy.proto import p4r


class Operation(IntEnum):
    """The three types of an update."""

    INSERT = p4r.Update.INSERT
    MODIFY = p4r.Update.MODIFY
    DELETE = p4r.Update.DELETE
