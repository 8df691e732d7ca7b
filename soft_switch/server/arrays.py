"""Indexed arrays of the program: the `CounterEntry` and `RegisterEntry` entities.

Source: P4Runtime specification, sections "CounterEntry" and "RegisterEntry". simple_switch_grpc has no
registers over P4Runtime; this switch has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.server.errors import invalid, out_of_range, unimplemented
from soft_switch.server.operation import Operation
from soft_switch.server.p4data import Scalar, format_data, parse_scalar
from soft_switch.server.schema import Register, Schema
from soft_switch.server.tables import check_counter_data, counter_data


class Counters:
    """Handler of `CounterEntry`."""

    def __init__(self, schema: Schema, plane: DataPlane) -> None:
        self._schema = schema
        self._plane = plane

    def write(self, operation: Operation, message: p4r.CounterEntry) -> None:
        """Set one cell, or all when there is no index. Only MODIFY exists; without data nothing changes."""
        counter = self._schema.lookup("counter", self._schema.counters, message.counter_id)
        if operation != Operation.MODIFY:
            raise invalid(f"counter {counter.name}: cells are always there, only MODIFY applies to them")
        indices = cells(
            "counter", counter.name, counter.size, message.index if message.HasField("index") else None
        )
        if not message.HasField("data"):
            return
        check_counter_data(message.data)
        for index in indices:
            self._plane.counter_write(counter.name, index, message.data.packet_count, message.data.byte_count)

    def read(self, request: p4r.CounterEntry) -> Iterator[p4r.Entity]:
        """Read one cell, all cells of a counter (no index), or all cells of all counters (id 0)."""
        for counter in self._schema.select("counter", self._schema.counters, request.counter_id):
            if request.HasField("index"):
                (index,) = cells("counter", counter.name, counter.size, request.index)
                values = {index: self._plane.counter_read(counter.name, index)}
            else:
                values = dict(enumerate(self._plane.counter_read_all(counter.name).tolist()))
            for index, (packets, bytes_) in values.items():
                entry = p4r.CounterEntry(
                    counter_id=counter.id, index=p4r.Index(index=index), data=counter_data(packets, bytes_)
                )
                yield p4r.Entity(counter_entry=entry)


class Registers:
    """Handler of `RegisterEntry`."""

    def __init__(self, schema: Schema, plane: DataPlane) -> None:
        self._schema = schema
        self._plane = plane

    def write(self, operation: Operation, message: p4r.RegisterEntry) -> None:
        """Set one cell, or all when there is no index. Only MODIFY exists."""
        register = self._schema.lookup("register", self._schema.registers, message.register_id)
        if operation != Operation.MODIFY:
            raise invalid(f"register {register.name}: cells are always there, only MODIFY applies to them")
        indices = cells(
            "register", register.name, register.size, message.index if message.HasField("index") else None
        )
        if not message.HasField("data"):
            raise invalid(f"register {register.name}: the data to write is missing")
        value = parse_scalar(_type(register), message.data, f"register {register.name}, data")
        for index in indices:
            self._plane.register_write(register.name, index, value)

    def read(self, request: p4r.RegisterEntry) -> Iterator[p4r.Entity]:
        """Read one cell, all cells of a register (no index), or all cells of all registers (id 0)."""
        for register in self._schema.select("register", self._schema.registers, request.register_id):
            indices = cells(
                "register", register.name, register.size, request.index if request.HasField("index") else None
            )
            for index in indices:
                value = self._plane.register_read(register.name, index)
                data = format_data(_type(register), iter((value,)))
                entry = p4r.RegisterEntry(register_id=register.id, index=p4r.Index(index=index), data=data)
                yield p4r.Entity(register_entry=entry)


def cells(kind: str, name: str, size: int, index: p4r.Index | None) -> Iterable[int]:
    """Return the cells an index means: itself, or all of them when it is absent."""
    if index is None:
        return range(size)
    if index.index < 0:
        raise invalid(f"{kind} {name}: index {index.index} is negative")
    if index.index >= size:
        raise out_of_range(f"{kind} {name} has {size} cells, index {index.index} is beyond the last")
    return (index.index,)


def _type(register: Register) -> Scalar:
    if not isinstance(register.type, Scalar):
        raise unimplemented(
            f"register {register.name} has elements of type {register.type.form}: "
            "this switch carries bit<W>, int<W>, bool and serializable enums"
        )
    return register.type
