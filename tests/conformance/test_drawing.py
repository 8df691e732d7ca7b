"""Entries at random are such as a switch takes, and of each kind that its program has."""

from __future__ import annotations

import random
from collections import Counter

import grpc
import pytest
from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from tests.conformance.drawing import Drawing
from tests.conformance.p4runtime import OverP4Runtime
from tests.conformance.programs import program as own_program
from tests.conformance.ways import served
from tests.soft_switch import programs

pytestmark = pytest.mark.slow


def _taken(json: bytes, p4info: str) -> tuple[list[p4r.Entity], int]:
    """Write what is drawn; give what the switch took, and how many updates there were."""
    taken, count = [], 0
    with DataPlane() as plane, served(plane) as controller:
        controller.push(json, p4info)
        control = OverP4Runtime(controller)
        for kind, entity in Drawing(controller.info, random.Random(1)).updates():
            count += 1
            try:
                control.write(kind, entity)
            except grpc.RpcError:
                continue
            taken.append(entity)
    return taken, count


def test_all_kinds_of_matches() -> None:
    taken, count = _taken(*own_program("matching"))
    assert len(taken) > count / 2
    entries = [entity.table_entry for entity in taken]
    kinds = Counter(field.WhichOneof("field_match_type") for entry in entries for field in entry.match)
    assert kinds.keys() == {"exact", "lpm", "ternary", "range", "optional"}
    assert any(entry.is_default_action for entry in entries)
    ordered = [(entry.table_id, entry.priority) for entry in entries if entry.priority]
    assert len(set(ordered)) == len(ordered)


def test_members_groups_and_one_shots() -> None:
    taken, count = _taken(programs.program("profiles"), programs.p4info("profiles"))
    assert len(taken) > count / 2
    assert {entity.WhichOneof("entity") for entity in taken} == {
        "table_entry",
        "action_profile_member",
        "action_profile_group",
    }
    targets = {entity.table_entry.action.WhichOneof("type") for entity in taken} - {None}
    assert targets == {
        "action",
        "action_profile_member_id",
        "action_profile_group_id",
        "action_profile_action_set",
    }
