"""Parser value sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from finsy.proto import p4r

from soft_switch.description import Exact, KeyField, Lpm, Optional_, Range, Ternary, ValueSetInfo
from soft_switch.server.errors import P4RuntimeError
from soft_switch.server.operation import Operation
from soft_switch.server.schema import Schema
from soft_switch.server.value_sets import ValueSets
from tests.soft_switch.server.features import METER, VALUE_SET, exact, why

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane

EVERYTHING = p4r.Entity(value_set_entry=p4r.ValueSetEntry())


def values(*members: int, number: int = VALUE_SET) -> p4r.ValueSetEntry:
    return p4r.ValueSetEntry(value_set_id=number, members=[{"match": [exact(1, value)]} for value in members])


def test_members_are_replaced_all_at_once(learner: Controller, plane: FakePlane) -> None:
    assert learner.read(EVERYTHING) == [p4r.Entity(value_set_entry=values())]
    learner.modify(value_set_entry=values(0x8100, 0x88A8))
    assert plane.value_sets == {"parse.tagged": [(Exact(0x8100),), (Exact(0x88A8),)]}
    one = p4r.Entity(value_set_entry=p4r.ValueSetEntry(value_set_id=VALUE_SET))
    assert learner.read(one) == [p4r.Entity(value_set_entry=values(0x8100, 0x88A8))]
    learner.modify(value_set_entry=values(1, 2, 3, 4))
    assert learner.read(EVERYTHING) == [p4r.Entity(value_set_entry=values(1, 2, 3, 4))]
    learner.modify(value_set_entry=values())
    assert plane.value_sets == {"parse.tagged": []}


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("insert", values(), "INVALID_ARGUMENT: value set parse.tagged is always there, only MODIFY"),
        ("delete", values(), "INVALID_ARGUMENT: value set parse.tagged is always there, only MODIFY"),
        ("modify", values(1, 2, 1), "ALREADY_EXISTS: value set parse.tagged: member 2 is given twice"),
        ("modify", values(1, 2, 3, 4, 5), "RESOURCE_EXHAUSTED: value set parse.tagged holds 4 members"),
        ("modify", values(0x10000), "INVALID_ARGUMENT: value set parse.tagged, match field 1 is 0x10000"),
        ("modify", p4r.ValueSetEntry(value_set_id=VALUE_SET, members=[{}]),
         "INVALID_ARGUMENT: value set parse.tagged: exact match field"),
        ("modify", p4r.ValueSetEntry(value_set_id=VALUE_SET, members=[{"match": [exact(2, 1)]}]),
         "INVALID_ARGUMENT: value set parse.tagged: exact match field"),
        ("modify", p4r.ValueSetEntry(value_set_id=VALUE_SET, members=[{"match": [exact(1, 1), exact(1, 2)]}]),
         "INVALID_ARGUMENT: value set parse.tagged: match field 1 is given twice"),
        ("modify", values(number=0), "INVALID_ARGUMENT: the value set id is missing"),
        ("modify", values(number=METER), "INVALID_ARGUMENT: id 0x14000001 is not a value set, it is meter"),
    ],
)  # fmt: skip
def test_a_bad_write(
    learner: Controller, plane: FakePlane, kind: str, entry: p4r.ValueSetEntry, text: str
) -> None:
    learner.modify(value_set_entry=values(7))
    assert why(learner, kind, value_set_entry=entry).startswith(text)
    assert plane.value_sets == {"parse.tagged": [(Exact(7),)]}


def test_a_bad_read(learner: Controller) -> None:
    refusal = learner.refused(learner.read, p4r.Entity(value_set_entry=values(number=1)))
    assert refusal.codes == ["INVALID_ARGUMENT"]


def test_members_of_several_fields_of_all_kinds(plane: FakePlane) -> None:
    kinds = ("exact", "lpm", "ternary", "range", "optional")
    fields = tuple(KeyField(f"f{number}", kind, 8, number) for number, kind in enumerate(kinds, 1))
    handler = ValueSets(Schema(value_sets={1: ValueSetInfo("s", 2, fields, 1)}), plane)
    entry = p4r.ValueSetEntry(
        value_set_id=1,
        members=[
            {
                "match": [
                    exact(1, 5),
                    {"field_id": 2, "lpm": {"value": b"\x80", "prefix_len": 1}},
                    {"field_id": 3, "ternary": {"value": b"\1", "mask": b"\3"}},
                    {"field_id": 4, "range": {"low": b"\1", "high": b"\2"}},
                    {"field_id": 5, "optional": {"value": b"\1"}},
                ]
            },
            {"match": [exact(1, 5)]},
        ],
    )
    handler.write(Operation.MODIFY, entry)
    assert plane.value_sets["s"] == [
        (Exact(5), Lpm(0x80, 1), Ternary(1, 3), Range(1, 2), Optional_(1)),
        (Exact(5), Lpm(0, 0), Ternary(0, 0), Range(0, 255), Optional_(None)),
    ]
    assert list(handler.read(p4r.ValueSetEntry(value_set_id=1))) == [p4r.Entity(value_set_entry=entry)]
    with pytest.raises(P4RuntimeError, match="value set s, match field f2 is lpm, but the request gives ex"):
        handler.write(
            Operation.MODIFY,
            p4r.ValueSetEntry(value_set_id=1, members=[{"match": [exact(1, 5), exact(2, 1)]}]),
        )
