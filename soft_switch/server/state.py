"""A pipeline and its forwarding state: every entity of P4Runtime, each with the handler that serves it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from finsy.proto import p4r
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from soft_switch.dataplane import DataPlane
from soft_switch.errors import DuplicateEntry, EntryInUse, TableError, TableFull, UnknownEntry
from soft_switch.server.arrays import Counters, Registers
from soft_switch.server.digests import Digests
from soft_switch.server.errors import P4RuntimeError, invalid, unimplemented
from soft_switch.server.meters import DirectMeters, Meters
from soft_switch.server.operation import Operation
from soft_switch.server.profile_entries import Groups, Members
from soft_switch.server.program import add_program
from soft_switch.server.replication import Replication
from soft_switch.server.rollback import inverse, query
from soft_switch.server.schema import Schema, parse_p4info
from soft_switch.server.tables import DirectCounters, Tables
from soft_switch.server.value_sets import ValueSets

LOG = logging.getLogger(__name__)
_DEVICE_DATA = 3

# What a data plane says, as the code a controller acts on.
DATA_PLANE_ERRORS = (
    (TableFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DuplicateEntry, grpc.StatusCode.ALREADY_EXISTS),
    (UnknownEntry, grpc.StatusCode.NOT_FOUND),
    (EntryInUse, grpc.StatusCode.FAILED_PRECONDITION),
    (TableError, grpc.StatusCode.INVALID_ARGUMENT),
)


@dataclass(frozen=True)
class PipelineConfig:
    """A ForwardingPipelineConfig as it was given, and what was read from it."""

    message: p4r.ForwardingPipelineConfig
    device_config: bytes  # the BMv2 JSON
    schema: Schema


def parse_config(message: p4r.ForwardingPipelineConfig) -> PipelineConfig:
    """Read P4Info and BMv2 JSON; INVALID_ARGUMENT says what is missing or does not fit."""
    if not message.HasField("p4info"):
        raise invalid("the forwarding pipeline config has no p4info")
    if not message.p4_device_config:
        raise invalid("the forwarding pipeline config has no p4_device_config: it is p4c's BMv2 JSON")
    schema = parse_p4info(message.p4info)
    device_config = _unwrap(message.p4_device_config)
    schema = add_program(schema, device_config)
    kept = p4r.ForwardingPipelineConfig()
    kept.CopyFrom(message)
    return PipelineConfig(kept, device_config, schema)


def _unwrap(data: bytes) -> bytes:
    """Return the program in a `p4.tmp.P4DeviceConfig`; anything else as it is.

    Older clients send that, which simple_switch_grpc calls deprecated and takes:

        message P4DeviceConfig { bool reassign = 1; Extras extras = 2; bytes device_data = 3; }
    """
    if data.lstrip()[:1] == b"{":
        return data
    try:
        fields = UnknownFieldSet(Empty.FromString(data))
    except DecodeError:
        return data
    items = (fields[number] for number in range(len(fields)))
    found = [item.data for item in items if item.field_number == _DEVICE_DATA]
    return found[-1] if found and isinstance(found[-1], bytes) else data


class EntityHandler(Protocol):
    """Handler of one kind of entity."""

    def write(self, operation: Operation, message: Any) -> None: ...

    def read(self, request: Any) -> Iterator[p4r.Entity]: ...


class ForwardingState:
    """All entities of one pipeline on one data plane, which holds the program freshly loaded."""

    def __init__(self, config: PipelineConfig, plane: DataPlane) -> None:
        self.config = config
        self.digests = Digests(config.schema)
        self.tables = Tables(config.schema, plane)
        self.replication = Replication(config.schema, plane)
        self._handlers: dict[str, EntityHandler] = {
            "table_entry": self.tables,
            "action_profile_member": Members(self.tables.profiles),
            "action_profile_group": Groups(self.tables.profiles),
            "direct_counter_entry": DirectCounters(self.tables, plane),
            "direct_meter_entry": DirectMeters(self.tables, plane),
            "counter_entry": Counters(config.schema, plane),
            "register_entry": Registers(config.schema, plane),
            "meter_entry": Meters(config.schema, plane),
            "value_set_entry": ValueSets(config.schema, plane),
            "digest_entry": self.digests,
            "packet_replication_engine_entry": self.replication,
        }

    def write(self, update: p4r.Update) -> None:
        """Apply one update, or raise P4RuntimeError and change nothing."""
        try:
            operation = Operation(update.type)
        except ValueError as error:
            raise invalid("the update type is not set: it is INSERT, MODIFY or DELETE") from error
        handler, message = self._dispatch(update.entity)
        try:
            handler.write(operation, message)
        except P4RuntimeError:
            raise
        except Exception as error:
            raise _from_data_plane(error) from error

    def read(self, request: p4r.Entity) -> list[p4r.Entity]:
        """Return the entities that one element of a ReadRequest selects."""
        if request.HasField("extern_entry") and not request.extern_entry.extern_type_id:
            return []  # so that a controller that reads or clears everything can do so
        handler, message = self._dispatch(request)
        try:
            return list(handler.read(message))
        except P4RuntimeError:
            raise
        except Exception as error:
            raise _from_data_plane(error) from error

    def undo(self, update: p4r.Update) -> list[p4r.Update]:
        """Return the updates that take back what `update` is about to do; none if it will be refused."""
        if update.type == p4r.Update.INSERT:
            return inverse(update, ())
        try:
            request = query(update.entity)
            found = self.read(request)
            kind = request.WhichOneof("entity")
            if kind == "table_entry":  # a read of the entry that matches everything finds all of the table
                wanted = request.table_entry
                found = [entity for entity in found if self.tables.same_entry(entity.table_entry, wanted)]
            elif kind in ("direct_counter_entry", "direct_meter_entry"):
                wanted = getattr(request, kind).table_entry
                found = [
                    entity
                    for entity in found
                    if self.tables.same_entry(getattr(entity, kind).table_entry, wanted)
                ]
        except P4RuntimeError:
            return []
        return inverse(update, found)

    def clear_replication(self) -> None:
        """Remove multicast groups and clone sessions, which would outlive the program."""
        self.replication.clear()

    def _dispatch(self, entity: p4r.Entity) -> tuple[EntityHandler, Any]:
        kind = entity.WhichOneof("entity")
        if kind is None:
            raise invalid("the entity is not set")
        if kind not in self._handlers:
            raise unimplemented("externs are not supported by this switch yet")
        return self._handlers[kind], getattr(entity, kind)


def _from_data_plane(error: Exception) -> P4RuntimeError:
    """Return the data plane's refusal with its code; anything else is a defect, logged with its trace."""
    for kind, code in DATA_PLANE_ERRORS:
        if isinstance(error, kind):
            return P4RuntimeError(code, str(error))
    LOG.error("the data plane failed on a P4Runtime request", exc_info=error)
    return P4RuntimeError(grpc.StatusCode.INTERNAL, f"the data plane failed: {error!r}")
