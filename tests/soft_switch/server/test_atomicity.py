"""Batches that are applied as a whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from finsy.proto import p4d, p4r
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soft_switch.server.device import _write_or_roll_back
from soft_switch.server.state import ForwardingState, parse_config
from tests.soft_switch.server.features import (
    LEARN_DIGEST,
    METER,
    STATIONS,
    VALUE_SET,
    call,
    mirror,
    source,
    station,
)
from tests.soft_switch.server.written import (
    BEFORE,
    DEFAULT,
    WILDCARDS,
    group,
    session,
    update,
)

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane

ROLLBACK = p4r.WriteRequest.ROLLBACK_ON_ERROR


def everything(controller: Controller) -> list[p4r.Entity]:
    return controller.read(*WILDCARDS)


COUNTED = station(1, port=9, counter_data=p4r.CounterData(packet_count=5, byte_count=6))


CHANGES = [
    update("INSERT", table_entry=station(3)),
    update("MODIFY", table_entry=COUNTED),
    update("DELETE", table_entry=station(1)),
    update("DELETE", table_entry=station(2)),
    update("INSERT", table_entry=mirror(5, 5)),
    update("MODIFY", table_entry=DEFAULT),
    update("MODIFY", direct_counter_entry=p4r.DirectCounterEntry(
        table_entry=station(2), data=p4r.CounterData(packet_count=77))),
    update("MODIFY", direct_meter_entry=p4r.DirectMeterEntry(table_entry=station(1))),
    update("MODIFY", meter_entry=p4r.MeterEntry(meter_id=METER)),
    update("MODIFY", meter_entry=p4r.MeterEntry(meter_id=METER, index={"index": 1})),
    update("MODIFY", value_set_entry=p4r.ValueSetEntry(value_set_id=VALUE_SET)),
    update("DELETE", digest_entry=p4r.DigestEntry(digest_id=LEARN_DIGEST)),
    update("MODIFY", digest_entry=p4r.DigestEntry(digest_id=LEARN_DIGEST)),
    update("DELETE", packet_replication_engine_entry=group(1)),
    update("MODIFY", packet_replication_engine_entry=group(1, 7)),
    update("INSERT", packet_replication_engine_entry=group(2)),
    update("DELETE", packet_replication_engine_entry=session(1)),
    update("MODIFY", packet_replication_engine_entry=session(1, 7)),
]  # fmt: skip
FAILS = update("DELETE", table_entry=source(99))


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_one_change_is_taken_back(learner: Controller, change: p4r.Update) -> None:
    learner.write(*BEFORE)
    before = everything(learner)
    refusal = learner.refused(learner.write, change, FAILS, change, atomicity=ROLLBACK)
    assert refusal.codes == ["ABORTED", "NOT_FOUND", "ABORTED"]
    assert refusal.details[0].message == "rolled back, as update number 1 failed"
    assert refusal.details[2].message == "not attempted, as update number 1 failed"
    assert sorted(map(str, everything(learner))) == sorted(map(str, before))
    learner.write(change, atomicity=ROLLBACK)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(CHANGES), max_size=12))
def test_any_changes_are_taken_back(
    plane: FakePlane, features: p4r.ForwardingPipelineConfig, changes: list[p4r.Update]
) -> None:
    config = parse_config(features)
    plane.load(config.device_config)
    state = ForwardingState(config, plane)
    assert _write_or_roll_back(state, BEFORE, None) == [None] * len(BEFORE)
    before = [str(entity) for wildcard in WILDCARDS for entity in state.read(wildcard)]
    results = _write_or_roll_back(state, [*changes, FAILS], None)
    assert None not in results
    after = [str(entity) for wildcard in WILDCARDS for entity in state.read(wildcard)]
    assert sorted(after) == sorted(before)


def test_the_entry_that_matches_everything_alone_is_restored(controller: Controller) -> None:
    routes = [p4r.TableEntry(table_id=0x02000001, action=call(0x01000002), metadata=b"all")]
    for octet in (1, 2):
        match = p4r.FieldMatch(field_id=1, lpm={"value": bytes([octet, 0, 0, 0]), "prefix_len": 8})
        routes.append(p4r.TableEntry(table_id=0x02000001, match=[match], action=call(0x01000002)))
    controller.write(*(update("INSERT", table_entry=route) for route in routes))
    request = p4r.Entity(table_entry=p4r.TableEntry(table_id=0x02000001))
    delete = update("DELETE", table_entry=routes[0])
    controller.refused(controller.write, delete, delete, atomicity=ROLLBACK)
    found = [entity.table_entry for entity in controller.read(request)]
    assert sorted(map(str, found)) == sorted(map(str, routes))


def test_registers_counters_and_constant_entries(controller: Controller) -> None:
    classes = p4r.Entity(table_entry=p4r.TableEntry(table_id=0x02000004, counter_data=p4r.CounterData()))
    registers = p4r.Entity(register_entry=p4r.RegisterEntry(register_id=0x16000001))
    counters = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12000001))
    first = controller.read(classes)[0].table_entry
    constant = p4r.TableEntry(
        table_id=first.table_id,
        match=first.match,
        priority=first.priority,
        counter_data=p4r.CounterData(packet_count=9),
    )
    before = controller.read(classes, registers, counters)
    refusal = controller.refused(
        controller.write,
        update("MODIFY", table_entry=constant),
        update("MODIFY", register_entry=p4r.RegisterEntry(
            register_id=0x16000001, data=p4d.P4Data(bitstring=b"\5"))),
        update("MODIFY", counter_entry=p4r.CounterEntry(
            counter_id=0x12000001, index={"index": 3}, data=p4r.CounterData(packet_count=4))),
        FAILS,
        atomicity=ROLLBACK,
    )  # fmt: skip
    assert refusal.codes == ["ABORTED"] * 3 + ["INVALID_ARGUMENT"]
    assert controller.read(classes, registers, counters) == before


def test_a_batch_of_one_is_atomic_in_the_data_plane(learner: Controller) -> None:
    atomic = p4r.WriteRequest.DATAPLANE_ATOMIC
    learner.write(CHANGES[0], atomicity=atomic)
    refusal = learner.refused(learner.write, CHANGES[4], CHANGES[5], atomicity=atomic)
    assert (refusal.code, refusal.details) == ("UNIMPLEMENTED", [])
    refusal = learner.refused(learner.write, CHANGES[4], atomicity=7)
    assert str(refusal) == "INVALID_ARGUMENT: there is no atomicity 7"


def test_a_rolled_back_batch_is_not_replayed(
    learner: Controller, features: p4r.ForwardingPipelineConfig
) -> None:
    learner.set_config("VERIFY_AND_SAVE", features)
    learner.refused(learner.write, CHANGES[0], FAILS, atomicity=ROLLBACK)
    learner.write(update("INSERT", table_entry=station(8)), atomicity=ROLLBACK)
    learner.set_config("COMMIT")
    found = learner.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=STATIONS)))
    assert [entity.table_entry for entity in found] == [station(8)]
