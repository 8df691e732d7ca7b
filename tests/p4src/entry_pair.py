"""A switch with the controller's entries: the model, and the compiled program on the embedded data plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from controller.entries import Entry
from p4reduce.oracle.comparing import describe
from p4reduce.oracle.from_entries import EntrySwitch
from p4reduce.oracle.state import Slot
from p4reduce.simulation.compiled import ACCUMULATORS, CompiledSwitch, accumulator, are_alike
from tests.p4src.rack import COUNTER_NAMES

FLOW_COUNTERS = {
    **COUNTER_NAMES,
    **{name: f"SwitchIngress.slots.{name}" for name in ("partials", "results", "late", "asked")},
    "no_uplink": "SwitchIngress.up.no_uplink",
}
PORT_COUNTER_NAMES = {
    "unnamed": "SwitchIngress.edges.unnamed",
    "spoofed": "SwitchIngress.origin.spoofed",
    "no_job": "SwitchIngress.tree.no_job",
    "bad_echo": "SwitchIngress.bad_echo",
}
Left = list[tuple[int, bytes]]


class EntryPair:
    """One compiled program for a module of tests; `reset` gives it to a switch that starts with nothing."""

    def __init__(self) -> None:
        self.switch = CompiledSwitch()
        self.plane = self.switch.plane
        self.model = EntrySwitch()
        self.before = self._read()
        self.packets = 0

    def reset(self) -> None:
        self.switch.clear()
        self.switch.forget(self.model.registers)
        self.model = EntrySwitch()
        self.before = self._read()

    def write(self, insert: Iterable[Entry] = (), *, delete: Iterable[Entry] = ()) -> None:
        insert, delete = list(insert), list(delete)
        self.model.write(insert, delete=delete)
        self.switch.write(insert, delete)

    def restart(self) -> None:
        """Empty the registers of both."""
        self.switch.forget(self.model.registers)
        self.model.restart()

    def process(self, port: int, frame: bytes) -> Left:
        """Return what leaves the program, after asserting that both agree on it to the byte."""
        self.packets += 1
        echoes = len(self.model.echoes)
        expected = self.model.process(port, frame)
        actual, nonces = self.switch.process(port, frame)
        assert are_alike(actual, expected), (
            f"on port {port}: {describe(frame)}\nthe program: {[(p, describe(f)) for p, f in actual]}"
            f"\nthe model: {[(p, describe(f)) for p, f in expected]}"
        )
        assert nonces == self.model.echoes[echoes:]
        return actual

    def assert_counters_agree(self) -> None:
        """Assert that both agree on sums over all jobs, past ones too, on ports, and on what slots hold."""
        self.assert_slots_agree()
        now = self._read()
        counted = {name: int((now[name] - self.before[name])[:, 0].sum()) for name in FLOW_COUNTERS}
        expected: Counter[str] = self.model.counted()
        assert set(expected) <= set(FLOW_COUNTERS)
        assert set(self.model.port_counters) <= set(PORT_COUNTER_NAMES)
        wrong = {name: (n, expected[name]) for name, n in counted.items() if n != expected[name]}
        assert not wrong, f"(program, model): {wrong}"
        for name in PORT_COUNTER_NAMES:
            grown = (now[name] - self.before[name])[:, 0]
            found = {port: int(grown[port]) for port in np.flatnonzero(grown)}
            known = {port: n for port, n in self.model.port_counters[name].items() if n}
            assert found == known, f"{name} by port: the program {found}, the model {known}"

    def assert_slots_agree(self) -> None:
        """Assert that both agree on each slot: its tag, who is in it, and both numbers of every chunk.

        That holds for chunks that were written, and for those that were not.
        """
        for number, slot in self.model.registers.items():
            assert self.plane.register_read("SwitchIngress.slot_state", number) == state_of(slot)
            for chunk, held in enumerate(zip(slot.chunks, slot.seconds, strict=True)):
                for register, lanes in zip(ACCUMULATORS, held, strict=True):
                    name = accumulator(chunk, register)
                    known = int.from_bytes(lanes.astype(">i4").tobytes(), "big")
                    assert self.plane.register_read(name, number) == known, f"slot {number}: {name}"

    def _read(self) -> dict[str, npt.NDArray[np.uint64]]:
        names = {**FLOW_COUNTERS, **PORT_COUNTER_NAMES}
        return {name: self.plane.counter_read_all(full) for name, full in names.items()}


def state_of(slot: Slot) -> int:
    """Return what the program's `slot_state` has where the model has this slot."""
    (generation, message), flags = slot.tag or (0, 0), slot.result | slot.mismatch << 1
    bitmap, shape = sum(1 << place for place in slot.ranks), slot.op << 5 | slot.count
    return generation << 80 | message << 48 | bitmap << 16 | shape << 8 | flags
