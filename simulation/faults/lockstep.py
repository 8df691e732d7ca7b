"""The compiled program beside the model: it is given what each switch of a run is given, and does the same.

`embedded`: the soft switch's data plane, in this process. What leaves is compared frame by frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from controller.entries import Entry, Group, Key, TableEntry, key_of
from p4src import CPU_PORT, HISTORY_MESSAGES, JSON_PATH
from simulation.faults.node import SwitchNode
from simulation.rack import InvariantError
from simulation.switch.comparing import describe, normal
from simulation.switch.state import Out
from soft_switch.dataplane import DataPlane, Exact, Lpm

if TYPE_CHECKING:
    from simulation.faults.world import World

_ECHO, _NONCE = 2, slice(1, 5)  # of a packet to the controller: its op, and where the nonce is


class EmbeddedShadow:
    """The program on a data plane of its own, which is used again: `reset` gives it to another switch."""

    def __init__(self) -> None:
        self.plane = DataPlane(cpu_port=CPU_PORT)
        self.plane.load(JSON_PATH.read_bytes())
        self.node: SwitchNode | None = None
        self.packets = 0
        self._handles: dict[Key, tuple[TableEntry, int]] = {}
        self._groups: set[int] = set()
        self._flows: set[int] = set()
        self._slots: set[int] = set()

    def reset(self, node: SwitchNode | None) -> None:
        """Empty, and the counterpart of that switch."""
        for entry, handle in self._handles.values():
            self.plane.delete(entry.table, handle)
        for group in self._groups:
            self.plane.multicast_delete(group)
        self._handles.clear()
        self._groups.clear()
        self.restart()
        self._slots.clear()
        self._flows.clear()
        self.node = node

    def write(self, insert: Sequence[Entry], delete: Sequence[Entry]) -> None:
        """What the controller wrote."""
        for entry in delete:
            if isinstance(entry, Group):
                self.plane.multicast_delete(entry.group)
                self._groups.discard(entry.group)
            else:
                old, handle = self._handles.pop(key_of(entry))
                self.plane.delete(old.table, handle)
        for entry in insert:
            if isinstance(entry, Group):
                self.plane.multicast_set(entry.group, entry.replicas)
                self._groups.add(entry.group)
            else:
                self._put(entry)

    def _put(self, entry: TableEntry) -> None:
        key, params = key_of(entry), [value for _, value in entry.params]
        self._flows |= {value for name, value in entry.params if name == "flow"}
        if key in self._handles:
            _, handle = self._handles[key]
            self.plane.modify(entry.table, handle, action=entry.action, params=params)
        else:
            match = [Lpm(*v) if isinstance(v, tuple) else Exact(v) for _, v in entry.match]
            handle = self.plane.insert(entry.table, match, priority=0, action=entry.action, params=params)
        self._handles[key] = (entry, handle)

    def restart(self) -> None:
        """What registers hold is of generation 0, which nobody has."""
        if self.node is not None:
            self._slots |= set(self.node.plane.registers)
        for slot in self._slots:
            self.plane.register_write("SwitchIngress.slot_state", slot, 0)
        for flow in self._flows:
            self.plane.register_write("SwitchIngress.latest_message", flow, 0)
            self.plane.register_write("SwitchIngress.awaited_psns", flow, 0)
            for cell in range(HISTORY_MESSAGES):
                number = flow * HISTORY_MESSAGES + cell
                self.plane.register_write("SwitchIngress.placement.records", number, 0)

    def process(self, port: int, frame: bytes, left: list[Out], echoes: list[int]) -> None:
        """The model has done that with a frame: the program has to do the same."""
        self.packets += 1
        actual = [(out, bytes(data)) for out, data in self.plane.process(port, frame)]
        told = [data for out, data in actual if out == CPU_PORT]
        actual = [item for item in actual if item[0] != CPU_PORT]
        alike = sorted(actual) == sorted(left) or sorted(map(normal, actual)) == sorted(map(normal, left))
        nonces = [int.from_bytes(data[_NONCE], "big") for data in told if data[0] == _ECHO]
        if alike and nonces == echoes:
            return
        name = self.node.name if self.node is not None else "?"
        raise InvariantError(
            f"{name}: the program and the model differ on what came in by port {port}, {describe(frame)}; "
            f"the program: {[(p, describe(f)) for p, f in actual]}, {nonces}; the model: "
            f"{[(p, describe(f)) for p, f in left]}, {echoes}"
        )


@contextmanager
def shadows(target: str) -> Iterator[Callable[[World, SwitchNode], None]]:
    """Gives each switch of a run its counterpart."""
    spare: list[EmbeddedShadow] = []
    used: list[EmbeddedShadow] = []
    current: list[World] = []

    def give(world: World, node: SwitchNode) -> None:
        if not current or current[0] is not world:
            current[:] = [world]
            spare.extend(used)
            used.clear()
        shadow = spare.pop() if spare else EmbeddedShadow()
        shadow.reset(None)
        shadow.node = node
        used.append(shadow)
        node.shadow = shadow

    try:
        yield give
    finally:
        for shadow in [*spare, *used]:
            shadow.plane.close()
