"""Session messages to protobuf and back, by the names and types of their fields.

Classes and fields have the names that controller.proto gives them. None stands for an absent field, or for
protobuf's default where the field is not `optional`. Fields of a later release are ignored; a message of a
later release is None.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import IntEnum
from ipaddress import AddressValueError, IPv4Address
from typing import Any, NamedTuple, TypeVar

from controller.api import controller_pb2 as pb
from controller.api import messages
from controller.api.errors import InvalidRequestError
from controller.api.messages import FromController, FromWorker

T = TypeVar("T")


def to_proto(said: Any) -> Any:
    """Return the protobuf message of the same name."""
    values = {f.name: getattr(said, f.name) for f in _fields(type(said))}
    proto: Any = getattr(pb, type(said).__name__)
    return proto(**{name: _written(value) for name, value in values.items() if value is not None})


def from_proto(kind: type[T], proto: Any) -> T:
    """Return a message of that class. Raise InvalidRequestError if a field has no valid value of its type."""
    return kind(**{f.name: f.read(getattr(proto, f.name)) for f in _fields(kind) if not f.is_absent(proto)})


def to_controller(said: FromWorker) -> pb.WorkerMessage:
    """Wrap a worker's message for the wire."""
    return pb.WorkerMessage(**{_field_name(pb.WorkerMessage, said): to_proto(said)})


def to_worker(said: FromController) -> pb.ControllerMessage:
    """Wrap a controller's message for the wire."""
    return pb.ControllerMessage(**{_field_name(pb.ControllerMessage, said): to_proto(said)})


def from_worker(proto: pb.WorkerMessage) -> FromWorker | None:
    """Return a worker's message; None if this release does not know it. Raise InvalidRequestError."""
    said: FromWorker | None = _taken_out(proto)
    return said


def from_controller(proto: pb.ControllerMessage) -> FromController | None:
    """Return the controller's message; None if this release does not know it. Raise InvalidRequestError."""
    said: FromController | None = _taken_out(proto)
    return said


class _Field(NamedTuple):
    """A field of a message. `read` converts protobuf's value to ours. `may_lack`: the field has a default."""

    name: str
    read: Callable[[Any], Any]
    is_optional: bool
    may_lack: bool

    def is_absent(self, proto: Any) -> bool:
        """Tell whether the field is absent, so that the default stands for it."""
        if proto.DESCRIPTOR.fields_by_name[self.name].has_presence:
            return self.may_lack and not proto.HasField(self.name)
        return self.is_optional and not getattr(proto, self.name)


def _find_fields(kind: Any) -> tuple[_Field, ...]:
    hints, found = typing.get_type_hints(kind), []
    for field in fields(kind):
        if not field.metadata.get("said", True):
            continue
        hint, is_optional = hints[field.name], False
        if isinstance(hint, types.UnionType):
            (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
            is_optional = True
        read = functools.partial(_read, hint, f"{kind.__name__}.{field.name}")
        found.append(_Field(field.name, read, is_optional, field.default is not MISSING))
    return tuple(found)


_fields: Callable[[Any], tuple[_Field, ...]] = functools.cache(_find_fields)


def _read(hint: Any, where: str, value: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        of, *_ = typing.get_args(hint)
        return tuple(_read(of, where, item) for item in value)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_proto(hint, value)
    if hint is IPv4Address:
        try:
            return IPv4Address(value)
        except AddressValueError as error:
            raise InvalidRequestError(f"{where}: {value!r} is not an IPv4 address") from error
    if issubclass(hint, IntEnum):
        try:
            return hint(value)
        except ValueError as error:
            raise InvalidRequestError(f"{where}: there is no {hint.__name__.lower()} {value}") from error
    return value


def _written(value: Any) -> Any:
    if is_dataclass(value):
        return to_proto(value)
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return str(value) if isinstance(value, IPv4Address) else value


@functools.cache
def _field_names(envelope: Any) -> dict[str, str]:
    """Return the envelope's field for each message, by the message's name."""
    return {field.message_type.name: field.name for field in envelope.DESCRIPTOR.fields}


def _field_name(envelope: Any, said: Any) -> str:
    return _field_names(envelope)[type(said).__name__]


def _taken_out(envelope: Any) -> Any:
    name = envelope.WhichOneof("message")
    if name is None:
        return None
    proto = getattr(envelope, name)
    return from_proto(getattr(messages, proto.DESCRIPTOR.name), proto)
