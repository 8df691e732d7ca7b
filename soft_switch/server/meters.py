"""Meters: the `MeterEntry` and `DirectMeterEntry` entities.

Source: P4Runtime specification, section "MeterEntry & DirectMeterEntry". A cell without a configuration is
the default: every packet is green.
"""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.server.arrays import cells
from soft_switch.server.errors import invalid, unimplemented
from soft_switch.server.meter_config import COUNTERS_TEXT, format_config, parse_config
from soft_switch.server.operation import Operation
from soft_switch.server.schema import Meter, Schema, Table
from soft_switch.server.tables import Tables, find_entry, missing_entry, named


class Meters:
    """Handler of `MeterEntry`."""

    def __init__(self, schema: Schema, plane: DataPlane) -> None:
        self._schema = schema
        self._plane = plane

    def write(self, operation: Operation, message: p4r.MeterEntry) -> None:
        """Configure one cell, or all when there is no index. Only MODIFY exists; no config is the default."""
        meter = self._schema.lookup("meter", self._schema.meters, message.meter_id)
        if operation != Operation.MODIFY:
            raise invalid(f"meter {meter.name}: cells are always there, only MODIFY applies to them")
        if message.HasField("counter_data"):
            raise unimplemented(COUNTERS_TEXT)
        indices = cells("meter", meter.name, meter.size, message.index if message.HasField("index") else None)
        config = parse_config(meter, message.config) if message.HasField("config") else None
        for index in indices:
            self._plane.meter_write(meter.name, index, config)

    def read(self, request: p4r.MeterEntry) -> Iterator[p4r.Entity]:
        """Read one cell, all cells of a meter (no index), or all cells of all meters (id 0)."""
        meters = self._schema.select("meter", self._schema.meters, request.meter_id)
        if request.HasField("counter_data"):
            raise unimplemented(COUNTERS_TEXT)
        for meter in meters:
            index = request.index if request.HasField("index") else None
            for cell in cells("meter", meter.name, meter.size, index):
                entry = p4r.MeterEntry(meter_id=meter.id, index=p4r.Index(index=cell))
                config = self._plane.meter_read(meter.name, cell)
                if config is not None:
                    entry.config.CopyFrom(format_config(config))
                yield p4r.Entity(meter_entry=entry)


class DirectMeters:
    """Handler of `DirectMeterEntry`: the meters that hang on table entries."""

    def __init__(self, tables: Tables, plane: DataPlane) -> None:
        self._tables = tables
        self._plane = plane

    def write(self, operation: Operation, message: p4r.DirectMeterEntry) -> None:
        """Configure the meter of one entry. Only MODIFY exists; no config is the default."""
        if operation != Operation.MODIFY:
            raise invalid("a direct meter lives and dies with its table entry: only MODIFY applies to it")
        if not message.HasField("table_entry"):
            raise invalid("a direct meter is named by its table entry, which is missing")
        state = self._tables.state(message.table_entry.table_id)
        meter = _meter(state.table, message.table_entry)
        if message.HasField("counter_data"):
            raise unimplemented(COUNTERS_TEXT)
        entry = find_entry(state, message.table_entry)
        config = parse_config(meter, message.config) if message.HasField("config") else None
        self._plane.direct_meter_write(state.table.name, entry.handle, config)

    def read(self, request: p4r.DirectMeterEntry) -> Iterator[p4r.Entity]:
        """Read the meters of the entries that a request selects; NOT_FOUND for a key that is not there."""
        if request.HasField("counter_data"):
            raise unimplemented(COUNTERS_TEXT)
        selector = request.table_entry
        for state in self._tables.select(selector):
            if not selector.table_id and not state.table.direct_meter:
                continue
            _meter(state.table, selector)
            selected = list(self._tables.matching(state, selector))
            if selector.match and not selected:
                raise missing_entry(state.table)
            for key, entry in selected:
                answer = p4r.DirectMeterEntry(table_entry=named(state.table, key))
                config = self._plane.direct_meter_read(state.table.name, entry.handle)
                if config is not None:
                    answer.config.CopyFrom(format_config(config))
                yield p4r.Entity(direct_meter_entry=answer)


def _meter(table: Table, entry: p4r.TableEntry) -> Meter:
    if table.direct_meter is None:
        raise invalid(f"table {table.name} has no direct meter")
    if entry.is_default_action:
        raise unimplemented(f"table {table.name}: direct meters hang on entries, not on the default entry")
    return table.direct_meter
