"""A switch with the controller's entries: the model, and the compiled program on the embedded data plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from controller.entries import Entry, Group, Key, TableEntry, key_of
from p4src import CPU_PORT, HISTORY_MESSAGES, JSON_PATH
from simulation.switch.comparing import describe, normal
from simulation.switch.from_entries import EntrySwitch
from simulation.switch.state import PORT_COUNTERS, TREE_COUNTERS
from soft_switch.dataplane import DataPlane, Exact, Lpm
from tests.p4src.rack import COUNTER_NAMES

FLOW_COUNTERS = {
    **COUNTER_NAMES,
    **{name: f"SwitchIngress.slots.{name}" for name in TREE_COUNTERS if name != "no_uplink"},
    "no_uplink": "SwitchIngress.up.no_uplink",
}
PORT_COUNTER_NAMES = {
    "spoofed": "SwitchIngress.edges.spoofed",
    "no_job": "SwitchIngress.tree.no_job",
    "bad_echo": "SwitchIngress.bad_echo",
}
assert set(PORT_COUNTER_NAMES) == set(PORT_COUNTERS)
ECHO, NONCE = 2, slice(1, 5)  # of a packet to the controller: its op, and where the nonce is

Left = list[tuple[int, bytes]]


class EntryPair:
    """One compiled program for a module of tests; `reset` gives it to a switch that starts with nothing."""

    def __init__(self) -> None:
        self.plane = DataPlane(cpu_port=CPU_PORT)
        self.plane.load(JSON_PATH.read_bytes())
        self.handles: dict[Key, tuple[TableEntry, int]] = {}
        self.groups: set[int] = set()
        self.flows: set[int] = set()  # indexes of all that were ever written
        self.model = EntrySwitch()
        self.before = self._read()
        self.packets = 0

    def reset(self) -> None:
        for entry, handle in self.handles.values():
            self.plane.delete(entry.table, handle)
        for group in self.groups:
            self.plane.multicast_delete(group)
        self.handles.clear()
        self.groups.clear()
        self.forget()
        self.model = EntrySwitch()
        self.before = self._read()

    def write(self, insert: Iterable[Entry] = (), *, delete: Iterable[Entry] = ()) -> None:
        insert, delete = list(insert), list(delete)
        self.model.write(insert, delete=delete)
        for entry in delete:
            if isinstance(entry, Group):
                self.plane.multicast_delete(entry.group)
                self.groups.discard(entry.group)
            else:
                old, handle = self.handles.pop(key_of(entry))
                self.plane.delete(old.table, handle)
        for entry in insert:
            if isinstance(entry, Group):
                self.plane.multicast_set(entry.group, entry.replicas)
                self.groups.add(entry.group)
            else:
                self._put(entry)

    def _put(self, entry: TableEntry) -> None:
        key, params = key_of(entry), [value for _, value in entry.params]
        self.flows |= {value for name, value in entry.params if name == "flow"}
        if key in self.handles:
            _, handle = self.handles[key]
            self.plane.modify(entry.table, handle, action=entry.action, params=params)
        else:
            match = [Lpm(*v) if isinstance(v, tuple) else Exact(v) for _, v in entry.match]
            handle = self.plane.insert(entry.table, match, priority=0, action=entry.action, params=params)
        self.handles[key] = (entry, handle)

    def restart(self) -> None:
        """Both with empty registers."""
        self.forget()
        self.model.restart()

    def forget(self) -> None:
        """What registers hold is of generation 0, which nobody has."""
        for slot in self.model.registers:
            self.plane.register_write("SwitchIngress.slot_state", slot, 0)
        for flow in self.flows:
            self.plane.register_write("SwitchIngress.latest_message", flow, 0)
            self.plane.register_write("SwitchIngress.awaited_psns", flow, 0)
            for cell in range(HISTORY_MESSAGES):
                number = flow * HISTORY_MESSAGES + cell
                self.plane.register_write("SwitchIngress.placement.records", number, 0)

    def process(self, port: int, frame: bytes) -> Left:
        """What leaves, after asserting that both agree on it to the byte."""
        self.packets += 1
        echoes = len(self.model.echoes)
        expected = self.model.process(port, frame)
        actual = [(out, bytes(data)) for out, data in self.plane.process(port, frame)]
        told = [data for out, data in actual if out == CPU_PORT]
        actual = [left for left in actual if left[0] != CPU_PORT]
        assert sorted(map(normal, actual)) == sorted(map(normal, expected)), (
            f"on port {port}: {describe(frame)}\nthe program: {[(p, describe(f)) for p, f in actual]}"
            f"\nthe model: {[(p, describe(f)) for p, f in expected]}"
        )
        nonces = [int.from_bytes(data[NONCE], "big") for data in told]
        assert all(data[0] == ECHO for data in told)
        assert nonces == self.model.echoes[echoes:]
        return expected

    def assert_counters_agree(self) -> None:
        """Sums over all jobs that are or were here; and by port."""
        now = self._read()
        counted = {name: int((now[name] - self.before[name])[:, 0].sum()) for name in FLOW_COUNTERS}
        expected: Counter[str] = self.model.counted()
        wrong = {name: (n, expected[name]) for name, n in counted.items() if n != expected[name]}
        assert not wrong, f"(program, model): {wrong}"
        for name in PORT_COUNTER_NAMES:
            grown = (now[name] - self.before[name])[:, 0]
            found = {port: int(grown[port]) for port in np.flatnonzero(grown)}
            known = {port: n for port, n in self.model.port_counters[name].items() if n}
            assert found == known, f"{name} by port: the program {found}, the model {known}"

    def _read(self) -> dict[str, npt.NDArray[np.uint64]]:
        names = {**FLOW_COUNTERS, **PORT_COUNTER_NAMES}
        return {name: self.plane.counter_read_all(full) for name, full in names.items()}
