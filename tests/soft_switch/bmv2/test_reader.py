"""Programs that this switch refuses at load, by name and place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from soft_switch.bmv2.reader import read_program
from soft_switch.compiler import compile_program
from soft_switch.dataplane import DataPlane
from soft_switch.errors import ProgramError, UnsupportedConstruct
from tests.soft_switch.bits import pack
from tests.soft_switch.bmv2_json import assign, call, const, field, operation
from tests.soft_switch.bmv2_json import program as made
from tests.soft_switch.programs import NAMES, program


def compiled(text: bytes) -> str:
    return compile_program(read_program(text)).source


def test_refused_with_name_and_line() -> None:
    place = {"filename": "own.p4", "line": 29, "column": 4, "source_fragment": "own()"}
    root = {**json.loads(program("stacks")), "extern_instances": [{"name": "a", "source_info": place}]}
    with pytest.raises(UnsupportedConstruct, match=r"extern instance a is not supported .*own\.p4:29"):
        compiled(json.dumps(root).encode())


def test_a_refused_program_leaves_the_one_before_running() -> None:
    plane = DataPlane()
    plane.load(program("stacks"))
    before = plane.process(1, bytes(20))
    other = {**json.loads(program("stacks")), "extern_instances": [{"name": "a"}]}
    with pytest.raises(UnsupportedConstruct, match="extern instance a"):
        plane.load(json.dumps(other).encode())
    assert plane.process(1, bytes(20)) == before
    plane.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "no 'pipelines'"),
        (b'{"pipelines": 3}', "not the BMv2 JSON"),
        (b'{"pipelines": []}', "not the BMv2 JSON"),
        (b'{"pipelines": [], "__meta__": {"version": [3, 0]}}', "version 3.0"),
    ],
)
def test_not_a_program(text: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        read_program(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_program_with_a_part_missing_is_an_error_not_a_crash(name: str) -> None:
    """Refused where every program needs the part, and never for one that this program leaves empty."""
    root, refused = json.loads(program(name)), set()
    for key in root:
        broken: dict[str, Any] = {k: v for k, v in root.items() if k != key}
        try:
            compiled(json.dumps(broken).encode())
        except ProgramError:
            refused.add(key)
    assert {"actions", "deparsers", "header_types", "headers", "parsers", "pipelines"} <= refused
    assert refused <= {key for key, part in root.items() if part}


def small(*statements: dict[str, Any], **more: Any) -> bytes:
    return made(header={"a": 32}, metadata={"v": 32}, actions=[list(statements)], **more)


@pytest.mark.parametrize(
    ("text", "construct"),
    [
        (small(call("of_my_own", const(1), line=12)), "primitive of_my_own"),
        (small(call("assign", field("h", "a"), operation("#", const(1), const(2)), line=12)), "operator #"),
        (
            small(call("assign", field("h", "a"), {"type": "regular_expression", "value": "x"}, line=12)),
            "operand type regular_expression",
        ),
    ],
)
def test_unknown_statements(text: bytes, construct: str) -> None:
    with pytest.raises(UnsupportedConstruct) as caught:
        compiled(text)
    assert caught.value.construct == construct
    assert caught.value.source is not None
    assert caught.value.source.line == 12


def test_unknown_hash() -> None:
    calculation = {"name": "calc", "id": 0, "algo": "sha3", "input": []}
    with pytest.raises(UnsupportedConstruct, match="hash algorithm sha3"):
        compiled(small(calculations=[calculation]))


def test_names_from_the_program_cannot_break_out_of_a_comment() -> None:
    text = small(assign(field("h", "a"), const(5))).replace(b'"action0"', rb'"x\\\n#error\n*/"')
    plane = DataPlane()
    plane.load(text)
    assert plane.process(1, pack({"a": 32}, {})) == [(0, pack({"a": 32}, {"a": 5}))]
    plane.close()
