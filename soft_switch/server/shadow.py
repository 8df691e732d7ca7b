"""Forwarding state without forwarding: a backend that only remembers.

A pipeline that is saved but not committed takes writes and reads (P4Runtime, VERIFY_AND_SAVE), while the data
plane still runs the old one. They go here first and are replayed on COMMIT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from soft_switch.description import Match, MeterConfig, Target
from soft_switch.errors import TableFull, UnknownEntry
from soft_switch.server.program import ProgramTables
from soft_switch.server.schema import Schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Shadow:
    """The forwarding state of one program, as fresh after a load."""

    def __init__(self, schema: Schema, program: ProgramTables) -> None:
        self._capacity: Mapping[str, int] = {
            table.name: program.sizes[table.id] for table in schema.tables.values()
        }
        self._entries: dict[str, set[int]] = {
            table.name: set(range(len(program.entries.get(table.id, ())))) for table in schema.tables.values()
        }
        self._direct: dict[tuple[str, int], tuple[int, int]] = {}
        self._counter_sizes = {counter.name: counter.size for counter in schema.counters.values()}
        self._counters: dict[tuple[str, int], tuple[int, int]] = {}  # cells that were written
        self._registers: dict[tuple[str, int], int] = {}  # cells that were written
        self._meters: dict[tuple[str, int], MeterConfig] = {}
        self._direct_meters: dict[tuple[str, int], MeterConfig] = {}
        self._groups: dict[int, tuple[tuple[int, int], ...]] = {}
        self._sessions: set[int] = set()
        self._next_handle = 1 << 32  # apart from the program's own entries

    def insert(
        self,
        table: str,
        match: Sequence[Match],
        *,
        priority: int,
        action: str | None = None,
        params: Sequence[int] = (),
        target: Target | None = None,
    ) -> int:
        entries = self._entries[table]
        if len(entries) >= self._capacity[table]:
            raise TableFull(f"table {table} is full: it holds {self._capacity[table]} entries")
        handle = self._handle()
        entries.add(handle)
        return handle

    def modify(
        self,
        table: str,
        handle: int,
        *,
        action: str | None = None,
        params: Sequence[int] = (),
        target: Target | None = None,
    ) -> None:
        self._check(table, handle)

    def delete(self, table: str, handle: int) -> None:
        self._check(table, handle)
        self._entries[table].remove(handle)
        self._direct.pop((table, handle), None)
        self._direct_meters.pop((table, handle), None)

    def set_default(self, table: str, action: str | None, params: Sequence[int] = ()) -> None:
        return

    def idle_ns(self, table: str, handle: int) -> int:
        self._check(table, handle)
        return 0

    def port_is_up(self, port: int) -> bool | None:
        return True

    # What a profile's members and groups are, and who refers to them, the server knows by itself.

    def profile_member_insert(self, profile: str, action: str, params: Sequence[int]) -> int:
        return self._handle()

    def profile_member_modify(self, profile: str, member: int, action: str, params: Sequence[int]) -> None:
        return

    def profile_member_delete(self, profile: str, member: int) -> None:
        return

    def profile_group_insert(self, profile: str, members: Sequence[int]) -> int:
        return self._handle()

    def profile_group_modify(self, profile: str, group: int, members: Sequence[int]) -> None:
        return

    def profile_group_delete(self, profile: str, group: int) -> None:
        return

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        return self._counters.get((name, index), (0, 0))

    def counter_read_all(self, name: str) -> npt.NDArray[np.uint64]:
        import numpy as np  # here, because a switch whose counters nobody reads starts without it

        counts = np.zeros((self._counter_sizes[name], 2), dtype=np.uint64)
        for (counter, index), value in self._counters.items():
            if counter == name:
                counts[index] = value
        return counts

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        self._counters[name, index] = (packets, bytes_)

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        self._check(table, handle)
        return self._direct.get((table, handle), (0, 0))

    def direct_counter_write(self, table: str, handle: int, packets: int, bytes_: int) -> None:
        self._check(table, handle)
        self._direct[table, handle] = (packets, bytes_)

    def register_read(self, name: str, index: int) -> int:
        return self._registers.get((name, index), 0)

    def register_write(self, name: str, index: int, value: int) -> None:
        self._registers[name, index] = value

    def meter_read(self, name: str, index: int) -> MeterConfig | None:
        return self._meters.get((name, index))

    def meter_write(self, name: str, index: int, config: MeterConfig | None) -> None:
        _set(self._meters, (name, index), config)

    def direct_meter_read(self, table: str, handle: int) -> MeterConfig | None:
        self._check(table, handle)
        return self._direct_meters.get((table, handle))

    def direct_meter_write(self, table: str, handle: int, config: MeterConfig | None) -> None:
        self._check(table, handle)
        _set(self._direct_meters, (table, handle), config)

    def value_set_write(self, name: str, members: Sequence[Sequence[Match]]) -> None:
        return

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._groups[group] = tuple(replicas)

    def multicast_delete(self, group: int) -> None:
        if group not in self._groups:
            raise UnknownEntry(f"there is no multicast group {group}")
        del self._groups[group]

    def _handle(self) -> int:
        self._next_handle += 1
        return self._next_handle - 1

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], packet_length: int = 0) -> None:
        self._sessions.add(session)

    def clone_delete(self, session: int) -> None:
        if session not in self._sessions:
            raise UnknownEntry(f"there is no clone session {session}")
        self._sessions.remove(session)

    def _check(self, table: str, handle: int) -> None:
        if handle not in self._entries[table]:
            raise UnknownEntry(f"table {table} has no entry with handle {handle}")


def _set(
    meters: dict[tuple[str, int], MeterConfig], cell: tuple[str, int], config: MeterConfig | None
) -> None:
    if config is None:
        meters.pop(cell, None)
    else:
        meters[cell] = config
