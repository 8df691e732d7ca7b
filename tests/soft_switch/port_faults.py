"""A port's faults by themselves, for given frames and times."""

from __future__ import annotations

import ctypes
import struct
from types import TracebackType
from typing import Final

from soft_switch import native_api as api
from soft_switch.errors import FaultError
from soft_switch.faults import DIRECTIONS, WORD_MASK, FaultRule, read_reports

NEVER_US: Final = WORD_MASK


class PortFaults:
    """What a port's faults make of frames, without a port and without a clock. A context manager."""

    def __init__(self) -> None:
        self._library = api.engine_library()
        self._handle: int | None = self._library.faults_create()
        self._next = 1

    def __enter__(self) -> PortFaults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._library.faults_destroy(self._handle)
        self._handle = None

    def add(self, direction: str, rule: FaultRule) -> int:
        """Add a rule to a direction ("in", "out"); its number."""
        number, self._next = self._next, self._next + 1
        native = rule.native(number)
        self._library.faults_add(self._handle, DIRECTIONS.index(direction), ctypes.byref(native))
        return number

    def remove(self, direction: str, number: int) -> None:
        """Remove a rule; FaultError where there is none of that number."""
        if self._library.faults_remove(self._handle, DIRECTIONS.index(direction), number) < 0:
            raise FaultError(f"there is no fault {number}")

    def struck(self, direction: str) -> dict[int, tuple[int, int]]:
        """Of each rule, by number: how many frames it meant, and how many it struck."""
        reports = read_reports(
            lambda to, room: self._library.faults_report(self._handle, DIRECTIONS.index(direction), to, room)
        )
        return {report.id: (report.matched, report.struck) for report in reports}

    def pass_(self, direction: str, frame: bytes, *, now_us: int) -> list[bytes]:
        """What goes on because of a frame: itself, changed or not, copies, others that it has overtaken."""
        copy = ctypes.create_string_buffer(frame, len(frame))
        out = DIRECTIONS.index(direction)
        collector = self._library.faults_pass(self._handle, out, copy, len(frame), now_us)
        return [data for _, data in self._collected(collector)]

    def release(self, *, now_us: int) -> list[tuple[str, bytes]]:
        """The frames that were held back and are due, with their directions."""
        return self._collected(self._library.faults_release(self._handle, now_us))

    @property
    def due_us(self) -> int | None:
        """When the next held frame is due; None: none is held."""
        due: int = self._library.faults_due_us(self._handle)
        return None if due == NEVER_US else due

    @property
    def active(self) -> bool:
        """Whether frames have to be looked at: there is a rule, or a frame is held."""
        return bool(self._library.faults_active(self._handle))

    def _collected(self, collector: int) -> list[tuple[str, bytes]]:
        size = ctypes.c_size_t()
        start = self._library.engine_collected(collector, ctypes.byref(size))
        data = ctypes.string_at(start, size.value) if size.value else b""
        self._library.engine_free(collector)
        found, at = [], 0
        while at < len(data):
            out, length = struct.unpack_from("=II", data, at)
            found.append((DIRECTIONS[out], data[at + 8 : at + 8 + length]))
            at += 8 + length
        return found
