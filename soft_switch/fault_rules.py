"""The faults of a running data plane: rules at its ports, and what they struck."""

from __future__ import annotations

import ctypes
import errno
import threading
from typing import Final

from soft_switch.engine import Engine
from soft_switch.errors import FaultError
from soft_switch.faults import (
    DIRECTIONS,
    FaultKind,
    FaultRule,
    NativeReport,
    PlacedFault,
    read_reports,
)

_LOSS: Final = 0  # the number of what `--loss` asks for; others are counted from 1


class FaultRules:
    """Rules at a data plane's ports, by number. Methods may be called from any thread."""

    def __init__(self, engine: Engine, control: threading.RLock) -> None:
        self._engine = engine
        self._control = control
        self._rules: dict[tuple[int, str, int], FaultRule] = {}
        self._next = 1

    def add(self, places: list[tuple[int, str]], rule: FaultRule, *, number: int | None = None) -> int:
        """Add a rule at ports, with directions ("in", "out"): at all of them or, with FaultError, at none.

        Returns its number: the given one, which must be new there, or a new one.
        """
        with self._control:
            chosen = self._next if number is None else number
            done: list[tuple[int, str]] = []
            try:
                for port, direction in places:
                    self._add(port, direction, chosen, rule)
                    done.append((port, direction))
            except FaultError:
                for port, direction in done:
                    self._remove(port, direction, chosen)
                raise
            self._next = max(self._next, chosen + 1)
        return chosen

    def remove(self, number: int | None = None) -> int:
        """Remove the rules of a number, or all but `set_loss`'s; return from how many places."""
        with self._control:
            gone = [
                (port, direction, one)
                for port, direction, one in self._rules
                if (one == number if number is not None else one != _LOSS)
            ]
            for port, direction, one in gone:
                self._remove(port, direction, one)
        return len(gone)

    def forget_port(self, port: int) -> None:
        """Forget the rules of a port that is gone."""
        for key in [key for key in self._rules if key[0] == port]:
            del self._rules[key]

    def all(self) -> list[PlacedFault]:
        """Return every rule with its counts, by number, then port."""
        found = []
        with self._control:
            for port, direction in sorted({key[:2] for key in self._rules}):
                for report in self._reports(port, direction):
                    found.append(
                        PlacedFault(
                            number=report.id,
                            port=port,
                            direction=direction,
                            rule=self._rules[port, direction, report.id],
                            matched=report.matched,
                            struck=report.struck,
                        )
                    )
        return sorted(found, key=lambda fault: (fault.number, fault.port, fault.direction))

    def struck(self, port: int) -> dict[tuple[str, FaultKind], int]:
        """Return how many frames of a port each kind of fault has struck, by removed rules as well."""
        counts = {}
        values = (ctypes.c_uint64 * len(FaultKind))()
        with self._control:
            for out, direction in enumerate(DIRECTIONS):
                if self._engine.library.engine_fault_struck(self._engine.handle, port, out, values) == 0:
                    counts.update(
                        {(direction, kind): value for kind, value in zip(FaultKind, values, strict=True)}
                    )
        return counts

    def set_loss(self, port: int, direction: str, probability: float, seed: int) -> bool:
        """Set the loss of `--loss`: a rule of its own, in place of the last. False: there is no such port."""
        with self._control:
            self._remove(port, direction, _LOSS)
            if probability == 0:
                return True
            try:
                rule = FaultRule(kind=FaultKind.LOSS, probability=probability, seed=seed)
                self._add(port, direction, _LOSS, rule)
            except FaultError:
                return False
        return True

    def _add(self, port: int, direction: str, number: int, rule: FaultRule) -> None:
        if direction not in DIRECTIONS:
            raise FaultError(f"{direction!r} is no direction: give 'in' or 'out'")
        native = rule.native(number)
        out = DIRECTIONS.index(direction)
        status = self._engine.library.engine_fault_add(self._engine.handle, port, out, ctypes.byref(native))
        if status == -errno.EEXIST:
            raise FaultError(f"port {port} has a fault {number} {direction}ward already")
        if status < 0:
            raise FaultError(f"there is no port {port}")
        self._rules[port, direction, number] = rule

    def _remove(self, port: int, direction: str, number: int) -> None:
        out = DIRECTIONS.index(direction)
        self._engine.library.engine_fault_remove(self._engine.handle, port, out, number)
        self._rules.pop((port, direction, number), None)

    def _reports(self, port: int, direction: str) -> list[NativeReport]:
        engine, out = self._engine.handle, DIRECTIONS.index(direction)
        return read_reports(
            lambda to, room: self._engine.library.engine_fault_report(engine, port, out, to, room)
        )
