"""The compiled program on the embedded data plane, in this process, with a controller's entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.entries import Entry, Group, Key, TableEntry, key_of
from controller.switches.queries import OP_ECHO
from p4reduce.oracle.comparing import normal
from p4reduce.oracle.state import Out
from p4src import CPU_PORT, HISTORY_MESSAGES, JSON_PATH, MAX_CHUNKS
from soft_switch.dataplane import DataPlane, Exact, Lpm

_NONCE = slice(1, 5)  # of a packet to the controller, behind its op
ACCUMULATORS = ("sums", "second_sums")  # of each chunk; the second is for halves that are being added up


def accumulator(chunk: int, register: str) -> str:
    """Return the full name of a chunk's register; the first chunk's is apart, as it can be a header."""
    place = "chunk_0" if chunk == 0 else f"accumulators.chunk_{chunk}"
    return f"SwitchIngress.slots.{place}.{register}"


class CompiledSwitch:
    """A switch that loads the program once; `clear` and `forget` make it one that was just started."""

    def __init__(self) -> None:
        self.plane = DataPlane(cpu_port=CPU_PORT)
        self.plane.load(JSON_PATH.read_bytes())
        self._handles: dict[Key, tuple[TableEntry, int]] = {}
        self._groups: set[int] = set()
        self._flows: set[int] = set()  # indexes of all that were written since registers were empty

    def write(self, insert: Sequence[Entry], delete: Sequence[Entry]) -> None:
        """Take entries away; insert some, or change those with the same key."""
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

    def clear(self) -> None:
        """Take all entries away."""
        for entry, handle in self._handles.values():
            self.plane.delete(entry.table, handle)
        for group in self._groups:
            self.plane.multicast_delete(group)
        self._handles.clear()
        self._groups.clear()

    def forget(self, slots: Iterable[int]) -> None:
        """Reset the registers of these slots, and of all flows, to generation 0, which no job has.

        Accumulators are emptied only because tests compare them: no packet is told what an older one left.
        """
        for slot in slots:
            self.plane.register_write("SwitchIngress.slot_state", slot, 0)
            for chunk in range(MAX_CHUNKS):
                for register in ACCUMULATORS:
                    self.plane.register_write(accumulator(chunk, register), slot, 0)
        for flow in self._flows:
            self.plane.register_write("SwitchIngress.latest_message", flow, 0)
            self.plane.register_write("SwitchIngress.awaited_psns", flow, 0)
            for cell in range(HISTORY_MESSAGES):
                number = flow * HISTORY_MESSAGES + cell
                self.plane.register_write("SwitchIngress.placement.records", number, 0)
        if not self._handles:
            self._flows.clear()

    def process(self, port: int, frame: bytes) -> tuple[list[Out], list[int]]:
        """Return what leaves by ports, and the nonces of the echoes that the controller is told of."""
        leaving = [(out, bytes(data)) for out, data in self.plane.process(port, frame)]
        told = [data for out, data in leaving if out == CPU_PORT]
        assert all(data[0] == OP_ECHO for data in told)
        nonces = [int.from_bytes(data[_NONCE], "big") for data in told]
        return [item for item in leaving if item[0] != CPU_PORT], nonces


def are_alike(some: Sequence[Out], others: Sequence[Out]) -> bool:
    """Return whether the same frames leave by the same ports, but for bytes that nobody may rely on."""
    return sorted(some) == sorted(others) or sorted(map(normal, some)) == sorted(map(normal, others))
