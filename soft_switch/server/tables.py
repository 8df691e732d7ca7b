"""Table entries: the `TableEntry` entity, its default actions, direct resources and idle timeouts.

The data plane knows entries by handle; what only a controller cares about (cookies, the exact key it wrote)
is kept here. Source: P4Runtime specification, section "TableEntry".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.description import ActionCall, Match, MeterConfig
from soft_switch.server.action_profiles import ActionProfiles, Choice
from soft_switch.server.actions import format_action, parse_action
from soft_switch.server.errors import (
    P4RuntimeError,
    already_exists,
    denied,
    exhausted,
    invalid,
    not_found,
    unimplemented,
)
from soft_switch.server.idle import IdleTimeouts
from soft_switch.server.keys import check_priority, format_key, parse_key
from soft_switch.server.meter_config import COUNTERS_TEXT, format_config, parse_config
from soft_switch.server.operation import Operation
from soft_switch.server.schema import Schema, Table
from soft_switch.server.sdn_types import UnknownName

Key = tuple[tuple[Match, ...], int]  # match values and priority: what tells two entries of a table apart


@dataclass(slots=True)
class Entry:
    """An entry that is in the data plane under `handle`; an indirect table's refers to something."""

    handle: int
    call: ActionCall | Choice
    is_const: bool = False
    metadata: bytes = b""
    controller_metadata: int = 0
    idle_timeout_ns: int = 0


@dataclass
class DefaultEntry:
    """The entry for a miss; `call` is None if the program names no action."""

    call: ActionCall | None
    metadata: bytes = b""
    controller_metadata: int = 0


@dataclass
class TableState:
    """One table, its entries and its default entry as they are now."""

    table: Table
    default: DefaultEntry
    entries: dict[Key, Entry] = field(default_factory=dict)


class Tables:
    """Handler of `TableEntry` on one data plane. `clock` gives nanoseconds and never goes back."""

    def __init__(
        self,
        schema: Schema,
        plane: DataPlane,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._schema = schema
        self._plane = plane
        self._clock = clock
        self.idle: IdleTimeouts[tuple[int, Key]] = IdleTimeouts(plane)
        self.profiles = ActionProfiles(schema, plane, clock)
        self._states: dict[int, TableState] = {}
        for table in schema.tables.values():
            state = TableState(table, DefaultEntry(table.default))
            # The data plane gives the program's own entries the handles 0, 1, ... in the order of the JSON.
            for handle, entry in enumerate(table.entries):
                state.entries[entry.match, entry.priority] = Entry(handle, entry.call, table.is_const)
            self._states[table.id] = state

    def write(self, operation: Operation, message: p4r.TableEntry) -> None:
        """Apply one update; raises P4RuntimeError and changes nothing when it is refused."""
        state = self.state(message.table_id)
        if message.is_const:
            raise invalid(
                f"table {state.table.name}: is_const is the switch's to set, leave it out of a write"
            )
        if message.is_default_action:
            self._write_default(operation, state, message)
        elif operation == Operation.INSERT:
            self._insert(state, message)
        elif operation == Operation.MODIFY:
            self._modify(state, message)
        else:
            self._delete(state, message)

    def read(self, request: p4r.TableEntry) -> Iterator[p4r.Entity]:
        """Read the entries a request selects; fields left at their default select everything."""
        for state in self.select(request):
            if request.HasField("time_since_last_hit") and request.table_id:
                _check_idle_timeout(state.table, "time_since_last_hit", default=request.is_default_action)
            if request.is_default_action:
                yield p4r.Entity(table_entry=self._format_default(state, request))
                continue
            for key, entry in self.matching(state, request):
                yield p4r.Entity(table_entry=self._format(state.table, key, entry, request))

    def expired(self) -> list[p4r.TableEntry]:
        """Return entries that no packet has hit for their timeout, as IdleTimeoutNotification wants them."""
        messages = []
        for table_id, key in self.idle.expired(self._clock()):
            state = self._states[table_id]
            entry = state.entries[key]
            message = self._format(state.table, key, entry, p4r.TableEntry())
            message.ClearField("action")
            messages.append(message)
        return messages

    def state(self, table_id: int) -> TableState:
        """Return the table with this id, INVALID_ARGUMENT if the P4Info has none."""
        return self._schema.lookup("table", self._states, table_id)

    def select(self, request: p4r.TableEntry) -> list[TableState]:
        """Return the tables a read is about: one, or all for id 0."""
        if request.match and not request.table_id:
            raise invalid("a read with match fields needs a table id: field ids mean nothing without a table")
        return self._schema.select("table", self._states, request.table_id)

    def matching(self, state: TableState, request: p4r.TableEntry) -> Iterator[tuple[Key, Entry]]:
        """Yield the entries that pass every filter set in a read request."""
        table = state.table
        try:
            wanted = parse_key(table, request.match) if request.match else None
        except UnknownName:
            return  # no entry has a string that none has introduced
        if wanted is not None and (request.priority or not table.needs_priority):
            key = (wanted, request.priority)
            candidates = [(key, state.entries[key])] if key in state.entries else []
        else:
            candidates = list(state.entries.items())
        if request.HasField("action") and request.action.WhichOneof("type") != "action":
            raise invalid(f"table {table.name}: a read can select entries by action id only")
        action_id = request.action.action.action_id
        action = self._schema.actions.get(action_id)
        for key, entry in candidates:
            runs = isinstance(entry.call, ActionCall) and action and entry.call.action == action.name
            if (
                (wanted is None or key[0] == wanted)
                and request.priority in (0, key[1])
                and (action_id == 0 or runs)
                and request.controller_metadata in (0, entry.controller_metadata)
                and request.metadata in (b"", entry.metadata)
            ):
                yield key, entry

    def same_entry(self, one: p4r.TableEntry, other: p4r.TableEntry) -> bool:
        """Tell whether two messages name one entry, or both the default entry, of a table."""
        table = self.state(one.table_id).table
        return (
            one.table_id == other.table_id
            and one.priority == other.priority
            and one.is_default_action == other.is_default_action
            and parse_key(table, one.match) == parse_key(table, other.match)
        )

    # Entries

    def _insert(self, state: TableState, message: p4r.TableEntry) -> None:
        table = state.table
        if not table.fields:
            raise invalid(f"table {table.name} has no key, so it has a default entry only: MODIFY that one")
        if table.is_const:
            raise denied(f"table {table.name} is constant: its entries are part of the program")
        key = _key(table, message, new=True)
        if not message.HasField("action"):
            raise invalid(f"table {table.name}: an INSERT needs an action")
        call = self._parse_call(table, message.action)
        meter = self._check_resources(table, message)
        if key in state.entries:
            raise already_exists(f"table {table.name} has this entry already: use MODIFY to change it")
        if len(state.entries) >= table.size:
            raise exhausted(f"table {table.name} is full: it holds {table.size} entries")
        handle = self._place(table, key, call)
        entry = state.entries[key] = Entry(
            handle, call, metadata=message.metadata, controller_metadata=message.controller_metadata
        )
        if meter is not None:
            self._plane.direct_meter_write(table.name, handle, meter)
        self._write_resources(table, key, entry, message)

    def _modify(self, state: TableState, message: p4r.TableEntry) -> None:
        table = state.table
        key = _key(table, message)
        fixed = table.is_const and (
            message.HasField("action")
            or message.metadata
            or message.controller_metadata
            or message.idle_timeout_ns
        )
        if fixed:
            raise denied(
                f"table {table.name} is constant: only direct resources of its entries can be modified"
            )
        call = self._parse_call(table, message.action) if message.HasField("action") else None
        meter = self._check_resources(table, message)
        entry = _find(state, key)
        if call is not None:
            self._change(table, entry, call)
        entry.metadata = message.metadata
        entry.controller_metadata = message.controller_metadata
        if table.direct_meter:
            self._plane.direct_meter_write(table.name, entry.handle, meter)
        self._write_resources(table, key, entry, message)

    def _delete(self, state: TableState, message: p4r.TableEntry) -> None:
        table = state.table
        if table.is_const:
            raise denied(f"table {table.name} is constant: its entries are part of the program")
        key = _key(table, message)
        entry = _find(state, key)
        self._plane.delete(table.name, entry.handle)
        del state.entries[key]
        self.idle.drop((table.id, key))
        if not isinstance(entry.call, ActionCall):
            self.profiles.release(table, entry.call)

    def _place(self, table: Table, key: Key, call: ActionCall | Choice) -> int:
        """Put a new entry into the data plane; return its handle."""
        match, priority = key
        if isinstance(call, ActionCall):
            name, params = call.action, call.params
            return self._plane.insert(table.name, match, priority=priority, action=name, params=params)
        target = self.profiles.acquire(table, call)
        try:
            return self._plane.insert(table.name, match, priority=priority, target=target)
        except Exception:
            self.profiles.release(table, call)
            raise

    def _change(self, table: Table, entry: Entry, call: ActionCall | Choice) -> None:
        """Give an entry another action, or something else to refer to."""
        before, entry.call = entry.call, call
        if isinstance(call, ActionCall):
            self._plane.modify(table.name, entry.handle, action=call.action, params=call.params)
            return
        target = self.profiles.acquire(table, call)
        self._plane.modify(table.name, entry.handle, target=target)
        if not isinstance(before, ActionCall):
            self.profiles.release(table, before)

    # The default entry

    def _write_default(self, operation: Operation, state: TableState, message: p4r.TableEntry) -> None:
        table = state.table
        if operation != Operation.MODIFY:
            raise invalid(f"table {table.name}: the default entry is always there, only MODIFY applies to it")
        _check_default_key(table, message)
        if table.indirect:
            raise invalid(f"table {table.name} has an action profile: its default action cannot be changed")
        if table.const_default:
            raise denied(f"table {table.name} has a constant default action")
        self._check_resources(table, message, default=True)
        if message.HasField("counter_data") or message.HasField("meter_config"):
            raise unimplemented(
                f"table {table.name}: direct resources belong to entries, not to the default entry"
            )
        if not message.HasField("action"):
            self._plane.set_default(table.name, None)
            state.default = DefaultEntry(table.default)
            return
        call = self._parse_action(table, message.action, default=True)
        self._plane.set_default(table.name, call.action, call.params)
        state.default = DefaultEntry(call, message.metadata, message.controller_metadata)

    # Actions and direct resources

    def _parse_call(self, table: Table, message: p4r.TableAction) -> ActionCall | Choice:
        if table.indirect:
            return self.profiles.parse(table, message)
        return self._parse_action(table, message, default=False)

    def _parse_action(self, table: Table, message: p4r.TableAction, *, default: bool) -> ActionCall:
        kind = message.WhichOneof("type")
        if kind != "action":
            raise invalid(f"table {table.name} takes a direct action, the request gives {kind or 'none'}")
        what = f"table {table.name}"
        return parse_action(self._schema, what, table.actions, message.action, default=default)

    def _check_resources(
        self, table: Table, message: p4r.TableEntry, *, default: bool = False
    ) -> MeterConfig | None:
        """Refuse what the table does not have; return the meter's configuration."""
        if message.HasField("time_since_last_hit"):
            raise invalid(f"table {table.name}: time_since_last_hit is the switch's to set")
        if message.idle_timeout_ns:
            _check_idle_timeout(table, "idle_timeout_ns", default=default)
            if message.idle_timeout_ns < 0:
                raise invalid(f"table {table.name}: idle_timeout_ns {message.idle_timeout_ns} is negative")
        if message.HasField("counter_data"):
            if not table.direct_counter:
                raise invalid(f"table {table.name} has no direct counter")
            check_counter_data(message.counter_data)
        if not (message.HasField("meter_config") or message.HasField("meter_counter_data")):
            return None
        if table.direct_meter is None:
            raise invalid(f"table {table.name} has no direct meter")
        if message.HasField("meter_counter_data"):
            raise unimplemented(COUNTERS_TEXT)
        return parse_config(table.direct_meter, message.meter_config)

    def _write_resources(self, table: Table, key: Key, entry: Entry, message: p4r.TableEntry) -> None:
        """Write counter and timeout of an entry that has just been written."""
        if message.HasField("counter_data"):
            data = message.counter_data
            self._plane.direct_counter_write(table.name, entry.handle, data.packet_count, data.byte_count)
        if message.idle_timeout_ns or entry.idle_timeout_ns:
            entry.idle_timeout_ns = message.idle_timeout_ns
            self.idle.watch((table.id, key), table.name, entry.handle, entry.idle_timeout_ns, self._clock())

    # Answers

    def _format(self, table: Table, key: Key, entry: Entry, request: p4r.TableEntry) -> p4r.TableEntry:
        message = p4r.TableEntry(
            table_id=table.id,
            match=format_key(table, key[0]),
            action=self._format_call(entry.call),
            priority=key[1],
            controller_metadata=entry.controller_metadata,
            metadata=entry.metadata,
            idle_timeout_ns=entry.idle_timeout_ns,
            is_const=entry.is_const,
        )
        if request.HasField("counter_data") and table.direct_counter:
            packets, bytes_ = self._plane.direct_counter_read(table.name, entry.handle)
            message.counter_data.CopyFrom(counter_data(packets, bytes_))
        if request.HasField("meter_counter_data"):
            raise unimplemented(COUNTERS_TEXT)
        if request.HasField("meter_config") and table.direct_meter:
            config = self._plane.direct_meter_read(table.name, entry.handle)
            if config is not None:
                message.meter_config.CopyFrom(format_config(config))
        if request.HasField("time_since_last_hit") and table.idle_timeout:
            message.time_since_last_hit.elapsed_ns = self._plane.idle_ns(table.name, entry.handle)
        return message

    def _format_default(self, state: TableState, request: p4r.TableEntry) -> p4r.TableEntry:
        table, default = state.table, state.default
        _check_default_key(table, request)
        message = p4r.TableEntry(
            table_id=table.id,
            is_default_action=True,
            controller_metadata=default.controller_metadata,
            metadata=default.metadata,
            is_const=table.const_default,
        )
        if default.call is not None:
            message.action.CopyFrom(self._format_call(default.call))
        return message

    def _format_call(self, call: ActionCall | Choice) -> p4r.TableAction:
        if isinstance(call, ActionCall):
            return p4r.TableAction(action=format_action(self._schema, call))
        return self.profiles.format(call)


class DirectCounters:
    """Handler of `DirectCounterEntry`: the counters that hang on table entries."""

    def __init__(self, tables: Tables, plane: DataPlane) -> None:
        self._tables = tables
        self._plane = plane

    def write(self, operation: Operation, message: p4r.DirectCounterEntry) -> None:
        """Set one counter. Only MODIFY exists; without data nothing changes."""
        if operation != Operation.MODIFY:
            raise invalid("a direct counter lives and dies with its table entry: only MODIFY applies to it")
        if not message.HasField("table_entry"):
            raise invalid("a direct counter is named by its table entry, which is missing")
        state = self._tables.state(message.table_entry.table_id)
        _check_direct_counter(state.table, message.table_entry)
        entry = find_entry(state, message.table_entry)
        if message.HasField("data"):
            check_counter_data(message.data)
            self._plane.direct_counter_write(
                state.table.name, entry.handle, message.data.packet_count, message.data.byte_count
            )

    def read(self, request: p4r.DirectCounterEntry) -> Iterator[p4r.Entity]:
        """Read the counters of the entries that a request selects; NOT_FOUND for a key that is not there."""
        selector = request.table_entry
        for state in self._tables.select(selector):
            if not selector.table_id and not state.table.direct_counter:
                continue
            _check_direct_counter(state.table, selector)
            selected = list(self._tables.matching(state, selector))
            if selector.match and not selected:
                raise missing_entry(state.table)
            for key, entry in selected:
                data = counter_data(*self._plane.direct_counter_read(state.table.name, entry.handle))
                answer = p4r.DirectCounterEntry(table_entry=named(state.table, key), data=data)
                yield p4r.Entity(direct_counter_entry=answer)


def counter_data(packets: int, bytes_: int) -> p4r.CounterData:
    """Return a counter's value; the data plane counts 64 bits, the message holds 63 and a sign."""
    limit = (1 << 63) - 1
    return p4r.CounterData(packet_count=packets & limit, byte_count=bytes_ & limit)


def check_counter_data(data: p4r.CounterData) -> None:
    """Refuse negative counts."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"a counter cannot be negative: {data.packet_count} packets, {data.byte_count} bytes")


def _key(table: Table, message: p4r.TableEntry, *, new: bool = False) -> Key:
    key = parse_key(table, message.match, new=new)
    check_priority(table, message.priority)
    return key, message.priority


def named(table: Table, key: Key) -> p4r.TableEntry:
    """Return a message that names an entry, and nothing more."""
    return p4r.TableEntry(table_id=table.id, match=format_key(table, key[0]), priority=key[1])


def find_entry(state: TableState, message: p4r.TableEntry) -> Entry:
    """Return the entry that a message names by match fields and priority; NOT_FOUND if there is none."""
    return _find(state, _key(state.table, message))


def _find(state: TableState, key: Key) -> Entry:
    entry = state.entries.get(key)
    if entry is None:
        raise missing_entry(state.table)
    return entry


def missing_entry(table: Table) -> P4RuntimeError:
    """Return the error for a match key and priority that no entry has."""
    return not_found(f"table {table.name} has no entry with this match key and priority")


def _check_default_key(table: Table, message: p4r.TableEntry) -> None:
    if message.match:
        raise invalid(f"table {table.name}: the default entry has no match fields")
    if message.priority:
        raise invalid(f"table {table.name}: the default entry has no priority")


def _check_direct_counter(table: Table, message: p4r.TableEntry) -> None:
    if not table.direct_counter:
        raise invalid(f"table {table.name} has no direct counter")
    if message.is_default_action:
        raise unimplemented(f"table {table.name}: direct counters count entries, not the default entry")


def _check_idle_timeout(table: Table, what: str, *, default: bool) -> None:
    if not table.idle_timeout:
        raise invalid(f"table {table.name}: {what}: the program declares no idle timeout for it")
    if default:
        raise invalid(f"table {table.name}: {what}: the default entry has no idle timeout")
