"""Statements in the deparser, and what marks a packet to be dropped."""

from __future__ import annotations

import logging
import threading

import pytest

from soft_switch.bmv2.reader import read_program
from soft_switch.compiler import compile_program
from soft_switch.dataplane import DataPlane
from soft_switch.errors import ProgramError
from tests.soft_switch import bmv2_json
from tests.soft_switch.bmv2_json import assign, call, const, field, operation
from tests.soft_switch.conftest import PlaneFactory
from tests.soft_switch.programs import program

LINES_S = 10.0


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 9])
def test_a_copy_of_standard_metadata_is_marked(plane_with: PlaneFactory, first: int, second: int) -> None:
    """Check that an inlined control marks its own copy, which does not count where it is not copied back."""
    frame = bytes([first, second, 3])
    assert plane_with("deparser").process(0, frame) == ([] if first == 1 else [(2, frame)])


class Lines(logging.Handler):
    """Lines that a data plane logs, as they come."""

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
    with pytest.raises(ProgramError, match="refers to 'calc'"):
        compile_program(read_program(broken))


def test_a_packet_given_up_by_the_deparser_is_not_recirculated() -> None:
    op, egress_spec = field("h", "op"), field("standard_metadata", "egress_spec")
    again = call("recirculate", const(1))
    text = bmv2_json.program(
        header={"op": 8},
        metadata={"x": 8},
        actions=[
            [assign(egress_spec, const(2))],
            [assign(op, const(1)), again],
            [assign(op, const(9)), again],
        ],
        ingress={"init_table": "n", "action_calls": [{"name": "n", "action_id": 0, "next_node": None}]},
        egress={
            "init_table": "is_3",
            "conditionals": [
                {
                    "name": f"is_{value}",
                    "id": value,
                    "expression": operation("==", op, const(value)),
                    "true_next": f"n{value}",
                    "false_next": following,
                }
                for value, following in ((3, "is_4"), (4, None))
            ],
            "action_calls": [
                {"name": name, "action_id": number, "next_node": None}
                for name, number in (("n3", 1), ("n4", 2))
            ],
        },
        field_lists=[{"id": 1, "name": "nothing", "elements": []}],
        deparsers=[
            {
                "name": "deparser",
                "order": ["h"],
                "primitives": [call("assert", operation("!=", op, const(9)))],
            }
        ],
    )
    with DataPlane() as plane:
        plane.load(text)
        assert plane.process(1, b"\x03one") == [(2, b"\x01one")]
        assert plane.process(1, b"\x04two") == []
        assert plane.stats().failed_asserts == 1
        assert plane.stats().passes_dropped == 0


def test_a_log_line_beyond_ascii() -> None:
    log, lines = logging.Logger("test"), Lines()
    log.addHandler(lines)
    text = 'Größe ≥ 漢 ?\\"'
    said = call("log_msg", {"type": "string", "value": text}, {"type": "parameters_vector", "value": []})
    with DataPlane(log=log) as plane:
        plane.load(bmv2_json.program(header={"op": 8}, metadata={"x": 8}, actions=[[said]]))
        plane.process(1, b"\x00")
        assert lines.wait_for(1) == [text]
