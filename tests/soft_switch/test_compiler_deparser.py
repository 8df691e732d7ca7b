"""Statements in the deparser, and what marks a packet to be dropped."""

from __future__ import annotations

import logging
import threading

import pytest

from soft_switch.bmv2.reader import read_program
from soft_switch.dataplane import DataPlane
from soft_switch.errors import ProgramError
from tests.soft_switch.conftest import PlaneFactory
from tests.soft_switch.programs import program

LINES_S = 10.0


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 9])
def test_a_copy_of_standard_metadata_is_marked(plane_with: PlaneFactory, first: int, second: int) -> None:
    """In a control that was inlined the mark goes to its own copy; what is not copied back does not count."""
    frame = bytes([first, second, 3])
    assert plane_with("deparser").process(0, frame) == ([] if first == 1 else [(2, frame)])


class Lines(logging.Handler):
    """What a data plane logs, as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._came = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._came:
            self.lines.append(record.getMessage())
            self._came.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._came:
            self._came.wait_for(lambda: len(self.lines) >= count, LINES_S)
            return list(self.lines)


def test_statements() -> None:
    log, lines = logging.Logger("test"), Lines()
    log.addHandler(lines)
    with DataPlane(log=log) as plane:
        plane.load(program("deparser"))
        assert plane.process(0, b"\x07\x08") == [(2, b"\x07\x08")]
        assert plane.process(0, b"\x07\x4d") == []  # the assertion fails
        assert plane.stats().failed_asserts == 1
        first, second, third = lines.wait_for(3)
    assert (first, second) == ("emitted 7 and 5", "emitted 7 and 5")
    assert third.startswith("assert failed")


def test_a_hash_that_p4c_does_not_define() -> None:
    text = program("deparser").replace(b'"log_msg"', b'"hash"', 1)
    broken = text.replace(
        b'"type" : "string",\n              "value" : "emitted {} and {}"',
        b'"type" : "calculation", "value" : "calc"',
    )
    assert broken != text
    with pytest.raises(ProgramError, match="calculation calc"):
        read_program(broken)
