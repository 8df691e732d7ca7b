"""Control-plane commands of scripts, done by the data plane's own methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from soft_switch.dataplane import DataPlane, Match, MeterConfig


class Control(Protocol):
    """The ways into the switch's tables, arrays and replication."""

    def insert(
        self, table: str, match: Sequence[Match], priority: int, action: str, params: Sequence[int]
    ) -> int:
        """Insert an entry; greater priority wins. Its handle."""

    def set_default(self, table: str, action: str, params: Sequence[int]) -> None:
        """Set the default action."""

    def remove_all(self) -> None:
        """Remove all entries that were inserted."""

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """Return packets and bytes of a cell."""

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        """Set a cell."""

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        """Return packets and bytes of an entry."""

    def register_read(self, name: str, index: int) -> int:
        """Return the value of a cell."""

    def register_write(self, name: str, index: int, value: int) -> None:
        """Set a cell."""

    def meter_read(self, name: str, index: int) -> object:
        """Return the rates of a cell."""

    def meter_write(self, name: str, index: int, rates: Sequence[tuple[float, int]]) -> None:
        """Set a cell: committed and peak (units per microsecond, burst)."""

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create or replace a group: (port, instance)."""

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create or replace a mirroring session: (port, instance)."""

    def clone_delete(self, session: int) -> None:
        """Delete a mirroring session."""


class Direct:
    """The data plane's own methods."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self._inserted: list[tuple[str, int]] = []

    def insert(
        self, table: str, match: Sequence[Match], priority: int, action: str, params: Sequence[int]
    ) -> int:
        handle = self.plane.insert(table, match, priority=priority, action=action, params=params)
        self._inserted.append((table, handle))
        return handle

    def set_default(self, table: str, action: str, params: Sequence[int]) -> None:
        self.plane.set_default(table, action, params)

    def remove_all(self) -> None:
        for table, handle in self._inserted:
            self.plane.delete(table, handle)
        self._inserted = []

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        return self.plane.counter_read(name, index)

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        self.plane.counter_write(name, index, packets, bytes_)

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        return self.plane.direct_counter_read(table, handle)

    def register_read(self, name: str, index: int) -> int:
        return self.plane.register_read(name, index)

    def register_write(self, name: str, index: int, value: int) -> None:
        self.plane.register_write(name, index, value)

    def meter_read(self, name: str, index: int) -> object:
        return self.plane.meter_read(name, index)

    def meter_write(self, name: str, index: int, rates: Sequence[tuple[float, int]]) -> None:
        (cir, cburst), (pir, pburst) = rates
        self.plane.meter_write(name, index, MeterConfig(round(cir * 1e6), cburst, round(pir * 1e6), pburst))

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self.plane.multicast_set(group, replicas)

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]]) -> None:
        self.plane.clone_set(session, replicas, 0)

    def clone_delete(self, session: int) -> None:
        self.plane.clone_delete(session)
