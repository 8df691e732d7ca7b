"""Updates of a switch, entry by entry, and the switch's refusals of them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from finsy.proto import p4r

from controller.api.errors import ControllerError, NotPossibleError, UnreachableError
from controller.entries import Entry


class SwitchError(ControllerError):
    """Refusal by a switch, or a switch in the wrong state. The message begins with the switch."""

    def __init__(self, message: str, *, code: grpc.StatusCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class SwitchUnreachableError(SwitchError, UnreachableError):
    """Error about a switch that is not there, does not answer, or lost the connection."""


class NotPrimaryError(SwitchError, NotPossibleError):
    """Another controller is primary on the switch, so that nothing can be written."""


class ElectionIdTakenError(NotPrimaryError):
    """Another live controller has the election id that was claimed with; the stream has ended."""


class UpdateKind(enum.Enum):
    """Kind of update in a Write."""

    INSERT = p4r.Update.INSERT
    MODIFY = p4r.Update.MODIFY
    DELETE = p4r.Update.DELETE


@dataclass(frozen=True)
class Update:
    """One update of a batch."""

    kind: UpdateKind
    entry: Entry

    def __str__(self) -> str:
        return f"{self.kind.name} {self.entry}"


@dataclass(frozen=True)
class Failure:
    """An update that the switch refused, and why."""

    update: Update
    code: grpc.StatusCode
    message: str

    def __str__(self) -> str:
        return f"{self.update}: {self.code.name}{': ' if self.message else ''}{self.message}"


class WriteError(SwitchError):
    """Error about refused updates; the others have been applied."""

    def __init__(self, label: str, failures: Sequence[Failure], *, updates: int) -> None:
        super().__init__(
            f"{label} refused {len(failures)} of {updates} updates, the first: {failures[0]}",
            code=failures[0].code,
        )
        self.failures = tuple(failures)
